"""Choices by device: `python -m benchmarks.speed.device_choices [--profile quick|full] [--json FILE]`.

bfloat16 against float32 in the encoder's convolutions, and torch.compile (with CUDA graphs on a CUDA device) against
eager operations in the heads of an update. Both forms of a pair take turns in one process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.speed.harness import full_scale, random_market, seconds_of, synchronize
from benchmarks.speed.main_job import machine
from benchmarks.speed.updates import learner_maker
from data.market import Market, MarketTensors
from models.networks import AgentNetworks
from training import learner as update
from utils.config.trader import Config, Precision, profile_config
from utils.runs.devices import choose_device

COMPILED = ("target_value", "executed_value", "policy_value", "hindsight_values")
"""The functions of an update whose operations torch.compile can fuse; the rest are convolutions and sums of squares."""
PROFILES: dict[str, tuple[Config, tuple[int, int, int]]] = {
    "quick": (profile_config("quick"), (1600, 40, 40)),
    "full": (full_scale("independent"), (1600, 669, 108)),
}
"""Settings, and the days, columns and investable stocks of a random market."""


def in_turns(forms: Mapping[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """Return the median seconds of each form, one of each a round after a round to warm up."""
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(rounds + 1):
        for name, work in forms.items():
            taken[name].append(seconds_of(work, device, repeats=1, warm_up=0))
    return {name: statistics.median(values[1:]) for name, values in taken.items()}


def precisions(config: Config, market: Market, device: torch.device, rounds: int) -> dict[str, float]:
    """Time the encoding of a block of days and the gradient through it, by precision: seconds."""
    context = config.split.context_window_days
    tensors = MarketTensors.of(market, device)
    inputs = tensors.inputs[:, : context - 1 + config.learning.block_days]

    def form(precision: Precision) -> Callable[[], object]:
        networks = AgentNetworks(1, replace(config.network, precision=precision), context).to(device)

        def work() -> None:
            encoding = networks.encode_distinct(inputs, tensors.investable)
            torch.autograd.backward([encoding.stocks.sum() + encoding.summary.sum()])

        return work

    return in_turns({"float32": form("float32"), "bfloat16": form("bfloat16")}, device, rounds)


def compilation(config: Config, market: Market, device: torch.device, rounds: int) -> dict[str, float]:
    """Time an update of all agents, eager and with its heads compiled, and the compiling: seconds."""
    learner = learner_maker(config, market, device)(config.evolution.population_size)
    generator = torch.Generator(device).manual_seed(0)
    mode = "reduce-overhead" if device.type == "cuda" else "default"
    compiled = {name: torch.compile(getattr(update, name), mode=mode, dynamic=False) for name in COMPILED}

    def fused() -> None:
        with mock.patch.dict(vars(update), compiled):
            learner.update(generator)

    started = time.perf_counter()
    fused()
    synchronize(device)
    compiling = time.perf_counter() - started
    taken = in_turns({"eager": lambda: learner.update(generator), "compiled": fused}, device, rounds)
    return {**taken, "compiling": compiling}


def measure(profile: str, device: torch.device, rounds: int) -> dict[str, Any]:
    """Make both comparisons at the sizes of a profile."""
    config, (days, columns, investable) = PROFILES[profile]
    market = random_market(config, days, columns, investable)
    return {
        "machine": machine(),
        "device": str(device),
        "profile": profile,
        "precision_seconds": precisions(config, market, device, rounds),
        "update_seconds": compilation(config, market, device, rounds),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Gains of bfloat16 and torch.compile on the device at hand.")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="quick")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found = measure(arguments.profile, choose_device(arguments.device), arguments.rounds)
    precision, taken = found["precision_seconds"], found["update_seconds"]
    print(f"{found['machine']}, device {found['device']}, {arguments.threads} threads, profile {found['profile']}")
    gain = precision["float32"] / precision["bfloat16"]
    print(f"encode a block and back: bfloat16 is {gain:.2f}x as fast as float32")
    print(
        f"update of all agents: compiled is {taken['eager'] / taken['compiled']:.2f}x as fast as eager, "
        f"after {taken['compiling']:.0f} s of compiling"
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
