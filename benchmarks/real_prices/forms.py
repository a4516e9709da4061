"""What is trained, and how a trained population is deployed."""

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
    "past returns": Variant({"split.inputs": "past"}),
}


def _untested(trainer: ERLTrainer, rows: Sequence[int]) -> DDPGAgent:
    """Return some elites as one agent, which trades whether or not training days show evidence."""
    agent = trainer.population.committee(rows)
    agent.evidence = Evidence(selection=0.0, timing=0.0)
    return agent


FORMS: Mapping[str, Callable[[ERLTrainer], DDPGAgent]] = {
    CHAMPION: lambda trainer: trainer.champion,
    ENSEMBLE: lambda trainer: _untested(trainer, trainer.population.elites),
    SINGLE_BEST: lambda trainer: _untested(trainer, trainer.population.elites[:1]),
    ALL_ORDERS: lambda trainer: trainer.champion.with_share(1.0),
    ON_EVIDENCE: lambda trainer: trainer.champion.with_share(float(trainer.champion.evidence.is_significant)),
}
"""Ways to make one agent of a trained population, by name; the untested ones trade whatever their evidence."""
