"""What is trained, and how a trained population is deployed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.learning.alterations import keep_genes
from benchmarks.learning.markets import Alteration
from models.ddpg_agent import DDPGAgent
from models.evidence import Evidence
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import CHAMPION

PRODUCT = "product"
ENSEMBLE, SINGLE_BEST = "untested ensemble", "untested single elite"
ALL_ORDERS, ON_EVIDENCE = "all orders its own", "on significant evidence"


@dataclass(frozen=True)
class Variant:
    """What a training changes of the product."""

    settings: Mapping[str, float | str] = field(default_factory=dict)
    """By dotted name."""
    alter: Alteration | None = None
    """What no setting does."""


_AS_PLANNED: Mapping[str, float | str] = {"learning.gradient_steps": 0, "evaluation.evidence": "require"}
"""The product as it was when the plan was fixed: agents without networks, which trade on evidence only."""
VARIANTS: Mapping[str, Variant] = {
    PRODUCT: Variant(_AS_PLANNED),
    "no evolution": Variant(_AS_PLANNED, keep_genes),
    "no waiting": Variant({**_AS_PLANNED, "learning.gamma": 0.0}),
    "networks": Variant(),
    "closed form": Variant({"learning.gradient_steps": 0}),
}


def champion(trainer: ERLTrainer) -> DDPGAgent:
    """Return the agent that the product deploys."""
    return trainer.champion


def ensemble(trainer: ERLTrainer) -> DDPGAgent:
    """Return the mean of the elites' closed forms, which trades whether or not training days show evidence."""
    return _untested(trainer, trainer.population.elites)


def single_best_elite(trainer: ERLTrainer) -> DDPGAgent:
    """Return the fittest agent alone, in place of the mean of the elites, without a test of evidence either."""
    return _untested(trainer, trainer.population.elites[:1])


def all_orders(trainer: ERLTrainer) -> DDPGAgent:
    """Return the champion with all orders its own, whatever its evidence."""
    return trainer.champion.betting(1.0)


def on_evidence(trainer: ERLTrainer) -> DDPGAgent:
    """Return the champion that holds the market unless its evidence is significant."""
    return trainer.champion.betting(float(trainer.champion.evidence.is_significant))


def _untested(trainer: ERLTrainer, rows: Sequence[int]) -> DDPGAgent:
    agent = trainer.population.committee(rows).closed_form()
    agent.evidence = Evidence(selection=0.0, timing=0.0)
    return agent


FORMS: Mapping[str, Callable[[ERLTrainer], DDPGAgent]] = {
    CHAMPION: champion,
    ENSEMBLE: ensemble,
    SINGLE_BEST: single_best_elite,
    ALL_ORDERS: all_orders,
    ON_EVIDENCE: on_evidence,
}
"""Ways to make one agent of a trained population, by name."""
