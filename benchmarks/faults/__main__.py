"""Crashes, full disks, rotten files and a misbehaving cloud: `python -m benchmarks.faults [--share 0.1] [--json FILE]`.

Prints one row a test: what was done how often, what must come of it, and what came of it. `--share` scales the counts.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.faults import cloud, disk, paper, whole_run
from benchmarks.faults.harness import QUICK_RUN, SMALL_RUN, Row
from benchmarks.harness import machine

GENERATIONS = 6
"""Of a small run that a fault meets."""
VERDICTS = {True: "ok", False: "FAIL", None: "not measured"}
LINE = "| {:<66} | {:>5} | {:<58} | {:<84} | {:<12} |"


def rows(share: float) -> Iterator[Row]:
    """Run all tests, with their counts scaled by `share`; below a half, stopping is timed on a small run only."""

    def times(count: int) -> int:
        return max(1, round(count * share))

    yield disk.kill_while_saving(times(100))
    yield disk.order_of_calls()
    for kind in disk.ROT:
        yield disk.rot(kind, times(200))
    yield disk.full_disk(GENERATIONS)
    yield whole_run.kill_and_resume(times(10), GENERATIONS)
    for fault in cloud.RECOVERED:
        yield cloud.recovered(fault, times(5))
    yield cloud.endless_503(GENERATIONS)
    yield cloud.closed_doors()
    yield cloud.sigterm_while_stalled()
    yield whole_run.sigterm(3, settings=QUICK_RUN if share >= 0.5 else SMALL_RUN)
    yield whole_run.leak(GENERATIONS)
    yield from paper.rows(times(10_000), times(100))


def line(row: Row) -> str:
    """Format a row of the table."""
    return LINE.format(row.test, row.count, row.must_be, row.measured, VERDICTS[row.is_ok])


def main(argv: list[str] | None = None) -> int:
    """Print the table; the exit code is 1 if a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    started, results = time.perf_counter(), []
    print(machine())
    print(LINE.format("test", "count", "must be", "measured", "ok"))
    print(LINE.format(*["---"] * 5))
    for row in rows(arguments.share):
        results.append(row)
        print(line(row), flush=True)
    print(f"{time.perf_counter() - started:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in results], indent=2) + "\n")
    return 1 if any(row.is_ok is False for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
