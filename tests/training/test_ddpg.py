"""Losses against plain arithmetic, gradients against finite differences, and any cut of an update against the whole."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from models.population import Population
from tests.tiny import (
    FIRST_DAY,
    FixedReplay,
    World,
    copy_rows,
    double_learner,
    double_population,
    fill_replay,
    fixed_replay,
    parameters,
    random_world,
    seeded,
    tiny_learning,
    tiny_population,
    tiny_rules,
    trending_panel,
    world_of,
)
from training.ddpg import UpdateStats, actor_loss, clip_gradients, critic_loss, mean_stats, td_target
from training.learner import Learner
from training.rollout import Exploration, encode_windows
from utils.config.trader import LearningConfig, Representation

BOTH = pytest.mark.parametrize("representation", ["independent", "shared"])
UNCLIPPED = 1e9


def test_td_target_tells_termination_from_truncation() -> None:
    """An episode that ended has no future; one that was cut short has."""
    reward, value = torch.tensor([1.0, 1.0, -2.0]), torch.tensor([10.0, 10.0, -4.0])
    terminated = torch.tensor([True, False, False])
    assert td_target(reward, terminated, value, 0.5).tolist() == [1.0, 6.0, -4.0]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 2), st.integers(0, 1000))
def test_losses_are_plain_arithmetic(agents: int, batch: int, critics: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, target = rng.normal(size=(critics, agents, batch)), rng.normal(size=(agents, batch))
    found = critic_loss([torch.from_numpy(value) for value in values], torch.from_numpy(target)).tolist()
    for agent in range(agents):
        squares = [
            sum((values[c][agent][b] - target[agent][b]) ** 2 for b in range(batch)) / batch for c in range(critics)
        ]
        assert found[agent] == pytest.approx(sum(squares), rel=1e-12)
    ascent = actor_loss(torch.from_numpy(target)).tolist()
    assert ascent == pytest.approx([-sum(row) / batch for row in target.tolist()], rel=1e-12)


def parameters_with(gradients: list[Tensor]) -> list[nn.Parameter]:
    found = []
    for gradient in gradients:
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient.clone()
        found.append(parameter)
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.floats(0.01, 10), st.floats(0.01, 5), st.integers(0, 1000))
def test_clipping_is_that_of_each_agent_alone(agents: int, scale: float, largest: float, seed: int) -> None:
    g = seeded(seed)
    gradients = [scale * torch.randn(agents, *shape, generator=g) for shape in ((3, 2), (1, 4), (2,))]
    shared = [scale * torch.randn(3, generator=g), scale * torch.randn(2, 2, generator=g)]
    stacked, common = parameters_with(gradients), parameters_with(shared)
    norms = clip_gradients(stacked, common, largest)
    for agent in range(agents):
        alone = parameters_with([gradient[agent] for gradient in gradients])
        norm = nn.utils.clip_grad_norm_(alone, largest)
        assert float(norms[agent]) == pytest.approx(float(norm), rel=1e-5)
        for mine, other in zip(stacked, alone, strict=True):
            assert mine.grad is not None and other.grad is not None
            assert torch.allclose(mine.grad[agent], other.grad, rtol=1e-5, atol=1e-7)
    together = parameters_with(shared)
    nn.utils.clip_grad_norm_(together, largest)
    for mine, other in zip(common, together, strict=True):
        assert mine.grad is not None and other.grad is not None and torch.equal(mine.grad, other.grad)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_agent_that_is_not_finite_is_left_out(bad: float) -> None:
    gradients = [torch.randn(3, 4, generator=seeded()), torch.randn(3, 2, 2, generator=seeded(1))]
    healthy = parameters_with(gradients)
    clip_gradients(healthy, [], 1.0)
    gradients[1][1, 0, 1] = bad
    broken = parameters_with(gradients)
    norms = clip_gradients(broken, [], 1.0)
    assert norms.isfinite().tolist() == [True, False, True]
    for mine, other in zip(broken, healthy, strict=True):
        assert mine.grad is not None and other.grad is not None
        assert not bool(mine.grad[1].any())
        assert torch.equal(mine.grad[[0, 2]], other.grad[[0, 2]])


def stats(*norms: float) -> UpdateStats:
    ones = torch.ones(len(norms))
    return UpdateStats(ones, ones, torch.zeros(len(norms)), torch.tensor(norms), ones)


def test_skipped_updates_are_counted() -> None:
    assert mean_stats([]) == {}
    found = mean_stats([stats(1.0, 3.0), stats(2.0, math.nan), stats(math.inf, 2.0)])
    assert found["skipped_updates"] == 2 and found["critic_loss"] == 1.0 and found["actor_loss"] == 0.0


@pytest.mark.parametrize("broken", ["actor", "critics.0"])
def test_a_broken_agent_leaves_the_others_alone(broken: str) -> None:
    """An agent with a weight that is NaN: its update is left out, those of the others are what they were."""
    world, config = random_world(), tiny_learning()
    results = []
    for breaks in (True, False):
        population = double_population(tiny_population(3))
        replay = fixed_replay(fill_replay(world, tiny_population(3)), 3, config)
        name = "actor.hidden.weight" if broken == "actor" else f"{broken}.value_hidden.weight"
        if breaks:
            with torch.no_grad():
                population.networks.get_parameter(name)[1, 0, 0] = math.nan
        found = double_learner(world, population, replay, config).update(seeded())
        results.append((parameters(population), found))
    (mine, found), (expected, _) = results
    assert bool((~(found.gradient_norm_critic.isfinite() & found.gradient_norm_actor.isfinite()))[1])
    for name, value in mine.items():
        assert torch.allclose(value[[0, 2]], expected[name][[0, 2]], rtol=1e-9, atol=1e-12), name


def test_a_broken_agent_does_not_break_a_shared_encoder() -> None:
    world, config = random_world(), tiny_learning()
    population = double_population(tiny_population(3, "shared"))
    replay = fixed_replay(fill_replay(world, tiny_population(3, "shared")), 3, config)
    with torch.no_grad():
        population.networks.get_parameter("critics.0.value_hidden.weight")[1, 0, 0] = math.nan
    double_learner(world, population, replay, config).update(seeded())
    assert all(bool(p.isfinite().all()) for p in population.networks.encoder.parameters())
    assert all(bool(p[[0, 2]].isfinite().all()) for p in population.networks.actor.parameters())


@BOTH
def test_any_cut_into_micro_batches_is_the_same_update(representation: Representation) -> None:
    world, agents = random_world(), 7
    results = []
    for cut, agents_per_head in ((1, 1), (3, 3), (agents, agents), (0, agents), (agents, 3)):
        config = tiny_learning(micro_batch_agents=cut)
        population = tiny_population(agents, representation, config)
        replay = fill_replay(world, tiny_population(agents, representation), windows=4)
        learner = Learner(population, replay, world.tensors, config, world.env.limits)
        # Large markets cut the heads finer than the encoders; this one is too small to.
        learner.agents_per_head = agents_per_head
        generator = seeded(2)
        found = [learner.update(generator) for _ in range(2)]
        results.append((parameters(population), torch.stack([s.critic_loss + s.actor_loss for s in found])))
    for other, losses in results[1:]:
        assert torch.allclose(losses, results[0][1], rtol=1e-4, atol=1e-6)
        for name, value in results[0][0].items():
            assert torch.allclose(value, other[name], rtol=0, atol=1e-5), name


def alone(population: Population, agent: int, world: World, replay: FixedReplay, config: LearningConfig) -> Population:
    """The agent as a population of one after one update on its own share of the transitions."""
    representation: Representation = "shared" if population.is_shared else "independent"
    single = double_population(tiny_population(1, representation, config))
    row = slice(agent, agent + 1)
    copy_rows(population, row, single)
    double_learner(world, single, replay.of(row), config).update(seeded())
    return single


@pytest.mark.parametrize("critic", ["structured", "plain"])
@pytest.mark.parametrize("twin_critics", [True, False])
def test_a_population_is_its_agents(critic: str, twin_critics: bool) -> None:
    """One update of three agents together is the update of each alone: parameters, targets and moments."""
    world, config, agents = random_world(), tiny_learning(), 3
    shape: dict[str, Any] = {"critic": critic, "twin_critics": twin_critics}
    replay = fixed_replay(fill_replay(world, tiny_population(agents)), agents, config)
    population, untouched = (double_population(tiny_population(agents, **shape)) for _ in range(2))
    double_learner(world, population, replay, config).update(seeded())
    for agent in range(agents):
        single = double_population(tiny_population(1, "independent", config, **shape))
        row = slice(agent, agent + 1)
        copy_rows(untouched, row, single)
        double_learner(world, single, replay.of(row), config).update(seeded())
        for name, stack in single.stacks().items():
            assert torch.allclose(stack, population.stacks()[name][row], rtol=1e-9, atol=1e-12), name


def test_the_shared_encoder_learns_from_the_mean_over_agents() -> None:
    world, agents = random_world(), 3
    config = tiny_learning(max_gradient_norm=UNCLIPPED)
    replay = fixed_replay(fill_replay(world, tiny_population(agents, "shared")), agents, config)
    population, untouched = (double_population(tiny_population(agents, "shared")) for _ in range(2))
    double_learner(world, population, replay, config).update(seeded())
    singles = [alone(untouched, agent, world, replay, config) for agent in range(agents)]
    for name, parameter in population.networks.encoder.named_parameters():
        gradients = [single.networks.encoder.get_parameter(name).grad for single in singles]
        mean = torch.stack([gradient for gradient in gradients if gradient is not None]).mean(0)
        assert parameter.grad is not None and bool(mean.any())
        assert torch.allclose(parameter.grad, mean, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize(("representation", "critic"), [("independent", "structured"), ("shared", "plain")])
def test_gradients_are_those_of_the_losses(representation: Representation, critic: str) -> None:
    """Central differences in float64, for every parameter tensor in a random direction over all agents.

    The actor's loss reads the encoder without training it.
    """
    world, agents = random_world(), 2
    config = tiny_learning(max_gradient_norm=UNCLIPPED, batch_size=6)
    source = fill_replay(world, tiny_population(agents, representation))
    replay = fixed_replay(source, agents, config)
    population = double_population(tiny_population(agents, representation, critic=critic))
    with torch.no_grad():
        # With biases of zero a rectifier that nothing reaches would sit on its kink.
        for name, parameter in population.networks.named_parameters():
            if "bias" in name:
                parameter.normal_(std=0.1, generator=seeded())
    networks = {name: value.clone() for name, value in population.networks.state_dict().items()}
    targets = {name: value.clone() for name, value in population.targets.state_dict().items()}
    learner = double_learner(world, population, replay, config)

    def losses(name: str, step: Tensor | float) -> UpdateStats:
        population.networks.load_state_dict(networks)
        population.targets.load_state_dict(targets)
        with torch.no_grad():
            population.networks.get_parameter(name).add_(step)
        return learner.update(seeded())

    losses("actor.out.weight", 0.0)
    gradients = {name: p.grad.clone() for name, p in population.networks.named_parameters() if p.grad is not None}
    assert gradients.keys() == networks.keys()
    for name, gradient in gradients.items():
        direction = torch.randn(gradient.shape, generator=seeded(), dtype=torch.float64)
        above, below = losses(name, 1e-7 * direction), losses(name, -1e-7 * direction)
        kind = "actor_loss" if name.startswith("actor.") else "critic_loss"
        slope = (getattr(above, kind) - getattr(below, kind)) / 2e-7
        slope = slope.mean() if population.is_shared and name.startswith("encoder.") else slope.sum()
        assert float((gradient * direction).sum()) == pytest.approx(float(slope), rel=1e-4, abs=1e-7), name


def test_an_update_moves_everything_that_learns() -> None:
    world, config = random_world(), tiny_learning(tau=0.5)
    population = tiny_population(2, learning=config)
    replay = fill_replay(world, population)
    before = parameters(population)
    Learner(population, replay, world.tensors, config, world.env.limits).update(seeded())
    after = parameters(population)
    for name, value in before.items():
        assert not torch.equal(value, after[name]), name
        if name.startswith("targets."):
            online = after[name.replace("targets.", "networks.", 1)]
            assert torch.allclose(after[name], 0.5 * value + 0.5 * online, atol=1e-6), name


def test_without_a_future_the_targets_are_the_rewards() -> None:
    """With every transition terminated the critic's loss cannot depend on the target networks."""
    world, config = random_world(), tiny_learning()
    replay = fixed_replay(fill_replay(world, tiny_population(2)), 2, config)
    ended = replace(replay, batch=replace(replay.batch, terminated=torch.ones_like(replay.batch.terminated)))
    losses = {}
    for kind, transitions in (("ended", ended), ("running", replay)):
        for shift in (0.0, 1.0):
            population = double_population(tiny_population(2))
            with torch.no_grad():
                for name in ("critics.0", "critics.1"):
                    population.targets.get_parameter(f"{name}.value_out.bias").add_(shift)
            losses[kind, shift] = double_learner(world, population, transitions, config).update(seeded()).critic_loss
    assert torch.equal(losses["ended", 0.0], losses["ended", 1.0])
    assert not torch.allclose(losses["running", 0.0], losses["running", 1.0])


@BOTH
def test_learns_which_stock_always_rises(representation: Representation) -> None:
    """Of four stocks one rises by 2 percent a day: its coefficient comes to lead the others clearly."""
    riser, agents = 2, 2
    rules = tiny_rules(max_holding_days=2)
    world = world_of(trending_panel([-0.01, 0.0, 0.02, -0.005], 60), rules=rules)
    config = tiny_learning(
        batch_size=64, block_days=16, gamma=0.9, tau=0.05, actor_learning_rate=5e-3, critic_learning_rate=5e-3
    )
    population = tiny_population(agents, representation, config)
    replay = fill_replay(world, population, windows=8, exploration=Exploration(0.3, 0.7, 4, seeded()))
    learner, generator = Learner(population, replay, world.tensors, config, world.env.limits), seeded(1)
    for _ in range(80):
        learner.update(generator)
    days = torch.arange(FIRST_DAY, world.tensors.days)
    encoded = encode_windows(population.networks, world.tensors, [FIRST_DAY], len(days)).days
    stocks = encoded.stocks.expand(agents, -1, -1, -1)
    account = torch.tensor([1.0, 0.0, 0.5]).expand(agents, len(days), 3)
    with torch.no_grad():
        action = population.networks.actor(
            stocks, encoded.summary.expand(agents, -1, -1), stocks.new_zeros(*stocks.shape[:3], 6), account
        )
    coefficient = action[..., 0]
    others = torch.cat((coefficient[..., :riser], coefficient[..., riser + 1 :]), -1)
    lead = coefficient[..., riser] - others.amax(-1)
    assert float((lead > 0).float().mean()) >= 0.95
    assert bool((lead.mean(1) > 1).all()), lead.mean(1)
