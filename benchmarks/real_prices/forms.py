"""What is trained, and how a trained population is deployed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from benchmarks.learning.ablations import keep_genes
from benchmarks.learning.markets import Alteration
from models.agent import Agent
from training.critics import traders_of
from training.erl_trainer import ERLTrainer
from training.evaluation.tracks import CHAMPION

PRODUCT, SINGLE_BEST = "product", "single best elite"


@dataclass(frozen=True)
class Variant:
    """What a training changes of the product."""

    settings: Mapping[str, float] = field(default_factory=dict)
    """By dotted name."""
    alter: Alteration | None = None
    """What no setting does."""


VARIANTS: Mapping[str, Variant] = {
    PRODUCT: Variant(),
    "no evolution": Variant(alter=keep_genes),
    "no waiting": Variant({"learning.gamma": 0.0}),
}


def champion(trainer: ERLTrainer) -> Agent:
    """Return the agent that the product deploys."""
    return trainer.champion


def single_best_elite(trainer: ERLTrainer) -> Agent:
    """Return the fittest agent alone, in place of the mean of the elites."""
    traders = traders_of(trainer.genes, trainer.critics.weights, trainer.device)
    best = torch.tensor(trainer.elites[:1], device=trainer.device)
    return Agent(trainer.days.inputs, traders.rows(best), trainer.waiting, trainer.eval_env.rules)


FORMS: Mapping[str, Callable[[ERLTrainer], Agent]] = {CHAMPION: champion, SINGLE_BEST: single_best_elite}
"""Ways to make one agent of a trained population, by name."""
