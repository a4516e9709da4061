"""Tiny worlds, populations and transitions for tests of the learners; everything is seeded.

Their markets are made without the loader, see `small_market` for those that come through it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from data.features import CLOSE, HIGH, LOW, NUM_FEATURES, OPEN, normalization_stats
from data.market import Market, MarketTensors
from data.splits import Span, Splits
from environment.portfolio import Portfolio
from models.population import Population
from models.replay_buffer import ReplayBuffer, TransitionBatch
from tests.market_cases import FloatArray, random_panel, random_volume
from tests.small_market import TINY_NETWORK
from training.learner import Learner
from training.rollout import Exploration, Recorder, roll_out
from utils.config.trader import Credit, EnvironmentConfig, LearningConfig, NetworkConfig, Representation

CONTEXT = 8
FIRST_DAY = CONTEXT
INVESTABLE = (0, 2, 3, 5)


@dataclass(frozen=True)
class World:
    """A market with an environment on it."""

    market: Market
    tensors: MarketTensors
    env: Portfolio

    @property
    def stocks(self) -> int:
        return len(self.market.investable_columns)

    def starts(self, count: int, seed: int = 0) -> Tensor:
        """Random first days of whole episodes."""
        last = self.tensors.days - 1 - self.env.rules.episode_steps
        return torch.randint(FIRST_DAY, last + 1, (count,), generator=seeded(seed))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_rules(**changes: Any) -> EnvironmentConfig:
    settings = {
        "trading_days": 6,
        "settlement_days": 2,
        "max_holding_days": 3,
        "max_days_without_bar": 2,
        "stake_percent": 4.0,
    }
    return EnvironmentConfig(**(settings | changes))


def tiny_network(representation: Representation = "independent", **changes: Any) -> NetworkConfig:
    return replace(TINY_NETWORK, representation=representation, **({"hidden_units": 6} | changes))


def tiny_learning(**changes: Any) -> LearningConfig:
    return LearningConfig(**({"batch_size": 12, "block_days": 5} | changes))


def world_of(
    panel: FloatArray,
    investable: Sequence[int] | None = None,
    rules: EnvironmentConfig | None = None,
    volume: FloatArray | None = None,
) -> World:
    """A world of (days, columns, 4) prices: open, high, low, close, NaN where there is no bar."""
    days, columns = panel.shape[:2]
    data = np.full((days, columns, NUM_FEATURES), np.nan, dtype=np.float32)
    data[..., [OPEN, HIGH, LOW, CLOSE]] = panel
    chosen = np.arange(columns) if investable is None else np.asarray(investable)
    span = Span(FIRST_DAY, days - 1)
    market = Market(
        data,
        np.datetime64("2020-01-01") + np.arange(days),
        [f"S{column}" for column in range(columns)],
        chosen.astype(np.int64),
        Splits(span, span, span),
        normalization_stats(data, days - 1),
        8.0,
        volume,
    )
    env = Portfolio.on(market, rules or tiny_rules())
    return World(market, MarketTensors.of(market, "cpu"), env)


def random_world(seed: int = 0, days: int = 40, rules: EnvironmentConfig | None = None) -> World:
    """Six columns, four of them investable, with gaps, jumps and stocks that start late or stop early.

    Under a volume cap they have volume, which cuts about half of the largest orders.
    """
    rng = np.random.default_rng(seed)
    panel, volume = random_panel(rng, days, 6), None
    if rules is not None and rules.volume_cap > 0:
        volume = random_volume(rng, panel, 10 * rules.stake * 100 / rules.volume_cap)
    return world_of(panel, INVESTABLE, rules, volume)


def trending_panel(returns: Sequence[float], days: int, noise: float = 0.004, seed: int = 0) -> FloatArray:
    """Prices of stocks with these constant daily returns and a little noise, no gaps: (days, stocks, 4)."""
    rng = np.random.default_rng(seed)
    steps = np.asarray(returns) + noise * rng.standard_normal((days, len(returns)))
    close = 50 * np.exp(np.cumsum(steps, axis=0))
    open_ = np.concatenate((np.full((1, len(returns)), 50.0), close[:-1]))
    high, low = np.maximum(open_, close) * 1.001, np.minimum(open_, close) * 0.999
    return np.stack((open_, high, low, close), axis=-1).astype(np.float32)


def tiny_population(
    size: int,
    representation: Representation = "independent",
    learning: LearningConfig | None = None,
    seed: int = 0,
    **network: Any,
) -> Population:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Population(size, tiny_network(representation, **network), learning or tiny_learning(), CONTEXT)


def fill_replay(
    world: World,
    population: Population,
    *,
    windows: int = 6,
    credit: Credit = "entry",
    exploration: Exploration | None = None,
    seed: int = 0,
) -> ReplayBuffer:
    """A buffer with the transitions of one rollout with noise."""
    env = world.env
    replay = ReplayBuffer(
        4096,
        first_day=FIRST_DAY,
        last_day=world.tensors.days - 2,
        slots=env.slots,
        orders_per_day=env.orders_per_day,
    )
    recorder = Recorder()
    roll_out(
        env,
        population.networks,
        world.tensors,
        world.starts(windows, seed),
        exploration=exploration or Exploration(0.3, 0.5, 2, seeded(seed)),
        recorder=recorder,
    )
    replay.add(recorder.transitions(env, credit))
    return replay


@dataclass(frozen=True)
class FixedReplay:
    """Hands out the same transitions whatever is asked for."""

    first_day: int
    last_day: int
    block: Tensor
    batch: TransitionBatch

    def sample_block(self, *_: object) -> tuple[Tensor, TransitionBatch]:
        return self.block, self.batch

    def of(self, agents: slice | Tensor) -> FixedReplay:
        """The transitions of some agents, in that order."""
        return FixedReplay(self.first_day, self.last_day, self.block, self.batch.of(cast(slice, agents)))


def double(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def double_tensors(world: World) -> MarketTensors:
    return MarketTensors(world.tensors.inputs.double(), world.tensors.investable, world.tensors.tradable)


def double_population(population: Population) -> Population:
    """The same population with float64 networks, so that rounding hides no error."""
    population.networks.double()
    population.targets.double()
    return population


def fixed_replay(replay: ReplayBuffer, agents: int, config: LearningConfig, seed: int = 0) -> FixedReplay:
    """One draw of a buffer, as float64."""
    span = replay.last_day + 1 - replay.first_day
    block, batch = replay.sample_block(min(config.block_days, span), agents, config.batch_size, seeded(seed))
    batch = TransitionBatch(**{name: double(value) for name, value in vars(batch).items()})
    return FixedReplay(replay.first_day, replay.last_day, block, batch)


def double_learner(world: World, population: Population, replay: FixedReplay, config: LearningConfig) -> Learner:
    """A learner in float64 that always sees the same transitions."""
    return Learner(population, cast(ReplayBuffer, replay), double_tensors(world), config, world.env.limits)


def parameters(population: Population) -> dict[str, Tensor]:
    """Copies of all networks and targets, by name."""
    state = population.state_dict()
    return {f"{part}.{name}": value.clone() for part in ("networks", "targets") for name, value in state[part].items()}


def copy_rows(source: Population, rows: slice | Tensor, target: Population) -> None:
    """Give `target` the networks, targets and encoders of some agents of `source`."""
    with torch.no_grad():
        for mine, other in ((source.networks, target.networks), (source.targets, target.targets)):
            for name, parameter in mine.named_parameters():
                other.get_parameter(name).copy_(parameter[rows] if mine.is_stacked(name) else parameter)
