"""A small run whose population is played by workers of a cluster, with faults injected in chosen phases."""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import random
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import psutil
import torch
from torch import Tensor

from benchmarks.faults.harness import SMALL_RUN, VOLATILE
from benchmarks.speed.harness import FULL_COLUMNS, FULL_DAYS, FULL_INVESTABLE, full_scale, random_market
from data.market import Market
from data.record import record_market
from environment.trading_env import TradingEnvironment
from training.erl_trainer import ERLTrainer
from training.forecasts.ridge import TrainingDays
from training.rollout_worker import PopulationRollouts, RolloutWorker, play_on_worker
from training.run.market import load_market
from training.run.trainer import build_trainer, build_worker
from utils.config.settings import from_dict
from utils.config.trader import Config
from utils.jobs.cluster import Cluster, ClusterWorkers

CPU = torch.device("cpu")


def small_config() -> Config:
    """Return the settings of the small run."""
    return from_dict(tomllib.loads(SMALL_RUN), Config)


@cache
def small_market() -> Market:
    """Return its market."""
    return load_market(small_config())[0]


def small_worker() -> Callable[[], RolloutWorker]:
    """Return a function that builds a rollout worker on it."""
    return partial(build_worker, small_config(), record_market(small_market()), "cpu")


def full_market() -> Market:
    """Draw a market of full scale."""
    return random_market(full_scale(), FULL_DAYS, FULL_COLUMNS, FULL_INVESTABLE)


def full_worker() -> RolloutWorker:
    """Build a rollout worker of full scale."""
    torch.set_num_threads(1)
    market = full_market()
    env = TradingEnvironment.on(market, full_scale().env)
    return RolloutWorker(TrainingDays.of(market, env.account), env, market.splits.train)


def outcome(trainer: ERLTrainer) -> str:
    """Return the SHA-256 (hex) of the tensors that a checkpoint of a trainer would hold."""
    found = hashlib.sha256()
    networks = trainer.population.networks
    learned = [] if networks is None else networks.tensors.values()
    own = trainer.population.genes, trainer.population.cash_value.weights, trainer.champion.traders.weights
    for tensor in (*own, *learned, *_filled(trainer)):
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


def _filled(trainer: ERLTrainer) -> Iterator[Tensor]:
    return (store[: trainer.replay.size].contiguous() for store in trainer.replay.data.values())


@cache
def undisturbed(generations: int) -> tuple[list[str], str]:
    """Return the records and the outcome of so many generations in this process."""
    trainer = build_trainer(small_config(), small_market(), CPU)
    return [plain(record) for record in trainer.run(generations)], outcome(trainer)


def plain(record: dict[str, Any]) -> str:
    """Return a record without what may differ between equal runs."""
    return json.dumps({name: value for name, value in record.items() if name not in VOLATILE})


def workers(of: psutil.Process | None = None) -> list[psutil.Process]:
    """Return the worker processes below this process or another one."""
    children = (of or psutil.Process()).children(recursive=True)
    return [process for process in children if _is_worker(process)]


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name().startswith("ray::ClusterWorker") or "spawn_main" in " ".join(process.cmdline())
    return False


@contextlib.contextmanager
def played_on(
    there: Cluster, trainer: ERLTrainer, build: Callable[[], RolloutWorker], groups: int, safe_point: Callable[[], None]
) -> Iterator[None]:
    """Have a trainer's population played by workers of a cluster."""
    with ClusterWorkers(there, groups, None, safe_point) as executor:
        trainer.rollouts = PopulationRollouts(partial(play_on_worker, pickle.dumps(build)), executor, groups)
        yield


class Struck:
    """A trainer whose workers are struck once in a phase: `start`, `play` or `idle`."""

    def __init__(self) -> None:
        self.trainer = build_trainer(small_config(), small_market(), CPU)
        self.due: list[tuple[str, Callable[[psutil.Process], object]]] = []
        """Phases and what is then done to a worker, the next one first."""
        self._struck: list[psutil.Process] = []
        self._known: list[psutil.Process] = []
        """Workers that had started before a `start` was due."""

    def generation(self) -> str:
        """Run a generation; return its record without what may differ."""
        if not self.due or self.due[0][0] != "start":
            self._known = workers()
        self._strike("idle")
        return plain(self.trainer.run_generation())

    def until_struck(self, most: int = 5) -> list[str]:
        """Run generations until nothing is due; return their records."""
        records = [self.generation()]
        while self.due and len(records) < most:
            records.append(self.generation())
        return records

    def safe_point(self) -> None:
        """Strike while a worker starts or plays; the safe point of the executor."""
        self._strike("start")
        self._strike("play")

    def _strike(self, phase: str) -> None:
        if not self.due or self.due[0][0] != phase:
            return
        spared = self._struck + (self._known if phase == "start" else [])
        found = [worker for worker in workers() if worker not in spared]
        if found:
            self._struck.append(random.choice(found))
            self.due.pop(0)[1](self._struck[-1])
