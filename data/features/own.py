"""Features of the user: a file of functions from wide bars to one frame each, with a check that none looks ahead.

    def volume_shock(bars):
        return bars.volume / bars.volume.rolling(20).mean() - 1

Whatever pandas can do is allowed, as long as the values of a day follow from bars up to that day.
"""

import hashlib
import importlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pandas as pd

from data.features.catalogue import CATALOGUE
from data.features.wide import WideBars
from data.market import Market, days_up_to
from utils.arrays import DateArray, Float32Array
from utils.errors import PACKAGES, ConfigError, DataError, LookAheadError, first_line

OwnFeature = Callable[[WideBars], pd.DataFrame]
_AUDITED_DAYS, _LEAST_DAYS = 8, 3
FIT_BEFORE = "fit a model before, on earlier days, save it, and load it there"
_PROGRAM = {Path(__file__).parents[2] / package for package in PACKAGES}
_neighbours = set[str]()
"""Names of the modules that files have imported from beside them."""
FUTURES = ("cut off", "poisoned", "scaled")
_TOLERANCE = 1e-5
"""Relative: sums over other rows may differ in their last bits."""
GAPS = 0.1
"""Share of the bars that are taken out, so that values from after a gap would show."""


def read_features(path: Path) -> tuple[dict[str, OwnFeature], str]:
    """Return the public functions of a file by name, and the hash of the file with what it imports from beside it.

    Raises `DataError` if it cannot be read or run, or defines no function.
    """
    functions: dict[str, OwnFeature] = {
        name: one for name, one in public_names(path, "features").items() if isinstance(one, (FunctionType, partial))
    }
    if not functions:
        raise DataError(f"expected functions of bars in {path}, got none without an underscore; define one")
    if taken := sorted(CATALOGUE.keys() & functions.keys()):
        raise DataError(f"expected features with names of their own, got {taken[0]!r}, a built-in feature; rename it")
    beside = (getattr(sys.modules[name], "__file__", None) for name in _beside())
    files = [path, *(Path(file) for file in beside if file)]
    return functions, hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def require_alone(path: Path, wanted: str) -> None:
    """Raise ConfigError where a file imports modules from beside it, of which an account would keep no copy."""
    public_names(path, wanted)
    if beside := _beside():
        raise ConfigError(
            f"expected {wanted} of a paper account in one file, of which it keeps a copy, got {path} with "
            f"{', '.join(beside)} beside it; write all into one file"
        )


def public_names(path: Path, wanted: str) -> dict[str, Any]:
    """Run a Python file of what is wanted, with the modules beside it; return its own functions and classes without an
    underscore, by name.

    Raises DataError where it cannot be read or run.
    """
    folder = path.resolve().parent
    module = ModuleType(str(path.resolve()).replace(".", "_"))  # nobody imports it
    module.__file__ = str(path)
    sys.path[:] = [str(folder), *(place for place in sys.path if place != str(folder))]  # as of a script
    for name in _neighbours & sys.modules.keys():
        del sys.modules[name]  # another file's, or of another version
    importlib.invalidate_caches()
    sys.modules[module.__name__] = module  # where dataclasses look annotations up, and pickles classes
    known = set(sys.modules)
    try:
        # Not by an import, which could take another version from its cache of compiled files.
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except (Exception, SystemExit) as error:
        raise DataError(f"expected a Python file of {wanted}, got {path} ({described(error)}); mend it") from error
    finally:
        _neighbours.update(name for name in sys.modules.keys() - known if _is_in(folder, name.partition(".")[0]))
    return {
        name: one
        for name, one in vars(module).items()
        if callable(one) and not name.startswith("_")
        if getattr(one.func if isinstance(one, partial) else one, "__module__", "") == module.__name__
    }


def _beside() -> list[str]:
    """Return the names of the modules that the last file has imported from beside it."""
    return sorted(_neighbours & sys.modules.keys())


def _is_in(folder: Path, name: str) -> bool:
    """Tell whether a module is a file or a package in a folder, and not of the program."""
    module = sys.modules.get(name)
    places = [*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""]
    return name not in PACKAGES and any(Path(place).parent == folder for place in places)


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
            f"expected function {name!r} to be computed, got {described(error)}; mend the function"
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
    for as_is in (market, market.without(rng.random(market.data_array.shape[:2]) < GAPS)):
        bars = as_is.wide()
        before = {name: _values(name, function, bars) for name, function in functions.items()}
        for name, function in functions.items() if as_is is market else ():
            if not np.array_equal(before[name], _values(name, function, bars), equal_nan=True):
                raise DataError(
                    f"expected function {name!r} to give the same values of the same bars, got others the second time: "
                    "it draws at random or reads a clock; seed it, or leave that out"
                )
        for last, future in zip(_audited_days(market.dates, rng), cycle(FUTURES), strict=False):
            changed = days_up_to(as_is, last) if future == "cut off" else with_future(as_is, last, future, rng)
            bars_then = changed.wide()
            for name, function in (read or (lambda: functions))().items():
                _require_same(name, before[name][: last + 1], _values(name, function, bars_then), bars, future)


def _audited_days(dates: DateArray, rng: np.random.Generator) -> list[int]:
    """Draw days, without the last one, in random order: any, and as many ends of weeks and of months."""
    months, weeks = dates.astype("M8[M]"), (dates.astype(np.int64) + 3) // 7  # Monday begins one
    ends = np.flatnonzero(np.diff(weeks)), np.flatnonzero(months[1:] != months[:-1])
    quarter = _AUDITED_DAYS // 4
    counts = zip((2 * quarter, quarter, quarter), (np.arange(len(dates) - 1), *ends), strict=True)
    drawn = [rng.choice(kind, min(count, len(kind)), replace=False) for count, kind in counts]
    return [int(day) for day in rng.permutation(np.unique(np.concatenate(drawn)))]


def with_future(
    market: Market, day: int, future: str, draws: np.random.Generator, impossible: Sequence[float] = ()
) -> Market:
    """Return a market with other data after a day, one of `FUTURES`: none; noise with gaps; or all of a column
    multiplied by a factor, as a split or another currency would.

    Args:
        impossible: prices that the loader masks, some of which are among the noise.
    """

    def changed(values: Float32Array) -> Float32Array:
        values = values.copy()
        later = values[day + 1 :]
        each = (*later.shape[:2], 1)[: values.ndim]
        if future == "cut off":
            later[:] = np.nan
        elif future == "scaled":
            later *= np.exp(draws.uniform(-3, 3, each[1:]))
        else:
            later[:] = np.exp(draws.uniform(-6, 12, each)) * np.exp(0.1 * draws.standard_normal(later.shape))
            later[draws.random(later.shape[:2]) < 0.3] = np.nan
            if impossible and values.ndim == 3:
                is_impossible = draws.random(later.shape) < 0.01
                later[is_impossible] = draws.choice(impossible, int(is_impossible.sum()))
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
            f"{bars.dates[len(before) - 1]} {future}: it looks ahead; mend the function, or {FIT_BEFORE}"
        )


def described(error: BaseException) -> str:
    """Return an error of code that is not the program's in a line, with the innermost place in that code's folder."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    frames = [(path, line) for path, line in frames if path.name != "_contextlib.py"]  # of no_grad
    others = [(path, line) for path, line in frames if not _PROGRAM.intersection(path.parents)]
    text = f"{type(error).__name__}: {first_line(error)}"
    if not others or isinstance(error, SyntaxError):  # which names its place itself
        return text
    path, line = [one for one in others if one[0].parent == others[0][0].parent][-1]
    return f"{text}, in {path.name}, line {line}"
