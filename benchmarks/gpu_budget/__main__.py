"""What a generation costs on a CUDA card, without one: `python -m benchmarks.gpu_budget [--agents 16 64] [--small]`.

Runs a generation of the `full` profile at full scale on a card that is not there, and prints what each phase launches,
moves and waits for; an update is one launch on a card, as it is from the third generation on. Exits with 1 where
tensors lie on different devices, where the host waits within a day of a rollout or an update or more often than it may
outside, where the third generation's updates launch other operations than the second's, where a random number is drawn
on the device, or where a figure is more than 2% over budget.json. Counts are those of the torch that the budget was
written with; another one's are not compared.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_budget.card import (
    DrawnOnCardError,
    MixedDevicesError,
    Phase,
    install_before_torch,
    joined,
    over_budget,
)

BUDGET = Path(__file__).with_name("budget.json")
AGENTS = (16, 64)
TOTAL = "generation"


def table(phases: Mapping[str, Phase]) -> str:
    """Format phases, a line each."""
    lines = [f"{'phase':16}" + "".join(f"{head:>15}" for head in ("operations", "waits", "copied MB", "peak GB"))]
    for name, phase in phases.items():
        numbers_of = phase.figures()
        counts = [f"{numbers_of[part]:,}" for part in ("operations", "waits")]
        numbers = (*counts, f"{numbers_of['copied'] / 1e6:.1f}", f"{numbers_of['peak'] / 1e9:.2f}")
        lines.append(f"{name:16}" + "".join(f"{number:>15}" for number in numbers))
    return "\n".join(lines)


def main() -> int:
    """Count, print, compare; return 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", help="populations; default: 16 64, of the small: 4")
    parser.add_argument("--small", action="store_true", help="a market and episodes that take seconds")
    parser.add_argument("--budget", type=Path, default=BUDGET)
    parser.add_argument("--write", action="store_true", help="write what was counted into the budget")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    install_before_torch("benchmarks.gpu_budget", sys.argv[1:])
    from benchmarks.gpu_budget.generation import (
        APART,
        FULL,
        SMALL,
        count_generation,
    )  # not before, for it takes a while

    budget: dict[str, Any] = json.loads(arguments.budget.read_text()) if arguments.budget.exists() else {}
    version = torch.__version__.split("+")[0].rpartition(".")[0]
    size = SMALL if arguments.small else FULL
    market, days = size.ready()
    print(f"{size.days:,} days x {size.columns} columns, {size.investable} investable; counted without a card")
    faults = []
    populations = arguments.agents or ((4,) if arguments.small else AGENTS)
    for agents in populations:
        try:
            generations = 3 if agents == populations[0] else 1
            phases, wrong = count_generation(size, agents, market, days, generations)
        except (MixedDevicesError, DrawnOnCardError) as error:
            print(f"FAULT {error}")
            return 1
        whole = {TOTAL: joined([phase for name, phase in phases.items() if name not in APART])}
        print(f"\n{agents} agents\n{table(phases | whole)}")
        phases |= whole
        figures, key = {name: phase.figures() for name, phase in phases.items()}, f"{size.name} {agents}"
        if arguments.write:
            budget = {**budget, "torch": version, key: figures}
        elif key in budget and budget["torch"] == version:
            for name in budget[key].keys() & figures.keys():
                wrong += [f"{name} {what}" for what in over_budget(figures[name], budget[key][name])]
        else:
            print(f"not compared: the budget holds no {key} of torch {version}")
        faults += [f"{agents} agents: {what}" for what in wrong]
    if arguments.write:
        arguments.budget.write_text(json.dumps(budget, indent=1) + "\n")
    for fault in faults:
        print(f"FAULT {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
