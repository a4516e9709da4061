"""What the evidence for an agent's forecasts is worth: p-values, posteriors, and the share of the capital to bet."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from utils.statistics import Posterior, cauchy_posterior
from utils.tables import p_words

SIGNIFICANCE_LEVEL, WEAK_LEVEL = 0.001, 0.1
"""Forecasts with a p-value below the first are significant; up to the second they are weak evidence."""
_CLEAR_T = 4.0
"""Of a rank correlation, the largest of several, above which it is no accident."""
_PRIOR, _RISK_AVERSION, _MOST_NAMES = 0.02, 5.0, 10
"""Chosen, not tuned: scale of the prior of a correlation, relative risk aversion, stocks held at a time."""


@dataclass(frozen=True)
class Bet:
    """What is known of a correlation of forecasts with results, and what betting on it takes."""

    estimate: float
    """Of the correlation, out of fold."""
    error: float
    """Standard error; 0: nothing is known."""
    spread: float
    """Standard deviation of the results, share of a position's value."""
    score: float
    """Mean forecast of what is bet on, in standard deviations."""
    variance: float
    """Of the result in a holding period, less what the basket has of it, too: that of the stocks held apart from their
    level. Who is out of the market at times bears less of the level's variance than the basket, not more."""

    @classmethod
    def on_stocks(cls, estimate: float, error: float, spread: float, stocks: float) -> "Bet":
        """Bet on the ten best of a number of stocks, or on the better half of fewer than twenty."""
        names = max(1, min(_MOST_NAMES, round(stocks / 2)))
        # Blom's approximation of normal scores.
        score = float(ndtri(1 - (np.arange(1, names + 1) - 0.375) / (max(stocks, names) + 0.25)).mean())
        return cls(estimate, error, spread, score, spread**2 / names)

    @classmethod
    def on_days(cls, estimate: float, error: float, spread: float, variance: float) -> "Bet":
        """Bet on the better half of the days."""
        return cls(estimate, error, spread, math.sqrt(2 / math.pi), variance)

    @property
    def posterior(self) -> Posterior:
        """Return mean and deviation of the correlation; where nothing is known, a correlation's error is 1."""
        known = self.error > 0
        return cauchy_posterior(self.estimate if known else 0.0, self.error if known else 1.0, _PRIOR)

    def share(self, costs: float) -> float:
        """Return the share of the capital to bet, 0 to 1: expected excess over risk aversion times variance (Merton
        1969), `costs` being those of a round trip, as a share of the value."""
        excess, risk = self.posterior.mean * self.spread * self.score - costs, _RISK_AVERSION * self.variance
        return 0.0 if excess <= 0 else min(1.0, excess / risk) if risk > 0 else 1.0


@dataclass(frozen=True)
class Evidence:
    """What training days tell, out of fold, of an agent's forecasts.

    P-values are adjusted (Bonferroni) for both tests and for all agents among which elites were selected.
    """

    selection: float
    """P-value of ranking the stocks of a day."""
    timing: float
    """P-value of forecasting the days' means."""
    coefficient: float = 0.0
    """Posterior mean of the information coefficient, the correlation over the stocks of a day."""
    deviation: float = 0.0
    """Posterior standard deviation of it."""
    timing_coefficient: float = 0.0
    """Posterior mean of the correlation in time of the days' means."""
    timing_deviation: float = 0.0
    share: float = 0.0
    """Of the capital that these are worth, in whole percent: the larger of what selection and timing are."""
    sessions: float = 0.0
    """After which the returns are that scores foretell most clearly, out of fold; 0: not known."""
    rank_ic: float = 0.0
    """Mean rank correlation with these returns over the stocks of a day."""
    t: float = 0.0
    """Of it, by blocks of as many sessions."""

    @classmethod
    def of(cls, selection: float, timing: float, stocks: Bet, days: Bet, costs: float) -> "Evidence":
        """Weigh p-values of selection and timing, and the bets on them, at the costs of a round trip."""
        share = round(max(stocks.share(costs), days.share(costs)), 2)
        return cls(selection, timing, *stocks.posterior, *days.posterior, share)

    @property
    def is_significant(self) -> bool:
        """Tell whether either is significant."""
        return self.smallest < SIGNIFICANCE_LEVEL

    @property
    def smallest(self) -> float:
        """Return the smaller p-value."""
        return min(self.selection, self.timing)

    @property
    def strength(self) -> str:
        """Return "significant", "weak" or "no significant", which goes before "evidence"."""
        return "significant" if self.is_significant else "weak" if self.smallest <= WEAK_LEVEL else "no significant"

    def headline(self, share: float) -> str:
        """Return in a few words whether there is an edge, and the share of the capital that follows it."""
        if share == 0:
            edge = "NO EDGE AFTER COSTS" if self.is_significant else "NO EDGE FOUND"
            return f"{edge}: holds the basket{'; BUT ' if self.doubt else ''}{self.doubt}"
        edges = {"significant": "EDGE", "weak": "WEAK EVIDENCE OF AN EDGE"}
        edge, worth = edges.get(self.strength, "NO EDGE FOUND"), f"IC {self.coefficient:.2f}"
        if self.timing < self.selection:
            worth = f"correlation in time {self.timing_coefficient:.2f}"
        return f"{edge}, {worth}: {share:.0%} of the capital follows it"

    def bet(self, share: float) -> str:
        """Return what an agent's forecasts are worth that a share of the capital follows, without a full stop."""
        follows = f"{share:.0%} of the capital follows them, the rest holds the basket"
        whole = {0.0: "all of the capital holds the basket", 1.0: "all of the capital follows them"}
        return (
            f"the agents' forecasts are worth an IC of {self.coefficient:.3f} +- {self.deviation:.3f}, and in time "
            f"{self.timing_coefficient:.2f} +- {self.timing_deviation:.2f}: {whole.get(share, follows)}"
        )

    def sentence(self, share: float) -> str:
        """Return the p-values, and what the forecasts are worth that a share of the capital follows."""
        named = ("selection", self.selection), ("timing", self.timing)
        worth = ", ".join(f"{name} {p_words(p_value)}" for name, p_value in named)
        doubt = f" But {self.doubt}." if self.doubt and share == 0 else ""
        return f"Training days show {self.strength} evidence ({worth}). T{self.bet(share)[1:]}.{doubt}"

    @property
    def doubt(self) -> str:
        """Say what scores foretell clearly at some number of sessions, though trades of the rules' length do not show
        it; else nothing."""
        if self.is_significant or self.t < _CLEAR_T:
            return ""
        sessions = f"{self.sessions:.0f} session{'s' if self.sessions > 1 else ''}"
        return f"out of fold scores foretell returns of {sessions}: rank IC {self.rank_ic:.3f}, t {self.t:.1f}"
