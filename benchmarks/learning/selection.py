"""How well selection works: what fitness foretells of unseen profit, lineages left, the value of cash."""

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
from models import genome
from models.inputs import Float32Array
from models.trader import Outlook
from training.erl_trainer import ERLTrainer
from training.evaluation.tracks import CHAMPION
from training.forecasts.ridge import RidgeForecasts, expectations, traders_of
from training.rollout import Rollout, roll_out
from utils.runs.seeding import named_generator

Array = NDArray[np.float64]
BEST_SINGLE, MEAN_AGENT = "best single elite", "mean agent"
"""The elite that earned most on the validation windows, alone; the mean profit of the last generation's agents."""
_FITNESS_WINDOWS = 32


@dataclass(frozen=True)
class Agents:
    """Genes of A agents, their forecasts, and their profit on each unseen path: (A,) percent, means over windows."""

    genes: Tensor
    forecasts: RidgeForecasts
    unseen: list[Tensor]

    def play(self, path: UnseenPath, x: Float32Array, trainer: ERLTrainer) -> Rollout:
        """Play all of them on an unseen path with these (days, n, inputs)."""
        weights = self.forecasts.weights
        outlook = Outlook.of(expectations(torch.from_numpy(x), weights), path.env.bars.tradable)
        rollout = path.play(traders_of(self.genes, self.forecasts.weights, trainer.device), outlook, trainer.cash_value)
        self.unseen.append(rollout.profit_percent)
        return rollout

    def fitness(self, trainer: ERLTrainer) -> Tensor:
        """Return their (A,) fitness, out of fold, on spaced training windows."""
        starts = spaced_windows(trainer.market.splits.train, trainer.eval_env.rules.episode_steps, _FITNESS_WINDOWS)
        traders = traders_of(self.genes, self.forecasts.weights, trainer.device)
        return roll_out(
            trainer.eval_env, traders, trainer.days.outlook(self.forecasts.by_fold), trainer.cash_value, starts
        ).fitness

    def rank_correlation(self, trainer: ERLTrainer) -> float | None:
        """Return Spearman's rank correlation of fitness and unseen profit."""
        return rank_correlation(self.fitness(trainer), torch.stack(self.unseen).mean(0)) if len(self.genes) else None


class SelectionStudy:
    """Results of a trainer's last generation, and of genomes drawn by lot, gathered path by path."""

    def __init__(self, trainer: ERLTrainer, seed: int, genomes: int = 0) -> None:
        self.trainer = trainer
        self.agents = Agents(trainer.genes, trainer.days.fit(trainer.genes), [])
        drawn = genome.found(genomes, named_generator(seed, "genomes by lot"))
        self.drawn = Agents(drawn, trainer.days.fit(drawn), [])
        self.best = best_elite(trainer)
        self._champion: list[tuple[float, float]] = []

    def play(self, path: UnseenPath, x: Float32Array) -> dict[str, Array]:
        """Play all on an unseen path; return (windows,) profits of the champion, of one elite, and of the mean."""
        champion = path.play_agent(self.trainer.champion, x)
        profit = {CHAMPION: champion.summary.profit_percent.numpy()}
        self._champion.append((float(champion.initial_value), float(champion.profit_percent)))
        each = self.agents.play(path, x, self.trainer).summary.profit_percent.view(len(self.agents.genes), -1).numpy()
        profit |= {BEST_SINGLE: each[self.best], MEAN_AGENT: each.mean(axis=0)}
        if len(self.drawn.genes):
            self.drawn.play(path, x, self.trainer)
        return profit

    def record(self) -> Record:
        """Return plain numbers.

        Rank correlations are Spearman's over agents, None where all are equal or none were asked for. `initial_value`
        is what waiting is worth to the champion on the first day of an episode, beside the profit that followed, in
        percent of the initial capital: means over windows.
        """
        unseen = torch.stack(self.agents.unseen).mean(0)
        value, profit = np.mean(self._champion, axis=0).tolist()
        return {
            "fitness_rank_correlation": self.agents.rank_correlation(self.trainer),
            "random_rank_correlation": self.drawn.rank_correlation(self.trainer),
            "unseen_mean": float(unseen.mean()),
            "unseen_deviation": float(unseen.std(correction=0)),
            "founders": len(set(self.trainer.founders)),
            "agents": len(unseen),
            "initial_value": value,
            "profit": profit,
        }


def best_elite(trainer: ERLTrainer) -> int:
    """Return the row of the elite with the largest profit on the validation windows: the choice of a single agent."""
    weights = trainer.forecasts.weights[trainer.elites]
    traders = traders_of(trainer.genes[trainer.elites], weights, trainer.device)
    outlook = Outlook.of(expectations(trainer.days.later, weights), trainer.days.tradable)
    profit = roll_out(trainer.val_env, traders, outlook, trainer.cash_value, trainer.validation_starts).profit_percent
    return trainer.elites[int(profit.argmax())]


def rank_correlation(first: Tensor, second: Tensor) -> float | None:
    """Return Spearman's rank correlation of (A,) values over the agents that have both; None if one never varies."""
    known = first.isfinite() & second.isfinite()
    one, other = first[known].numpy(), second[known].numpy()
    if len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return None
    return float(stats.spearmanr(one, other).statistic)
