"""A small run whose population is played by shards on a cluster, struck where it is told to be."""

from __future__ import annotations

import hashlib
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any
from unittest import mock

import psutil
import torch
from torch import Tensor
from training.run.shards import build_shard
from training.shards.shard import Choice, Shard

from benchmarks.faults.harness import SMALL_RUN, VOLATILE
from benchmarks.speed.harness import FULL_COLUMNS, FULL_DAYS, FULL_INVESTABLE, full_scale, random_market
from data.market import Market
from data.record import record_market
from environment.portfolio import Portfolio
from training.erl_trainer import ERLTrainer
from training.forecasts.ridge import TrainingDays
from training.run.market import load_market
from training.run.trainer import build_trainer
from utils.config.settings import from_dict
from utils.config.trader import Config
from utils.jobs import cluster

CPU = torch.device("cpu")


def small_config() -> Config:
    """Return the settings of the small run."""
    return from_dict(tomllib.loads(SMALL_RUN), Config)


@cache
def small_market() -> Market:
    """Return its market."""
    return load_market(small_config())[0]


def small_shard() -> Callable[[], Shard]:
    """Return what makes a shard of it."""
    return partial(build_shard, small_config(), record_market(small_market()), "cpu")


def other_version() -> Shard:
    """Make a shard where the program's source code is another one."""
    mock.patch.object(cluster, "PACKAGES", ("utils",)).start()
    return small_shard()()


def full_market() -> Market:
    """Draw a market of full scale."""
    return random_market(full_scale(), FULL_DAYS, FULL_COLUMNS, FULL_INVESTABLE)


def full_shard() -> Shard:
    """Make a shard of full scale."""
    torch.set_num_threads(1)
    market = full_market()
    env = Portfolio.on(market, full_scale().env)
    return Shard(TrainingDays.of(market, env), env, market.splits.train)


def outcome(trainer: ERLTrainer) -> str:
    """Return the SHA-256 (hex) of the tensors that a checkpoint of a trainer would hold."""
    found = hashlib.sha256()
    networks = trainer.population.networks
    learned = [] if networks is None else networks.tensors().values()
    own = trainer.genes, trainer.cash_value.weights, trainer.champion.traders.weights
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
    """Return the processes of shards below this process or another one."""
    children = (of or psutil.Process()).children(recursive=True)
    return [process for process in children if process.name().startswith("ray::Worker")]


class Struck:
    """A trainer whose shards are struck once in a phase: `idle`, `build`, `play` or `lived`."""

    def __init__(self) -> None:
        self.trainer = build_trainer(small_config(), small_market(), CPU)
        self.due: list[tuple[str, Callable[[psutil.Process], object]]] = []
        """Phases and what is then done to a worker, the next one first."""
        self._choose = self.trainer.choose
        self.trainer.choose = self._choosing  # type: ignore[method-assign]
        self._before: list[psutil.Process] = []
        """Workers that are gone once others are built."""
        self._is_chosen = False

    def generation(self) -> str:
        """Run a generation; return its record without what may differ."""
        self._is_chosen = False
        self._strike("idle")
        return plain(self.trainer.run_generation())

    def safe_point(self) -> None:
        """Strike while a worker is built or plays; given to the shards as their safe point."""
        if not self._is_chosen:
            self._strike("build" if getattr(self.trainer.shards, "_begun", None) else "play")

    def _choosing(self, fitness: Tensor) -> Choice:
        self._is_chosen = True
        self._strike("lived")
        return self._choose(fitness)

    def _strike(self, phase: str) -> None:
        if not self.due or self.due[0][0] != phase:
            return
        found = workers()
        new = [worker for worker in found if worker not in self._before]
        if new:
            self.due.pop(0)[1](random.choice(new))
            self._before = found
            self._is_chosen = False  # the generation is played again
