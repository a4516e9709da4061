"""The composition of a training run: from settings and a market to a trainer."""

from __future__ import annotations

from collections.abc import Callable

import torch

from data.market import Market, MarketTensors
from environment.portfolio import Portfolio
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.erl_trainer import ERLTrainer
from training.generation_log import GenerationLog
from training.hindsight import order_results, uses_hindsight
from training.learner import Learner
from utils.config.trader import Config
from utils.memory.profiler import MemoryProfiler


def build_trainer(
    config: Config,
    market: Market,
    device: torch.device,
    *,
    safe_point: Callable[[], None] = lambda: None,
    profiler: MemoryProfiler | None = None,
) -> ERLTrainer:
    """Build the trainer that the settings describe; the profiler, if there is one, watches its memory."""
    learning, train = config.learning, market.splits.train
    env = Portfolio.on(market, config.env, device)
    population = Population(
        config.evolution.population_size, config.network, learning, config.split.context_window_days, device
    )
    replay = ReplayBuffer(
        config.replay.capacity,
        first_day=train.first,
        last_day=train.last - 1,
        slots=env.slots,
        orders_per_day=env.orders_per_day,
        device=device,
    )
    hindsight = None
    if uses_hindsight(config.network, learning):
        hindsight = order_results(env.bars, config.env, train.first, train.last)
    learner = Learner(population, replay, MarketTensors.of(market, device), learning, env.limits, hindsight)
    trainer = ERLTrainer(
        market,
        env,
        learner,
        config.evolution,
        config.evaluation,
        training_starts=config.replay.training_starts,
        seed=config.seed,
        log=GenerationLog(config.generations, device, profiler, config.census_every),
        safe_point=safe_point,
    )
    if profiler is not None:
        profiler.track("environments", trainer.eval_env)
        profiler.track("environments", trainer.val_env)
        profiler.track("replay_buffers", replay)
        profiler.track("agents", trainer.champion)
        profiler.track("agents", population, count=population.size)
    return trainer
