"""What takes the place of a part of the agents, or of how they learn: changes of a trainer that was just built.

No setting does any of it. All of it is done to the trainer's own objects, so that the next trainer of the process is as
it should be.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from models import ddpg
from models.ddpg import Batch
from models.evolution import HIGH, LOW
from models.networks import Networks
from training.erl_trainer import ERLTrainer
from training.rollout import PopulationResults

Targets = Callable[..., Tensor]
_TARGETS: Targets = ddpg.td_targets


def _with_targets(trainer: ERLTrainer, targets: Targets) -> None:
    """Let the trainer's updates take other targets of temporal differences."""
    update = trainer.update_networks

    def altered(*given: Any) -> Any:
        with mock.patch.object(ddpg, "td_targets", targets):
            return update(*given)

    trainer.update_networks = altered  # type: ignore[method-assign, assignment]


def _first_step(networks: Networks, gamma: Tensor, batch: Batch, cost: float) -> Tensor:
    """Return the targets as if nothing followed a session."""
    return _TARGETS(networks, gamma, replace(batch, terminated=torch.ones_like(batch.terminated)), cost)


def noise_in_targets(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Follow each reward by a random value, of a session's result, not by the target networks'."""

    def noisy(networks: Networks, gamma: Tensor, batch: Batch, cost: float) -> Tensor:
        first = _first_step(networks, gamma, batch, cost)
        noise = torch.randn(first.shape, generator=drawn) * networks.scale.view(-1, 1, 1, 1)
        return first + noise.clamp(min=-cost) * ~batch.terminated

    _with_targets(trainer, noisy)


def no_bootstrap(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Cut temporal differences to their first step: nothing follows a session."""
    _with_targets(trainer, _first_step)


def noise_in_the_actors_gradient(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Put random numbers of the same norm in the place of the policy gradient."""
    optimizer = trainer.population.networks.optimizers["actor"]
    step = optimizer.step

    def stray() -> None:
        gradient = optimizer.parameter.grad
        assert gradient is not None
        noise = torch.randn(gradient.shape, generator=drawn) * (gradient != 0)  # none at masked inputs
        norm, length = (one.norm(dim=-1, keepdim=True) for one in (gradient, noise))
        gradient.copy_(norm * noise / length.clamp(min=1e-12))
        step()

    optimizer.step = stray  # type: ignore[method-assign]


def critic_decides(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let actors be copies of their critics' last layer, so that what is bought, kept and sold is the critic's."""
    networks = trainer.population.networks
    optimizer = networks.optimizers["actor"]

    @torch.no_grad()
    def copy() -> None:
        gradient = optimizer.parameter.grad
        assert gradient is not None
        gradient.zero_()
        for each in (networks.online, networks.target):  # the critic's have taken their step
            each.actor.copy_(torch.cat([part.flatten(-2) for part in each.critic.matrices[-2:]], dim=-1))

    optimizer.step = copy  # type: ignore[method-assign]
    optimizer.target_rate = lambda tau: torch.zeros_like(optimizer.steps, dtype=torch.float32)  # type: ignore[method-assign]


def _with_rows(trainer: ERLTrainer, alter: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Let the replay buffer take other columns of the transitions that are added to it."""
    add = trainer.replay_buffer.add
    trainer.replay_buffer.add = lambda rows: add({**rows, **alter(dict(rows))})  # type: ignore[method-assign]


def random_days_in_replay(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Record other days, in random order, with what happened to accounts."""
    _with_rows(trainer, lambda rows: {"day": rows["day"][torch.randperm(len(rows["day"]), generator=drawn)]})


def random_accounts_in_replay(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Record other accounts in place of those of a day, in random order: their cash, prices of capital and rewards."""

    def others(rows: dict[str, Tensor]) -> dict[str, Tensor]:
        order = torch.randperm(len(rows["day"]), generator=drawn)
        return {name: values[order] for name, values in rows.items() if name != "day"}

    _with_rows(trainer, others)


def free_capital(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let capital have no price in the replayed accounts."""
    _with_rows(trainer, lambda rows: {name: 0 * rows[name] for name in ("price", "next_price")})


def draw_fitness(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Let evolution see noise in place of fitness: elites, and so the champion, and parents are chosen at random."""
    evaluate = trainer.rollouts.evaluate

    def evaluate_at_random(*given: Any, **how: Any) -> tuple[PopulationResults, dict[str, Tensor]]:
        played, transitions = evaluate(*given, **how)
        fitness = torch.rand(played.fitness.shape, generator=drawn, dtype=played.fitness.dtype)
        return replace(played, fitness=fitness), transitions

    trainer.rollouts.evaluate = evaluate_at_random  # type: ignore[method-assign]


def middle_gene(trainer: ERLTrainer, _: torch.Generator, *, gene: int) -> None:
    """Fix a gene at the middle of its bounds in all agents."""
    population, inherit, middle = trainer.population, trainer.population.inherit, (LOW[gene] + HIGH[gene]) / 2

    def inherit_others(genes: Tensor, *given: Any) -> None:
        genes[:, gene] = middle
        inherit(genes, *given)

    population.genes[:, gene] = middle
    population.networks.gains.copy_(population.gains_of_agents)
    population.inherit = inherit_others  # type: ignore[method-assign, assignment]


def keep_genes(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let fitness choose the elites only: nobody is replaced."""
    trainer.evolve_population = lambda: None  # type: ignore[method-assign]


def train_first(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Evaluate, train, evolve: children are judged before they learn."""
    train, evolve = trainer.train_population, trainer.evolve_population
    trainer.evolve_population, trainer.train_population = train, evolve  # type: ignore[method-assign, assignment]


def _with_gains(trainer: ERLTrainer, gains: Tensor) -> None:
    trainer.population.gains = gains
    trainer.population.networks.gains.copy_(trainer.population.gains_of_agents)


def equal_gains(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let all inputs that an agent sees count alike, whatever they tell."""
    _with_gains(trainer, torch.full_like(trainer.population.gains, 0.5))


def random_gains(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Give inputs the gains of others."""
    gains = trainer.population.gains
    _with_gains(trainer, gains[:, torch.randperm(gains.shape[1], generator=drawn)])
