"""The account of `environment.account` once more, for one lane, in plain Python: an independent oracle.

Written from the rules, stock by stock and session by session, without arrays: a decision at each close by target
weights, an order in shares, a fill at the next open or at the same close, sales first, purchases cut by one factor.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from utils.arrays import Float64Array
from utils.config.trader import EnvironmentConfig


@dataclass
class Position:
    shares: float = 0.0
    last: float = math.nan
    missing: int = 0
    age: int = 0
    spent: float = 0.0
    """Cash paid for the position less cash received, costs included."""


@dataclass
class Twin:
    open: Float64Array
    close: Float64Array
    rules: EnvironmentConfig
    volume: Float64Array | None = None
    member: Any = None
    split: Float64Array | None = None
    dividend: Float64Array | None = None
    is_signed: bool = False
    borrow_bps: float = 0.0
    financing_bps: float = 0.0
    results: list[float] = field(default_factory=list)
    """Profits of closed positions, net of costs."""
    opened: int = 0
    costs: float = 0.0
    busy_days: int = 0

    def play(self, start: int, targets: Float64Array, trading_steps: int, is_flat_at_end: bool) -> list[float]:
        """Return the equity at each close; `targets` are (steps, n), NaN: keep."""
        n, rules = self.open.shape[1], self.rules
        cost = (rules.cost_bps + rules.slippage_bps) / 10_000
        self.positions = [Position(last=self.close[start, i]) for i in range(n)]
        for i, p in enumerate(self.positions):
            p.missing = int(math.isnan(self.close[start, i]))
        self.cash = peak = equity = rules.initial_capital
        curve, locked = [equity], False
        for step in range(len(targets)):
            day = start + step
            orders = [0.0] * n
            for i, p in enumerate(self.positions):
                if p.missing or math.isnan(targets[step, i]):
                    continue
                lacking = targets[step, i] * max(equity, 0.0) / p.last - p.shares
                if abs(lacking * p.last) <= 1e-8 * equity:
                    continue
                is_buyable = not locked and step < trading_steps and (self.member is None or self.member[day, i])
                if not is_buyable:
                    if p.shares > 0:
                        lacking = min(0.0, max(lacking, -p.shares))
                    elif p.shares < 0:
                        lacking = max(0.0, min(lacking, -p.shares))
                    else:
                        lacking = 0.0
                orders[i] = lacking
            if rules.fill == "same_close":
                self._fill(orders, [math.nan if p.missing else p.last for p in self.positions], day, cost)
            if self.is_signed:
                short = sum(-p.shares * p.last for p in self.positions if p.shares < 0)
                owed = max(0.0, -self.cash)
                fee = (short * self.borrow_bps + owed * self.financing_bps) / 10_000 / 252
                self.cash -= fee
                self.costs += fee
            day += 1
            for i, p in enumerate(self.positions):
                if self.split is not None:
                    p.shares *= self.split[day, i]
                    p.last /= self.split[day, i]
                    orders[i] *= self.split[day, i]
                if self.dividend is not None:
                    self.cash += p.shares * self.dividend[day, i]
                    p.spent -= p.shares * self.dividend[day, i]
            if rules.fill == "next_open":
                self._fill(orders, list(self.open[day]), day, cost)
            self.busy_days += any(p.shares != 0 for p in self.positions)
            is_last = step == len(targets) - 1
            for i, p in enumerate(self.positions):
                if math.isnan(self.close[day, i]):
                    p.missing += 1
                else:
                    p.missing, p.last = 0, self.close[day, i]
                p.age += p.shares != 0
            worth = self.cash + sum(p.shares * p.last for p in self.positions if p.shares)
            is_ruined = self.is_signed and worth <= 0
            for p in self.positions:
                is_lost = p.missing >= rules.max_days_without_bar
                if p.shares and (is_lost or is_ruined or (is_last and is_flat_at_end)):
                    price = p.last * (1 - rules.delisting_loss / 100) if is_lost else p.last
                    self._trade(p, -p.shares, price, cost)
            equity = self.cash + sum(p.shares * p.last for p in self.positions if p.shares)
            curve.append(equity)
            peak = max(peak, equity)
            if rules.drawdown_lock and equity <= peak * (1 - rules.drawdown_lock / 100):
                locked = True
        return curve

    def _fill(self, orders: list[float], prices: list[float], day: int, cost: float) -> None:
        filled = []
        for i, (order, price) in enumerate(zip(orders, prices, strict=True)):
            if math.isnan(price):
                order = 0.0
            elif self.volume is not None and self.rules.volume_cap and not math.isnan(self.volume[day, i]):
                most = self.volume[day, i] * self.rules.volume_cap / 100
                order = max(-most, min(most, order))
            filled.append(order)
        sales = [i for i, order in enumerate(filled) if order < 0]
        buys = [i for i, order in enumerate(filled) if order > 0]
        if self.is_signed:
            for i in sales + buys:
                self._trade(self.positions[i], filled[i], prices[i], cost)
            return
        for i in sales:
            self._trade(self.positions[i], max(filled[i], -self.positions[i].shares), prices[i], cost)
        needed = sum(filled[i] * prices[i] for i in buys) * (1 + cost)
        factor = min(1.0, max(self.cash, 0.0) / needed) if needed else 1.0
        for i in buys:
            bought = filled[i] * factor
            if self.positions[i].shares or bought * prices[i] >= 1e-9 * self.rules.initial_capital:
                self._trade(self.positions[i], bought, prices[i], cost)

    def _trade(self, position: Position, shares: float, price: float, cost: float) -> None:
        if not shares:
            return
        paid = abs(shares) * price * cost
        self.costs += paid
        self.cash -= shares * price + paid
        before, after = position.shares, position.shares + shares
        if before * after < 0:  # one position ends, and another begins, each at the cost of its part
            self.results.append(-(position.spent - before * price + abs(before) * price * cost))
            position.spent, position.age = after * price + abs(after) * price * cost, 0
            self.opened += 1
        else:
            self.opened += before == 0
            position.spent += shares * price + paid
            if after == 0:
                self.results.append(-position.spent)
                position.spent, position.age = 0.0, 0
        position.shares = after
