"""Rows of `benchmarks.speed`: evaluating a population at once, against its agents one by one."""

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
    """Seconds in which the fitness of a population is found, and of one agent alone."""

    agents: int
    seconds: float
    single_seconds: float

    @property
    def ratio(self) -> float:
        """Return how many times as long the agents would take one after the other."""
        return self.agents * self.single_seconds / self.seconds


def measure_evaluation(config: Config, market: Market, device: torch.device, *, repeats: int = 3) -> EvaluationFigures:
    """Evaluate a new population, and one of a single agent, on as many training windows."""
    agents = config.evolution.population_size
    seconds, single = (_seconds(config, market, device, size, repeats) for size in (agents, 1))
    return EvaluationFigures(agents, seconds, single)


def _seconds(config: Config, market: Market, device: torch.device, agents: int, repeats: int) -> float:
    torch.manual_seed(config.seed)
    own = replace(config, evolution=replace(config.evolution, population_size=agents))
    trainer = build_trainer(own, market, device)
    return seconds_of(trainer.evaluate_population, device, repeats=repeats)


def evaluation_rows(name: str, figures: EvaluationFigures) -> list[Row]:
    """Return the population's row, with what it saves, and that of one agent."""
    return [
        Row(
            GROUP, f"{name}: {figures.agents} agents at once", figures.seconds, "s", figures.ratio, "one by one / ours"
        ),
        Row(GROUP, f"{name}: one agent alone", figures.single_seconds, "s"),
    ]
