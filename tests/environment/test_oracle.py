"""The oracle against hand-computed cases, one rule each, and against identities on random markets."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.environment.oracle import Bar, Order, Result, Volumes, last_close, simulate
from tests.market_cases import (
    MarketCase,
    market_cases,
    random_orders,
    random_panel,
    to_bars,
    to_volumes,
)
from utils.config.trader import EnvironmentConfig

Day = float | Bar | None
RULES = EnvironmentConfig(exits="target", initial_capital=1000.0, stake_percent=10.0, cost_bps=0.0, slippage_bps=0.0)


def play(
    *stocks: list[Day],
    orders: Mapping[int, Mapping[int, Order]],
    trading_end: int | None = None,
    start: int = 0,
    volumes: Volumes = (),
    **rules: Any,
) -> Result:
    """The episode from `start` to the last bar; a number is a bar that stands still. Capital 1000, stake 100, free."""
    days = len(stocks[0])
    bars = [[_bar(stock[day]) for stock in stocks] for day in range(days)]
    by_step = [orders.get(step, {}) for step in range(days - 1 - start)]
    last = days - 1 if trading_end is None else trading_end
    chosen = replace(RULES, **rules)
    return simulate(bars, by_step, start=start, end=days - 1, trading_end=last, rules=chosen, volumes=volumes)


def _bar(day: Day) -> Bar | None:
    return (day, day, day, day) if isinstance(day, int | float) else day


def exits(result: Result) -> list[tuple[int, float, str]]:
    return [(trade.exit_day, trade.exit_price, trade.reason) for trade in result.trades]


def stocks_bought(result: Result) -> list[int]:
    return [trade.stock for trade in result.trades]


# Fills and equity


def test_order_fills_at_the_next_open_and_is_marked_at_that_close() -> None:
    result = play([7, (8, 9, 7, 9), 9], orders={0: {0: (1, 50)}})
    (trade,) = result.trades
    # 100 buys 12.5 shares at 8; at the close of 9 they are worth 112.5.
    assert (trade.order_day, trade.entry_day, trade.entry_price, trade.shares) == (0, 1, 8, 12.5)
    assert (trade.value, trade.target_price, trade.profit, trade.costs) == (100, 12, 12.5, 0)
    assert result.cash == [1000, 900, 1012.5]
    assert result.equity == [1000, 1012.5, 1012.5]
    assert result.rewards == [1.25, 0]
    assert result.fitness == 1.25


def test_same_close_fills_at_the_close_of_the_decision() -> None:
    result = play([(7, 20, 7, 8), 10, 10], orders={0: {0: (1, 50)}}, fill="same_close", cost_bps=100.0)
    (trade,) = result.trades
    # The high of 20 came before the fill. Cost of 1 on entry, 1.25 on proceeds of 125; both fall after equity[0].
    assert (trade.entry_day, trade.entry_price, trade.exit_day, trade.reason) == (0, 8, 2, "episode_end")
    assert result.equity == pytest.approx([1000, 1024, 1022.75])
    assert result.cash == pytest.approx([1000, 899, 1022.75])
    assert trade.profit == 25
    assert trade.costs == pytest.approx(2.25)


def test_same_close_counts_the_day_of_the_decision_as_the_first_held() -> None:
    orders = {0: {0: (1, 50)}}
    assert exits(play([8, 9, 10, 11], orders=orders, fill="same_close", max_holding_days=2)) == [(1, 9, "holding")]
    assert exits(play([8, 9, 10, 11], orders=orders, fill="same_close", max_holding_days=1)) == [(1, 9, "holding")]
    assert exits(play([8, 9, 12, 11], orders=orders, fill="same_close")) == [(2, 12, "target_open")]


def test_same_close_without_a_later_bar_leaves_at_the_close_of_the_entry() -> None:
    result = play([(7, 9, 7, 8), None, None, 9], orders={0: {0: (1, 50)}}, fill="same_close", max_days_without_bar=2)
    assert exits(result) == [(2, 8, "no_bar")]
    assert result.equity == [1000, 1000, 1000, 1000]


# Candidates


@pytest.mark.parametrize(("coefficient", "value"), [(0.999, None), (1.0, 100), (2.5, 250), (10, 1000), (12, 1000)])
def test_coefficient_sizes_the_order_from_1_to_10(coefficient: float, value: float | None) -> None:
    trades = play([8, 8, 8], orders={0: {0: (coefficient, 50)}}).trades
    assert [trade.value for trade in trades] == ([] if value is None else [value])


@pytest.mark.parametrize(("percent", "price"), [(-5, 11), (0, 11), (25, 12.5), (50, 15), (80, 15)])
def test_target_is_clipped_to_10_and_50_percent_of_the_fill_price(percent: float, price: float) -> None:
    (trade,) = play([7, 10, 10], orders={0: {0: (1, percent)}}).trades
    assert trade.target_price == pytest.approx(price)


def test_largest_coefficients_win_and_ties_go_to_the_lower_stock() -> None:
    orders = {0: {3: (2, 50), 0: (1.5, 50), 2: (2, 50), 1: (3, 50)}}
    flat: list[Day] = [8, 8, 8]
    assert stocks_bought(play(flat, flat, flat, flat, orders=orders)) == [1]
    assert stocks_bought(play(flat, flat, flat, flat, orders=orders, max_new_positions_per_day=3)) == [1, 2, 3]


def test_stock_without_a_bar_at_the_decision_is_no_candidate() -> None:
    assert stocks_bought(play([None, 8, 8], [8, 8, 8], orders={0: {0: (2, 50), 1: (1, 50)}})) == [1]


def test_open_position_blocks_its_stock_even_if_it_exits_the_next_day() -> None:
    every_day = {step: {0: (1, 50)} for step in range(6)}
    result = play([8] * 7, orders=every_day, max_holding_days=2)
    # Bought on 1, sold at the close of 2. The decision of day 1 is blocked, that of day 2 buys again on 3.
    assert [(trade.order_day, trade.entry_day, trade.exit_day) for trade in result.trades] == [
        (0, 1, 2),
        (2, 3, 4),
        (4, 5, 6),
    ]


def test_orders_stop_at_the_end_of_trading() -> None:
    every_day = {step: {0: (1, 50)} for step in range(5)}
    result = play([8] * 6, orders=every_day, max_holding_days=1, trading_end=2)
    assert [trade.order_day for trade in result.trades] == [0, 1]


# Cash


def test_orders_share_the_cash_in_rank_order_with_their_costs() -> None:
    orders = {0: {0: (7, 50), 1: (6, 50), 2: (5, 50)}}
    result = play([8, 8], [8, 8], [8, 8], orders=orders, cost_bps=60.0, slippage_bps=40.0, max_new_positions_per_day=3)
    # 700 and its cost of 7 leave 293, which pay 290.099 and 1 percent of it; the third finds nothing.
    assert [trade.value for trade in result.trades] == pytest.approx([700, 293 / 1.01])
    assert [(trade.stock, trade.rank) for trade in result.trades] == [(0, 0), (1, 1)]


def test_order_below_a_millionth_of_the_capital_is_dropped() -> None:
    # The first order leaves 0.0012 or 0.0008 of the 1000 to the second.
    kept = play([8, 8], [8, 8], orders={0: {0: (9.999988, 50), 1: (2, 50)}}, max_new_positions_per_day=2)
    assert [trade.value for trade in kept.trades] == pytest.approx([999.9988, 0.0012])
    dropped = play([8, 8], [8, 8], orders={0: {0: (9.999992, 50), 1: (2, 50)}}, max_new_positions_per_day=2)
    assert stocks_bought(dropped) == [0]


def test_lapsed_order_spends_nothing_and_is_not_replaced() -> None:
    orders = {0: {0: (10, 50), 1: (9, 50), 2: (8, 50)}}
    result = play([8, None], [8, 8], [8, 8], orders=orders, max_new_positions_per_day=2)
    assert [(trade.stock, trade.value, trade.rank) for trade in result.trades] == [(1, 900, 1)]


@pytest.mark.parametrize(
    ("fill", "shares", "value"),
    [
        ("next_open", 100.0, 80),  # a tenth of 100 shares at the open of 8
        ("next_open", 200.0, 100),
        ("next_open", None, 100),
        ("next_open", 0.0, None),
        ("same_close", 100.0, 50),  # those of the day of the decision, at its close of 5
    ],
)
def test_order_is_cut_to_a_share_of_the_shares_traded(fill: str, shares: float | None, value: float | None) -> None:
    volumes = [[shares if fill == "same_close" else 1.0], [1.0 if fill == "same_close" else shares], [1.0]]
    result = play([5, (8, 11, 8, 10), 10], orders={0: {0: (1, 50)}}, volumes=volumes, volume_cap=10.0, fill=fill)
    assert [trade.value for trade in result.trades] == ([] if value is None else [value])
    # All of it is sold, although a single share is traded that day.
    assert result.cash[-1] == result.equity[-1]


def test_what_the_volume_cuts_off_stays_cash_for_the_next_order() -> None:
    orders = {0: {0: (10, 50), 1: (9.5, 50)}}
    volumes = [[1.0, 1e9]] * 2
    result = play([8, 8], [8, 8], orders=orders, volumes=volumes, volume_cap=50.0, max_new_positions_per_day=2)
    assert [trade.value for trade in result.trades] == [4, 950]


def test_proceeds_can_be_spent_by_the_decision_at_the_close_of_the_exit() -> None:
    orders = {0: {0: (10, 50)}, 1: {1: (10, 50)}, 2: {1: (5, 50)}}
    result = play([8, 8, 16, 16], [8, 8, 8, 8], orders=orders)
    # All cash is in stock 0 on day 1, so that decision is dropped; 2000 come in on day 2 at the open of 16.
    assert [(trade.stock, trade.order_day, trade.value) for trade in result.trades] == [(0, 0, 1000), (1, 2, 500)]
    assert result.cash == [1000, 0, 2000, 2000]


def test_costs_are_taken_from_the_value_of_both_legs() -> None:
    result = play([8, 8, 10], orders={0: {0: (4, 50)}}, cost_bps=30.0, slippage_bps=20.0)
    (trade,) = result.trades
    # 0.5 percent of 400 and of 500.
    assert trade.profit == 100
    assert trade.costs == pytest.approx(4.5)
    assert result.equity == pytest.approx([1000, 998, 1095.5])
    assert result.total_costs == pytest.approx(4.5)


# Exits; an order at step 0 is filled at 8 on day 1 and has its target at 12


STOP = {"stop_percent": 25.0}  # at 6
HALT, LOST = {"max_days_without_bar": 3}, {"max_days_without_bar": 3, "delisting_loss": 30.0}


def hold(days: int) -> dict[str, Any]:
    return {"max_holding_days": days}


@pytest.mark.parametrize(
    ("rules", "later", "expected"),
    [
        ({}, [(8, 11, 7, 9), 9, 9], (3, 9, "episode_end")),
        ({}, [(8, 12, 7, 9), 9, 9], (1, 12, "target")),  # on the entry day, after the fill
        ({}, [8, (9, 13, 9, 9), 9], (2, 12, "target")),
        ({}, [8, (12, 13, 9, 9), 9], (2, 12, "target_open")),
        ({}, [8, (14, 15, 9, 9), 9], (2, 14, "target_open")),
        ({}, [8, None, (13, 13, 9, 9)], (3, 13, "target_open")),
        ({}, [8, 9, (9, 12, 9, 9)], (3, 12, "target")),  # before the end of the episode
        (STOP, [(8, 9, 6.1, 9), 9, 9], (3, 9, "episode_end")),
        (STOP, [(8, 9, 6, 9), 9, 9], (1, 6, "stop")),  # on the entry day, after the fill
        (STOP, [8, (7, 9, 5, 9), 9], (2, 6, "stop")),
        (STOP, [8, (6, 9, 6, 9), 9], (2, 6, "stop_open")),
        (STOP, [8, (5, 13, 4, 9), 9], (2, 5, "stop_open")),
        (STOP, [8, (8, 13, 5, 9), 9], (2, 6, "stop")),  # nobody knows which came first
        (STOP, [(8, 13, 5, 9), 9, 9], (1, 6, "stop")),
        (STOP, [8, (13, 14, 5, 9), 9], (2, 13, "target_open")),
        (STOP, [8, None, (5, 5, 5, 5)], (3, 5, "stop_open")),
        (STOP, [8, 9, (8, 8, 6, 8)], (3, 6, "stop")),  # before the end of the episode
        (hold(1), [8, 9, 10], (1, 8, "holding")),
        (hold(2), [8, 9, 10, 11], (2, 9, "holding")),
        (hold(2), [8, (9, 13, 9, 9), 10], (2, 12, "target")),  # the target comes before the close
        (hold(3), [8, None, 10, 11], (3, 10, "holding")),  # sessions without a bar count
        (hold(3), [8, 9, None, 11, 10], (4, 11, "holding")),  # overdue: the close of the next bar
        (hold(3), [8, 9, None, (9, 13, 9, 9), 10], (4, 12, "target")),  # or its target
        (hold(3), [8, 9, None, (13, 13, 9, 9), 10], (4, 13, "target_open")),
        (hold(3), [8, 9, 10], (3, 10, "holding")),  # on the last day of the episode
        (hold(4), [8, 9, 10], (3, 10, "episode_end")),
        (HALT, [8, 9, None, None, None, 7], (5, 9, "no_bar")),  # the third day without a bar, at the last close
        (HALT, [8, None, None, 9, None, None, 7], (7, 7, "episode_end")),  # a bar resets the count
        (HALT, [8, 9, None, None], (4, 9, "episode_end")),  # last price at the end
        (HALT, [8, 9, None, None, None], (5, 9, "no_bar")),  # on the last day
        (LOST, [8, 10, None, None, None], (5, 7, "no_bar")),  # 30 percent below its last close, on the last day too
        (LOST, [8, 10, None, None, None, 12], (5, 7, "no_bar")),  # it was a halt, but nobody knew
        (LOST, [8, 10, None, None], (4, 10, "episode_end")),  # not long enough to tell
        (LOST, [8, 10, None, None, 9], (5, 9, "episode_end")),
    ],
)
def test_exits(rules: dict[str, Any], later: list[Day], expected: tuple[int, float, str]) -> None:
    result = play([5, *later], orders={0: {0: (1, 50)}}, **rules)
    assert exits(result) == [expected]
    assert result.equity[-1] == pytest.approx(900 + 12.5 * expected[1])


def test_same_close_spares_a_position_the_low_of_its_entry_day() -> None:
    orders = {0: {0: (1, 50)}}
    play_close = {"fill": "same_close", "stop_percent": 25.0}
    assert exits(play([(8, 8, 1, 8), 9, 9], orders=orders, **play_close)) == [(2, 9, "episode_end")]
    assert exits(play([8, (5, 9, 5, 9), 9], orders=orders, **play_close)) == [(1, 5, "stop_open")]


def test_position_without_a_bar_is_marked_at_its_last_close() -> None:
    result = play([5, (8, 11, 8, 10), None, None, 6], orders={0: {0: (8, 50)}})
    assert result.equity == [1000, 1200, 1200, 1200, 800]
    assert result.cash == [1000, 200, 200, 200, 800]


# Daily exits


@pytest.mark.parametrize(
    ("later", "orders", "expected"),
    [
        ([8, 9, 10], {}, (2, 9, "sold")),  # without an order, at the open after the entry day
        ([8, 9, 10], {1: (0.999, 50)}, (2, 9, "sold")),
        ([8, 9, 10], {1: (1, 50)}, (3, 10, "sold")),
        ([8, 9, 10], {1: (1, 50), 2: (7, 50)}, (3, 10, "episode_end")),
        ([8, (9, 9.5, 9, 9), 10], {1: (1, 10)}, (2, 9, "target_open")),  # the target moved to 8.8
        ([8, (8, 9.5, 8, 9), 10], {1: (1, 10)}, (2, 8.8, "target")),
        ([8, (14, 15, 13, 14), 10], {1: (0, 50)}, (2, 14, "sold")),
        ([8, None, 10], {1: (0, 50), 2: (1, 50)}, (3, 10, "episode_end")),  # the sale lapses, and nobody repeats it
        ([8, None, 10], {1: (0, 50), 2: (0, 50)}, (3, 10, "sold")),
    ],
)
def test_daily_decisions_sell_keep_and_move_the_target(
    later: list[Day], orders: dict[int, Order], expected: tuple[int, float, str]
) -> None:
    by_day = {0: {0: (1, 50)}} | {day: {0: order} for day, order in orders.items()}
    result = play([5, *later], orders=by_day, exits="daily", trading_end=1)
    assert exits(result) == [(expected[0], pytest.approx(expected[1]), expected[2])]
    assert result.equity[-1] == pytest.approx(900 + 12.5 * expected[1])


def test_sale_at_the_close_of_its_decision_settles_with_the_next_close() -> None:
    orders = {0: {0: (10, 50)}, 1: {0: (0, 50), 1: (10, 50)}, 2: {1: (10, 50)}, 3: {1: (1, 50)}}
    result = play([8, 10, 12, 8, 8], [8, 8, 8, 8, 8], orders=orders, exits="daily", fill="same_close")
    # Sold at 10 on day 1; nothing could be bought that day, for its 1250 come in with the close of day 2.
    assert exits(result) == [(1, 10, "sold"), (4, 8, "episode_end")]
    assert [trade.order_day for trade in result.trades] == [0, 2]
    assert result.cash == [1000, 0, 1250, 250, 1250]
    assert result.equity == [1000, 1250, 1250, 1250, 1250]


# Rewards and counts


def test_inaction_penalty_spares_days_on_which_a_position_opened_closed_or_stayed() -> None:
    orders = {1: {0: (1, 50)}}
    result = play([8] * 6, orders=orders, max_holding_days=2, inaction_penalty=0.25)
    # Day 1 idle, bought on 2, sold at the close of 3, days 4 and 5 idle.
    assert result.rewards == [-0.25, 0, 0, -0.25, -0.25]
    assert (result.days_with_positions, result.days_without_positions) == (2, 3)
    assert (result.inaction_penalties, result.fitness) == (0.75, -0.75)


def test_day_of_a_position_that_opens_and_closes_at_once_is_active() -> None:
    result = play([8, 8, 8], orders={0: {0: (1, 50)}}, max_holding_days=1, inaction_penalty=0.25)
    assert result.rewards == [0, -0.25]


def test_same_close_position_is_carried_into_the_next_day() -> None:
    orders = {1: {0: (1, 50)}}
    result = play([8, 8, 8, 8], orders=orders, fill="same_close", max_holding_days=1, inaction_penalty=0.25)
    assert result.rewards == [-0.25, 0, -0.25]


def test_loss_multiplier_weighs_realised_losses_after_costs() -> None:
    orders = {0: {0: (2, 50), 1: (1, 50)}}
    rules: dict[str, Any] = {"max_holding_days": 2, "max_new_positions_per_day": 2, "loss_multiplier": 1.5}
    result = play([8, 8, 6, 6], [8, 8, 9, 9], orders=orders, **rules)
    # On day 2 the first loses 50 of 200 and the second wins 12.5 of 100: -37.5 in money, 25 more for the loss.
    assert result.rewards == pytest.approx([0, -3.75 - 2.5, 0])
    assert (result.wins, result.losses) == (1, 1)
    assert result.loss_penalties == pytest.approx(2.5)
    flat = play([8, 8, 8, 8], orders={0: {0: (1, 50)}}, cost_bps=100.0, **rules)
    # A price that stands still loses the costs of both legs, 2, and 1 more.
    assert flat.rewards == pytest.approx([-0.1, -0.1 - 0.1, 0])
    assert (flat.wins, flat.losses) == (0, 1)


def test_trade_that_does_not_earn_more_than_its_costs_is_a_loss() -> None:
    even = play([8, 8, 8], orders={0: {0: (1, 50)}})
    assert (even.wins, even.losses) == (0, 1)
    # 100 becomes 101; 1 percent of both legs is 2.01.
    small = play([8, 8, 8.08], orders={0: {0: (1, 50)}}, cost_bps=100.0, loss_multiplier=2.0)
    assert (small.wins, small.losses) == (0, 1)
    assert small.loss_penalties == pytest.approx(0.101)


def test_episode_without_a_trade_pays_the_zero_trades_penalty_once() -> None:
    assert play([8, 8, 8], orders={}, zero_trades_penalty=2.0).fitness == -2
    # A lapsed order is no trade.
    assert play([8, None, 8], orders={0: {0: (1, 50)}}, zero_trades_penalty=2.0).fitness == -2
    assert play([8, 8, 8], orders={0: {0: (1, 50)}}, zero_trades_penalty=2.0).fitness == 0


# Identities on random markets


@settings(max_examples=40, deadline=None)
@given(market_cases())
def test_money_is_conserved(case: MarketCase) -> None:
    result, capital = case.expected, case.rules.initial_capital
    bars = to_bars(case.data)
    assert len(result.equity) == len(result.cash) == len(result.rewards) + 1 == case.end - case.start + 1
    for day, (cash, equity) in enumerate(zip(result.cash, result.equity, strict=True), case.start):
        # Under same_close, a day's equity comes before that day's fills.
        held = [trade for trade in result.trades if trade.order_day < day < trade.settled_day]
        positions = sum(trade.shares * last_close(bars, trade.stock, day) for trade in held)
        assert cash + positions == pytest.approx(equity, rel=1e-9)
        assert cash >= -1e-9 * capital
    earned = sum(trade.profit - trade.costs for trade in result.trades)
    assert earned == pytest.approx(result.equity[-1] - capital, abs=1e-9 * max(capital, result.equity[-1]))
    assert result.cash[-1] == result.equity[-1]


@settings(max_examples=40, deadline=None)
@given(market_cases())
def test_every_trade_obeys_the_rules(case: MarketCase) -> None:
    trades, rules, bars, volumes = case.expected.trades, case.rules, to_bars(case.data), to_volumes(case.volume)
    places = [(trade.order_day, trade.rank) for trade in trades]
    assert places == sorted(set(places))
    for trade in trades:
        assert case.start <= trade.order_day < case.trading_end
        assert 0 <= trade.rank < rules.max_new_positions_per_day
        assert trade.order_day <= trade.entry_day <= trade.exit_day <= case.end
        assert bars[trade.order_day][trade.stock] and bars[trade.entry_day][trade.stock]
        assert 1e-6 <= trade.value / rules.initial_capital <= rules.stake_percent / 10 * (1 + 1e-9)
        if rules.volume_cap > 0 and (traded := volumes[trade.entry_day][trade.stock]) is not None:
            assert trade.shares <= rules.volume_cap / 100 * traded * (1 + 1e-9)
        exit_bar = bars[trade.exit_day][trade.stock]
        if trade.reason in ("no_bar", "episode_end"):
            left = 1 - rules.delisting_loss / 100 if trade.reason == "no_bar" else 1
            assert trade.exit_price == pytest.approx(left * last_close(bars, trade.stock, trade.exit_day))
            assert trade.reason == "episode_end" or exit_bar is None
        else:
            assert exit_bar is not None
            assert exit_bar[2] <= trade.exit_price <= exit_bar[1]
        assert (trade.exit_price >= trade.target_price) or trade.reason not in ("target", "target_open")
        stop = trade.entry_price * (1 - rules.stop_percent / 100)
        assert (trade.exit_price <= stop) or trade.reason not in ("stop", "stop_open")
    for stock in sorted({trade.stock for trade in trades}):
        spans = [(trade.order_day, trade.exit_day) for trade in trades if trade.stock == stock]
        assert all(after[0] >= before[1] for before, after in pairwise(spans))


@settings(max_examples=60, deadline=None)
@given(market_cases(), st.data())
def test_the_past_does_not_depend_on_the_future(case: MarketCase, draw: st.DataObject) -> None:
    day = draw.draw(st.integers(case.start, case.end - 1))
    data = case.data.copy()
    data[day + 1 :] = random_panel(np.random.default_rng(0), len(data), data.shape[1])[day + 1 :]
    before, after = case.expected, replace(case, data=data).expected
    steps = day - case.start
    # To rounding: the sums run over all trades, those of the future included.
    assert before.equity[: steps + 1] == pytest.approx(after.equity[: steps + 1], rel=1e-12)
    assert before.rewards[:steps] == pytest.approx(after.rewards[:steps], abs=1e-9)
    closed = [[trade for trade in result.trades if trade.exit_day <= day] for result in (before, after)]
    assert closed[0] == closed[1]


@settings(max_examples=40, deadline=None)
@given(market_cases(), st.integers(-3, 3))
def test_profits_do_not_depend_on_the_unit_of_a_price(case: MarketCase, power: int) -> None:
    data = case.data.copy()
    data[:, 0] *= np.float32(2.0) ** power  # exact in binary
    volume = None if case.volume is None else case.volume.copy()
    if volume is not None:  # a split: as much money is traded as before
        volume[:, 0] /= np.float32(2.0) ** power
    assert replace(case, data=data, volume=volume).expected.equity == case.expected.equity


# The generator


def test_random_markets_hold_every_kind_of_exit_and_trouble() -> None:
    reasons: Counter[tuple[str, str]] = Counter()
    entry_day_targets = exact_targets = lapsed = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        data = random_panel(rng, 100, 20, tick=0.125)
        orders = random_orders(rng, 99, 20)
        for fill in ("next_open", "same_close"):
            rules = EnvironmentConfig(max_new_positions_per_day=2, fill=fill, stop_percent=15.0, exits="target")
            result = MarketCase(data, orders, 0, 99, 85, rules).expected
            reasons.update((fill, trade.reason) for trade in result.trades)
            entry_day_targets += sum(trade.entry_day == trade.exit_day for trade in result.trades)
            bars = to_bars(data)
            highs = [(bar[1], trade) for trade in result.trades if (bar := bars[trade.exit_day][trade.stock])]
            exact_targets += sum(high == trade.target_price for high, trade in highs)
            ranks = Counter(trade.order_day for trade in result.trades)
            lapsed += sum(trade.rank == 1 and ranks[trade.order_day] == 1 for trade in result.trades)
    every = [
        (fill, reason)
        for fill in ("next_open", "same_close")
        for reason in ("target_open", "stop_open", "stop", "target", "holding", "no_bar", "episode_end")
    ]
    assert min(reasons[kind] for kind in every) >= 2, reasons
    assert min(entry_day_targets, exact_targets, lapsed) >= 1
