"""Trainers without a run: what `training.train` builds and repeats, in memory alone.

`tests/runs/test_train.py` holds that both give the same numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from data.market import Market
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.erl_trainer import ERLTrainer, random_streams
from training.forecasts.training_days import TrainingDays
from training.generation_log import GenerationLog
from training.rollout import require_memory_to_train
from training.run.market import benchmark_of
from utils.config.trader import Config, EvaluationConfig, EvolutionConfig, LearningConfig


def build_trainer(config: Config, market: Market, device: torch.device) -> ERLTrainer:
    """Build the trainer that the settings describe."""
    benchmark = benchmark_of(market, config)
    env = TradingEnvironment.on(market, config.env, portfolio=Portfolio.on(market, config.env, device, benchmark))
    settings = config.learning, config.evolution, config.evaluation
    return trainer_on(market, env, *settings, seed=config.seed, log=GenerationLog(config.generations, device))


def trainer_on(
    market: Market,
    env: TradingEnvironment,
    learning: LearningConfig,
    evolution: EvolutionConfig,
    evaluation: EvaluationConfig,
    *,
    seed: int,
    log: GenerationLog,
    safe_point: Callable[[], None] = lambda: None,
) -> ERLTrainer:
    """Build a trainer whose agents are evaluated in an environment, and validated in one like it."""
    val_env, streams, device = env.twin(), random_streams(seed), env.account.device
    days = TrainingDays.of(market, env.portfolio.quotes.among(slice(len(env.tickers))), env.rules)
    require_memory_to_train(market, days, env, learning, evolution, evaluation)
    scale = days.transitions.reward_scale
    population = Population(evolution, learning, days.inputs, env.rules, device, streams, gains=days.gains, scale=scale)
    replay_buffer = ReplayBuffer(learning.replay_capacity, learning.training_starts, device)
    parts = market, days, env, val_env, population, replay_buffer, learning, evaluation, streams
    return ERLTrainer(*parts, log=log, safe_point=safe_point)


def run_generation(trainer: ERLTrainer) -> dict[str, Any]:
    """Run one generation; return its record."""
    log = trainer.log
    log.begin(trainer.generation + 1)
    for name, work in (
        ("evaluate", trainer.evaluate_population),
        ("evolve", trainer.evolve_population),
        ("train", trainer.train_population),
        ("validate", trainer.validate_best_agent),
    ):
        with log.phase(name):
            work()
    return trainer.record()


def generations(trainer: ERLTrainer, count: int) -> Iterator[dict[str, Any]]:
    """Run until this number of generations is complete; yield each record."""
    while trainer.generation < count:
        yield run_generation(trainer)
