"""The parts of a kind of built-in market: the law of its latent drift, its rule and its oracle.

The log return of day t + 1 is the drift at the close of day t, plus noise, less a constant that keeps prices fair. Rule
and oracle score a day's stocks by the log return expected of a trade that opens after its close and is held for a
number of sessions. They leave the constant out, so that a score is close to the trade's expected return.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy

from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

OVERNIGHT_SHARE = 0.1
"""Share of the noise variance that falls between close and open."""
FAIR_SESSIONS = 20
"""Holding a stock this long from a random day on earns nothing on average, before costs."""
Scores = Callable[[SyntheticConfig, Float64Array, int], Float64Array]
"""Scores (days, columns) from what is known of the market, and the sessions for which a trade is held."""
Bars = Mapping[str, Float64Array]
"""open, high, low, close and volume, (days, columns) each."""


@dataclass(frozen=True)
class PlantedKind:
    """A kind of market: its law, and the scores by what is known of it. Columns are stocks, then context columns.

    `latent_drift(config, specific_noise, generator)` returns (days, columns) from the (days, columns) noise that the
    columns do not share; row t may depend on rows 0..t of it only. `summed_variance(config, sessions)` is (columns,):
    the variance of the sum of consecutive log returns where that is normal; in general twice the logarithm of their
    mean growth before the constant is taken off.
    """

    latent_drift: Callable[[SyntheticConfig, Float64Array, np.random.Generator], Float64Array]
    summed_variance: Callable[[SyntheticConfig, int], Float64Array]
    rule: Scores
    """From log returns with the constant put back, 0 on the first day; row t from returns up to t only."""
    oracle: Scores
    """From the latent drift."""
    common_share: float = 0.0
    """Share of the noise variance that all columns have in common."""
    context_noise_ratios: tuple[float, ...] = ()
    """Noise of each column that may not be bought, in daily noises of a stock."""
    volatility: Callable[[SyntheticConfig, np.random.Generator], Float64Array] = lambda config, _: np.ones(
        config.days + 1
    )
    """Draws the (days + 1,) factor of each day's noise and drift, of mean square 1; `latent_drift` and
    `summed_variance` leave it out."""
    volume_drift: float = 0.0
    """Further drift of a stock whose volume is one deviation above its level; it fades with the volume."""
    structure: str = ""
    """What is planted, for the help."""

    def noise_std(self, config: SyntheticConfig) -> Float64Array:
        """Return the (columns,) standard deviation of the noise in a daily log return."""
        return config.daily_noise * np.array([*[1.0] * config.stocks, *self.context_noise_ratios])

    def log_growth(self, config: SyntheticConfig) -> Float64Array:
        """Return the (columns,) constant taken from each log return, such that prices do not grow on average.

        Where drifts last, the variance of a sum of returns does not grow as their number, and no constant is right for
        all horizons: this one is right over `FAIR_SESSIONS`.
        """
        return self.summed_variance(config, FAIR_SESSIONS) / (2.0 * FAIR_SESSIONS)


KINDS: dict[str, PlantedKind] = {}
"""The kinds of market by name; `data.synthetic.kinds` imports all files that register some."""


def register(name: str, structure: str, kind: PlantedKind) -> PlantedKind:
    """Add a kind of market, which --synthetic.kind then names and the help lists, and return it."""
    KINDS[name] = replace(kind, structure=structure)
    return KINDS[name]


def log_persistence(half_life_days: float) -> float:
    """Return the logarithm of the share that is left after a day of decay with this half-life."""
    return -math.log(2.0) / half_life_days


def fading_sum(log_phi: float, holding_days: int) -> float:
    """Return 1 + phi + phi^2 + ..., one term a session: the log return that each unit of a fading drift earns."""
    return float(np.sum(np.exp(log_phi * np.arange(holding_days))))


def fading_oracle(log_phi: float) -> Scores:
    """Return the oracle of a drift that fades by itself."""
    return lambda config, drift, holding_days: drift * fading_sum(log_phi, holding_days)


def autoregression(persistence: float, first: Float64Array, shocks: Float64Array) -> Float64Array:
    """Return (days, columns): row t is persistence times row t - 1 plus shocks[t]; row 0 is given."""
    inputs = np.concatenate((first[None], shocks[1:]))
    return np.asarray(scipy.signal.lfilter([1.0], [1.0, -persistence], inputs, axis=0))


def autoregressive_variance(log_phi: float, sessions: int) -> float:
    """Return the variance of the sum of consecutive values of an autoregressive process of order one and variance 1."""
    # The covariance of two days is phi^lag, and `sessions - lag` pairs lie a lag apart.
    lag = np.arange(1, sessions)
    return sessions + 2.0 * float(np.sum((sessions - lag) * np.exp(log_phi * lag)))


VOLUME_LOG_PHI, VOLUME_STD = log_persistence(2.0), 0.5
"""Of the logarithm of volume around its level."""


def volume_level(columns: int) -> Float64Array:
    """Return the (columns,) mean logarithm of the shares traded in each stock."""
    return np.linspace(13.0, 16.0, columns)


def busyness(shocks: Float64Array) -> Float64Array:
    """Return how busy the trade in each stock is, of variance 1 in the long run, by standard normal (days, columns)."""
    return math.sqrt(-math.expm1(2.0 * VOLUME_LOG_PHI)) * autoregression(math.exp(VOLUME_LOG_PHI), shocks[0], shocks)


def sum_ahead(values: Float64Array, sessions: int) -> Float64Array:
    """Return (days, ...): the sum of each day's value and those after it, of as many sessions as there still are."""
    total = np.zeros(values.shape)
    for ahead in range(min(sessions, len(values))):
        total[: len(values) - ahead] += values[ahead:]
    return total
