"""The update of deep deterministic policy gradient (Lillicrap et al. 2016, algorithm 1), for all agents at once.

Q(s, a) = sum of size times reward(inputs, sale target) + (value of cash + continuation)(account after a). Prices do
not react to orders, so rewards are learned from the outcomes of all orders, not only of those in the replay (Sinclair
et al. 2023, "Hindsight learning for MDPs with exogenous inputs"); the continuation is learned by temporal differences.
Actors climb Q: on training days by a choice of a stock that is relaxed to a softmax, in replayed accounts by the size.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from models import risk
from models.cash_value import Accounts, Decision
from models.ddpg_agent import LOSSES
from models.networks import at_target, sale_target, soft_update
from models.population import Learn, Learners
from models.replay_buffer import Batch, ReplayBuffer, Transitions
from models.trader import AccountPolicy, Traders
from training.cuda_graph import CudaGraph, Tensors

TEMPERATURE = 0.25
"""Of the softmax over the scores of a day's stocks, in deviations of an agent's forecasts."""
OUTCOMES = 0.5
"""Weight of counterfactual outcomes in what the choice climbs; the rest is the critic's reward. Outcomes are noisy, the
critic is biased."""
CHOICE_TRUST, TARGET_TRUST, SIZE_TRUST = 0.1, 0.01, 1.0
"""Weights of squared departures in actors' losses (Fujimoto and Gu 2021, "A minimalist approach to offline
reinforcement learning"): of scores from what the critic expects, of sale targets from the agent's own, of sizes from
the greedy rule's."""


def update(learners: Learners, batch: Batch, accumulate: int, *, gamma: float, tau: float) -> dict[str, Tensor]:
    """Take one step of A critics, of their actors and of the targets; return the (A,) losses by name:

    `reward`: mean squared error of what critics expect of orders beyond their day's mean, percent of the initial
    capital, squared; `temporal`: mean squared temporal difference of replayed transitions, in the same unit; `actor`:
    negative mean result of the stocks that actors choose, in deviations of results, and of sizes, in good orders.
    """
    networks, agents = learners.networks, learners.traders.count
    totals = torch.zeros(len(LOSSES), agents, dtype=torch.float64, device=batch.x.device)
    for part, share in batch.split(accumulate):
        hidden, rewards = networks.critic.reward.layers(learners.inputs.for_networks(part.x).flatten(1, 2))
        error = rewards - part.y.flatten(1, 2)  # of every order, not only of those replayed
        temporal = temporal_difference(learners, part.transitions, gamma)
        loss = error.square().mean((2, 3)).sum(1) + (temporal / learners.cash_value.good_order).square().mean(1)
        (share * loss).sum().backward()
        loss = choice_loss(learners, part, hidden.detach(), rewards.detach()) + size_loss(learners, part.transitions)
        (share * loss).sum().backward(inputs=networks.actor.parameters())
        error = (error.detach() * learners.outcomes.deviation).square().mean((1, 2, 3))
        totals += share * torch.stack((error, temporal.detach().square().mean(1), loss.detach()))
    assert networks.critic.reward.flat.grad is not None
    networks.mask(networks.critic.reward.flat.grad)
    networks.critic_optimizer.step()
    soft_update(networks.critic_target, networks.critic, networks.critic_optimizer.averaging(tau))
    networks.actor_optimizer.step()
    soft_update(networks.actor_target, networks.actor, networks.actor_optimizer.averaging(tau))
    return dict(zip(LOSSES, totals, strict=True))


def temporal_difference(learners: Learners, replayed: Transitions, gamma: float) -> Tensor:
    """Return Q(s, a) - r - gamma Q'(s', mu'(s')), (A, N) percent of the initial capital.

    The reward r is what was expected of the same orders, with which Q(s, a) begins, so that both cancel: realised
    results would only add noise. How far those are from what was expected is in the calibration.
    """
    agents, cash_value = learners.traders.count, learners.cash_value
    online, target = (AccountPolicy.of(own) for own in (learners.networks.online, learners.networks.targets))
    with torch.no_grad():
        following, _ = act(target, learners, replayed.next, replayed.next_best, replayed.next_penalty)
        reward = (target.calibration * following.reward.view(agents, -1)).flatten()
        # The next decision of a terminated transition is the last one: nothing follows it.
        later = target.following(following.after, cash_value) * ~replayed.terminated.repeat(agents)
    q = online.following(replayed.after.map(partial(_of_each, agents)), cash_value)
    return (q - gamma * (reward + later)).view(agents, -1)


def choice_loss(learners: Learners, batch: Batch, hidden: Tensor, rewards: Tensor) -> Tensor:
    """Return the (A,) negative expected result of a relaxed choice of a stock a day, in deviations of results.

    Args:
        hidden: (A, folds, D * S, hidden) units of the critics' reward networks.
        rewards: (A, folds, D * S, targets) what they expect.
    """
    networks, traders, days = learners.networks, learners.traders, batch.x.shape[1:3]
    start, deviation = traders.target_percent.float()[:, None, None], learners.outcomes.deviation
    parts = torch.stack((learners.ridge(batch.x).flatten(2), at_target(rewards * deviation, start)))
    base = (networks.base[:, None, :2] * (1.0 + networks.actor.slope)).movedim(-1, 0)[..., None]  # (2, A, folds, 1)
    choice = networks.actor.choice
    departure, shift = (hidden @ choice[..., :-1, :] + choice[..., -1:, :]).unbind(-1)  # (A, folds, D * S) each
    score = (departure + (base * parts).sum(0) / networks.base[:, 2, None, None]).unflatten(2, days)
    target = sale_target(start, shift)
    judged = torch.lerp(rewards, batch.y.flatten(1, 2), OUTCOMES) * deviation + learners.outcomes.typical
    unit = at_target(deviation.expand(len(start), 1, 1, -1), start)
    result = at_target(judged, target) / unit
    if learners.risk is not None:
        # Ranked and rewarded by utility, at the size that the forecast tells to order.
        penalty, _ = learners.risks(batch.x)
        level = at_target(learners.outcomes.typical.expand(len(start), 1, 1, -1), start) / unit
        cost = penalty.flatten(2) / unit
        size = risk.best_size(level + (base.detach() * parts).sum(0) / unit, cost)
        result = size * result - size.square() * cost
        scale = networks.base[:, 2, None, None, None] / unit[..., None]
        score = risk.utility(level[..., None] + scale * score, cost.unflatten(2, days)) / scale
    chosen = torch.softmax(score / TEMPERATURE, dim=-1)
    earned: Tensor = (chosen * result.unflatten(2, days)).sum(-1).mean(-1)
    trust = CHOICE_TRUST * departure.square().mean(-1) + TARGET_TRUST * shift.square().mean(-1)
    return (trust - earned).sum(1)


def size_loss(learners: Learners, replayed: Transitions) -> Tensor:
    """Return the (A,) negative Q of the sizes that actors order in replayed accounts, in units of a good order."""
    policy, cash_value = AccountPolicy.of(learners.networks.online), learners.cash_value
    chosen, departures = act(policy, learners, replayed.state, replayed.best, replayed.penalty)
    q = policy.value(chosen, cash_value) / cash_value.good_order
    return (SIZE_TRUST * departures.square().mean(0) - q).view(learners.traders.count, -1).mean(1)


def act(
    policy: AccountPolicy, learners: Learners, accounts: Accounts, best: Tensor, penalty: Tensor | None
) -> tuple[Decision, Tensor]:
    """Let each agent decide in N accounts with these (N, k) best candidates, whose risk costs the (N, k) penalty.

    Returns:
        The decision in A * N accounts, and its (k, A * N) departures from the greedy rule.
    """
    traders, cash_value, each = learners.traders, learners.cash_value, partial(_of_each, learners.traders.count)
    slopes = each(cash_value.slopes(accounts.left, accounts.opportunity))  # the same for all agents
    accounts, departures = accounts.map(each), list[Tensor]()
    adjustment = policy.adjusting(accounts, cash_value)

    def noted(*seen: Tensor) -> Tensor:
        departures.append(adjustment(*seen))
        return departures[-1]

    decision = cash_value.greedy(
        each(best),
        accounts,
        value_weight=traders.value_weight.repeat_interleave(len(best)),
        largest=traders.size.repeat_interleave(len(best)),
        slopes=slopes,
        adjustment=noted,
        penalty=None if penalty is None else each(penalty),
    )
    return decision, torch.stack(departures)


def _of_each(agents: int, values: Tensor) -> Tensor:
    """Repeat (N, ...) values, the agents one after the other: (A * N, ...)."""
    return values.repeat(agents, *[1] * (values.dim() - 1))


class Updates:
    """Updates of a population's networks, each a launch of one CUDA graph: an update reads no host memory."""

    def __init__(self, learn: Learn, replay: ReplayBuffer, accumulate: int) -> None:
        """Learn from batches in `accumulate` micro-batches."""
        self.learn, self.replay, self.accumulate = learn, replay, accumulate
        self.graph = CudaGraph("updates")

    def take(
        self,
        learners: Learners,
        outcomes: Callable[[Tensor], tuple[Tensor, Tensor]],
        orders: Tensor,
        replayed: Tensor,
    ) -> Tensors:
        """Take an update of A agents; return the (A,) losses by name, which the next one overwrites.

        Args:
            outcomes: from rows to the (..., inputs) of orders on training days and the (..., targets) that they earned.
            orders: (folds, D, S) rows of the outcomes.
            replayed: (N,) rows of the replay buffer.
        """
        closed = {f"traders {name}": part for name, part in vars(learners.traders).items()}
        closed |= {f"cash {name}": part for name, part in learners.cash_value.state_dict().items()}
        risk = {} if learners.risk is None else {"risk": learners.risk}
        inputs = {**closed, **risk, "by_fold": learners.by_fold, "orders": orders, "replayed": replayed}

        def learn(held: Tensors) -> Tensors:
            traders = Traders(**{name: held[f"traders {name}"] for name in vars(learners.traders)})
            # What is computed of the value of cash once is computed within each launch.
            cash_value = learners.cash_value.with_values(held["cash weights"], held["cash opportunity_knots"])
            given = replace(learners, traders=traders, cash_value=cash_value, by_fold=held["by_fold"])
            batch = Batch(self.replay.sample(held["replayed"]), *outcomes(held["orders"]))
            return self.learn(replace(given, risk=held.get("risk")), batch, self.accumulate)

        return self.graph.run(learn, inputs, learners.networks)
