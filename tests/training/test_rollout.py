"""Rollouts: many accounts at once are what each would be alone, and transitions tell what happened to them."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from environment.trading_env import TradingEnvironment
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts
from models.replay_buffer import FIELDS
from tests.small_market import TINY_RULES, small_market
from tests.tiny import (
    World,
    learnable_market,
    random_world,
    seeded,
    tiny_agent,
    tiny_rules,
    tiny_trainer,
)
from training import rollout as rollouts
from training.forecasts.training_days import TrainingDays
from training.rollout import kept_windows, roll_out
from utils.config.trader import EvolutionConfig
from utils.spaces import TARGET_PERCENTS

AGENTS = 3


def genes() -> tuple[Tensor, Tensor]:
    draws = seeded()
    targets = torch.tensor(TARGET_PERCENTS)[torch.randint(len(TARGET_PERCENTS), (AGENTS,), generator=draws)]
    return torch.rand(AGENTS, generator=draws), targets


def forecasts_of(world: World, seed: int = 0, *, averse: bool = False) -> Forecasts:
    """By which about half of all stocks are worth more than a purchase costs, and a third less than a sale."""
    score, penalty = torch.randn(2, AGENTS, world.days, world.stocks, generator=seeded(seed))
    held = 0.05 + 0.05 * penalty.abs() if averse else None
    return Forecasts.of(0.5 * score, world.env.bars.tradable, held)


@cache
def agent() -> DDPGAgent:
    return tiny_agent(small_market())


def alone(world: World, forecasts: Forecasts, row: int, start: int) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """The account of one agent that acts on observations, day by day: its equity, and its transitions."""
    rules, env = world.env.rules, TradingEnvironment.on(world.market, world.env.rules)
    hurdles, targets = (part[[row]] for part in genes())
    own = replace(agent(), hurdles=hurdles, sale_targets=targets, rules=rules)
    seen = Forecasts(**{name: part[[row]] for name, part in vars(forecasts).items() if part is not None})
    last, trading_end = start + rules.episode_steps, start + rules.trading_days
    observation, info = env.reset(start_idx=start, end_idx=last, trading_end_idx=trading_end)
    rows: dict[str, list[Tensor]] = {name: [] for name in FIELDS}
    is_over = False
    while not is_over:
        action = own.act(observation, seen, info["day_index"])
        cash, day = float(observation["account"][0]), info["day_index"]
        observation, reward, is_over, _, info = env.step(action)
        values = {"day": day, "cash": cash, "left": trading_end - day, "reward": reward}
        values |= {"next_cash": float(observation["account"][0]), "next_left": trading_end - day - 1}
        for name, value in values.items():
            rows[name].append(torch.tensor(value))
    return env.account.equity_curve[: env.account.steps + 1, 0].clone(), rows


@given(
    seed=st.integers(0, 2**16),
    orders=st.integers(1, 3),
    fill=st.sampled_from(("next_open", "same_close")),
    exits=st.sampled_from(("daily", "target")),
    stake=st.sampled_from((1.0, 4.0, 8.0)),
    averse=st.booleans(),
)
@settings(max_examples=15)
def test_lanes_are_what_each_would_be_alone(seed: int, averse: bool, **changes: Any) -> None:
    """Equity bit for bit, and transitions; the last window with noise, which adds to all scores of a day.

    By one that is averse to risk, whose sizes tell the last bit of a score, without noise.
    """
    # Beside smaller orders the best one is no longer the largest, which the environment buys first.
    limits = {"max_new_positions_per_day": 1 if averse else changes["orders"], "stake_percent": changes["stake"]}
    rules = tiny_rules(**limits, fill=changes["fill"], exits=changes["exits"])
    world = random_world(seed % 100, rules=rules)
    forecasts, starts = forecasts_of(world, seed, averse=averse), world.starts(3, seed)
    noise = (not averse) * torch.randn(AGENTS, 1, rules.trading_days, generator=seeded(seed))
    found = roll_out(world.trading, forecasts, *genes(), starts, noise=noise, records=True)
    assert int(found.summary.trades.sum()) > 0
    assert found.transitions.keys() == FIELDS.keys()
    for window, start in enumerate(starts.tolist()):
        seen = forecasts
        if window == 2:
            days = slice(start, start + rules.trading_days)
            seen = replace(forecasts, score=forecasts.score.clone())
            seen.score[:, days] += noise[:, 0, :, None]
        for row in range(AGENTS):
            equity, rows = alone(world, seen, row, start)
            assert torch.equal(found.equity[:, row, window], equity)
            own = {name: value[:, row, window] for name, value in found.transitions.items()}
            expected = {name: torch.stack(values).to(own[name].dtype) for name, values in rows.items()}
            for name in own:
                torch.testing.assert_close(own[name], expected[name], rtol=1e-6, atol=1e-6, msg=name)


def test_fitness_is_the_mean_over_windows_without_exploration() -> None:
    """Of the profit less penalties, and less what the risk of trades costs one who is averse to it."""
    rules = tiny_rules(inaction_penalty=0.1, loss_multiplier=1.5)
    world, noise = random_world(3, rules=rules), torch.randn(AGENTS, 2, rules.trading_days, generator=seeded())
    found = roll_out(world.trading, forecasts_of(world), *genes(), world.starts(5), risk_aversion=0.5, noise=noise)
    assert len(set(found.fitness.tolist())) == AGENTS and found.transitions == {}
    profit = (100 * (found.equity[-1] / found.equity[0] - 1))[:, :3]
    penalties = found.summary.penalties.view(AGENTS, 5)[:, :3]
    risk = 0.25 * world.env.entry_credited_rewards().square().sum(0).view(AGENTS, 5)[:, :3]
    assert bool((penalties > 0).any()) and bool((risk > 0).any())
    torch.testing.assert_close(found.fitness, (profit - penalties - risk).mean(1))
    torch.testing.assert_close(found.by_window, profit)
    torch.testing.assert_close(found.profit_percent, profit.mean(1))


@pytest.mark.parametrize("exits", ["daily", "target"])
def test_only_days_on_which_something_is_decided_are_looked_at(exits: str) -> None:
    """Those of the window, without its last close; where nothing is sold by decision, those of trading alone."""
    world = random_world(6, rules=tiny_rules(exits=exits))
    rules, start, forecasts = world.env.rules, torch.tensor([14]), forecasts_of(world)
    found = roll_out(world.trading, forecasts, *genes(), start)
    decided = rules.episode_steps if exits == "daily" else rules.trading_days
    outside = torch.ones(world.days, dtype=torch.bool)
    outside[14 : 14 + decided] = False
    other = Forecasts(forecasts.score.clone())
    other.score[:, outside] = torch.nan
    assert torch.equal(roll_out(world.trading, other, *genes(), start).equity, found.equity)
    other.score[:, 14 + decided - 1] -= 1.0
    assert not torch.equal(roll_out(world.trading, other, *genes(), start).equity, found.equity)


def test_groups_of_agents_are_played_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents are divided so that their forecasts fit into memory; those of a day did not learn from its fold. What is
    kept of their transitions comes from all days."""
    trainer = tiny_trainer(learnable_market(1), evolution=EvolutionConfig(population_size=7))
    list(trainer.run(2))
    windows, population = trainer.draw_windows(), trainer.population
    one, first = trainer.rollouts.evaluate(population, windows, 80)
    assert len(set(one.fitness.tolist())) > 1 and 40 <= len(first["left"]) <= 80
    assert set(first["left"].tolist()) == {TINY_RULES.trading_days - day for day in range(TINY_RULES.episode_steps)}
    monkeypatch.setattr(rollouts, "_TABLE_BYTES", 2 * 4 * trainer.training_days.tradable.numel())
    assert [*map(len, trainer.rollouts.groups(7))] == [2, 2, 2, 1]
    other, second = trainer.rollouts.evaluate(population, windows, 80)
    for name in ("fitness", "profit_percent", "by_window"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.trading == pytest.approx(other.trading)
    assert all(torch.equal(first[name], second[name]) for name in first)
    row = population.elites[0]
    parts = population.hurdles[[row]], population.sale_targets[[row]], windows.starts[:2]
    forecasts = trainer.training_days.forecasts(population.networks.target, [row])
    assert torch.equal(roll_out(trainer.eval_env, forecasts, *parts).by_window[0], one.by_window[row])


def test_days_that_no_window_plays_have_no_forecast_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.inputs._CELLS", 1)  # a day a block
    trainer = tiny_trainer(learnable_market(1))
    windows = trainer.draw_windows()
    played = torch.zeros(len(trainer.training_days.tradable), dtype=torch.bool)
    for start in windows.starts.tolist():
        played[start : start + trainer.eval_env.rules.episode_steps] = True
    whole = trainer.training_days.forecasts(trainer.population.networks.target, [0])
    asked = trainer.training_days.forecasts(trainer.population.networks.target, [0], played)
    known, some = (one.score[0].isfinite().any(1) for one in (whole, asked))
    assert torch.equal(some, known & played) and (known & ~played).any()
    assert torch.equal(asked.score[0, some], whole.score[0, some])
    results, _ = trainer.rollouts.evaluate(trainer.population, windows, 100)
    of_all = TrainingDays.forecasts
    monkeypatch.setattr(TrainingDays, "forecasts", lambda days, networks, rows, _: of_all(days, networks, rows))
    expected, _ = trainer.rollouts.evaluate(trainer.population, windows, 100)
    assert torch.equal(results.by_window, expected.by_window)


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
