"""The account, batched over lanes: orders, fills, costs, equity and reward; its exits are in `environment/exits.py`.

All lanes move in lockstep. The ledger is the state: row `t * orders + j` (after the padding) is order j of step t. A
step is a few operations on the open positions, whatever the number of stocks. Since none outlives `longest_holding +
max_days_without_bar - 1` sessions, they are always among the last rows.
"""

from dataclasses import fields, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from data.market import Market
from environment.exits import apply_exit_rules
from environment.ledger import (
    MONEY,
    RULE_BITS,
    Bars,
    EpisodeSummary,
    Ledger,
    entry_credited,
    realised_losses,
    reason_by_bits,
)
from environment.open_positions import OpenPositions
from environment.trading_rules import (
    Orders,
    choose_orders,
    cut_to_cash,
    position_features,
    target_price,
)
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_COEFFICIENT, MIN_TARGET_PERCENT

_DUST = 1e-6
"""Orders below this share of the initial capital are dropped: rounding leftovers of cash are no position."""


class Portfolio:
    """Accounts of many lanes that trade the same stocks, each over its own window of equally many days.

    Day d is a session; the state of day d holds everything up to its close. Orders decided then are filled at the open
    of d + 1, by default.

    With a volume cap an order buys at most that percent of the shares traded on the day of its fill, which the policy
    does not know: the cap is what the market could have filled. The rest lapses, and the next orders of the day may
    spend its cash. Sales are never cut: no position outlives its rules.

    With daily exits a position whose action has a coefficient below 1 is sold at the next fill, also in settlement; the
    proceeds can be spent by the next decision. Without a bar the sale lapses.

    A delisting loss applies to positions closed because their stock had no bar for `max_days_without_bar` sessions. One
    that the end of the episode closes earlier is sold at its last price: most short gaps are halts.

    A continuing account has no end: nothing is sold at the last close, all trading days are always left, and sizes
    refer to its equity, not to the initial capital.

    Raises:
        ConfigError: the rules cap orders by volume, but the bars have none.
    """

    def __init__(self, bars: Bars, rules: EnvironmentConfig, *, is_continuing: bool = False) -> None:
        bars.require_for(rules)
        self.bars, self.rules, self.is_continuing = bars, rules, is_continuing
        self.device = bars.quotes.device
        self.orders_per_day = min(rules.max_new_positions_per_day, bars.stocks)
        self.lanes = self.steps = 0
        self._lifetime = rules.longest_holding + rules.max_days_without_bar - 1
        self.slots = self._lifetime * self.orders_per_day
        self.ranked = self.slots + self.orders_per_day
        """Candidates to rank so that enough remain after held stocks are excluded."""
        self.has_fixed_shapes = self.device.type != "cpu"
        """Of a day's work, as graphs need them; read when lanes are allocated."""
        self._entry_age = 1 if rules.fill == "next_open" else 2
        """Sessions for which a position counts as held at the first close after its order: 1, or 2 where it is filled
        at the order's own close."""
        self._reason_of_bits = reason_by_bits(self.device)
        # Plain numbers would be copied to the device each time.
        self._none = torch.full((), bars.stocks, device=self.device)
        self._zero, self._one = torch.arange(2, dtype=torch.float64, device=self.device).unbind()

    @classmethod
    def on(
        cls,
        market: Market,
        rules: EnvironmentConfig,
        device: torch.device | str = "cpu",
        *,
        is_continuing: bool = False,
    ) -> Self:
        """Trade the investable stocks of a market."""
        bars = Bars.of(market.data_array, market.investable_columns, device, market.volume, rules)
        return cls(bars, rules, is_continuing=is_continuing)

    def reset(self, start: Tensor, *, steps: int | None = None, trading_steps: int | None = None) -> None:
        """Begin episodes with cash only.

        Args:
            start: (lanes,) day indices of the first observations, best on the CPU; day `start + steps` is the last one.
            steps: days of the episode; default: as the rules say.
            trading_steps: orders are accepted in this many first steps; default: as the rules say.
        """
        steps = self.rules.episode_steps if steps is None else steps
        trading_steps = self.rules.trading_days if trading_steps is None else trading_steps
        first, last = torch.stack(start.aminmax()).tolist()
        if first < 0 or last + steps >= self.bars.days or not steps > 0:
            raise ValueError(
                f"expected windows within days 0..{self.bars.days - 1}, got starts {first}..{last} with {steps} "
                "steps; choose windows that end before the data does"
            )
        if len(start) != self.lanes or steps > self.steps:
            self._allocate(len(start), steps)
        self.steps, self.trading_steps, self.step_index = steps, trading_steps, 0
        self.day.copy_(start)
        self.clear_history()
        self.cash.fill_(self.rules.initial_capital)
        self.equity.fill_(self.rules.initial_capital)
        self.peak.fill_(self.rules.initial_capital)
        self.is_locked.zero_()
        self.equity_curve.fill_(self.rules.initial_capital)

    def clear_history(self) -> None:
        """Clear the trades of the episodes; cash and equity stay."""
        self._ledger.clear()
        self._open.clear(self.step_index)
        self._realised_loss.zero_()
        self.had_position.zero_()

    def _allocate(self, lanes: int, steps: int) -> None:
        money = partial(torch.zeros, dtype=torch.float64, device=self.device)
        self.lanes = lanes
        self.day = torch.zeros(lanes, dtype=torch.int64, device=self.device)
        self._padding = min(self._lifetime, steps) * self.orders_per_day  # nothing was bought before the episode
        self._money = money(len(MONEY), self._padding + (steps - 1) * self.orders_per_day, lanes)
        self._ledger = Ledger.over(self._money)
        self._open = OpenPositions(
            self._ledger, self._money, self._padding, self.orders_per_day, is_fixed=self.has_fixed_shapes
        )
        self.cash, self.equity, self.peak = money(lanes), money(lanes), money(lanes)
        self.is_locked = torch.zeros(lanes, dtype=torch.bool, device=self.device)
        self._realised_loss = money(steps, lanes)
        self.equity_curve = money(steps + 1, lanes)
        self.had_position = torch.zeros(steps, lanes, dtype=torch.bool, device=self.device)

    @property
    def lane_size(self) -> dict[str, float]:
        """Factors of the bytes that an episode takes for each lane, about, see `require_memory`."""
        sessions, orders = self.rules.episode_steps + min(self._lifetime, self.rules.episode_steps), self.orders_per_day
        return {"sessions": sessions, "--env.max-new-positions-per-day": orders, "bytes": 130 + 60 / orders}

    @property
    def capital(self) -> Tensor | float:
        """Capital to which the sizes of orders refer at the last close; of a continuing account (lanes,)."""
        return self.equity if self.is_continuing else self.rules.initial_capital

    @property
    def is_trading(self) -> bool:
        """Tell whether orders are accepted now."""
        return self.step_index < self.trading_steps

    @property
    def is_done(self) -> bool:
        """Tell whether the episodes have ended."""
        return self.step_index >= self.steps

    def open_stocks(self) -> tuple[Tensor, Tensor]:
        """Return lane and stock of the open positions at the last close, (N,) each, see `OpenPositions`."""
        return self._open.lane, self._open["stock"]

    def _scatter(self, values: Tensor) -> Tensor:
        """Scatter (N, ...) values of open positions over (lanes, stocks, ...), 0 where none is held."""
        lane, stock = self.open_stocks()
        if self._open.is_fixed:
            stock = torch.where(self._open.is_open, stock, self._none)
        columns, rest = self.bars.stocks + 1, values.shape[1:]
        spread = values.new_zeros(self.lanes * columns, *rest).index_copy_(0, lane * columns + stock, values)
        return spread.view(self.lanes, columns, *rest)[:, :-1]

    def held(self) -> Tensor:
        """Tell which stocks (lanes, stocks) have an open position."""
        return self._scatter(torch.ones_like(self._open.lane, dtype=torch.bool))

    def candidates(self) -> Tensor:
        """Tell which stocks (lanes, stocks) have a bar today and no open position; none in a locked account."""
        candidates = self.bars.tradable.index_select(0, self.day) & ~self.held()
        return candidates & ~self.is_locked[:, None] if self.rules.drawdown_lock > 0 else candidates

    def position_features(self) -> Tensor:
        """Describe the open positions at the last close: (lanes, stocks, POSITION_FEATURES) float32, else 0."""
        columns = ("entry_price", "last_price", "target_price", "value", "days_without_bar")
        described = {name: self._open[name] for name in columns}
        steps_ago = (self._open.first_cell(self.step_index) - 1 - self._open.cell) // (self.orders_per_day * self.lanes)
        features = position_features(self.rules, sessions_held=steps_ago + self._entry_age, **described)
        return self._scatter(features)

    def account_features(self) -> Tensor:
        """Describe the accounts at the last close: (lanes, ACCOUNT_FEATURES, or one more with a lock) float32."""
        capital = self.capital
        left = 1.0 if self.is_continuing else (self.trading_steps - self.step_index) / self.rules.trading_days
        values = [self.cash / capital, (self.equity - self.cash) / capital, torch.full_like(self.cash, left)]
        if self.rules.drawdown_lock > 0:
            fallen = 100 * (1 - self.equity / self.peak) / self.rules.drawdown_lock
            values.append(torch.where(self.is_locked, self._one, fallen))
        return torch.stack(values, dim=-1).float()

    def select_orders(self, action: Tensor) -> Orders:
        """Choose the largest coefficients among the candidates, ties to the lower stock index.

        With daily exits positions with a coefficient below 1 are sold, and sale targets move.

        Args:
            action: (lanes, stocks, 2): coefficient and sale target in percent; clipped to their ranges.
        """
        coefficient = action[..., 0].clamp(0, MAX_COEFFICIENT)
        percent = action[..., 1].clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT)
        best, stock = choose_orders(coefficient, self.candidates(), self.orders_per_day)
        orders = Orders(stock.T, best.T.double(), percent.gather(1, stock).T.double())
        if self.rules.exits == "target":
            return orders
        held = self.open_stocks()
        return replace(orders, sold=coefficient[held] < MIN_COEFFICIENT, moved_target=percent[held].double())

    def planned_sales(self, sale_step: Tensor) -> Tensor:
        """Tell which open positions, (N,), a plan sells today, by its (steps, orders, lanes) sale steps."""
        return self._open.gather(sale_step) == self.step_index

    def step(self, action: Tensor) -> Tensor:
        """Decide at the close of today, live through tomorrow, end at tomorrow's close.

        Args:
            action: (lanes, stocks, 2), see `select_orders`; nothing is bought once the trading period is over.

        Returns:
            (lanes,) float64 reward: change of equity in percent of the initial capital, less penalties.
        """
        decides = self.is_trading or self.rules.exits == "daily"
        self.step_orders(self.select_orders(action) if decides else None)
        return self.reward

    def step_orders(self, orders: Orders | None) -> None:
        """Like `step`, with the orders already selected; None orders nothing."""
        if self.is_done:
            raise RuntimeError("the episode has ended; call reset first")
        purchases = orders if self.is_trading else None
        if orders is not None and orders.moved_target is not None:
            self._move_targets(orders.moved_target)
        sold = None if orders is None or orders.sold is None else orders.sold & self._open.is_open
        realised: Tensor | float = 0.0
        if self.rules.fill == "same_close":
            if purchases is not None:
                self._fill(purchases, self._quotes(self._bars_of(purchases.stock))[2])
            if sold is not None:
                realised, sold = self._sell_at_close(sold), None
        self.day += 1
        if purchases is not None and self.rules.fill == "next_open":
            self._fill(purchases, self._quotes(self._bars_of(purchases.stock))[0])
        sold = self._open.advance(self.step_index, sold)
        self._close_positions(sold, is_last=self.step_index == self.steps - 1 and not self.is_continuing)
        if self.rules.loss_multiplier > 1:
            self._realised_loss[self.step_index] += realised
        self.step_index += 1
        self.equity_curve[self.step_index] = self.equity
        if self.rules.drawdown_lock > 0:
            torch.maximum(self.peak, self.equity, out=self.peak)
            self.is_locked |= self.equity <= self.peak * (1 - self.rules.drawdown_lock / 100)

    def _move_targets(self, percent: Tensor) -> None:
        """Move the sale targets of open positions to (N,) percent."""
        self._open["target_percent"] = percent
        self._open["target_price"] = target_price(self._open["entry_price"], percent)

    def _sell_at_close(self, sold: Tensor) -> Tensor:
        """Sell (N,) open positions at today's close; return the (lanes,) losses that are realised."""
        positions, price = self._open, self._quotes(self._bars_held())[2]
        leaves = positions.is_open & sold & (price > 0)
        worth = torch.where(leaves, positions["shares"] * price, self._zero)
        losses = positions.by_lane(realised_losses(positions["value"], worth, leaves, self.rules))
        self.cash += positions.by_lane(worth) * self.rules.sale_factor
        positions.close(leaves, self.step_index, torch.full_like(leaves, RULE_BITS["sold"], dtype=torch.uint8))
        return losses

    def _bars_of(self, stock: Tensor) -> Tensor:
        """Return the rows of today's bars of (orders, lanes) stocks."""
        return self.day * self.bars.stocks + stock

    def _bars_held(self) -> Tensor:
        """Return the rows of today's bars of the (N,) open positions."""
        lane, stock = self.open_stocks()
        return self.day.index_select(0, lane) * self.bars.stocks + stock

    def _quotes(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Look up open, high and close, float64, in rows of the bars."""
        quotes = self.bars.quotes.index_select(0, row.flatten()).T
        open_, high, close = quotes.to(torch.float64, memory_format=torch.contiguous_format).view(3, *row.shape)
        return open_, high, close

    def _fill(self, orders: Orders, price: Tensor) -> None:
        """Buy in rank order with the cash of the last close; orders without a price, or of locked accounts, lapse."""
        stake = self.capital * self.rules.stake_percent / 100
        wanted = orders.coefficient * stake
        if self.rules.volume_cap > 0 and self.bars.volume is not None:
            turnover = self.bars.volume[self._bars_of(orders.stock)] * price
            wanted = torch.minimum(wanted, self.rules.volume_cap / 100 * turnover)
        factor, least = self.rules.purchase_factor, _DUST * self.capital
        is_possible = price > 0
        if self.rules.drawdown_lock > 0:
            is_possible = is_possible & ~self.is_locked
        wanted = torch.where(is_possible, wanted, self._zero) * factor
        paid = cut_to_cash(wanted, self.cash, least * factor)
        is_filled, value = paid > 0, paid / factor
        price = torch.where(is_filled, price, self._one)
        first = self._padding + (self.step_index - 1) * self.orders_per_day
        new, target = slice(first, first + self.orders_per_day), orders.target_percent
        bought = {
            "target_percent": target,
            "value": value,
            "shares": value / price,
            "entry_price": price,
            "target_price": target_price(price, target),
            "last_price": price,
        }
        self._money[:, new] = torch.stack([bought[name] for name in MONEY])
        self._ledger.stock[new] = orders.stock
        self._ledger.is_open[new] = is_filled

    def _close_positions(self, sold: Tensor | None, *, is_last: bool) -> None:
        """Close positions by today's bars, `sold` as decided, see `Orders`; mark the others."""
        positions, step, age = self._open, self.step_index, self._entry_age
        is_open, bars = positions.is_open, self._bars_held()
        self.had_position[step] = positions.has_position()
        low = self.bars.low if self.rules.stop_percent > 0 else None
        exits = apply_exit_rules(
            positions,
            self._quotes(bars),
            None if low is None else low.index_select(0, bars).double(),
            sold,
            self.rules,
            after_entry_day=positions.cell < positions.first_cell(step + age - 1),
            is_due=positions.cell < positions.first_cell(step + 1 + age - self.rules.longest_holding),
        )
        positions["days_without_bar"] = exits.days_without_bar
        leaves = is_open if is_last else is_open & (exits.passed > 0)
        positions["last_price"] = exits.price
        worth = positions["shares"] * exits.price
        sales, kept = positions.by_lane(worth * torch.stack((leaves, is_open ^ leaves)))
        self.cash += sales * self.rules.sale_factor
        torch.add(self.cash, kept, out=self.equity)
        if self.rules.loss_multiplier > 1:
            losses = realised_losses(positions["value"], worth, leaves, self.rules)
            self._realised_loss[step] = positions.by_lane(losses)
        positions.close(leaves, step + 1, exits.passed)

    @property
    def reward(self) -> Tensor:
        """Return the (lanes,) float64 reward of the last step, see `step`."""
        return self._rewards(self.step_index - 1)[0]

    @property
    def rewards(self) -> Tensor:
        """Return the (steps so far, lanes) float64 rewards, see `step`."""
        return self._rewards(0)

    def _rewards(self, first: int) -> Tensor:
        steps, percent = slice(first, self.step_index), 100 / self.rules.initial_capital
        reward = self.equity_curve[first : self.step_index + 1].diff(dim=0) * percent
        if self.rules.inaction_penalty > 0:
            reward -= self.rules.inaction_penalty * ~self.had_position[steps]
        if self.rules.loss_multiplier > 1:
            reward -= (self.rules.loss_multiplier - 1) * percent * self._realised_loss[steps]
        return reward

    def ledger(self) -> Ledger:
        """Return all orders of the episodes, (steps * orders, lanes) each, in the order they were placed."""
        self._open.write()
        first = self._padding - self.orders_per_day
        rows = slice(first, first + self.step_index * self.orders_per_day)
        ledger = Ledger(**{f.name: getattr(self._ledger, f.name)[rows] for f in fields(Ledger)})
        return replace(ledger, reason=self._reason_of_bits[ledger.reason.long()] * (ledger.exit_step > 0))

    def entry_credited_rewards(self) -> Tensor:
        """Credit each trade's whole result to the step that ordered it: (steps, lanes) float64 rewards.

        The sum over a finished episode equals the sum of the daily rewards; penalties stay where they fell.
        """
        return entry_credited(self.ledger(), self.rules, self.had_position[: self.step_index])

    def summary(self) -> EpisodeSummary:
        """Summarise the episodes so far."""
        return EpisodeSummary.of(self.ledger(), self.rules, self.had_position[: self.step_index], self.equity)
