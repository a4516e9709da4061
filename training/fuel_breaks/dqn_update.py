"""Targets and loss of dueling double DQN (Mnih et al. 2015; van Hasselt et al. 2016); values are (n, actions)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def double_dqn_target(
    rewards: Tensor, factors: Tensor, online_next: Tensor, target_next: Tensor, terminated: Tensor
) -> Tensor:
    """(n,) r + factor Q_target(s', argmax Q_online(s', .)), and r alone where nothing follows.

    Args:
        rewards: (n,) sums of discounted rewards on the way to s'.
        factors: (n,) discounts of what follows s': gamma to the number of steps on the way.
        online_next, target_next: (n, actions) values in s', -inf where an action is illegal.
        terminated: (n,) whether nothing follows.
    """
    chosen = online_next.argmax(dim=1, keepdim=True)
    follows = target_next.gather(1, chosen).squeeze(1)
    # Where nothing follows there may be no legal action, and -inf times 0 is not a number.
    return rewards + torch.where(terminated, torch.zeros_like(follows), factors * follows)


def value_loss(values: Tensor, actions: Tensor, targets: Tensor) -> Tensor:
    """Mean Huber loss of the values of the actions taken."""
    taken = values.gather(1, actions.unsqueeze(1)).squeeze(1)
    return functional.smooth_l1_loss(taken, targets)


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, tau: float) -> None:
    """Move the target network's parameters a step towards the online network's."""
    for old, new in zip(target.parameters(), online.parameters(), strict=True):
        old.lerp_(new, tau)
