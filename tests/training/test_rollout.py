"""Rollouts: many accounts at once are what each would be alone, and transitions tell what happened to them."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.trainers import generations
from environment.portfolio import play
from environment.trading_env import windows_from
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts
from models.replay_buffer import FIELDS
from tests.small_market import small_market
from tests.tiny import World, learnable_market, random_world, seeded, shake, tiny_agent, tiny_rules, tiny_trainer
from training import rollout as rollouts
from training.forecasts.training_days import TrainingDays
from training.rollout import RISK_AVERSION, follow, kept_windows, roll_out
from utils.config.trader import EvolutionConfig

GENES = (
    torch.tensor([[0.01, 0.6, 0.02, 1.0, 5.0], [0.03, 0.3, 0.1, 0.5, 5.0], [0.1, 1.0, 0.05, 3.0, 5.0]])
    .double()
    .log2()
    .exp2()
)  # as agents act by them
AGENTS = len(GENES)


def forecasts_of(world: World, seed: int = 0) -> Forecasts:
    score, risk = torch.randn(2, AGENTS, world.days, world.stocks, generator=seeded(seed))
    score = torch.where(world.env.quotes.close > 0, 3.0 * score, -torch.inf)
    return Forecasts.of(score, torch.full((AGENTS, 1), 0.5), 0.3 + risk[0].square())


@cache
def agent() -> DDPGAgent:
    return tiny_agent(small_market())


@given(
    st.integers(0, 2**16),
    st.sampled_from(("next_open", "same_close")),
    st.sampled_from((0.0, 10.0)),
    st.sampled_from((0.0, 0.3, 1.0)),
)
@settings(max_examples=8)
def test_lanes_are_what_each_would_be_alone(seed: int, fill: str, volume_cap: float, shrink: float) -> None:
    """As policies bit for bit, and by what an agent does on observations, to their rounding."""
    rules = tiny_rules(fill=fill, volume_cap=volume_cap, cost_bps=20.0)
    world = random_world(seed % 100, rules=rules)
    forecasts, starts = forecasts_of(world, seed), world.starts(2, seed)
    how: dict[str, Any] = {"trading_steps": rules.trading_days, "is_flat_at_end": True}
    believed = torch.full((AGENTS,), shrink, dtype=torch.float64)
    how |= {"shrink": believed, "timing": believed / 2}
    found = roll_out(world.env, forecasts, GENES, starts, rules.episode_steps, **how)
    equity, benchmark = found.equity.clone(), found.benchmark.clone()
    own = {name: value.clone() for name, value in found.transitions.items()}
    assert own.keys() == FIELDS.keys()
    for row in range(AGENTS):
        one = replace(agent(), genes=GENES[[row]], rules=rules, shrink=shrink, timing=shrink / 2)
        seen, env = Forecasts(forecasts.score[[row]], forecasts.level[[row]], forecasts.risk), world.trading.twin()
        for window, start in enumerate(starts.tolist()):
            observation, info = env.reset(**windows_from(start, rules))
            rows: dict[str, list[float]] = {name: [] for name in ("day", "cash", "reward")}
            is_over = False
            while not is_over:
                rows["day"].append(info["day_index"])
                rows["cash"].append(observation["account"][0])
                action = one.act(observation, seen, info["day_index"])
                observation, reward, is_over, _, info = env.step(action)
                rows["reward"].append(reward)
            torch.testing.assert_close(equity[:, row, window], env.account.equity_curve[:, 0], rtol=1e-4, atol=0)
            for name, values in rows.items():
                expected = torch.tensor(values).to(own[name].dtype)
                torch.testing.assert_close(own[name][:, row, window], expected, rtol=1e-3, atol=1e-2)
            edges = {name: how[name] for name in ("trading_steps", "is_flat_at_end")}
            world.env.begin(starts[[window]], steps=rules.episode_steps, **edges)
            while not world.env.account.is_done:
                world.env.trade(follow(one, seen)(world.env))
            assert torch.equal(equity[:, row, window], world.env.account.equity_curve[:, 0])
            assert torch.equal(benchmark[:, window], world.env.benchmark.equity_curve[:, 0])
    assert torch.equal(own["next_cash"][:-1], own["cash"][1:]) and torch.equal(own["next_price"][:-1], own["price"][1:])
    assert (shrink == 0.0) == torch.equal(equity, benchmark[:, None].expand(-1, AGENTS, -1))


def test_noise_adds_to_the_scores_of_the_last_windows_alone() -> None:
    world = random_world(3)
    rules, forecasts, starts = world.env.rules, forecasts_of(world), world.starts(3)
    noise = torch.randn(1, rules.episode_steps, world.stocks, generator=seeded(1))
    plain, found = (
        roll_out(world.env, forecasts, GENES, starts, rules.episode_steps, noise=own).equity.clone()
        for own in (None, noise)
    )
    assert torch.equal(found[..., :2], plain[..., :2])
    other = replace(forecasts, score=forecasts.score.clone())
    other.score[:, int(starts[2]) + torch.arange(rules.episode_steps)] += noise[0]
    alone = roll_out(world.env, other, GENES, starts[2:], rules.episode_steps)
    assert torch.equal(found[..., 2], alone.equity[..., 0]) and not torch.equal(found[..., 2], plain[..., 2])


def test_utility_is_the_profit_over_the_benchmark_less_its_risk() -> None:
    world = random_world(3)
    found = roll_out(world.env, forecasts_of(world), GENES, world.starts(5), 8)
    own, other = found.equity.numpy() / 1e6, found.benchmark.numpy() / 1e6
    for row in range(AGENTS):
        for window in range(5):
            ahead = own[:, row, window] - other[:, window]
            assert float(found.excess[row, window]) == pytest.approx(100 * ahead[-1])
            risk = RISK_AVERSION / 2 * sum((ahead[1:] - ahead[:-1]) ** 2)
            assert float(found.utility()[row, window]) == pytest.approx(100 * (ahead[-1] - risk))


def test_only_days_on_which_something_is_decided_are_looked_at() -> None:
    """Those of the window, without its last close; nor is what another policy of the same portfolio did."""
    world = random_world(6)
    steps, start, forecasts = world.env.rules.episode_steps, torch.tensor([14]), forecasts_of(world)
    found = roll_out(world.env, forecasts, GENES, start, steps).equity.clone()
    outside = torch.ones(world.days, dtype=torch.bool)
    outside[14 : 14 + steps] = False
    other = replace(forecasts, score=forecasts.score.clone())
    other.score[:, outside] = torch.nan
    play(world.env, lambda portfolio: portfolio.held, world.starts(4), steps=9)
    assert torch.equal(roll_out(world.env, other, GENES, start, steps).equity, found)
    other.score[:, 14 + steps - 1, :2] -= 9.0
    assert not torch.equal(roll_out(world.env, other, GENES, start, steps).equity, found)


def test_groups_of_windows_are_played_as_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows are divided so that their forecasts fit into memory; those of a day did not learn from its fold. What is
    kept of their transitions comes from all days."""
    trainer = tiny_trainer(learnable_market(1), evolution=EvolutionConfig(population_size=7))
    list(generations(trainer, 2))
    shake(trainer.population.networks, 0.3, seeded(1))
    windows, population, steps = trainer.draw_windows(), trainer.population, trainer.eval_env.rules.episode_steps
    one, first = trainer.rollouts.evaluate(population, windows, 80, env=trainer.eval_env)
    assert len(set(one.fitness.tolist())) > 1 and 40 <= len(first["cash"]) <= 80
    played = {day for start in windows.starts.tolist() for day in range(start, start + steps)}
    assert len(set(first["day"].tolist())) >= steps and set(first["day"].tolist()) <= played
    monkeypatch.setattr(rollouts, "TABLE_BYTES", 4 * 7 * trainer.training_days.tradable.shape[1] * (steps + 9))
    monkeypatch.setattr(rollouts, "_CELLS", 1)  # a window at a time
    other, second = trainer.rollouts.evaluate(population, windows, 80, env=trainer.eval_env)
    assert torch.equal(one.profit_percent, other.profit_percent)
    torch.testing.assert_close(one.fitness, other.fitness, rtol=1e-12, atol=0)
    assert one.trading == pytest.approx(other.trading)
    assert all(torch.equal(first[name], second[name]) for name in first)
    row = population.elites[0]
    forecasts = trainer.training_days.forecasts(population.networks.target, [row])
    alone = roll_out(trainer.eval_env.portfolio, forecasts, population.values[[row]], windows.starts[:2], steps)
    torch.testing.assert_close(one.fitness[row], alone.utility()[0].mean())
    torch.testing.assert_close(one.profit_percent[row], 100 * (alone.equity[-1, 0].mean() / 1e6 - 1))


def test_days_that_no_window_plays_have_no_forecast_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.features.rows._CELLS", 1)  # a day a block
    trainer = tiny_trainer(learnable_market(1))
    windows = trainer.draw_windows()
    played = torch.zeros(len(trainer.training_days.tradable), dtype=torch.bool)
    for start in windows.starts.tolist():
        played[start : start + trainer.eval_env.rules.episode_steps] = True
    whole = trainer.training_days.forecasts(trainer.population.networks.target, [0])
    asked = trainer.training_days.forecasts(trainer.population.networks.target, [0], played)
    days = slice(asked.first, asked.first + asked.score.shape[1])
    known, some = (one.score[0].isfinite().any(1) for one in (whole, asked))
    assert torch.equal(some, (known & played)[days]) and (known & ~played)[days].any() and days.start > 0
    assert torch.equal(asked.score[0, some], whole.score[0, days][some])
    results, _ = trainer.rollouts.evaluate(trainer.population, windows, 100, env=trainer.eval_env)
    of_all = TrainingDays.forecasts
    monkeypatch.setattr(TrainingDays, "forecasts", lambda days, networks, rows, _: of_all(days, networks, rows))
    expected, _ = trainer.rollouts.evaluate(trainer.population, windows, 100, env=trainer.eval_env)
    assert torch.equal(results.fitness, expected.fitness)
    assert torch.equal(results.profit_percent, expected.profit_percent)


@settings(max_examples=200)
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
