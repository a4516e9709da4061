"""Accounts of policies, and measures of them, with their intervals and the form in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from environment.portfolio import Portfolio
from training.forecasts.skill import beta
from utils import metrics
from utils.arrays import Float64Array
from utils.statistics import EDGES, bootstrap_intervals, mean_test

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


@dataclass(frozen=True)
class EquityCurves:
    """Accounts of P policies over W windows of D days; each window begins with the initial capital.

    All but `equity` are (P, W), amounts in currency units, NaN where a policy has no trades of its own.
    """

    equity: Float64Array
    """(P, W, D + 1)"""
    exposure: Float64Array
    """Mean share of equity that is invested at the closes."""
    trades: Float64Array
    wins: Float64Array
    sessions: Float64Array
    """Sessions held, summed over trades."""
    traded: Float64Array
    """Value bought and sold."""
    costs: Float64Array

    @classmethod
    def of(cls, env: Portfolio, invested: Sequence[Tensor], policies: int) -> Self:
        """Build from finished episodes of (policies * windows) lanes, policy by policy, and daily shares invested."""
        summary, book = env.summary(), env.ledger()
        closed = book.exit_step > 0
        decided = torch.arange(len(book.value), device=book.value.device) // env.orders_per_day
        # The entry session counts as the first one held; filled at the close, that is the session of the decision.
        sessions = book.exit_step - decided[:, None] + (env.rules.fill == "same_close")
        traded = book.value + book.shares * book.last_price * closed

        def by_policy(total: Tensor) -> Float64Array:
            return np.asarray(total.double().view(policies, -1).cpu().numpy())

        # Cloned, since the next episode writes into the same curve.
        curve = env.equity_curve[: env.steps + 1].T.clone()
        return cls(
            equity=curve.view(policies, -1, env.steps + 1).cpu().numpy(),
            exposure=by_policy(reduce(torch.add, invested) / env.steps),
            trades=by_policy(summary.trades),
            wins=by_policy(summary.wins),
            sessions=by_policy((sessions * closed).sum(0)),
            traded=by_policy(traded.sum(0)),
            costs=by_policy(summary.costs),
        )

    @classmethod
    def untraded(cls, equity: Float64Array, exposure: Float64Array, traded: Float64Array, costs: Float64Array) -> Self:
        """Build from a portfolio without trades of its own over W windows: (W, D + 1), and (W,) each."""
        nothing = np.full((1, len(equity)), np.nan)
        return cls(
            equity=equity[None],
            exposure=exposure[None],
            trades=nothing,
            wins=nothing,
            sessions=nothing,
            traded=traded[None],
            costs=costs[None],
        )

    @classmethod
    def joined(cls, curves: Iterable[EquityCurves]) -> Self:
        """Join the windows of the same policies, one after the other."""
        arrays = zip(*(vars(one).values() for one in curves), strict=True)
        return cls(*(np.concatenate(values, axis=1) for values in arrays))

    def each(self, change: Callable[[Float64Array], Float64Array]) -> EquityCurves:
        """Return the curves with `change` applied to each array."""
        return EquityCurves(**{f.name: change(getattr(self, f.name)) for f in fields(EquityCurves)})

    @property
    def capital(self) -> float:
        return float(self.equity[0, 0, 0])

    @property
    def daily_profit(self) -> Float64Array:
        """Return (P, W * D) percent of the initial capital; sums, since each window begins anew."""
        profit = 100 / self.capital * np.diff(self.equity, axis=2)
        return profit.reshape(len(profit), -1)

    @property
    def mean_return_percent(self) -> float:
        """Return the mean over policies of the stitched accounts' returns."""
        return float(metrics.total_return_percent(self.stitched).mean())

    @property
    def stitched(self) -> Float64Array:
        """Return the (P, W * D + 1) equity of one account that takes the windows one after the other and reinvests."""
        growth = self.equity / self.equity[:, :, :1]
        before = np.cumprod(np.concatenate((np.ones((len(growth), 1)), growth[:, :-1, -1]), axis=1), axis=1)
        days = (before[..., None] * growth[..., 1:]).reshape(len(growth), -1)
        return self.capital * np.concatenate((np.ones((len(growth), 1)), days), axis=1)


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
    "trades": Metric("Trades", "count", 0, "Positions opened and closed; for random pickers the mean."),
    "win_rate": Metric("Win rate", "%", 1, "Share of trades with a profit after costs."),
    "holding": Metric("Holding", "sessions", 1, "Mean sessions from entry to exit, both counted."),
    "costs": Metric("Costs", "% of capital", 2, "Costs and slippage paid, in percent of the initial capital."),
}
"""The measures of a policy, in the order of the tables' columns."""


def estimates(curves: EquityCurves, market: Float64Array, seed: int) -> dict[str, Estimate]:
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


def measures_of(curves: EquityCurves) -> dict[str, Float64Array]:
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


def _range(values: Float64Array) -> Estimate:
    known = values[np.isfinite(values)]
    if not len(known):
        return Estimate(None)
    low, high = np.percentile(known, EDGES)
    return Estimate(float(known.mean()), float(low), float(high))


def mix_accounts(agents: EquityCurves, basket: EquityCurves, share: float, exposure: float = 1.0) -> EquityCurves:
    """Return accounts of which a share of what is exposed follows agents, and the rest holds a basket.

    Both are accounts of their own: prices do not react and costs are proportional, so that the sum is exact. What is
    not exposed is cash. Counts of trades are the agents'.
    """
    ours, theirs = exposure * share, exposure * (1.0 - share)
    whole = {
        name: ours * getattr(agents, name) + theirs * getattr(basket, name)
        for name in ("equity", "exposure", "traded", "costs")
    }
    whole["equity"] += (1.0 - exposure) * agents.capital
    return replace(agents if share > 0 else agents.each(lambda values: np.full_like(values, np.nan)), **whole)
