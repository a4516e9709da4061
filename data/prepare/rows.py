"""Rows of bars from the cells of a file: their notation, settled by what it shows, their values, what refutes them."""

import re
from unicodedata import normalize

import numpy as np
import pandas as pd

from data.prepare.files import Table
from data.prepare.join import further_columns, settle_days
from data.prepare.layout import (
    BLANKS,
    EVENTS,
    NAMES,
    PRICES,
    STANDARD,
    UNIT,
    WORDS,
    Layout,
    UnclearFileError,
    plain,
    role_of,
)
from data.prepare.text import (
    CURRENCY,
    OTHER,
    bare_numbers,
    date_of,
    decimal_sign,
    numbers,
    resolve_days,
)
from utils.arrays import Float64Array
from utils.config.prepare import Choices

SAME = 1e-4
"""Relative difference below which two rows of one day have the same price, as vendors round them."""
_FEW_ROWS, _RARE, _OFTEN, _NEAR = 5, 0.01, 0.1, 0.05
"""Rows from which on columns are judged by their values, and shares of them that may break a rule."""
_RATIO = re.compile(r"(?im)^(\d+(?:\.\d+)?)(?: ?[:/] ?|[ -](?:for|to)[ -])(0*[1-9]\d*(?:\.\d+)?)$")


def settle(table: Table, choices: Choices, *, is_daily: bool = True) -> None:
    """Settle how a file writes dates and numbers, by what it shows or else by `choices`; its numbers become bare ones.

    Raises `UnclearFileError` where neither does.
    """
    settle_days(table, choices, is_daily=is_daily)
    for what, signs in _signs(table).items():
        table.signs[what] = _settled_sign(what, signs, table.signs.get("price", ""), choices)


def _signs(table: Table) -> dict[str, set[str]]:
    """Return the decimal signs that columns of prices and of volume show; the numbers of the file become bare ones."""
    shown: dict[str, set[str]] = {"price": set(), "volume": set()}
    for role, place in (one for group in table.layout.groups.values() for one in group.items()):
        if isinstance(cell := table.cells[place], str):
            if len(signs := {*re.findall(CURRENCY, cell)}) > 1:
                raise UnclearFileError(f"{' and '.join(sorted(signs))} in one column; give prices in one currency")
            table.cells[place] = cell = bare_numbers(cell)
            shown["volume" if role == "volume" else "price"].add(decimal_sign(cell))
    return shown


def _settled_sign(what: str, signs: set[str], price: str, choices: Choices) -> str:
    """Return the decimal sign of prices or volume by those of their columns. Raises `UnclearFileError` for none."""
    one, *others = signs & OTHER.keys() or signs - {""} or {""}
    if not others and not one.startswith("?"):
        return one
    if price in OTHER and [one, *others] == [f"?{OTHER[price]}"]:
        return price  # volume is in whole numbers, unless it is written as prices are
    if choices.decimal == "auto":
        raise UnclearFileError(
            f"{what}s like 12.345 may have decimals or be in thousands; say which: --decimal . or --decimal ,"
        )
    return choices.decimal


def flatten(rows: pd.DataFrame, where: pd.Series, volume: float) -> None:
    """Set all prices of some rows to their close, and their volume, in place."""
    for price in ("open", "high", "low"):
        rows.loc[where, price] = rows["close"]
    rows.loc[where, "volume"] = volume


def rows_of(table: Table, choices: Choices) -> pd.DataFrame:
    """Return a file's unchecked rows, in a notation that is settled; some may have no price.

    Columns are `day` since 1970-01-01, `ticker` ("" where the file has none), prices (the close where there is no
    other), volume (NaN where unknown), those of `adjusted`, `split`, `dividend` and `pay` (a day) that the file has,
    and further ones. In a panel, each ticker has a row of each. Raises `UnclearFileError` where titles, or what
    columns hold, contradict how they are read.
    """
    layout, frames = table.layout, []
    further = further_columns(table, choices)
    names = np.array(table.text("ticker").split("\n"), dtype=object) if "ticker" in layout.fields else None
    for ticker, group in layout.groups.items():
        values = {role: _values(table, role, place) for role, place in group.items()}
        columns = {
            "day": table.days,
            "ticker": ticker if names is None else names,
            **dict.fromkeys(PRICES, values["close"]),
            "volume": np.nan,
        }
        rows = pd.DataFrame(columns | values | further)
        frames.append(_with_halts(rows, layout, group))
    rows = pd.concat(frames)
    if "pay" in layout.fields:
        rows["pay"] = resolve_days(table.text("pay"), table.order)[rows.index]
    bars = rows.dropna(how="all", subset=PRICES)
    if len(bars) >= _FEW_ROWS and not {*PRICES} & {*choices.roles.values()}:
        _require_bars(bars)
    said = choices.places(layout.titles).values()
    for place in sorted({*range(len(layout.titles) if layout.headers == 1 else 0)}.difference(said)):
        if doubt := _doubt(table, bars, place):
            raise UnclearFileError(doubt)
    _require_money(bars[(bars["volume"] > 0) & (bars["close"] > 0)])
    return rows


def _values(table: Table, role: str, place: int) -> Float64Array:
    """Return the numbers of a column. Raises `UnclearFileError` where many, or any split or dividend, are none."""
    if not isinstance(cell := table.cells[place], str):
        return cell
    sign = table.signs["volume" if role == "volume" else "price"] or "."
    if role == "split":  # 3:2 is three shares for two
        cell = _RATIO.sub(lambda match: f"{float(match[1]) / float(match[2]):.12f}".replace(".", sign), cell)
    values = numbers(cell, sign)
    if np.isnan(values).any():
        lines = np.array(cell.split("\n"), dtype=object)[np.isnan(values)].tolist()
        lost = [line for line in lines if line.casefold() not in BLANKS]
        if len(lost) > (0 if role in (*EVENTS, "gain") else _RARE * len(values)):
            raise UnclearFileError(f"{role} {lost[0]!r}; write numbers, or leave it out: --columns ignore=TITLE")
    return values


def _with_halts(rows: pd.DataFrame, layout: Layout, group: dict[str, int]) -> pd.DataFrame:
    """Return a ticker's rows: at the close where it was halted, gains among dividends, no prices without a trade."""
    if (rows["volume"] > 0).any():  # days of a halt have the last close, or 0, in all places
        is_halt = (rows[PRICES].eq(rows["close"], axis=0) | rows[PRICES].eq(0)).all(axis=1) & ~(rows["volume"] > 0)
        if layout.has_closes_only:  # all prices are the close
            is_halt &= rows["volume"] == 0
        flatten(rows, is_halt, volume=0.0)
    if "gain" in rows:
        rows["dividend"] = rows.get("dividend", 0 * rows["gain"]).fillna(0) + rows.pop("gain").fillna(0)
    if plain(layout.titles[group["close"]]) == "prc":  # of CRSP, negative: mean of bid and ask, nothing was traded
        rows.loc[rows["close"] < 0, PRICES] = np.nan
    return rows


def _require_bars(rows: pd.DataFrame) -> None:
    """Raise `UnclearFileError` where a high and low often do not enclose the open and close."""
    inner = rows[["open", "close"]]
    is_bar = (rows["high"] >= 0.999 * inner.max(axis=1)) & (rows["low"] <= 1.001 * inner.min(axis=1))
    is_other = ~is_bar & rows[PRICES].notna().all(axis=1) & (rows["close"] > 0)
    if is_other.mean() > _OFTEN:
        got = ", ".join(f"{price:g}" for price in rows.loc[is_other, PRICES].iloc[0])
        raise UnclearFileError(
            f"columns are not date, open, high, low, close; a row has {got}; say which is which: "
            "--columns open=TITLE high=TITLE low=TITLE close=TITLE (a place, such as 5, for a title)"
        )


def _doubt(table: Table, rows: pd.DataFrame, place: int) -> str:
    """Say that a title comes twice, or names another unit of volume or several series; empty where none does."""
    titles, fields, panel = table.layout.titles, table.layout.fields, table.layout.panel
    title, volume = titles[place], fields.get("volume")
    once, name, unit = re.sub(r"\.\d+$", "", title), plain(title), UNIT.search(normalize("NFKD", title))
    if not name:
        return ""
    if once in titles[:place] and (panel or role_of(once)):
        return f"{once!r} twice in the header; give one table a file, or leave one out: --columns ignore={place + 1}"
    if place == volume and unit and plain(unit[1]) not in map(plain, WORDS["shares"]):
        return f"volume under {title!r}; give numbers of shares, or say that it has these: --columns 'volume={title}'"
    if panel or place in fields.values():
        return ""
    if volume is None and any(len(one) > 3 and one in name for one in NAMES["volume"]):
        return f"no column of volume, but {title!r}; say what it is: --columns 'volume={title}' or 'ignore={title}'"
    if name in WORDS["series"] | WORDS["returning"]:
        return _other_series(table, rows, place, is_fixed=name in WORDS["series"])
    return ""


def _other_series(table: Table, rows: pd.DataFrame, place: int, *, is_fixed: bool) -> str:
    """Say that a ticker has several values in a column, or goes back and forth between them; empty where none does."""
    cell, title = table.cells[place], table.layout.titles[place]
    texts = np.array(cell.split("\n") if isinstance(cell, str) else cell.astype(str), dtype=object)
    kinds = rows[["ticker", "day"]].assign(kind=texts[rows.index])
    kinds = kinds[~kinds["kind"].str.casefold().isin(BLANKS)].sort_values(["ticker", "day"], kind="stable")
    last = kinds.shift()
    changes = (kinds["ticker"] == last["ticker"]) & (kinds["kind"] != last["kind"])
    if not changes.any() or not (is_fixed or changes.mean() > _OFTEN):
        return ""
    ticker, _, kind = kinds[changes].iloc[0]
    return (
        f"{last['kind'][changes].iloc[0]!r} and {kind!r} under {title!r} for one ticker {ticker}; give each series a "
        f"ticker of its own, as in --columns 'ticker={title}', or say that it does not count: 'ignore={title}'"
    )


def _require_money(rows: pd.DataFrame) -> None:
    """Raise `UnclearFileError` where a column is the money traded, but not price x volume, or volume is the money."""
    logs = np.log10(rows.drop(columns=["day", "ticker"]).where(lambda values: values > 0))
    is_varied = len(rows) >= _FEW_ROWS and logs["volume"].std() > _NEAR
    for name in logs.columns.difference(STANDARD) if is_varied else ():
        money = logs[name] - logs["close"] - logs["volume"], (-2, -1, 1, 2, 3)
        for ratio, powers in (money, (logs["volume"] - logs["close"] - logs[name], (0,))):
            power, tracks_price = np.round(ratio.median()), ratio.std() < (ratio + logs["close"]).std()
            if power in powers and tracks_price and ((ratio - power).abs() < _NEAR).mean() > 1 - _OFTEN:
                raise UnclearFileError(
                    f"price x volume that is not the money traded, as {name!r} shows (volume in lots, or in money, or "
                    "prices in pence?); give shares, or say that it does not count: --columns ignore=TITLE"
                )


def require_one_bar_a_day(rows: pd.DataFrame, table: Table, choices: Choices) -> None:
    """Raise `UnclearFileError` where a ticker has different prices for one day, unless that is rare."""
    key = ["ticker", "day"]
    several = rows[rows.duplicated(key, keep=False)]
    groups = several.groupby(key)[PRICES]
    span = (groups.transform("max") - groups.transform("min")) / several[PRICES]
    other = several[(span > SAME).any(axis=1)]
    if len(other) - len(other[key].drop_duplicates()) > choices.max_bad_row_share * len(rows):
        ticker, day = other.iloc[0][key]
        closes = other["close"][(other["ticker"] == ticker) & (other["day"] == day)]
        raise UnclearFileError(
            f"closes {closes.iloc[0]:g} and {closes.iloc[1]:g} of {ticker!r} on {date_of(day)}; make days of bars "
            "within days, give files of one series each, or a column of tickers: --columns ticker=TITLE, one of "
            f"{', '.join(table.layout.titles)[:80]}"
        )
