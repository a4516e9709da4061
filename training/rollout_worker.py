"""Playing a population in groups of agents, each of which is a job for any executor.

The trainer draws all random numbers, and an agent's results do not depend on the others of its group. So the number of
groups and of workers changes no result.
"""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from data.splits import Span
from environment.trading_env import TradingEnvironment
from models.cash_value import CashValue
from models.networks import ActorCritic
from models.population import Population, ranked, target_percents, traders_of
from models.trader import AccountPolicy, Blend, Forecasts
from training.cuda_graph import CudaGraph
from training.forecasts.known import KnownForecasts
from training.forecasts.ridge import TrainingDays
from training.rollout import Rollout, roll_out
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
    """(P, folds, inputs) weights fitted without each fold of the training days."""
    drawn: Tensor
    """(P, E) uniform numbers that set the exploration thresholds on the last E windows."""
    noise: Tensor
    """(P, E, trading days) exploration noise on them, as a share of the largest order."""
    agents: ActorCritic | None
    """Their target networks."""
    cash_value: Tensor
    """Weights of the value of cash."""
    opportunity_knots: Tensor
    starts: Tensor
    """(W,) first days of the windows, those of exploration last."""
    elites: int
    """Number of agents, the fittest of the population, whose transitions are kept."""
    most_transitions: int
    """Upper limit for all elites together."""
    known: KnownForecasts | None = None

    @classmethod
    def of(
        cls,
        population: Population,
        starts: Tensor,
        drawn: Tensor,
        noise: Tensor,
        most_transitions: int,
        known: KnownForecasts | None,
    ) -> Self:
        """Take what belongs to the agents from a population."""
        agents = None if population.networks is None else population.networks.targets
        ridge, cash_value = population.ridge, population.cash_value
        own = population.genes, ridge.weights, ridge.by_fold, drawn, noise, agents
        worth = cash_value.weights, cash_value.opportunity_knots
        return cls(*own, *worth, starts, len(population.elites), most_transitions, known)

    def rows(self, rows: slice) -> Self:
        """Return the inputs of some of the agents, copied because a view is pickled with all that is behind it."""
        by_agent = ("genes", "weights", "by_fold", "drawn", "noise")
        own: dict[str, Any] = {name: getattr(self, name)[rows].clone() for name in by_agent}
        own["agents"] = None if self.agents is None else self.agents.map(lambda part: part.detach()[rows].cpu().clone())
        return replace(self, **own, known=None if self.known is None else self.known.rows(rows))


@dataclass(frozen=True)
class PopulationResults:
    """Results of A agents on W windows, on the CPU."""

    fitness: Tensor
    """(A,)"""
    profit_percent: Tensor
    initial_value: Tensor
    by_window: Tensor
    """(A, W) profit on the windows that count towards fitness."""
    plain: Tensor
    """(A, W) that of the agents' closed forms; its own without networks."""
    departed: Tensor
    """(A,) share of orders on these windows that differ from those of the closed form in stock or size."""
    blend: Blend
    """How ridge regression and critic are blended; of ridge regressions alone without networks."""
    counts: Tensor
    """(A, COUNTS) int64 sums over all windows."""
    penalties: Tensor
    """(A, W) per window, so that sums do not depend on the groups."""
    costs: Tensor

    @classmethod
    def of(cls, rollout: Rollout, plain: Rollout, blend: Blend) -> Self:
        """Copy the results of a rollout to the CPU, in one transfer; `plain` is that of the closed forms."""
        agents, summary = len(rollout.fitness), rollout.summary
        counts = [getattr(summary, name).view(agents, -1).sum(1, keepdim=True) for name in COUNTS]
        means = [mean[:, None] for mean in (rollout.fitness, rollout.profit_percent, rollout.initial_value)]
        lanes = [money.view(agents, -1) for money in (summary.penalties, summary.costs)]
        departed = rollout.departed(plain)[:, None]
        parts = (*means, departed, torch.cat(counts, dim=1), rollout.by_window, plain.by_window, *lanes)
        together, sizes = torch.cat([part.double() for part in parts], dim=1).cpu(), [part.shape[1] for part in parts]
        *means, departed, counted, by_window, closed, penalties, costs = together.split(sizes, dim=1)
        fitness, profit, value = (mean.squeeze(1) for mean in means)
        return cls(
            fitness=fitness,
            profit_percent=profit,
            initial_value=value,
            by_window=by_window,
            plain=closed,
            departed=departed.squeeze(1),
            blend=blend.to("cpu"),
            counts=counted.long(),
            penalties=penalties,
            costs=costs,
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the agents of several groups."""
        found = {n: torch.cat([getattr(part, n) for part in parts]) for n in vars(parts[0]) if n != "blend"}
        return cls(**found, blend=Blend.join([part.blend for part in parts]))


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

    def __init__(self, days: TrainingDays, env: TradingEnvironment, train: Span) -> None:
        self.days, self.env, self.train = days, env, train
        self.graphs = CudaGraph("rollouts"), CudaGraph("rollouts of closed forms")
        """Of actors, and of closed forms."""
        self._cash_value = CashValue.zero(env.rules, env.account.device)

    def play(self, inputs: RolloutInputs, safe_point: Callable[[], None] = lambda: None) -> GroupResults:
        """Play all agents by their out-of-fold forecasts.

        Args:
            safe_point: called before every day; may raise to stop.
        """
        agents = None if inputs.agents is None else inputs.agents.map(lambda part: part.to(self.env.account.device))
        forecasts, blend = self._forecasts(inputs, agents)
        rollout = plain = self._rollout(inputs, forecasts, agents, safe_point)
        if agents is not None:
            start, most = target_percents(inputs.genes), self.env.account.ranked
            closed, _ = self.days.forecasts(inputs.by_fold, start, most=most)
            plain = self._rollout(inputs, closed, None, safe_point)
        results = PopulationResults.of(rollout, plain, blend)
        return results, self._candidates(rollout, inputs, ranked(results.fitness)[: inputs.elites])

    def _rollout(
        self,
        inputs: RolloutInputs,
        forecasts: Forecasts,
        agents: ActorCritic | None,
        safe_point: Callable[[], None],
    ) -> Rollout:
        device = self.env.account.device
        # The average of what the best orders of each day are expected to earn sets the scale of the thresholds.
        best = forecasts.opportunity[:, self.train.first : self.train.last].clamp(min=0).mean(1)
        typical = best / self.env.rules.largest_order
        return roll_out(
            self.env,
            traders_of(inputs.genes, inputs.weights, device),
            forecasts,
            self._cash_value.with_values(inputs.cash_value.to(device), inputs.opportunity_knots.to(device)),
            inputs.starts,
            exploration_threshold=-typical[:, None] * torch.log1p(-inputs.drawn.to(device)),
            records=agents is not None or inputs.agents is None,
            safe_point=safe_point,
            graph=self.graphs[agents is None],
            policy=None if agents is None else AccountPolicy.of(agents),
            noise=None if agents is None else inputs.noise.to(device),
        )

    def _forecasts(self, inputs: RolloutInputs, agents: ActorCritic | None) -> tuple[Forecasts, Blend]:
        """Return the out-of-fold forecasts of agents, and how they are blended."""
        most, known, device = self.env.account.ranked, inputs.known, self.env.account.device
        start = target_percents(inputs.genes)
        if agents is None:
            return self.days.forecasts(inputs.by_fold, start, most=most)
        others = [agent for agent in range(len(inputs.genes)) if known is None or agent not in known.agents]
        found = list[tuple[Forecasts, Blend]]()
        if others:
            rows = torch.tensor(others, device=device)
            own = agents.map(lambda part: part.index_select(0, rows))
            found.append(self.days.forecasts(inputs.by_fold[others], start[others], own, most))
        return found[0] if known is None else known.among(others, found, device)

    def _candidates(self, rollout: Rollout, inputs: RolloutInputs, agents: Tensor) -> dict[str, Tensor]:
        """Return the transitions of some agents, thinned to each one's share."""
        if not rollout.transitions:
            return {}
        days, _, windows = next(iter(rollout.transitions.values())).shape[:3]
        share, agents = inputs.most_transitions // inputs.elites, agents.to(self.env.account.device)
        if share >= days * windows:
            return {name: part[:, agents] for name, part in rollout.transitions.items()}
        day, window = (index[:, None].to(self.env.account.device) for index in kept_windows(days, windows, share))
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
