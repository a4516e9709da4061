"""What a champion is worth on some days: a table of policies with intervals, a verdict, and how much may be luck."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.features import CLOSE
from data.market import Market
from training.evaluation.comparison import EQUAL, RANDOM
from training.evaluation.page.contents import Bias, CostSensitivity, Estimate, Overfitting
from training.evaluation.statistics import (
    LEVEL,
    bootstrap_intervals,
    deflated_sharpe,
    expected_best_sharpe,
    overfitting_probability,
)
from training.evaluation.tracks import Played, Track
from training.evaluation.verdict import Judgement, verdict
from training.trials import Trials
from utils import metrics

Array = npt.NDArray[np.float64]
CURVE_MEASURES = {
    "return": metrics.total_return_percent,
    "volatility": metrics.annualised_volatility_percent,
    "sharpe": metrics.sharpe,
    "sortino": metrics.sortino,
    "calmar": metrics.calmar,
    "max_drawdown": metrics.max_drawdown_percent,
}
_EDGES = (50 * (1 - LEVEL), 50 * (1 + LEVEL))
_BOOTSTRAP_SEED = 1994


@dataclass(frozen=True)
class Assessment:
    """Results of one evaluation, the champion first in every mapping."""

    policies: dict[str, dict[str, Estimate]]
    """By policy, then by the keys of `METRICS`. Intervals of one policy are bootstrapped; of random pickers, they hold
    the middle 95% of the pickers."""
    judgement: Judgement
    overfitting: Overfitting
    costs: CostSensitivity


def assess(played: Played, recorded: Trials | None, *, trials: int, seed: int, charged_bps: float) -> Assessment:
    """Judge what was played.

    Args:
        recorded: what every agent of every generation earned on the validation days, if that was written down.
        trials: policies looked at on these very days before the champion was chosen; 1 if these days chose nothing.
        seed: of the bootstrap.
        charged_bps: costs and slippage of a leg in `played`.
    """
    champion = next(iter(played.tracks))
    profit = {name: played.tracks[name].daily_profit for name in (champion, RANDOM, EQUAL)}
    return Assessment(
        {name: estimates(track, seed) for name, track in played.tracks.items()},
        verdict(profit[champion][0], profit[RANDOM], profit[EQUAL][0], trials=trials),
        _overfitting(played.tracks[champion], recorded, trials),
        _cost_sensitivity(played, charged_bps),
    )


def estimates(track: Track, seed: int) -> dict[str, Estimate]:
    """The measures of a track by the keys of `METRICS`; of many policies, their mean and range."""
    found = _measures(track)
    if len(track.equity) > 1:
        return {name: _range(values) for name, values in found.items()}
    generator = np.random.default_rng([seed, _BOOTSTRAP_SEED])
    intervals = bootstrap_intervals(metrics.daily_returns(track.stitched[0]), CURVE_MEASURES, generator)
    none = (None, None)
    return {name: Estimate(_known(values[0]), *intervals.get(name, none)) for name, values in found.items()}


def _measures(track: Track) -> dict[str, Array]:
    """(P,) of each measure, NaN where it is not defined."""
    curve = track.stitched
    years = (curve.shape[1] - 1) / metrics.TRADING_DAYS_PER_YEAR
    trades = track.trades.sum(axis=1)
    some = np.where(trades > 0, trades, np.nan)
    return {
        **{name: measure(curve) for name, measure in CURVE_MEASURES.items()},
        "turnover": track.traded.sum(axis=1) / (2 * track.equity.mean(axis=(1, 2)) * years),
        "exposure": 100 * track.exposure.mean(axis=1),
        "trades": trades,
        "win_rate": 100 * track.wins.sum(axis=1) / some,
        "holding": track.sessions.sum(axis=1) / some,
        "costs": 100 * track.costs.sum(axis=1) / track.capital,
    }


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _range(values: Array) -> Estimate:
    known = values[np.isfinite(values)]
    if not len(known):
        return Estimate(None)
    low, high = np.percentile(known, _EDGES)
    return Estimate(float(known.mean()), float(low), float(high))


def _overfitting(champion: Track, recorded: Trials | None, trials: int) -> Overfitting:
    if recorded is None:
        return Overfitting(trials=trials, note="The run did not record what its agents earned on validation.")
    spread = float(recorded.daily_sharpe.std(ddof=1)) if len(recorded.daily_sharpe) > 1 else 0.0
    best = expected_best_sharpe(spread, trials)
    overfitted = overfitting_probability(recorded.slice_profit)
    return Overfitting(
        deflated_sharpe=deflated_sharpe(metrics.daily_returns(champion.stitched[0]), best),
        trials=trials,
        expected_best_sharpe=metrics.YEAR_ROOT * best,
        backtest_overfitting=None if overfitted is None else overfitted[0],
        combinations=None if overfitted is None else overfitted[1],
        note="The probability of backtest overfitting is about the choice of the champion on the validation days."
        if overfitted
        else "All agents earned the same on validation: there was no choice to overfit.",
    )


def _cost_sensitivity(played: Played, charged_bps: float) -> CostSensitivity:
    names = next(iter(played.at_cost.values()))
    returns = {
        name: [Estimate(float(_measures(tracks[name])["return"].mean())) for tracks in played.at_cost.values()]
        for name in names
    }
    return CostSensitivity(list(played.at_cost), returns, charged_bps)


def known_biases(market: Market, *, is_synthetic: bool, is_validation: bool) -> list[Bias]:
    """What is known to be wrong with the data and the days that were used."""
    biases = []
    if is_synthetic:
        biases.append(Bias("Built-in market", "Its structure was planted: results say nothing about real markets."))
    elif _all_live_to_the_end(market):
        biases.append(
            Bias(
                "Survivors only",
                f"All {len(market.tickers)} tickers trade to the last day. Stocks that failed are not in the data, "
                "which flatters every policy that buys: the champion, random pickers and equal weight alike.",
            )
        )
    if is_validation:
        biases.append(
            Bias(
                "Chosen on these days",
                "The champion is the agent that earned most on these days: its result is flattered. The verdict allows "
                "for that; the table and the pictures do not.",
            )
        )
    biases.append(
        Bias(
            "Fills",
            "Orders fill in full at the open, and at the sale target if the day's high reaches it, whatever their "
            "size: market impact is not known to daily bars, which flatters large accounts.",
        )
    )
    return biases


def _all_live_to_the_end(market: Market, days: int = 10) -> bool:
    return bool(np.isfinite(market.data_array[-days:, :, CLOSE]).any(axis=0).all())
