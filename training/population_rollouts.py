"""Evaluation of a population: all agents on the same windows of training days, by what did not learn from them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from data.splits import Span
from environment.trading_env import TradingEnvironment
from models.evolution import ranked
from models.networks import ActorCritic
from models.population import Population, target_percents
from models.trader import AccountPolicy, Blend, Forecasts
from training.cuda_graph import CudaGraph
from training.forecasts.ridge import TrainingDays
from training.rollout import Rollout, roll_out

COUNTS = ("trades", "wins", "losses", "positions_opened", "days_with_positions", "days_without_positions")
"""Parts of the episode summaries that are summed per generation."""


class Windows(NamedTuple):
    """The windows of an evaluation, the same for all P agents; on the last E of them agents explore."""

    starts: Tensor
    """(W,) first days."""
    drawn: Tensor
    """(P, E) uniform numbers that set the exploration thresholds."""
    noise: Tensor
    """(P, E, trading days) exploration noise, as a share of the largest order; (P, E, 0): none."""


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
    trading: dict[str, float]
    """Sums over all agents and windows of counts, penalties and costs."""


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


class PopulationRollouts:
    """Plays a population on the training days of a market."""

    def __init__(
        self,
        days: TrainingDays,
        env: TradingEnvironment,
        train: Span,
        safe_point: Callable[[], None] = lambda: None,
        risk_aversion: float = 0.0,
    ) -> None:
        """Play in this environment; `safe_point` is called before every day, and may raise to stop."""
        self.days, self.env, self.train, self.safe_point = days, env, train, safe_point
        self.risk_aversion = risk_aversion
        self.graphs = CudaGraph("rollouts"), CudaGraph("rollouts of closed forms")

    def evaluate(
        self,
        population: Population,
        windows: Windows,
        most_transitions: int,
        known: tuple[Forecasts, Blend] | None = None,
    ) -> tuple[PopulationResults, dict[str, Tensor]]:
        """Play all agents; return their results and the (N, ...) transitions of the fittest, for the replay buffer.

        Transitions are in the order of days, elites (the fittest first) and windows.

        Args:
            most_transitions: upper limit for all elites together.
            known: out-of-fold forecasts of the agents and their blend, where they have been computed before.
        """
        networks = None if population.networks is None else population.networks.targets
        closed, most = (population.ridge, target_percents(population.genes)), self.env.account.ranked
        forecasts, blend = known or self.days.forecasts(*closed, networks, most)
        rollout = plain = self._rollout(population, windows, forecasts, networks)
        if networks is not None:
            plain = self._rollout(population, windows, self.days.forecasts(*closed, most=most)[0], None)
        counts = torch.stack([getattr(rollout.summary, name).sum() for name in COUNTS]).tolist()
        paid = {name: float(getattr(rollout.summary, name).cpu().sum()) for name in ("penalties", "costs")}
        results = PopulationResults(
            rollout.fitness.cpu(),
            rollout.profit_percent.cpu(),
            rollout.initial_value.cpu(),
            rollout.by_window.cpu(),
            plain.by_window.cpu(),
            rollout.departed(plain).double().cpu(),
            blend.to("cpu"),
            dict(zip(COUNTS, counts, strict=True)) | paid,
        )
        elites = ranked(results.fitness)[: len(population.elites)]
        return results, self._transitions(rollout, elites, most_transitions // len(elites))

    def _rollout(
        self, population: Population, windows: Windows, forecasts: Forecasts, networks: ActorCritic | None
    ) -> Rollout:
        device = self.env.account.device
        # The average of what the best orders of each day are expected to earn sets the scale of the thresholds.
        best = forecasts.opportunity[:, self.train.first : self.train.last].clamp(min=0).mean(1)
        typical = best / self.env.rules.largest_order
        return roll_out(
            self.env,
            population.traders,
            forecasts,
            population.cash_value,
            windows.starts,
            exploration_threshold=-typical[:, None] * torch.log1p(-windows.drawn.to(device)),
            records=networks is not None or population.networks is None,
            safe_point=self.safe_point,
            graph=self.graphs[networks is None],
            policy=None if networks is None else AccountPolicy.of(networks),
            noise=None if networks is None else windows.noise.to(device),
            risk_aversion=self.risk_aversion,
        )

    def _transitions(self, rollout: Rollout, agents: Tensor, share: int) -> dict[str, Tensor]:
        """Return the transitions of some agents, thinned to each one's share."""
        if not rollout.transitions:
            return {}
        days, _, windows = next(iter(rollout.transitions.values())).shape[:3]
        device = self.env.account.device
        agents = agents.to(device)
        if share >= days * windows:
            return {name: part[:, agents].flatten(0, 2) for name, part in rollout.transitions.items()}
        day, window = (index[:, None].to(device) for index in kept_windows(days, windows, share))
        return {name: part[day, agents[:, None], window].flatten(0, 2) for name, part in rollout.transitions.items()}
