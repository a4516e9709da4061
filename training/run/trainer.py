"""The composition of a training run: from settings and a market to a trainer and its workers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from data.market import Market
from data.record import MarketRecord, pin_market
from environment.trading_env import TradingEnvironment
from training.erl_trainer import ERLTrainer
from training.forecasts.ridge import TrainingDays
from training.generation_log import GenerationLog
from training.rollout_worker import PopulationRollouts, RolloutWorker, play_on_worker
from training.run.market import load_market, read_market_record
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.jobs.cluster import LOCAL
from utils.jobs.executor import open_executor
from utils.memory.guard import keep_freed_memory
from utils.memory_profiler import MemoryProfiler
from utils.runs.devices import choose_threads


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
    log = GenerationLog(config.generations, device, profiler, config.census_every, config.clean_up_percent)
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


@contextlib.contextmanager
def open_rollouts(
    shards: int,
    cluster: str | None,
    config: Config,
    path: Path,
    device: torch.device,
    safe_point: Callable[[], None],
) -> Iterator[PopulationRollouts | None]:
    """Open workers that play the population in groups; None if this process is to play it.

    Args:
        cluster: address of a cluster, see `utils.jobs.cluster.connect`; None uses processes of this machine.
        path: folder of the run, with the record of its market.

    Raises:
        ConfigError: there are more groups than agents, or the cluster cannot be used.
    """
    if shards > config.evolution.population_size:
        raise ConfigError(f"expected --shards of at most {config.evolution.population_size} agents, got {shards}")
    if shards == 1 and cluster is None:
        yield None
        return
    files = [] if config.data is None else [config.data.absolute()]
    # The record lists the stocks that may be bought, so other machines need no file of them.
    config = dataclasses.replace(config, data=files[0] if files else None, investable=None)
    build = pickle.dumps(partial(build_worker, config, read_market_record(path), device.type))
    gpus = int(device.type == "cuda")
    # Only a cluster gives each worker a GPU of its own.
    where = LOCAL if cluster is None and gpus else cluster
    workers = shards if where else min(shards, os.cpu_count() or 1)
    with open_executor(workers, where, files=files, gpus=gpus, safe_point=safe_point) as executor:
        yield PopulationRollouts(partial(play_on_worker, build), executor, shards)


def build_worker(config: Config, record: MarketRecord, device: str) -> RolloutWorker:
    """Build a rollout worker from the market data on this machine.

    Raises:
        DataError: the data are not those of the run.
    """
    keep_freed_memory()
    choose_threads(config.threads)
    market = pin_market(load_market(config)[0], record)
    env = TradingEnvironment.on(market, config.env, torch.device(device))
    return RolloutWorker(TrainingDays.of(market, env.account), env, market.splits.train)
