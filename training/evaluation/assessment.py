"""A judged result: measures of every policy with intervals, a verdict, and how much of it may be luck."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from data.features import CLOSE
from data.market import Market
from models.ddpg_agent import Evidence
from training.evaluation.folds import FoldResult
from training.evaluation.holdout import Look
from training.evaluation.tracks import CHAMPION, COSTS_BPS, EQUAL, HOLD, ORACLE, RANDOM, RULE, EquityCurves, Played
from training.evaluation.verdict import Judgement, Shifted, verdict
from training.forecasts.skill import Coefficient, beta, information_coefficients, summed_up
from utils import metrics
from utils.config.trader import Config
from utils.statistics import (
    EDGES,
    MeanTest,
    bootstrap_intervals,
    deflated_ratio,
    expected_best_sharpe,
    mean_test,
)

Array = npt.NDArray[np.float64]
Split = Literal["validation", "holdout", "walk-forward"]
NO_CHOICE = "Each champion was chosen on days before its test days, so the test days chose nothing."
NO_CHOICE_ON_VALIDATION = "Nothing was chosen on validation days: the champion was fixed on training days."
CHOSEN_IN_A_SWEEP = (
    "Settings are chosen on validation days by the sweep that this run belongs to: the verdict allows for all of its "
    "trials, {trials:,}."
)
LOOKS = (
    "Champions that were looked at on these days count as independent trials without skill, whose information ratios "
    "over T days deviate by 1 / sqrt(T - 1) a day; where they are alike this is too strict."
)
NOTES: dict[Split, str] = {"validation": NO_CHOICE_ON_VALIDATION, "holdout": LOOKS, "walk-forward": NO_CHOICE}
"""What is known of the choice of the champion, by the days that judge it."""
HOLDING_INSTEAD = (
    "With --evaluation.evidence require, a champion without significant evidence holds the market instead of trading "
    "its forecasts. In the study of real prices (docs/measured.md: 2,320 test days of US stocks that survived) no "
    "training showed significant evidence. Those that held the market there varied less: the 95% interval of what a "
    "year earns was 0.5 to 0.7 times as wide. Which earned more in the long run was not established, and it is one "
    "history."
)
"""What is known of the choice between trading without evidence and holding the market."""
CURVE_MEASURES = {
    "return": metrics.total_return_percent,
    "volatility": metrics.annualised_volatility_percent,
    "sharpe": metrics.sharpe,
    "sortino": metrics.sortino,
    "calmar": metrics.calmar,
    "max_drawdown": metrics.max_drawdown_percent,
}
_BAND = (5, 95)
_BOOTSTRAP_SEED = 1994
_LAST_DAYS = 10
_YEAR = 100 * metrics.TRADING_DAYS_PER_YEAR
"""From a daily share to percent a year."""


class Estimate(NamedTuple):
    """A number with its 95% interval; either may be unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Metric(NamedTuple):
    """The form in which a measure is shown."""

    label: str
    unit: str
    decimals: int
    meaning: str


METRICS: dict[str, Metric] = {
    "return": Metric("Return", "%", 1, "Change of equity over the period, after costs."),
    "volatility": Metric("Volatility", "% a year", 1, "Sample deviation of daily returns times the root of 252."),
    "sharpe": Metric(
        "Sharpe", "a year", 2, "Mean over deviation of daily returns, times the root of 252; no risk-free rate."
    ),
    "sortino": Metric("Sortino", "a year", 2, "As Sharpe, over the root mean square of the losing days."),
    "calmar": Metric("Calmar", "ratio", 2, "Compound yearly return over the maximum drawdown."),
    "max_drawdown": Metric("Max drawdown", "%", 1, "Deepest fall of equity below its earlier peak."),
    "turnover": Metric("Turnover", "times a year", 1, "Value bought and sold in a year, over twice the mean equity."),
    "exposure": Metric("Exposure", "%", 1, "Mean share of equity that is invested."),
    "beta": Metric("Beta", "ratio", 2, "Regression coefficient of daily returns on those of equal weight."),
    "alpha": Metric("Alpha", "% a year", 1, "Mean daily return less beta times equal weight's, times 252."),
    "trades": Metric("Trades", "count", 0, "Positions opened and closed; for random pickers the mean."),
    "win_rate": Metric("Win rate", "%", 1, "Share of trades with a profit after costs."),
    "holding": Metric("Holding", "sessions", 1, "Mean sessions from entry to exit, both counted."),
    "costs": Metric("Costs", "% of capital", 2, "Costs and slippage paid, in percent of the initial capital."),
}
"""The measures of a policy, in the order of the tables' columns."""


@dataclass(frozen=True)
class Overfitting:
    """The share of a result that may be the choice of the best among many."""

    deflated_information_ratio: float | None
    """Probability that the true information ratio over equal weight is above that of the best of `trials` without
    skill, from 0 to 1; None where the champion's profit is equal weight's."""
    trials: int
    """Champions looked at on the judged days: on the holdout those of the ledger, on validation days the trials of the
    sweep that the run belongs to, on days that chose nothing 1."""
    expected_best_ratio: float
    """Annualised information ratio that the best of `trials` without skill is expected to show."""
    note: str
    """What limits them."""


@dataclass(frozen=True)
class Evaluation:
    """One or more champions judged on days that follow one another: the source of tables, files and the page.

    The champion comes first in every mapping by policy.
    """

    name: str
    """Name of the run or of the walk-forward test."""
    split: Split
    config: Config
    market: Market
    played: Played
    trials: int
    """Champions, or settings of a sweep, compared on these very days; 1 if these days chose nothing."""
    device: str
    command: str
    """Command line that makes this evaluation again."""
    champion_generation: int | None = None
    """None where there is a champion for each fold."""
    records: Sequence[Mapping[str, Any]] = ()
    """The run's records of metrics.jsonl up to its last generation; empty for a walk-forward test."""
    looks: list[Look] | None = None
    """Looks at the run's holdout, the oldest first; None where no ledger is kept."""
    folds: Sequence[FoldResult] = ()
    extends: str = ""
    """Name of the run that this one began with, if any."""
    evidence: Sequence[Evidence] = ()
    """Of each champion, from its training days."""
    holders: int = 0
    """Champions that hold the market for lack of it."""
    rivals: Sequence[str] = ()
    """Policies among which the best rival is sought; default: all score rules that do not know what is planted."""

    @cached_property
    def policies(self) -> dict[str, dict[str, Estimate]]:
        """Return estimates by policy, then by the keys of `METRICS`.

        Intervals of one policy are bootstrapped; those of random pickers hold the middle 95% of the pickers.
        """
        tracks = self.played.tracks
        market = metrics.daily_returns(tracks[EQUAL].stitched[0])
        return {name: estimates(track, market, self.config.seed) for name, track in tracks.items()}

    @cached_property
    def judgement(self) -> Judgement:
        """Return the verdict on the champion."""
        played = self.played
        profit = {name: track.daily_profit for name, track in played.tracks.items()}
        known = {*played.trades, RANDOM, EQUAL, HOLD, RULE, ORACLE}
        return verdict(
            profit[CHAMPION][0],
            profit[RANDOM],
            profit[EQUAL][0],
            trials=self.trials,
            shifted=Shifted(played.shifted.daily_profit, played.known_share),
            rivals={name: profit[name][0] for name in self.rivals or [name for name in profit if name not in known]},
        )

    @property
    def sentence(self) -> str:
        """Return the verdict in words, and before it what training days show of the champions' forecasts."""
        parts = [self.evidence_sentence, self.judgement.sentence]
        return " ".join(part for part in parts if part)

    @property
    def lacks_evidence(self) -> bool:
        """Tell whether the forecasts of a champion are not significant on training days."""
        return not all(evidence.is_significant for evidence in self.evidence)

    @property
    def evidence_sentence(self) -> str:
        """Return the p-values of the champions' forecasts on training days, and what follows from them."""
        if not self.evidence:
            return ""
        if not self.folds:
            (evidence,) = self.evidence
            follows = ": the champion holds the market" if self.holders else ": the champion trades as trained"
            return f"{evidence.finding}{follows if self.lacks_evidence else ''}."
        count, found = len(self.evidence), sum(evidence.is_significant for evidence in self.evidence)
        low, high = (choose(self.evidence, key=lambda one: one.smallest).p_value for choose in (min, max))
        hold = "holds" if self.holders == 1 else "hold"
        trade = f"; {self.holders} of them {hold} the market" if self.holders else "; all trade as trained"
        spread = low if low == high else f"smallest {low}, largest {high}"
        return f"Training days show significant evidence for {found} of {count} champions ({spread}){trade}."

    @cached_property
    def coefficients(self) -> dict[str, tuple[Coefficient | None, Coefficient | None]]:
        """Return the information coefficient and the rank information coefficient of all scores, by policy."""
        holding = self.config.env.max_holding_days
        found = {}
        for name, scores in self.played.scores.items():
            plain, ranked = information_coefficients(scores, self.played.results)
            found[name] = (summed_up(plain, holding), summed_up(ranked, holding))
        return found

    @cached_property
    def overfitting(self) -> Overfitting:
        """Assess how much the choice of the champion may have added, by the champions looked at on these days.

        Without skill the ratio of T independent days has mean 0 and deviation 1 / sqrt(T - 1) (Bailey & Lopez de Prado
        2012, at a ratio of 0), which stands for the deviation over trials.
        """
        champion, equal = (metrics.daily_returns(self.played.tracks[name].stitched[0]) for name in (CHAMPION, EQUAL))
        best = expected_best_sharpe(1 / math.sqrt(max(1, len(champion) - 1)), self.trials)
        deflated = deflated_ratio(champion - equal, best)
        return Overfitting(deflated, self.trials, metrics.YEAR_ROOT * best, self._note)

    @property
    def _note(self) -> str:
        is_of_sweep = self.split == "validation" and self.trials > 1
        return CHOSEN_IN_A_SWEEP.format(trials=self.trials) if is_of_sweep else NOTES[self.split]

    @cached_property
    def cost_returns(self) -> dict[str, dict[float, float]]:
        """Return the mean return in percent by policy, then by basis points a leg."""
        levels = self.played.at_cost
        return {
            name: {bps: tracks[name].mean_return_percent for bps, tracks in levels.items()}
            for name in levels[COSTS_BPS[0]]
        }

    @cached_property
    def dates(self) -> npt.NDArray[np.datetime64]:
        """Return the (W * D + 1,) days of the stitched equity."""
        days = np.concatenate((self.played.days[:1, 0], self.played.days[:, 1:].ravel()))
        return self.market.dates[days].astype("datetime64[D]")

    @cached_property
    def curves(self) -> dict[str, Array]:
        """Return the (W * D + 1,) stitched equity by policy; the mean of the random pickers."""
        return {name: track.stitched.mean(axis=0) for name, track in self.played.tracks.items()}

    @cached_property
    def picker_band(self) -> tuple[Array, Array]:
        """Return percentiles 5 and 95 of the random pickers' stitched equity."""
        low, high = np.percentile(self.played.tracks[RANDOM].stitched, _BAND, axis=0)
        return low, high

    @property
    def title(self) -> str:
        """Return the heading of the page."""
        if self.folds:
            return f"{self.name}: walk-forward test of {len(self.folds)} champions"
        return f"{self.name}: champion on {self.split}"

    @property
    def caveats(self) -> list[str]:
        """Return what a reader must know before believing the verdict."""
        if self.split == "validation":
            return [f"{self._note} Whoever sets settings by their results chooses on them."]
        text = (
            f"Looks at these days by all runs in this folder, by the data's fingerprint: {len(self.looks or ())}, of "
            f"{self.trials:,} champions, which the verdict allows for. Looks in other folders are not counted."
        )
        return [NO_CHOICE, text] if self.split == "walk-forward" else [text]

    @property
    def biases(self) -> dict[str, str]:
        """Return the known biases of the data and of the days that were used, by name."""
        biases, env = {}, self.config.env
        has_bar = np.asarray(np.isfinite(self.market.data_array[..., CLOSE]))
        is_whole = np.asarray(has_bar.all(axis=0))
        if self.config.data is None:
            biases["Built-in market"] = "Its structure was planted: results say nothing about real markets."
        elif has_bar[-_LAST_DAYS:].any(axis=0).all():
            biases["Survivors only"] = (
                f"All {len(self.market.tickers)} tickers trade to the last day. Stocks that failed are not in the "
                "data, which flatters every policy that buys: the champion, random pickers and equal weight alike."
            )
        elif env.delisting_loss == 0:
            biases["Delisting"] = (
                "A stock that stops trading is sold at its last price, which flatters whoever holds failing stocks. "
                "--env.delisting-loss takes a loss, 30% in Shumway 1997."
            )
        if is_whole[self.market.investable_columns].all() and not is_whole.all():
            biases["Chosen in hindsight"] = (
                "The stocks that may be bought have bars on all days, and others do not. A list made today of stocks "
                "that lasted flatters every policy that buys."
            )
        size = "whatever their size" if env.volume_cap == 0 else f"up to {env.volume_cap:g}% of the day's volume"
        remedy = " --env.volume-cap limits them where the data have volume." if env.volume_cap == 0 else ""
        biases["Fills"] = (
            f"Orders fill at the open, and at the sale target if the day's high reaches it, {size}: market impact is "
            f"not known to daily bars, which flatters large accounts.{remedy}"
        )
        return biases


def estimates(track: EquityCurves, market: Array, seed: int) -> dict[str, Estimate]:
    """Estimate the measures of a track by the keys of `METRICS`; of many policies, their mean and range.

    `market` are the (W * D,) daily returns of equal weight.
    """
    returns = metrics.daily_returns(track.stitched)
    exposure = beta(returns, market)
    found = measures_of(track) | {
        "beta": exposure,
        "alpha": _YEAR * (returns - np.outer(exposure, market)).mean(axis=1),
    }
    if len(track.equity) > 1:
        return {name: _range(values) for name, values in found.items()}
    generator = np.random.default_rng([seed, _BOOTSTRAP_SEED])
    intervals = bootstrap_intervals(returns[0], CURVE_MEASURES, generator)
    intervals["alpha"] = _scaled(mean_test(returns[0] - exposure[0] * market))
    return {
        name: Estimate(float(value) if np.isfinite(value) else None, *intervals.get(name, ()))
        for name, (value,) in found.items()
    }


def _scaled(test: MeanTest) -> tuple[float, float]:
    low, high = test.interval
    return _YEAR * low, _YEAR * high


def measures_of(track: EquityCurves) -> dict[str, Array]:
    """Return the (P,) values of the measures that need no market, by the keys of `METRICS`; NaN: not defined."""
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


def _range(values: Array) -> Estimate:
    known = values[np.isfinite(values)]
    if not len(known):
        return Estimate(None)
    low, high = np.percentile(known, EDGES)
    return Estimate(float(known.mean()), float(low), float(high))
