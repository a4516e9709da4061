"""The update of deep deterministic policy gradient (Lillicrap et al. 2016, algorithm 1), for all agents at once.

The critic learns by temporal differences what a position gains until it is sold, percent of its value:

    q(x) = r + gamma * (q(x') if the actor keeps the position, else -cost of the sale)

`x` are a stock's inputs at a close, `x'` those at the next decision. The actor climbs q less the shadow price of
capital in the replayed account (see `models.target_weights`). It chooses one of the drawn stocks of a day to buy, or
none, and keeps or sells each position, relaxed to a softmax and a sigmoid with an entropy bonus (Haarnoja et al. 2018,
"Soft actor-critic"; Christodoulou 2019, "Soft actor-critic for discrete action settings"); at the optimum its score of
a stock is the critic's value.

Two things differ from the paper. The critic has no action among its inputs: it values a position, and the actor climbs
the expected value of its choices. And the target networks are not only bootstrapped from: they are what acts in
rollouts and deployment, an average over many updates.

Prices do not react, so that the rewards of all stocks of a replayed day are looked up, see
`training.forecasts.transitions`. How much is held follows from the scores, see `models.policy`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from models.networks import ActorCritic, Networks, soft_update

LOSSES = ("critic", "actor")
_DAY_MEAN_WEIGHT = 0.1
"""Of the squared mean temporal difference of a day, whose noise is common to all stocks."""
_TEMPERATURE = 0.3
"""Of the actor's relaxed choices, in deviations of the critic's values less the price of capital."""


class Losses(NamedTuple):
    """Losses of an agent in an update, means over its members, as `update` says."""

    critic_loss: float
    actor_loss: float


@dataclass(frozen=True)
class Batch:
    """Transitions of S stocks on D replayed days outside of each fold, and of the accounts of these days.

    Prices do not react to orders, so that every stock of a replayed day is a transition, held or not.
    """

    x: Tensor
    """(folds, D, S, inputs) of the stocks, as networks see them."""
    next_x: Tensor
    """(folds, D, S, inputs) at the close on which a position in them is decided on next."""
    reward: Tensor
    """(folds, D, S) percent that a position earns between the two decisions."""
    terminated: Tensor
    """(folds, D, S) bool: the position has been closed by then, or what follows is not known."""
    price: Tensor
    """(folds, D) shadow price of capital in the replayed account, percent."""
    next_price: Tensor
    """(folds, D) a session later, also where the stock's next decision is later."""

    def split(self, count: int) -> Iterator[tuple[Batch, float]]:
        """Split it into at most `count` micro-batches, to accumulate gradients over; with each one's share of it."""
        days = self.x.shape[1]
        count = min(count, days)
        for part in range(count):
            some = slice(days * part // count, days * (part + 1) // count)
            tensors = {name: value[:, some] for name, value in vars(self).items()}
            yield Batch(**tensors), (some.stop - some.start) / days


def update(
    networks: Networks,
    gamma: Tensor,
    batch: Batch,
    micro_batches: int,
    *,
    cost: float,
    tau: float,
) -> Tensor:
    """Take one step of A critics, of their actors and of the targets, in a number of micro-batches.

    Args:
        gamma: (A,) discount from one decision to the next.
        cost: of a purchase or a sale, percent of its value.

    Returns:
        (2, A) losses, by `LOSSES`: mean squared temporal difference, percent squared; negative mean value of the
        actor's choices with their entropy, in temperatures.
    """
    losses = torch.zeros(len(LOSSES), len(gamma), device=batch.x.device)
    for micro_batch, share in batch.split(micro_batches):
        total, of_agents = losses_of(networks, gamma, micro_batch, cost=cost)
        (share * total).backward()  # gradients wait for the step
        losses += share * of_agents
    step(networks, tau)
    return losses


def losses_of(networks: Networks, gamma: Tensor, batch: Batch, *, cost: float) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch whose gradients all networks learn from, and the (2, A) losses that `update` tells."""
    # Targets of the temporal differences, (A, folds, D, S).
    td_target = td_targets(networks, gamma, batch, cost)

    # What critics and actors make of the stocks; an actor reads its critic's hidden units, detached.
    value, score = _outputs(networks.online, batch.x)

    # Critic: squared temporal differences in units of the outputs, those of a day's mean with less weight.
    error = (value - td_target) / networks.scale.view(-1, 1, 1, 1)
    day_mean = error.mean(-1, keepdim=True)
    critic = (error - day_mean).square().mean((2, 3)) + _DAY_MEAN_WEIGHT * day_mean.square().mean((2, 3))

    # Actor: its choices climb the critic's value, less the price of capital.
    price = batch.price[..., None]
    worth = value.detach() - price
    networks.note_worth(worth)
    actor = actor_loss(score - price, worth, networks.spread, cost)

    # Agents and folds have parameters of their own, so that their losses are summed. Critic and actor step together:
    # the actor climbs the critic of before its step, where the paper steps the critic first.
    squared_percent = networks.scale.square() * error.square().mean((1, 2, 3))
    return critic.sum() + actor.sum(), torch.stack((squared_percent, actor.mean(1))).detach()


def _outputs(networks: ActorCritic, x: Tensor) -> Iterator[Tensor]:
    """Yield the values of critics and the scores of actors, (A, folds, D, S) each, by (folds, D, S, inputs)."""
    return (part.unflatten(2, x.shape[1:3]) for part in networks.outputs(x.flatten(1, 2)))


@torch.no_grad()
def td_targets(networks: Networks, gamma: Tensor, batch: Batch, cost: float) -> Tensor:
    """Return the (A, folds, D, S) targets of temporal differences: the reward, and what the target networks make of
    what follows, by their own choices at the price of capital in the replayed accounts."""
    value, score = _outputs(networks.target, batch.next_x)
    # One gamma a decision, however many sessions later the next one is; what was closed, or is not known, adds nothing.
    follows = ~batch.terminated
    is_kept = (score - batch.next_price[..., None] >= -cost) & follows
    return batch.reward + gamma.view(-1, 1, 1, 1) * torch.where(is_kept, value, -cost * follows)


def actor_loss(score: Tensor, value: Tensor, spread: Tensor, cost: float) -> Tensor:
    """Return the (A, folds) negative expected value of relaxed choices, in temperatures: of a stock to buy on each day,
    or none, and of keeping or selling a position in each stock.

    Args:
        score: (A, folds, D, S) of the actor, less the price of capital, with gradients.
        value: (A, folds, D, S) that the critic sees in a position, less the price of capital.
        spread: (A, folds) deviation of such values, of the update before: that of a part would make micro-batches of
            a batch another one.
    """
    temperature = (_TEMPERATURE * spread).clamp(min=1e-3)[..., None, None]
    nothing = torch.zeros_like(score[..., :1])
    # Buying: one stock of the day, or nothing.
    log_chance = torch.cat(((score - cost) / temperature, nothing), dim=-1).log_softmax(-1)
    gain = torch.cat(((value - cost) / temperature, nothing), dim=-1)
    buying = (log_chance.exp() * (gain - log_chance)).sum(-1).mean(-1)
    # Keeping, or selling at a cost: each position by itself.
    log_odds = (score + cost) / temperature
    is_kept = torch.sigmoid(log_odds)
    entropy = functional.softplus(log_odds) - log_odds * is_kept
    keeping = (is_kept * (value + cost) / temperature + entropy).mean((-2, -1))
    return -buying - keeping


def step(networks: Networks, tau: float, gradient_scale: float = 1.0) -> None:
    """Step critics and actors along the gradients that wait, times a number, and move their targets.

    Targets move by `tau`, and by more in the first 1 / tau steps, see `AdamW.target_rate`.
    """
    for owner, optimizer in networks.optimizers.items():
        if gradient_scale != 1.0 and optimizer.parameter.grad is not None:
            optimizer.parameter.grad.mul_(gradient_scale)
        optimizer.step()  # which sets the gradients to zero
        soft_update(networks.tensors[f"{owner}_target"], optimizer.parameter, optimizer.target_rate(tau))
    networks.end_update()
