"""Accounts of policies, and measures of them, with their intervals and the form in which they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from torch import Tensor

from environment.account import Account
from training.forecasts.skill import beta
from utils import metrics
from utils.arrays import Float64Array
from utils.statistics import EDGES, bootstrap_intervals, mean_test

_CURVE_MEASURES = {
    "return": metrics.total_return_percent,
    "annual_return": metrics.annual_return_percent,
    "volatility": metrics.annualised_volatility_percent,
    "sharpe": metrics.sharpe,
    "sortino": metrics.sortino,
    "calmar": metrics.calmar,
    "max_drawdown": metrics.max_drawdown_percent,
    "expected_shortfall": metrics.expected_shortfall_percent,
}
_BOOTSTRAP_SEED = 1994
_DUST = 1e-9
"""Weight below which a stock is not held."""
_YEAR = 100 * metrics.TRADING_DAYS_PER_YEAR
"""From a daily share to percent per year."""


class EquityCurves(NamedTuple):
    """P accounts over D days that begin with cash and go on; (P,) each but for the first two.

    Amounts are in currency units; NaN where an account holds no stocks of its own.
    """

    equity: Float64Array
    """(P, D + 1)"""
    exposure: Float64Array
    """(P, D) share of equity that is invested on a day, after its fills, at the prices of the close before."""
    positions: Float64Array
    """Opened; a position lasts from the first purchase of a stock to its last sale."""
    wins: Float64Array
    losses: Float64Array
    sessions: Float64Array
    """Sessions held, summed over positions."""
    largest: Float64Array
    """Mean of each day's largest weight."""
    traded: Float64Array
    """Value bought and sold, each day's as a share of the equity of the close before."""
    costs: Float64Array

    @classmethod
    def of(cls, account: Account, held: Float64Array, traded: Float64Array) -> Self:
        """Build from accounts at their last close, which held these (D, P, n) weights, and `traded` in the sum."""
        summary, is_held = account.summary(), np.abs(held) > _DUST

        def plain(values: Tensor) -> Float64Array:
            return values.double().cpu().numpy().copy()

        return cls(
            equity=plain(account.equity_curve.T).clip(min=0.0),  # what is owed beyond is lost by others
            exposure=held.sum(axis=2).T,
            positions=plain(summary.positions_opened),
            wins=plain(summary.wins),
            losses=plain(summary.losses),
            sessions=is_held.sum(axis=(0, 2)).astype(np.float64),
            largest=held.max(axis=2).mean(axis=0),
            traded=traded,
            costs=plain(summary.costs),
        )

    @classmethod
    def untraded(cls, equity: Float64Array, exposure: Float64Array, **known: Float64Array) -> Self:
        """Build from (P, D + 1) equity and (P, D) exposure, without what is not `known`."""
        nothing = {name: np.full(len(equity), np.nan) for name in cls._fields[2:]}
        return cls(equity, exposure, **{**nothing, **known})

    @classmethod
    def joined(cls, parts: Sequence[EquityCurves]) -> Self:
        """Join the daily returns of the same policies on days that follow one another."""
        growth = np.concatenate([part.equity[:, 1:] / part.equity[:, :-1] for part in parts], axis=1)
        equity = parts[0].equity[:, :1] * np.cumprod(
            np.concatenate((np.ones((len(growth), 1)), growth), axis=1), axis=1
        )
        summed = {name: sum(getattr(part, name) for part in parts) for name in cls._fields[2:]}
        summed["largest"] = np.mean([part.largest for part in parts], axis=0)
        return cls(equity, np.concatenate([part.exposure for part in parts], axis=1), **summed)

    def one(self, place: int) -> EquityCurves:
        """Return one of the accounts."""
        return EquityCurves(*(values[place : place + 1] for values in self))

    @property
    def capital(self) -> float:
        """Equity of the first close."""
        return float(self.equity[0, 0])

    @property
    def daily(self) -> Float64Array:
        """(P, D) daily returns, percent."""
        return 100 * metrics.daily_returns(self.equity)

    @property
    def mean_return_percent(self) -> float:
        """Return of an account, the mean over policies."""
        return float(metrics.total_return_percent(self.equity).mean())


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
    meaning: str = ""


METRICS: dict[str, Metric] = {
    "return": Metric("Return", "%", 1, "Change of equity over the period, after costs."),
    "annual_return": Metric("Return a year", "%", 1, "Compound return of 252 sessions."),
    "volatility": Metric("Volatility", "% a year", 1, "Standard deviation of daily returns times the root of 252."),
    "sharpe": Metric(
        "Sharpe", "a year", 2, "Mean over deviation of daily returns, times the root of 252; no risk-free rate."
    ),
    "sortino": Metric("Sortino", "a year", 2, "As Sharpe, over the root of the mean square of losses of all days."),
    "calmar": Metric("Calmar", "ratio", 2, "Compound yearly return over the maximum drawdown."),
    "max_drawdown": Metric("Max drawdown", "%", 1, "Deepest fall of equity below its earlier peak."),
    "expected_shortfall": Metric("Expected shortfall", "% a day", 2, "Mean loss of the worst 5% of days."),
    "turnover": Metric("Turnover", "times a year", 1, "Value bought and sold per year, over twice each day's equity."),
    "exposure": Metric("Exposure", "%", 1, "Mean share of equity that is invested."),
    "beta": Metric("Beta", "ratio", 2, "Slope of the regression of daily returns on those of the benchmark."),
    "alpha": Metric("Alpha", "% a year", 1, "Mean daily return less beta times the benchmark's, times 252."),
    "held": Metric("Held", "stocks", 1, "Mean number of stocks held."),
    "largest": Metric("Largest", "%", 1, "Mean of each day's largest weight."),
    "positions": Metric("Positions", "count", 0, "Opened, each from the first purchase of a stock to its last sale."),
    "win_rate": Metric("Win rate", "%", 1, "Share of the closed positions with a profit after costs."),
    "holding": Metric("Holding", "sessions", 1, "Mean sessions of a position."),
    "costs": Metric(
        "Costs", "% of capital", 2, "Costs, slippage and fees of borrowing paid, in percent of the initial capital."
    ),
}
"""The measures of a policy, in the order of the tables' columns."""


def estimates(curves: EquityCurves, market: Float64Array, seed: int) -> dict[str, Estimate]:
    """Estimate a policy's measures by the keys of `METRICS`; of many policies, their mean and range.

    `market` are the (D,) daily returns of the benchmark.
    """
    returns = metrics.daily_returns(curves.equity)
    exposure = beta(returns, market)
    arrays = measures_of(curves) | {
        "beta": exposure,
        "alpha": _YEAR * (returns - np.outer(exposure, market)).mean(axis=1),
    }
    if len(curves.equity) > 1:
        return {name: _range(values) for name, values in arrays.items()}
    generator = np.random.default_rng([seed, _BOOTSTRAP_SEED])
    intervals = bootstrap_intervals(returns[0], _CURVE_MEASURES, generator)
    low, high = mean_test(returns[0] - exposure[0] * market).interval
    intervals["alpha"] = _YEAR * low, _YEAR * high
    return {
        name: Estimate(float(value) if np.isfinite(value) else None, *intervals.get(name, ()))
        for name, (value,) in arrays.items()
    }


def measures_of(curves: EquityCurves) -> dict[str, Float64Array]:
    """Return the (P,) values of the measures that need no market, by the keys of `METRICS`; NaN: not defined."""
    equity, days, closed = curves.equity, curves.exposure.shape[1], curves.wins + curves.losses
    years, opened = days / metrics.TRADING_DAYS_PER_YEAR, curves.positions
    return {
        **{name: measure(equity) for name, measure in _CURVE_MEASURES.items()},
        "turnover": curves.traded / (2 * years),
        "exposure": 100 * curves.exposure.mean(axis=1),
        "held": curves.sessions / days,
        "largest": 100 * curves.largest,
        "positions": opened,
        "win_rate": 100 * curves.wins / np.where(closed > 0, closed, np.nan),
        "holding": curves.sessions / np.where(opened > 0, opened, np.nan),
        "costs": 100 * curves.costs / curves.capital,
    }


def _range(values: Float64Array) -> Estimate:
    known = values[np.isfinite(values)]
    if not len(known):
        return Estimate(None)
    low, high = np.percentile(known, EDGES)
    return Estimate(float(known.mean()), float(low), float(high))
