"""Speed of the environment and growth of a generation: `python -m benchmarks.speed [--only SECTION] [--json FILE]`.

Every figure stands beside its reference, measured in the same run on the same machine, some ten minutes on 2 cores that
are otherwise idle: where other work takes one of two cores, tensor operations on two threads wait for it and may be ten
times slower than on one (then give --threads 1). Prices are random walks. Where a CUDA device is present its rows are
measured too.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.environment import environment_rows
from benchmarks.speed.growth import growth_rows
from benchmarks.speed.harness import CPU, Row
from benchmarks.speed.main_job import machine

logger = logging.getLogger("benchmarks.speed")
SECTIONS: Mapping[str, Callable[[torch.device], list[Row]]] = {"environment": environment_rows, "growth": growth_rows}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows by group, each with its ratio and what the ratio is."""
    lines, group = list[str](), ""
    for row in rows:
        if row["group"] != group:
            group = row["group"]
            lines += ["", group]
        value = f"{row['value']:,.{0 if row['value'] >= 1000 else 3}f} {row['unit']}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}x ({row['reference']})"
        name = row["name"] if row["device"] == "cpu" else f"[{row['device']}] {row['name']}"
        lines.append(f"  {name:<72} {value:>24} {ratio:>8} {row['note']}".rstrip())
    return "\n".join(lines)


def main() -> None:
    """Measure, print the table, write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to write the rows")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS), help="default: all")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("benchmarks").setLevel(logging.INFO)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    rows = list[dict[str, Any]]()
    for device in [CPU, *[torch.device("cuda")] * torch.cuda.is_available()]:
        for name in arguments.only:
            started = time.perf_counter()
            rows += [{"device": device.type, **asdict(row)} for row in SECTIONS[name](device)]
            logger.info("%s on %s: %.0f s", name, device, time.perf_counter() - started)
    threads = f"CPU threads: {torch.get_num_threads()} unless the row says otherwise"
    print(f"{machine()}\n{threads}; load average at the end {os.getloadavg()[0]:.1f}\n{table(rows)}")
    if arguments.json:
        found = {"machine": machine(), "threads": torch.get_num_threads(), "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
