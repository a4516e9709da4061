"""The update of deep deterministic policy gradient (Lillicrap et al. 2016, algorithm 1), for all agents at once.

The critic learns the residual of a closed form: Q(s, a) = sum of size times forecast + (value of
cash + continuation)(account after a). Since prices do not react to orders, the forecast of a stock is learned from the
outcomes of all orders, not only of those in the replay (Sinclair et al. 2023, "Hindsight learning for MDPs with
exogenous inputs"); the continuation from replayed transitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from models.cash_value import Accounts, CashValue, Decision
from models.ddpg_agent import DDPGAgent, Learner
from models.networks import Networks, soft_update
from models.replay_buffer import Batch, Transitions
from models.trader import PolicyNetworks, Traders
from utils.errors import ConfigError


@dataclass(frozen=True)
class Losses:
    """Losses of an update, (A,) each; zero where a network was not trained."""

    critic: Tensor
    actor: Tensor


def update(
    networks: Networks,
    traders: Traders,
    cash_value: CashValue,
    batch: Batch,
    accumulate: int,
    *,
    gamma: float,
    tau: float,
    trains_actor: bool,
) -> Losses:
    """Take one step of A critics, of their actors with `trains_actor`, and of the targets."""
    critic_loss, actor_loss = torch.zeros(2, traders.count, device=batch.x.device)
    online = PolicyNetworks.of(networks.actor, networks.critic, networks.calibration)
    target = PolicyNetworks.of(networks.actor_target, networks.critic_target, networks.calibration)
    for part in batch.split(accumulate):
        replayed = part.transitions
        with torch.no_grad():  # y = r + gamma Q'(s', mu'(s')); nothing follows the last decision of an episode
            following = act(target, traders, cash_value, replayed.next, replayed.next_best)
            y = replayed.reward + gamma * target.value(following, cash_value).view(traders.count, -1)
        q = online.value(given(replayed, traders.count, cash_value), cash_value).view(traders.count, -1)
        temporal = (q - y) / cash_value.good_order
        counterfactual = networks.critic.reward(part.x) - part.y  # of every order, not only of those replayed
        loss = temporal.square().mean(1) + counterfactual.square().mean((2, 3)).sum(1)
        loss = loss * (len(part) / len(batch))
        loss.sum().backward()
        critic_loss = critic_loss + loss.detach()
    networks.mask_gradient()
    networks.critic_optimizer.step()
    if trains_actor:
        for part in batch.split(accumulate):  # the deterministic policy gradient
            chosen = act(online, traders, cash_value, part.transitions.state, part.transitions.best)
            q = online.value(chosen, cash_value).view(traders.count, -1)
            loss = -(q / cash_value.good_order).mean(1) * (len(part) / len(batch))
            loss.sum().backward(inputs=networks.actor.parameters())
            actor_loss = actor_loss + loss.detach()
        networks.actor_optimizer.step()
    soft_update(networks.critic_target, networks.critic, networks.critic_optimizer.averaging(tau))
    soft_update(networks.actor_target, networks.actor, networks.actor_optimizer.averaging(tau))
    return Losses(critic_loss, actor_loss)


def learner(gamma: float, tau: float) -> Learner:
    """Return the function by which a single agent updates itself."""

    def learn(agent: DDPGAgent, batch: Batch, accumulate: int) -> dict[str, Tensor]:
        if agent.networks is None:
            raise ConfigError("expected an agent with networks, got a closed form; see --learning.gradient-steps")
        parts = agent.networks, agent.traders, agent.cash_value, batch, accumulate
        return vars(update(*parts, gamma=gamma, tau=tau, trains_actor=True))

    return learn


def act(policy: PolicyNetworks, traders: Traders, cash_value: CashValue, accounts: Accounts, best: Tensor) -> Decision:
    """Let each agent decide in N accounts with these (N, k) best candidates: a decision in A * N."""
    agents, count = traders.count, len(best)
    slopes = _of_each(agents, cash_value.slopes(accounts.left, accounts.opportunity))  # the same for all agents
    accounts = accounts.map(partial(_of_each, agents))
    return cash_value.greedy(
        _of_each(agents, best),
        accounts,
        value_weight=traders.value_weight.repeat_interleave(count),
        largest=traders.size.repeat_interleave(count),
        slopes=slopes,
        adjustment=policy.adjusting(accounts, cash_value),
    )


def given(replayed: Transitions, agents: int, cash_value: CashValue) -> Decision:
    """Return the replayed decisions of N accounts, the same for each agent: a decision in A * N."""
    size, best = (_of_each(agents, part) for part in (replayed.action, replayed.best))
    accounts = replayed.state.map(partial(_of_each, agents))
    return Decision(size, best, accounts, cash_value.largest_order, cash_value.purchase_factor)


def _of_each(agents: int, values: Tensor) -> Tensor:
    """Repeat (N, ...) values, the agents one after the other: (A * N, ...)."""
    return values.repeat(agents, *[1] * (values.dim() - 1))
