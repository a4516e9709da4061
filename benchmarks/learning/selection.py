"""How well selection works: correlation of fitness with unseen profit, surviving lineages, the value of cash."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from benchmarks.learning.study import Record
from benchmarks.learning.unseen import UnseenPath
from data.splits import spaced_windows
from models import evolution
from models.ddpg_agent import DDPGAgent
from models.inputs import Float32Array
from models.population import Population
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import BEST_AGENT, CHAMPION, CLOSED_FORM
from training.rollout import PopulationRollouts, Windows
from utils.runs.seeding import named_generator

Array = NDArray[np.float64]
MEAN_AGENT = "mean agent"
"""The mean profit of the last generation's agents."""
ALL_ORDERS = "champion, all orders its own"
"""Whatever share of them its evidence is worth."""
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
        train, count = trainer.market.splits.train, len(population)
        starts = spaced_windows(train, trainer.eval_env.rules.episode_steps, _FITNESS_WINDOWS)
        rollouts = PopulationRollouts(trainer.days, trainer.eval_env, train)
        nothing = torch.zeros(count, 0, dtype=torch.float64), torch.zeros(count, 0, trainer.eval_env.rules.trading_days)
        played, _ = rollouts.evaluate(population, Windows(starts, *nothing), 1)
        return cls([population.committee([row]) for row in range(count)], played.fitness, [])

    def play(self, path: UnseenPath, x: Float32Array) -> Array:
        """Play all of them on an unseen path with these (days, n, inputs); return (A, windows) profits."""
        profits = [path.play_agent(agent, x).summary.profit_percent for agent in self.agents]
        self.unseen.append(torch.stack([profit.mean() for profit in profits]))
        return torch.stack(profits).numpy()


class SelectionStudy:
    """A champion on unseen paths, path by path, and with all orders its own.

    Beside it stand, with networks, the fittest agent and the closed form; where it is asked for, the agents of the last
    generation and agents without networks whose genomes are drawn at random.
    """

    def __init__(self, trainer: ERLTrainer, seed: int, genomes: int | None = None) -> None:
        self.trainer, self.groups, champion = trainer, dict[str, Agents](), trainer.champion
        self.agents = {CHAMPION: champion, ALL_ORDERS: champion.betting(1.0)}
        if champion.networks is not None:
            self.agents |= {BEST_AGENT: trainer.best_agent, CLOSED_FORM: champion.closed_form()}
        self._episodes: list[tuple[float, float]] = []
        if genomes is not None:
            self.groups["fitness"] = Agents.of(trainer, trainer.population)
        if genomes:
            drawn = copy.copy(trainer.population)
            drawn.genes, drawn.networks = evolution.random_genes(genomes, named_generator(seed, "random genomes")), None
            drawn.ridge = trainer.days.fit(drawn.genes)
            self.groups["random"] = Agents.of(trainer, drawn)

    def play(self, path: UnseenPath, x: Float32Array) -> dict[str, Array]:
        """Play all on an unseen path; return (windows,) profits of the champion, those beside it, and of the mean."""
        rollouts = {name: path.play_agent(agent, x) for name, agent in self.agents.items()}
        champion = rollouts[CHAMPION]
        self._episodes.append((float(champion.initial_value), float(champion.profit_percent)))
        profits: dict[str, Array] = {name: one.summary.profit_percent.numpy() for name, one in rollouts.items()}
        each = {name: group.play(path, x) for name, group in self.groups.items()}
        return profits | ({MEAN_AGENT: each["fitness"].mean(axis=0)} if each else {})

    def record(self) -> Record:
        """Return plain numbers.

        Rank correlations are Spearman's over agents, None where all are equal. `initial_value` is the champion's value
        of cash on the first day of an episode, beside the profit that followed, in percent of the initial capital:
        means over windows.
        """
        value, profit = np.mean(self._episodes, axis=0).tolist()
        trust = self.agents[CHAMPION].trust
        found: Record = {"initial_value": value, "profit": profit}
        found |= {"share_of_orders": trust.orders, "timing": trust.timing}
        for name, group in self.groups.items():
            unseen = torch.stack(group.unseen).mean(0)
            found[f"{name}_rank_correlation"] = rank_correlation(group.fitness, unseen)
            if name == "fitness":
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
