"""Lead-lag and crowd: columns that may not be bought lead groups of stocks."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from data.synthetic.law import PlantedKind, register, sum_ahead
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

LEAD_NOISE_RATIO = 4.0
"""A leader's noise, in daily noises of a stock: it can be told from the other columns by this."""
LEAD_FACTOR_SHARE = 0.8
"""Share of a leader's variance that its followers answer to; the rest is its own."""


def leaders(
    lags: tuple[int, ...],
    loading: float,
    leader: Callable[[int], npt.NDArray[np.int64]],
    bystanders: Callable[[SyntheticConfig], int] = lambda config: 0,
) -> PlantedKind:
    """Return the law of context columns of which the first ones lead a group of stocks each.

    Args:
        lags: the followers of each leader answer its moves this many sessions later.
        loading: their answer, as a share of that part of its return.
        leader: from the number of stocks, each stock's leader; -1: none.
        bystanders: context columns, as noisy as stocks, that lead nothing.
    """

    def groups(stocks: int) -> list[tuple[int, npt.NDArray[np.int64]]]:
        return [(lag, np.flatnonzero(leader(stocks) == place)) for place, lag in enumerate(lags)]

    def noise_ratios(config: SyntheticConfig) -> tuple[float, ...]:
        return (LEAD_NOISE_RATIO,) * len(lags) + (1.0,) * bystanders(config)

    def drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
        variance, longest = (LEAD_NOISE_RATIO * config.daily_noise) ** 2, max(lags)
        spread = math.sqrt(LEAD_FACTOR_SHARE * (1.0 - LEAD_FACTOR_SHARE) * variance)
        # Drawn also for the days before the first, which their followers still answer to.
        normal = generator.standard_normal((longest - 1 + len(specific), len(lags)))
        before = math.sqrt(LEAD_FACTOR_SHARE * variance) * normal[: longest - 1]
        moves = specific[:, config.stocks : config.stocks + len(lags)]
        factor = np.concatenate((before, LEAD_FACTOR_SHARE * moves + spread * normal[longest - 1 :]))
        answers = np.zeros(specific.shape)
        for place, (lag, followers) in enumerate(groups(config.stocks)):
            answers[:, followers] = (loading * factor[longest - lag :, place][: len(specific)])[:, None]
        return answers

    def variance(config: SyntheticConfig, sessions: int) -> Float64Array:
        ratios = np.array([*[1.0] * config.stocks, *noise_ratios(config)])
        answers = np.zeros(len(ratios))
        answers[: config.stocks][leader(config.stocks) >= 0] = loading**2 * LEAD_FACTOR_SHARE
        return config.daily_noise**2 * (ratios**2 + answers * LEAD_NOISE_RATIO**2) * sessions

    def rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        scores = np.zeros(returns.shape)
        for place, (lag, followers) in enumerate(groups(config.stocks)):
            answer = loading * LEAD_FACTOR_SHARE * returns[:, config.stocks + place]
            due = np.concatenate((np.zeros(lag - 1), answer))  # row t: what is answered on day t + 1
            scores[:, followers] = sum_ahead(due, min(holding_days, lag))[: len(returns), None]
        return scores

    def oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
        # Those after the last day of the market are left out.
        scores = np.zeros(drift.shape)
        for lag, followers in groups(config.stocks):
            scores[:, followers] = sum_ahead(drift[:, followers], min(holding_days, lag))
        return scores

    return PlantedKind(drift, variance, rule, oracle, context_noise_ratios=noise_ratios)


register(
    "lead-lag",
    "a column that may not be bought leads half of the stocks",
    leaders((15,), loading=0.3, leader=lambda stocks: np.where(np.arange(stocks) < (stocks + 1) // 2, 0, -1)),
)
# Five leaders among six and a half context columns a stock, 300 columns in all with 40 stocks; all stocks follow.
register(
    "crowd",
    "five of 260 context columns lead a group of stocks each, at lags of their own",
    leaders(
        (8, 10, 12, 14, 16),
        loading=0.15,
        leader=lambda stocks: np.arange(stocks) % 5,
        bystanders=lambda config: max(0, 13 * config.stocks // 2 - 5),
    ),
)
