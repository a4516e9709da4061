"""Transitions of stocks against plain Python, on markets with everything in them that goes wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from environment.trading_env import TradingEnvironment
from tests.small_market import TINY_RULES, small_market
from training.forecasts.training_days import TrainingDays
from utils.config.trader import EnvironmentConfig

MARKET = small_market(3, 800, investable=(0, 2, 3))


def days_of(**changes: Any) -> tuple[TrainingDays, EnvironmentConfig]:
    rules = replace(TINY_RULES, exits="daily", **changes)
    return TrainingDays.of(MARKET, TradingEnvironment.on(MARKET, rules).account), rules


def plain(
    bars: dict[int, tuple[float, float]], day: int, last: int, rules: EnvironmentConfig
) -> tuple[float, int, bool] | None:
    """Reward, day of the next decision and whether the position has been closed by then; None: not known."""
    lost, cost = rules.max_days_without_bar, 100 * rules.cost_rate
    left = 1 - rules.delisting_loss / 100

    def following(one: int) -> int | None:
        return next((later for later in range(one + 1, last + 1) if later in bars), None)

    first = following(day)
    if first is None or first - day > lost:
        reward = 0.0 if rules.fill == "next_open" else 100 * (left - 1) - cost  # an order for the next open lapses
        return (reward, day, True) if day + lost <= last else None
    if rules.fill == "same_close":
        return 100 * (bars[first][1] / bars[day][1] - 1), first, False
    second = following(first)
    if second is None or second - first > lost:
        if first + lost > last:
            return None
        return 100 * (bars[first][1] * left / bars[first][0] - 1) - cost, first, True
    return 100 * (bars[second][0] / bars[first][0] - 1), first, False


@pytest.mark.parametrize(
    "changes", [{}, {"fill": "same_close"}, {"delisting_loss": 30.0, "max_days_without_bar": 1}], ids=str
)
def test_transitions_are_those_of_one_stock_at_a_time(changes: dict[str, Any]) -> None:
    days, rules = days_of(**changes)
    known, rows = days.transitions, days.samples.x
    account = TradingEnvironment.on(MARKET, rules).account
    quotes = account.bars.quotes.view(account.bars.days, -1, 3).double().numpy()
    last, closed = rows.days.stop - 1, 0
    place = {}
    for row, (day, stock) in enumerate(np.argwhere(rows.has_bar.numpy())):
        place[int(day) + rows.days.start, int(stock)] = row
    for stock in range(quotes.shape[1]):
        bars = {day: (float(quotes[day, stock, 0]), float(quotes[day, stock, 2])) for day in range(last + 1)}
        bars = {day: bar for day, bar in bars.items() if bar[1] == bar[1]}
        for day in (day for day in bars if day >= rows.days.start):
            row, expected = place[day, stock], plain(bars, day, last, rules)
            if expected is None:
                assert float(known.reward[row, 0]) == 0.0 and bool(known.terminated[row])
                continue
            reward, following, is_closed = expected
            assert float(known.reward[row, 0]) == pytest.approx(reward, rel=1e-4, abs=1e-3)
            assert bool(known.terminated[row]) == is_closed
            closed += is_closed
            if not is_closed:
                assert int(known.following[row]) == place[following, stock]
    assert closed > 3


def test_nothing_after_the_training_days_is_read() -> None:
    days, rules = days_of()
    changed = MARKET.data_array.copy()
    changed[MARKET.splits.train.last + 1 :] *= 3.0
    other = TrainingDays.of(replace(MARKET, data_array=changed), TradingEnvironment.on(MARKET, rules).account)
    again = TrainingDays.of(
        replace(MARKET, data_array=changed), TradingEnvironment.on(replace(MARKET, data_array=changed), rules).account
    )
    for one in (other, again):
        for name in ("reward", "following", "terminated"):
            assert torch.equal(getattr(one.transitions, name), getattr(days.transitions, name)), name
