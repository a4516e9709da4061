"""Predicted seconds per generation on several machines: `python -m benchmarks.cluster.cost [--measure]`.

The seconds of a GPU are those that `benchmarks.gpu_budget` predicts; those of a core and of the host were measured and
are stored in cost.json (`--measure` measures them again); the bytes of the calls are counted. Full scale: 3,781 days of
669 columns, 108 of them investable, 40 windows. The driver's machine has a worker, too.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.cluster.population import CPU, full_market, small_config, small_market
from benchmarks.gpu_budget.__main__ import BUDGET
from benchmarks.gpu_budget.costs import CARDS, COPY_BYTES_PER_SECOND, HOST_SECONDS, KERNEL_SECONDS, Card
from benchmarks.gpu_budget.generation import UPDATES
from benchmarks.speed.harness import full_scale
from models import genome
from models.trader import Blend
from training.erl_trainer import ERLTrainer
from training.evolution import next_generation
from training.rollout_worker import COUNTS, PopulationResults, PopulationRollouts, RolloutInputs
from training.run.trainer import build_trainer
from utils.config.trader import Config, EvolutionConfig

MEASURED = Path(__file__).with_name("cost.json")
AGENTS = (16, 128, 1024, 10_000)
MACHINES = (1, 2, 4, 8, 16, 32, 64)
CALL_SECONDS = 0.005
"""Per call to a worker and its answer, measured on one machine; one per generation."""
WORKER_SECONDS = 0.0005
"""Of the driver, per further worker."""
_CORE = "one core"
_WITH_GRAPH = 2
"""Factor by which a CUDA graph raises the memory of a rollout."""
_GAIN = 0.9
"""Twice as many machines count as a gain if they take at most this share of the seconds."""


@dataclass(frozen=True)
class Sizes:
    """Bytes moved by the calls of a generation."""

    inputs: float
    """Per agent, to the machine that plays it."""
    results: float
    """Per agent, to the driver."""
    transition: float
    """To the driver; each machine sends up to as many as the replay buffer holds."""


class _Counting(PopulationRollouts):
    """Plays here, and notes the bytes of what would go over the network."""

    def __init__(self, inner: PopulationRollouts) -> None:
        super().__init__(inner.play)
        self.bytes: dict[str, float] = {}

    def evaluate(self, inputs: RolloutInputs) -> tuple[PopulationResults, dict[str, Tensor]]:
        results, transitions = super().evaluate(inputs)
        agents, kept = len(inputs.genes), len(next(iter(transitions.values())))
        self.bytes = {"transition": _bytes(transitions) / kept}
        # Forecasts of elites that are known already grow with the market: they are left out.
        for name, part in (("inputs", replace(inputs, known=None)), ("results", results)):
            self.bytes[name] = _bytes(part) / agents
        return results, transitions


def _bytes(part: object) -> int:
    """Return the bytes of nested tensors; anything else counts as one number."""
    if isinstance(part, Tensor):
        return part.nbytes
    if isinstance(part, dict) or is_dataclass(part):
        return sum(map(_bytes, (part if isinstance(part, dict) else vars(part)).values()))
    return 8


def count_bytes() -> Sizes:
    """Count the bytes of the calls of a generation with as many windows as at full scale, on a small market."""
    config = replace(small_config(), evaluation=full_scale().evaluation, evolution=EvolutionConfig(population_size=128))
    trainer = build_trainer(config, small_market(), CPU)
    counting = trainer.rollouts = _Counting(trainer.rollouts)
    trainer.run_generation()
    return Sizes(**counting.bytes)


def measure() -> dict[str, float]:
    """Measure seconds of a core: of a worker per agent, and of the driver."""
    config, seconds = full_scale(), dict[str, float]()
    market = full_market()
    trainer = build_trainer(config, market, CPU)
    list(trainer.run(4))  # the replay is full
    last = [record["seconds"] for record in trainer.run(9)]
    for phase in ("evaluate", "train", "validate"):
        seconds[phase] = min(record[phase] for record in last)
    networks = _least(trainer._train_networks, 1)
    seconds["train"] = max(0.0, seconds["train"] - networks)
    seconds["train an agent's networks"] = networks / config.evolution.population_size
    seconds["evaluate an agent"] = seconds.pop("evaluate") / config.evolution.population_size
    many, drawn = AGENTS[-1], torch.Generator().manual_seed(0)
    genes = genome.random_genes(many, drawn)
    seconds["fit an agent"] = _least(lambda: trainer.days.fit(genes[:1024])) / 1024
    seconds["evidence"] = _least(trainer.tested_champion)
    seconds["gather an agent"] = _least(lambda: _gather(trainer, config, genes)) / many
    return seconds


def _gather(trainer: ERLTrainer, config: Config, genes: Tensor) -> None:
    """Do the driver's work on the results of all agents, except fitting and training."""
    agents, windows = len(genes), config.evaluation.fitness_windows + config.evaluation.exploration_windows
    parts = 64
    rows = agents // parts
    mean, money = torch.rand(rows, dtype=torch.float64), torch.rand(rows, windows, dtype=torch.float64)
    counts, blend = torch.ones(rows, len(COUNTS), dtype=torch.int64), Blend.of_ridge(rows)
    one = PopulationResults(mean, mean, mean, money, money, mean, blend, counts, money, money)
    played = PopulationResults.join([one] * parts)
    trainer.log.begin(0)
    learning = trainer.log.learning(played, trainer.population, trainer.learning.exploration_noise)
    trainer.log.record(played, learning, {}, trainer.replay)
    evolution = replace(config.evolution, population_size=len(played.fitness))
    next_generation(genes[: len(played.fitness)], played.fitness, evolution, torch.Generator())


def _least(work: Callable[[], object], repeats: int = 5) -> float:
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return min(taken)


@dataclass(frozen=True)
class Model:
    """Seconds per generation on machines with one GPU each, or one core each where there is none."""

    budget: Mapping[str, Any]
    """Counts of `benchmarks.gpu_budget`."""
    seconds: Mapping[str, float]
    """Figures of `measure`."""
    sizes: Sizes
    card: Card | None

    def worker(self, agents: int) -> float:
        """Return the seconds in which a worker plays so many agents."""
        if self.card is None:
            return self.seconds["evaluate an agent"] * agents
        return self._on_card("evaluate", agents) + self._on_card("evaluate, days", agents, is_replayed=True)

    def driver(self, agents: int) -> float:
        """Return the seconds of the driver."""
        if self.card is None:
            of_networks = self.seconds["train an agent's networks"] * agents
            fixed = self.seconds["train"] + self.seconds["validate"] + of_networks
        else:
            # All agents are fitted and trained here.
            fixed = self.seconds["evidence"] + self._on_card("validate", 16)
            fixed += sum(self._on_card(name, agents) for name in ("evolve", "train", UPDATES))
            fixed += self._on_card("validate, days", 16, is_replayed=True)
        return fixed + self.seconds["fit an agent"] * agents + self.seconds["gather an agent"] * agents

    def calls(self, agents: int, machines: int, bytes_per_second: float) -> float:
        """Return the seconds of the calls: the driver's network carries all bytes but those of its own worker."""
        if machines == 1:
            return 0.0
        config = full_scale()
        windows = config.evaluation.fitness_windows + config.evaluation.exploration_windows
        transitions = config.evolution.elite_fraction * agents * windows * (config.env.trading_days - 1)
        kept: float = min(transitions, config.learning.replay_capacity)
        # Each machine sends the transitions of its own best agents, as many as there are elites in all.
        kept *= min(machines, 1 / config.evolution.elite_fraction)
        away = (machines - 1) / machines
        moved = ((self.sizes.inputs + self.sizes.results) * agents + self.sizes.transition * kept) * away
        return moved / bytes_per_second + CALL_SECONDS + WORKER_SECONDS * (machines - 1)

    def generation(self, agents: int, machines: int, bytes_per_second: float) -> float:
        """Return the seconds of a generation."""
        share = math.ceil(agents / machines)
        return self.worker(share) + self.driver(agents) + self.calls(agents, machines, bytes_per_second)

    def has_room(self, agents: int, machines: int) -> bool:
        """Return whether a worker fits into its GPU's memory."""
        peak = self._figure("evaluate", "peak", math.ceil(agents / machines))
        return self.card is None or _WITH_GRAPH * peak <= self.card.memory

    def _on_card(self, phase: str, agents: int, *, is_replayed: bool = False) -> float:
        """Return an upper bound for the seconds of a phase: kernels and transfers do not overlap."""
        assert self.card is not None
        count = {name: self._figure(phase, name, agents) for name in ("operations", "kernels", "bytes", "copied")}
        own = count["kernels"] * KERNEL_SECONDS + count["bytes"] / self.card.bytes_per_second
        launches = 1.0 if is_replayed else count["operations"]
        return max(own, launches * HOST_SECONDS) + count["copied"] / COPY_BYTES_PER_SECOND

    def _figure(self, phase: str, name: str, agents: int) -> float:
        """Interpolate a figure of the budget between its populations, and extrapolate beyond the last."""
        known = sorted(int(key.split()[1]) for key in self.budget if key.startswith("full "))
        values = [self.budget[f"full {population}"][phase][name] for population in known]
        if agents <= known[-1]:
            return float(np.interp(agents, known, values))
        slope = (values[-1] - values[-2]) / (known[-1] - known[-2])
        return float(values[-1] + slope * (agents - known[-1]))


def table(model: Model, gigabits: float) -> list[str]:
    """Return a line per population: seconds by number of machines, and the number beyond which doubling gains little.

    A dash means that the GPU's memory is too small.
    """
    rate, lines = gigabits * 1e9 / 8, []
    for agents in AGENTS:
        seconds = [model.generation(agents, machines, rate) for machines in MACHINES]
        useful = 1
        for machines, now, twice in zip(MACHINES[1:], seconds, seconds[1:], strict=False):
            if twice > _GAIN * now:
                break
            useful = machines
        has_room = [model.has_room(agents, machines) for machines in MACHINES]
        cells = " | ".join(f"{value:.2f}" if fits else "-" for value, fits in zip(seconds, has_room, strict=True))
        lines.append(f"| {agents:,} | {cells} | {useful} |")
    return lines


def main() -> None:
    """Print a table for each kind of machine and network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure this machine, and store the figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.measure:
        found = {name: float(f"{value:.3g}") for name, value in measure().items()}
        MEASURED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    seconds, budget, sizes = json.loads(MEASURED.read_text()), json.loads(BUDGET.read_text()), count_bytes()
    away = f"{sizes.inputs:.0f} per agent to its machine, {sizes.results:.0f} back"
    print(f"bytes: {away}, {sizes.transition:.0f} per transition")
    print(f"seconds of a core: {', '.join(f'{name} {value:g}' for name, value in seconds.items())}")
    for card in (*CARDS, None):
        model = Model(budget, seconds, sizes, card)
        for gigabits in (10.0, 1.0):
            print(
                f"\n{_CORE if card is None else card.name} per machine, {gigabits:g} Gbit/s: seconds per generation\n"
            )
            print("| agents | " + " | ".join(str(machines) for machines in MACHINES) + " | useful |")
            print("| --- |" + " --- |" * (len(MACHINES) + 1))
            print("\n".join(table(model, gigabits)))
        parts = " ".join(f"{agents:,}: {model.driver(agents):.2f}" for agents in AGENTS)
        print(f"\nof these on the driver alone, {parts}")


if __name__ == "__main__":
    main()
