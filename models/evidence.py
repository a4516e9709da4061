"""What an agent's orders are worth, by what they earned out of fold, and how far its forecasts are followed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from utils.arrays import Float64Array
from utils.metrics import TRADING_DAYS_PER_YEAR
from utils.statistics import cauchy_posterior, mean_test
from utils.tables import p_words

SIGNIFICANCE_LEVEL, WEAK_LEVEL = 0.001, 0.1
"""Orders with a p-value below the first are significant; up to the second they are weak evidence."""
_LITTLE = 0.5
"""Percent a year below which what cash is believed to earn is little."""
_ROUNDING = 1e-3
"""Standard error, percent a year, below which orders were the benchmark's but for rounding."""
_PRIOR_RATIO, _PRIOR_SKILL, _PRIOR_TIMING = 1.0, 0.8, 0.5
"""Of the prior of the information ratio a year: its scale where there is skill, and the chances that there is any in
differences and in levels. Where there are orders by differences there mostly is: networks heed inputs by what these
told out of fold, and on null markets order hardly anything.
"""


@dataclass(frozen=True)
class Evidence:
    """What training days tell, out of fold, of the orders of an agent, net of costs, beside the benchmark.

    Orders by differences between its scores and cash by their level are weighed apart, each played without the other.
    """

    excess: float = 0.0
    """Percent a year over the benchmark, of differences."""
    error: float = 0.0
    """Standard error of it; 0: nothing is known."""
    p_value: float = 1.0
    """That it is above zero, adjusted (Bonferroni) for all agents among which the agent was selected."""
    shrink: float = 0.0
    """Share of the differences that is believed: of what they earned before costs, posterior mean over estimate. For
    costs are no matter of belief: the band sets them against what is believed."""
    cash_excess: float = 0.0
    """The same of cash by the level."""
    cash_error: float = 0.0
    cash_p_value: float = 1.0
    timing: float = 0.0
    """Share of the level that is believed."""

    @classmethod
    def of(
        cls,
        daily: Float64Array,
        trials: int,
        lead: float,
        timed: Float64Array | None = None,
        costs: Sequence[float] | Float64Array = (0.0, 0.0),
    ) -> "Evidence":
        """Weigh (days,) daily returns over the benchmark's, percent, of orders by forecasts of these days' folds; see
        `MeanTest.cross_fitted`.

        Args:
            trials: agents among which it was selected so far.
            lead: standard errors by which the best of several leads by chance, which are taken off.
            timed: (days,) the same of cash.
            costs: of both, percent a day, beyond the benchmark's.
        """
        of_cash = () if timed is None else _weighed(timed, trials, lead, costs[1], _PRIOR_TIMING)
        return cls(*_weighed(daily, trials, lead, costs[0], _PRIOR_SKILL), *of_cash)

    @property
    def is_significant(self) -> bool:
        """Tell whether the differences are worth something."""
        return self.p_value < SIGNIFICANCE_LEVEL

    @property
    def is_timing_significant(self) -> bool:
        """Tell whether the level is."""
        return self.cash_p_value < SIGNIFICANCE_LEVEL

    @property
    def strength(self) -> str:
        """Return "significant", "weak" or "no significant", which goes before "evidence"."""
        is_strong = self.is_significant or self.is_timing_significant
        is_weak = min(self.p_value, self.cash_p_value) <= WEAK_LEVEL
        return "significant" if is_strong else "weak" if is_weak else "no significant"

    @property
    def _tells_cash(self) -> bool:
        """Whether cash is worth a word: it is clear, or not little, or all that is followed."""
        is_much = self.timing * self.cash_excess >= _LITTLE or self.shrink < 0.005 <= self.timing
        return self.cash_p_value <= WEAK_LEVEL or is_much

    @property
    def followed(self) -> str:
        """Return how far the scores are followed, in words."""
        percent, cash = round(100 * self.shrink), round(100 * self.timing) if self._tells_cash else 0
        if not percent and not cash:
            return "the benchmark is held"
        differences = f"{percent}% of the differences between scores are believed"
        said = ["scores are followed in full" if percent == 100 else differences] if percent else []
        said += [f"{cash}% of their level is believed, by which cash is held"] if cash else []
        return ", and ".join(said)

    @property
    def headline(self) -> str:
        """Return in a few words whether there is an edge, and what follows from it."""
        edges = {"significant": "EDGE", "weak": "WEAK EVIDENCE OF AN EDGE"}
        return f"{edges.get(self.strength, 'NO SIGNIFICANT EDGE')}: {self.followed}"

    @property
    def sentence(self) -> str:
        """Return what the orders are worth and what follows from it."""
        worth = f"{_rounded(self.excess)}% a year (+- {self.error:.1f})"
        cash = f"cash by the level of their scores {_rounded(self.cash_excess)}% (+- {self.cash_error:.1f}, "
        timed = f"; {cash}{p_words(self.cash_p_value)})" if self._tells_cash else ""
        chance = p_words(self.p_value) + " after correction for all agents tried" * (not self.is_significant)
        said = f"worth {worth} over the benchmark, out of fold and net of costs ({chance}){timed}"
        return f"The agents' orders are {said}: {self.followed}."


def _rounded(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}"  # not -0.0


def _weighed(
    daily: Float64Array, trials: int, lead: float, cost: float, chance: float
) -> tuple[float, float, float, float]:
    """Return estimate, standard error, p-value and the share that is believed, by the prior chance of any skill."""
    test, year = mean_test(daily, trials).cross_fitted, TRADING_DAYS_PER_YEAR
    error = year * test.standard_error
    if not error > _ROUNDING:
        return 0.0, 0.0, 1.0, 0.0
    estimate = year * test.mean - lead * error
    scale = _PRIOR_RATIO * float(np.std(daily)) * math.sqrt(year)
    gross = estimate + year * max(0.0, cost)
    believed = cauchy_posterior(gross, error, scale, chance) / gross if gross > 0 else 0.0
    return estimate, error, test.p_value, min(1.0, max(0.0, believed))
