"""Policies from files: a function or class of a Python file, a model of Stable-Baselines3, a table; and users' rows."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data.features.own import public_names
from data.market import Market
from data.prepare.files import read_frame
from data.prepare.layout import BLANKS
from data.prepare.text import NO_DAY, OTHER, bare_numbers, decimal_sign, numbers, possible_orders, resolve_days
from utils.arrays import BoolArray, DateArray, Float64Array, Int32Array
from utils.config.settings import hint
from utils.errors import ConfigError, DataError, first_line

WEIGHTS = "weights"
"""What a function's attribute `returns`, or a frame's `attrs["returns"]`, is where it gives target weights."""
_ALIASES = {"symbol": "ticker", "quantity": "shares", "qty": "shares"}
_MODEL = ".zip"
_ALGORITHMS = ("PPO", "A2C", "SAC", "TD3", "DDPG")
"""Of Stable-Baselines3, those with actions as these."""


def read_policy(place: str) -> tuple[str, Any]:
    """Return the name and the policy at `FILE.py`, `FILE.py:NAME` or `FILE.zip`.

    Raises:
        ConfigError: there is no such file, or Stable-Baselines3 is not installed.
        DataError: the file cannot be run or read, or does not tell which policy is meant.
    """
    text, _, name = place.partition(":")
    path = Path(text)
    if not path.is_file():
        raise ConfigError(f"--policy: expected an existing FILE.py, FILE.py:NAME or FILE.zip, got {place!r}")
    if path.suffix == _MODEL:
        return path.stem, _read_model(path)
    functions = public_names(path, "policies")
    names = [one for one, value in functions.items() if not isinstance(value, type) or hasattr(value, "act")]
    if (name and name not in names) or (not name and len(names) != 1):
        known = ", ".join(names) or "none"
        wanted = (
            f"{name!r}, a function of bars or class with `act`," if name else "one function of bars or class with `act`"
        )
        raise DataError(
            f"expected {wanted} in {path}, got {known}{hint(name, names) if name else ''}; name it as --policy "
            f"{path}:NAME"
        )
    name = name or names[0]
    return name, functions[name]


def _read_model(path: Path) -> Any:
    """Load a model of Stable-Baselines3, whichever algorithm it is of; like a Python file it may run code."""
    try:
        library = import_module("stable_baselines3")
    except ImportError:
        raise ConfigError(
            f"expected stable_baselines3 for {path}, got none; `pip install stable-baselines3`, or give a Python file"
        ) from None
    said = ""
    for name in _ALGORITHMS:
        try:
            return getattr(library, name).load(path, device="cpu")
        except Exception as error:
            said = said or f"{type(error).__name__}: {first_line(error)}"
    raise DataError(f"expected a model of {', '.join(_ALGORITHMS)} in {path}, got {said}; save it by model.save")


def read_rows(path: Path, wanted: str) -> pd.DataFrame:
    """Return the rows of a file of what is wanted, of a kind that `prepare` reads. Raises DataError for another."""
    try:
        return read_frame(path)
    except Exception as error:
        raise DataError(f"expected a CSV or parquet file of {wanted}, got {path} ({first_line(error)})") from None


def read_table(path: Path, holds: str) -> pd.DataFrame:
    """Return a file of scores or weights as `wide_table` does: of rows, or with a column of dates, which comes first or
    is called `date`, and one a ticker.

    Args:
        holds: "scores" or "weights"; rows of scores may be weights.

    Raises DataError for another file, or scores that are called weights.
    """
    table = read_rows(path, holds)
    table = table.reset_index() if isinstance(table.index, pd.DatetimeIndex) else table
    if len(table.columns) > 1 and not {"ticker", "score", "weight"}.intersection(titled(table).columns):
        first = next((name for name in table.columns if str(name).lower() == "date"), table.columns[0])
        table = table.rename(columns={first: "date"}).melt("date", var_name="ticker", value_name=holds[:-1])
    wide = wide_table(table, str(path))
    if holds == WEIGHTS != wide.attrs["returns"]:
        raise DataError(f"expected a column weight in {path}, got score; give scores as --scores {path}")
    return wide


def wide_table(rows: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return rows of date, ticker and score, or weight, as a frame of days by tickers, NaN where there is none; one of
    weights says so in `attrs["returns"]`, and has 0 for tickers without a row on a date that has rows.

    Raises DataError for other columns, or two values for one ticker and day.
    """
    rows = titled(rows)
    if len(known := [name for name in ("score", "weight") if name in rows.columns]) != 1:
        got = _columns(rows, "" if known else "score")
        raise DataError(
            f"expected columns date, ticker and one of score and weight in {source}, got {got}; a weight is the share "
            "of the equity that is to be held, a score the higher the better; give a row a day and ticker, or a row a "
            "day and a column a ticker"
        )
    [column] = known
    long = long_rows(rows, [column], source)
    if (twice := long.duplicated(["date", "ticker"])).any():
        one = long[twice].iloc[0]
        raise DataError(
            f"expected one {column} for each ticker and day in {source}, got two of {one['ticker']} on "
            f"{one['date']:%Y-%m-%d}; keep the one that was known at that close"
        )
    wide = long.pivot(index="date", columns="ticker", values=column)
    if column == "weight":  # what a date leaves out is not held then; an empty weight keeps
        wide = wide.mask(long.assign(row=1.0).pivot(index="date", columns="ticker", values="row").isna(), 0.0)
    wide.attrs["returns"] = WEIGHTS if column == "weight" else "scores"
    return wide


def is_rows(frame: pd.DataFrame) -> bool:
    """Tell whether a frame has a row a day and ticker, not days by tickers."""
    return "ticker" in titled(frame).columns


def titled(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows under the titles that are read, whichever letters are capital; a symbol is a ticker, a quantity
    shares."""
    lower = [str(name).strip().lower() for name in rows.columns]
    titles = [_ALIASES.get(title, title) for title in lower]
    return rows.set_axis(titles, axis=1) if len({*titles}) == len(titles) else rows


def _columns(rows: pd.DataFrame, lacking: str) -> str:
    """Return the first columns, and that which one that is lacking may be meant by, in words."""
    names = [str(name) for name in rows.columns]
    return ", ".join(names[:12]) + (hint(lacking, names) if lacking else "")


def long_rows(rows: pd.DataFrame, names: Sequence[str], source: str) -> pd.DataFrame:
    """Return `date`, `ticker` and some columns of numbers, in whichever notation of bars. Raises DataError for rows
    that do not tell them."""
    columns = ("date", "ticker", *names)
    if not len(rows):
        raise DataError(f"expected rows in {source}, got none; write one a day and ticker below the titles")
    if lacking := [name for name in columns if name not in rows.columns]:
        got = _columns(rows, lacking[0])
        raise DataError(f"expected columns {', '.join(columns)} in {source}, got {got}; give a row a day and ticker")
    rows = rows.reset_index(drop=True)
    told = {"date": days_of(rows["date"], source), "ticker": rows["ticker"].astype(str).to_numpy()}
    return numbers_of(rows[list(names)], source).assign(**told)


def days_of(column: "pd.Series[Any]", source: str, known: Int32Array | None = None) -> DateArray:
    """Return the days (rows,) of dates, of a time that of its zone, as of bars. Raises DataError for others.

    Args:
        known: sessions since 1970-01-01, one of which each is.
    """
    is_stamp = pd.api.types.is_datetime64_any_dtype(column.dtype)
    texts = _texts(column.dt.strftime("%Y-%m-%d") if is_stamp else column)
    place, unique = pd.factorize(texts)
    text = "\n".join(unique)
    # Months begin and end on weekends, too.
    orders = possible_orders(text, known, is_daily=False, are_bars=False) or ["mdy"]
    if len(orders) > 1:
        raise DataError(
            f"expected dates like 2014-11-10 in {source}, got {texts[0]}, whose day and month nothing tells apart; "
            "write the year first"
        )
    days = resolve_days(text, orders[0])[place]
    _require(days != NO_DAY, texts, "a date like 2014-11-10", source)
    return np.asarray(days, dtype="datetime64[D]")


def numbers_of(rows: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return columns as numbers, NaN for blanks; texts have one decimal sign. Raises DataError for others."""
    values, texts = rows.copy(), dict[str, "pd.Series[str]"]()
    for name, column in rows.items():
        if pd.api.types.is_numeric_dtype(column.dtype):
            values[name] = column.to_numpy(dtype=np.float64, na_value=np.nan)
            continue
        text = _texts(column)
        texts[str(name)] = text[~text.str.lower().isin(BLANKS)]
        values[name] = np.nan
    bare = {name: bare_numbers("\n".join(text.to_numpy(object))) for name, text in texts.items() if len(text)}
    signs = {decimal_sign(text) for text in bare.values()} - {""}
    sign, *others = signs & OTHER.keys() or signs or {"."}
    sign = "." if sign == "?." and rows.attrs.get("separator") == "," else sign
    if others or sign not in OTHER:
        raise DataError(
            f"expected numbers like 0.05 in {source}, got such as 1.234 or 1,234, which may have decimals or be in "
            "thousands; write 1234 or 1.2340"
        )
    for name, text in bare.items():
        found = numbers(text, sign)
        _require(~np.isnan(found), texts[name], f"numbers like 0.05 under {name!r}", source)
        values.loc[texts[name].index, name] = found
    return values


def _texts(column: "pd.Series[Any]") -> "pd.Series[str]":
    """Return cells as texts of one line, "" where there is none."""
    return column.astype("str").fillna("").str.strip().str.replace("\n", " ")


def _require(is_known: BoolArray, texts: "pd.Series[str]", wanted: str, source: str) -> None:
    """Raise DataError where a text, whose index is its row, is not what is wanted."""
    if not is_known.all():
        row, got = next(iter(texts[~is_known].items()))
        raise DataError(
            f"expected {wanted} in each row of {source}, got {got!r} in row {row + 1}"
            f"{f', and {more:,} more' if (more := int((~is_known).sum()) - 1) else ''}; write them so"
        )


def aligned(name: str, wide: pd.DataFrame, market: Market, tickers: Sequence[str] | None = None) -> Float64Array:
    """Return a frame of days by tickers for the days and investable stocks of a market, or other tickers, NaN where it
    has nothing; a day that is no session, as the end of a month may be, counts as the session before.

    Raises DataError where it has none of them.
    """
    tickers = [market.tickers[column] for column in market.investable_columns] if tickers is None else [*tickers]
    days = pd.DatetimeIndex(market.dates.astype("datetime64[s]"))
    table = wide.set_axis(pd.DatetimeIndex(wide.index).as_unit("s"), axis=0).sort_index(kind="stable")
    table = table[(table.index >= days[0]) & (table.index.normalize() <= days[-1])]
    table = table.set_axis(days[days.searchsorted(table.index, side="right") - 1], axis=0)
    table = table[~table.index.duplicated(keep="last")]
    if table.index.intersection(days).empty or table.columns.intersection(tickers).empty:
        raise DataError(
            f"expected rows of {name!r} for days and tickers of the data ({days[0]:%Y-%m-%d} to {days[-1]:%Y-%m-%d}, "
            f"{tickers[0]} to {tickers[-1]}), got none; use the names and dates of --data"
        )
    return np.asarray(table.reindex(index=days, columns=tickers), dtype=np.float64)
