"""Playing a population in groups of agents, each of which is a job for any executor.

The trainer draws all random numbers, and an agent's results do not depend on the others of its group. So the number of
groups and of workers changes no result.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from data.splits import Span
from environment.portfolio import Portfolio
from models.cash_value import CashValue
from models.genome import TARGET
from models.networks import Networks, Perceptrons
from models.trader import Forecasts, PolicyNetworks
from training.evolution import ranked
from training.forecasts.known import KnownForecasts
from training.forecasts.relative import Blend
from training.forecasts.ridge import TrainingDays, traders_of
from training.rollout import Rollout, roll_out
from training.rollout_graph import RolloutGraph
from utils.jobs.job import Executor, Finished, InProcess, Job
from utils.progress import Progress

COUNTS = ("trades", "wins", "losses", "positions_opened", "days_with_positions", "days_without_positions")
"""Parts of the episode summaries that are summed per generation."""
LEAST_SECONDS = 60.0
"""Shortest time after which a worker that plays a group is late."""
LATE = 10.0
"""Multiple of the longest time so far after which it is."""
_FIRST_SECONDS = 1800.0
"""Limit of the first generation."""


@dataclass(frozen=True)
class RolloutInputs:
    """What P agents need to play a generation."""

    genes: Tensor
    """(P, genes)"""
    weights: Tensor
    """(P, inputs) of the ridge regressions."""
    by_fold: Tensor
    """(P, folds, inputs) likewise, fitted without each fold of the training days."""
    drawn: Tensor
    """(P, E) uniform numbers that set the exploration thresholds on the last E windows."""
    noise: Tensor
    """(P, E, trading days) exploration noise on them, as a share of the largest order."""
    networks: dict[str, Tensor]
    """(P, ...) target networks, see `network_tensors`; empty without networks."""
    cash_value: Tensor
    """Weights of the value of cash."""
    opportunity_knots: Tensor
    starts: Tensor
    """(W,) first days of the windows, those of exploration last."""
    is_acting: Tensor
    """() bool: actors have begun to learn, so their residuals are tested for profit."""
    elites: int
    """Number of agents, the fittest of the population, whose transitions are kept."""
    most_transitions: int
    """Upper limit for all elites together."""
    known: KnownForecasts | None = None

    def rows(self, rows: slice) -> Self:
        """Return the inputs of some of the agents, copied because a view is pickled with all that is behind it."""
        by_agent = ("genes", "weights", "by_fold", "drawn", "noise")
        own: dict[str, Any] = {name: getattr(self, name)[rows].clone() for name in by_agent}
        networks = {name: part[rows].clone() for name, part in self.networks.items()}
        return replace(self, **own, networks=networks, known=None if self.known is None else self.known.rows(rows))


@dataclass(frozen=True)
class PopulationResults:
    """Results of A agents on W windows, on the CPU."""

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
    """(A, W) per window, so that sums do not depend on the groups."""
    costs: Tensor

    @classmethod
    def of(cls, rollout: Rollout, blend: Blend, gate: Tensor) -> Self:
        """Copy the results of a rollout to the CPU, in one transfer."""
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

    def learned(self, best: Tensor) -> dict[str, float]:
        """Return what the networks of these agents add, and the share of actors that are kept, for the record."""
        ridge, both = self.explained[best].mean(0).tolist()
        ridge_weight, network_weight = self.blend[best].mean(0).tolist()
        return {
            "explained_by_ridge": ridge,
            "explained_by_both": both,
            "network_weight": network_weight,
            "ridge_weight": ridge_weight,
            "actors_kept": float(self.gate.mean()),
        }

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the agents of several groups."""
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])})


GroupResults = tuple[PopulationResults, dict[str, Tensor]]
"""Of a group of agents, and the (days, candidates, windows, ...) transitions of those that may be elites of the
population, the fittest first; see `models.replay_buffer.transition_fields`."""


def kept_windows(days: int, windows: int, most: int) -> tuple[Tensor, Tensor]:
    """Thin the transitions of one agent to a number, evenly over days and windows.

    Returns:
        (D, 1) days and the (D, K) windows that are kept on each; every day continues with the windows after those of
        the day before.
    """
    per_day = min(windows, max(1, most // days))
    day = torch.arange(0, days, -(-days * per_day // max(1, most)))[:, None]
    window = (torch.arange(len(day))[:, None] * per_day + torch.arange(per_day)) % windows
    return day, window.sort(dim=1).values


class RolloutWorker:
    """Plays agents on the training days of a market."""

    def __init__(self, days: TrainingDays, env: Portfolio, train: Span) -> None:
        self.days, self.env, self.train = days, env, train
        self.graph = RolloutGraph()
        self._cash_value = CashValue.zero(env.rules, env.device)

    def play(self, inputs: RolloutInputs, safe_point: Callable[[], None] | None = None) -> GroupResults:
        """Play all agents by their out-of-fold forecasts.

        Args:
            safe_point: called before every day; may raise to stop.
        """
        rollout, blend, gate = self._rollout(inputs, safe_point)
        results = PopulationResults.of(rollout, blend, gate)
        return results, self._candidates(rollout, inputs, ranked(results.fitness)[: inputs.elites])

    def _rollout(self, inputs: RolloutInputs, safe_point: Callable[[], None] | None) -> tuple[Rollout, Blend, Tensor]:
        """Return the rollout with the blend of forecasts and the gates of the actors."""
        env = self.env
        tensors = _together(inputs.networks, env.device) if inputs.networks else {}
        forecasts, blend = self._forecasts(inputs, tensors)
        # The average of what the best orders of each day are expected to earn sets the scale of the thresholds.
        best = forecasts.opportunity[:, self.train.first : self.train.last].clamp(min=0).mean(1)
        typical = best / env.rules.largest_order
        play = partial(
            roll_out,
            env,
            traders_of(inputs.genes, inputs.weights, env.device),
            forecasts,
            self._cash_value.with_values(inputs.cash_value.to(env.device), inputs.opportunity_knots.to(env.device)),
            inputs.starts,
            exploration_threshold=-typical[:, None] * torch.log1p(-inputs.drawn.to(env.device)),
            records=True,
            safe_point=safe_point,
            graph=self.graph,
        )
        gate = forecasts.opportunity.new_zeros(len(inputs.genes))
        if not tensors:
            return play(), blend, gate
        without_actors, with_actors = (
            PolicyNetworks.from_tensors({**tensors, "gate": own.float()[:, None]}) for own in (gate, gate + 1)
        )
        noise = inputs.noise.to(env.device)
        rollout = play(policy=without_actors, noise=noise)
        if bool(inputs.is_acting):
            acting = play(policy=with_actors, noise=noise)
            gate = earns_more(acting.by_window, rollout.by_window)
            rollout = rollout.where(gate > 0, acting)
        return rollout, blend, gate

    def _forecasts(self, inputs: RolloutInputs, networks: Mapping[str, Tensor]) -> tuple[Forecasts, Blend]:
        """Return the out-of-fold forecasts of agents with these networks, and how they are blended."""
        most, known = self.env.ranked, inputs.known
        if not networks:
            return self.days.forecasts(inputs.by_fold, most), Blend.of_ridge(len(inputs.by_fold))
        others = [agent for agent in range(len(inputs.genes)) if known is None or agent not in known.agents]
        found = list[tuple[Forecasts, Blend]]()
        if others:
            rows, targets = torch.tensor(others, device=self.env.device), inputs.genes[others, TARGET].long().tolist()
            reward = Perceptrons.named(networks, "reward").map(lambda flat: flat.index_select(0, rows))
            blocks, blend = self.days.blended(inputs.by_fold[others], reward, targets)
            found.append((self.days.joined(blocks, most), blend))
        return found[0] if known is None else known.among(others, found, self.env.device)

    def _candidates(self, rollout: Rollout, inputs: RolloutInputs, agents: Tensor) -> dict[str, Tensor]:
        """Return the transitions of some agents, thinned to each one's share."""
        if not rollout.transitions:
            return {}
        days, _, windows = next(iter(rollout.transitions.values())).shape[:3]
        share, agents = inputs.most_transitions // inputs.elites, agents.to(self.env.device)
        if share >= days * windows:
            return {name: part[:, agents] for name, part in rollout.transitions.items()}
        day, window = (index[:, None].to(self.env.device) for index in kept_windows(days, windows, share))
        return {name: part[day, agents[:, None], window] for name, part in rollout.transitions.items()}


@dataclass
class PopulationRollouts:
    """Plays whole populations in groups of agents, each a job of an executor."""

    play: Callable[[RolloutInputs], GroupResults]
    """Plays a group; picklable unless the executor is in-process."""
    executor: Executor = field(default_factory=InProcess)
    groups: int = 1
    longest: float | None = None
    """Seconds of the longest job so far."""

    def evaluate(self, inputs: RolloutInputs) -> tuple[PopulationResults, dict[str, Tensor]]:
        """Play all agents; return their results and the (N, ...) transitions of the elites.

        Transitions are in the order of days, elites (the fittest first) and windows. A worker is late when it takes ten
        times as long as any before.

        Raises:
            ClusterError: the workers of a group were lost several times.
        """
        groups = split_rows(len(inputs.genes), self.groups)
        limit = _FIRST_SECONDS if self.longest is None else max(LEAST_SECONDS, LATE * self.longest)
        rows_of = {f"agents {rows.start} to {rows.stop - 1}": rows for rows in groups}
        is_whole = self.groups == 1 and not self.executor.is_apart
        parts = ((name, inputs if is_whole else inputs.rows(rows)) for name, rows in rows_of.items())
        jobs = (Job(name, partial(self.play, part), limit) for name, part in parts)
        ends = dict[str, Finished]()
        with Progress("evaluate", "agent", len(inputs.genes)) as shown:
            for end in self.executor.run(jobs):
                ends[end.name] = end
                shown.update(rows_of[end.name].stop - rows_of[end.name].start)
        for end in ends.values():
            if end.exception is not None:
                raise end.exception
        self.longest = max(self.longest or 0.0, *(end.seconds for end in ends.values()))
        played: list[GroupResults] = [ends[name].result for name in rows_of]
        results = PopulationResults.join([own for own, _ in played])
        return results, _elite_transitions(groups, played, ranked(results.fitness)[: inputs.elites])


def _elite_transitions(groups: Sequence[slice], parts: Sequence[GroupResults], elites: Tensor) -> dict[str, Tensor]:
    """Pick the transitions of the elites from those of all candidates."""
    if len(parts) == 1:  # the candidates are the elites
        return {name: part.flatten(0, 2) for name, part in parts[0][1].items()}
    own = [rows.start + ranked(part.fitness)[: len(elites)] for rows, (part, _) in zip(groups, parts, strict=True)]
    candidates, order = torch.cat(own).sort()
    place = order[torch.searchsorted(candidates, elites)]
    return {
        name: torch.cat([transitions[name] for _, transitions in parts], dim=1)[:, place.to(like.device)].flatten(0, 2)
        for name, like in parts[0][1].items()
    }


def play_on_worker(build: bytes, inputs: RolloutInputs) -> GroupResults:
    """Play agents by the rollout worker of this process, which is built once from a pickled function."""
    results, transitions = _cached_worker(build).play(inputs)
    return results, {name: part.cpu() for name, part in transitions.items()}


@lru_cache(maxsize=1)
def _cached_worker(build: bytes) -> RolloutWorker:
    worker: RolloutWorker = pickle.loads(build)()
    return worker


def split_rows(agents: int, groups: int) -> list[slice]:
    """Divide the rows of a population into groups whose sizes differ by at most one agent."""
    return [slice(*ends) for ends in pairwise(agents * group // groups for group in range(groups + 1))]


def network_tensors(networks: Networks) -> dict[str, Tensor]:
    """Return the target networks, see `PolicyNetworks.tensors`, with the critic's rewards, on the CPU."""
    policy = PolicyNetworks.of(networks.actor_target, networks.critic_target, networks.calibration)
    rewards = {f"reward {place}": part for place, part in enumerate(networks.critic_target.reward.parts)}
    return _together({**policy.tensors(), **rewards}, torch.device("cpu"))


def _together(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy (A, ...) float32 tensors to a device in one transfer, so that the host waits only once."""
    rows = torch.cat([part.detach().flatten(1) for part in tensors.values()], dim=1)
    parts = rows.to(device).split([part[0].numel() for part in tensors.values()], dim=1)
    return {
        name: part.reshape(like.shape).contiguous() for (name, like), part in zip(tensors.items(), parts, strict=True)
    }


def earns_more(one: Tensor, other: Tensor) -> Tensor:
    """Return (A,) 1 where (A, W) profits are larger than others, paired, by two standard errors, else 0."""
    difference = (one - other).double()
    error = difference.std(1) / difference.shape[1] ** 0.5 if difference.shape[1] > 1 else torch.inf
    return (difference.mean(1) > 2 * error).double()
