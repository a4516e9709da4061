"""Rows of a population are played where a market is, here or on another machine.

The driver draws all random numbers and gives each shard its rows, so that results do not depend on how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol, Self

import torch
from torch import Tensor

from data.splits import Span
from environment.portfolio import Portfolio
from models.cash_value import CashValue
from models.genome import TARGET
from models.networks import Networks, Perceptrons
from models.trader import Forecasts, PolicyNetworks
from training.forecasts.relative import Blend
from training.forecasts.ridge import TrainingDays, traders_of
from training.rollout import Rollout, roll_out
from training.rollout_graph import RolloutGraph

COUNTS = ("trades", "wins", "losses", "positions_opened", "days_with_positions", "days_without_positions")
"""Parts of a summary of episodes that are summed up a generation."""


@dataclass(frozen=True)
class Task:
    """What the P agents of a generation play by."""

    genes: Tensor
    """(P, genes)"""
    weights: Tensor
    """(P, inputs) of their forecasts."""
    by_fold: Tensor
    """(P, folds, inputs) likewise, without each fold of the training days."""
    cash_value: Tensor
    """Weights of the value of cash."""
    opportunity_knots: Tensor
    starts: Tensor
    """(W,) first days of the windows, those of exploration last."""
    drawn: Tensor
    """(P, E) uniform numbers by which agents wait at random on the last E windows."""
    noise: Tensor
    """(P, E, trading days) exploration noise on them, a share of the largest order."""
    networks: dict[str, Tensor]
    """Target networks of the agents, by `network_tensors`; empty where agents are closed forms only."""
    is_acting: Tensor
    """() bool: actors have begun to learn, so that it is tested whether their residuals earn anything."""


@dataclass(frozen=True)
class Played:
    """What the driver learns of A agents that played W windows, on the CPU."""

    fitness: Tensor
    """(A,)"""
    profit_percent: Tensor
    initial_value: Tensor
    blend: Tensor
    """(A, 2) weights of ridge regression and network, see `training.forecasts.relative.Blend`."""
    explained: Tensor
    """(A, 2) share of the variance of relative results explained by the first, and by both; 0 without networks."""
    gate: Tensor
    """(A,) 1 where an actor's residual is kept: on the same windows it earned more, by two standard errors."""
    counts: Tensor
    """(A, COUNTS) int64 sums over all windows."""
    penalties: Tensor
    """(A, W) by window, for a sum in which agents come one after the other, however they were shared out."""
    costs: Tensor

    @classmethod
    def of(cls, rollout: Rollout, blend: Blend, gate: Tensor) -> Self:
        """Take the results of a rollout to the CPU, in one copy."""
        agents, summary = len(rollout.fitness), rollout.summary
        counts = [getattr(summary, name).view(agents, -1).sum(1, keepdim=True) for name in COUNTS]
        means = [mean[:, None] for mean in (rollout.fitness, rollout.profit_percent, rollout.initial_value)]
        lanes = [money.view(agents, -1) for money in (summary.penalties, summary.costs)]
        windows = lanes[0].shape[1]
        numbers = torch.cat([part.double() for part in (*means, *counts, *lanes)], dim=1).cpu()
        parts = numbers.split((1, 1, 1, len(COUNTS), windows, windows), dim=1)
        fitness, profit, value = (part.squeeze(1) for part in parts[:3])
        weights = torch.stack((blend.ridge, blend.network), dim=1).cpu()
        shown = weights, blend.explained.cpu(), gate.cpu()
        return cls(fitness, profit, value, *shown, parts[3].long(), *parts[4:])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Put the agents of several shards one after the other."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


@dataclass(frozen=True)
class Choice:
    """The agents whose transitions are kept, and the share of them."""

    elites: Tensor
    """(E,) rows of the population, the fittest first."""
    every: int
    """On each day the transition of each `every`-th lane is kept, a lane being an elite on a window; the next day, that
    of the lanes before them."""

    @classmethod
    def of(cls, elites: Tensor, days: int, windows: int, most: int) -> Self:
        """Keep at most so many of the transitions of some agents, of each lane as many as of any other, up to one."""
        lanes = windows * len(elites)
        every = max(1, days * lanes // most)
        while sum(len(range(-day % every, lanes, every)) for day in range(days)) > most:
            every += 1
        return cls(elites, every)

    def is_kept(self, day: Tensor, lane: Tensor) -> Tensor:
        """Tell which transitions are kept."""
        return (day + lane) % self.every == 0


@dataclass(frozen=True)
class EliteTransitions:
    """Transitions of some elites, those that are kept."""

    place: Tensor
    """(N,) among the transitions of all elites, in the order of days, elites and windows; ascending."""
    transitions: dict[str, Tensor]
    """(N, ...) each, see `models.replay_buffer.transition_fields`."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Put the transitions of several shards in their order."""
        if len(parts) == 1:
            return parts[0]
        place, order = torch.cat([part.place for part in parts]).sort()
        names = parts[0].transitions
        return cls(place, {name: torch.cat([part.transitions[name] for part in parts])[order] for name in names})


class Shard:
    """A market's training days with an environment on it; plays rows of a population."""

    def __init__(self, days: TrainingDays, env: Portfolio, train: Span) -> None:
        self.days, self.env, self.train = days, env, train
        self.graph = RolloutGraph()
        self._cash_value = CashValue.zero(env.rules, env.device)
        self._played: dict[int, Rollout] = {}
        """Of the agents played last, by their first row."""

    def play(self, task: Task, rows: slice, safe_point: Callable[[], None] | None = None) -> Played:
        """Play some agents by what they expect out of fold.

        Args:
            safe_point: is called before every day, and may raise to stop.
        """
        env, agents = self.env, rows.stop - rows.start
        self._played.pop(rows.start, None)
        own = {name: part[rows] for name, part in task.networks.items()}
        tensors = _together(own, env.device) if own else {}
        forecasts, blend = self._forecasts(task, rows, tensors)
        # What an order must earn is, on average, what the best ones of a day are expected to.
        best = forecasts.opportunity[:, self.train.first : self.train.last].clamp(min=0).mean(1)
        typical = best / env.rules.largest_order
        play = partial(
            roll_out,
            env,
            traders_of(task.genes[rows], task.weights[rows], env.device),
            forecasts,
            self._cash_value.with_values(task.cash_value.to(env.device), task.opportunity_knots.to(env.device)),
            task.starts,
            exploration_threshold=-typical[:, None] * torch.log1p(-task.drawn[rows].to(env.device)),
            records=True,
            safe_point=safe_point,
            graph=self.graph,
        )
        gate = forecasts.opportunity.new_zeros(agents)
        if not tensors:
            rollout = play()
        else:
            networks, noise = _policies(tensors), task.noise[rows].to(env.device)
            rollout = play(policy=networks(gate), noise=noise)
            if bool(task.is_acting):
                acting = play(policy=networks(gate + 1), noise=noise)
                gate = earns_more(acting.by_window, rollout.by_window)
                rollout = rollout.where(gate > 0, acting)
        self._played[rows.start] = rollout
        return Played.of(rollout, blend, gate)

    def _forecasts(self, task: Task, rows: slice, networks: Mapping[str, Tensor]) -> tuple[Forecasts, Blend]:
        """Return what agents with these networks expect out of fold, and how it is blended."""
        by_fold = task.by_fold[rows]
        if not networks:
            return self.days.forecasts(by_fold), Blend.of_ridge(len(by_fold))
        reward = perceptrons(networks, "reward")
        targets = task.genes[rows, TARGET].long().tolist()
        expected, blend = self.days.blended(by_fold, reward, targets)
        return Forecasts.of(expected, self.days.tradable), blend

    def lived(self, choice: Choice, rows: slice) -> EliteTransitions:
        """Return what those of the agents played last who are elites lived through, and forget the rest."""
        rollout = self._played.pop(rows.start)
        is_here = (choice.elites >= rows.start) & (choice.elites < rows.stop)
        agents = choice.elites[is_here] - rows.start
        days, _, windows = next(iter(rollout.transitions.values())).shape[:3] if rollout.transitions else (0, 0, 0)
        lane = is_here.nonzero() * windows + torch.arange(windows)  # (agents, W)
        day = torch.arange(days)[:, None, None]
        place = (day * len(choice.elites) * windows + lane).flatten()
        here = rollout.transitions_of(agents.to(self.env.device))
        if choice.every == 1:
            return EliteTransitions(place, here)
        kept = choice.is_kept(day, lane).flatten().nonzero().squeeze(1)
        there = kept.to(self.env.device)
        return EliteTransitions(place[kept], {name: part[there] for name, part in here.items()})


class Shards(Protocol):
    """A whole population, shared out among shards."""

    def evaluate(self, task: Task, choose: Callable[[Tensor], Choice]) -> tuple[Played, EliteTransitions]:
        """Play all agents; return their results, and what those lived through that `choose` takes by (P,) fitness."""


class LocalShards:
    """Shards in this process, one after the other."""

    def __init__(self, shards: Sequence[Shard], safe_point: Callable[[], None] | None = None) -> None:
        """Take the shards; `safe_point` is called before every day, and may raise to stop."""
        self.shards, self.safe_point = shards, safe_point

    def evaluate(self, task: Task, choose: Callable[[Tensor], Choice]) -> tuple[Played, EliteTransitions]:
        """See `Shards.evaluate`."""
        shared = list(zip(self.shards, groups(len(task.genes), len(self.shards)), strict=True))
        played = Played.join([shard.play(task, rows, self.safe_point) for shard, rows in shared])
        choice = choose(played.fitness)
        return played, EliteTransitions.join([shard.lived(choice, rows) for shard, rows in shared])


def groups(agents: int, shards: int) -> list[slice]:
    """Share out the rows of a population, in equal parts up to one agent."""
    return [slice(*ends) for ends in pairwise(agents * shard // shards for shard in range(shards + 1))]


def network_tensors(networks: Networks) -> dict[str, Tensor]:
    """Return the target networks by name and place, and the calibration, on the CPU."""
    critic, actor = networks.critic_target, networks.actor_target
    named = {"reward": critic.reward, "continuation": critic.continuation, "actor": actor.adjustment}
    parts = {f"{name} {place}": part for name, own in named.items() for place, part in enumerate(own.parts)}
    return _together({**parts, "calibration": networks.calibration}, torch.device("cpu"))


def perceptrons(tensors: Mapping[str, Tensor], name: str) -> Perceptrons:
    """Return one of the networks that `network_tensors` gave."""
    return Perceptrons(tuple(tensors[f"{name} {place}"] for place in range(6)))


def _policies(tensors: Mapping[str, Tensor]) -> Callable[[Tensor], PolicyNetworks]:
    """Return what makes the networks that agents play with of their (A,) gates."""
    actor, continuation = (
        perceptrons(tensors, name).map(lambda part: part[:, None]) for name in ("actor", "continuation")
    )
    return lambda gate: PolicyNetworks(actor, continuation, gate.float()[:, None], tensors["calibration"][:, None])


def _together(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Take tensors of (A, ...) float32 to a device in one copy, for which the host waits once."""
    rows = torch.cat([part.detach().flatten(1) if part.dim() > 1 else part[:, None] for part in tensors.values()], 1)
    parts = rows.to(device).split([part[0].numel() for part in tensors.values()], dim=1)
    return {
        name: part.reshape(like.shape).contiguous() for (name, like), part in zip(tensors.items(), parts, strict=True)
    }


def earns_more(one: Tensor, other: Tensor) -> Tensor:
    """Return (A,) 1 where (A, W) profits are larger than others, paired, by two standard errors, else 0."""
    difference = (one - other).double()
    error = difference.std(1) / difference.shape[1] ** 0.5 if difference.shape[1] > 1 else torch.inf
    return (difference.mean(1) > 2 * error).double()
