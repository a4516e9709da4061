"""Rollouts: many accounts at once are what each would be alone, and transitions tell what happened to them."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data.market import Market
from models.cash_value import Accounts, CashValue, accounts_of
from models.replay_buffer import transition_fields
from models.trader import Forecasts, Traders, daily_orders
from tests.small_market import TINY_RULES
from tests.tiny import (
    TINY_EVALUATION,
    TINY_LEARNING,
    World,
    learnable_market,
    random_world,
    seeded,
    tiny_rules,
    tiny_trainer,
    trending_panel,
    world_of,
)
from training.rollout import kept_windows, purchases, roll_out
from utils.config.trader import EnvironmentConfig, EvolutionConfig

AGENTS = 3


def traders(seed: int = 0, agents: int = AGENTS) -> Traders:
    target, value_weight = torch.rand(2, agents, generator=seeded(seed), dtype=torch.float64)
    return Traders(torch.zeros(agents, 1), 10 + 20 * target, 2 * value_weight, torch.ones_like(target))


def some_value(rules: EnvironmentConfig, seed: int = 0) -> CashValue:
    """Worth about as much as the orders of `forecasts_of`."""
    nothing = CashValue.zero(rules)
    weights = torch.rand(len(nothing.weights), generator=seeded(seed), dtype=torch.float64)
    return nothing.with_values(weights, torch.tensor([0.2, 0.8, 1.5], dtype=torch.float64))


def forecasts_of(world: World, seed: int = 0, agents: int = AGENTS) -> Forecasts:
    """Stocks are ranked by scores that are other than what is expected of them, and each has a sale target."""
    expected, score, target = torch.randn(3, agents, world.days, world.stocks, generator=seeded(seed))
    return Forecasts.of(expected, world.env.bars.tradable, 20 + 3 * target, expected + score)


def state_of(world: World, forecasts: Forecasts, agent: int, day: int) -> Accounts:
    """The account of the environment as the value of cash sees it."""
    env, opportunity = world.env, forecasts.opportunity[agent, day][None]
    return accounts_of(env.positions().features, env.account(), opportunity, env.rules)


def alone(
    world: World,
    forecasts: Forecasts,
    cash_value: CashValue,
    agent: int,
    start: int,
    exploration_threshold: float = 0.0,
) -> tuple[Tensor, dict[str, list[Tensor]]]:
    """One account of one agent, day by day: its equity, and its transitions."""
    env, trader = world.env, traders().rows(slice(agent, agent + 1))
    env.reset(torch.tensor([start]))
    rows: dict[str, list[Tensor]] = {name: [] for name in transition_fields(env.orders_per_day)}
    before = None
    for step in range(env.rules.episode_steps):
        if step >= env.rules.trading_days:
            env.step_orders(None)
            continue
        day = start + step
        state = state_of(world, forecasts, agent, day)
        today = forecasts.at(slice(agent, agent + 1), day)
        candidates = replace(today, score=torch.where(env.candidates(), today.score, -torch.inf))
        least = torch.tensor([exploration_threshold], dtype=torch.float64)
        choice, decision = daily_orders(trader, cash_value, candidates, state, least, env.orders_per_day)
        if before is not None:
            for when, accounts in (("state", before.before), ("after", before.after), ("next", state)):
                for name, value in vars(accounts).items():
                    rows[f"{when}_{name}"].append(value)
            parts = {"best": before.best, "action": before.size, "next_best": decision.best}
            parts |= {"terminated": state.left == 0}
            for name, value in parts.items():
                rows[name].append(value)
        before = decision
        env.step(choice.action(today.target))
    rows["reward"] = list(env.entry_credited_rewards()[: len(rows["action"])])
    return env.equity_curve[: env.steps + 1, 0].clone(), rows


@given(st.integers(0, 2**16), st.integers(1, 3), st.sampled_from(("next_open", "same_close")), st.booleans())
@settings(max_examples=10)
def test_lanes_are_what_each_would_be_alone(seed: int, orders: int, fill: str, is_scarce: bool) -> None:
    """Equity and transitions, with orders of one day filling the account or not.

    Up to rounding: sums run over orders in another sequence where a candidate between two orders is not ordered.
    """
    rules = tiny_rules(max_new_positions_per_day=orders, fill=fill, stake_percent=8.0 if is_scarce else 1.0)
    world = random_world(seed % 100, rules=rules)
    forecasts, cash_value, starts = forecasts_of(world, seed), some_value(rules, seed), world.starts(3, seed)
    exploration_threshold = 5 * torch.rand(AGENTS, 1, generator=seeded(seed), dtype=torch.float64)
    rollout = roll_out(
        world.trading,
        traders(),
        forecasts,
        cash_value,
        starts,
        exploration_threshold=exploration_threshold,
        records=True,
    )
    assert rollout.transitions.keys() == transition_fields(orders).keys()
    for agent in range(AGENTS):
        for window, start in enumerate(starts.tolist()):
            least = float(exploration_threshold[agent, 0]) if window == 2 else 0.0
            equity, rows = alone(world, forecasts, cash_value, agent, start, least)
            torch.testing.assert_close(rollout.equity[:, agent, window], equity, rtol=1e-14, atol=0)
            for name, values in rows.items():
                found = rollout.transitions[name][:, agent, window]
                torch.testing.assert_close(found, torch.cat(values).to(found.dtype), rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize(("orders", "threads"), [(1, 1), (3, 2)])
def test_agents_are_the_same_in_any_company(orders: int, threads: int) -> None:
    """Bit for bit, however many agents are played at once; many positions are open."""
    rules = tiny_rules(
        trading_days=20,
        settlement_days=8,
        max_holding_days=12,
        max_new_positions_per_day=orders,
        loss_multiplier=2.0,
        stake_percent=0.9,
    )
    panel = trending_panel([0.001 * place for place in range(-10, 10)], 80, noise=0.03)
    world, agents, before = world_of(panel, rules=rules), 16, torch.get_num_threads()
    everyone, forecasts, cash_value = traders(2, agents), forecasts_of(world, 2, agents), some_value(rules, 2)
    exploration_threshold = torch.rand(agents, 1, generator=seeded(3), dtype=torch.float64)

    def played(some: slice) -> dict[str, Tensor]:
        own = {name: part[some] for name, part in vars(forecasts).items() if part is not None}
        rollout = roll_out(
            world.trading,
            everyone.rows(some),
            Forecasts(**own),
            cash_value,
            world.starts(5),
            exploration_threshold=exploration_threshold[some],
            records=True,
        )
        summary = {name: value.view(-1, 5) for name, value in vars(rollout.summary).items()}
        by_step = {name: value.transpose(0, 1) for name, value in rollout.transitions.items()}
        own = {name: getattr(rollout, name) for name in ("fitness", "profit_percent", "initial_value")}
        return summary | by_step | own | {"equity": rollout.equity.transpose(0, 1)}

    torch.set_num_threads(threads)
    try:
        together = played(slice(0, agents))
        assert float(together["trades"].double().mean()) > 10
        for size in (1, 3, 8):
            for first in range(0, agents - size + 1, size):
                some = slice(first, first + size)
                for name, value in played(some).items():
                    assert torch.equal(value, together[name][some]), (name, some)
    finally:
        torch.set_num_threads(before)


def test_fitness_is_the_mean_over_windows() -> None:
    world = random_world(3)
    cash_value, starts, forecasts = some_value(world.env.rules), world.starts(4), forecasts_of(world)
    rollout = roll_out(world.trading, traders(), forecasts, cash_value, starts)
    steps = world.env.rules.episode_steps
    assert rollout.equity.shape == (steps + 1, AGENTS, 4) and rollout.transitions == {}
    assert len(set(rollout.fitness.tolist())) == AGENTS
    for name in ("fitness", "profit_percent"):
        totals = getattr(rollout.summary, name).view(AGENTS, 4)
        torch.testing.assert_close(getattr(rollout, name), totals.mean(1))
    torch.testing.assert_close(rollout.equity[-1].flatten(), rollout.summary.final_equity)
    money = (rollout.equity[-1] / rollout.equity[0] - 1).mean(1) * 100
    torch.testing.assert_close(rollout.profit_percent, money)
    value = torch.zeros(AGENTS, dtype=torch.float64)
    for agent, start in itertools.product(range(AGENTS), starts.tolist()):
        world.env.reset(torch.tensor([start]))
        state = state_of(world, forecasts, agent, start)
        value[agent] += cash_value.of(state)[0] / 4
    torch.testing.assert_close(rollout.initial_value, value)


def test_windows_of_exploration_do_not_count() -> None:
    """Nor does what happens there change the others; who is cautious enough orders nothing on them."""
    world = random_world(4)
    forecasts, cash_value, starts = forecasts_of(world), some_value(world.env.rules), world.starts(5)
    exploration_threshold = torch.tensor([[0.0, 1e9], [0.0, 1e9], [0.0, 0.0]], dtype=torch.float64)
    with_them = roll_out(
        world.trading,
        traders(),
        forecasts,
        cash_value,
        starts,
        exploration_threshold=exploration_threshold,
        records=True,
    )
    opened = with_them.summary.positions_opened.view(AGENTS, 5)
    assert opened[:2, 4].tolist() == [0, 0] and bool((opened[:, :4] > 0).all()) and int(opened[2, 4]) > 0
    without = roll_out(world.trading, traders(), forecasts, cash_value, starts[:3], records=True)
    for name in ("fitness", "profit_percent", "initial_value"):
        torch.testing.assert_close(getattr(with_them, name), getattr(without, name), rtol=1e-12, atol=0)
    assert torch.equal(with_them.equity[:, :, :3], without.equity)
    everything = roll_out(world.trading, traders(), forecasts, cash_value, starts)
    assert torch.equal(with_them.equity[:, :, 3], everything.equity[:, :, 3]), "no exploration_threshold, no change"
    assert with_them.transitions["after_cash"].shape == (world.env.rules.trading_days - 1, AGENTS, 5)


def test_departures_are_counted_order_by_order() -> None:
    """By hand, without the windows of exploration."""
    world = random_world(4, rules=tiny_rules(max_new_positions_per_day=2, stake_percent=1.0))
    cash_value, starts, nothing = some_value(world.env.rules), world.starts(4), torch.zeros(AGENTS, 1).double()
    same, rollouts, books = forecasts_of(world, 1), [], []
    for seed in (1, 2):
        forecasts = forecasts_of(world, seed)
        for name in ("score", "expected"):
            getattr(forecasts, name)[:, : world.days // 2] = getattr(same, name)[:, : world.days // 2]
        arguments = world.trading, traders(), forecasts, cash_value, starts
        rollouts.append(roll_out(*arguments, exploration_threshold=nothing))
        stock, size, _ = (part.view(-1, 2, AGENTS, 4)[..., :3] for part in vars(purchases(world.env)).values())
        books.append(list(zip(stock.movedim(2, 0).flatten(1), size.movedim(2, 0).flatten(1), strict=True)))
    for agent, pair in enumerate(zip(*books, strict=True)):
        bought = [[(s, v) if v > 0 else None for s, v in zip(*map(Tensor.tolist, own), strict=True)] for own in pair]
        both = [orders for orders in zip(*bought, strict=True) if any(orders)]
        departed = sum(one != other for one, other in both)
        assert 0 < departed < len(both)
        assert float(rollouts[0].departed(rollouts[1])[agent]) == pytest.approx(departed / len(both))
    assert not rollouts[0].departed(rollouts[0]).any()


def test_all_agents_see_all_days_before_the_end_only() -> None:
    """What is expected of days outside a window, or on its settlement days, is not looked at."""
    world = random_world(6)
    rules, start = world.env.rules, 14
    forecasts, cash_value = forecasts_of(world), some_value(world.env.rules)
    rollout = roll_out(world.trading, traders(), forecasts, cash_value, torch.tensor([start]))
    outside = torch.ones(world.days, dtype=torch.bool)
    outside[start : start + rules.trading_days] = False
    other = Forecasts(**{name: part.clone() for name, part in vars(forecasts).items() if part is not None})
    for part in (other.expected, other.score, other.target, other.opportunity):
        part[:, outside] = torch.nan
    again = roll_out(world.trading, traders(), other, cash_value, torch.tensor([start]))
    assert torch.equal(again.equity, rollout.equity)


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
