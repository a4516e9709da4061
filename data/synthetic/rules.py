"""The best simple rule for each kind of market, from prices only, and the oracle, from the latent drift.

Both score a day's stocks by the log return expected of a trade that opens after its close and is held for a number of
sessions. The constant that keeps prices fair is left out, so that a score is close to the trade's expected return.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from data.synthetic.kinds import (
    LEAD_FACTOR_SHARE,
    LEAD_LOADING,
    LEAD_SESSIONS,
    MARKET_LAWS,
    REGIME_COMMON_SHARE,
    REGIME_DRIFT,
    REGIME_SWITCH_CHANCE,
    REVERSAL,
    VALUE,
    Float64Array,
    Transient,
    followers,
    log_persistence,
)
from utils.config.trader import SyntheticConfig

_REGIME_LOG_PHI = math.log1p(-2.0 * REGIME_SWITCH_CHANCE)
"""Logarithm of the share of what is known of the regime that is left a day later."""
Scores = Callable[[SyntheticConfig, Float64Array, int], Float64Array]
"""Scores (days, columns) from what is known of the market, and the sessions for which a trade is held."""


@dataclass(frozen=True)
class StateSpace:
    """A latent state x and the returns z that it foretells, all of one stock.

    x[t] = phi x[t-1] + shock, z[t] = loading x[t-1] + noise; shock and noise of a day may be correlated.
    """

    log_persistence: float
    loading: float
    shock_variance: float
    noise_variance: float
    covariance: float = 0.0

    @property
    def persistence(self) -> float:
        """The share phi of the state that is left a day later."""
        return math.exp(self.log_persistence)

    @property
    def prediction_variance(self) -> float:
        """Steady-state variance P of the error in the state, given all returns so far.

        With h the loading, q, r and c the variances and covariance of shock and noise, it solves the Riccati equation
        P = phi^2 P + q - (phi h P + c)^2 / (h^2 P + r), which is
        h^2 P^2 + (r (1 - phi^2) - q h^2 + 2 phi h c) P - (q r - c^2) = 0.
        """
        forgotten = -math.expm1(2.0 * self.log_persistence)  # 1 - phi^2, exact where phi is nearly 1
        square = self.loading**2
        slope = self.noise_variance * forgotten - self.shock_variance * square
        slope += 2.0 * self.persistence * self.loading * self.covariance
        constant = max(0.0, self.shock_variance * self.noise_variance - self.covariance**2)
        root = math.hypot(slope, 2.0 * math.sqrt(square * constant))
        # Of the two forms of the positive root, the one that subtracts no near-equal numbers.
        if slope < 0:
            return (root - slope) / (2.0 * square)
        return 2.0 * constant / (root + slope) if constant else 0.0

    @property
    def gain(self) -> float:
        """Change of the estimate of a day's state by a surprise of 1 on that day."""
        variance = self.prediction_variance
        explained = self.persistence * self.loading * variance + self.covariance
        return explained / (self.loading**2 * variance + self.noise_variance)

    def filter(self, returns: Float64Array) -> Float64Array:
        """Estimate the state at each close from (days, stocks) returns up to it, by the steady-state Kalman filter.

        A day without a return (NaN) only predicts. Source: Kalman (1960), "A new approach to linear filtering and
        prediction problems".
        """
        phi, gain = self.persistence, self.gain
        state = np.zeros(returns.shape)
        for day in range(1, len(returns)):
            surprise = returns[day] - self.loading * state[day - 1]
            state[day] = phi * state[day - 1] + gain * np.where(np.isfinite(surprise), surprise, 0.0)
        return state


def momentum_space(config: SyntheticConfig) -> StateSpace:
    """Return the momentum market's state space: the state is the drift."""
    log_phi = log_persistence(config.drift_half_life_days)
    shock = -math.expm1(2.0 * log_phi) * config.drift_std**2
    return StateSpace(log_phi, 1.0, shock, config.daily_noise**2)


def transient_space(kind: Transient, config: SyntheticConfig) -> StateSpace:
    """Return the state space of a passing part: the state is the deviation, whose decay is the drift."""
    own = config.daily_noise**2 * (1.0 - kind.common_share)
    moved = kind.share * own
    return StateSpace(kind.log_persistence, math.expm1(kind.log_persistence), moved, own, moved)


def fading_sum(log_phi: float, holding_days: int) -> float:
    """Return 1 + phi + phi^2 + ..., one term a session: the log return that each unit of a fading drift earns."""
    return float(np.sum(np.exp(log_phi * np.arange(holding_days))))


def rule_scores(config: SyntheticConfig, close: Float64Array, holding_days: int) -> Float64Array:
    """Return the scores of the best simple rule, which knows the structure of the kind of market but only closes.

    Takes (days, columns) closes, NaN where there is no bar; returns (days, columns), row t from closes up to t only.
    """
    log_close = np.full(close.shape, np.nan)
    np.log(close, out=log_close, where=close > 0)
    returns = np.diff(log_close, axis=0, prepend=np.nan) + MARKET_LAWS[config.kind].log_growth(config)
    return RULES[config.kind][0](config, returns, holding_days)


def oracle_scores(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    """Return the scores of the oracle: (days, columns) from the (days, columns) latent drift."""
    return RULES[config.kind][1](config, drift, holding_days)


def _fading_oracle(log_phi: Callable[[SyntheticConfig], float]) -> Scores:
    return lambda config, drift, holding_days: drift * fading_sum(log_phi(config), holding_days)


def _momentum_rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    space = momentum_space(config)
    return space.filter(returns) * fading_sum(space.log_persistence, holding_days)


def _transient(kind: Transient) -> tuple[Scores, Scores]:
    def rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        # A move that all stocks share says nothing about a stock's own deviation.
        own = returns - _mean_return(returns)[:, None] if kind.common_share else returns
        return transient_space(kind, config).filter(own) * math.expm1(holding_days * kind.log_persistence)

    return rule, _fading_oracle(lambda config: kind.log_persistence)


def _mean_return(returns: Float64Array) -> Float64Array:
    """Return the (days,) mean over the columns that have a return; NaN where none has."""
    known = np.isfinite(returns)
    total = np.where(known, returns, 0.0).sum(axis=1)
    mean: Float64Array = np.divide(total, known.sum(axis=1), out=np.full(len(total), np.nan), where=known.any(axis=1))
    return mean


def _lead_rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Sum the followers' answers to the leading column's returns that fall into the next `holding_days`."""
    answer = LEAD_LOADING * LEAD_FACTOR_SHARE * np.nan_to_num(returns[:, -1])
    pending = np.zeros(len(answer))
    for sessions in range(1, min(holding_days, LEAD_SESSIONS) + 1):
        age = LEAD_SESSIONS - sessions  # of the return that is answered `sessions` from now
        pending[age:] += answer[: len(answer) - age]
    scores = np.zeros(returns.shape)
    scores[:, : followers(config)] = pending[:, None]
    return scores


def _lead_oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    """Sum the drifts that the lead already tells; those after the last day of the market are left out."""
    scores = np.zeros(drift.shape)
    for ahead in range(min(holding_days, LEAD_SESSIONS, len(drift))):
        scores[: len(drift) - ahead] += drift[ahead:]
    return scores


def _regime_rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Score by the chance of the rising regime, from the mean return of all stocks.

    Source: Hamilton (1989), "A new approach to the economic analysis of nonstationary time series and the business
    cycle". The mean is a sufficient statistic, since all stocks have the same drift and exchangeable noise.
    """
    kept, balance = 1.0 - 2.0 * REGIME_SWITCH_CHANCE, np.zeros(len(returns))
    stocks = np.isfinite(returns).sum(axis=1)
    mean = np.nan_to_num(_mean_return(returns))
    own_share = (1.0 - REGIME_COMMON_SHARE) / np.maximum(stocks, 1)
    variance = config.daily_noise**2 * (REGIME_COMMON_SHARE + own_share)
    evidence = np.tanh(np.where(stocks > 0, REGIME_DRIFT * mean / variance, 0.0))
    for day in range(1, len(returns)):
        # balance = chance of rising - chance of falling; by Bayes' rule evidence adds as velocities do.
        updated = (balance[day - 1] + evidence[day]) / (1.0 + balance[day - 1] * evidence[day])
        balance[day] = kept * updated
    score = REGIME_DRIFT * balance * fading_sum(_REGIME_LOG_PHI, holding_days)
    return np.repeat(score[:, None], returns.shape[1], axis=1)


def _nothing(config: SyntheticConfig, values: Float64Array, holding_days: int) -> Float64Array:
    return np.zeros(values.shape)


RULES: Mapping[str, tuple[Scores, Scores]] = {
    "momentum": (_momentum_rule, _fading_oracle(lambda config: log_persistence(config.drift_half_life_days))),
    "reversal": _transient(REVERSAL),
    "lead-lag": (_lead_rule, _lead_oracle),
    "regime": (_regime_rule, _fading_oracle(lambda config: _REGIME_LOG_PHI)),
    "value": _transient(VALUE),
    "martingale": (_nothing, _nothing),
}
"""Rule, from log returns with the constant put back, and oracle, from the latent drift, of each kind of market."""
