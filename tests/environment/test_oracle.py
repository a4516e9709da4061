"""The oracle against hand-computed cases, one rule each, and against identities on random markets."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.environment.oracle import Bar, Order, Result, Volumes, last_close, simulate
from tests.market_cases import MarketCase, market_cases, random_orders, random_panel, to_bars
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


Stocks = tuple[list[Day], ...]
Orders = dict[int, dict[int, Order]]
ONE, TWO, FREE = {"max_holding_days": 1}, {"max_holding_days": 2}, {"inaction_penalty": 0.25}
CLOSE, MANY = {"fill": "same_close"}, {"max_new_positions_per_day": 3}
FIRST, EVERY = {0: {0: (1, 50)}}, {step: {0: (1, 50)} for step in range(6)}
FLAT: list[Day] = [8, 8, 8]
CASES: dict[str, tuple[Stocks, Orders, dict[str, Any], dict[str, Any]]] = {
    # 100 buys 12.5 shares at 8; at the close of 9 they are worth 112.5.
    "filled at the next open, marked at that close": (
        *(([7, (8, 9, 7, 9), 9],), FIRST, {}),
        {"order_day": [0], "entry_day": [1], "entry_price": [8], "shares": [12.5], "value": [100], "target_price": [12]}
        | {"profit": [12.5], "costs": [0], "cash": [1000, 900, 1012.5], "equity": [1000, 1012.5, 1012.5]}
        | {"rewards": [1.25, 0], "fitness": 1.25},
    ),
    # The high of 20 came before the fill. Cost of 1 on entry, 1.25 on proceeds of 125; both fall after equity[0].
    "filled at the close of the decision": (
        *(([(7, 20, 7, 8), 10, 10],), FIRST, {**CLOSE, "cost_bps": 100.0}),
        {"entry_day": [0], "entry_price": [8], "exit_day": [2], "profit": [25], "costs": [2.25]}
        | {"equity": [1000, 1024, 1022.75], "cash": [1000, 899, 1022.75]},
    ),
    "whose day is the first held": (([8, 9, 10, 11],), FIRST, CLOSE | TWO, {"exit_day": [1], "exit_price": [9]}),
    "and examined from the next on": (([8, 9, 10, 11],), FIRST, CLOSE | ONE, {"exit_day": [1], "exit_price": [9]}),
    "an open at the target": (([8, 9, 12, 11],), FIRST, CLOSE, {"exit_price": [12], "reason": ["target_open"]}),
    "no later bar: the close of the entry": (
        *(([(7, 9, 7, 8), None, None, 9],), FIRST, {**CLOSE, "max_days_without_bar": 2}),
        {"exit_day": [2], "exit_price": [8], "reason": ["no_bar"], "equity": [1000] * 4},
    ),
    **{
        f"a coefficient of {size}": ((FLAT,), {0: {0: (size, 50)}}, {}, {"value": value})
        for size, value in ((0.999, []), (1.0, [100]), (2.5, [250]), (10, [1000]), (12, [1000]))
    },
    **{
        f"a target of {percent}": (([7, 10, 10],), {0: {0: (1, percent)}}, {}, {"target_price": [price]})
        for percent, price in ((-5, 11), (0, 11), (25, 12.5), (50, 15), (80, 15))
    },
    **{
        f"the largest {count}, ties to the lower stock": (
            *((FLAT,) * 4, {0: {3: (2, 50), 0: (1.5, 50), 2: (2, 50), 1: (3, 50)}}),
            *({"max_new_positions_per_day": count}, {"stock": bought}),
        )
        for count, bought in ((1, [1]), (3, [1, 2, 3]))
    },
    "no candidate without a bar": (([None, 8, 8], FLAT), {0: {0: (2, 50), 1: (1, 50)}}, {}, {"stock": [1]}),
    # Bought on 1, sold at the close of 2. The decision of day 1 is blocked, that of day 2 buys again on 3.
    "a position blocks its stock": (
        *(([8] * 7,), EVERY, TWO),
        {"order_day": [0, 2, 4], "entry_day": [1, 3, 5], "exit_day": [2, 4, 6]},
    ),
    "the end of trading": (([8] * 6,), EVERY, {**ONE, "trading_end": 2}, {"order_day": [0, 1]}),
    # 700 and its cost of 7 leave 293, which pay 290.099 and 1 percent of it; the third finds nothing.
    "cash by rank": (
        *(([8, 8],) * 3, {0: {0: (7, 50), 1: (6, 50), 2: (5, 50)}}, {**MANY, "cost_bps": 60.0, "slippage_bps": 40.0}),
        {"value": [700, 293 / 1.01], "stock": [0, 1], "rank": [0, 1]},
    ),
    # The first order leaves 0.0012 or 0.0008 of the 1000 to the second.
    "a millionth is kept": (([8, 8],) * 2, {0: {0: (9.999988, 50), 1: (2, 50)}}, MANY, {"value": [999.9988, 0.0012]}),
    "less is dropped": (([8, 8],) * 2, {0: {0: (9.999992, 50), 1: (2, 50)}}, MANY, {"stock": [0]}),
    "a lapsed order spends nothing and is not replaced": (
        *(([8, None], [8, 8], [8, 8]), {0: {0: (10, 50), 1: (9, 50), 2: (8, 50)}}, {"max_new_positions_per_day": 2}),
        {"stock": [1], "value": [900], "rank": [1]},
    ),
    # A tenth of the shares traded at the open of 8, or at the close of 5 of the decision; all of it is sold later.
    **{
        f"{shares} shares traded, {fill}": (
            *(([5, (8, 11, 8, 10), 10],), FIRST),
            {"volumes": [[traded if day == (fill == "next_open") else 1.0] for day in range(3)], "volume_cap": 10.0}
            | {"fill": fill},
            {"value": value, "exit_day": leaves},
        )
        for fill, shares, traded, value, leaves in (
            ("next_open", "few", 100.0, [80], [2]),
            ("next_open", "many", 200.0, [100], [2]),
            ("next_open", "unknown", None, [100], [2]),
            ("next_open", "no", 0.0, [], []),
            ("same_close", "few", 100.0, [50], [1]),
        )
    },
    "what the volume cuts off stays cash": (
        *(([8, 8],) * 2, {0: {0: (10, 50), 1: (9.5, 50)}}),
        *({**MANY, "volumes": [[1.0, 1e9]] * 2, "volume_cap": 50.0}, {"value": [4, 950]}),
    ),
    # All cash is in stock 0 on day 1, so that decision is dropped; 2000 come in on day 2 at the open of 16.
    "proceeds are spent at the close of the exit": (
        *(([8, 8, 16, 16], [8] * 4), {0: {0: (10, 50)}, 1: {1: (10, 50)}, 2: {1: (5, 50)}}, {}),
        {"stock": [0, 1], "order_day": [0, 2], "value": [1000, 500], "cash": [1000, 0, 2000, 2000]},
    ),
    # 0.5 percent of 400 and of 500.
    "costs of both legs": (
        *(([8, 8, 10],), {0: {0: (4, 50)}}, {"cost_bps": 30.0, "slippage_bps": 20.0}),
        {"profit": [100], "costs": [4.5], "total_costs": 4.5, "equity": [1000, 998, 1095.5]},
    ),
    "the low of the entry day came before": (
        *(([(8, 8, 1, 8), 9, 9],), FIRST, {**CLOSE, "stop_percent": 25.0}, {"exit_day": [2], "exit_price": [9]}),
    ),
    "an open below the stop": (
        *(([8, (5, 9, 5, 9), 9],), FIRST, {**CLOSE, "stop_percent": 25.0}),
        {"exit_day": [1], "exit_price": [5], "reason": ["stop_open"]},
    ),
    "without a bar at the last close": (
        *(([5, (8, 11, 8, 10), None, None, 6],), {0: {0: (8, 50)}}, {}),
        {"equity": [1000, 1200, 1200, 1200, 800], "cash": [1000, 200, 200, 200, 800]},
    ),
    # Sold at 10 on day 1; nothing could be bought that day, for its 1250 come in with the close of day 2.
    "a sale at the close settles with the next": (
        *(([8, 10, 12, 8, 8], [8] * 5),),
        {0: {0: (10, 50)}, 1: {0: (0, 50), 1: (10, 50)}, 2: {1: (10, 50)}, 3: {1: (1, 50)}},
        {**CLOSE, "exits": "daily"},
        {"exit_day": [1, 4], "exit_price": [10, 8], "reason": ["sold", "episode_end"], "order_day": [0, 2]}
        | {"cash": [1000, 0, 1250, 250, 1250], "equity": [1000, 1250, 1250, 1250, 1250]},
    ),
    # Day 1 idle, bought on 2, sold at the close of 3, days 4 and 5 idle.
    "idle days are penalised": (
        *(([8] * 6,), {1: {0: (1, 50)}}, TWO | FREE, {"rewards": [-0.25, 0, 0, -0.25, -0.25], "fitness": -0.75}),
    ),
    "and counted": (
        *(([8] * 6,), {1: {0: (1, 50)}}, TWO | FREE),
        {"days_with_positions": 2, "days_without_positions": 3, "inaction_penalties": 0.75},
    ),
    "a position of one day is active": ((FLAT,), FIRST, ONE | FREE, {"rewards": [0, -0.25]}),
    "carried into the next day": (([8] * 4,), {1: {0: (1, 50)}}, CLOSE | ONE | FREE, {"rewards": [-0.25, 0, -0.25]}),
    # On day 2 the first loses 50 of 200 and the second wins 12.5 of 100: -37.5 in money, 25 more for the loss.
    "losses weigh more": (
        *(([8, 8, 6, 6], [8, 8, 9, 9]), {0: {0: (2, 50), 1: (1, 50)}}, {**TWO, **MANY, "loss_multiplier": 1.5}),
        {"rewards": [0, -3.75 - 2.5, 0], "wins": 1, "losses": 1, "loss_penalties": 2.5},
    ),
    # A price that stands still loses the costs of both legs, 2, and 1 more.
    "after costs": (
        *(([8] * 4,), FIRST, {**TWO, "loss_multiplier": 1.5, "cost_bps": 100.0}),
        {"rewards": [-0.1, -0.1 - 0.1, 0], "wins": 0, "losses": 1},
    ),
    "no gain is a loss": ((FLAT,), FIRST, {}, {"wins": 0, "losses": 1}),
    # 100 becomes 101; 1 percent of both legs is 2.01.
    "nor one below its costs": (
        *(([8, 8, 8.08],), FIRST, {"cost_bps": 100.0, "loss_multiplier": 2.0}),
        {"wins": 0, "losses": 1, "loss_penalties": 0.101},
    ),
    **{
        f"the penalty for no trade: {penalty}": ((prices,), orders, {"zero_trades_penalty": 2.0}, {"fitness": penalty})
        for prices, orders, penalty in ((FLAT, {}, -2.0), ([8, None, 8], FIRST, -2), (FLAT, FIRST, 0))
    },
}


@pytest.mark.parametrize("case", CASES)
def test_each_rule_by_hand(case: str) -> None:
    """Of the result, and of all of its trades in their order."""
    stocks, orders, rules, expected = CASES[case]
    result = play(*stocks, orders=orders, **rules)
    for name, value in expected.items():
        found = getattr(result, name, None) if hasattr(result, name) else [getattr(t, name) for t in result.trades]
        assert found == (value if name == "reason" else pytest.approx(value)), name


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
