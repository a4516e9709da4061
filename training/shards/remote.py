"""Shards on the machines of a Ray cluster: they hold nothing that the driver cannot give them anew."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from training.shards.shard import Choice, EliteTransitions, Played, Shard, Task, groups
from utils.errors import ClusterError, ConfigError, ProgramError, first_line
from utils.jobs.cluster import Cluster, Facts, facts, require_same

logger = logging.getLogger(__name__)
MOST_FAILURES = 3
"""Times in a row that a generation may fail."""
LEAST_SECONDS = 60.0
"""Shortest time after which a call counts as failed."""
_PATIENCE = 10.0
"""Times as long as ever before that a call may take."""
_FIRST_SECONDS = 1800.0
"""Longest time of the first call of its kind."""
_LOOK_SECONDS = 0.2


class RemoteShards:
    """Shards on a cluster; use them in a `with` block, which ends them.

    Rows are divided into as many groups as there are shards, whatever the cluster has room for: a worker plays one
    group after the other. Whatever goes wrong, the generation is discarded, workers are made anew on what is left, and
    it is played again by the same draws.
    """

    def __init__(
        self,
        cluster: Cluster,
        build: Callable[[], Shard],
        shards: int,
        safe_point: Callable[[], None],
        *,
        gpus: int = 0,
        files: Sequence[Path] = (),
        least_seconds: float = LEAST_SECONDS,
    ) -> None:
        """Take a cluster, what makes a shard there, and how many there are.

        Args:
            safe_point: is called several times a second, and may raise to stop.
            gpus: whole cards of a worker.
            files: read by `build`; they and the program are the same wherever a worker begins.
            least_seconds: see `LEAST_SECONDS`.

        Raises:
            ConfigError: the cluster has no card, and one is asked for.
        """
        self._ray, self._cluster = cluster.ray, cluster
        self._build, self._shards, self._safe_point = build, shards, safe_point
        self._gpus, self._files, self._least_seconds = gpus, files, least_seconds
        self._slowest: dict[str, float] = {}
        """Seconds of a turn of a worker by call."""
        self._workers: list[Any] = []
        self._begun: list[Any] = []
        """Their answers once they are built."""
        if gpus and not cluster.gpus():
            raise ConfigError("expected a cluster with cards for --device cuda, got none; choose --device cpu")

    def __enter__(self) -> Self:
        self._launch()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def evaluate(self, task: Task, choose: Callable[[Tensor], Choice]) -> tuple[Played, EliteTransitions]:
        """See `Shards.evaluate`.

        Raises:
            ClusterError: it failed several times in a row.
            ConfigError, DataError: a machine has another copy of the program or the data.
        """
        for failure in range(1, MOST_FAILURES + 1):
            try:
                return self._play(task, choose)
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                self._end()
                reason = _reason(error)
                logger.warning("a generation is played again, failure %d of %d: %s", failure, MOST_FAILURES, reason)
        raise ClusterError(
            f"expected the shards to play a generation, got {MOST_FAILURES} failures in a row, the last one: {reason}; "
            "see `ray status` and the logs of Ray"
        )

    def _play(self, task: Task, choose: Callable[[Tensor], Choice]) -> tuple[Played, EliteTransitions]:
        """Play all agents, then fetch what the elites lived through."""
        self._be_ready()
        rows = [(part.start, part.stop) for part in groups(len(task.genes), self._shards)]
        theirs = [rows[part] for part in groups(len(rows), len(self._workers))]
        turns = max(len(own) for own in theirs)
        there = self._ray.put(_arrays(vars(task)))  # once for all workers
        calls = [worker.play.remote(there, own) for worker, own in zip(self._workers, theirs, strict=True)]
        played = Played.join([Played(**_tensors(answer)) for answer in self._ask("play", calls, turns)])
        choice = choose(played.fitness)
        given = choice.elites.numpy(), choice.every
        calls = [worker.lived.remote(*given, own) for worker, own in zip(self._workers, theirs, strict=True)]
        return played, EliteTransitions.join(
            [EliteTransitions(**_tensors(answer)) for answer in self._ask("lived", calls, turns)]
        )

    def _launch(self) -> None:
        """Begin to build workers, as many as the cluster may have room for."""
        options = {"num_cpus": 1, "num_gpus": self._gpus, "max_restarts": 0, "max_task_retries": 0}
        actor = self._ray.remote(**options, scheduling_strategy="SPREAD")(Worker)
        self._workers = [actor.remote() for _ in range(self._room())]
        self._begun = [worker.begin.remote(self._build, self._files) for worker in self._workers]

    def _room(self) -> int:
        """Return for how many workers the cluster may have room now, at least 1."""
        return max(1, min(self._shards, self._cluster.gpus() if self._gpus else self._cluster.cpus()))

    def _be_ready(self) -> None:
        """Wait for the workers, and leave out those for which there was no room after all."""
        if not self._workers:
            self._launch()
        if not self._begun:
            return
        started = time.monotonic()
        self._ask("begin", self._begun, enough=lambda: 1)
        patience = max(self._least_seconds, _PATIENCE * (time.monotonic() - started))
        answers = self._answers(self._begun, patience, self._room)
        self._slowest["begin"] = time.monotonic() - started
        own = facts(self._files)
        for worker, answer in zip(self._workers, answers, strict=True):
            if answer is None:
                self._ray.kill(worker)
            else:
                require_same(answer, own, "a node that joined later")
        self._workers = [worker for worker, answer in zip(self._workers, answers, strict=True) if answer is not None]
        self._begun = []
        logger.info("%d shards on %d workers of a cluster", self._shards, len(self._workers))

    def _ask(
        self, name: str, calls: Sequence[Any], turns: int = 1, enough: Callable[[], int] | None = None
    ) -> list[Any]:
        """Return the answers to the calls of a generation; TimeoutError where they take far longer than ever before."""
        known, started = self._slowest.get(name), time.monotonic()
        limit = _FIRST_SECONDS if known is None else max(self._least_seconds, _PATIENCE * known * turns)
        answers = self._answers(calls, limit, enough)
        if sum(answer is not None for answer in answers) < (enough() if enough else len(calls)):
            raise TimeoutError(f"no answer to {name!r} within {limit:.0f} s")
        self._slowest[name] = max(known or 0.0, (time.monotonic() - started) / turns)
        return answers

    def _answers(
        self, calls: Sequence[Any], seconds: float, enough: Callable[[], int] | None = None
    ) -> list[Any | None]:
        """Wait so long for as many answers as are enough, default all; None stands for those that did not come."""
        found: dict[Any, Any] = {}
        waiting, deadline = list(calls), time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            self._safe_point()
            ready, waiting = self._ray.wait(waiting, timeout=_LOOK_SECONDS)
            found |= {call: self._answer(call) for call in ready}
            if enough is not None and len(found) >= enough():
                break
        return [found.get(call) for call in calls]

    def _answer(self, call: Any) -> Any:
        try:
            return self._ray.get(call, timeout=self._least_seconds)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ProgramError):  # a mistake of the user's, not a failure of a machine
                raise error.cause from None
            raise

    def _end(self) -> None:
        """End all workers."""
        workers, self._workers, self._begun = self._workers, [], []
        for worker in workers:
            self._ray.kill(worker)


class Worker:
    """A shard in a process of its own, which speaks in numpy arrays."""

    def begin(self, build: Callable[[], Shard], files: Sequence[Path]) -> Facts:
        """Make the shard; return what its results depend on."""
        self._shard = build()
        return facts(files)

    def play(self, task: Mapping[str, Any], rows: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Play groups of rows, one after the other."""
        given = Task(**_tensors(task))
        return _arrays(vars(Played.join([self._shard.play(given, slice(*own)) for own in rows])))

    def lived(self, elites: Any, every: int, rows: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """Return what the elites among them lived through."""
        choice = Choice(torch.tensor(elites), every)
        return _arrays(vars(EliteTransitions.join([self._shard.lived(choice, slice(*own)) for own in rows])))


def _arrays(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested tensors as numpy arrays."""
    return {name: _arrays(value) if isinstance(value, dict) else value.cpu().numpy() for name, value in tensors.items()}


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested arrays as tensors of their own memory, so that the cluster's is free again."""
    return {name: _tensors(value) if isinstance(value, dict) else torch.tensor(value) for name, value in arrays.items()}


def _reason(error: Exception) -> str:
    """Return in a line what failed; most of Ray's errors are pages of advice."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {first_line(cause)}"
    return first_line(error) if isinstance(error, TimeoutError) else type(error).__name__
