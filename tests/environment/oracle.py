"""The trading rules in plain Python, one stock at a time: what every faster implementation must agree with.

Prices are history, so the whole life of a position is known when it is filled. The oracle therefore follows each
position from its fill to its exit alone and derives cash, equity and rewards afterwards from the list of trades.

Days are row indices of `bars`, money is in currency units. A bar is (open, high, low, close), None where there is none.

1.  Steps. Step t decides at the close of day d = start + t and ends at the close of d + 1; the last ends on day `end`.
    Orders are accepted while d < trading_end. With fill `next_open` they are filled at the open of d + 1; with
    `same_close` at the close of d, which is then the entry day, and exits are examined from d + 1 on.
2.  Candidates. Coefficients are clipped to [0, 10], targets to [10, 50] percent. A candidate has a clipped coefficient
    of at least 1, a bar on d and no position open at the close of d (one that will exit on d + 1 still blocks; one that
    exited on d does not). The largest `max_new_positions_per_day` clipped coefficients are ordered, in descending
    order, ties to the lower stock index.
3.  Size. The orders of a day share the cash at the close of d. In rank order each takes
    min(coefficient x stake, remaining cash / (1 + rate)), where stake = stake_percent / 100 x initial capital and
    rate = (cost_bps + slippage_bps) / 10000, and leaves value x (1 + rate) less for the next. With a volume cap it
    takes at most volume_cap percent of the shares traded on the day of its fill, at the fill price; where that volume
    is not known it is not cut, and exits never are. A value below 1e-6 of the initial capital is dropped. An order
    without a bar on d + 1 lapses: it spends nothing, so that lower ranks see its cash, and no further candidate takes
    its place.
4.  Position. Shares = value / fill price, fractional. Target price = fill price x (1 + target / 100).
5.  Exits, examined each session from the entry day (`next_open`) or the day after it (`same_close`) on. With a bar:
    open >= target or, with a stop, open <= stop, except on the entry day, exits at the open; else low <= stop at the
    stop, which is fill price x (1 - stop / 100); else high >= target at the target; else the close if the sessions
    held, bars or not, the entry day being 1, have reached `longest_holding`. Without a bar: after
    `max_days_without_bar` successive sessions of that kind it exits at its last close less delisting_loss percent; a
    bar resets their count. What is left at the close of `end` exits at its last close, without a bar as well.
    With a drawdown lock no order is accepted after a close at which equity was that percent below its highest close.
6.  Cash. Proceeds less costs enter on the exit day and can be spent by the decision at that day's close. Costs are
    rate x value traded, on each leg.
7.  Equity at a close = cash + shares x last close. Under `same_close` the cash and equity of day d are those before the
    orders of d are filled: their costs belong to the step that decides on them.
7a. With daily exits, orders are read at every close but the last, in settlement as well: a stock held at the close,
    bought before, moves its target to the (clipped) target of its order, and is sold where its clipped coefficient is
    below 1. With `next_open` it is sold at the next open, before any other exit, if it has a bar that day; with
    `same_close` at the close of the decision, if it has a bar, after the equity of that close was taken: it blocks
    its stock once more, its proceeds enter with the next close, and so does its loss.
8.  Reward = 100 x change of equity / initial capital, less the inaction penalty if no position was open at any time
    after the decision until the close of d + 1, less (loss multiplier - 1) x 100 x realised losses / initial capital.
    A realised loss is that of a trade closed on d + 1 at a negative profit after the costs of both legs. Fitness = sum
    of the rewards, less the zero-trades penalty if there was no trade.
9.  A win is a trade with a positive profit after costs; every other trade is a loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum
from typing import Literal

from utils.config.trader import EnvironmentConfig

Bar = tuple[float, float, float, float]
Bars = Sequence[Sequence[Bar | None]]
Volumes = Sequence[Sequence[float | None]]
"""Shares traded, `volumes[day][stock]`, None where not known."""
Order = tuple[float, float]
"""Coefficient and target percent."""
Orders = Sequence[Mapping[int, Order]]
"""`orders[step][stock]`; a stock that is left out is without an order."""
Reason = Literal["sold", "target_open", "stop_open", "stop", "target", "holding", "no_bar", "episode_end"]

DUST = 1e-6
"""Share of the initial capital below which an order is dropped."""


@dataclass(frozen=True)
class Trade:
    """One position from its order to its exit; `value` is the entry value, `profit` is before costs of both legs."""

    stock: int
    order_day: int
    entry_day: int
    entry_price: float
    shares: float
    value: float
    target_price: float
    exit_day: int
    exit_price: float
    reason: Reason
    profit: float
    costs: float
    settled_day: int
    """Its proceeds count from the close of this day on."""
    targets: Mapping[int, float]
    """Its target price in each session, which the close of this session may move."""
    rank: int
    """Place among the orders of its day, 0 being the largest coefficient; lapsed and dropped orders keep theirs."""


@dataclass(frozen=True)
class Result:
    """An episode: `equity` and `cash` have steps + 1 entries, one a close, the first being the initial capital."""

    trades: list[Trade]
    equity: list[float]
    cash: list[float]
    rewards: list[float]
    fitness: float
    wins: int
    losses: int
    days_with_positions: int
    days_without_positions: int
    total_costs: float
    inaction_penalties: float
    loss_penalties: float


def simulate(
    bars: Bars,
    orders: Orders,
    *,
    start: int,
    end: int,
    trading_end: int,
    rules: EnvironmentConfig,
    volumes: Volumes = (),
) -> Result:
    """Plays the episode from the close of day `start` to the close of day `end`.

    The lengths of the episode in `rules` are not read; `volumes` only with a volume cap.
    """
    assert 0 <= start < end < len(bars), f"expected 0 <= start < end < {len(bars)}, got {start} and {end}"
    episode = Episode(bars, orders, start, end, rules, volumes)
    trades: list[Trade] = []
    cash = [rules.initial_capital]
    equity = [rules.initial_capital]
    for day in range(start, end):
        fallen = [1 - now / max(equity[: close + 1]) for close, now in enumerate(equity)]
        is_locked = 0 < rules.drawdown_lock <= 100 * max(fallen) * (1 + 1e-12)
        if day < trading_end and not is_locked:
            held = {trade.stock for trade in trades if trade.settled_day > day}
            trades += episode.filled(day, held, cash[-1])
        cash.append(cash_at_close(trades, day + 1, rules))
        equity.append(cash[-1] + positions_at_close(bars, trades, day + 1))
    return summarise(trades, equity, cash, start, rules)


@dataclass(frozen=True)
class Episode:
    """What happens to an order, and to the position that it opens."""

    bars: Bars
    orders: Orders
    start: int
    end: int
    rules: EnvironmentConfig
    volumes: Volumes

    def filled(self, day: int, held: set[int], cash: float) -> list[Trade]:
        """The trades that the orders at the close of `day` open with `cash` to spend."""
        opened, filled_on, rules = [], self.fill_day(day), self.rules
        for rank, (stock, coefficient) in enumerate(self.ranked(day, held)):
            bar = self.bars[filled_on][stock]
            if bar is None:
                continue
            wanted = coefficient * rules.stake_percent / 100 * rules.initial_capital
            traded = self.volumes[filled_on][stock] if rules.volume_cap > 0 else None
            if traded is not None:
                wanted = min(wanted, traded * rules.volume_cap / 100 * self.fill_price(bar))
            value = min(wanted, cash / (1 + rate(rules)))
            if value < DUST * rules.initial_capital:
                continue
            cash -= value * (1 + rate(rules))
            opened.append(self.whole_trade(stock, value, day, rank))
        return opened

    def fill_day(self, order_day: int) -> int:
        return order_day + 1 if self.rules.fill == "next_open" else order_day

    def fill_price(self, bar: Bar) -> float:
        return bar[0] if self.rules.fill == "next_open" else bar[3]

    def decided(self, stock: int, close: int) -> Order:
        """The clipped coefficient and target that are ordered for a stock."""
        coefficient, target = self.orders[close - self.start].get(stock, (0.0, 0.0))
        return min(max(float(coefficient), 0.0), 10.0), min(max(float(target), 10.0), 50.0)

    def ranked(self, day: int, held: set[int]) -> list[tuple[int, float]]:
        """The candidates that are ordered, best first, as (stock, clipped coefficient)."""
        candidates = []
        for stock in self.orders[day - self.start]:
            coefficient, _ = self.decided(stock, day)
            if coefficient >= 1 and self.bars[day][stock] is not None and stock not in held:
                candidates.append((stock, coefficient))
        candidates.sort(key=lambda candidate: (-candidate[1], candidate[0]))
        return candidates[: self.rules.max_new_positions_per_day]

    def find_exit(self, stock: int, entry_day: int, targets: dict[int, float]) -> tuple[int, float, Reason]:
        """Day, price and reason of the exit of a position, from its own stock's bars and orders.

        `targets` holds the target price of the entry day; those of later sessions are added.
        """
        entry_bar, rules = self.bars[entry_day][stock], self.rules
        assert entry_bar is not None
        price, last_price = self.fill_price(entry_bar), entry_bar[3]
        stop_price = price * (1 - rules.stop_percent / 100)
        days_without_bar = 0
        for day in range(entry_day if rules.fill == "next_open" else entry_day + 1, self.end + 1):
            bar, is_sold, target_price = self.bars[day][stock], False, targets[max(targets)]
            if rules.exits == "daily" and day - 1 >= entry_day + (rules.fill == "same_close"):
                coefficient, target = self.decided(stock, day - 1)
                is_sold, target_price = coefficient < 1, price * (1 + target / 100)
            targets[day] = target_price
            if rules.fill == "same_close" and is_sold and self.bars[day - 1][stock] is not None:
                return day - 1, last_price, "sold"
            if bar is None:
                days_without_bar += 1
                if days_without_bar == rules.max_days_without_bar:
                    return day, last_price - last_price * rules.delisting_loss / 100, "no_bar"
                continue
            days_without_bar = 0
            open_, high, low, last_price = bar
            if is_sold and rules.fill == "next_open":
                return day, open_, "sold"
            if day > entry_day and open_ >= target_price:
                return day, open_, "target_open"
            if rules.stop_percent > 0 and low <= stop_price:
                if day > entry_day and open_ <= stop_price:
                    return day, open_, "stop_open"
                return day, stop_price, "stop"
            if high >= target_price:
                return day, target_price, "target"
            if day - entry_day + 1 >= rules.longest_holding:
                return day, last_price, "holding"
        return self.end, last_price, "episode_end"

    def whole_trade(self, stock: int, value: float, order_day: int, rank: int) -> Trade:
        """The trade, exit included, of an order that was filled."""
        entry_day = self.fill_day(order_day)
        bar = self.bars[entry_day][stock]
        assert bar is not None
        price, (_, target) = self.fill_price(bar), self.decided(stock, order_day)
        targets = {entry_day: price * (1 + target / 100)}
        exit_day, exit_price, reason = self.find_exit(stock, entry_day, targets)
        proceeds = value / price * exit_price
        return Trade(
            stock=stock,
            order_day=order_day,
            entry_day=entry_day,
            entry_price=price,
            shares=value / price,
            value=value,
            target_price=targets[max(targets)],
            exit_day=exit_day,
            exit_price=exit_price,
            reason=reason,
            profit=proceeds - value,
            costs=rate(self.rules) * (value + proceeds),
            settled_day=exit_day + (reason == "sold" and self.rules.fill == "same_close"),
            targets=targets,
            rank=rank,
        )


def rate(rules: EnvironmentConfig) -> float:
    return (rules.cost_bps + rules.slippage_bps) / 10_000


def cash_at_close(trades: list[Trade], day: int, rules: EnvironmentConfig) -> float:
    """Initial capital, less what every trade cost to enter, plus what the trades closed by `day` brought in."""
    spent = [-trade.value * (1 + rate(rules)) for trade in trades]
    earned = [trade.shares * trade.exit_price * (1 - rate(rules)) for trade in trades if trade.settled_day <= day]
    return fsum([rules.initial_capital, *spent, *earned])


def positions_at_close(bars: Bars, trades: list[Trade], day: int) -> float:
    return fsum(trade.shares * last_close(bars, trade.stock, day) for trade in trades if trade.settled_day > day)


def last_close(bars: Bars, stock: int, day: int) -> float:
    """The newest close up to `day` of a stock that was bought by then."""
    while (bar := bars[day][stock]) is None:
        day -= 1
    return bar[3]


def summarise(
    trades: list[Trade], equity: list[float], cash: list[float], start: int, rules: EnvironmentConfig
) -> Result:
    days = range(start + 1, start + len(equity))
    idle = [0.0 if active_on(trades, day) else rules.inaction_penalty for day in days]
    losses = [loss_penalty(trades, day, rules) for day in days]
    changes = [100 * (after - before) / rules.initial_capital for before, after in pairwise(equity)]
    rewards = [change - wait - loss for change, wait, loss in zip(changes, idle, losses, strict=True)]
    with_positions = sum(active_on(trades, day) for day in days)
    wins = sum(trade.profit - trade.costs > 0 for trade in trades)
    return Result(
        trades=trades,
        equity=equity,
        cash=cash,
        rewards=rewards,
        fitness=fsum(rewards) - (0.0 if trades else rules.zero_trades_penalty),
        wins=wins,
        losses=len(trades) - wins,
        days_with_positions=with_positions,
        days_without_positions=len(days) - with_positions,
        total_costs=fsum(trade.costs for trade in trades),
        inaction_penalties=fsum(idle),
        loss_penalties=fsum(losses),
    )


def active_on(trades: list[Trade], day: int) -> bool:
    """Whether a position was open at any time between the close before `day` (after its fills) and that of `day`."""
    return any(trade.order_day < day <= trade.exit_day for trade in trades)


def loss_penalty(trades: list[Trade], day: int, rules: EnvironmentConfig) -> float:
    """What the losses realised on `day` take from its reward, beyond the money."""
    lost = fsum(max(0.0, trade.costs - trade.profit) for trade in trades if trade.settled_day == day)
    return (rules.loss_multiplier - 1) * 100 * lost / rules.initial_capital
