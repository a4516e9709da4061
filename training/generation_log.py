"""Times, memory and results of generations, in plain numbers for the metrics."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from training.rollout_worker import COUNTS, PopulationResults
from utils.memory.profiler import MemoryProfiler
from utils.tensor_ring import TensorRing

HISTORY = 1000


class GenerationLog:
    """Measures the phases of each generation; the profiler, if there is one, notes their memory."""

    def __init__(
        self,
        generations: int,
        device: torch.device,
        profiler: MemoryProfiler | None = None,
        census_every: int = 0,
    ) -> None:
        """Begin a log of so many generations; every `census_every` of them the profiler counts all objects, 0 never."""
        self.generations, self.generation = generations, 0
        self.device = device
        self.profiler, self.census_every = profiler, census_every
        self.seconds: deque[dict[str, float]] = deque(maxlen=HISTORY)
        """By phase, of the last generations; `other` is what no phase measures, such as records and pictures."""
        self._counted_until: float | None = None

    def begin(self, generation: int) -> None:
        """Begin a generation."""
        self.generation = generation
        self.seconds.append({})
        if self._counted_until is None:
            self._counted_until = time.perf_counter()

    def add(self, phase: str, seconds: float) -> None:
        """Add a phase that ran after the record."""
        self.seconds[-1][phase] = seconds
        self._counted_until = (self._counted_until or 0.0) + seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a phase, and note the memory at its end."""
        started = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[-1][name] = time.perf_counter() - started
        if self.profiler is not None:
            # Counting all objects takes about a second; the first generations show what is built up once.
            is_due = self.census_every > 0 and (self.generation <= 2 or self.generation % self.census_every == 0)
            self.profiler.log_memory(name, census=name == "evolve" and is_due)

    def record(
        self,
        played: PopulationResults,
        learning: dict[str, float],
        validation: dict[str, float],
        replay: TensorRing,
        training_starts: int | None = None,
    ) -> dict[str, Any]:
        """Put the generation in plain numbers; only `seconds` and `memory` may differ between equal runs.

        Args:
            training_starts: transitions from which on networks learn; None where there are none.
        """
        fitness, starts = played.fitness, {} if training_starts is None else {"training_starts": training_starts}
        return {
            "generation": self.generation,
            "generations": self.generations,
            "replay": {"size": replay.size, "capacity": replay.capacity, **starts},
            "fitness": {
                **_spread(fitness[fitness.isfinite()]),
                "above_zero": int((fitness > 0).sum()),
                "agents": len(fitness),
            },
            "profit_percent": float(played.profit_percent.nanmean()),
            "trading": _trading(played),
            "validation": validation,
            "learning": learning,
            "seconds": self._timing(),
            "memory": self._memory(),
        }

    def _timing(self) -> dict[str, float]:
        """Return the seconds of this generation by phase, and an estimate for the rest of the run.

        Its checkpoint is not written yet; the averages hold those of the generations before.
        """
        now, phases = time.perf_counter(), self.seconds[-1]
        phases["other"] = now - (self._counted_until or now) - sum(phases.values())
        self._counted_until = now
        totals = [sum(phases.values()) for phases in self.seconds]
        average = sum(totals) / len(totals)
        left = average * (self.generations - self.generation)
        return {**self.seconds[-1], "total": totals[-1], "average": average, "left": left}

    def _memory(self) -> dict[str, float] | None:
        if self.profiler is None:
            return None
        snapshot = self.profiler.snapshots[-1]
        return {name: getattr(snapshot, name) for name in ("rss_mb", "uss_mb", "gpu_allocated_mb")}


def _trading(played: PopulationResults) -> dict[str, float]:
    """Sum up the episodes."""
    counts = dict(zip(COUNTS, played.counts.sum(0).tolist(), strict=True))
    money = {name: float(getattr(played, name).flatten().sum()) for name in ("penalties", "costs")}
    return {**counts, **money, "win_rate": counts["wins"] / counts["trades"] if counts["trades"] else 0.0}


def _spread(fitness: Tensor) -> dict[str, float | None]:
    """Return mean, max, min and standard deviation; None where no agent has a fitness."""
    if not len(fitness):
        return dict.fromkeys(("mean", "max", "min", "std"))
    return {
        "mean": float(fitness.mean()),
        "max": float(fitness.max()),
        "min": float(fitness.min()),
        "std": float(fitness.std(correction=0)),
    }
