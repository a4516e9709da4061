"""What takes the place of a part of the agents, or of how they learn: changes of a trainer that was just built.

No setting does any of it. All of it is done to the trainer's own objects, so that the next trainer of the process is as
it should be.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from models.trader import Blend, Forecasts
from torch import Tensor

from models import evolution
from models.ddpg_agent import DDPGAgent
from models.networks import ActorCritic, Networks
from models.population import RidgeRegressions
from training import ddpg
from training.erl_trainer import ERLTrainer
from training.rollout import PopulationResults
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

_SHUFFLED = ("reward", "best", "next_best")


def networks_of(trainer: ERLTrainer) -> Networks:
    """Return the networks of its population."""
    assert trainer.population.networks is not None
    return trainer.population.networks


def begin_anew(trainer: ERLTrainer) -> None:
    """Fit, test and build what was made of the agents before they were changed."""
    trainer.stand_on(trainer.population.cash_value)
    trainer.champion = trainer.tested_champion()


def keep(trainer: ERLTrainer, change: Callable[[], None]) -> None:
    """Change networks now, after each update and after each inheritance: nothing plays or learns in between."""
    population, learn, inherit = trainer.population, trainer.updating.learn, trainer.population.inherit

    def learn_and_change(*given: Any) -> Mapping[str, Tensor]:
        losses = learn(*given)
        change()
        return losses

    def inherit_and_change(*given: Any) -> None:
        inherit(*given)
        change()

    trainer.updating.learn = learn_and_change
    population.inherit = inherit_and_change  # type: ignore[method-assign, assignment]
    change()
    begin_anew(trainer)


def draw_last_layers(name: str, trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Let the last layer of a network be drawn anew all the time, so that its outputs are a random function."""
    networks, (owner, part) = networks_of(trainer), name.split(".")

    @torch.no_grad()
    def draw() -> None:
        layers = [getattr(getattr(networks, owner + kind), part).parts[4:] for kind in ("", "_target")]
        weights = torch.randn(layers[0][0].shape, generator=drawn) / networks.of_stock[1] ** 0.5
        for last, bias in layers:
            last.copy_(weights)
            bias.zero_()

    keep(trainer, draw)


def no_sale_targets(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Keep the sale targets of orders where agents start from."""
    networks = networks_of(trainer)

    @torch.no_grad()
    def unshift() -> None:
        for actor in (networks.actor, networks.actor_target):
            actor.choice[..., 1].zero_()

    keep(trainer, unshift)


def trust_timing(trust: float, trainer: ERLTrainer, _: torch.Generator) -> None:
    """Trust the level of each day as far as this, 0 to 1, whatever its evidence."""

    def fixed(ridge: RidgeRegressions, *_: Any) -> Tensor:
        agents, folds, _inputs = ridge.by_fold.shape
        return torch.full((agents, folds + 1), trust, dtype=torch.float64)

    object.__setattr__(trainer.days.means, "trust", fixed)
    begin_anew(trainer)


class RandomActor(DDPGAgent):
    """An agent whose orders are random: which stock, whether, and at which sale target."""

    def forecasts(self, *given: Any, **named: Any) -> Forecasts:
        """Return random forecasts; those of a closed form as they are."""
        found = super().forecasts(*given, **named)
        return found if self.members is None else randomly(found, None, torch.Generator().manual_seed(0))


def randomly(found: Forecasts, most: int | None, drawn: torch.Generator) -> Forecasts:
    """Draw scores and sale targets of all stocks that may be bought, and keep the best of them.

    What is expected of an order is the same for all, so that it says nothing of whether to place one.
    """
    is_known, (score, share) = found.expected.isfinite(), torch.rand(2, *found.score.shape, generator=drawn)
    expected = found.opportunity.clamp(min=0).mean().float().expand(is_known.shape)
    target = MIN_TARGET_PERCENT + (MAX_TARGET_PERCENT - MIN_TARGET_PERCENT) * share
    return Forecasts.of(torch.where(is_known, expected, -torch.inf), is_known, target, score, most)


def order_at_random(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Let population, champion and best agent place random orders."""
    days, population = trainer.days, trainer.population
    forecasts, committee = days.forecasts, population.committee

    def random_forecasts(
        ridge: RidgeRegressions, start: Tensor, agents: ActorCritic | None = None, most: int | None = None, *seen: Any
    ) -> tuple[Forecasts, Blend]:
        if agents is None:
            return forecasts(ridge, start, None, most, *seen)
        found, blend = forecasts(ridge, start, agents, None, *seen)
        return randomly(found, most, drawn), blend

    def random_committee(rows: Sequence[int]) -> DDPGAgent:
        found = committee(rows)
        found.__class__ = RandomActor
        return found

    object.__setattr__(days, "forecasts", random_forecasts)
    population.committee = random_committee  # type: ignore[method-assign]
    for agent in population.agents:
        agent.__class__ = RandomActor
    begin_anew(trainer)


def shuffle_replay(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Give the transitions of a generation each other's rewards and candidates."""
    add = trainer.replay.add

    def add_shuffled(rows: Mapping[str, Tensor]) -> None:
        shuffled = {name: rows[name][torch.randperm(len(rows[name]), generator=drawn)] for name in _SHUFFLED}
        add({**rows, **shuffled})

    trainer.replay.add = add_shuffled  # type: ignore[method-assign]


def learn_with(name: str, value: float, trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let a constant of `training.ddpg` have another value."""
    learn = trainer.updating.learn

    def learn_otherwise(*given: Any) -> Mapping[str, Tensor]:
        with mock.patch.object(ddpg, name, value):
            return learn(*given)

    trainer.updating.learn = learn_otherwise


def inherit_from_one(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let children take all networks and genes from their first parent."""
    inherit, evolve = trainer.population.inherit, trainer.evolve_population

    def inherit_first(genes: Tensor, parents: Tensor, _: Tensor, generators: Mapping[str, torch.Generator]) -> None:
        inherit(genes, parents, parents, generators)

    def evolve_uncrossed(fitness: Tensor) -> None:
        with mock.patch.object(evolution, "cross", lambda first, *_: first.clone()):
            evolve(fitness)

    trainer.population.inherit = inherit_first  # type: ignore[method-assign, assignment]
    trainer.evolve_population = evolve_uncrossed  # type: ignore[method-assign]


def do_not_mutate(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Leave children's actors as they were inherited."""
    trainer.population._mutate = lambda *_: None  # type: ignore[method-assign]


def keep_genes(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let fitness choose the elites only: nobody is replaced."""
    trainer.evolve_population = lambda fitness: None  # type: ignore[method-assign]


def draw_fitness(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Let evolution see noise in place of fitness: the elites, and so the champion, are chosen at random."""
    evaluate = trainer.rollouts.evaluate

    def evaluate_at_random(*given: Any) -> tuple[PopulationResults, dict[str, Tensor]]:
        played, transitions = evaluate(*given)
        fitness = torch.rand(played.fitness.shape, generator=drawn, dtype=played.fitness.dtype)
        return replace(played, fitness=fitness), transitions

    trainer.rollouts.evaluate = evaluate_at_random  # type: ignore[method-assign, assignment]


def search_at_random(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Replace the genes of all agents but the elites by new founders' in place of children; networks go on."""
    population = trainer.population

    def replace_by_founders(fitness: Tensor) -> None:
        founders = evolution.random_genes(len(fitness), drawn)
        founders[population.elites] = population.genes[population.elites]
        first = 1 + max(population.founders)
        kept = {row: population.founders[row] for row in population.elites}
        population.founders = [kept.get(row, first + row) for row in range(len(fitness))]
        population.genes = founders
        trainer.stand_on(population.cash_value)

    trainer.evolve_population = replace_by_founders  # type: ignore[method-assign]
