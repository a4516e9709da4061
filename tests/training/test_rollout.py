"""Rollouts: days encoded once, the same windows for all, and transitions that tell what happened."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from environment.trading_env import TradingEnvironment, trade_ledger
from tests.tiny import (
    FIRST_DAY,
    World,
    double_population,
    double_tensors,
    random_world,
    seeded,
    tiny_population,
    tiny_rules,
)
from training import rollout as evaluation
from training.rollout import (
    Exploration,
    Recorder,
    Rollout,
    encode_windows,
    explore,
    merge_spans,
    play,
    random_orders,
    roll_out,
)
from utils.config.trader import Credit, Representation
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_COEFFICIENT, MIN_TARGET_PERCENT

BOTH = pytest.mark.parametrize("representation", ["independent", "shared"])


def exploring(seed: int = 0) -> Exploration:
    return Exploration(0.3, 0.4, 2, seeded(seed))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 1500), min_size=1, max_size=20), st.integers(1, 400))
def test_spans_cover_exactly_the_days_of_the_windows(starts: list[int], days: int) -> None:
    spans = merge_spans(starts, days)
    covered = [day for first, last in spans for day in range(first, last + 1)]
    assert sorted(covered) == sorted(set().union(*(range(start, start + days) for start in starts)))
    assert len(covered) == len(set(covered))
    assert all(1 <= last - first + 1 <= evaluation._DAYS_PER_PASS for first, last in spans)


@BOTH
@pytest.mark.parametrize("per_pass", [4, 160])
def test_encoding_together_is_encoding_alone(
    representation: Representation, per_pass: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows that overlap, repeat or stand alone, also cut into many passes and for more agents than one pass takes.

    In float64: in float32 the rounding of convolutions of different lengths would hide small errors.
    """
    monkeypatch.setattr(evaluation, "_DAYS_PER_PASS", per_pass)
    tensors, days = double_tensors(random_world()), 7
    networks = double_population(tiny_population(6, representation)).networks
    starts = [FIRST_DAY + 9, FIRST_DAY, FIRST_DAY + 3, FIRST_DAY + 3, 30]
    together = encode_windows(networks, tensors, starts, days)
    for start in starts:
        inputs = tensors.inputs[:, start - networks.context_days + 1 : start + days]
        with torch.no_grad():
            alone = networks.encode_distinct(inputs, tensors.investable)
        place = together.place[start : start + days]
        assert torch.allclose(together.days.stocks[:, place], alone.stocks, rtol=0, atol=1e-12)
        assert torch.allclose(together.days.summary[:, place], alone.summary, rtol=0, atol=1e-12)
    wanted = set().union(*(range(start, start + days) for start in starts))
    assert (together.place >= 0).nonzero().flatten().tolist() == sorted(wanted)
    assert together.days.stocks.shape[1] == len(wanted)


def recorded(
    world: World, credit: Credit = "daily", agents: int = 3, seed: int = 0
) -> tuple[Rollout, dict[str, Tensor], Tensor]:
    """A rollout, its transitions reshaped to (steps, lanes, ...), and the windows' first days."""
    starts, recorder = world.starts(4, seed), Recorder()
    rollout = roll_out(
        world.env,
        tiny_population(agents).networks,
        world.tensors,
        starts,
        exploration=exploring(seed),
        recorder=recorder,
    )
    rows = recorder.transitions(world.env, credit)
    steps = world.env.rules.episode_steps
    return rollout, {name: value.view(steps, -1, *value.shape[1:]) for name, value in rows.items()}, starts


def test_all_agents_play_the_same_windows() -> None:
    rollout, rows, starts = recorded(random_world())
    agents, windows, lanes = rollout.equity.shape[1:]
    assert (agents, windows, lanes) == (3, 4, 3)
    for step, days in enumerate(rows["day"].view(-1, agents, windows, lanes)):
        expected = (starts + step).view(1, windows, 1).expand(agents, windows, lanes)
        assert torch.equal(days.long(), expected)


def quiet_and_noisy(representation: Representation) -> tuple[Rollout, Rollout]:
    world, population = random_world(), tiny_population(3, representation)
    starts = world.starts(4)
    noisy = roll_out(world.env, population.networks, world.tensors, starts, exploration=exploring())
    return roll_out(world.env, population.networks, world.tensors, starts), noisy


@BOTH
def test_noise_never_reaches_the_first_lane(representation: Representation) -> None:
    quiet, noisy = quiet_and_noisy(representation)
    assert torch.allclose(quiet.equity[..., 0], noisy.equity[..., 0], rtol=1e-7)
    assert torch.allclose(quiet.fitness, noisy.fitness, rtol=1e-5, atol=1e-6)
    for name in ("trades", "wins", "positions_opened", "days_without_positions"):
        one, other = (rollout.noise_free(getattr(rollout.summary, name)) for rollout in (quiet, noisy))
        assert torch.equal(one, other), name
    assert not torch.allclose(noisy.equity[..., 0], noisy.equity[..., 1], rtol=1e-7)


@BOTH
def test_fitness_is_the_mean_over_windows_without_noise(representation: Representation) -> None:
    for rollout in quiet_and_noisy(representation):
        agents, windows, lanes = rollout.equity.shape[1:]
        totals = rollout.summary.fitness.tolist()
        for agent in range(agents):
            first = agent * windows * lanes
            plain = [totals[first + window * lanes] for window in range(windows)]
            assert float(rollout.fitness[agent]) == pytest.approx(sum(plain) / windows)
        finals = rollout.equity[-1].flatten()
        assert torch.equal(finals, rollout.summary.final_equity)


def test_a_broken_agent_has_no_fitness() -> None:
    """Else it is fitter than any agent that loses more than the penalty for idling, and becomes an elite."""
    world, networks = random_world(), tiny_population(3).networks
    with torch.no_grad():
        networks.actor.hidden.weight[1] = torch.nan
    rollout = roll_out(world.env, networks, world.tensors, world.starts(3))
    assert rollout.fitness.isnan().tolist() == [False, True, False]


@BOTH
def test_an_agent_alone_in_the_gymnasium_environment_earns_the_same(representation: Representation) -> None:
    """The same decisions through `DDPGAgent.act` on observations, day by day."""
    world, population = random_world(2), tiny_population(2, representation)
    starts, rules = world.starts(2), world.env.rules
    rollout = roll_out(world.env, population.networks, world.tensors, starts)
    agent = population.agent(1)
    env = TradingEnvironment(
        world.market.data_array,
        world.market.dates,
        world.market.stats,
        0,
        rules.episode_steps,
        rules.trading_days,
        investable_columns=world.market.investable_columns,
        rules=rules,
    )
    for window, start in enumerate(starts.tolist()):
        observation, info = env.reset(
            start_idx=start, end_idx=start + rules.episode_steps, trading_end_idx=start + rules.trading_days
        )
        equity, done = [info["equity"]], False
        while not done:
            action = agent.act(observation, world.tensors, info["day_index"])
            observation, _, done, _, info = env.step(action)
            equity.append(info["equity"])
        assert equity == pytest.approx(rollout.equity[:, 1, window, 0].tolist(), rel=1e-6)


@pytest.mark.parametrize("orders", [1, 2])
def test_states_of_transitions_chain(orders: int) -> None:
    """The next state of a step is the state of the following one; an episode begins flat and ends flat, terminated."""
    world = random_world(1, rules=tiny_rules(max_new_positions_per_day=orders))
    _, rows, _ = recorded(world)
    for name in ("slot_stock", "slot_features", "account"):
        assert torch.equal(rows[f"next_{name}"][:-1], rows[name][1:]), name
    for slots, features in (
        (rows["slot_stock"][0], rows["slot_features"][0]),
        (rows["next_slot_stock"][-1], rows["next_slot_features"][-1]),
    ):
        assert bool((slots == world.stocks).all()) and not bool(features.any())
    assert bool((rows["slot_stock"][1] < world.stocks).any())
    assert torch.equal(rows["account"][0], torch.tensor([1.0, 0.0, 1.0]).expand_as(rows["account"][0]))
    assert not bool(rows["terminated"][:-1].any()) and bool(rows["terminated"][-1].all())
    assert rows["order_stock"].shape[2] == orders


@pytest.mark.parametrize("orders", [1, 2])
@pytest.mark.parametrize("fill", ["next_open", "same_close"])
def test_orders_of_transitions_are_those_of_the_trades(orders: int, fill: str) -> None:
    world = random_world(1, rules=tiny_rules(max_new_positions_per_day=orders, fill=fill))
    _, rows, _ = recorded(world)
    rules, lanes = world.env.rules, world.env.lanes
    largest = MAX_COEFFICIENT * rules.initial_capital * rules.stake_percent / 100
    for lane in range(lanes):
        told = []
        for step in range(rules.episode_steps):
            for place in range(orders):
                order = (rows[f"order_{name}"][step, lane, place].item() for name in ("stock", "size", "target"))
                stock, size, target = order
                assert (stock == world.stocks) == (size == 0)
                if stock < world.stocks:
                    told.append((rows["day"][step, lane].item(), stock, size, target))
        trades = [
            (t["order_day"], t["stock"], t["value"] / largest, 100 * (t["target_price"] / t["entry_price"] - 1))
            for t in trade_ledger(world.env, lane)
        ]
        assert len(told) == len(trades)
        for mine, other in zip(told, trades, strict=True):
            assert mine[:2] == other[:2]
            assert mine[2:] == pytest.approx(other[2:], rel=1e-5)
    assert bool((rows["order_size"][: rules.trading_days] > 0).any())
    assert not bool((rows["order_size"][rules.trading_days :] > 0).any())


@pytest.mark.parametrize("credit", ["entry", "daily"])
@pytest.mark.parametrize("changes", [{}, {"inaction_penalty": 0.2, "loss_multiplier": 1.5}])
def test_rewards_sum_to_the_summary(credit: Credit, changes: dict[str, float]) -> None:
    """However they are credited; nothing is traded in some lanes, and then fitness is less by a penalty."""
    rules = tiny_rules(**changes)
    rollout, rows, _ = recorded(random_world(6, rules=rules), credit)
    idle = rollout.summary.positions_opened == 0
    total = rows["reward"].double().sum(0) - rules.zero_trades_penalty * idle
    assert torch.allclose(total, rollout.summary.fitness, atol=1e-5)


def test_entry_credit_is_what_the_trades_of_the_step_earned() -> None:
    world = random_world(1, rules=tiny_rules(max_new_positions_per_day=2))
    _, rows, _ = recorded(world, "entry")
    for lane in range(world.env.lanes):
        earned = dict.fromkeys(rows["day"][:, lane].tolist(), 0.0)
        for trade in trade_ledger(world.env, lane):
            earned[trade["order_day"]] += 100 * (trade["profit"] - trade["costs"]) / world.env.rules.initial_capital
        assert rows["reward"][:, lane].tolist() == pytest.approx(list(earned.values()), rel=1e-5, abs=1e-5)


def test_daily_credit_is_the_change_of_equity() -> None:
    rollout, rows, _ = recorded(random_world(1))
    change = rollout.equity.flatten(1).diff(dim=0) / 10_000
    assert torch.allclose(rows["reward"].double(), change, atol=1e-5)


def test_a_recorder_can_be_used_again() -> None:
    world, networks = random_world(), tiny_population(2).networks
    recorder, results = Recorder(), []
    for _ in range(2):
        roll_out(world.env, networks, world.tensors, world.starts(3), recorder=recorder)
        results.append(recorder.transitions(world.env, "entry"))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def uniform_actions(lanes: int, stocks: int, seed: int = 0) -> Tensor:
    share = torch.rand(lanes, stocks, 2, generator=seeded(seed))
    return share * torch.tensor([10.0, 40.0]) + torch.tensor([0.0, 10.0])


def in_range(action: Tensor) -> bool:
    coefficient, target = action[..., 0], action[..., 1]
    return bool(
        ((coefficient >= 0) & (coefficient <= MAX_COEFFICIENT)).all()
        and ((target >= MIN_TARGET_PERCENT) & (target <= MAX_TARGET_PERCENT)).all()
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.floats(0, 3), st.floats(0, 1))
def test_noise_keeps_to_the_ranges_and_off_the_first_lane(
    agents: int, windows: int, noisy: int, stocks: int, noise: float, chance: float
) -> None:
    shape = (agents, windows, 1 + noisy)
    action = uniform_actions(agents * windows * (1 + noisy), stocks)
    before = action.clone().view(*shape, stocks, 2)
    moved = explore(action, shape, Exploration(noise, chance, noisy, seeded(1))).view(*shape, stocks, 2)
    assert torch.equal(moved[:, :, 0], before[:, :, 0])
    assert in_range(moved)
    if noise == chance == 0:
        assert torch.allclose(moved, before, atol=1e-5)


def test_noise_has_the_given_size() -> None:
    """A tenth of each action's range, in the middle of the range where nothing is reflected."""
    action = torch.tensor([5.0, 30.0]).expand(2 * 3000, 4, 2).clone()
    moved = explore(action, (1, 3000, 2), Exploration(0.1, 0.0, 1, seeded())).view(3000, 2, 4, 2)[:, 1]
    assert torch.allclose(moved.flatten(0, 1).mean(0), torch.tensor([5.0, 30.0]), atol=0.15)
    assert torch.allclose(moved.flatten(0, 1).std(0), torch.tensor([1.0, 4.0]), rtol=0.05)


def test_reflection_puts_no_mass_on_the_bounds() -> None:
    """Also from actions that lie on a bound: half of clipped noise would stay there."""
    for corner in ([0.0, 10.0], [10.0, 50.0], [9.9, 10.1]):
        action = torch.tensor(corner).expand(2 * 4000, 3, 2).clone()
        moved = explore(action, (1, 4000, 2), Exploration(0.3, 0.0, 1, seeded())).view(4000, 2, 3, 2)[:, 1]
        on_bound = (moved == torch.tensor([0.0, 10.0])) | (moved == torch.tensor([10.0, 50.0]))
        assert float(on_bound.float().mean()) < 0.005
        assert len(set(moved[..., 0].flatten().tolist())) > 0.9 * moved[..., 0].numel()


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 12), st.integers(0, 10_000))
def test_a_random_order_is_for_one_stock(lanes: int, stocks: int, seed: int) -> None:
    action = random_orders(lanes, stocks, seeded(seed), torch.device("cpu"))
    assert in_range(action)
    assert (action[..., 0] >= MIN_COEFFICIENT).sum(1).tolist() == [1] * lanes
    assert (action[..., 0] > 0).sum(1).tolist() == [1] * lanes


def test_random_orders_are_uniform() -> None:
    lanes, stocks = 6000, 5
    action = random_orders(lanes, stocks, seeded(), torch.device("cpu"))
    size, stock = action[..., 0].max(1)
    counts = stock.bincount(minlength=stocks).double()
    assert float(((counts - lanes / stocks).square() / (lanes / stocks)).sum()) < 20
    for values, low, high in ((size, 1.0, 10.0), (action[:, 0, 1], 10.0, 50.0)):
        share = ((values - low) / (high - low)).sort().values
        assert float((share - torch.linspace(0, 1, lanes)).abs().max()) < 0.03


def test_all_exploring_lanes_order_at_random_if_told_so() -> None:
    action = uniform_actions(8, 5)
    moved = explore(action, (2, 2, 2), Exploration(0.3, 1.0, 1, seeded())).view(2, 2, 2, 5, 2)[:, :, 1]
    assert ((moved[..., 0] > 0).sum(-1) == 1).all()


def test_the_generator_decides_the_exploration() -> None:
    world = random_world()
    one, other, third = (recorded(world, seed=seed)[0].equity for seed in (0, 0, 1))
    assert torch.equal(one, other) and not torch.equal(one, third)


def test_play_gives_every_lane_its_own_window() -> None:
    """A policy that orders stock 1 at full size; lanes with equal starts have equal results, as in a lane alone."""
    world = random_world(7)

    def buy_one(env: object, step: int) -> Tensor:
        action = torch.zeros(world.env.lanes, world.stocks, 2)
        action[:, 1] = torch.tensor([10.0, 20.0])
        return action

    starts = torch.tensor([FIRST_DAY, 20, FIRST_DAY, 15])
    summary, equity = play(world.env, buy_one, starts)
    assert equity.shape == (world.env.rules.episode_steps + 1, 4)
    assert torch.equal(equity[:, 0], equity[:, 2]) and torch.equal(equity[-1], summary.final_equity)
    for lane, start in enumerate(starts):
        assert torch.equal(play(world.env, buy_one, start[None])[1][:, 0], equity[:, lane])
