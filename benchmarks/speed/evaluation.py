"""Rows of `benchmarks.speed`: evaluating a population at once, against its agents two by two, the fewest of one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from benchmarks.speed.harness import Row, seconds_of
from data.market import Market
from training.run.trainer import build_trainer
from utils.config.trader import Config

GROUP = "population evaluation"


@dataclass(frozen=True)
class EvaluationFigures:
    """Seconds in which the fitness of a population is found, and of the smallest one, of two agents."""

    agents: int
    seconds: float
    pair_seconds: float

    @property
    def ratio(self) -> float:
        """Return how many times as long the agents would take two by two."""
        return self.agents / 2 * self.pair_seconds / self.seconds


def measure_evaluation(config: Config, market: Market, device: torch.device, *, repeats: int = 3) -> EvaluationFigures:
    """Evaluate a new population, and one of two agents, on as many training windows."""
    agents = config.evolution.population_size
    seconds, pair = (_seconds(config, market, device, size, repeats) for size in (agents, 2))
    return EvaluationFigures(agents, seconds, pair)


def _seconds(config: Config, market: Market, device: torch.device, agents: int, repeats: int) -> float:
    torch.manual_seed(config.seed)
    own = replace(config, evolution=replace(config.evolution, population_size=agents))
    trainer = build_trainer(own, market, device)
    return seconds_of(trainer.evaluate_population, device, repeats=repeats)


def evaluation_rows(name: str, figures: EvaluationFigures) -> list[Row]:
    """Return the population's row, with what it saves, and that of one agent."""
    return [
        Row(
            GROUP, f"{name}: {figures.agents} agents at once", figures.seconds, "s", figures.ratio, "two by two / ours"
        ),
        Row(GROUP, f"{name}: two agents alone", figures.pair_seconds, "s"),
    ]
