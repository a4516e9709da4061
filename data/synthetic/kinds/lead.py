"""Lead-lag and crowd: columns that may not be bought lead groups of stocks."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from data.synthetic.law import Float64Array, PlantedKind, register, sum_ahead
from utils.config.trader import SyntheticConfig

LEAD_NOISE_RATIO = 4.0
"""A leader's noise, in daily noises of a stock: it can be told from the other columns by this."""
LEAD_FACTOR_SHARE = 0.8
"""Share of a leader's variance that its followers answer to; the rest is its own."""


@dataclass(frozen=True)
class Lead:
    """Context columns of which the first ones lead a group of stocks each."""

    lags: tuple[int, ...]
    """The followers of each leader answer its moves this many sessions later."""
    loading: float
    """Their answer, as a share of that part of its return."""
    leader: Callable[[int], npt.NDArray[np.int64]]
    """(stocks,) leader of each stock, from their number; -1: none."""
    bystanders: Callable[[SyntheticConfig], int] = lambda config: 0
    """Context columns, as noisy as stocks, that lead nothing."""

    def kind(self) -> PlantedKind:
        """Return the kind of market that consists of these leaders and followers."""
        own = (self.drift, self.summed_variance, self.rule, self.oracle)
        return PlantedKind(*own, context_noise_ratios=self.context_noise_ratios)

    def followers(self, stocks: int, leader: int) -> npt.NDArray[np.int64]:
        """Return the columns of a leader's followers."""
        return np.flatnonzero(self.leader(stocks) == leader)

    def context_noise_ratios(self, config: SyntheticConfig) -> tuple[float, ...]:
        """Return the noise of the leaders, then of the others; see `PlantedKind`."""
        return (LEAD_NOISE_RATIO,) * len(self.lags) + (1.0,) * self.bystanders(config)

    def drift(self, config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
        """Return the followers' answers to the leaders' factors, each after its own lag in sessions."""
        variance = (LEAD_NOISE_RATIO * config.daily_noise) ** 2
        spread = math.sqrt(LEAD_FACTOR_SHARE * (1.0 - LEAD_FACTOR_SHARE) * variance)
        longest, leaders = max(self.lags), own[:, config.stocks : config.stocks + len(self.lags)]
        # Drawn also for the days before the first, which their followers still answer to.
        normal = generator.standard_normal((longest - 1 + len(own), len(self.lags)))
        before = math.sqrt(LEAD_FACTOR_SHARE * variance) * normal[: longest - 1]
        factor = np.concatenate((before, LEAD_FACTOR_SHARE * leaders + spread * normal[longest - 1 :]))
        drift = np.zeros(own.shape)
        for leader, lag in enumerate(self.lags):
            answer = self.loading * factor[longest - lag :, leader][: len(own)]
            drift[:, self.followers(config.stocks, leader)] = answer[:, None]
        return drift

    def summed_variance(self, config: SyntheticConfig, sessions: int) -> Float64Array:
        """Return the (columns,) variance of the sum of consecutive log returns."""
        answers = np.zeros(config.stocks + len(self.context_noise_ratios(config)))
        answers[: config.stocks][self.leader(config.stocks) >= 0] = self.loading**2 * LEAD_FACTOR_SHARE
        ratios = np.array([*[1.0] * config.stocks, *self.context_noise_ratios(config)])
        return config.daily_noise**2 * (ratios**2 + answers * LEAD_NOISE_RATIO**2) * sessions

    def rule(self, config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        """Sum the followers' answers to their leader's returns that fall into the next `holding_days`."""
        scores = np.zeros(returns.shape)
        for leader, lag in enumerate(self.lags):
            answer = self.loading * LEAD_FACTOR_SHARE * np.nan_to_num(returns[:, config.stocks + leader])
            pending = np.zeros(len(answer))
            for sessions in range(1, min(holding_days, lag) + 1):
                age = lag - sessions  # of the return that is answered `sessions` from now
                pending[age:] += answer[: len(answer) - age]
            scores[:, self.followers(config.stocks, leader)] = pending[:, None]
        return scores

    def oracle(self, config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
        """Sum the drifts that the leaders already tell; those after the last day of the market are left out."""
        scores = np.zeros(drift.shape)
        for leader, lag in enumerate(self.lags):
            columns = self.followers(config.stocks, leader)
            scores[:, columns] = sum_ahead(drift[:, columns], min(holding_days, lag))
        return scores


LEAD_LAG = Lead(lags=(15,), loading=0.3, leader=lambda stocks: np.where(np.arange(stocks) < (stocks + 1) // 2, 0, -1))
"""The first half of the stocks follows the only context column."""
register("lead-lag", "a column that may not be bought leads half of the stocks", LEAD_LAG.kind())
CROWD = Lead(
    lags=(8, 10, 12, 14, 16),
    loading=0.15,
    leader=lambda stocks: np.arange(stocks) % 5,
    bystanders=lambda config: max(0, 13 * config.stocks // 2 - 5),
)
"""Five leaders among six and a half context columns a stock, 300 columns in all with 40 stocks; all stocks follow."""
register("crowd", "five of 260 context columns lead a group of stocks each, at lags of their own", CROWD.kind())
