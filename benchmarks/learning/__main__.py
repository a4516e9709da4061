"""Studies of learning: `python -m benchmarks.learning pendulum|markets|null|power [--json FILE]`.

`pendulum`: DDPG, a population and a population with evolution on Gymnasium's Pendulum-v1, at equal environment steps.
All seeds run side by side, each with its own replay. Published for DDPG after 20,000 steps: -152 +- 94 (RL Baselines3
Zoo). `--environment` takes another one with flat observations and actions, for longer studies: `InvertedPendulum-v5`,
`HalfCheetah-v5` (pip install "gymnasium[mujoco]").

`markets`: profits on unseen paths of planted markets, see `benchmarks.learning.markets`. `null`: how often a policy is
praised where nothing can be learned, see `benchmarks.learning.null`. `power`: how often one with skill is praised, see
`benchmarks.learning.power`. All three take settings of main.py as further flags, do their jobs one by one, append each
result to the JSON lines of --json, and go on from there when started again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import torch
from torch import Tensor

from benchmarks.learning import markets as learning_markets
from benchmarks.learning import null as learning_null
from benchmarks.learning import power as learning_power
from benchmarks.pendulum.agents import DDPGConfig
from benchmarks.pendulum.trainer import FlatEnvironments, LoopConfig, Trainer, evaluate
from utils.config.trader import EvolutionConfig
from utils.errors import ConfigError

PENDULUM = "Pendulum-v1"
FIRST_TEST_SEED = 1_000_000
"""Starts of the last evaluation, apart from any that training draws."""


def pendulum_loops(population: int, steps: int, updates_per_step: float) -> dict[str, LoopConfig]:
    """Return the three methods; an agent of a population updates `updates_per_step` times as often as it acts."""
    single = LoopConfig(environment_steps=steps)
    many = replace(single, population=population, fitness_lanes=1, updates_per_step=updates_per_step)
    # Most are elites and tournaments small: were all copies of one agent, what spoils it would spoil all.
    evolution = EvolutionConfig(
        population_size=population, elite_fraction=0.75, offspring_fraction=0.0, tournament_size=2
    )
    return {
        "DDPG": single,
        "population, no evolution": many,
        "population with evolution": replace(many, evolution=evolution),
    }


def pendulum(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate each method; return its figures."""
    results: dict[str, Any] = {}
    for name, loop in pendulum_loops(arguments.population, arguments.steps, arguments.updates_per_step).items():
        if arguments.only and arguments.only not in name:
            continue
        started = time.perf_counter()
        trainer = Trainer(
            arguments.environment, arguments.seeds, loop, DDPGConfig(), arguments.first_seed, arguments.device
        )
        trained = trainer.run()
        seconds = time.perf_counter() - started
        returns = evaluate(trained.agents, arguments.environment, arguments.episodes, FIRST_TEST_SEED)
        results[name] = summarise(returns[trained.champions], trained.fitness, loop) | {"seconds": seconds}
        print(_line(name, results[name]), flush=True)
    return results


def summarise(returns: Tensor, fitness: Tensor, loop: LoopConfig) -> dict[str, Any]:
    """Compute a method's figures from the (seeds, episodes) returns of its champions and its learning curve."""
    by_seed = returns.mean(1)
    return {
        "mean_return": by_seed.mean().item(),
        "std_over_seeds": by_seed.std(correction=0).item(),
        "std_over_episodes": returns.std().item(),
        "return_by_seed": by_seed.tolist(),
        "curve": fitness.amax(2).mean(1).tolist(),
        "population": loop.population,
        "environment_steps": loop.environment_steps,
    }


def _line(name: str, result: dict[str, Any]) -> str:
    figures = f"{result['mean_return']:8.1f} +- {result['std_over_episodes']:.1f}"
    by_seed = " ".join(f"{value:.0f}" for value in result["return_by_seed"])
    return f"{name:<28} {figures:<20} {result['seconds']:6.0f} s   by seed: {by_seed}"


def _add_pendulum(commands: Any) -> None:
    parser = commands.add_parser("pendulum", help="DDPG and populations on Pendulum-v1 at equal environment steps")
    parser.add_argument("--environment", default=PENDULUM, help="of Gymnasium")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000, help="environment steps of each seed")
    parser.add_argument("--episodes", type=int, default=50, help="of the last evaluation")
    parser.add_argument("--population", type=int, default=4)
    parser.add_argument("--updates-per-step", type=float, default=4.0, help="of each agent of a population")
    parser.add_argument("--only", help="only the methods whose name contains this")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.set_defaults(run=_run_pendulum)


def _run_pendulum(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    if words:
        raise ConfigError(f"expected only flags of this study, got {words[0]!r}; see --help")
    torch.set_num_threads(arguments.threads)
    _require_flat(arguments.environment)
    results = pendulum(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def _require_flat(name: str) -> None:
    """Raise ConfigError unless Gymnasium knows the environment and it can be learned."""
    try:
        environments = FlatEnvironments(name, 1)
    except (gymnasium.error.Error, ValueError) as error:
        raise ConfigError(
            f"expected an environment with flat observations and actions, got {name!r}: {error}"
        ) from None
    environments.lanes.close()


def main(words: Sequence[str] | None = None) -> None:
    """Run the named study, print its table, write its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    _add_pendulum(commands)
    learning_markets.add_command(commands)
    learning_null.add_command(commands)
    learning_power.add_command(commands)
    arguments, rest = parser.parse_known_args(words)
    try:
        arguments.run(arguments, rest)
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
