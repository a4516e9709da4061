"""Features of the user: a file of functions from wide bars to one frame each, with a check that none looks ahead.

    def volume_shock(bars):
        return bars.volume / bars.volume.rolling(20).mean() - 1

Whatever pandas can do is allowed, as long as the values of a day follow from bars up to that day.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import cycle
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pandas as pd

from data.features.catalogue import CATALOGUE
from data.features.wide import WideBars
from data.market import Market, span_of
from utils.arrays import DateArray, Float32Array
from utils.errors import DataError, LookAheadError, first_line

OwnFeature = Callable[[WideBars], pd.DataFrame]
_AUDITED_DAYS, _LEAST_DAYS = 8, 3
_MODULE = "__own_features__"
"""Name of the module that a file is run as; nobody imports it."""
_FUTURES = ("cut off", "poisoned", "scaled")
_TOLERANCE = 1e-5
"""Relative: sums over other rows may differ in their last bits."""
_GAPS = 0.1
"""Share of the bars that are taken out, so that values from after a gap would show."""


def read_features(path: Path) -> tuple[dict[str, OwnFeature], str]:
    """Return the public functions of a file by name, and the hash of the file.

    Raises `DataError` if it cannot be read or run, or defines no function.
    """
    functions: dict[str, OwnFeature] = {
        name: one for name, one in public_names(path, "features").items() if isinstance(one, (FunctionType, partial))
    }
    if not functions:
        raise DataError(f"expected functions of bars in {path}, got none without an underscore; define one")
    if taken := sorted(CATALOGUE.keys() & functions.keys()):
        raise DataError(f"expected features with names of their own, got {taken[0]!r}, a built-in feature; rename it")
    return functions, hashlib.sha256(path.read_bytes()).hexdigest()


def public_names(path: Path, wanted: str) -> dict[str, Any]:
    """Run a Python file of what is wanted; return its own functions and classes without an underscore, by name.

    Raises DataError where it cannot be read or run.
    """
    try:
        module = ModuleType(_MODULE)
        module.__file__ = str(path)
        sys.modules[_MODULE] = module  # a dataclass looks its annotations up there
        # Not by an import, which could take another version from its cache of compiled files.
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise DataError(f"expected a Python file of {wanted}, got {path} ({_described(error)}); mend it") from error
    return {
        name: one
        for name, one in vars(module).items()
        if callable(one) and not name.startswith("_")
        if getattr(one.func if isinstance(one, partial) else one, "__module__", "") == _MODULE
    }


def own_columns(functions: Mapping[str, OwnFeature], bars: WideBars) -> dict[str, Float32Array]:
    """Compute features: (days, tickers) by name, NaN where there is no value.

    Raises `DataError` if a function fails, returns something else, or has the name of a column.
    """
    columns = dict[str, Float32Array]()
    for name, function in functions.items():
        if name in bars.columns or name == "volume":
            raise DataError(f"expected features with names of their own, got {name!r}, a column of the data; rename it")
        columns[name] = _values(name, function, bars)
        if not np.isfinite(columns[name]).any():
            raise DataError(f"expected values of function {name!r}, got none that is a number; mend the function")
    return columns


def _values(name: str, function: OwnFeature, bars: WideBars) -> Float32Array:
    shape = len(bars.dates), len(bars.tickers)
    try:
        with np.errstate(all="ignore"):
            frame = function(bars)
        values = np.asarray(frame, dtype=np.float64)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"expected function {name!r} to be computed, got {_described(error)}; mend the function"
        ) from error
    is_aligned = not isinstance(frame, pd.DataFrame) or (
        frame.index.equals(pd.DatetimeIndex(bars.dates)) and frame.columns.equals(pd.Index(bars.tickers))
    )
    if values.shape != shape or not is_aligned:
        raise DataError(
            f"expected a frame of days x tickers {shape} from function {name!r}, got {type(frame).__name__} "
            f"{values.shape}{'' if is_aligned else ' with another index'}; return one in the form of bars.close"
        )
    with np.errstate(over="ignore"):
        single: Float32Array = values.astype(np.float32)
    single[~np.isfinite(single)] = np.nan
    return single


def audit_features(
    functions: Mapping[str, OwnFeature],
    market: Market,
    rng: np.random.Generator,
    read: Callable[[], Mapping[str, OwnFeature]] | None = None,
) -> None:
    """Check on some days that no feature changes with later data, which are cut off, poisoned or scaled in turn.

    Half of the days are any, the others ends of weeks and months, which some features read apart. All bars are tried
    first, then bars of which a tenth is missing: a backward fill reads the future only in a gap, and a long centred
    mean may have no value where there are gaps. Features are compared on all days up to the last one whose data stay.
    Raises `DataError` for the first feature that changes, with day and ticker.

    Args:
        read: run the file of the functions anew, as before each trial: what they keep from call to call would hide the
            future that they saw.
    """
    days = len(market.dates)
    if days < _LEAST_DAYS:
        return
    for as_is in (market, market.without(rng.random(market.data_array.shape[:2]) < _GAPS)):
        bars = as_is.wide()
        before = {name: _values(name, function, bars) for name, function in functions.items()}
        for last, future in zip(_audited_days(market.dates, rng), cycle(_FUTURES), strict=False):
            changed = _with_future(as_is, last, future, rng).wide()
            for name, function in (read or (lambda: functions))().items():
                _require_same(name, before[name][: last + 1], _values(name, function, changed), bars, future)


def _audited_days(dates: DateArray, rng: np.random.Generator) -> list[int]:
    """Draw days, without the last one, in random order: any, and as many ends of weeks and of months."""
    months, weeks = dates.astype("M8[M]"), (dates.astype("M8[D]").astype(np.int64) + 3) // 7  # Monday begins one
    ends = np.flatnonzero(np.diff(weeks)), np.flatnonzero(months[1:] != months[:-1])
    quarter = _AUDITED_DAYS // 4
    counts = zip((2 * quarter, quarter, quarter), (np.arange(len(dates) - 1), *ends), strict=True)
    drawn = [rng.choice(kind, min(count, len(kind)), replace=False) for count, kind in counts]
    return [int(day) for day in rng.permutation(np.unique(np.concatenate(drawn)))]


def _with_future(market: Market, last: int, future: str, rng: np.random.Generator) -> Market:
    """Return a market with other data after a day; cut off, the later days are gone."""
    if future == "cut off":
        return span_of(market, 0, last)

    def changed(values: Float32Array) -> Float32Array:
        values = values.copy()
        factor = np.exp(rng.normal(0.0, 1.0, values.shape if future == "poisoned" else (1, *values.shape[1:])))
        values[last + 1 :] *= np.broadcast_to(factor, values.shape)[last + 1 :]
        if future == "poisoned":
            values[last + 1 :][rng.random(values[last + 1 :].shape) < _GAPS] = np.nan
        return values

    return market.map_cells(changed)


def _require_same(name: str, before: Float32Array, after: Float32Array, bars: WideBars, future: str) -> None:
    after = after[: len(before)]
    scale = np.nan_to_num(np.abs(before)).max(axis=0, initial=0.0)
    differs = (np.isnan(before) != np.isnan(after)) | (np.abs(before - after) > _TOLERANCE * np.maximum(scale, 1e-12))
    if differs.any():
        day, ticker = np.argwhere(differs)[0]
        raise LookAheadError(
            f"expected function {name!r} to follow from bars up to its day, but of {bars.tickers[ticker]} on "
            f"{bars.dates[day]} it was {before[day, ticker]:g} and became {after[day, ticker]:g} with all data after "
            f"{bars.dates[len(before) - 1]} {future}: it looks ahead; mend the function"
        )


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
