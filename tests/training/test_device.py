"""The computation on a CUDA device: the CPU's results, and no day of a rollout reads a value back.

What would make the host wait for the device can be told on a CPU too: such operations read a tensor's value, or have a
result whose shape depends on one. The tests that need a device are skipped without.
"""

import contextlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from environment.ledger import EpisodeSummary
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.cash_value import CashValue
from models.ddpg_agent import DDPGAgent
from models.trader import Forecasts, Traders
from tests.small_market import TINY_RULES
from tests.tiny import (
    TINY_EVOLUTION,
    World,
    learnable_market,
    random_world,
    seeded,
    tiny_agent,
    tiny_rules,
    tiny_trainer,
)
from training.rollout import Rollout, roll_out
from utils.config.trader import EnvironmentConfig

AGENTS = 3
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
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


def decided_by(world: World, device: str) -> tuple[Traders, Forecasts, CashValue]:
    """Agents, what they expect and a value of cash, the same on every device."""
    target, value_weight = torch.rand(2, AGENTS, generator=seeded(1), dtype=torch.float64)
    expected = torch.randn(AGENTS, world.days, world.stocks, generator=seeded(2))
    nothing = CashValue.zero(world.env.rules, device)
    weights = torch.rand(len(nothing.weights), generator=seeded(3), dtype=torch.float64).to(device)
    numbers = (torch.zeros(AGENTS, 1), 10 + 20 * target, value_weight, torch.ones_like(target))
    traders = Traders(*(number.to(device) for number in numbers))
    forecasts = Forecasts.of(expected.to(device), world.env.bars.tradable.to(device), traders.target_percent)
    return traders, forecasts, nothing.with_values(weights, nothing.opportunity_knots)


def rolled_out(world: World, device: str = "cpu", safe_point: Callable[[], None] | None = None) -> Rollout:
    """A rollout with exploration and records."""
    exploration_threshold = torch.rand(AGENTS, 1, generator=seeded(4), dtype=torch.float64).to(device)
    return roll_out(
        world.trading,
        *decided_by(world, device),
        world.starts(4).to(device),
        exploration_threshold=exploration_threshold,
        records=True,
        safe_point=safe_point,
    )


@pytest.mark.parametrize(
    "rules", [tiny_rules(), tiny_rules(delisting_loss=30.0, volume_cap=5.0, max_new_positions_per_day=3)]
)
def test_no_day_of_a_rollout_waits(rules: EnvironmentConfig) -> None:
    with contextlib.ExitStack() as stack:
        has_begun: list[bool] = []

        def begin() -> None:
            if not has_begun:
                has_begun.append(True)
                stack.enter_context(NoWaiting())

        rolled_out(random_world(rules=rules), safe_point=begin)
        assert has_begun


def test_tensors_of_an_agent_are_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device stands for one that is not the CPU; as it has no values, what it expects is not looked at."""
    monkeypatch.setattr(DDPGAgent, "holds_market", False)
    market = learnable_market()
    tiny_agent(market).save(tmp_path / "agent")
    agent = DDPGAgent.load(tmp_path / "agent", device="meta")
    assert agent.device.type == "meta"
    for part in (agent.traders, agent.cash_value):
        assert {value.device.type for value in vars(part).values() if isinstance(value, Tensor)} == {"meta"}
    assert agent.forecasts(market).expected.device.type == "meta"


def on_cuda(world: World) -> World:
    """The same world on the device."""
    return replace(world, env=Portfolio.on(world.market, world.env.rules, "cuda"))


@needs_cuda
@pytest.mark.parametrize("orders", [1, 3])
def test_a_rollout_is_the_same_on_cuda(orders: int) -> None:
    world = random_world(4, rules=tiny_rules(max_new_positions_per_day=orders))
    ours, theirs = rolled_out(world), rolled_out(on_cuda(world), "cuda")
    torch.testing.assert_close(theirs.equity.cpu(), ours.equity, rtol=1e-9, atol=1e-3)
    torch.testing.assert_close(theirs.fitness.cpu(), ours.fitness, rtol=1e-6, atol=1e-6)
    for field in fields(EpisodeSummary):
        one, other = getattr(theirs.summary, field.name).cpu(), getattr(ours.summary, field.name)
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-3)
    for name, value in ours.transitions.items():
        torch.testing.assert_close(theirs.transitions[name].cpu(), value, rtol=1e-5, atol=1e-6, msg=name)


@needs_cuda
def test_generations_run_on_cuda() -> None:
    """What was learned there plays on a CPU."""
    market = learnable_market(1)
    trainer = tiny_trainer(market)
    env = TradingEnvironment.on(market, TINY_RULES, "cuda")
    there = type(trainer)(market, env, trainer.learning, TINY_EVOLUTION, trainer.evaluation, seed=0, log=trainer.log)
    records = list(there.run(2))
    assert (
        there.population.cash_value.weights.device.type == "cuda"
        and there.replay.data["after_cash"].device.type == "cuda"
    )
    ours = trainer.evaluate_population()
    assert records[0]["fitness"]["mean"] == pytest.approx(float(ours.fitness.mean()), rel=1e-3)
    trainer.load_state_dict(there.state_dict())
    assert trainer.champion.device.type == "cpu"
    assert trainer.validate_best_agent()["champion"] == pytest.approx(records[-1]["validation"]["champion"], rel=1e-3)
