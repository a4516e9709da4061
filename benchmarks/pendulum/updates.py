"""Agent-updates a second of one core: `python -m benchmarks.pendulum.updates [--seconds S] [--json FILE]`.

Pendulum's shapes (3 observations, 1 action), networks of 256 x 256, minibatches of 256, sampling included. Against
Stable-Baselines3's DDPG, against a plain loop in the manner of one-file implementations, and against the limit: the
matrix products of one update and nothing else, by the fastest of the libraries at hand. All contenders take turns, so
that what else the machine does meets all of them alike.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.pendulum.ddpg import ControlConfig, ControlLearner, ControlReplay, Widths
from benchmarks.pendulum.mlp import product

WIDTHS = Widths(observation=3, action=1)
HIDDEN, BATCH, STORED = 256, 256, 20_000
POPULATIONS = (1, 4, 16, 64)
HEADLINE = 16


def stacked(population: int) -> Callable[[], object]:
    """An update of all agents of this project's population."""
    learner = ControlLearner(population, WIDTHS, ControlConfig(hidden=(HIDDEN, HIDDEN), batch_size=BATCH))
    replay = ControlReplay(STORED, 1, 1, WIDTHS)
    replay.ring.add({"transition": torch.randn(STORED, 1, WIDTHS.transition)})
    generator = torch.Generator()
    return lambda: learner.update(replay.sample(population, BATCH, generator))


def stable_baselines3() -> Callable[[], object]:
    """`train(gradient_steps=1)` of Stable-Baselines3's DDPG."""
    from stable_baselines3 import DDPG
    from stable_baselines3.common.logger import Logger

    model = DDPG("MlpPolicy", "Pendulum-v1", policy_kwargs={"net_arch": [HIDDEN, HIDDEN]}, device="cpu")
    model.set_logger(Logger(None, []))
    draw = np.random.default_rng(0).standard_normal
    for _ in range(5_000):
        observation, following = draw((1, 3)).astype(np.float32), draw((1, 3)).astype(np.float32)
        action = np.tanh(draw((1, 1))).astype(np.float32)
        assert model.replay_buffer is not None
        model.replay_buffer.add(observation, following, action, draw(1), np.zeros(1), [{}])
    return lambda: model.train(gradient_steps=1, batch_size=BATCH)


def plain_loop() -> Callable[[], object]:
    """DDPG as one-file implementations write it: modules, autograd, Adam, and a loop over the target's parameters."""

    def network(inputs: int, *last: nn.Module) -> nn.Sequential:
        layers = [nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)]
        return nn.Sequential(*layers, *last)

    actor, critic = network(3, nn.Tanh()), network(4)
    target_actor, target_critic = copy.deepcopy(actor), copy.deepcopy(critic)
    actor_adam, critic_adam = (torch.optim.Adam(net.parameters(), lr=1e-3) for net in (actor, critic))
    stored = [torch.randn(STORED, width) for width in (3, 1, 3, 1)]

    def update() -> None:
        rows = torch.randint(STORED, (BATCH,))
        observation, action, following, reward = (field[rows] for field in stored)
        with torch.no_grad():
            target = reward + 0.98 * target_critic(torch.cat((following, target_actor(following)), 1))
        critic_loss = F.mse_loss(critic(torch.cat((observation, action), 1)), target)
        critic_adam.zero_grad()
        critic_loss.backward()
        critic_adam.step()
        actor_loss = -critic(torch.cat((observation, actor(observation)), 1)).mean()
        actor_adam.zero_grad()
        actor_loss.backward()
        actor_adam.step()
        for online, behind in ((actor, target_actor), (critic, target_critic)):
            for parameter, target_parameter in zip(online.parameters(), behind.parameters(), strict=True):
                target_parameter.data.copy_(0.005 * parameter.data + 0.995 * target_parameter.data)

    return update


Multiply = Callable[[Tensor, Tensor], object]


def products_only(multiply: Multiply, agents: int = 1) -> Callable[[], object]:
    """The matrix products that one DDPG update of `agents` agents cannot do without, each on operands as they lie."""

    def stack(*shape: int) -> Tensor:
        values = torch.randn(agents, *shape) / 16
        return values[0] if agents == 1 else values

    pairs: list[tuple[Tensor, Tensor]] = []
    hidden, out = stack(BATCH, HIDDEN), stack(BATCH, 1)
    square, last = stack(HIDDEN, HIDDEN), stack(1, HIDDEN)
    for inputs, passes in ((3, 2), (4, 3)):
        # Forward: both actors, then the target critic and the critic on stored and on chosen actions.
        x, first = stack(BATCH, inputs), stack(HIDDEN, inputs)
        pairs += [(x, first.mT), (hidden, square.mT), (hidden, last.mT)] * passes
        # Gradients of the weights, of actor and critic once each, the narrow side first, which is faster.
        pairs += [(x.mT, hidden), (hidden.mT, hidden), (out.mT, hidden)]
    # Gradients of hidden activations: critic and actor for their weights, the critic once more for the action.
    pairs += [(hidden, square), (out, last)] * 3
    pairs.append((hidden, last.mT))

    def update() -> None:
        for a, b in pairs:
            multiply(a, b)

    return update


def onednn(a: Tensor, b: Tensor) -> object:
    """oneDNN's product where the project uses it too."""
    return product(a, b)


def contenders() -> dict[str, tuple[int, Callable[[], object]]]:
    """Agents that one call updates, and the call."""
    return {
        **{f"population {size}": (size, stacked(size)) for size in POPULATIONS},
        "Stable-Baselines3": (1, stable_baselines3()),
        "plain loop": (1, plain_loop()),
        "products, BLAS": (1, products_only(torch.matmul)),
        f"products, batched BLAS of {HEADLINE}": (HEADLINE, products_only(torch.matmul, HEADLINE)),
        "products, oneDNN": (1, products_only(onednn)),
    }


def measure_updates(seconds: float) -> dict[str, Any]:
    """Medians of agent-updates a second on one thread, all contenders in turn for about `seconds` of processor time.

    Returns:
        `agent_updates_ratio_sb3` and `agent_updates_share_of_limit` at population 16, each the median over rounds of
        the ratio within a round, and `agent_updates_per_second` by contender.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = _take_turns(contenders(), seconds)
    finally:
        torch.set_num_threads(threads)
    ours = rates[f"population {HEADLINE}"]
    products = [values for name, values in rates.items() if name.startswith("products")]
    limit = [max(values) for values in zip(*products, strict=True)]
    return {
        "agent_updates_ratio_sb3": _median_ratio(ours, rates["Stable-Baselines3"]),
        "agent_updates_ratio_plain_loop": _median_ratio(ours, rates["plain loop"]),
        "agent_updates_share_of_limit": _median_ratio(ours, limit),
        "agent_updates_ratio_population_1_to_plain_loop": _median_ratio(rates["population 1"], rates["plain loop"]),
        "agent_updates_per_second": {name: statistics.median(values) for name, values in rates.items()},
        "rounds": len(ours),
    }


def _take_turns(calls: dict[str, tuple[int, Callable[[], object]]], seconds: float) -> dict[str, list[float]]:
    """Rates by contender, one a round, of at least 64 agent-updates each.

    A rate is by processor time, not by the clock: other processes then cost only the caches.
    """
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for _, call in calls.values():
        call()
    started = time.process_time()
    while len(rates["plain loop"]) < 3 or time.process_time() - started < seconds:
        for name, (agents, call) in calls.items():
            repeats = max(1, max(POPULATIONS) // agents)
            before = time.process_time()
            for _ in range(repeats):
                call()
            rates[name].append(repeats * agents / (time.process_time() - before))
    return rates


def _median_ratio(values: list[float], references: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(values, references, strict=True))


def main() -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = measure_updates(arguments.seconds)
    for name, rate in results["agent_updates_per_second"].items():
        print(f"{name:<40} {rate:8.0f} agent-updates/s")
    for name, value in results.items():
        if isinstance(value, float):
            print(f"{name:<50} {value:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
