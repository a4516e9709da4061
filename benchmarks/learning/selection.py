"""How well selection works: what fitness and validation foretell of unseen profit, lineages left, critics' values."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from benchmarks.learning.study import Record
from benchmarks.learning.unseen import UnseenPath
from models.networks import ALL, AgentNetworks, StateBatch
from training.ddpg import target_value
from training.erl_trainer import ERLTrainer
from training.rollout import encode_windows, roll_out
from utils.config.trader import LearningConfig

Array = NDArray[np.float64]


class SelectionStudy:
    """Results of a trainer's last generation, gathered path by path."""

    def __init__(self, trainer: ERLTrainer) -> None:
        self.trainer = trainer
        self._profits: list[Tensor] = []
        self._values: list[Tensor] = []

    def play(self, path: UnseenPath) -> None:
        """Play all agents on an unseen path without noise."""
        networks, learning = self.trainer.population.networks, self.trainer.learning
        value = initial_value(networks, path)
        profit = roll_out(path.env, networks, path.tensors, path.starts).profit_percent
        self._profits.append(profit)
        self._values.append(torch.stack((value, *returns(path, learning))))

    def record(self) -> Record:
        """Return plain numbers; the trainer draws one more generation's fitness, which fills its replay buffer.

        Rank correlations are Spearman's over agents, None where all agents are equal. `initial_value` is the critics'
        value of cash only on the first day of an episode, beside the mean returns that followed, in percent of the
        initial capital: means over agents and windows.
        """
        trainer = self.trainer
        unseen = torch.stack(self._profits).mean(0)
        starts = trainer.validation_starts
        validation = roll_out(trainer.val_env, trainer.population.networks, trainer.tensors, starts).profit_percent
        value, discounted, undiscounted = torch.stack(self._values).mean(0).tolist()
        return {
            "fitness_rank_correlation": rank_correlation(trainer.evaluate().fitness, unseen),
            "validation_rank_correlation": rank_correlation(validation, unseen),
            "unseen_mean": float(unseen.nanmean()),
            "unseen_deviation": float(unseen[unseen.isfinite()].std()),
            "founders": len(set(trainer.founders)),
            "agents": trainer.population.size,
            "initial_value": value,
            "discounted_return": discounted,
            "undiscounted_return": undiscounted,
        }


def rank_correlation(first: Tensor, second: Tensor) -> float | None:
    """Return Spearman's rank correlation of (A,) values over the agents that have both; None if one never varies."""
    known = first.isfinite() & second.isfinite()
    one, other = first[known].numpy(), second[known].numpy()
    if len(np.unique(one)) < 2 or len(np.unique(other)) < 2:
        return None
    return float(stats.spearmanr(one, other).statistic)


@torch.no_grad()
def initial_value(networks: AgentNetworks, path: UnseenPath) -> Tensor:
    """Return the mean over agents and windows of Q(s0, mu(s0)) in accounts of cash only, the smaller of the critics."""
    env, starts, shape = path.env, path.starts, (networks.population, len(path.starts))
    encoded = encode_windows(networks, path.tensors, starts.tolist(), 1)
    env.reset(starts.repeat(networks.population))
    positions, account = env.positions(), env.account()
    state = StateBatch(
        encoded.place[starts].expand(shape),
        positions.stock.view(*shape, -1),
        positions.features.view(*shape, *positions.features.shape[1:]),
        account.view(*shape, -1),
    )
    candidates = env.candidates().view(*shape, -1)
    return target_value(networks, encoded.days, state, candidates, env.limits, ALL).double().mean()


def returns(path: UnseenPath, learning: LearningConfig) -> tuple[Tensor, Tensor]:
    """Return the mean discounted and undiscounted return of what was just played, by the critics' rewards."""
    env = path.env
    rewards = env.entry_credited_rewards() if learning.credit == "entry" else env.rewards[: env.steps]
    discount = learning.gamma ** torch.arange(len(rewards), dtype=torch.float64)
    return (discount[:, None] * rewards).sum(0).mean(), rewards.sum(0).mean()
