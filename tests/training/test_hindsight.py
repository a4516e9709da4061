"""What orders that nobody gave would have earned: the environment's own results, of training days only."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from environment.ledger import Bars
from environment.orders import Orders
from environment.portfolio import Portfolio
from tests.tiny import (
    FIRST_DAY,
    World,
    fill_replay,
    parameters,
    random_world,
    seeded,
    tiny_learning,
    tiny_population,
    tiny_rules,
    trending_panel,
    world_of,
)
from training.ddpg import hindsight_values
from training.hindsight import Hindsight, HindsightOrders, hindsight_loss, order_results
from training.learner import Learner, with_noise
from utils.config.trader import EnvironmentConfig, Representation
from utils.spaces import MAX_COEFFICIENT

LAST_DAY = 33


def hindsight_of(world: World, rules: EnvironmentConfig | None = None, last_day: int = LAST_DAY) -> Hindsight:
    return order_results(world.env.bars, rules or world.env.rules, FIRST_DAY, last_day)


@given(
    seed=st.integers(0, 2**16),
    same_close=st.booleans(),
    loss_multiplier=st.sampled_from((1.0, 2.5)),
    cost_bps=st.sampled_from((0.0, 5.0, 80.0)),
    delisting_loss=st.sampled_from((0.0, 30.0)),
)
@settings(max_examples=25, deadline=None)
def test_results_are_what_the_environment_pays(
    seed: int, same_close: bool, loss_multiplier: float, cost_bps: float, delisting_loss: float
) -> None:
    """An account that is never short of cash gives random orders; each is credited what was known in hindsight."""
    rules = tiny_rules(
        trading_days=20,
        settlement_days=4,
        stake_percent=0.5,
        fill="same_close" if same_close else "next_open",
        loss_multiplier=loss_multiplier,
        cost_bps=cost_bps,
        delisting_loss=delisting_loss,
    )
    world = random_world(seed, days=60, rules=rules)
    hindsight = hindsight_of(world, last_day=59)
    generator = seeded(seed)
    lanes, portfolio = 5, world.env
    start = torch.randint(FIRST_DAY, 60 - rules.episode_steps, (lanes,), generator=generator)
    world.env.reset(start)
    given_orders: list[Tensor] = []
    for _ in range(rules.episode_steps):
        stock = torch.randint(world.stocks, (lanes,), generator=generator)
        which = torch.randint(len(hindsight.targets), (lanes,), generator=generator)
        coefficient = 1.0 + 9.0 * torch.rand(lanes, generator=generator)
        may = portfolio.candidates().gather(1, stock[:, None]).squeeze(1) & portfolio.is_trading
        given_orders.append(torch.stack((stock.double(), which.double(), coefficient * may), 1))
        target = hindsight.targets[which]
        orders = Orders(stock[None], (coefficient * may).double()[None], target.double()[None])
        portfolio.step_orders(orders if portfolio.is_trading else None)
    credited = portfolio.entry_credited_rewards()
    for step, orders_of_day in enumerate(given_orders):
        stock, which = orders_of_day[:, 0].long(), orders_of_day[:, 1].long()
        known = hindsight.rewards[which, start + step - FIRST_DAY, stock]
        size = orders_of_day[:, 2] / MAX_COEFFICIENT
        expected = torch.where(size > 0, known.double() * size, 0.0)
        can_tell = expected.isfinite() & (start + step + portfolio.slots < start + rules.episode_steps)
        torch.testing.assert_close(credited[step][can_tell], expected[can_tell], rtol=1e-5, atol=1e-6)


def test_the_comparison_above_compares_something() -> None:
    rewards = hindsight_of(random_world(1)).rewards
    assert rewards.isfinite().float().mean() > 0.4
    assert (rewards[rewards.isfinite()] != 0).float().mean() > 0.8


def test_results_are_those_of_orders_that_no_cap_cuts() -> None:
    """Only where nothing was traded does an order earn nothing, as it buys nothing."""
    rules = tiny_rules(volume_cap=5.0)
    world = random_world(5, rules=rules)
    capped, free = (hindsight_of(world, chosen).rewards for chosen in (rules, tiny_rules()))
    volume = world.env.bars.volume
    assert volume is not None
    is_idle = volume.view(world.env.bars.days, -1)[FIRST_DAY + 1 : LAST_DAY + 2] == 0
    assert 0 < is_idle.sum() < is_idle.numel() / 2
    expected = torch.where(is_idle & free.isfinite(), 0.0, free)
    torch.testing.assert_close(capped, expected, rtol=0, atol=0, equal_nan=True)


def test_what_cannot_be_known_is_not() -> None:
    world = random_world(2)
    hindsight, tradable = hindsight_of(world), world.tensors.tradable[FIRST_DAY : LAST_DAY + 1]
    longest = world.env.slots
    is_known = hindsight.rewards.isfinite()
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
    ours, theirs = (order_results(b, rules, FIRST_DAY, LAST_DAY).rewards for b in (bars, corrupted))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_a_span_too_short_for_any_trade_knows_nothing() -> None:
    assert not hindsight_of(random_world(), last_day=FIRST_DAY + 1).rewards.isfinite().any()


def test_long_spans_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    world = random_world(3)
    whole = hindsight_of(world).rewards
    monkeypatch.setattr("training.hindsight._DAYS_AT_ONCE", 7)
    torch.testing.assert_close(hindsight_of(world).rewards, whole, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_orders_are_drawn_from_their_day() -> None:
    world = random_world(4)
    hindsight = hindsight_of(world)
    day = torch.randint(FIRST_DAY, LAST_DAY, (3, 50), generator=seeded())
    orders = hindsight.draw(day, 6, seeded())
    assert orders.stock.shape == (3, 50, 6)
    assert set(orders.stock.unique().tolist()) == set(range(world.stocks))
    assert set(orders.target_percent.unique().tolist()) == set(hindsight.targets.tolist())
    which = torch.searchsorted(hindsight.targets, orders.target_percent)
    looked_up = hindsight.rewards[which, (day - FIRST_DAY)[..., None], orders.stock]
    assert orders.is_known.equal(looked_up.isfinite())
    assert orders.reward.equal(looked_up.nan_to_num(0.0))
    assert orders.of(slice(1, 3)).stock.equal(orders.stock[1:3])


def test_a_block_lies_among_the_training_days_and_any_may_be_drawn() -> None:
    hindsight = hindsight_of(random_world(4))
    last = FIRST_DAY + hindsight.rewards.shape[1] - 1
    generator, days = seeded(), set[int]()
    for _ in range(200):
        first_day, day_offset, orders = hindsight.draw_block(8, (2, 5), 3, generator)
        assert orders.stock.shape == (2, 5, 3) and day_offset.shape == (2, 5)
        assert int(day_offset.min()) >= 0 and int(day_offset.max()) < 8
        days |= set((first_day + day_offset).flatten().tolist())
    assert days == set(range(FIRST_DAY, last + 1))
    first_day, day_offset, _ = hindsight.draw_block(10_000, (2, 50), 3, generator)
    assert int(first_day) == FIRST_DAY and int(day_offset.max()) <= last - FIRST_DAY


def test_the_loss_is_a_mean_over_known_orders() -> None:
    reward = torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])
    known = torch.tensor([[[True, True], [True, False]]])
    orders = HindsightOrders(torch.zeros(1, 2, 2, dtype=torch.int64), torch.full((1, 2, 2), 20.0), reward, known)
    values = torch.zeros(1, 2, 2)
    assert hindsight_loss([values], orders).tolist() == pytest.approx([(1 + 4 + 9) / 3])
    assert hindsight_loss([values, reward], orders).tolist() == pytest.approx([(1 + 4 + 9) / 3])
    nothing = replace(orders, is_known=torch.zeros_like(known))
    assert hindsight_loss([values], nothing).tolist() == [0.0]


@pytest.mark.parametrize("representation", ("independent", "shared"))
def test_any_cut_into_micro_batches_is_the_same_update(representation: Representation) -> None:
    world = random_world(5)
    results = []
    for cut in (1, 2, 3):
        population = tiny_population(3, representation)
        replay = fill_replay(world, population)
        config = tiny_learning(micro_batch_agents=cut)
        rules = world.env.limits
        learner = Learner(population, replay, world.tensors, config, rules, hindsight_of(world, last_day=39))
        stats = learner.update(seeded(1))
        assert (stats.hindsight_loss > 0).all()
        results.append(parameters(population))
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_only_hindsight_trains_the_value_of_trades() -> None:
    """Where no result is known, the temporal difference leaves the trades' value and the encoder alone."""
    learning = tiny_learning(critic_weight_decay=0.0, query_weight_decay=0.0)
    world, population = random_world(6), tiny_population(2, learning=learning)
    known = hindsight_of(world, last_day=39)
    unknown = replace(known, rewards=torch.full_like(known.rewards, torch.nan))
    before = parameters(population)
    learner = Learner(population, fill_replay(world, population), world.tensors, learning, world.env.limits, unknown)
    stats = learner.update(seeded(1))
    assert stats.hindsight_loss.tolist() == [0.0, 0.0] and (stats.critic_loss > 0).all()
    after = parameters(population)
    moved = {name for name in before if not before[name].equal(after[name])}
    assert not [name for name in moved if name.startswith("networks.encoder")]
    moved = {name for name in moved if name.startswith("networks.critics.0")}
    trades = ("order_stock", "order_state", "order_hidden", "order_out")
    assert not [name for name in moved if any(part in name for part in trades)]
    assert any("cash_hidden" in name for name in moved) and any("value_hidden" in name for name in moved)


def test_each_step_moves_what_it_trains_and_nothing_else() -> None:
    """Adam counts the steps of each parameter: those of hindsight for what it trains, one for the rest."""
    world, population = random_world(6), tiny_population(2)
    config = tiny_learning(hindsight_steps=3)
    replay = fill_replay(world, population)
    learner = Learner(population, replay, world.tensors, config, world.env.limits, hindsight_of(world))
    learner.update(seeded(1))
    steps: dict[int, set[str]] = {}
    for optimizer in (population.critic_optimizer, population.actor_optimizer):
        for name, parameter in population.networks.named_parameters():
            if parameter in optimizer.state:
                steps.setdefault(int(optimizer.state[parameter]["step"]), set()).add(name)
    by_hindsight = {name for name in steps[3] if name.startswith("encoder.") or ".order_" in name}
    assert set(steps) == {1, 3} and steps[3] == by_hindsight
    assert steps[1] | steps[3] == {name for name, _ in population.networks.named_parameters()}


@pytest.mark.parametrize("steps", [1, 3])
def test_an_agent_that_breaks_in_hindsight_is_left_where_it_was(steps: int) -> None:
    """Its update is counted as left out, and the others' is what it is without it."""
    world, config = random_world(6), tiny_learning(hindsight_steps=steps)
    known = hindsight_of(world, last_day=39)
    results: list[dict[str, Tensor]] = []
    for breaks in (True, False):
        population = tiny_population(3)
        replay = fill_replay(world, tiny_population(3))
        if breaks:
            with torch.no_grad():
                population.networks.get_parameter("critics.0.order_out.weight")[1, 0, 0] = torch.inf
        before = parameters(population)
        learner = Learner(population, replay, world.tensors, config, world.env.limits, known)
        stats = learner.update(seeded(1))
        assert stats.is_finite.tolist() == [True, not breaks, True]
        results.append(parameters(population))
        if breaks:
            assert all(value[1].equal(before[name][1]) for name, value in results[0].items())
    for name, value in results[1].items():
        torch.testing.assert_close(results[0][name][[0, 2]], value[[0, 2]], rtol=1e-5, atol=1e-7, msg=name)


def test_noise_is_put_on_what_is_there() -> None:
    """A missing bar stays the mean, the mask stays, and nothing changes the market's own tensor."""
    clean = torch.randn(50, 400, 10, generator=seeded(1))
    clean[..., -1] = (torch.rand(50, 400, generator=seeded(2)) < 0.7).float()
    clean[..., :-1] *= clean[..., -1:]
    before = clean.clone()
    noisy = with_noise(clean, 0.6, seeded(3))
    is_there = clean[..., -1] > 0
    assert torch.equal(noisy[..., -1], clean[..., -1]) and torch.equal(noisy[~is_there], clean[~is_there])
    noise = (noisy - clean)[is_there][:, :-1]
    assert noise.std().item() == pytest.approx(0.6, rel=0.02) and abs(noise.mean().item()) < 0.01
    assert torch.equal(clean, before) and with_noise(clean, 0.0, seeded(3)) is clean


def test_only_days_known_in_hindsight_are_seen_with_noise() -> None:
    world = random_world(5)
    results: dict[tuple[bool, float], dict[str, Tensor]] = {}
    for known in (False, True):
        for noise in (0.0, 0.6):
            population = tiny_population(2)
            config = tiny_learning(input_noise=noise)
            hindsight = hindsight_of(world, last_day=39) if known else None
            replay = fill_replay(world, population)
            Learner(population, replay, world.tensors, config, world.env.limits, hindsight).update(seeded(1))
            results[known, noise] = parameters(population)
    assert all(value.equal(results[False, 0.6][name]) for name, value in results[False, 0.0].items())
    for part in ("encoder.weights.0", "critics.0.order_out.weight", "actor.out.weight"):
        assert not results[True, 0.0][f"networks.{part}"].equal(results[True, 0.6][f"networks.{part}"])


def test_critics_learn_what_each_trade_earns() -> None:
    """Two stocks rise, two fall, at constant rates: the value of a trade is known, and so is found."""
    world = world_of(trending_panel((0.01, 0.004, -0.004, -0.01), 60, noise=0.0), rules=tiny_rules(trading_days=20))
    config = tiny_learning(batch_size=32, hindsight_orders=8, input_noise=0.5, critic_weight_decay=0.1)
    population = tiny_population(2, learning=config, hidden_units=24)
    hindsight, replay = hindsight_of(world, last_day=59), fill_replay(world, population)
    learner = Learner(population, replay, world.tensors, config, world.env.limits, hindsight)
    generator = seeded(2)
    for _ in range(100):
        learner.update(generator)
    day = FIRST_DAY + 12
    context = population.networks.context_days
    inputs = world.tensors.inputs[:, day - context + 1 : day + 1]
    stock = torch.arange(4).expand(2, 1, 4)
    orders = HindsightOrders(
        stock, torch.full((2, 1, 4), 20.0), torch.zeros(2, 1, 4), torch.ones(2, 1, 4, dtype=torch.bool)
    )
    with torch.no_grad():
        encoding = population.networks.encode_distinct(inputs, world.tensors.investable)
        values = hindsight_values(
            population.networks, encoding, torch.zeros(2, 1, dtype=torch.int64), orders, slice(None)
        )
    row = int((hindsight.targets == 20.0).nonzero())
    earned = hindsight.rewards[row, day - FIRST_DAY]
    for value in values:
        torch.testing.assert_close(value[:, 0], earned.expand(2, 4), rtol=0.2, atol=0.25)


def test_no_update_with_hindsight_depends_on_the_environment_object() -> None:
    """Looking back uses an account of its own: running episodes are left alone."""
    world = random_world(7)
    env: Portfolio = world.env
    env.reset(world.starts(3))
    before = env.equity.clone()
    hindsight_of(world)
    assert env.equity.equal(before) and env.step_index == 0
