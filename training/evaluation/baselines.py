"""Baselines that a champion must beat: rules that hold by scores, rules that know what is planted, and held stocks; and
the known biases of the data, which flatter all of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from data.features.bank import relative_risk
from data.features.nine import CLOSE
from data.market import Market
from data.prepare.survey import MOST_SURVIVORS
from data.splits import spaced_windows
from data.synthetic.built_in import PlantedScores
from data.universe import LONGEST_GAP_DAYS, read_index
from environment.portfolio import Policy, Portfolio
from models.policy import Forecasts
from training.rollout import TABLE_BYTES, by_band, roll_out, windows_at_a_time
from utils.arrays import Float32Array, Float64Array
from utils.config.trader import Config
from utils.errors import DataError
from utils.tables import many

logger = logging.getLogger(__name__)
CHAMPION, RANDOM, EQUAL, HOLD = "champion", "random picker", "equal weight", "buy and hold"
IN_FULL = "agents, in full"
EQUAL_RISK, BENCHMARK, INDEX = "equal risk", "your benchmark", "index"
RULE, ORACLE = "planted rule", "oracle"
BEST_AGENT = "best agent"
MOMENTUM, REVERSAL = "60-day momentum", "5-day reversal"
PLAIN_MOMENTUM = "plain 60-day momentum"
"""Equal weights of its best fifth, anew each day, without the band, by which it may be the benchmark; weights are
compared with it, and it is no baseline."""
YEAR_MOMENTUM, LOW_VOLATILITY = "12-1 momentum", "low volatility"
RIDGE, LIGHTGBM = "ridge", "LightGBM"
CASH, SURVIVORS, NEXT_CLOSE = "cash", "survivors alone", "filled at the next close"
NEVER_BEST = (IN_FULL, BEST_AGENT, RANDOM, HOLD, RULE, ORACLE, SURVIVORS, NEXT_CLOSE)
"""They are never the best baseline, nor is the benchmark: they are compared apart, or know what is planted."""
RESERVED = {*NEVER_BEST, CHAMPION, EQUAL, EQUAL_RISK, BENCHMARK, INDEX, CASH, RIDGE, LIGHTGBM}
RESERVED |= {MOMENTUM, REVERSAL, YEAR_MOMENTUM, LOW_VOLATILITY}
"""Names that no policy of the user may have."""
_YEAR, _MONTH = 252, 21
_VOLATILITY_DAYS = 60
LAST_DAYS = 10
"""Days on one of which a survivor has a bar."""
Scores = Float32Array | Float64Array
_WINDOWS = 12
_RISKS, _WORTHS = (0.006, 0.024, 0.096), (0.1, 0.4, 1.6)
"""Prices of risk, and percent that a standard deviation of scores is worth: first coarsely, then by half and twice."""
_LARGEST = (0.05, 0.1, 0.2)
_EXPOSURES = (0.004, 0.016, 0.064)
_FINER, _UNTUNED_WORTH = (0.5, 1.0, 2.0), 0.4
NUMBERS = ("unit", "risk", "largest", "timing", "exposure", "usual")
"""Of a `BandRule`, what is tuned; the agents' own are bred."""


@dataclass(frozen=True)
class BandRule:
    """A policy that every day holds target weights by scores, see `models.policy`."""

    scores: Scores
    """(days, n), known at each day's close; NaN: none, which counts as the day's mean."""
    unit: float = 1.0
    """Percent that a unit of score is worth."""
    risk: float = 0.016
    """Price of risk."""
    largest: float = 0.2
    """Largest weight of a stock."""
    timing: float = 0.0
    """Percent that a unit of a day's mean score is worth; 0: all is invested."""
    exposure: float = 0.016
    """Price of the risk of cash."""
    usual: float = 0.0
    """Mean score of training days."""

    def forecasts(self, risk: Tensor) -> Forecasts:
        """Return its scores as forecasts, beside the (days, n) relative risk of stocks."""
        known = np.isfinite(self.scores)
        total = np.where(known, self.scores, 0.0).sum(axis=1, keepdims=True)
        score = np.where(known, self.scores, total / known.sum(axis=1, keepdims=True).clip(min=1))
        table = torch.from_numpy(score.astype(np.float32))[None].to(risk.device)
        return Forecasts.of(table, torch.full((1, 1), self.usual, device=risk.device), risk)

    def policy(self, risk: Tensor) -> Policy:
        """Return what it holds."""
        return by_band(self.forecasts(risk), numbers_of([self], risk.device)["genes"], self.unit, self.timing)


def numbers_of(rules: Sequence[BandRule], device: torch.device) -> dict[str, Any]:
    """Return genes, shrink and timing of rules, as `roll_out` takes them."""
    genes = [[rule.risk, rule.largest, rule.exposure, 1.0] for rule in rules]  # the unit tells the hurdle
    believed = [[rule.unit, rule.timing] for rule in rules]
    shrink, timing = torch.tensor(believed, dtype=torch.float64, device=device).unbind(1)
    return {"genes": torch.tensor(genes, dtype=torch.float64, device=device), "shrink": shrink, "timing": timing}


@dataclass(frozen=True)
class Tuning:
    """Training windows on which rules are tuned, all alike."""

    portfolio: Portfolio
    starts: Tensor
    """(W,) first days."""
    steps: int
    risk: Tensor
    """(days, n) relative risk of stocks, see `data.features.bank`."""

    @classmethod
    def of(cls, market: Market, portfolio: Portfolio) -> Tuning:
        """Space windows over a market's training days."""
        steps = portfolio.rules.episode_steps
        starts = spaced_windows(market.splits.train, steps, _WINDOWS).to(portfolio.device)
        return cls(portfolio, starts, steps, torch.from_numpy(relative_risk(market.close)).to(portfolio.device))

    @property
    def days(self) -> slice:
        """Return the days from the first to the last on which something is decided."""
        first, last = torch.stack(self.starts.aminmax()).tolist()
        return slice(first, last + self.steps)

    def tuned(self, *candidates: Scores) -> BandRule:
        """Tune one rule, see `tuned_together`."""
        return self.tuned_together(candidates)[0]

    def tuned_together(self, *sets: Sequence[Scores]) -> list[BandRule]:
        """Return a rule for each set of scores, with the numbers of the largest fitness, the agents' own: first scores
        (one of the set), worth of a unit of score, price of risk and largest weight, then worth and risk more finely,
        and beside these the worth of a unit of their level and the price of the risk of cash.

        Scores that are not known on training days are taken in deviations of their day, and nothing is tuned.
        """
        found = [_untuned(candidates[0]) for candidates in sets]
        drafts = [(place, rule) for place, candidates in enumerate(sets) for rule in self._drafts(candidates)]
        coarse = [
            [
                replace(rule, unit=w * rule.unit, risk=risk, largest=most)
                for w in _WORTHS
                for risk in _RISKS
                for most in _LARGEST
            ]
            for _, rule in drafts
        ]
        best = dict[int, tuple[float, BandRule, float]]()
        for (place, rule), (fitness, chosen) in zip(drafts, self._fittest(coarse), strict=True):
            if place not in best or fitness > best[place][0]:
                best[place] = fitness, chosen, rule.unit
        rules = [rule for _, rule, _ in best.values()]
        finer = [
            [replace(rule, unit=u * rule.unit, risk=r * rule.risk) for u in _FINER for r in _FINER] for rule in rules
        ]
        timed = [
            [replace(rule, timing=w * unit, exposure=risk) for w in _WORTHS for risk in _EXPOSURES]
            for _, rule, unit in best.values()
        ]
        better = self._fittest([*finer, *timed])
        pairs = zip(better[: len(rules)], better[len(rules) :], strict=True)
        last = [[one, replace(one, timing=by.timing, exposure=by.exposure)] for (_, one), (_, by) in pairs]
        for place, (_, rule) in zip(best, self._fittest(last), strict=True):
            found[place] = rule
        return found

    def _drafts(self, candidates: Sequence[Scores]) -> Iterator[BandRule]:
        """Yield rules in whose units a deviation of scores on training days is worth 1%, where they are known."""
        for scores in candidates:
            known = scores[self.days][np.isfinite(scores[self.days])]
            spread = float(known.std()) if known.size else 0.0
            if spread > 0:
                yield BandRule(scores, unit=1 / spread, usual=float(known.mean()))

    def _fittest(self, groups: Sequence[Sequence[BandRule]]) -> list[tuple[float, BandRule]]:
        """Return the largest fitness of each group and the first rule that has it."""
        if not groups:
            return []
        fitness = self.fitness([rule for group in groups for rule in group]).split([len(group) for group in groups])
        return [(float(of.max()), group[int(of.argmax())]) for of, group in zip(fitness, groups, strict=True)]

    def fitness(self, rules: Sequence[BandRule]) -> Tensor:
        """Return the fitness of rules, those of the same scores one after another, side by side where memory allows."""
        of_scores = [list(group) for _, group in groupby(rules, key=lambda rule: id(rule.scores))]
        size = max(1, TABLE_BYTES // (16 * self.risk.numel()))  # scores, forecasts of them, and both joined
        return torch.cat([self._fitness(of_scores[first : first + size]) for first in range(0, len(of_scores), size)])

    def _fitness(self, of_scores: Sequence[Sequence[BandRule]]) -> Tensor:
        rules, device = [rule for group in of_scores for rule in group], self.risk.device
        forecasts = Forecasts.joined([group[0].forecasts(self.risk) for group in of_scores])
        row = torch.arange(len(of_scores), device=device)
        row = row.repeat_interleave(torch.tensor([len(group) for group in of_scores], device=device))
        how = {"steps": self.steps, "row": row, **numbers_of(rules, device), "label": "Tuning rules"}
        size = windows_at_a_time(len(rules), len(self.starts), self.portfolio.quotes.stocks)
        played = (roll_out(self.portfolio, forecasts, starts=some, **how) for some in self.starts.split(size))
        return torch.cat([part.utility() for part in played], dim=1).mean(1)


def _untuned(scores: Scores) -> BandRule:
    """Hold by scores in deviations of their day, where two stocks have one."""
    known = np.where(np.isfinite(scores), scores, np.nan).astype(np.float64)
    known[np.isfinite(known).sum(axis=1) < 2] = 0.0
    of_day = np.nanstd(known, axis=1)[:, None]
    return BandRule(np.divide(scores, of_day, out=np.full_like(scores, np.nan), where=of_day > 0), unit=_UNTUNED_WORTH)


def simple_rules(market: Market, tuning: Tuning) -> dict[str, BandRule]:
    """Tune momentum over 60 days and over the year before the last month, 5-day reversal and low volatility.

    Sources: Jegadeesh & Titman (1993), "Returns to buying winners and selling losers"; Jegadeesh (1990), "Evidence of
    predictable behavior of security returns"; Ang et al. (2006), "The cross-section of volatility and expected
    returns".
    """
    bars = pd.DataFrame(np.log(market.close))
    close, has_bar = bars.ffill(), bars.notna()  # a day without a bar is none without a price
    scores = {
        MOMENTUM: close.diff(60).where(has_bar).to_numpy(),
        REVERSAL: -close.diff(5).where(has_bar).to_numpy(),
        YEAR_MOMENTUM: close.shift(_MONTH).diff(_YEAR - _MONTH).where(has_bar).to_numpy(),
        LOW_VOLATILITY: inverse_volatility(market.close).astype(np.float32),
    }
    return dict(zip(scores, tuning.tuned_together(*([one] for one in scores.values())), strict=True))


def planted_rules(scores: PlantedScores, tuning: Tuning) -> dict[str, BandRule]:
    """Tune the planted rule and the oracle, each with the best of its horizons."""
    rule, oracle = tuning.tuned_together([*scores.rule.values()], [*scores.oracle.values()])
    return {RULE: rule, ORACLE: oracle}


def inverse_volatility(close: Float32Array) -> Float64Array:
    """Return one over the deviation of the last 60 daily log returns of (days, n) closes; NaN where it is not known."""
    returns = pd.DataFrame(np.log(close.astype(np.float64))).diff()
    spread = returns.rolling(_VOLATILITY_DAYS, min_periods=_VOLATILITY_DAYS // 2).std().to_numpy()
    inverse: Float64Array = np.divide(1.0, spread, out=np.full(spread.shape, np.nan), where=spread > 0)
    return inverse


def index_close(path: Path | None, market: Market, days: slice) -> Float64Array | None:
    """Return the closes of the user's index on some days; None, with a warning, if it does not cover them all."""
    if path is None:
        return None
    try:
        close = read_index(path, market.dates)[days]
        if np.isnan(close).any():
            first, *_, last = market.dates[days]
            raise DataError(f"expected closes from {first} to {last} in {path}, at most {LONGEST_GAP_DAYS} days apart")
    except DataError as error:
        logger.warning("the index is left out: %s", error)
        return None
    return close


def known_biases(market: Market, config: Config) -> dict[str, str]:
    """Return the known biases of the data and of the days that were used, by name."""
    biases, env = dict[str, str](), config.env
    has_bar = np.isfinite(market.data_array[..., CLOSE])
    is_whole = np.asarray(has_bar.all(axis=0))
    if config.data is None:
        biases["Built-in market"] = "Its structure was planted: results say nothing about real markets."
    elif (lasting := np.asarray(has_bar[-LAST_DAYS:].any(axis=0))).mean() >= MOST_SURVIVORS:
        biases["Survivors only"] = (
            f"{lasting.sum():,} of {many(len(lasting), 'ticker')} trade to the last day. Stocks that failed seem to be "
            "missing, which flatters every policy that buys: champion, random pickers and benchmark alike."
        )
    elif env.delisting_loss == 0:
        biases["Delisting"] = (
            "A stock that stops trading is sold at its last price, which flatters policies that hold failing "
            "stocks. --env.delisting-loss takes a loss, 30% in Shumway 1997."
        )
    if market.repairs:
        biases["Repaired data"] = f"{market.repairs}."
    if is_whole[market.investable_columns].all() and not is_whole.all():
        biases["Chosen in hindsight"] = (
            "The stocks that may be bought have bars on all days, and others do not. A list made today of stocks "
            "that lasted flatters every policy that buys."
        )
    when = "the close" if env.fill == "same_close" else "the open"
    size = "whatever their size" if env.volume_cap == 0 else f"up to {env.volume_cap:g}% of the day's volume"
    remedy = " --env.volume-cap limits them where the data have volume." if env.volume_cap == 0 else ""
    biases["Fills"] = (
        f"Orders fill at {when}, {size}: daily bars do not show market impact, which flatters large accounts.{remedy}"
    )
    return biases
