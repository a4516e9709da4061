"""Transitions of a generation, thinned evenly; a generation goes on from a saved state with the same bits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.market import Market
from tests.small_market import TINY_RULES
from tests.tiny import TINY_EVALUATION, TINY_LEARNING, learnable_market, tiny_trainer
from training.population_rollouts import kept_windows
from utils.config.trader import EvolutionConfig


@pytest.fixture(scope="module")
def market() -> Market:
    return learnable_market(1)


@pytest.mark.parametrize(("gradient_steps", "capacity"), [(0, 100_000), (2, 60)], ids=["closed forms", "networks"])
def test_known_forecasts_change_nothing(market: Market, capacity: int, gradient_steps: int) -> None:
    """They are those that would be computed anew."""
    learning = replace(TINY_LEARNING, replay_capacity=capacity, gradient_steps=gradient_steps)
    trainer = tiny_trainer(market, learning=learning, evolution=EvolutionConfig(population_size=10))
    list(trainer.run(2))
    windows, rollouts = trainer.draw_windows(), trainer.rollouts
    assert (trainer.forecasts is not None) == (gradient_steps > 0)
    one, first = rollouts.evaluate(trainer.population, windows, capacity, trainer.forecasts)
    other, second = rollouts.evaluate(trainer.population, windows, capacity)
    for name in ("fitness", "by_window", "departed"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.trading == other.trading
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_one_generation_fills_no_more_than_the_replay(market: Market) -> None:
    """What is kept of a generation comes from all of its elites, windows and days."""
    trainer = tiny_trainer(
        market, learning=replace(TINY_LEARNING, replay_capacity=40), evolution=EvolutionConfig(population_size=10)
    )
    trainer.evaluate_population()
    assert 20 <= trainer.replay.size <= 40
    assert len(set(trainer.replay.data["after_left"][: trainer.replay.size].tolist())) == TINY_RULES.trading_days - 1


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 800))
def test_thinning_is_even(days: int, windows: int, most: int) -> None:
    """Up to the limit, each day and each window keeps as many transitions as any other, up to one."""
    day, window = kept_windows(days, windows, most)
    kept = torch.zeros(days, windows, dtype=torch.int64)
    kept[day, window] += 1
    total = int(kept.sum())
    assert total == window.numel() and int(kept.max()) == 1
    assert total <= most and total >= min(days * windows, most) / 2
    assert (total == days * windows) == (most >= days * windows)
    assert len(set(kept.sum(1)[day.flatten()].tolist())) == 1
    assert int(kept.sum(0).max()) - int(kept.sum(0).min()) <= 1
    if most >= days:
        assert day.flatten().tolist() == list(range(days))


def test_a_single_trading_day_gives_no_transitions(market: Market) -> None:
    rules = replace(TINY_RULES, trading_days=1)
    trainer = tiny_trainer(market, rules=rules, evaluation=replace(TINY_EVALUATION, exploration_windows=0))
    assert len(list(trainer.run(2))) == 2 and trainer.replay.size == 0
