"""Times, memory and results of generations, in plain numbers for the metrics."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from models.ddpg_agent import HISTORY
from models.evolution import GENES
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.rollout import PopulationResults
from utils.memory_census import count_living
from utils.memory_guard import release_free_memory
from utils.memory_profiler import GENERATION, MemoryProfiler, clean_up
from utils.progress import Progress
from utils.runs.console import FILE_ONLY

logger = logging.getLogger(__name__)
PHASES = {
    "evaluate": ("Evaluating agents", "evaluate_population"),
    "evolve": ("Evolving population: {} -> {}", "evolve_population"),
    "train": ("Training agents", "train_population"),
    "validate": ("Validating agent", "validate_best_agent"),
}
"""Of a generation, in their order: what is being done, and the method of the trainer."""


class GenerationLog:
    """Times the phases of each generation; with a profiler it also cleans up and logs memory after each."""

    def __init__(
        self, generations: int, device: torch.device, profiler: MemoryProfiler | None = None, *, counts: bool = False
    ) -> None:
        """Begin the log of a run of this number of generations; with `counts`, of large objects while memory grows."""
        self.generations, self.generation, self.device = generations, 0, device
        self.profiler, self.counts = profiler, counts
        self.seconds: deque[dict[str, float]] = deque(maxlen=HISTORY)
        """By phase, of the last generations; `other` is what no phase measures, such as records and pictures."""
        self.first = 1
        """First generation of this process."""
        self._counted_until = 0.0
        """Time until which all seconds belong to a phase, once a generation has begun."""
        self._shown: Progress | None = None

    def generations_left(self) -> Iterator[int]:
        """Yield the generations that are not complete, each begun."""
        self.first = self.generation + 1
        with Progress("Training", "generation", self.generations, done=self.generation) as self._shown:
            for generation in range(self.first, self.generations + 1):
                self.begin(generation)
                yield generation
                self._shown.update()

    def begin(self, generation: int) -> None:
        """Begin a generation, and say so."""
        logger.info("Generation %d / %d", generation, self.generations, extra=FILE_ONLY)
        self.generation = generation
        self.seconds.append({})
        self._counted_until = self._counted_until or time.perf_counter()

    def add(self, phase: str, seconds: float) -> None:
        """Add a phase that ran after the record."""
        self.seconds[-1][phase] = seconds
        self._counted_until += seconds

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce and measure a phase; at its end collect garbage, empty the GPU's cache, and note the memory."""
        words, method = PHASES[name]
        words = words.format(self.generation, self.generation + 1)
        logger.info("%s...", words, extra=FILE_ONLY)
        if self._shown is not None:
            self._shown.describe(f"Generation {self.generation} / {self.generations}: {words}")
        started = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds[-1][name] = time.perf_counter() - started
        if self.profiler is not None:
            # Most garbage is young; the old is collected once a generation.
            ended = time.perf_counter()
            logger.debug("clean-up after %s gave back %.1f MiB", name, clean_up(2 if name == "train" else 1))
            self.seconds[-1]["clean_up"] = self.seconds[-1].get("clean_up", 0.0) + time.perf_counter() - ended
            # To look at all objects takes about a second.
            is_suspect = self.counts and name == "evolve" and self.profiler.is_growing()
            self.profiler.log_memory(f"Gen {self.generation}: After {method}", show_objects=is_suspect)

    def learning(self, played: PopulationResults, population: Population, noise: float) -> dict[str, float]:
        """Return what the elites earn, what capital is worth to them, and the diversity of the population."""
        best = torch.tensor(population.elites)
        return {
            "elite_profit_percent": float(played.profit_percent[best].mean()),
            **dict(zip(GENES, population.values.cpu()[best].mean(0).tolist(), strict=True)),
            "founders": len(set(population.founders)),
            "noise_scale": noise,
            **{f"best_{name}": population.fittest[name] for name in ("elites", "children")},
        }

    def record(
        self, played: PopulationResults, learning: dict[str, float], validation: dict[str, float], replay: ReplayBuffer
    ) -> dict[str, Any]:
        """Put the generation in plain numbers; only `seconds` and `memory` may differ between equal runs."""
        fitness, trading = played.fitness, played.trading
        return {
            "generation": self.generation,
            "generations": self.generations,
            "replay": {"size": replay.size, "capacity": replay.capacity, "training_starts": replay.training_starts},
            "fitness": {
                **_spread(fitness[fitness.isfinite()]),
                "above_zero": int((fitness > 0).sum()),
                "agents": len(fitness),
            },
            "profit_percent": float(played.profit_percent.nanmean()),
            "trading": {**trading, "win_rate": trading["wins"] / max(trading["trades"], 1)},
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
        phases["other"] = now - self._counted_until - sum(phases.values())
        self._counted_until = now
        totals = [sum(phases.values()) for phases in self.seconds]
        average = sum(totals) / len(totals)
        left = average * (self.generations - self.generation)
        return {**phases, "total": totals[-1], "average": average, "left": left}

    def _memory(self) -> dict[str, float] | None:
        """Return the memory that all reports of the generation tell, before the checkpoint copies the state."""
        if self.profiler is None:
            return None
        release_free_memory()
        now = self.profiler.log_memory(f"Gen {self.generation}: After {GENERATION}").measures
        names = ("rss_mb", "uss_mb", "gpu_allocated_mb", "gpu_reserved_mb", *count_living())
        return {name: now[name] for name in names}


def _spread(fitness: Tensor) -> dict[str, float | None]:
    """Return mean, max, min and standard deviation; None where no agent has a fitness."""
    if not len(fitness):
        return dict.fromkeys(("mean", "max", "min", "std"))
    measures = {"mean": fitness.mean(), "max": fitness.max(), "min": fitness.min(), "std": fitness.std(correction=0)}
    return {name: float(value) for name, value in measures.items()}
