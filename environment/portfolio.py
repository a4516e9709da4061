"""Portfolios: accounts beside that of their benchmark, on the same windows.

Whoever decides sees both: a policy is a function from a portfolio at a close to target weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from data.market import Market
from environment.account import Account
from environment.benchmark import Benchmark, benchmark_weights
from environment.quotes import Quotes
from utils.config.trader import EnvironmentConfig


class Portfolio:
    """L accounts that hold n stocks, the investable ones first, and the benchmark of each window.

    `copies` accounts share the benchmark of a window; accounts of one copy follow one another.
    """

    def __init__(self, quotes: Quotes, rules: EnvironmentConfig, parts: Tensor | None = None, **fees: Any) -> None:
        """Trade at these prices by these rules.

        Args:
            parts: (n,) of the benchmark, up to a factor; default: equal ones.
            fees: of signed accounts, see `Account`.
        """
        self.account, self.benchmark = Account(quotes, rules, **fees), Account(quotes, rules)
        self.parts = torch.ones(quotes.stocks, device=quotes.device) if parts is None else parts.to(quotes.device)
        self.quotes, self.rules, self._fees, self._copies = quotes, rules, fees, 1
        self._of_benchmark: Tensor | None = None  # what it wants today, once it is asked for
        self.rebalanced: Collection[int] | None = None
        """Steps before which the benchmark is rebalanced; None: the first one, and each a year later."""

    @classmethod
    def on(
        cls,
        market: Market,
        rules: EnvironmentConfig,
        device: torch.device | str = "cpu",
        benchmark: Benchmark | None = None,
        **fees: Any,
    ) -> Self:
        """Trade the investable stocks of a market, and what its benchmark holds besides; default: equal parts."""
        benchmark = benchmark or Benchmark.of(market)
        return cls(Quotes.on(market, benchmark.columns, device), rules, benchmark.parts, **fees)

    def under(self, **changes: Any) -> Portfolio:
        """Return another portfolio on the same prices, with some trading rules changed."""
        return Portfolio(self.quotes, replace(self.rules, **changes), self.parts, **self._fees)

    @property
    def device(self) -> torch.device:
        """Device of the accounts."""
        return self.quotes.device

    def begin(
        self,
        starts: Tensor,
        *,
        steps: int,
        copies: int = 1,
        keeps_trades: bool = False,
        **how: Any,
    ) -> None:
        """Begin on (W,) windows, `copies` times over, with cash only; end marked to market.

        Args:
            how: see `Account.reset`.
        """
        self.account.reset(starts.repeat(copies), steps=steps, keeps_trades=keeps_trades, **how)
        self.benchmark.reset(starts, steps=steps, **how)
        self._copies, self._of_benchmark = copies, None

    def hold(self, shares: Tensor, cash: Tensor) -> None:
        """Hold (L, n) shares and (L,) cash at today's close, beside a benchmark that is worth as much then:
        its parts of the stocks with a bar, as if they had cost nothing to buy."""
        self.account.hold(shares, cash)
        parts = torch.where(self.benchmark.has_bar, self.parts, 0.0)
        worth = self.account.equity[:, None] * parts / parts.sum(1, keepdim=True).clamp(min=1e-300)
        left = torch.where((parts > 0).any(1), 0.0, self.account.equity)
        self.benchmark.hold((worth / self.benchmark.last).nan_to_num(), left)
        self._of_benchmark = None

    @property
    def held(self) -> Tensor:
        """(L, n) weights of the benchmark at today's close."""
        return self._of_lanes(self.benchmark.weights)

    @property
    def wanted(self) -> Tensor:
        """(L, n) weights of the benchmark after its own orders of today."""
        return self._of_lanes(self._benchmark_wants())

    @property
    def at_close(self) -> dict[str, Any]:
        """What is decided by at today's close, (L, n) each, under the names of `models.policy.decide`."""
        own = self.account
        return {
            "weights": own.weights,
            "can_trade": own.has_bar,
            "may_buy": own.is_member,
            "held": self.held,
            "wanted": self.wanted,
        }

    def _benchmark_wants(self) -> Tensor:
        if self._of_benchmark is None:
            self._of_benchmark = benchmark_weights(self.benchmark, self.parts, self.rebalanced)
        return self._of_benchmark

    def _of_lanes(self, weights: Tensor) -> Tensor:
        return weights if self._copies == 1 else weights.repeat(self._copies, 1)

    def orders(self, target: Tensor) -> Tensor:
        """Return the (L, n) shares that are lacking to target weights at today's close, see `Account.orders`.

        Of the stocks beyond those of a narrower target nothing is held.
        """
        return self.account.orders(torch.nn.functional.pad(target, (0, self.quotes.stocks - target.shape[1])))

    def trade(self, target: Tensor) -> Tensor:
        """Decide by (L, n) target weights and live through tomorrow, as the benchmark does; return (L,) rewards."""
        return self.fill(self.orders(target))

    def fill(self, order: Tensor) -> Tensor:
        """Live through tomorrow with (L, n) shares that are ordered, as `trade` does."""
        self.benchmark.step(self._benchmark_wants())
        self._of_benchmark = None
        return self.account.trade(order)


Policy = Callable[[Portfolio], Tensor]
"""Returns (L, n) target weights at today's close, or those of the first stocks; NaN keeps."""


def play(portfolio: Portfolio, policy: Policy, starts: Tensor, *, steps: int) -> None:
    """Play a policy from its starts to the end of the windows; what is traded is kept."""
    portfolio.begin(starts, steps=steps, keeps_trades=True)
    while not portfolio.account.is_done:
        portfolio.trade(policy(portfolio))
