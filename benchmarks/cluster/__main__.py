"""What parallel jobs save: `python -m benchmarks.cluster [--jobs 2] [--generations 20] [--json FILE]`.

Populations are trained on the built-in market, one after the other in this process, then in parallel in processes and,
where Ray is installed, on a cluster on this machine. Times are wall-clock seconds and include the start of the
executor. Results must be equal bit for bit.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from functools import partial
from pathlib import Path

from benchmarks.cluster.training import train
from benchmarks.learning.study import ending
from utils.jobs.executor import open_executor
from utils.jobs.job import Job, require_all


def measure(jobs: list[Job], at_once: int, cluster: str | None) -> tuple[float, dict[str, str]]:
    """Return the seconds that an executor takes for all jobs, and the results by name."""
    started = time.perf_counter()
    with open_executor(at_once, cluster) as executor:
        ends = list(executor.run(jobs))
        seconds = time.perf_counter() - started
    require_all(ends)
    return seconds, {end.name: end.result for end in ends}


def main() -> None:
    """Measure, print a line for each executor and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="number of parallel jobs")
    parser.add_argument("--generations", type=int, default=20, help="per job")
    parser.add_argument("--json", type=Path, help="file of figures")
    arguments = parser.parse_args()
    jobs = [Job(f"seed {seed}", partial(train, seed, arguments.generations)) for seed in range(arguments.jobs)]
    others = {"processes": None, **({"Ray": "local"} if importlib.util.find_spec("ray") else {})}
    with ending(parser):
        alone, expected = measure(jobs, 1, None)
        print(f"{'one after the other':<20} {alone:7.1f} s", flush=True)
        figures = {"jobs": arguments.jobs, "one after the other": alone}
        for name, cluster in others.items():
            seconds, found = measure(jobs, arguments.jobs, cluster)
            same = "equal" if found == expected else "OTHER"
            print(f"{name:<20} {seconds:7.1f} s, {seconds / alone:.2f} of it, {same} results", flush=True)
            figures |= {name: seconds, f"{name}, results": same}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
