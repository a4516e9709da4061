"""Speed of the networks' update: `python -m benchmarks.speed.updates [--agents 16] [--hidden 32 256] [--batch 256]`.

All agents at once, against the same agents in the plain style of CleanRL: modules of their own, an optimiser of torch
each, one agent after the other. Same networks, batches and losses; both are measured in turn, `--threads` 1.
"""

import argparse
import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import torch
from models.cash_value import BUCKETS, Accounts, CashValue, Decision, account_features, candidate_features
from models.trader import Traders
from torch import Tensor, nn

from benchmarks.speed.harness import CPU, seconds_of
from benchmarks.speed.main_job import machine
from models.inputs import INPUTS, TradeInputs
from models.networks import Networks, Perceptrons, at_target, sale_target
from models.population import Learners, Outcomes
from models.replay_buffer import Batch, ReplayBuffer, Transitions, transition_fields
from models.responses import Responses
from training import ddpg
from utils.config.trader import EnvironmentConfig, LearningConfig
from utils.memory.guard import keep_freed_memory
from utils.spaces import TARGET_PERCENTS

RULES = EnvironmentConfig()
FOLDS, STOCKS = 5, 64
"""Folds of a batch, and stocks of each of its days."""
_OUTCOMES = 100_000
_MAX_NORM = 10.0
_WEIGHT_DECAY = 0.05


@dataclass(frozen=True)
class Size:
    """Population, networks and batches of a measurement."""

    agents: int = 16
    hidden: int = 256
    batch: int = 256
    accumulate: int = 1
    updates: int = 8
    """Of a generation."""
    transitions: int = 20_000

    @property
    def learning(self) -> LearningConfig:
        """Return the settings that say so."""
        return LearningConfig(
            gradient_steps=self.updates,
            gradient_accumulation=self.accumulate,
            batch_size=self.batch,
            hidden=self.hidden,
            replay_capacity=self.transitions,
        )


@dataclass
class Drawn:
    """A population on random experience, and what its generations draw."""

    updates: ddpg.Updates
    learners: Learners
    outcomes: Callable[[Tensor], tuple[Tensor, Tensor]]
    size: Size
    draws: torch.Generator

    def begin(self) -> tuple[Tensor, Tensor]:
        """Begin a generation; return its rows of outcomes and of the replay buffer, by update."""
        size, device = self.size, self.learners.by_fold.device
        days = max(1, size.batch * size.accumulate // STOCKS)
        orders = torch.randint(_OUTCOMES, (size.updates, FOLDS, days, STOCKS), generator=self.draws).to(device)
        replayed = torch.randint(size.transitions, (size.updates, size.batch), generator=self.draws).to(device)
        self.rows = orders, replayed
        return self.rows


def draw(size: Size, device: torch.device = CPU, seed: int = 0) -> Drawn:
    """Draw networks that have left their start, and experience of the shape and scale that a run has."""
    draws, learning, agents = torch.Generator().manual_seed(seed), size.learning, size.agents
    replay = ReplayBuffer(size.transitions, RULES.max_new_positions_per_day, device=device)
    replay.add(_transitions(size.transitions, draws))
    value_weight, order_size = torch.rand(2, agents, generator=draws, dtype=torch.float64)
    percent = torch.tensor(TARGET_PERCENTS, dtype=torch.float64)
    target = percent[torch.randint(len(percent), (agents,), generator=draws)]
    weights = torch.zeros(agents, INPUTS, dtype=torch.float64)
    zero = CashValue.zero(RULES, device)
    values = torch.rand(len(zero.weights), generator=draws, dtype=torch.float64)
    knots = torch.tensor([0.1, 0.4, 1.0], dtype=torch.float64)
    nothing = np.zeros(INPUTS - 1, dtype=np.float32)
    none: dict[str, Any] = {field.name: np.zeros(0) for field in fields(Responses)}
    learners = Learners(
        networks=_networks(size, draws).map(lambda part: part.to(device)),
        traders=Traders(weights, target, value_weight, 0.5 + order_size / 2).to(device),
        by_fold=(torch.randn(agents, FOLDS, INPUTS, generator=draws) / INPUTS**0.5).to(device),
        cash_value=zero.with_values(values.to(device), knots.to(device)),
        inputs=TradeInputs(nothing, nothing + 1, Responses(**none)),
        outcomes=Outcomes(*(torch.linspace(*ends, len(percent)).to(device) for ends in ((1.0, 2.0), (0.1, 0.3)))),
    )
    x = torch.randn(_OUTCOMES, INPUTS, generator=draws).to(device)
    y = torch.randn(_OUTCOMES, len(percent), generator=draws).to(device)
    learn = partial(ddpg.update, gamma=learning.gamma, tau=learning.tau)
    return Drawn(ddpg.Updates(learn, replay, size.accumulate), learners, lambda rows: (x[rows], y[rows]), size, draws)


@torch.no_grad()
def _networks(size: Size, draws: torch.Generator) -> Networks:
    """Draw networks whose last layers are no longer zero; targets are equal."""
    mask = torch.rand(size.agents, INPUTS - 1, generator=draws) < 0.7
    networks = Networks.initialize(mask, size.hidden, FOLDS, size.learning.learning_rate, draws)
    layers = [stack.parts[4] for stack in (networks.critic.reward, networks.critic.continuation, networks.actor.size)]
    for part in (*layers, networks.actor.choice, networks.actor.slope):
        part.normal_(0.0, size.hidden**-0.5, generator=draws)
    networks.base.copy_(torch.tensor([0.7, 0.6, 0.5]))
    for slow, fast in ((networks.critic_target, networks.critic), (networks.actor_target, networks.actor)):
        for target, online in zip(slow.parameters(), fast.parameters(), strict=True):
            target.copy_(online)
    return networks


def _transitions(count: int, draws: torch.Generator) -> dict[str, Tensor]:
    rows = {}
    for name, (shape, dtype) in transition_fields(RULES.max_new_positions_per_day).items():
        drawn = torch.rand(count, *shape, generator=draws)
        if name.endswith("_pending"):
            drawn = drawn / BUCKETS
        elif name.endswith("_left"):
            drawn = (drawn * RULES.trading_days).floor()
        elif name == "reward":
            drawn = torch.randn(count, generator=draws)
        rows[name] = drawn.to(dtype)
    return rows


class PlainAgent:
    """One agent of a population, with modules and optimisers of its own."""

    def __init__(self, learners: Learners, agent: int) -> None:
        """Copy an agent of a stack that has taken no update."""
        networks, traders = learners.networks, learners.traders
        self.learners, self.by_fold = learners, learners.by_fold[agent]
        self.value_weight, self.largest = traders.value_weight[agent], traders.size[agent]
        self.start = traders.target_percent[agent].float()
        self.input_mask, self.calibration, self.base = (
            part[agent] for part in (networks.input_mask, networks.calibration, networks.base)
        )
        reward, continuation = networks.critic.reward, networks.critic.continuation
        self.critic = nn.ModuleList([_module_of(reward, (agent, fold)) for fold in range(FOLDS)])
        self.critic.append(_module_of(continuation, (agent,)))
        choice = networks.actor.choice.detach()[agent]
        self.choice = nn.ModuleList([_linear(own[:-1], own[-1]) for own in choice])
        self.slope = nn.ParameterList([own.clone() for own in networks.actor.slope.detach()[agent]])
        self.actor = nn.ModuleList([_module_of(networks.actor.size, (agent,)), self.choice, self.slope])
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.optimizers = [
            torch.optim.AdamW(part.parameters(), lr=networks.learning_rate, weight_decay=_WEIGHT_DECAY)
            for part in (self.critic, self.actor)
        ]
        self.steps = 0

    def update(self, batch: Batch, accumulate: int, gamma: float, tau: float) -> None:
        """Take one step of critic, actor and targets: the same losses as `training.ddpg.update`."""
        good_order = self.learners.cash_value.good_order
        for part, share in batch.split(accumulate):
            loss = (self.temporal_difference(part.transitions, gamma) / good_order).square().mean()
            choice: Tensor | float = 0.0
            for fold, x in enumerate(self.learners.inputs.for_networks(part.x)):
                hidden = self.critic[fold][:-1](x)  # type: ignore[index]
                rewards = self.critic[fold][-1](hidden)  # type: ignore[index]
                loss = loss + (rewards - part.y[fold]).square().mean()
                choice = choice + self.choice_loss(fold, part, hidden.detach(), rewards.detach())
            (share * loss).backward()
            loss = choice + self.size_loss(part.transitions)
            (share * loss).backward(inputs=list(self.actor.parameters()))
        for network in self.critic[:-1]:
            gradient = network.get_parameter("0.weight").grad
            assert gradient is not None
            gradient.mul_(self.input_mask)
        for optimizer, own in zip(self.optimizers, (self.critic, self.actor), strict=True):
            nn.utils.clip_grad_norm_(own.parameters(), _MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
        self.steps += 1
        tau = max(tau, 1 / self.steps)
        with torch.no_grad():
            for target, online in ((self.critic_target, self.critic), (self.actor_target, self.actor)):
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.lerp_(fast, tau)

    def temporal_difference(self, replayed: Transitions, gamma: float) -> Tensor:
        """Return the (N,) temporal differences of transitions."""
        with torch.no_grad():
            following, _ = self.act(self.actor_target[0], replayed.next, replayed.next_best)
            later = self.following(self.critic_target[-1], following.after) * ~replayed.terminated
            y = gamma * (self.calibration * following.reward + later)
        return self.following(self.critic[-1], replayed.after) - y

    def choice_loss(self, fold: int, batch: Batch, hidden: Tensor, rewards: Tensor) -> Tensor:
        """Return the negative expected result of the relaxed choice of a stock a day: of (D, S) stocks each."""
        outcomes = self.learners.outcomes
        departure, shift = self.choice[fold](hidden).unbind(-1)
        ridge = batch.x[fold] @ self.by_fold[fold]
        parts = ridge - ridge.mean(-1, keepdim=True), at_target(rewards * outcomes.deviation, self.start)
        weights = self.base[:2] * (1.0 + self.slope[fold])
        score = departure + (weights[0] * parts[0] + weights[1] * parts[1]) / self.base[2]
        judged = torch.lerp(rewards, batch.y[fold], ddpg.OUTCOMES) * outcomes.deviation + outcomes.typical
        result = at_target(judged, sale_target(self.start, shift)) / at_target(outcomes.deviation, self.start)
        earned = (torch.softmax(score / ddpg.TEMPERATURE, dim=-1) * result).sum(-1).mean()
        trust = ddpg.CHOICE_TRUST * departure.square().mean() + ddpg.TARGET_TRUST * shift.square().mean()
        loss: Tensor = trust - earned
        return loss

    def size_loss(self, replayed: Transitions) -> Tensor:
        """Return the negative Q of the sizes that the actor orders."""
        chosen, departures = self.act(self.actor[0], replayed.state, replayed.best)
        q = self.calibration * chosen.reward + self.following(self.critic[-1], chosen.after)
        departure = torch.stack(departures).square().mean()
        return ddpg.SIZE_TRUST * departure - q.mean() / self.learners.cash_value.good_order

    def act(self, size: nn.Module, accounts: Accounts, best: Tensor) -> tuple[Decision, list[Tensor]]:
        """Decide in N accounts with these (N, k) best candidates; return the departures from the greedy rule, too."""
        departures, cash_value = list[Tensor](), self.learners.cash_value

        def adjustment(levels: Tensor, expected: Tensor, gain: Tensor) -> Tensor:
            features = candidate_features(accounts, cash_value, levels, expected, gain)
            departures.append(size(features)[:, 0])
            return departures[-1]

        weights = {"value_weight": self.value_weight, "largest": self.largest}
        return cash_value.greedy(best, accounts, **weights, adjustment=adjustment), departures

    def following(self, continuation: nn.Module, after: Accounts) -> Tensor:
        """Return the (N,) value of accounts after their orders."""
        cash_value = self.learners.cash_value
        learned: Tensor = continuation(account_features(after, cash_value))[:, 0]
        return self.calibration * cash_value.of(after) + cash_value.good_order * learned


def _module_of(perceptrons: Perceptrons, place: tuple[int, ...]) -> nn.Sequential:
    """Return one perceptron of a stack as modules of torch."""
    parts = [part.detach()[place] for part in perceptrons.parts]
    layers: list[nn.Module] = []
    for weight, bias in zip(parts[::2], parts[1::2], strict=True):
        layers += [_linear(weight, bias[0]), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(len(weight), weight.shape[1], device=weight.device)
    with torch.no_grad():
        layer.weight.copy_(weight.T)
        layer.bias.copy_(bias)
    return layer


def plain_generation(agents: Sequence[PlainAgent], drawn: Drawn, orders: Tensor, replayed: Tensor) -> None:
    """Take the updates of a generation, one agent after the other."""
    learning = drawn.size.learning
    for order, row in zip(orders, replayed, strict=True):
        batch = Batch(drawn.updates.replay.sample(row), *drawn.outcomes(order))
        for agent in agents:
            agent.update(batch, learning.gradient_accumulation, learning.gamma, learning.tau)


def stacked_generation(drawn: Drawn) -> None:
    """Take the updates of a generation that has begun."""
    for rows in zip(*drawn.rows, strict=True):
        drawn.updates.take(drawn.learners, drawn.outcomes, *rows)


def seconds_of_both(size: Size, device: torch.device, rounds: int) -> tuple[float, float]:
    """Return the least seconds of an update: all agents at once, and one after the other; measured in turn."""
    drawn = draw(size, device)
    agents = [PlainAgent(drawn.learners, agent) for agent in range(size.agents)]
    taken: list[tuple[float, float]] = []
    for _ in range(rounds + 1):
        rows = drawn.begin()
        works = partial(stacked_generation, drawn), partial(plain_generation, agents, drawn, *rows)
        one, other = (seconds_of(work, device, repeats=1, warm_up=0) / size.updates for work in works)
        taken.append((one, other))
    stacked, plain = zip(*taken[1:], strict=True)  # the first warms up
    return min(stacked), min(plain)


def main() -> None:
    """Measure both and print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--batch", type=int, nargs="+", default=[256])
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--updates", type=int, default=4, help="of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_freed_memory()
    print(f"{machine()}; {given.threads} thread{'s' * (given.threads > 1)}, milliseconds an update of all agents")
    print(f"{'agents':>6} {'hidden':>6} {'batch':>6} {'stacked':>9} {'plain':>9} {'plain / stacked':>16}")
    for hidden in given.hidden:
        for batch in given.batch:
            size = Size(given.agents, hidden, batch, given.accumulate, given.updates)
            stacked, plain = seconds_of_both(size, torch.device(given.device), given.rounds)
            ratio = plain / stacked
            print(
                f"{size.agents:6} {hidden:6} {batch:6} {1e3 * stacked:9.1f} {1e3 * plain:9.1f} {ratio:16.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
