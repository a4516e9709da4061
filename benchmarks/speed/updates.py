"""Speed of the networks' update: `python -m benchmarks.speed.updates [--agents 16] [--hidden 32 256] [--batch 256]`.

All agents at once, against the same agents in the plain style of CleanRL: modules of their own, an optimiser of torch
each, one agent after the other. Same networks, batches and losses; both are measured in turn, `--threads` 1.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.speed.harness import CPU, seconds_of
from benchmarks.speed.main_job import machine
from models.cash_value import BUCKETS, FEATURES, Accounts, CashValue, Decision, account_features, candidate_features
from models.inputs import INPUTS
from models.networks import Networks, NetworkSizes, Perceptrons
from models.replay_buffer import Batch, ReplayBuffer, transition_fields
from models.trader import ACTOR_BOUND, Traders
from training.updates import Updates
from utils.config.trader import EnvironmentConfig, LearningConfig
from utils.memory.guard import keep_freed_memory
from utils.spaces import TARGET_PERCENTS

RULES = EnvironmentConfig()
FOLDS = 5
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

    updates: Updates
    traders: Traders
    cash_value: CashValue
    size: Size
    draws: torch.Generator

    def begin(self) -> tuple[Tensor, Tensor]:
        """Begin a generation; return its rows of outcomes and of the replay buffer, see `Updates.begin`."""
        shape, device = (self.size.updates, self.size.batch * self.size.accumulate), self.traders.weights.device
        orders = torch.randint(_OUTCOMES, (*shape, FOLDS), generator=self.draws).to(device)
        replayed = torch.randint(self.size.transitions, shape, generator=self.draws).to(device)
        self.updates.begin(self.traders, self.cash_value, orders, replayed)
        return orders, replayed


def draw(size: Size, device: torch.device = CPU, seed: int = 0) -> Drawn:
    """Draw networks that have left their start, and experience of the shape and scale that a run has."""
    draws = torch.Generator().manual_seed(seed)
    mask = torch.rand(size.agents, INPUTS, generator=draws) < 0.7
    sizes = NetworkSizes(size.hidden, FOLDS, len(TARGET_PERCENTS), FEATURES)
    networks = Networks.initialize(mask, sizes, size.learning.learning_rate, draws)
    for name, part in networks.tensors().items():
        if name in ("actor.4", "critic.4", "critic.10"):  # last layers, which begin at zero
            part.normal_(0.0, size.hidden**-0.5, generator=draws)
            networks.tensors()[name.replace(".", "_target.")].copy_(part)
    value_weight, order_size = torch.rand(2, size.agents, generator=draws, dtype=torch.float64)
    weights = torch.zeros(size.agents, INPUTS, dtype=torch.float64)
    traders = Traders(weights, 30 + 0 * value_weight, value_weight, 0.5 + order_size / 2).to(device)
    zero = CashValue.zero(RULES, device)
    values = torch.rand(len(zero.weights), generator=draws, dtype=torch.float64)
    knots = torch.tensor([0.1, 0.4, 1.0], dtype=torch.float64)
    replay = ReplayBuffer(size.transitions, RULES.max_new_positions_per_day, device=device)
    replay.add(_transitions(size.transitions, draws))
    x = torch.randn(_OUTCOMES, INPUTS, generator=draws).to(device)
    y = torch.randn(_OUTCOMES, len(TARGET_PERCENTS), generator=draws).to(device)
    updates = Updates(networks.to(device), replay, lambda rows: (x[rows], y[rows]), size.learning)
    return Drawn(updates, traders, zero.with_values(values.to(device), knots.to(device)), size, draws)


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

    def __init__(self, networks: Networks, agent: int, traders: Traders) -> None:
        """Copy an agent of a stack that has taken no update."""
        self.value_weight, self.largest = traders.value_weight[agent], traders.size[agent]
        self.input_mask, self.calibration = networks.input_mask[agent], networks.calibration[agent]
        reward, continuation = networks.critic.reward, networks.critic.continuation
        self.actor = _module_of(networks.actor, (agent,))
        self.critic = nn.ModuleList([_module_of(reward, (agent, fold)) for fold in range(reward.parts[0].shape[1])])
        self.critic.append(_module_of(continuation, (agent,)))
        self.actor_target, self.critic_target = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.optimizers = [
            torch.optim.AdamW(part.parameters(), lr=networks.learning_rate, weight_decay=_WEIGHT_DECAY)
            for part in (self.critic, self.actor)
        ]
        self.steps = 0

    def update(self, cash_value: CashValue, batch: Batch, accumulate: int, gamma: float, tau: float) -> None:
        """Take one step of critic, actor and targets: the same losses as `training.ddpg.update`."""
        for part in batch.split(accumulate):
            replayed, share = part.transitions, len(part) / len(batch)
            with torch.no_grad():
                following = self.act(self.actor_target, cash_value, replayed.next, replayed.next_best)
                y = replayed.reward + gamma * self.q(self.critic_target, cash_value, following)
            orders = cash_value.largest_order, cash_value.purchase_factor
            given = Decision(replayed.action, replayed.best, replayed.state, *orders)
            loss = ((self.q(self.critic, cash_value, given) - y) / cash_value.good_order).square().mean()
            for fold, network in enumerate(self.critic[:-1]):
                loss = loss + (network(part.x[fold]) - part.y[fold]).square().mean()
            (share * loss).backward()
        for network in self.critic[:-1]:
            gradient = network.get_parameter("0.weight").grad
            assert gradient is not None
            gradient.mul_(self.input_mask)
        self._step(self.optimizers[0], self.critic)
        for part in batch.split(accumulate):
            chosen = self.act(self.actor, cash_value, part.transitions.state, part.transitions.best)
            loss = -(self.q(self.critic, cash_value, chosen) / cash_value.good_order).mean()
            (len(part) / len(batch) * loss).backward(inputs=list(self.actor.parameters()))
        self._step(self.optimizers[1], self.actor)
        self.steps += 1
        tau = max(tau, 1 / self.steps)
        with torch.no_grad():
            for target, online in ((self.critic_target, self.critic), (self.actor_target, self.actor)):
                for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                    slow.lerp_(fast, tau)

    def _step(self, optimizer: torch.optim.Optimizer, network: nn.Module) -> None:
        nn.utils.clip_grad_norm_(network.parameters(), _MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()

    def act(self, actor: nn.Module, cash_value: CashValue, accounts: Accounts, best: Tensor) -> Decision:
        """Decide in N accounts with these (N, k) best candidates."""

        def adjustment(levels: Tensor, expected: Tensor, gain: Tensor) -> Tensor:
            features = candidate_features(accounts, cash_value, levels, expected, gain)
            return ACTOR_BOUND * torch.tanh(actor(features))[:, 0]

        weights = {"value_weight": self.value_weight, "largest": self.largest}
        return cash_value.greedy(best, accounts, **weights, adjustment=adjustment)

    def q(self, critic: nn.ModuleList, cash_value: CashValue, decision: Decision) -> Tensor:
        """Return the (N,) Q(s, a) of decisions."""
        after = decision.after
        learned: Tensor = critic[-1](account_features(after, cash_value))[:, 0] * (after.left > 0)
        known: Tensor = decision.reward + cash_value.of(after)
        return self.calibration * known + cash_value.good_order * learned


def _module_of(perceptrons: Perceptrons, place: tuple[int, ...]) -> nn.Sequential:
    """Return one perceptron of a stack as modules of torch."""
    parts = [part.detach()[place] for part in perceptrons.parts]
    layers: list[nn.Module] = []
    for weight, bias in zip(parts[::2], parts[1::2], strict=True):
        layer = nn.Linear(len(weight), weight.shape[1], device=weight.device)
        with torch.no_grad():
            layer.weight.copy_(weight.T)
            layer.bias.copy_(bias[0])
        layers += [layer, nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def plain_generation(agents: Sequence[PlainAgent], drawn: Drawn, orders: Tensor, replayed: Tensor) -> None:
    """Take the updates of a generation, one agent after the other."""
    own, learning = drawn.updates, drawn.size.learning
    for order, row in zip(orders, replayed, strict=True):
        batch = Batch(own.replay.sample(row), *own.outcomes(order.T))
        for agent in agents:
            agent.update(drawn.cash_value, batch, learning.gradient_accumulation, learning.gamma, learning.tau)


def stacked_generation(drawn: Drawn) -> None:
    """Take the updates of a generation that has begun."""
    for _ in range(drawn.size.updates):
        drawn.updates.take(trains_actor=True)


def seconds_of_both(size: Size, device: torch.device, rounds: int) -> tuple[float, float]:
    """Return the least seconds of an update: all agents at once, and one after the other; measured in turn."""
    drawn = draw(size, device)
    agents = [PlainAgent(drawn.updates.networks, agent, drawn.traders) for agent in range(size.agents)]
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
