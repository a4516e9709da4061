"""Columns beside the bars: further ones of their files, and those of other files, joined as of the day they are known.

A row of another file counts from the close of the day on which it is known, never from the period that it describes:
the last such row (an as-of join, `pandas.merge_asof`).
"""

import re
from collections import Counter
from collections.abc import Container
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from data.bars import SECTOR, sector_numbers
from data.prepare.files import Table, read_table
from data.prepare.layout import (
    BLANKS,
    STANDARD,
    WORDS,
    UnclearFileError,
    UnusableFileError,
    is_adjusted_bar,
    role_of,
)
from data.prepare.text import NO_DAY, bare_numbers, decimal_sign, late_stamps, numbers, possible_orders, resolve_days
from utils.arrays import Float64Array, Int32Array
from utils.config.prepare import Choices
from utils.config.settings import hint
from utils.errors import ConfigError, DataError

_DAILY, _SLOW = 0.5, 0.2
"""Shares of the sessions that have a row: from the first on a file is daily, below the second it is slow."""
_STALE_DAYS = 10
"""Days for which a row counts where later ones are missing, in a file that does not tell when its rows are known."""
_TAKEN = {*STANDARD, "date", "since", "adjusted", "split", "dividend", "gain", "pay", "clock", "is_new", "scale"}
_FEW = 0.01
"""Share of a column's cells that may be text in a column of numbers."""


def settle_days(table: Table, choices: Choices, known: Int32Array | None = None, *, is_daily: bool = True) -> None:
    """Settle the order of a file's dates, and its days; among `known` sessions, in doubt a row is of the later one.

    Raises `UnclearFileError` where neither it nor `choices` does.
    """
    text = table.text("date")
    example = text.partition("\n")[0]
    orders = possible_orders(text, known, is_daily=is_daily, is_taiwan=table.layout.is_taiwan)
    told = [order for order in (choices.dates, "roc") if order in orders] or orders
    if len(told) > 1 and told is orders:
        words = " or ".join(f"--dates {order}" for order in orders)
        raise UnclearFileError(f"dates like {example!r} may be read in several ways; say which: {words}")
    table.order, days = told[0], resolve_days(text, told[0])
    is_late, shifts = late_stamps(text, days)
    if len(shifts) > 1 and choices.dates == "auto" and known is None:
        raise UnclearFileError(
            f"times like {example!r}, which may be of that day's session or of the next one; write dates of sessions, "
            "or say --dates ymd if they are of that day's"
        )
    table.days = days + is_late * np.int32(shifts[0 if known is None else -1])


def further_columns(
    table: Table, choices: Choices, known: Container[str] = (), prefix: str = "other"
) -> dict[str, Float64Array]:
    """Return the columns of numbers by their names that a layout does not use, or uses in `known` roles.

    Names are titles in lower case, after the prefix where they are those of bars. Raises `UnclearFileError` where a
    column may be read in two ways.
    """
    from data.features.catalogue import CATALOGUE  # late: it imports TA-Lib, which no other file of bars needs

    layout, columns, taken = table.layout, dict[str, Float64Array](), {*_TAKEN, *CATALOGUE}
    used = {place for role, place in layout.fields.items() if role not in known}
    for place, title in enumerate(layout.titles):
        role = role_of(title)
        if place in used or layout.panel or not layout.headers or role == "date":
            continue
        if choices.keep == ("none",) and role != "factor":
            continue
        titles = (title, f"{prefix}_{title}", f"{prefix}_{title}_{place + 1}")
        names = [re.sub(r"\W+", "_", text.casefold()).strip("_") for text in titles]
        is_wanted = names[0] in choices.keep and names[0] not in _TAKEN
        if not names[0] or names[0].startswith("unnamed") or (is_adjusted_bar(title) and not is_wanted):
            continue  # the index of a table, or a level that knows later splits and dividends
        name = next(one for one in names if (is_wanted or one not in taken) and one not in columns)
        values = _numbers_in(cell := table.cells[place], title, table, choices)
        if values is None and name == SECTOR and isinstance(cell, str):
            sectors = (text.strip() for text in cell.split("\n"))
            values = sector_numbers(["" if text.casefold() in BLANKS else text for text in sectors])
        if values is not None:
            if not is_wanted and _names_the_future(title):
                raise UnclearFileError(
                    f"column {title!r} is named as values of the future are: leave it out, --columns "
                    f"'ignore={title}', or say that it is known at its day's close: --keep {names[0]}"
                )
            columns[name] = values
    return columns


def _names_the_future(title: str) -> bool:
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", title))
    is_word = any(word.casefold() in WORDS["future"] for word in words)
    return is_word or any(sign in title for sign in WORDS["future_signs"])


def _numbers_in(cell: str | Float64Array, title: str, table: Table, choices: Choices) -> Float64Array | None:
    """Return the numbers of a column, None for one of texts."""
    if not isinstance(cell, str):
        return cell
    cell = bare_numbers(re.sub(" ?%$", "", cell, flags=re.MULTILINE))
    sign = decimal_sign(cell)
    if sign.startswith("?"):
        sign = table.signs.get("price", "") or choices.decimal.replace("auto", "")
    values = numbers(cell, sign or ".")
    blank = sum(line.casefold() in BLANKS for line in cell.split("\n"))
    if np.isnan(values).sum() - blank > _FEW * len(values) or blank == len(values):
        return None
    if not sign and decimal_sign(cell):
        raise UnclearFileError(
            f"column {title!r} may have decimals or be in thousands; say which: --decimal . or --decimal ,; or leave "
            f"it out: --columns 'ignore={title}'"
        )
    return values


def with_joined(rows: pd.DataFrame, choices: Choices) -> pd.DataFrame:
    """Return rows, sorted by `ticker` (a category) and `day`, with the further columns that are kept, and those of all
    files of `choices.join`.

    Columns of slow files have another one, NAME_age, the sessions since their value is known. Raises `DataError` where
    a file cannot be read, has no row of these tickers, or would tell the future, and ConfigError for a column that is
    to be kept, and that no file has.
    """
    names, wanted = {*rows}.difference(STANDARD), {*choices.keep} - {"none"}
    rows = rows[[*STANDARD, *sorted(names & wanted if choices.keep else names)]]
    sessions, key = np.unique(rows["day"]), ["day", "ticker"]
    bars = rows[key].astype({"day": np.int64, "ticker": str}).sort_values("day", kind="stable").reset_index()
    for text in choices.join:
        name, _, lag = text.rpartition(":")
        path, days = (Path(name), int(lag)) if name and lag.isdecimal() else (Path(text), None)
        try:
            other, is_slow, longest = _read(path, days, choices, rows["ticker"].cat.categories, sessions)
        except (UnusableFileError, UnclearFileError) as reason:
            raise DataError(f"expected a file of dates and numbers to join, got {path}: {reason}") from None
        by, columns = "ticker" if "ticker" in other else None, sorted({*other} - {*key})
        other = other.assign(since=np.searchsorted(sessions, other["day"]))
        joined = pd.merge_asof(bars, other, on="day", by=by, tolerance=longest).set_index("index")
        if is_slow:
            age = np.searchsorted(sessions, joined["day"]) - joined["since"]
            joined = joined.assign(**{f"{name}_age": age.where(joined[name].notna()) for name in columns})
            columns = sorted({*joined} - {*key, "since"})
        if taken := {*columns} & {*rows}:
            raise DataError(f"expected new names of columns in {path}, got {min(taken)!r}, which there is; rename it")
        rows = rows.join(joined[columns])
    names |= {*rows}.difference(STANDARD)
    for name in sorted(wanted - names):
        has = ", ".join(sorted(names)) or "none"
        raise ConfigError(f"--keep: expected columns of the files, got {name!r}{hint(name, names)}; they have {has}")
    return rows


def _read(
    path: Path, lag: int | None, choices: Choices, tickers: pd.Index, sessions: Int32Array
) -> tuple[pd.DataFrame, bool, int | None]:
    """Return the rows of a file, whether they are on few of the sessions, and for how many days each counts at most.

    Rows are `day` on which each is known, `ticker` but for a market-wide series, and numbers, sorted by day. Raises
    `UnclearFileError` for a file that is not daily and does not tell when its rows are known.
    """
    table = read_table(path, replace(choices, columns=(*choices.columns, "date=known")), Counter(), ())
    fields = table.layout.fields
    settle_days(table, choices, sessions, is_daily=False)
    rows = pd.DataFrame({"day": table.days.astype(np.int64)})
    rows = rows.assign(**further_columns(table, choices, {*fields} - {"date", "time", "ticker"}, path.stem))
    is_read = rows["day"] != NO_DAY
    if rows.shape[1] == 1 or (~is_read).mean() > choices.max_bad_row_share:
        raise UnclearFileError(f"{rows.shape[1] - 1} columns of numbers, and {is_read.sum()} dates in {len(rows)} rows")
    if "ticker" in fields:
        spelled = {name.casefold(): name for name in tickers}
        rows["ticker"] = [spelled.get(name, "") for name in table.text("ticker").casefold().split("\n")]
        is_read &= rows["ticker"] != ""
    if not is_read.any():
        raise UnclearFileError("no row of a ticker that the bars have")
    rows = rows[is_read].sort_values("day", kind="stable")
    inside = rows[rows["day"].between(sessions[0], sessions[-1])]
    days = inside.groupby("ticker" if "ticker" in rows else lambda _: 0)["day"].agg(["min", "max", "nunique"])
    is_own = lag is None and table.layout.titles[fields["date"]].strip().casefold() != "known"
    spans = np.searchsorted(sessions, days["max"]) - np.searchsorted(sessions, days["min"])
    if is_own and (share := (days["nunique"] - 1).sum() / max(1, spans.sum())) < _DAILY:
        raise UnclearFileError(
            f"rows on {share:.0%} of the sessions, and no word of when they were known: bars would look ahead; give "
            f"them a column 'known' of dates, or a lag in days, as in --join {path}:45"
        )
    key = [name for name in ("day", "ticker") if name in rows]
    is_twice = rows.duplicated(key, keep=False) & ~rows.duplicated(keep=False)
    if (is_own or lag is not None) and is_twice.mean() > choices.max_bad_row_share:
        raise UnclearFileError("rows of one date with different numbers; give one row for each date and ticker")
    rows["day"] += lag or 0
    return rows, days["nunique"].mean() < _SLOW * len(sessions), _STALE_DAYS if is_own else None
