"""Splits and dividends: those that a vendor names, and prices of the past that were adjusted again for one.

Names are in a CSV file beside the data: `ticker, date, split, dividend, pay_date`.

`prepare` writes it, and a person may add to it. Prices are adjusted; the file tells what adjusted them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from utils.arrays import BoolArray
from utils.errors import DataError, first_line
from utils.runs.durable import make_directory, new_file

Floats = NDArray[np.floating]
ROUNDING = 1e-6
"""Relative difference of two downloads of one price, as single precision leaves it."""
_STEPS = (0.01, 0.001, 0.0001, 0.00001)
_COLUMNS = ["ticker", "date", "split", "dividend", "pay_date"]
_NEAR = 0.25
"""Share of the dividends' effect by which the measured ratio may miss them: the close may be some sessions old."""


@dataclass(frozen=True)
class Event:
    """A split or a dividend."""

    ticker: str
    date: str
    """First day without it, the ex-date."""
    kind: str
    """`split` or `dividend`."""
    size: float
    """New shares for one; cash for a share, after a split of that day."""
    pay_date: str
    """On which a dividend is paid; the ex-date where it is not known."""

    def __str__(self) -> str:
        """Return it in words, as `split 4:1 of 2020-08-31`."""
        if self.kind == "dividend":
            return f"dividend of {self.size:g} of {self.date}"
        new, old = self.fraction.as_integer_ratio()
        return f"split {f'{new}:{old}' if max(new, old) < 10_000 else f'{self.size:g}:1'} of {self.date}"

    @property
    def fraction(self) -> Fraction:
        """New shares for one, as the ratio of whole numbers that a decimal or measured size stands for."""
        ratio = Fraction(max(self.size, 1 / self.size)).limit_denominator(20)
        ratio = ratio if self.size > 1 else 1 / ratio
        return ratio if math.isclose(ratio, self.size, rel_tol=1e-4) else Fraction(self.size)


def events_file(data: Path) -> Path:
    """Return the file of the events of a data file."""
    return data.with_name(f"{data.stem}.events.csv")


def read_events(data: Path | None) -> list[Event]:
    """Return the events beside a data file by date, splits first, or none. Raises DataError where a row is no event."""
    if data is None or not (path := events_file(data)).is_file():
        return []
    events = list[Event]()
    for line, row in enumerate(_read(path).itertuples(index=False), start=2):
        try:
            days = [date.fromisoformat(text) for text in (row.date, row.pay_date or row.date)]
            sizes = {kind: float(getattr(row, kind)) for kind in ("split", "dividend") if getattr(row, kind)}
            if not sizes or not all(0 < size < math.inf for size in sizes.values()) or days[1] < days[0]:
                raise ValueError
        except ValueError:
            raise DataError(
                f"expected ticker, ISO date, a split or a dividend above 0, and a pay date that is not before the date "
                f"on line {line} of {path}, got {','.join(map(str, row))[:60]!r}; mend it"
            ) from None
        events += [Event(row.ticker, str(days[0]), kind, size, str(days[1])) for kind, size in sizes.items()]
    return sorted(events, key=lambda one: (one.date, one.kind != "split"))


def note_events(data: Path, events: pd.DataFrame, *, added: bool = True) -> int:
    """Write events of tickers beside a data file, in one step, or add them; return on how many days there are some.

    Args:
        events: `ticker` as text, `day` and `pay` as days since 1970-01-01 (0 and less: not known), `split` and
            `dividend`, NaN for none; a `pay` before its `day` is left out. Of two for one ticker and date the later
            counts, with what only the earlier one tells.
        added: earlier events of the same tickers stay.
    """
    path, pay = events_file(data), events["pay"].where(events["pay"] >= events["day"])
    days = {"date": events["day"], "pay_date": pay}
    texts = {name: pd.to_datetime(one, unit="D").dt.strftime("%Y-%m-%d") for name, one in days.items()}
    sizes = {name: events[name].map("{:.10g}".format) for name in ("split", "dividend")}
    new = events.assign(**texts, **{name: one.where(one != "nan") for name, one in sizes.items()})[_COLUMNS]
    old = _read(path).replace("", None) if path.is_file() else new[:0]
    kept = old[added | ~old["ticker"].isin(new["ticker"])]
    both = pd.concat([kept, new]).groupby(["ticker", "date"], as_index=False, sort=True).last()
    if len(new):
        try:
            make_directory(path.parent)
            with new_file(path) as file:
                both[_COLUMNS].to_csv(file, index=False)
        except OSError as error:
            raise DataError(f"expected to write {path}, got '{error}'; free it, or name another target") from error
    return len(both)


def _read(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"expected a CSV file of splits and dividends, got {path} ({first_line(error)})") from None
    if missing := [name for name in _COLUMNS[:-1] if name not in frame]:
        raise DataError(f"expected {', '.join(_COLUMNS)} in {path}, got no {missing[0]}; mend the header")
    return frame.reindex(columns=_COLUMNS, fill_value="")


def ratios_of(events: Sequence[Event], ratio: float, close: float) -> list[float]:
    """Return by what each of a ticker's events has multiplied earlier prices, so that all of them give a ratio.

    Empty where they do not explain it.

    Args:
        close: last one before the events.
    """
    logarithms, dividends = list[float](), list[float]()
    for event in events:
        kept = 1 / event.size if event.kind == "split" else 1 - event.size / close
        if not 0 < kept < math.inf:
            return []
        close *= kept
        logarithms.append(math.log(kept))
        dividends.append(abs(logarithms[-1]) if event.kind == "dividend" else 0.0)
    # The close may be some sessions old; splits are exact, but for the decimals of prices.
    rest, least = math.log(ratio) - sum(logarithms), 1e-3 if len(dividends) > sum(map(bool, dividends)) else 1e-6
    if abs(rest) > _NEAR * sum(dividends) + least:
        return []
    weights = [one / sum(dividends) for one in dividends] if any(dividends) else [1 / len(events)] * len(events)
    return [math.exp(one + part * rest) for one, part in zip(logarithms, weights, strict=True)]


def explaining(candidates: Sequence[Event], ratio: float, close: float) -> list[tuple[Event, float]]:
    """Return the first of a ticker's named events that explain a ratio, each with its own; empty where none do."""
    for count in range(len(candidates), 0, -1):
        if ratios := ratios_of(candidates[:count], ratio, close):
            return list(zip(candidates[:count], ratios, strict=True))
    return []


@dataclass(frozen=True)
class Readjustment:
    """How bars of one ticker have changed."""

    ratio: float
    """By which earlier prices were multiplied; 1 where they were not."""
    bars: int
    """The first bars, to which it applies; the later ones are as they were."""
    revised: BoolArray
    """(bars,) that changed otherwise."""


def readjustment(before: Floats, now: Floats) -> Readjustment:
    """Compare two versions of (bars, prices), NaN without a bar, in the order of their days."""
    bars, steps = len(before), (price_step(before), price_step(now))
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = now.astype(np.float64) / before

    def differs(ratio: float, error: float = 0.0) -> BoolArray:
        # A vendor's decimals round the product, and the ratio is measured on such; other prices are not rounded anew.
        least = ratio * steps[0] + steps[1] if ratio != 1 else 0.0
        near = np.isclose(now, ratio * before.astype(np.float64), rtol=ROUNDING + error, atol=least, equal_nan=True)
        return np.asarray(~near.all(axis=1))

    same = Readjustment(1.0, 0, differs(1.0))
    if not same.revised.any():
        return same
    candidates = [same]
    for first in (int(np.flatnonzero(same.revised)[-1]) + 1, bars):
        known = quotient[:first][np.isfinite(quotient[:first])]
        ratio = float(np.median(known)) if len(known) else 1.0
        # Standard error of that median: the numerators are rounded.
        error = steps[1] / (float(np.nanmin(now[:first])) * math.sqrt(len(known))) if len(known) else 0.0
        candidates.append(Readjustment(ratio, first, differs(ratio, error) & (np.arange(bars) < first)))
    return min(candidates, key=lambda one: int(one.revised.sum()))


def price_step(prices: Floats) -> float:
    """Return the decimal step that all prices are multiples of; 0 where single precision shows none."""
    known = prices[np.isfinite(prices)].astype(np.float64)
    for step in _STEPS:
        count = known / step
        if (np.abs(count - np.round(count)) <= np.minimum(1e-7 * count, 0.1)).all():
            return step if len(known) else 0.0
    return 0.0
