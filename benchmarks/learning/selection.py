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
from models import genome
from models.ddpg_agent import DDPGAgent
from models.inputs import Float32Array
from models.population import Population
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import BEST_AGENT, CHAMPION, CLOSED_FORM
from training.population_rollouts import PopulationRollouts, Windows
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

    def rank_correlation(self) -> float | None:
        """Return Spearman's rank correlation of fitness and unseen profit."""
        return rank_correlation(self.fitness, torch.stack(self.unseen).mean(0)) if self.agents else None


class ChampionStudy:
    """A champion on unseen paths, path by path, and with all orders its own.

    Beside it stand, with networks, the fittest agent and the closed form.
    """

    def __init__(self, trainer: ERLTrainer) -> None:
        self.agents = {CHAMPION: trainer.champion, ALL_ORDERS: trainer.champion.betting(1.0)}
        if trainer.champion.networks is not None:
            self.agents |= {BEST_AGENT: trainer.best_agent, CLOSED_FORM: trainer.champion.closed_form()}
        self._episodes: list[tuple[float, float]] = []

    def play(self, path: UnseenPath, x: Float32Array) -> dict[str, Array]:
        """Play them on an unseen path; return (windows,) profits."""
        rollouts = {name: path.play_agent(agent, x) for name, agent in self.agents.items()}
        champion = rollouts[CHAMPION]
        self._episodes.append((float(champion.initial_value), float(champion.profit_percent)))
        return {name: rollout.summary.profit_percent.numpy() for name, rollout in rollouts.items()}

    def record(self) -> Record:
        """Return Q(s0) on the first day of an episode, and the profit that followed: percent, means over windows."""
        value, profit = np.mean(self._episodes, axis=0).tolist()
        trust = self.agents[CHAMPION].trust
        return {"initial_value": value, "profit": profit, "share_of_orders": trust.orders, "timing": trust.timing}


class SelectionStudy:
    """Results of a trainer's last generation, and of genomes drawn at random, gathered path by path.

    Random genomes are agents without networks.
    """

    def __init__(self, trainer: ERLTrainer, seed: int, genomes: int = 0) -> None:
        self.trainer = trainer
        self.champion = ChampionStudy(trainer)
        drawn = copy.copy(trainer.population)
        drawn.genes, drawn.networks = genome.random_genes(genomes, named_generator(seed, "random genomes")), None
        drawn.ridge = trainer.days.fit(drawn.genes) if genomes else drawn.ridge
        self.drawn = Agents.of(trainer, drawn) if genomes else Agents([], torch.zeros(0), [])
        self.agents = Agents.of(trainer, trainer.population)

    def play(self, path: UnseenPath, x: Float32Array) -> dict[str, Array]:
        """Play all on an unseen path; return (windows,) profits of the champion, those beside it, and of the mean."""
        champion = self.champion.play(path, x)
        each = self.agents.play(path, x)
        if self.drawn.agents:
            self.drawn.play(path, x)
        return {**champion, MEAN_AGENT: each.mean(axis=0)}

    def record(self) -> Record:
        """Return plain numbers.

        Rank correlations are Spearman's over agents, None where all are equal or none were asked for. `initial_value`
        is the champion's value of cash on the first day of an episode, beside the profit that followed, in percent of
        the initial capital: means over windows.
        """
        unseen = torch.stack(self.agents.unseen).mean(0)
        return {
            **self.champion.record(),
            "fitness_rank_correlation": self.agents.rank_correlation(),
            "random_rank_correlation": self.drawn.rank_correlation(),
            "unseen_mean": float(unseen.mean()),
            "unseen_deviation": float(unseen.std(correction=0)),
            "founders": len(set(self.trainer.population.founders)),
            "agents": len(unseen),
        }


def rank_correlation(first: Tensor, second: Tensor) -> float | None:
    """Return Spearman's rank correlation of (A,) values over the agents that have both; None if one never varies."""
    known = first.isfinite() & second.isfinite()
    one, other = first[known].numpy(), second[known].numpy()
    if len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return None
    return float(stats.spearmanr(one, other).statistic)
