"""Measures of a policy's accounts, with their intervals and the form in which they are shown."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from training.evaluation.play import EquityCurves
from training.forecasts.skill import beta
from utils import metrics
from utils.statistics import EDGES, bootstrap_intervals, mean_test

Array = npt.NDArray[np.float64]
_CURVE_MEASURES = {
    "return": metrics.total_return_percent,
    "volatility": metrics.annualised_volatility_percent,
    "sharpe": metrics.sharpe,
    "sortino": metrics.sortino,
    "calmar": metrics.calmar,
    "max_drawdown": metrics.max_drawdown_percent,
    "expected_shortfall": metrics.expected_shortfall_percent,
}
_BOOTSTRAP_SEED = 1994
_YEAR = 100 * metrics.TRADING_DAYS_PER_YEAR
"""From a daily share to percent per year."""


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
    "volatility": Metric("Volatility", "% a year", 1, "Standard deviation of daily returns times the root of 252."),
    "sharpe": Metric(
        "Sharpe", "a year", 2, "Mean over deviation of daily returns, times the root of 252; no risk-free rate."
    ),
    "sortino": Metric("Sortino", "a year", 2, "As Sharpe, over the root mean square of the losing days."),
    "calmar": Metric("Calmar", "ratio", 2, "Compound yearly return over the maximum drawdown."),
    "max_drawdown": Metric("Max drawdown", "%", 1, "Deepest fall of equity below its earlier peak."),
    "expected_shortfall": Metric("Expected shortfall", "% a day", 2, "Mean loss of the worst 5% of days."),
    "turnover": Metric("Turnover", "times a year", 1, "Value bought and sold per year, over twice the mean equity."),
    "exposure": Metric("Exposure", "%", 1, "Mean share of equity that is invested."),
    "beta": Metric("Beta", "ratio", 2, "Regression coefficient of daily returns on those of equal weight."),
    "alpha": Metric("Alpha", "% a year", 1, "Mean daily return less beta times equal weight's, times 252."),
    "trades": Metric("Trades", "count", 0, "Positions opened and closed; for random selections the mean."),
    "win_rate": Metric("Win rate", "%", 1, "Share of trades with a profit after costs."),
    "holding": Metric("Holding", "sessions", 1, "Mean sessions from entry to exit, both counted."),
    "costs": Metric("Costs", "% of capital", 2, "Costs and slippage paid, in percent of the initial capital."),
}
"""The measures of a policy, in the order of the tables' columns."""


def estimates(curves: EquityCurves, market: Array, seed: int) -> dict[str, Estimate]:
    """Estimate a policy's measures by the keys of `METRICS`; of many policies, their mean and range.

    `market` are the (W * D,) daily returns of equal weight.
    """
    returns = metrics.daily_returns(curves.stitched)
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


def measures_of(curves: EquityCurves) -> dict[str, Array]:
    """Return the (P,) values of the measures that need no market, by the keys of `METRICS`; NaN: not defined."""
    equity = curves.stitched
    years = (equity.shape[1] - 1) / metrics.TRADING_DAYS_PER_YEAR
    trades = curves.trades.sum(axis=1)
    some = np.where(trades > 0, trades, np.nan)
    return {
        **{name: measure(equity) for name, measure in _CURVE_MEASURES.items()},
        "turnover": curves.traded.sum(axis=1) / (2 * curves.equity.mean(axis=(1, 2)) * years),
        "exposure": 100 * curves.exposure.mean(axis=1),
        "trades": trades,
        "win_rate": 100 * curves.wins.sum(axis=1) / some,
        "holding": curves.sessions.sum(axis=1) / some,
        "costs": 100 * curves.costs.sum(axis=1) / curves.capital,
    }


def _range(values: Array) -> Estimate:
    known = values[np.isfinite(values)]
    if not len(known):
        return Estimate(None)
    low, high = np.percentile(known, EDGES)
    return Estimate(float(known.mean()), float(low), float(high))
