"""The command `features`: what each feature tells of future returns, on training days alone, as a factor sheet does."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data.features.catalogue import LIBRARY, Feature
from data.features.forms import values_of
from data.features.formulas import FORECASTS as FORMULAS
from data.features.inputs import INPUTS
from data.features.nine import OPEN
from data.market import Market
from environment.quotes import Quotes
from training.commands.table import FeaturesArguments
from training.evaluation.pages import document, write_document
from training.forecasts.samples import Moments
from training.forecasts.skill import (
    HORIZONS,
    correlation,
    overlapping_mean_test,
    rank_correlation,
    returns_ahead,
)
from training.forecasts.training_days import TrainingDays
from training.run.market import load_market
from utils.arrays import Float32Array, Float64Array
from utils.charts import Chart, number
from utils.errors import ConfigError, DataError
from utils.runs.devices import choose_threads
from utils.runs.run_log import write_json
from utils.statistics import MeanTest
from utils.tables import many, table

logger = logging.getLogger(__name__)

QUINTILE_SESSIONS = 5
_QUINTILES = 5
_DRAWN = 12
"""Features with charts on the page, those with the clearest rank correlation."""
_OMITTED = ("group", "nearest", "correlation", "fifth 1", "fifth 2", "fifth 3", "fifth 4", "fifth 5")
"""Columns that a terminal has no room for."""
_PENALTY, _LEFT_OUT = 0.01, 1e9
"""Of the ridge regression on all inputs but formulas, in multiples of its rows, and of inputs that are left out."""


@dataclass(frozen=True)
class FeatureRow:
    """One feature; numbers that only differences between stocks give are NaN where all stocks share its value."""

    feature: Feature
    cells: dict[str, Any]
    """By column title: `coverage %` of the bars that have a value; `IC h`, the mean rank correlation over stocks with
    the return of h sessions, and its `t h`, which allows for returns that overlap; `persistence`, that with the value
    of the day before; `turnover %` of the highest fifth in a day; `nearest`, the feature with the largest absolute rank
    correlation; `lost IC`, what a ridge regression on all inputs but formulas loses out of fold without
    it, 0 where formulas alone read it."""
    daily_ic: Float64Array
    """(days,) rank correlation with returns of five sessions."""
    quintiles: Float64Array
    """(5,) mean log return of five sessions by fifths of the stocks, less that of all, percent."""


@dataclass(frozen=True)
class FeatureSheet:
    """All features of a market, those with the clearest rank correlation, over whichever sessions, first."""

    rows: list[FeatureRow]
    dates: Any
    """(days,) training days."""
    ic: float
    """Out-of-fold rank correlation of that ridge regression with returns, and its t."""
    t: float
    sessions: int
    """Of these returns: those at which its t is largest."""
    formulas: list[str]
    """That tell of the next session, in words."""


def feature_sheet(market: Market, days: TrainingDays) -> FeatureSheet:
    """Look at all features of a market on its training days; nothing later is read."""
    train = market.splits.train
    span = slice(train.first, train.last + 1)
    open_ = market.data_array[: train.last + 1, market.investable_columns, OPEN].astype(np.float64)
    ahead = {h: returns_ahead(open_, span, h) for h in HORIZONS}
    bars = np.isfinite(market.close[span])
    values = {one.name: values_of(market, one.name, span) for one in market.features}
    ranks = {name: pd.DataFrame(column).rank(axis=1, pct=True).to_numpy() for name, column in values.items()}
    loss, whole = _losses(days, [one.name for one in market.features if one.group != LIBRARY], ahead)
    rows = [_row(one, values[one.name], bars, ahead, ranks, loss.get(one.name, 0.0)) for one in market.features]
    rows.sort(key=lambda row: -max(abs(np.nan_to_num(float(row.cells[f"t {h}"]))) for h in HORIZONS))
    return FeatureSheet(rows, market.dates[span], *whole, [*days.inputs.formulas])


def _row(
    feature: Feature,
    values: Float32Array,
    bars: Any,
    ahead: dict[int, Float64Array],
    ranks: dict[str, Float64Array],
    lost: float,
) -> FeatureRow:
    wide = values.astype(np.float64)
    daily = {h: rank_correlation(wide, returns) for h, returns in ahead.items()}
    tests = {h: _mean_and_t(overlapping_mean_test(values, h)) for h, values in daily.items()}
    series = ranks[feature.name]
    others = {name: _mean_correlation(series, other) for name, other in ranks.items() if name != feature.name}
    nearest = max(others, key=lambda name: abs(np.nan_to_num(others[name])), default="")
    top = series > 1 - 1 / _QUINTILES
    entered, count = (top[1:] & ~top[:-1]).sum(axis=1), top[1:].sum(axis=1)
    quintiles = _by_quintile(series, ahead[QUINTILE_SESSIONS])
    cells: dict[str, Any] = {
        "feature": feature.name,
        "group": feature.group,
        "coverage %": 100 * float(np.isfinite(values)[bars].mean()),
        **{f"IC {h}": mean for h, (mean, _) in tests.items()},
        **{f"t {h}": t for h, (_, t) in tests.items()},
        "persistence": _mean_correlation(series[1:], series[:-1]),
        "turnover %": 100 * (int(entered.sum()) / max(int(count.sum()), 1)),
        **{f"fifth {place}": float(value) for place, value in enumerate(quintiles, start=1)},
        "nearest": nearest,
        "correlation": others.get(nearest, np.nan),
        "lost IC": lost,
    }
    return FeatureRow(feature, cells, daily[QUINTILE_SESSIONS], quintiles)


def _mean_correlation(one: Float64Array, other: Float64Array) -> float:
    daily = correlation(one, other)
    known = daily[np.isfinite(daily)]
    return float(known.mean()) if known.size else np.nan


def _by_quintile(ranks: Float64Array, returns: Float64Array) -> Float64Array:
    """Return the (5,) mean returns by fifths of the day's stocks, less that of all of them, percent."""
    known = np.isfinite(ranks) & np.isfinite(returns)
    mean = np.where(known, returns, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    fifth = np.clip(np.ceil(ranks * _QUINTILES) - 1, 0, _QUINTILES - 1)
    chosen = [(returns - mean)[known & (fifth == place)] for place in range(_QUINTILES)]
    return np.array([100 * one.mean() if one.size else np.nan for one in chosen])


def _losses(
    days: TrainingDays, names: Sequence[str], ahead: Mapping[int, Float64Array]
) -> tuple[dict[str, float], tuple[float, float, int]]:
    """Return what a ridge regression on all inputs but formulas, which say them again, loses of its out-of-fold rank
    correlation without each feature; that correlation with its t; and the sessions of the returns, those at which this
    t is largest."""
    train, returns = days.samples.train, np.full((len(ahead), *days.samples.is_known.shape), np.nan, dtype=np.float32)
    returns[:, train.first : train.last + 1] = [*ahead.values()]
    returns[:, ~np.isfinite(returns).all(axis=0)] = np.nan
    samples = replace(days.samples, results=returns)
    moments = Moments.of(samples)
    left_out = [[], *(days.inputs.features.places(name, INPUTS) for name in names)]
    penalty = np.full((len(left_out), samples.x.inputs), _PENALTY)
    penalty[:, -FORMULAS:] = _LEFT_OUT
    for row, places in zip(penalty, left_out, strict=True):
        row[places] = _LEFT_OUT
    fits = [
        (test, samples.x.dense(test).astype(np.float64), moments.over(fitted).solve(penalty))
        for fitted, test in samples.folds
    ]

    def daily(place: int, horizon: int) -> Float64Array:
        """Return the daily correlations of a regression that leaves something out."""
        of_folds = [
            rank_correlation(x @ weights[place, :, horizon], returns[horizon, test]) for test, x, weights in fits
        ]
        return np.concatenate(of_folds)

    tests = [_mean_and_t(overlapping_mean_test(daily(0, place), h).cross_fitted) for place, h in enumerate(ahead)]
    best = max(range(len(tests)), key=lambda place: abs(np.nan_to_num(tests[place][1])))
    whole = np.nanmean(daily(0, best))
    lost = {name: float(whole - np.nanmean(daily(place, best))) for place, name in enumerate(names, start=1)}
    return lost, (*tests[best], [*ahead][best])


def _mean_and_t(test: MeanTest) -> tuple[float, float]:
    """Return the mean and its t, NaN where nothing varies; a mean that is the same on all days has no t."""
    return (test.mean, test.mean / test.standard_error) if test.standard_error > 0 else (test.mean or np.nan, np.nan)


def run_features(arguments: FeaturesArguments, _: frozenset[str]) -> FeatureSheet:
    """Show the sheet of features, and write page and JSON where asked.

    Raises:
        ConfigError, DataError: the data or own features cannot be used, or a feature looks ahead.
    """
    config = arguments.settings
    for name in ("run", "resume"):
        if getattr(config, name) is not None:
            raise ConfigError(
                f"expected settings of a market, got --{name}; for those of a run give --config runs/NAME/config.json"
            )
    choose_threads(config.threads)
    market = load_market(config, audits=True)
    if not market.features:
        raise DataError("expected features, got --inputs past; leave it out")
    if len(market.investable_columns) < 2:
        raise DataError("expected two investable stocks or more, whose returns features rank, got one; give more")
    sheet = feature_sheet(market, TrainingDays.of(market, Quotes.on(market), config.env))
    rows = _rows(sheet)
    logger.info("%s", table(rows, [name for name in rows[0] if name not in _OMITTED]))
    logger.info(
        "%s, training days %s to %s; IC h: mean rank correlation over stocks with the return of h sessions from the "
        "next open on; persistence and turnover: of ranks and of the highest fifth, a session later; lost IC: what a "
        "ridge regression on all inputs but formulas loses without it, out of fold %.3f (t %.1f) with returns of %s",
        *(config.data or "built-in market", sheet.dates[0], sheet.dates[-1], sheet.ic, sheet.t),
        many(sheet.sessions, "session"),
    )
    logger.info("formulas that tell of the next session: %s", "; ".join(sheet.formulas) or "none")
    if arguments.json is not None:
        features = [row.cells for row in sheet.rows]
        whole = {name: getattr(sheet, name) for name in ("ic", "t", "sessions", "formulas")}
        write_json(arguments.json, {**whole, "features": features})
    if arguments.page is not None:
        write_document(render(sheet, config.data), arguments.page)
        logger.info("Wrote %s", arguments.page)
    return sheet


def render(sheet: FeatureSheet, data: Path | None) -> str:
    """Return the sheet as a page: a table of all features, and charts of those that tell most."""
    facts = {
        "Data": "built-in market" if data is None else data.name,
        "Training days": f"{sheet.dates[0]} to {sheet.dates[-1]}",
        "All inputs but formulas, ridge": f"rank IC {number(sheet.ic, 3)}, t {number(sheet.t, 1)}, of returns of "
        f"{many(sheet.sessions, 'session')}",
        "Formulas": "; ".join(sheet.formulas) or "none",
    }
    drawn = {row.feature.name: _charts(sheet, row) for row in sheet.rows[:_DRAWN] if np.isfinite(row.daily_ic).any()}
    units = {row.feature.name: row.feature.unit for row in sheet.rows}
    shown = {"facts": facts, "rows": _rows(sheet), "drawn": drawn, "units": units, "sessions": QUINTILE_SESSIONS}
    return document("features.html", "Features", folder=Path(__file__).parent, **shown)


def _charts(sheet: FeatureSheet, row: FeatureRow) -> list[Chart]:
    name, total = row.feature.name, {"sum of daily rank IC": np.nancumsum(row.daily_ic)}
    fifths = {"lowest to highest fifth": row.quintiles}
    return [
        Chart(f"{name}: rank IC over {QUINTILE_SESSIONS} sessions, summed up", sheet.dates, total, "{:+,.1f}"),
        Chart(f"{name}: return by fifths, less that of all, %", np.arange(1, 6), fifths, "{:+,.2f} %"),
    ]


def _rows(sheet: FeatureSheet) -> list[dict[str, str]]:
    return [{name: _text(name, value) for name, value in row.cells.items()} for row in sheet.rows]


def _text(name: str, value: float | str) -> str:
    return value if isinstance(value, str) else number(value, 1 if name.endswith("%") or name.startswith("t ") else 3)
