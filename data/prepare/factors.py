"""Factors that adjust prices, told from other columns by what prices do on the days on which they change."""

import numpy as np
import pandas as pd

from data.prepare.adjustment import NEAR, SURE, scaled, seen
from data.prepare.layout import FACTORS, STANDARD, role_of
from utils.arrays import Float64Array
from utils.errors import DataError

_ROUNDING = 1e-4
"""Logarithm up to which a factor has not changed."""
_OFTEN, _SEVERAL = 0.1, 8
"""Share of rows with changes from which on a column is no factor, and the number from which on their signs tell it."""


def with_factors(rows: pd.DataFrame, own: set[str], *, is_scaled: bool) -> tuple[pd.DataFrame, list[str], set[str]]:
    """Return rows without adjustment factors, adjusted by those that prices follow, notes, and the adjusted tickers.

    A factor is positive, seldom changes, and multiplies or divides prices from a day on or before it. Where prices do
    not tell which, a title that is known does. Raises `DataError` where prices contradict both.

    Args:
        rows: sorted by `ticker` (a category) and `day`, once each.
        own: names of columns that are none.
        is_scaled: prices were scaled to an adjusted close.
    """
    notes, tickers = list[str](), set[str]()
    ranks = {name: role_of(name) or ("", 100) for name in {*rows} - {*STANDARD} - own}
    for name, (role, rank) in sorted(ranks.items(), key=lambda one: (one[1][1], one[0])):
        found = _told(rows, name, is_named=role in FACTORS)
        if found is None:
            notes += [f"{name!r} is no adjustment factor, by its values: a further column"] * (role in FACTORS)
            continue
        steps, sign, is_sure, has_one_form = found
        if not is_sure:
            is_known = rank < 99 and has_one_form and not is_scaled
            sign = (-1.0 if role == "divisor" else 1.0) * (is_known and steps.any())
        rows = rows.drop(columns=name)
        if sign:
            rows, tickers = scaled(rows, -sign * steps), tickers | {*rows["ticker"][steps != 0]}
            notes.append(f"prices adjusted by {name!r}, as {'they move' if is_sure else 'its title says'}")
        else:
            why = "no price moves with it" if is_sure else "prices do not tell; title it adj_factor to adjust by it"
            why = why if steps.any() else "it never changes"
            notes.append(
                f"{name!r} is left out: it seems to be an adjustment factor, and {why}; --keep {name} keeps it"
            )
    return rows, notes, tickers


def _told(rows: pd.DataFrame, name: str, *, is_named: bool) -> tuple[Float64Array, float, bool, bool] | None:
    """Return a factor's steps, 1 where prices fall by them, -1 where they rise, 0 for neither, whether that is sure,
    and whether the column has one form only; None for a column that is no factor.

    Raises `DataError` where prices move by a part of it.
    """
    last = rows.groupby("ticker", observed=True)[name].last()
    if not (is_named or np.isclose(last, 1).all()) or not (forms := _steps(rows, name)):
        return None
    measured = [_measured(rows, steps) for steps in forms]
    steps, slope, error = min(measured, key=lambda one: abs(abs(one[1]) - 1))
    changes, sign = np.sign(steps[steps != 0]), float(np.clip(np.rint(slope), -1, 1))
    is_sure = error < SURE and abs(slope - sign) < 2 * SURE
    is_mixed = sign == 0 and len(changes) >= _SEVERAL and abs(changes.mean()) < 0.5
    if (is_sure and is_mixed) or not (is_named or (is_sure and sign)):
        return None
    if error < SURE / 2 and not is_sure:
        raise DataError(
            f"expected prices that move as the adjustment factor {name!r} does or not at all, got {slope:.0%} of that; "
            f"leave it out: --columns ignore={name}, or say that it is no factor: --keep {name}"
        )
    return steps, sign, is_sure, len(forms) == 1


def _steps(rows: pd.DataFrame, name: str) -> list[Float64Array]:
    """Return (rows,) logarithms of a factor of single days, and their changes of a cumulative one; none for others."""
    known = rows[name].where(rows[name] > 0)
    groups, is_first = known.groupby(rows["ticker"], observed=True), ~rows["ticker"].duplicated().to_numpy()
    level, of_day = np.log(groups.ffill()).diff().fillna(0), np.log(known.fillna(1))
    level, of_day = (np.where(is_first | (np.abs(one) < _ROUNDING), 0.0, one) for one in (level, of_day))
    if (rows[name] < 0).any() or np.count_nonzero(level) > max(_OFTEN * len(rows), 2 * is_first.sum()):
        return []
    is_lasting = ((of_day[1:] != 0) & (of_day[:-1] != 0) & ~is_first[1:]).any()
    return [level] if is_lasting else [of_day, level]


def _measured(rows: pd.DataFrame, steps: Float64Array) -> tuple[Float64Array, float, float]:
    """Return steps on the days on which prices show them, by what share of them prices fall, and its standard error."""
    row, moved = np.flatnonzero(steps), np.zeros(len(rows))
    nights, noise, _, after, sign = seen(rows, row, -steps[row])
    noise = 0.0 if sign.all() else noise  # each is as sure as a move can be
    place, squares = row + np.where(np.abs(after) > NEAR, 0, after), float((steps**2).sum())
    np.add.at(moved, place, steps[row])
    if not squares:
        return moved, 0.0, np.inf
    return moved, -float(np.nansum(nights * moved)) / squares, noise / squares**0.5
