"""The composition of a training run: from settings and a market to a trainer."""

from collections.abc import Callable

import torch

from data.market import Market
from environment.trading_env import TradingEnvironment
from training.erl_trainer import ERLTrainer
from training.generation_log import GenerationLog
from utils.config.trader import Config
from utils.memory_profiler import MemoryProfiler


def build_trainer(
    config: Config,
    market: Market,
    device: torch.device,
    *,
    safe_point: Callable[[], None] = lambda: None,
    profiler: MemoryProfiler | None = None,
) -> ERLTrainer:
    """Build the trainer that the settings describe; a profiler also watches its memory."""
    env = TradingEnvironment.on(market, config.env, device)
    log = GenerationLog(config.generations, device, profiler, config.census_every)
    return ERLTrainer(
        market,
        env,
        config.learning,
        config.evolution,
        config.evaluation,
        seed=config.seed,
        log=log,
        safe_point=safe_point,
    )
