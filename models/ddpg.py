"""The update of deep deterministic policy gradient (Lillicrap et al. 2016, algorithm 1), for all agents at once.

The critic learns by temporal differences what a position gains until it is sold, percent of its value:

    q(x) = r + gamma * (q(x') if the actor keeps the position, else -cost of the sale)

`x` are a stock's inputs at a close, `x'` those at the next decision. The actor climbs q - price of capital: it chooses
a stock of the day to buy, or none, and keeps or sells each position, relaxed to a softmax and a sigmoid with an entropy
bonus (Haarnoja et al. 2018, "Soft actor-critic"; Christodoulou 2019, "Soft actor-critic for discrete action settings");
at the optimum its score of a stock is the critic's value.

Unlike in the paper the critic has no action among its inputs: it values a position, and the actor climbs the expected
value of its choices. Prices do not react, so that the rewards of all stocks of a replayed day are looked up, see
`training.forecasts.transitions`. The target networks act in rollouts and deployment. With daily exits a position is
valued as one that only decisions end: sale targets, stops and the bound of the holding period are the account's.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from models.networks import Networks, soft_update
from models.replay_buffer import Batch

LOSSES = ("critic", "actor")
_DAY_MEAN_WEIGHT = 0.1
"""Of the squared mean temporal difference of a day, whose noise is common to all stocks."""
_TEMPERATURE = 0.3
"""Of the actor's relaxed choices, in deviations of the critic's values."""


def update(
    networks: Networks,
    hurdle: Tensor,
    target_index: Tensor,
    batch: Batch,
    accumulate: int,
    *,
    cost: float,
    gamma: float,
    tau: float,
) -> dict[str, Tensor]:
    """Take one step of A critics, of their actors and of the targets, in `accumulate` micro-batches.

    Args:
        hurdle: (A,) price of capital where all is invested, percent of a position.
        target_index: (A,) of the agents' sale targets; a batch has the rewards at each, or one at all.
        cost: of a purchase or a sale, percent of its value.

    Returns:
        The (A,) losses by name: `critic`, mean squared temporal difference, percent squared; `actor`, negative mean
        value of its choices with their entropy, in temperatures.
    """
    totals = torch.zeros(len(LOSSES), len(hurdle), device=batch.x.device)
    for part, share in batch.split(accumulate):
        totals += share * add_gradients(networks, hurdle, target_index, part, share, cost=cost, gamma=gamma)
    step(networks, tau)
    return dict(zip(LOSSES, totals, strict=True))


def add_gradients(
    networks: Networks, hurdle: Tensor, target_index: Tensor, batch: Batch, share: float, *, cost: float, gamma: float
) -> Tensor:
    """Add a share of the gradients of a batch to those that wait for a step; return the (losses, A) losses."""
    x, shape, price = batch.x.flatten(1, 2), batch.x.shape[1:3], _price(hurdle, batch.invested)

    # Compute targets: the reward, and what the target networks tell of what follows.
    target = targets(networks, hurdle, target_index, batch, cost, gamma)

    # Gradients of the critic: squared temporal differences, those of a day's mean with less weight.
    value, score = (part.unflatten(2, shape) for part in networks.online.outputs(x))  # (A, folds, D, S) each
    error = (value - target) / networks.scale.view(-1, 1, 1, 1)
    day_mean = error.mean(-1, keepdim=True)
    loss = (error - day_mean).square().mean((2, 3)) + _DAY_MEAN_WEIGHT * day_mean.square().mean((2, 3))

    # Gradients of the actor: its choices climb the critic's value, whose hidden units it reads and does not train.
    actor = actor_loss(score - price, value.detach() - price, cost)
    (share * (loss.sum() + actor.sum())).backward()

    squared = networks.scale.square() * error.square().mean((1, 2, 3))
    return torch.stack((squared, actor.mean(1))).detach()


def step(networks: Networks, tau: float, scale: float = 1.0) -> None:
    """Take a step along the gradients that wait, times a number, and move the targets."""
    networks.mask_gradients()
    online, target = networks.online, networks.targets
    for optimizer, moved, by in (
        (networks.critic_optimizer, target.critic.flat, online.critic.flat),
        (networks.actor_optimizer, target.actor, online.actor),
    ):
        # Update critic and actor, whose gradients are there already.
        if scale != 1.0 and optimizer.parameter.grad is not None:
            optimizer.parameter.grad.mul_(scale)
        optimizer.step()
        # Move targets.
        soft_update(moved, by, optimizer.target_rate(tau))


@torch.no_grad()
def targets(
    networks: Networks, hurdle: Tensor, target_index: Tensor, batch: Batch, cost: float, gamma: float
) -> Tensor:
    """Return the (A, folds, D, S) targets of temporal differences: the reward, and what the target networks make of
    what follows, by their own choices at the price of capital in the replayed accounts."""
    x, shape = batch.next_x.flatten(1, 2), batch.next_x.shape[1:3]
    value, score = (part.unflatten(2, shape) for part in networks.targets.outputs(x))
    follows = ~batch.terminated
    is_kept = (score - _price(hurdle, batch.next_invested) >= -cost) & follows
    reward = batch.reward.movedim(-1, 0)[target_index.clamp(max=batch.reward.shape[-1] - 1)]
    return reward + gamma * torch.where(is_kept, value, -cost * follows)


def actor_loss(score: Tensor, value: Tensor, cost: float) -> Tensor:
    """Return the (A, folds) negative expected value of relaxed choices, in temperatures: of a stock to buy on each day,
    or none, and of keeping or selling a position in each stock.

    Args:
        score: (A, folds, D, S) of the actor, with gradients.
        value: (A, folds, D, S) that the critic sees in a position, less the price of its capital.
    """
    temperature = (_TEMPERATURE * value.flatten(2).std(-1)).clamp(min=1e-3)[..., None, None]
    none = torch.zeros_like(score[..., :1])
    log_chance = torch.cat(((score - cost) / temperature, none), dim=-1).log_softmax(-1)
    worth = torch.cat(((value - cost) / temperature, none), dim=-1)
    buying = (log_chance.exp() * (worth - log_chance)).sum(-1).mean(-1)
    log_odds = (score + cost) / temperature
    is_kept = torch.sigmoid(log_odds)
    entropy = functional.softplus(log_odds) - log_odds * is_kept
    return -buying - (is_kept * (value + cost) / temperature + entropy).mean((-2, -1))


def _price(hurdle: Tensor, invested: Tensor) -> Tensor:
    """Return the (A, folds, D, 1) prices of capital in replayed accounts."""
    return hurdle.view(-1, 1, 1, 1) * invested[..., None]
