"""Rows of bars from the cells of files: their notation, settled by all that shows it, and their values."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
import pandas as pd

from data.raw.choices import Choices
from data.raw.files import NO_BAR, NO_PRICE, Table, texts_of
from data.raw.layout import BLANKS, PRICES, UnclearFileError, plain
from data.raw.text import (
    OTHER,
    Float64Array,
    Int32Array,
    bare_numbers,
    clocks,
    date_of,
    decimal_sign,
    numbers,
    possible_orders,
    resolve_days,
)

_FEW_ROWS = 5
"""Rows from which on columns are judged by their values."""
_RARE = 0.01
"""Share of rows that do not behave as the others."""
SAME = 1e-4
"""Relative difference of two downloads of one price."""
Evidence = defaultdict[tuple[str, ...], set[str]]
"""Orders of dates and decimal signs of prices and volume that the files of each vendor show, by what and family."""


def _values_of(table: Table) -> dict[int, str]:
    """Return the roles of columns of numbers by place."""
    groups = table.layout.panel.values() or [table.layout.fields]
    return {place: role for group in groups for role, place in group.items() if role not in ("date", "time", "ticker")}


def examine(table: Table, evidence: Evidence, known: Int32Array | None, *, is_daily: bool = True) -> None:
    """Find what a file shows of its own notation, which is added to the evidence; its numbers become bare ones."""
    table.orders = possible_orders(table.texts("date").unique().tolist(), known, is_daily=is_daily)
    for place, role in _values_of(table).items():
        if not pd.api.types.is_numeric_dtype(table.cells[place].dtype):
            table.cells[place] = bare_numbers(texts_of(table.cells[place]))
            table.signs[place] = decimal_sign(table.cells[place], role == "volume")
    for what in ("price", "volume"):
        evidence[what, *table.family] |= _signs(table, what)
    if len(table.orders) == 1:
        evidence["date", *table.family] |= {*table.orders}


def _signs(table: Table, what: str) -> set[str]:
    """Return the decimal signs that prices, or volume, show."""
    places = [place for place, role in _values_of(table).items() if (role == "volume") == (what == "volume")]
    return {table.signs.get(place, "") for place in places} & OTHER.keys()


def _only(found: Iterable[str]) -> str:
    """Return the one thing that all evidence shows, nothing where there is none or another one too."""
    one, *others = [*found] or [""]
    return "" if others else one


def settle(table: Table, evidence: Evidence, choices: Choices, known: Int32Array | None) -> None:
    """Settle what a file leaves open by its other columns, by what a person says, and by other files of its vendor.

    Where dates stay open the days on which others traded settle them. Raises `UnclearFileError` where nothing does.
    """
    if len(table.orders) > 1:
        told = next((one for one in (choices.dates, *evidence["date", *table.family]) if one in table.orders), "")
        dates = table.texts("date").unique().tolist()
        is_told = told == choices.dates or len(evidence["date", *table.family]) == 1
        likely = [told] if is_told and told else table.orders if known is None else possible_orders(dates, known)
        table.orders = [order for order in likely if order in table.orders]
        if len(table.orders) != 1:
            words = " or ".join(f"--dates {one}" for one in table.orders)
            raise UnclearFileError(f"dates like {dates[0]!r} may be read in several ways; say which: {words}")
    volumes, told = _signs(table, "volume"), choices.decimal.replace("auto", "")
    price = _only(_signs(table, "price")) or _only(evidence["price", *table.family]) or told
    for place, role in _values_of(table).items():
        sign = table.signs.get(place, "")
        if not sign.startswith("?"):
            continue
        if role == "volume":  # whole numbers, unless it is written as no price of the file is
            found = price if sign[1:] not in ("", price) else _only(evidence["volume", *table.family]) or told
        else:
            found = price or _only(volumes & {sign[1:]})
        if not found:
            example = next(text for text in table.cells[place] if "." in text or "," in text)
            raise UnclearFileError(
                f"{role} {example} may be one with decimals or in thousands; say which: --decimal . or --decimal ,"
            )
        table.signs[place] = found


def rows_of(table: Table, choices: Choices, dropped: Counter[str]) -> pd.DataFrame:
    """Return a file's unchecked rows, in a notation that is settled; lines that are no bars are counted in `dropped`.

    Columns are `day` since 1970-01-01, `clock` in seconds, `ticker` ("" where the file has none), prices (the close
    where there is no other), volume (NaN where unknown), and those of `adjusted`, `split` and `dividend` that the file
    has. In a panel, a ticker without a close has no row. Raises `UnclearFileError` where columns that were taken by
    their places, or as closes of tickers, do not behave as such.
    """
    layout, parts = table.layout, []
    place, texts = pd.factorize(table.texts("date"))
    days = resolve_days(texts.tolist(), table.orders[0])[place]
    clock = clocks(pd.Series(texts, dtype="str"))[place]
    if "time" in layout.fields:
        clock = clocks(table.texts("time"))
    for ticker, group in (layout.panel or {"": layout.fields}).items():
        roles = {role: place for role, place in group.items() if role not in ("date", "time", "ticker")}
        values = {role: _values(table.cells[place], role, table.signs.get(place)) for role, place in roles.items()}
        columns = {"day": days, "clock": clock, "ticker": ticker, **dict.fromkeys(PRICES, values["close"])}
        rows = pd.DataFrame(columns | {"volume": np.nan} | values, index=table.cells.index)
        texts = pd.DataFrame({role: texts_of(table.cells[group[role]]) for role in PRICES if role in group})
        is_empty = texts.apply(lambda own: own.str.casefold().isin(BLANKS)).all(axis=1)
        if plain(layout.titles[group["close"]]) == "prc":  # of CRSP, negative: mean of bid and ask, nothing was traded
            is_empty |= rows["close"] < 0
        if "ticker" in group:
            rows["ticker"] = table.texts("ticker").astype(object)
        if "divisor" in rows:
            rows["adjusted"] = rows["close"] / rows.pop("divisor")
        is_text = ~table.texts("date").str.contains("[0-9]") & rows[PRICES].isna().all(axis=1)
        if not layout.panel:
            dropped.update({NO_BAR: int(is_text.sum()), NO_PRICE: int((is_empty & ~is_text).sum())})
        parts.append(rows[~is_empty & ~is_text])
    rows = pd.concat(parts)
    if layout.is_guess:
        _require_bars(rows)
    if layout.panel and layout.has_closes_only and not choices.are_tickers:
        _require_closes(rows)
    return rows


def _values(column: pd.Series, role: str, sign: str | None) -> Float64Array:
    if sign is None:
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    if role == "split" and column.str.contains("[:/]").any():  # 3:2 is three shares for two
        parts = column.str.extract("^([0-9.]+) ?[:/] ?([0-9.]+)$").astype(np.float64)
        return np.asarray((parts[0] / parts[1]).fillna(pd.to_numeric(column, errors="coerce")), dtype=np.float64)
    values = numbers(column, sign or ".", role == "volume")
    is_lost = np.isnan(values) & column.str.contains("[0-9]").to_numpy(dtype=bool)
    if role == "volume" and is_lost.mean() > _RARE:
        raise UnclearFileError(
            f"volume {column[is_lost].iloc[0]!r}; write numbers, or leave it out: --columns ignore=TITLE"
        )
    return values


def _require_bars(rows: pd.DataFrame) -> None:
    """Raise `UnclearFileError` where high and low do not enclose open and close, as they do but for some errors."""
    inner = rows[["open", "close"]]
    is_bar = (rows["high"] >= 0.999 * inner.max(axis=1)) & (rows["low"] <= 1.001 * inner.min(axis=1))
    if (~is_bar & rows[PRICES].notna().all(axis=1)).mean() > _RARE:
        raise UnclearFileError(
            "columns by their places are not date, open, high, low, close; say which is which: "
            "--columns open=TITLE,high=TITLE,low=TITLE,close=TITLE (a place, such as 5, for a title)"
        )


def _require_closes(rows: pd.DataFrame) -> None:
    """Raise `UnclearFileError` where columns that would be closes of tickers are bars of one or no prices."""
    closes = rows.drop_duplicates(["day", "ticker"]).pivot(index="day", columns="ticker", values="close")
    closes = closes.where(closes > 0)
    is_whole = (closes.isna() | (closes == closes.round())).all()
    # A median day moves no price by as much, and none stays the same; of few days the size must tell.
    if len(closes) >= _FEW_ROWS:
        is_none = (closes.nunique() == 1) | (is_whole & (np.log(closes).diff().abs().median() > 0.1))
    else:
        is_none = is_whole & (closes.min() > 100 * closes.min(axis=None))
    several = [closes, *(closes.drop(columns=name) for name in closes.columns if closes.shape[1] < 8)]
    if is_none.any() or any(_is_one_bar(bars.dropna()) for bars in several):
        names = ", ".join(closes.columns[is_none] if is_none.any() else closes.columns)
        raise UnclearFileError(
            f"columns {names} behave as volume or one ticker's bars do; name them open, high, low, close and volume "
            "(--columns open=TITLE,...), or say that they are tickers: --columns close=*"
        )


def _is_one_bar(bars: pd.DataFrame) -> bool:
    """Return whether columns are near one another, and one is always the highest, another one the lowest."""
    top, bottom = bars.max(axis=1), bars.min(axis=1)
    highest, lowest = bars.eq(top, axis=0).all(), bars.eq(bottom, axis=0).all()
    is_ordered = len(bars) < _FEW_ROWS or (highest.any() and lowest.any() and not (highest & lowest).any())
    return bool(len(bars) and 4 <= bars.shape[1] <= 6 and is_ordered and (top < 1.5 * bottom).mean() > 0.9)


def one_bar_a_day(rows: pd.DataFrame, table: Table, choices: Choices) -> pd.DataFrame:
    """Return rows of days, made of those within days if a person says so.

    Raises `UnclearFileError` for bars within days otherwise, and where a ticker has different prices for one day,
    unless they are rare; the error names a column that tells such rows apart.
    """
    key = ["ticker", "day"]
    several = rows[rows.duplicated(key, keep=False)]
    if several.empty:
        return rows.drop(columns="clock")
    grouped = several.groupby(key)
    within = grouped["clock"].nunique() > 1
    if within.sum() > _RARE * len(rows[key].drop_duplicates()):
        if choices.resample == "day":
            first = {"open": "first", "high": "max", "low": "min", "close": "last"}
            days = rows.sort_values([*key, "clock"], kind="stable").groupby(key, sort=False)
            return days.agg(first).assign(volume=days["volume"].sum(min_count=1)).reset_index()
        raise UnclearFileError(
            f"bars within days, as on {date_of(within.idxmax()[1])}; `--resample day` makes days of them"
        )
    span = grouped[PRICES].transform("max") / grouped[PRICES].transform("min")
    other = several[(span > 1 + SAME).any(axis=1)]
    if len(other) - len(other[key].drop_duplicates()) <= choices.max_bad_row_share * len(rows):
        return rows.drop(columns="clock")
    ticker, day = other.iloc[0][key]
    pair = other[(other["ticker"] == ticker) & (other["day"] == day)][:2]
    cells, titles = table.cells.loc[pair.index].astype("str"), table.layout.titles
    free = [place for place in range(len(titles)) if place not in table.layout.fields.values()]
    title = next((titles[place] for place in free if cells[place].nunique() > 1 and not table.layout.panel), None)
    hint = (
        f"if {title!r} tells them apart: --columns ticker={title}, or --only {title}=VALUE"
        if title
        else ("give a column of tickers (--columns ticker=TITLE), or files of one series each")
    )
    closes = " and ".join(f"{close:g}" for close in pair["close"])
    raise UnclearFileError(f"closes {closes} of {ticker!r} on {date_of(day)}; {hint}")
