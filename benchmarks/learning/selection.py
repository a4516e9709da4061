"""How well selection works: correlation of fitness with unseen profit, and surviving lineages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from benchmarks.learning.study import Record
from benchmarks.learning.unseen import UnseenPath
from data.splits import spaced_windows
from environment.basket import Basket
from models.ddpg_agent import DDPGAgent
from models.inputs import Float32Array
from models.population import Population
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import ALL_ORDERS, BEST_AGENT, CHAMPION
from training.rollout import PopulationRollouts, Windows

Array = NDArray[np.float64]
MEAN_AGENT = "mean agent"
"""The mean profit of the last generation's agents."""
_FITNESS_WINDOWS = 32


@dataclass(frozen=True)
class Agents:
    """A agents one by one, their fitness, and their profit on each unseen path: (A,) percent, means over windows."""

    agents: list[DDPGAgent]
    fitness: Tensor
    """(A,) out of fold, on spaced training windows."""
    unseen: list[Tensor]

    @classmethod
    def of(cls, trainer: ERLTrainer, population: Population) -> Agents:
        """Take a population on the market of a trainer, as it is now."""
        rules, count = trainer.eval_env.rules, len(population)
        starts = spaced_windows(trainer.market.splits.train, rules.episode_steps, _FITNESS_WINDOWS)
        rollouts = PopulationRollouts(trainer.days, trainer.eval_env)
        windows = Windows(starts, torch.zeros(count, 0, rules.trading_days))
        played, _ = rollouts.evaluate(population, windows, count)
        return cls([population.committee([row]) for row in range(count)], played.fitness, [])

    def play(self, path: UnseenPath, x: Float32Array) -> Array:
        """Play all of them on an unseen path with these (days, n, inputs); return (A, windows) profits."""
        profits = [path.play_agent(agent, x).summary.profit_percent for agent in self.agents]
        self.unseen.append(torch.stack([profit.mean() for profit in profits]))
        return torch.stack(profits).numpy()


class SelectionStudy:
    """A champion on unseen paths, and with all orders its own; beside it the fittest agent and, where they are asked
    for, the agents of the last generation."""

    def __init__(self, trainer: ERLTrainer, *, has_agents: bool = False) -> None:
        self.trainer, self.share = trainer, trainer.champion.share
        self.agents = {ALL_ORDERS: trainer.champion, BEST_AGENT: trainer.fittest_agent}
        self.last = Agents.of(trainer, trainer.population) if has_agents else None

    def play(self, path: UnseenPath, x: Float32Array) -> dict[str, Array]:
        """Play all on an unseen path; return (windows,) profits of the champion, those beside it, and of the mean."""
        profits: dict[str, Array] = {
            name: path.play_agent(agent, x).summary.profit_percent.numpy() for name, agent in self.agents.items()
        }
        rules = path.env.rules
        held = Basket.of(path.market, "", 0).hold(rules, path.starts, rules.episode_steps).equity[:, -1].numpy()
        basket = 100 * (held / rules.initial_capital - 1)
        profits = {CHAMPION: self.share * profits[ALL_ORDERS] + (1.0 - self.share) * basket, **profits}
        return profits | ({} if self.last is None else {MEAN_AGENT: self.last.play(path, x).mean(axis=0)})

    def record(self) -> Record:
        """Return plain numbers; the rank correlation is Spearman's over agents, None where all are equal."""
        found: Record = {"share_of_capital": self.share}
        if self.last is not None:
            unseen = torch.stack(self.last.unseen).mean(0)
            found["fitness_rank_correlation"] = rank_correlation(self.last.fitness, unseen)
            found |= {"unseen_mean": float(unseen.mean()), "unseen_deviation": float(unseen.std(correction=0))}
            found |= {"founders": len(set(self.trainer.population.founders)), "agents": len(unseen)}
        return found


def rank_correlation(first: Tensor, second: Tensor) -> float | None:
    """Return Spearman's rank correlation of (A,) values over the agents that have both; None if one never varies."""
    known = first.isfinite() & second.isfinite()
    one, other = first[known].numpy(), second[known].numpy()
    if len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return None
    return float(stats.spearmanr(one, other).statistic)
