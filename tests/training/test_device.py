"""The computation on a CUDA device: the CPU's results, and no host synchronisation inside a step loop.

What would make the host wait for the device can be told on a CPU too: such operations read a tensor's value, or have a
result whose shape depends on one. The tests that need a device are skipped without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from models.population import Population
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from training.learner import Learner

from data.market import MarketTensors
from environment.ledger import EpisodeSummary
from environment.portfolio import Portfolio
from models.replay_buffer import ReplayBuffer, TransitionBatch
from tests.tiny import (
    FIRST_DAY,
    FixedReplay,
    World,
    fill_replay,
    parameters,
    random_world,
    seeded,
    tiny_learning,
    tiny_population,
    tiny_rules,
)
from training.hindsight import order_results
from training.rollout import Exploration, Recorder, Rollout, random_orders, roll_out
from utils.config.trader import EnvironmentConfig, Representation

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
REPRESENTATIONS: tuple[Representation, ...] = ("independent", "shared")
_WAITING = {
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::unique_dim",
    "aten::_unique2",
    "aten::repeat_interleave.Tensor",
}
"""Operations for which a host waits until a CUDA device has done all its work."""


class WaitingError(AssertionError):
    """An operation would have made the host wait."""


class NoWaiting(TorchDispatchMode):
    """Refuses what would make the host wait for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        by_mask = name.startswith("aten::index") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8)
            for index in (args[1] if isinstance(args[1], list | tuple) else ())
        )
        if name in _WAITING or by_mask:
            raise WaitingError(name)
        return func(*args, **(kwargs or {}))


def test_what_would_wait_is_refused() -> None:
    values = torch.arange(4.0)
    waiting: list[Callable[[], object]] = [
        lambda: values[0].item(),
        lambda: bool(values.any()),
        lambda: values[values > 1],
        lambda: values[torch.tensor(1)],
        lambda: torch.nonzero(values),
    ]
    for work in waiting:
        with NoWaiting(), pytest.raises(WaitingError):
            work()


def roll_out_without(mode: contextlib.AbstractContextManager[Any], world: World, population: Population) -> Rollout:
    """A rollout with exploration and recording, `mode` being on from its first day to its end."""
    device = world.tensors.inputs.device
    generator = torch.Generator(device).manual_seed(0)
    with contextlib.ExitStack() as stack:
        has_begun: list[bool] = []

        def begin() -> None:
            if not has_begun:
                has_begun.append(True)
                stack.enter_context(mode)

        rollout = roll_out(
            world.env,
            population.networks,
            world.tensors,
            world.starts(3).to(device),
            exploration=Exploration(0.3, 0.5, 2, generator),
            recorder=Recorder(),
            safe_point=begin,
        )
        assert has_begun
        return rollout


def updates_without(mode: contextlib.AbstractContextManager[Any], learner: Learner, replay: ReplayBuffer) -> None:
    """Two updates with their sampling; the first one, which makes the optimiser's state, may wait."""
    generator = torch.Generator(replay.ring.data["day"].device).manual_seed(0)
    learner.update(generator)
    with mode:
        for _ in range(2):
            learner.update(generator)


@pytest.mark.parametrize("rules", [tiny_rules(), tiny_rules(delisting_loss=30.0, volume_cap=5.0)])
def test_no_day_of_a_rollout_waits(rules: EnvironmentConfig) -> None:
    roll_out_without(NoWaiting(), random_world(rules=rules), tiny_population(3))


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_no_update_waits(representation: Representation) -> None:
    world, population = random_world(), tiny_population(3, representation)
    replay = fill_replay(world, population)
    for hindsight in (None, order_results(world.env.bars, world.env.rules, FIRST_DAY, replay.last_day)):
        learner = Learner(population, replay, world.tensors, tiny_learning(), world.env.limits, hindsight)
        updates_without(NoWaiting(), learner, replay)


@contextlib.contextmanager
def cuda_sync_is_error() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_cuda(world: World) -> World:
    """The same world on the device."""
    env = Portfolio.on(world.market, world.env.rules, "cuda")
    return replace(world, tensors=MarketTensors.of(world.market, "cuda"), env=env)


def population_on_cuda(size: int, representation: Representation = "independent") -> Population:
    """A population on the device with the CPU population's parameters and precision."""
    source = tiny_population(size, representation)
    config = replace(source.network_config, precision="float32")
    target = Population(size, config, tiny_learning(), source.networks.context_days, "cuda")
    target.networks.load_state_dict(source.networks.state_dict())
    target.targets.load_state_dict(source.targets.state_dict())
    return target


@needs_cuda
def test_accounts_are_the_same_on_cuda() -> None:
    world = random_world(seed=3)
    starts, rules = world.starts(64), world.env.rules
    actions = [
        random_orders(64, world.stocks, seeded(step), torch.device("cpu")) for step in range(rules.episode_steps)
    ]

    def play(played: World, device: str) -> tuple[Tensor, EpisodeSummary]:
        played.env.reset(starts.to(device))
        for action in actions:
            played.env.step(action.to(device))
        return played.env.equity_curve.cpu(), played.env.summary()

    (equity, summary), (equity_cuda, summary_cuda) = play(world, "cpu"), play(on_cuda(world), "cuda")
    torch.testing.assert_close(equity_cuda, equity, rtol=1e-12, atol=1e-6)
    for field in fields(EpisodeSummary):
        ours, theirs = getattr(summary, field.name), getattr(summary_cuda, field.name).cpu()
        torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-6)


@needs_cuda
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_a_rollout_is_the_same_on_cuda(representation: Representation) -> None:
    world = random_world(seed=4)
    starts = world.starts(4)
    ours = roll_out(world.env, tiny_population(3, representation).networks, world.tensors, starts)
    there = on_cuda(world)
    theirs = roll_out(there.env, population_on_cuda(3, representation).networks, there.tensors, starts.to("cuda"))
    torch.testing.assert_close(theirs.equity.cpu(), ours.equity, rtol=1e-5, atol=1.0)
    torch.testing.assert_close(theirs.fitness.cpu(), ours.fitness, rtol=1e-3, atol=1e-3)


@needs_cuda
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_an_update_is_the_same_on_cuda(representation: Representation) -> None:
    world, population = random_world(seed=5), tiny_population(3, representation)
    replay = fill_replay(world, population)
    config = tiny_learning(micro_batch_agents=2)
    block, batch = replay.sample_block(config.block_days, 3, config.batch_size, seeded())
    there, twin = on_cuda(world), population_on_cuda(3, representation)
    for played, learned, device in ((world, population, "cpu"), (there, twin, "cuda")):
        same = TransitionBatch(**{name: value.to(device) for name, value in vars(batch).items()})
        fixed: Any = FixedReplay(FIRST_DAY, replay.last_day, block.to(device), same)
        Learner(learned, fixed, played.tensors, config, world.env.limits).update(torch.Generator(device))
    theirs = parameters(twin)
    for name, value in parameters(population).items():
        torch.testing.assert_close(theirs[name].cpu(), value, rtol=1e-3, atol=1e-5, msg=name)


@needs_cuda
def test_a_cuda_device_encodes_in_bfloat16_unless_told_otherwise() -> None:
    world, exact = on_cuda(random_world(seed=6)), population_on_cuda(2)
    usual = Population(2, replace(exact.network_config, precision="auto"), tiny_learning(), exact.networks.context_days)
    usual.networks.load_state_dict(exact.networks.state_dict())
    found, expected = (
        networks.encode_distinct(world.tensors.inputs, world.tensors.investable).stocks
        for networks in (usual.networks.to("cuda"), exact.networks)
    )
    assert found.dtype == torch.float32
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.2)


@needs_cuda
def test_no_day_of_a_rollout_waits_on_cuda() -> None:
    roll_out_without(cuda_sync_is_error(), on_cuda(random_world()), population_on_cuda(3))


@needs_cuda
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_no_update_waits_on_cuda(representation: Representation) -> None:
    world, on_cpu = on_cuda(random_world()), random_world()
    population = population_on_cuda(3, representation)
    filled = fill_replay(on_cpu, tiny_population(3, representation))
    replay = ReplayBuffer(
        4096,
        first_day=FIRST_DAY,
        last_day=filled.last_day,
        slots=world.env.slots,
        orders_per_day=world.env.orders_per_day,
        device="cuda",
    )
    replay.add({name: store[: filled.size].to("cuda") for name, store in filled.ring.data.items()})
    for hindsight in (None, order_results(world.env.bars, world.env.rules, FIRST_DAY, replay.last_day)):
        learner = Learner(population, replay, world.tensors, tiny_learning(), world.env.limits, hindsight)
        updates_without(cuda_sync_is_error(), learner, replay)
