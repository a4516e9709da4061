"""Rows of bars from the cells of files: their notation, settled by all that shows it, and their values."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import pandas as pd

from data.prepare.files import Table
from data.prepare.join import further_columns
from data.prepare.layout import BLANKS, EVENTS, PRICES, UnclearFileError, plain
from data.prepare.text import (
    CURRENCY,
    NO_DAY,
    OTHER,
    bare_numbers,
    clocks,
    date_of,
    decimal_sign,
    late_stamps,
    numbers,
    possible_orders,
    resolve_days,
)
from utils.arrays import Float64Array, Int32Array
from utils.config.prepare import Choices

NO_PRICE = "no price"
SAME = 1e-4
"""Relative difference below which two rows of one day have the same price, as vendors round them."""
_FEW_ROWS, _MANY_ROWS = 5, 20
"""Rows from which on columns are judged by their values, and by their moves."""
_RARE, _OFTEN = 0.01, 0.1
"""Shares of rows that may break a rule: where columns were guessed, and where titles name them."""
_RATIO = re.compile(r"(?im)^(\d+(?:\.\d+)?)(?: ?[:/] ?|[ -](?:for|to)[ -])(0*[1-9]\d*(?:\.\d+)?)$")
Evidence = defaultdict[tuple[str, ...], set[str]]
"""Orders of dates, decimal signs of prices and those of volume that files show, by which of these and family."""


def examine(table: Table, evidence: Evidence, known: Int32Array | None, *, is_daily: bool = True) -> None:
    """Find what a file shows of its own notation, and add it to the evidence; its numbers become bare ones."""
    table.orders = possible_orders(table.text("date"), known, is_daily=is_daily, is_taiwan=table.layout.is_taiwan)
    if len(table.orders) == 1:
        evidence["date", *table.family].add(table.orders[0])
        days = resolve_days(table.text("date"), table.orders[0])
        is_late, table.shifts = late_stamps(table.text(table.clock), days)
        if len(table.shifts) == 1 and is_late.any():
            evidence["late", *table.family].add(str(table.shifts[0]))
    shown: dict[str, set[str]] = {"price": set(), "volume": set()}
    for group in table.layout.groups.values():
        for role, place in group.items():
            if isinstance(cell := table.cells[place], str):
                if len(signs := {*re.findall(CURRENCY, cell)}) > 1:
                    raise UnclearFileError(f"{' and '.join(sorted(signs))} in one column; give prices in one currency")
                table.cells[place] = cell = bare_numbers(cell)
                shown["volume" if role == "volume" else "price"].add(decimal_sign(cell))
    for what, signs in shown.items():
        signs_here = signs & OTHER.keys() or signs - {""} or {""}
        table.signs[what] = signs_here.pop() if len(signs_here) == 1 else "?"
        evidence[what, *table.family] |= {table.signs[what]} & OTHER.keys()


def _only(values: Iterable[str]) -> str:
    """Return the one thing that all evidence shows, nothing where there is none or another one too."""
    one, *others = [*values] or [""]
    return "" if others else one


def settle(table: Table, evidence: Evidence, choices: Choices, known: Int32Array | None) -> None:
    """Settle what a file leaves open by other files of its vendor, and by what a person says.

    Where dates stay open the days on which others traded settle them. Raises `UnclearFileError` where nothing does.
    """
    if len(table.orders) > 1:
        dates, shown = table.text("date"), _only(evidence["date", *table.family])
        told = [order for order in (choices.dates, shown, "roc") if order in table.orders]
        table.orders = told[:1] or [order for order in possible_orders(dates, known) if order in table.orders]
        if len(table.orders) != 1:
            words = " or ".join(f"--dates {order}" for order in table.orders)
            raise UnclearFileError(
                f"dates like {dates.partition(chr(10))[0]!r} may be read in several ways; say which: {words}"
            )
        table.shifts = late_stamps(table.text(table.clock), resolve_days(dates, table.orders[0]))[1]
    if len(table.shifts) > 1:
        shown = _only(evidence["late", *table.family])
        if not shown and choices.dates == "auto" and choices.resample == "no":
            raise UnclearFileError(
                f"times like {table.text(table.clock).partition(chr(10))[0]!r}, which may be of that day's session or "
                "of the next one; write dates of sessions, or take days as they are: --dates ymd"
            )
        table.shifts = [int(shown or 0)]
    price = table.signs["price"]
    for what in [what for what, sign in table.signs.items() if sign.startswith("?")]:
        # Volume is in whole numbers, unless it is written as prices are.
        is_whole = what == "volume" and price in OTHER and table.signs[what] == f"?{OTHER[price]}"
        notation = price if is_whole else _only(evidence[what, *table.family]) or choices.decimal.replace("auto", "")
        if not notation:
            raise UnclearFileError(
                f"{what}s like 12.345 may have decimals or be in thousands; say which: --decimal . or --decimal ,"
            )
        table.signs[what] = notation


def flatten(rows: pd.DataFrame, where: pd.Series, volume: float) -> None:
    """Set all prices of some rows to their close, and their volume, in place."""
    for price in ("open", "high", "low"):
        rows.loc[where, price] = rows["close"]
    rows.loc[where, "volume"] = volume


def rows_of(table: Table, choices: Choices, dropped: Counter[str]) -> pd.DataFrame:
    """Return a file's unchecked rows, in a notation that is settled; rows without any price are counted in `dropped`.

    Columns are `day` since 1970-01-01, `ticker` ("" where the file has none), prices (the close where there is no
    other), volume (NaN where unknown), those of `adjusted`, `split`, `dividend` and `pay` (a day) that the file has,
    and further ones. In a panel, a ticker without a close has no row. Raises `UnclearFileError` where columns that were
    taken by their places, or as closes of tickers, do not behave as such.
    """
    layout, frames = table.layout, []
    further = further_columns(table, choices)
    days = resolve_days(table.text("date"), table.orders[0])
    if table.shifts[0]:
        days += late_stamps(table.text(table.clock), days)[0] & (days != NO_DAY)
    names = np.array(table.text("ticker").split("\n"), dtype=object) if "ticker" in layout.fields else None
    for ticker, group in layout.groups.items():
        values = {role: _values(table, role, place) for role, place in group.items()}
        columns = {"day": days, "ticker": ticker if names is None else names}
        rows = pd.DataFrame(columns | dict.fromkeys(PRICES, values["close"]) | {"volume": np.nan} | values | further)
        for role in ("volume", *EVENTS, "gain"):
            if role in group:
                _require_read(role, table.cells[group[role]], rows)
        if "volume" in group and (rows["volume"] > 0).any():  # days of a halt have the last close, or 0, in all places
            is_halt = (rows[PRICES].eq(rows["close"], axis=0) | rows[PRICES].eq(0)).all(axis=1) & ~(rows["volume"] > 0)
            if layout.has_closes_only:  # all prices are the close
                is_halt &= rows["volume"] == 0
            flatten(rows, is_halt, volume=0.0)
        if "gain" in rows:
            rows["dividend"] = rows.get("dividend", 0 * rows["gain"]).fillna(0) + rows.pop("gain").fillna(0)
        is_empty = rows[PRICES].isna().to_numpy().all(axis=1)
        for cell in (table.cells[place] for role, place in group.items() if role in PRICES and is_empty.any()):
            if isinstance(cell, str):
                is_empty &= np.array([line.casefold() in BLANKS for line in cell.split("\n")])
        if plain(layout.titles[group["close"]]) == "prc":  # of CRSP, negative: mean of bid and ask, nothing was traded
            is_empty |= (is_quote := (rows["close"] < 0).to_numpy())
            rows.loc[is_quote, PRICES] = np.nan
        for role in (role for role in EVENTS if role in rows):  # an ex-date may have no bar
            is_empty &= ~((rows[role] > 0) & ((role != "split") | (rows[role] != 1))).to_numpy()
        dropped[NO_PRICE] += 0 if layout.panel else int(is_empty.sum())
        frames.append(rows[~is_empty])
    rows = pd.concat(frames)
    if "pay" in layout.fields:
        rows["pay"] = resolve_days(table.text("pay"), table.orders[0])[rows.index]
    if layout.is_guess or (len(rows) >= _FEW_ROWS and not {*PRICES} & {*choices.roles.values()}):
        _require_bars(rows, _RARE if layout.is_guess else _OFTEN)
    if layout.panel and layout.has_closes_only and "*" not in choices.roles:
        _require_closes(rows)
    return rows


def _values(table: Table, role: str, place: int) -> Float64Array:
    if not isinstance(cell := table.cells[place], str):
        return cell
    sign = table.signs["volume" if role == "volume" else "price"] or "."
    if role == "split":  # 3:2 is three shares for two
        cell = _RATIO.sub(lambda match: f"{float(match[1]) / float(match[2]):.12f}".replace(".", sign), cell)
    return numbers(cell, sign)


def _require_read(role: str, cell: str | Float64Array, rows: pd.DataFrame) -> None:
    """Raise `UnclearFileError` where volume of many bars, or any split or dividend, is something else than a number."""
    is_lost = np.flatnonzero(rows[role].isna() & rows["close"].notna())
    if isinstance(cell, str) and len(is_lost):
        lines = cell.split("\n")
        lost = [lines[row] for row in is_lost.tolist() if lines[row].casefold() not in BLANKS]
        if len(lost) > (_RARE * len(rows) if role == "volume" else 0):
            raise UnclearFileError(f"{role} {lost[0]!r}; write numbers, or leave it out: --columns ignore=TITLE")


def _require_bars(rows: pd.DataFrame, most: float) -> None:
    """Raise `UnclearFileError` where high and low do not enclose open and close on more than this share of rows."""
    inner = rows[["open", "close"]]
    is_bar = (rows["high"] >= 0.999 * inner.max(axis=1)) & (rows["low"] <= 1.001 * inner.min(axis=1))
    is_other = ~is_bar & rows[PRICES].notna().all(axis=1) & (rows["close"] > 0)
    if is_other.mean() > most:
        got = ", ".join(f"{price:g}" for price in rows.loc[is_other, PRICES].iloc[0])
        raise UnclearFileError(
            f"columns are not date, open, high, low, close; a row has {got}; say which is which: "
            "--columns open=TITLE high=TITLE low=TITLE close=TITLE (a place, such as 5, for a title)"
        )


def _require_closes(rows: pd.DataFrame) -> None:
    """Raise `UnclearFileError` where columns that would be closes of tickers are the bars of one, or its volume."""
    closes = rows.drop_duplicates(["day", "ticker"]).pivot(index="day", columns="ticker", values="close")
    closes = closes.where(closes > 0)
    # A median day moves no price by as much.
    is_volume = (np.log(closes).diff().abs().median() > 0.1) & (len(closes) >= _FEW_ROWS)
    walk = (closes.diff().var() / closes.var()).median()  # near 2 of returns, near 0 of prices
    if len(closes) >= _MANY_ROWS and walk > 1.5:
        raise UnclearFileError(
            f"columns {', '.join(closes.columns[:5])} that move about one level as returns do, not as prices; give "
            "prices, or say that these are closes of tickers: --columns 'close=*'"
        )
    several = [closes, *(closes.drop(columns=name) for name in closes.columns if closes.shape[1] < 8)]
    if is_volume.any() or any(_is_one_bar(bars.dropna()) for bars in several):
        names = ", ".join(closes.columns[is_volume] if is_volume.any() else closes.columns)
        raise UnclearFileError(
            f"columns {names} behave as volume or one ticker's bars do; name them open, high, low, close and volume "
            "(--columns open=TITLE high=TITLE ...), or say that they are tickers: --columns 'close=*'"
        )


def _is_one_bar(bars: pd.DataFrame) -> bool:
    """Return whether columns are near one another, and one is always the highest, another one the lowest."""
    top, bottom = bars.max(axis=1), bars.min(axis=1)
    is_ordered = len(bars) < _FEW_ROWS or all(bars.eq(edge, axis=0).all().any() for edge in (top, bottom))
    return bool(len(bars) and 4 <= bars.shape[1] <= 6 and is_ordered and (top < 1.5 * bottom).mean() > 0.9)


def one_bar_a_day(rows: pd.DataFrame, table: Table, choices: Choices) -> pd.DataFrame:
    """Return rows of days, made of those within days if a person says so.

    Raises `UnclearFileError` for bars within days otherwise, and where a ticker has different prices for one day,
    unless they are rare.
    """
    key = ["ticker", "day"]
    is_several = rows.duplicated(key, keep=False)
    if not is_several.any():
        return rows
    clock = clocks(table.text(table.clock))
    rows = rows.assign(clock=clock[rows.index])
    several = rows[is_several]
    within = several.groupby(key)["clock"].nunique() > 1
    if within.sum() > _RARE * len(rows[key].drop_duplicates()):
        if choices.resample == "day":
            steps = dict.fromkeys(rows.columns.difference([*key, "clock", "volume"]), "last")
            steps |= {"open": "first", "high": "max", "low": "min"}
            days = rows.sort_values([*key, "clock"], kind="stable").groupby(key, sort=False)
            return days.agg(steps).assign(volume=days["volume"].sum(min_count=1)).reset_index()
        raise UnclearFileError(
            f"bars within days, as on {date_of(within.idxmax()[1])}; `--resample day` makes days of them"
        )
    span = several.groupby(key)[PRICES].transform(np.ptp) / several[PRICES]
    other = several[(span > SAME).any(axis=1)]
    if len(other) - len(other[key].drop_duplicates()) > choices.max_bad_row_share * len(rows):
        ticker, day = other.iloc[0][key]
        closes = other["close"][(other["ticker"] == ticker) & (other["day"] == day)]
        raise UnclearFileError(
            f"closes {closes.iloc[0]:g} and {closes.iloc[1]:g} of {ticker!r} on {date_of(day)}; give files of one "
            f"series each, or a column of tickers: --columns ticker=TITLE, one of {', '.join(table.layout.titles)[:80]}"
        )
    return rows.drop(columns="clock")
