"""Tiny worlds, agents and trainers for tests of the learner; everything is seeded.

Their markets are made without the loader, see `small_market` for those that come through it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.trainers import trainer_on
from data.features.inputs import INPUTS, TradeInputs
from data.features.nine import CLOSE, HIGH, LOW, NUM_FEATURES, OPEN, normalization_stats
from data.features.rows import InputRows
from data.market import Market
from data.splits import Span, Splits
from environment.portfolio import Portfolio
from environment.trading_env import Observation, TradingEnvironment
from models.ddpg import Batch
from models.ddpg_agent import DDPGAgent
from models.evidence import Evidence
from models.networks import Networks
from tests.market_cases import random_panel, random_volume
from tests.small_market import TINY_RULES, small_market
from training.erl_trainer import ERLTrainer
from training.generation_log import GenerationLog
from utils.arrays import Float32Array
from utils.config.trader import EnvironmentConfig, EvaluationConfig, EvolutionConfig, LearningConfig

CONTEXT = 8
FIRST_DAY = CONTEXT
INVESTABLE = (0, 2, 3, 5)
GENES = (0.01, 0.6, 0.01, 1.0, 5.0, 1.0)
"""Price of risk, largest weight, which leaves room beside few stocks, price of the risk of cash, hurdle, horizon."""
TINY_LEARNING = LearningConfig(
    replay_capacity=500, training_starts=10, gradient_steps=2, gradient_accumulation=2, batch_size=8, hidden=4
)
TINY_EVOLUTION = EvolutionConfig(population_size=4)
TINY_EVALUATION = EvaluationConfig(fitness_windows=2, exploration_windows=1, validation_windows=2, evidence="report")


@dataclass(frozen=True)
class World:
    """A market with accounts on it."""

    market: Market
    env: Portfolio

    @cached_property
    def trading(self) -> TradingEnvironment:
        """The environment that trades with `env`."""
        return TradingEnvironment.on(self.market, self.env.rules, portfolio=self.env)

    @property
    def stocks(self) -> int:
        return len(self.market.investable_columns)

    @property
    def days(self) -> int:
        return len(self.market.dates)

    def starts(self, count: int, seed: int = 0) -> Tensor:
        """Random first days of whole episodes."""
        last = self.days - 1 - self.env.rules.episode_steps
        return torch.randint(FIRST_DAY, last + 1, (count,), generator=seeded(seed))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_rules(**changes: Any) -> EnvironmentConfig:
    return EnvironmentConfig(**{"trading_days": 6, "settlement_days": 2, "max_days_without_bar": 2, **changes})


def world_of(
    panel: Float32Array,
    investable: Sequence[int] | None = None,
    rules: EnvironmentConfig | None = None,
    volume: Float32Array | None = None,
) -> World:
    """A world of (days, columns, 4) prices: open, high, low, close, NaN where there is no bar."""
    days, columns = panel.shape[:2]
    data = np.full((days, columns, NUM_FEATURES), np.nan, dtype=np.float32)
    data[..., [OPEN, HIGH, LOW, CLOSE]] = panel
    chosen = np.arange(columns) if investable is None else np.asarray(investable)
    span = Span(FIRST_DAY, days - 1)
    dates, tickers = np.datetime64("2020-01-01") + np.arange(days), [f"S{column}" for column in range(columns)]
    known = chosen.astype(np.int64), Splits(span, span, span), normalization_stats(data, days - 1), 8.0, volume
    market = Market(data, dates, tickers, *known)
    return World(market, Portfolio.on(market, rules or tiny_rules()))


def random_world(seed: int = 0, days: int = 40, rules: EnvironmentConfig | None = None) -> World:
    """Six columns, four of them investable, with gaps, jumps and stocks that start late or stop early.

    Under a volume cap they have volume, which cuts about half of the orders for a tenth of the capital.
    """
    rng = np.random.default_rng(seed)
    panel, volume = random_panel(rng, days, 6), None
    if rules is not None and rules.volume_cap > 0:
        volume = random_volume(rng, panel, rules.initial_capital / 10 * 100 / rules.volume_cap)
    return world_of(panel, INVESTABLE, rules, volume)


def trending_panel(returns: Sequence[float], days: int, noise: float = 0.004, seed: int = 0) -> Float32Array:
    """Prices of stocks with these constant daily returns and a little noise, no gaps: (days, stocks, 4)."""
    rng = np.random.default_rng(seed)
    steps = np.asarray(returns) + noise * rng.standard_normal((days, len(returns)))
    close = 50 * np.exp(np.cumsum(steps, axis=0))
    open_ = np.concatenate((np.full((1, len(returns)), 50.0), close[:-1]))
    high, low = np.maximum(open_, close) * 1.001, np.minimum(open_, close) * 0.999
    return np.stack((open_, high, low, close), axis=-1).astype(np.float32)


def rows_of(x: NDArray[np.float32], first_day: int = 0) -> InputRows:
    """The rows of (days, n, inputs) from this day on, all of which have a bar."""
    days = slice(first_day, first_day + len(x))
    rows = InputRows(days, np.ones((days.stop, x.shape[1]), dtype=np.bool_), x.shape[2])
    rows.fill(days, iter([(slice(0, x.shape[1]), x)]))
    return rows


def tiny_agent(
    market: Market,
    *,
    rules: EnvironmentConfig = TINY_RULES,
    genes: tuple[float, ...] = GENES,
    members: int = 1,
    folds: int = 2,
    seed: int = 0,
) -> DDPGAgent:
    """An agent of random networks, whose inputs are fitted to all days of a market.

    Args:
        genes: of each of its `members`.
    """
    inputs = TradeInputs.fit(market, np.ones(len(market.dates), dtype=np.bool_))
    gains = torch.ones(members, folds, inputs.size - 1)
    networks = shake(Networks.initialize(gains, 4, 0.01, seeded(seed)), 0.6, seeded(seed + 1))
    return DDPGAgent(inputs, networks, torch.tensor([genes] * members).double(), rules, Evidence())


def acted(
    agent: DDPGAgent, env: TradingEnvironment, market: Market, **window: Any
) -> Iterator[tuple[Any, Observation, dict[str, Any]]]:
    """An episode by observations: action, observation and info of each step, first those of the reset and None."""
    forecasts, action, is_over = agent.forecasts(market), None, False
    observation, info = env.reset(**window)
    yield action, observation, info
    while not is_over:
        action = agent.act(observation, forecasts, info["day_index"])
        observation, _, is_over, _, info = env.step(action)
        yield action, observation, info


@torch.no_grad()
def shake(networks: Networks, scale: float, draws: torch.Generator) -> Networks:
    """Add noise to all parameters and targets, so that none is zero but for masked inputs."""
    for name in ("critic", "critic_target", "actor", "actor_target"):
        part = networks.tensors[name]
        part += scale * torch.randn(part.shape, generator=draws)
    networks.mask()
    return networks


def random_batch(folds: int = 2, *, days: int = 4, stocks: int = 3, seed: int = 0, inputs: int = INPUTS) -> Batch:
    """Transitions of a few stocks, a quarter of which are terminated."""
    draws, shape = seeded(seed), (folds, days, stocks)
    price, next_price = torch.rand(2, folds, days, generator=draws)
    x, next_x = torch.randn(2, *shape, inputs - 1, generator=draws)
    reward, terminated = torch.randn(shape, generator=draws), torch.rand(shape, generator=draws) < 0.25
    return Batch(x, next_x, reward, terminated, price, next_price)


def learnable_market(seed: int = 0) -> Market:
    """A small random market that a learner takes: it has gaps, and two of its columns may not be bought.

    Of fewer stocks the benchmark holds more of each than agents may.
    """
    return small_market(seed, 500, 16, investable=(0, 2, 3, *range(5, 16)))


def tiny_trainer(
    market: Market | None = None, *, seed: int = 0, rules: EnvironmentConfig = TINY_RULES, **changes: Any
) -> ERLTrainer:
    """A trainer of four agents on `learnable_market`, a generation of which takes milliseconds.

    Args:
        changes: other settings of learning, evolution and evaluation, and the other arguments of a trainer.
    """
    market = market or learnable_market()
    log = GenerationLog(3, torch.device("cpu"))
    parts: dict[str, Any] = {"learning": TINY_LEARNING, "evolution": TINY_EVOLUTION, "evaluation": TINY_EVALUATION}
    return trainer_on(market, TradingEnvironment.on(market, rules), seed=seed, **(parts | {"log": log} | changes))
