"""Speed of the environment and growth of a generation: `python -m benchmarks.speed [--only SECTION] [--json FILE]`.

Some ten minutes on 2 cores that are otherwise idle: where other work takes one of two cores, tensor operations on two
threads wait for it and may be ten times slower than on one (then give --threads 1). Prices are random walks. Where a
CUDA device is present its rows are measured too.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.environment import environment_rows
from benchmarks.speed.growth import growth_rows
from benchmarks.speed.harness import CPU, Row
from benchmarks.speed.main_job import machine

SECTIONS: Mapping[str, Callable[[torch.device], list[Row]]] = {"environment": environment_rows, "growth": growth_rows}


def main() -> None:
    """Measure, print the rows, write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="default: all")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    threads = f"CPU threads: {torch.get_num_threads()} unless the row says otherwise"
    print(f"{machine()}\n{threads}; load average at the beginning {os.getloadavg()[0]:.1f}")
    rows = list[dict[str, Any]]()
    for device in [CPU, *[torch.device("cuda")] * torch.cuda.is_available()]:
        for name in arguments.only:
            print(f"\n{name} on {device.type}")
            for row in SECTIONS[name](device):
                value = f"{row.value:,.{0 if row.value >= 1000 else 3}f} {row.unit}"
                print(f"  {row.name:<60} {value:>24} {row.note}".rstrip(), flush=True)
                rows.append({"section": name, "device": device.type, **asdict(row)})
    if arguments.json:
        report = {"machine": machine(), "threads": torch.get_num_threads(), "rows": rows}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
