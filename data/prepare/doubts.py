"""What contradicts the reading of a file: titles twice, other series under one ticker, and volume in other units."""

import re
from unicodedata import normalize

import numpy as np
import pandas as pd

from data.prepare.files import Table
from data.prepare.layout import BLANKS, NAMES, STANDARD, UNIT, WORDS, UnclearFileError, plain, role_of
from utils.config.prepare import Choices

_OFTEN, _NEAR, _FEW_ROWS = 0.1, 0.05, 5


def require_no_doubt(table: Table, rows: pd.DataFrame, choices: Choices) -> None:
    """Raise `UnclearFileError` where titles or columns of a file contradict how its `rows` are read."""
    titles, fields, panel = table.layout.titles, table.layout.fields, table.layout.panel
    said, volume, why = choices.places(titles).values(), fields.get("volume"), ""
    for place, title in enumerate(titles if table.layout.headers == 1 else ()):
        once, name, unit = re.sub(r"\.\d+$", "", title), plain(title), UNIT.search(normalize("NFKD", title))
        is_further = place not in fields.values() and not panel
        if place in said or not name:
            continue
        if once in titles[:place] and (panel or role_of(once)):
            why = f"{once!r} twice in the header; give one table a file, or leave one out: --columns ignore={place + 1}"
        elif place == volume and unit and plain(unit[1]) not in map(plain, WORDS["shares"]):
            why = (
                f"volume under {title!r}; give numbers of shares, or say that it has these: --columns 'volume={title}'"
            )
        elif is_further and volume is None and any(len(one) > 3 and one in name for one in NAMES["volume"]):
            why = f"no column of volume, but {title!r}; say what it is: --columns 'volume={title}' or 'ignore={title}'"
        elif is_further and name in WORDS["series"] | WORDS["returning"]:
            why = _other_series(table, rows, place, is_fixed=name in WORDS["series"])
        if why:
            raise UnclearFileError(why)
    _require_money(rows[(rows["volume"] > 0) & (rows["close"] > 0)])


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
            power, tracks_price = ratio.median().round(), ratio.std() < (ratio + logs["close"]).std()
            if power in powers and tracks_price and ((ratio - power).abs() < _NEAR).mean() > 1 - _OFTEN:
                raise UnclearFileError(
                    f"price x volume that is not the money traded, as {name!r} shows (volume in lots, or in money, or "
                    "prices in pence?); give shares, or say that it does not count: --columns ignore=TITLE"
                )
