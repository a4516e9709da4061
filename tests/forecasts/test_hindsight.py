"""Counterfactual outcomes of every possible order: the environment's own results, on training days only."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from environment.ledger import Bars
from environment.trading_rules import Orders
from tests.tiny import FIRST_DAY, World, random_world, seeded, tiny_rules
from training.forecasts.hindsight import order_results
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, TARGET_PERCENTS

LAST_DAY = 33


def hindsight_of(world: World, rules: EnvironmentConfig | None = None, last_day: int = LAST_DAY) -> Tensor:
    return order_results(world.env.bars, rules or world.env.rules, FIRST_DAY, last_day)


@given(
    seed=st.integers(0, 2**16),
    fill=st.sampled_from(("next_open", "same_close")),
    loss_multiplier=st.sampled_from((1.0, 2.5)),
    cost_bps=st.sampled_from((0.0, 5.0, 80.0)),
    delisting_loss=st.sampled_from((0.0, 30.0)),
    stop_percent=st.sampled_from((0.0, 5.0)),
)
@settings(max_examples=25, deadline=None)
def test_results_are_what_the_environment_pays(seed: int, **changes: Any) -> None:
    """An account that is never short of cash gives random orders; each is credited what was known in hindsight."""
    rules = tiny_rules(trading_days=20, settlement_days=4, stake_percent=0.5, exits="target", **changes)
    world = random_world(seed, days=60, rules=rules)
    # No order is kept back by what others have lost.
    hindsight = hindsight_of(world, dataclasses.replace(rules, drawdown_lock=0.01), last_day=59)
    generator = seeded(seed)
    lanes, portfolio = 5, world.env
    start = torch.randint(FIRST_DAY, 60 - rules.episode_steps, (lanes,), generator=generator)
    world.env.reset(start)
    given_orders: list[Tensor] = []
    for _ in range(rules.episode_steps):
        stock = torch.randint(world.stocks, (lanes,), generator=generator)
        which = torch.randint(len(TARGET_PERCENTS), (lanes,), generator=generator)
        coefficient = 1.0 + 9.0 * torch.rand(lanes, generator=generator)
        may = portfolio.candidates().gather(1, stock[:, None]).squeeze(1) & portfolio.is_trading
        given_orders.append(torch.stack((stock.double(), which.double(), coefficient * may), 1))
        target = torch.tensor(TARGET_PERCENTS)[which]
        orders = Orders(stock[None], (coefficient * may).double()[None], target.double()[None])
        portfolio.step_orders(orders if portfolio.is_trading else None)
    credited = portfolio.entry_credited_rewards()
    for step, orders_of_day in enumerate(given_orders):
        stock, which = orders_of_day[:, 0].long(), orders_of_day[:, 1].long()
        known = hindsight[which, start + step - FIRST_DAY, stock]
        size = orders_of_day[:, 2] / MAX_COEFFICIENT
        expected = torch.where(size > 0, known.double() * size, 0.0)
        can_tell = expected.isfinite() & (start + step + portfolio.slots < start + rules.episode_steps)
        torch.testing.assert_close(credited[step][can_tell], expected[can_tell], rtol=1e-5, atol=1e-6)


def test_results_are_those_of_orders_that_no_cap_cuts() -> None:
    """Only where nothing was traded does an order earn nothing, as it buys nothing."""
    rules = tiny_rules(volume_cap=5.0)
    world = random_world(5, rules=rules)
    capped, free = (hindsight_of(world, chosen) for chosen in (rules, tiny_rules()))
    volume = world.env.bars.volume
    assert volume is not None
    is_idle = volume.view(world.env.bars.days, -1)[FIRST_DAY + 1 : LAST_DAY + 2] == 0
    assert 0 < is_idle.sum() < is_idle.numel() / 2
    expected = torch.where(is_idle & free.isfinite(), 0.0, free)
    torch.testing.assert_close(capped, expected, rtol=0, atol=0, equal_nan=True)


def test_what_cannot_be_known_is_not() -> None:
    world = random_world(2)
    hindsight, tradable = hindsight_of(world), world.env.bars.tradable[FIRST_DAY : LAST_DAY + 1]
    longest = world.env.slots
    is_known = hindsight.isfinite()
    assert is_known.float().mean() > 0.4 and (hindsight[is_known] != 0).float().mean() > 0.8
    assert not is_known[:, -longest:].any()
    assert is_known[:, :-longest].all(0).equal(tradable[:-longest])


@given(seed=st.integers(0, 2**16), day=st.integers(LAST_DAY + 1, 39))
@settings(max_examples=10, deadline=None)
def test_days_after_the_training_span_are_never_read(seed: int, day: int) -> None:
    world = random_world(seed)
    bars = world.env.bars
    quotes = bars.quotes.view(bars.days, bars.stocks, 3).clone()
    quotes[day:] *= 3.0
    corrupted = Bars.from_prices(*quotes.unbind(-1))
    rules = world.env.rules
    ours, theirs = (order_results(b, rules, FIRST_DAY, LAST_DAY) for b in (bars, corrupted))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_long_spans_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    world = random_world(3)
    whole = hindsight_of(world)
    monkeypatch.setattr("training.forecasts.hindsight._DAYS_AT_ONCE", 7)
    torch.testing.assert_close(hindsight_of(world), whole, rtol=1e-6, atol=1e-7, equal_nan=True)
