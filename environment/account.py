"""The account: what target weights become under the trading rules, batched over lanes.

Day d is a session. At its close a policy says how much of the equity each stock is to be; the rest is cash. An order is
the number of shares that is lacking then, and is filled at the next open, at the prices of that open:

    order = target x equity / close - shares

All sales come first, and all purchases are cut by one factor where the cash does not suffice for them and their costs.
Every rule of trading is here, once: agents, a benchmark, anybody's policy and a paper account differ in their weights.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from environment.quotes import Quotes
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError
from utils.metrics import TRADING_DAYS_PER_YEAR

_DUST, _ROUNDING = 1e-9, 1e-8
"""Share of the initial capital below which no position is opened, since leftovers of cash are none; and of the equity,
below which a weight is not missed but rounded."""
_MANY = 512
"""Stocks from which on only those that trade are booked."""
COUNTS = ("trades", "wins", "losses", "positions_opened", "days_with_positions", "days_without_positions")
"""Whole numbers in a summary."""


@dataclass(frozen=True)
class Trades:
    """What some sessions asked of an account and traded, (sessions, lanes, n) float64 each."""

    asked: Tensor
    """Shares that were lacking at the close before; negative: too many."""
    filled: Tensor
    """Shares that were bought, negative: sold, by orders."""
    price: Tensor
    """At which orders were filled, NaN without a bar."""
    closed: Tensor
    """Shares that were sold by no order: of a stock without bars, or at the end of an episode; negative."""
    closed_price: Tensor


@dataclass(frozen=True)
class Summary:
    """Results of L accounts so far, (L,) each; amounts in currency units.

    A position lasts from the first purchase of a stock to its last sale.
    """

    trades: Tensor
    """Positions that are closed."""
    wins: Tensor
    losses: Tensor
    positions_opened: Tensor
    days_with_positions: Tensor
    days_without_positions: Tensor
    traded: Tensor
    """Value bought and sold."""
    costs: Tensor
    final_equity: Tensor
    profit_percent: Tensor
    """Change of equity, percent of the initial capital."""


class Account:
    """L accounts that hold n stocks, each over its own window of equally many days.

    Stocks without a bar keep their last price and are traded at their next one, when asked for again; after
    `max_days_without_bar` sessions they are sold at that price, less a delisting loss. Under a volume cap an order is
    at most that percent of the shares traded in its session; the rest lapses. An account whose equity has fallen from
    its highest close by the `drawdown_lock`, and one after its trading days, only sells. Splits change shares, and
    dividends are paid in cash, in the night before their day.

    Signed accounts may be short, and owe cash: they pay a fee on what they borrow each session, and one that has lost
    everything is closed.
    """

    def __init__(
        self,
        quotes: Quotes,
        rules: EnvironmentConfig,
        *,
        is_signed: bool = False,
        borrow_bps: float = 0.0,
        financing_bps: float = 0.0,
    ) -> None:
        """Trade at these prices by these rules.

        Args:
            borrow_bps: fee a year on the value that is short, of a signed account.
            financing_bps: fee a year on the cash that it owes.

        Raises:
            ConfigError: a cap needs a volume that is missing.
        """
        if rules.volume_cap > 0 and quotes.volume is None:
            raise ConfigError(
                f"expected bars with volume for a volume cap of {rules.volume_cap:g}%, got none; give the volume, or "
                "leave the cap out"
            )
        self.quotes, self.rules, self.is_signed = quotes, rules, is_signed
        self._fees = tuple(bps / 10_000 / TRADING_DAYS_PER_YEAR for bps in (borrow_bps, financing_bps))
        self.device, self.lanes, self.steps, self.step_index = quotes.device, 0, 0, 0

    def reset(
        self,
        start: Tensor,
        *,
        steps: int,
        trading_steps: int | None = None,
        is_flat_at_end: bool = False,
        keeps_trades: bool = False,
    ) -> None:
        """Begin with cash only.

        Args:
            start: (L,) days of the first decisions; day `start + steps` is the last one.
            trading_steps: first decisions by which something may be bought; default: all.
            is_flat_at_end: sell everything at the last close, as episodes do.
            keeps_trades: record what is asked and traded, see `trades`.
        """
        first, last = (int(edge) for edge in torch.stack(start.aminmax()))
        if first < 0 or last + steps >= self.quotes.days or not steps > 0:
            raise ValueError(
                f"expected windows within days 0..{self.quotes.days - 1}, got starts {first}..{last} with {steps} "
                "steps; choose windows that end before the data does"
            )
        self.lanes, self.steps, self.step_index = len(start), steps, 0
        self.trading_steps = steps if trading_steps is None else trading_steps
        self.is_flat_at_end = is_flat_at_end
        self.day = start.to(self.device, torch.int64, copy=True)
        money = partial(torch.zeros, dtype=torch.float64, device=self.device)
        cells = self.lanes, self.quotes.stocks
        self.shares, self.basis, self.flow = money(cells), money(cells), money(cells)
        self.last = self.quotes.close[self.day]
        self.missing = self.last.isnan().int()
        self.age = torch.zeros_like(self.missing)
        self.cash = money(self.lanes) + self.rules.initial_capital
        self.equity, self.peak = self.cash.clone(), self.cash.clone()
        self.is_locked = torch.zeros(self.lanes, dtype=torch.bool, device=self.device)
        self.traded, self.costs, self.wins, self.losses, self.opened = money(5, self.lanes).unbind()
        self.busy_days = money(self.lanes)
        self.equity_curve = money(steps + 1, self.lanes)
        self.equity_curve[0] = self.equity
        self._trades: list[tuple[Tensor, ...]] | None = [] if keeps_trades else None

    @property
    def is_done(self) -> bool:
        """Tell whether the windows have ended."""
        return self.step_index >= self.steps

    @property
    def is_trading(self) -> bool:
        """Tell whether something may be bought by the decision of today."""
        return self.step_index < self.trading_steps

    @property
    def has_bar(self) -> Tensor:
        """(L, n) bool: the stock has a bar today."""
        return self.missing == 0

    @property
    def is_member(self) -> Tensor | None:
        """(L, n) bool: the stock may be bought today; None: all may."""
        return None if self.quotes.is_member is None else self.quotes.is_member[self.day]

    @property
    def worth(self) -> Tensor:
        """(L, n) float64 value of each stock at the last close."""
        return self.shares * self.last.nan_to_num()

    @property
    def weights(self) -> Tensor:
        """(L, n) float64 value of each stock at the last close, as a share of the equity."""
        return self.worth / self.equity[:, None]

    @property
    def unrealised(self) -> Tensor:
        """(L, n) float64 gain of what is held over what was paid for it on average, without costs; 0 of nothing."""
        return torch.where(self.shares != 0, self.worth / self.basis - 1, 0.0)

    def orders(self, target: Tensor) -> Tensor:
        """Return the (L, n) shares that are lacking to (L, n) target weights at today's close; NaN: none are.

        Nothing is ordered of a stock without a bar; nothing is bought that is no member, in a locked account, or after
        the trading days.
        """
        price = torch.where(self.has_bar, self.last, torch.nan)
        equity = self.equity.clamp(min=0.0)[:, None]  # of a signed account that has lost everything nothing is bought
        lacking = (target * equity / price - self.shares).nan_to_num(nan=0.0)
        lacking = torch.where((lacking * price).abs() > _ROUNDING * equity, lacking, 0.0)
        may_buy = (~self.is_locked & self.is_trading)[:, None]
        if (member := self.is_member) is not None:
            may_buy = may_buy & member
        if self.device.type == "cpu" and may_buy.all():  # a card would wait for its host
            return lacking
        # What reduces a position, long or short, is always allowed.
        reducing = lacking.clamp(-self.shares.clamp(min=0), (-self.shares).clamp(min=0))
        return torch.where(may_buy, lacking, reducing)

    def step(self, target: Tensor) -> Tensor:
        """Decide at the close of today by (L, n) target weights, NaN keeps; live through tomorrow, to its close.

        Returns:
            (L,) float64 reward: change of equity in percent of the initial capital.
        """
        return self.trade(self.orders(target))

    def trade(self, order: Tensor) -> Tensor:
        """Live through tomorrow with (L, n) shares that are ordered at today's close, as `step` does."""
        if self.is_done:
            raise RuntimeError("the window has ended; call reset first")
        before, filled = self.equity, None
        if self.rules.fill == "same_close":
            price = torch.where(self.has_bar, self.last, torch.nan)
            filled = self._trade(order, price)
        self._borrow()
        self.day = self.day + 1
        split = self._events()
        if filled is None:
            price = self.quotes.open[self.day]
            filled = self._trade(order if split is None else order * split, price)
        self.busy_days += (self.shares != 0).any(1)
        closed, closed_price = self._close(is_last=self.step_index == self.steps - 1)
        self.step_index += 1
        self.equity_curve[self.step_index] = self.equity
        if self._trades is not None:
            self._trades.append((order, filled, price, closed, closed_price))
        return (self.equity - before) * (100 / self.rules.initial_capital)

    def _trade(self, order: Tensor, price: Tensor) -> Tensor:
        """Fill orders today at (L, n) prices, NaN: not at all; return the shares that were bought, negative: sold."""
        order = torch.where(price > 0, order, 0.0)
        if self.rules.volume_cap > 0 and self.quotes.volume is not None:
            most = self.rules.volume_cap / 100 * self.quotes.volume[self.day]
            order = order.clamp(-most, most)
        whole, some = order, self._ordered(order)
        order, price, held = (_of(part, some) for part in (order, price, self.shares))
        price, rate = price.nan_to_num(), self.rules.cost_rate
        if not self.is_signed:
            bought, sold = order.clamp(min=0), torch.maximum(order.clamp(max=0), -held)
            free = self.cash - (sold * price).sum(1) * (1 - rate)
            needed = (bought * price).sum(1) * (1 + rate)
            fits = (free.clamp(min=0) / needed.clamp(min=1e-300)).clamp(max=1.0)
            bought = bought * fits[:, None]
            is_dust = (held == 0) & (bought * price < _DUST * self.rules.initial_capital)
            order = torch.where(is_dust, 0.0, bought) + sold
        self._book(order, order * price, some)
        return _with(whole, some, order)

    def _ordered(self, order: Tensor) -> slice | Tensor:
        """Return the stocks of which any of (L, n) orders are, where those are few of many, else all."""
        if self.quotes.stocks < _MANY or self.device.type != "cpu":  # a card would wait for its host
            return slice(None)
        some = order.abs().sum(0).nonzero()[:, 0]
        return some if len(some) < self.quotes.stocks // 2 else slice(None)

    def _book(self, order: Tensor, value: Tensor, some: slice | Tensor) -> None:
        """Change cash and shares by (L, m) orders of a value; count positions, what was traded and paid.

        Args:
            some: (m,) the stocks that are ordered.
        """
        before, basis, flow, age = (_of(part, some) for part in (self.shares, self.basis, self.flow, self.age))
        after, paid = before + order, value.abs()
        total = paid.sum(1)
        cost = self.rules.cost_rate * total
        self.cash = self.cash - value.sum(1) - cost
        self.traded += total
        self.costs += cost
        spent = value + self.rules.cost_rate * paid
        has_ended, is_larger = (after == 0) & (before != 0), after.abs() > before.abs()
        if self.is_signed:
            # A long position that turns short ends, and another begins, at the price of the order.
            turns = before * after < 0
            price = torch.where(turns, value / order, 0.0)
            ended, begun = (part + self.rules.cost_rate * part.abs() for part in (-before * price, after * price))
            flow = flow + torch.where(turns, ended, spent)
            has_ended = has_ended | turns
        else:
            turns, flow = None, flow + spent
        has_gained = flow < 0
        self.wins += (has_ended & has_gained).sum(1)
        self.losses += (has_ended & ~has_gained).sum(1)
        self.opened += ((before == 0) & (after != 0)).sum(1)
        # What is left of a reduced position was bought at the mean price of the whole.
        left = after / torch.where(before == 0, 1.0, before)
        basis = torch.where(is_larger, basis + value, basis * left)
        flow, age = flow * ~has_ended, age * ~has_ended
        if turns is not None:
            self.opened += turns.sum(1)
            basis, flow = torch.where(turns, after * price, basis), torch.where(turns, begun, flow)
        for name, part in {"shares": after, "basis": basis, "flow": flow, "age": age}.items():
            setattr(self, name, _with(getattr(self, name), some, part))

    def _borrow(self) -> None:
        """Pay the fee of a session on what is short and owed at the close."""
        if self.is_signed:
            short = self.worth.clamp(max=0).sum(1)
            fee = -short * self._fees[0] - self.cash.clamp(max=0) * self._fees[1]
            self.cash, self.costs = self.cash - fee, self.costs + fee

    def _events(self) -> Tensor | None:
        """Apply the splits and dividends of the night before today; return the (L, n) splits, None: none."""
        split = None if self.quotes.split is None else self.quotes.split[self.day]
        if split is not None:
            self.shares, self.last = self.shares * split, self.last / split
        if self.quotes.dividend is not None:
            received = self.shares * self.quotes.dividend[self.day]
            self.cash, self.flow = self.cash + received.sum(1), self.flow - received
        return split

    def _close(self, *, is_last: bool) -> tuple[Tensor, Tensor]:
        """Mark positions at today's close; close what has ended. Return the shares and prices of what was closed."""
        close = self.quotes.close[self.day]
        has_bar = close > 0
        self.last = torch.where(has_bar, close, self.last)
        self.missing = torch.where(has_bar, 0, self.missing + 1)
        self.age = self.age + (self.shares != 0)
        is_lost = self.missing >= self.rules.max_days_without_bar
        price = torch.where(is_lost, self.last * (1 - self.rules.delisting_loss / 100), self.last).nan_to_num()
        leaves = is_lost
        if is_last and self.is_flat_at_end:
            leaves = torch.ones_like(is_lost)
        elif self.is_signed:
            worth = self.cash + (self.shares * price).sum(1)
            leaves = is_lost | (worth <= 0)[:, None]
        closed = -self.shares * leaves
        some = self._ordered(closed)
        if self.device.type != "cpu" or leaves.any():  # a card would wait for its host
            self._book(_of(closed, some), _of(closed * price, some), some)
        self.mark(self.cash + (self.shares * price).sum(1))
        return closed, price

    def mark(self, equity: Tensor) -> None:
        """Take in the (L,) equity at today's close, and lock what has fallen too far."""
        self.equity, self.peak = equity, torch.maximum(self.peak, equity)
        if self.rules.drawdown_lock > 0:
            self.is_locked = self.is_locked | (equity <= self.peak * (1 - self.rules.drawdown_lock / 100))

    def hold(self, shares: Tensor, cash: Tensor) -> None:
        """Hold (L, n) shares and (L,) cash, come by elsewhere, at today's close, by their last prices until then."""
        for lane, day in enumerate(self.day.tolist()):
            known = self.quotes.close[: day + 1].isfinite().cpu().numpy()
            age = np.where(known.any(0), known[::-1].argmax(0), day)
            self.missing[lane] = torch.from_numpy(age).to(self.missing)
            self.last[lane] = self.quotes.close[day - age, range(self.quotes.stocks)]
        self.shares, self.cash = shares.to(self.shares), cash.to(self.cash)
        self.basis = self.worth
        self.mark(self.cash + self.basis.sum(1))

    def release(self) -> None:
        """End drawdown locks: what falls is measured from today's equity on."""
        self.peak = torch.where(self.is_locked, self.equity, self.peak)
        self.is_locked = torch.zeros_like(self.is_locked)

    def trades(self) -> Trades:
        """Return what the sessions so far asked and traded; ValueError where `reset` was not told to keep it."""
        if self._trades is None:
            raise ValueError("expected accounts that keep their trades, got others; reset them with keeps_trades=True")
        return Trades(*(torch.stack(column) for column in zip(*self._trades, strict=True)))

    def summary(self) -> Summary:
        """Return the results so far."""
        return Summary(
            trades=self.wins + self.losses,
            wins=self.wins.clone(),
            losses=self.losses.clone(),
            positions_opened=self.opened.clone(),
            days_with_positions=self.busy_days.clone(),
            days_without_positions=self.step_index - self.busy_days,
            traded=self.traded.clone(),
            costs=self.costs.clone(),
            final_equity=self.equity.clone(),
            profit_percent=100 * (self.equity - self.equity_curve[0]) / self.rules.initial_capital,
        )


def _of(whole: Tensor, some: slice | Tensor) -> Tensor:
    """Return (L, n) values of some stocks; of all the same tensor, for views cost a card's host time."""
    return whole if isinstance(some, slice) else whole[:, some]


def _with(whole: Tensor, some: slice | Tensor, part: Tensor) -> Tensor:
    """Return (L, n) values with those of some stocks replaced."""
    return part if isinstance(some, slice) else whole.index_copy(1, some, part)
