"""Lost and hung workers of a population: `python -m benchmarks.cluster.faults [--share 0.2] [--json FILE]`.

Prints one row per test, as `benchmarks.faults` does; `--share` scales the counts. All of it runs on one machine: other
nodes are further processes of Ray.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import random
import secrets
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch

from benchmarks.cluster.population import (
    CPU,
    Struck,
    full_market,
    full_worker,
    outcome,
    played_on,
    small_worker,
    undisturbed,
    workers,
)
from benchmarks.faults.__main__ import LINE, line
from benchmarks.faults.harness import Row, checkpoints_of, flags, folder, run_beside, run_here, whole_run
from benchmarks.faults.harness import outcome as outcome_of_run
from benchmarks.speed.harness import full_scale
from benchmarks.speed.main_job import machine
from training import rollout_worker
from training.run.trainer import build_trainer
from utils.errors import ConfigError
from utils.jobs.cluster import Cluster, connect, import_ray
from utils.memory.guard import MB

SECONDS = 10.0
"""Time within which a worker of these tests answers."""
STOP_SECONDS = 10.0
LEFT_SECONDS = 90.0
"""After which no process of a killed driver is left."""
_GROUPS = 2
Blow = Callable[[psutil.Process], object]
_PHASES = ("start", "play", "idle")


def struck(there: Cluster, name: str, blows: list[tuple[str, Blow]]) -> Row:
    """Inject faults in some phases, and compare with a run in this process."""
    run, records = Struck(), []
    with (
        played_on(there, run.trainer, small_worker(), _GROUPS, run.safe_point),
        mock.patch.multiple(rollout_worker, LEAST_SECONDS=SECONDS, LATE=2.0),
    ):
        records += [run.generation(), run.generation()]
        for phase, blow in blows:
            # A worker starts once another one is lost.
            run.due += [("idle", psutil.Process.kill), (phase, blow)] if phase == "start" else [(phase, blow)]
            records += run.until_struck()
    missed = len(run.due)
    expected, found = undisturbed(len(records))
    lost = sum(one != other for one, other in zip(records, expected, strict=True))
    same = outcome(run.trainer) == found
    measured = f"{len(blows) - missed} struck, {lost} generations lost, {'equal' if same else 'OTHER'} bits"
    return Row(name, len(blows), "no generation lost, equal bits", measured, not missed and not lost and same)


@contextlib.contextmanager
def machines() -> Iterator[tuple[Any, Cluster]]:
    """Start a cluster of one machine, to which others can be added, and connect to it."""
    import_ray()
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    head = {"num_cpus": 1, "include_dashboard": False}
    nodes: Any = importlib.import_module("ray.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
    try:
        with connect(nodes.address) as there:
            yield nodes, there
    finally:
        nodes.shutdown()


def lost_machines(count: int) -> Row:
    """Remove the second of two machines without grace, and add another one."""
    with machines() as (nodes, there):

        def lose(_: psutil.Process) -> None:
            nodes.remove_node(node, allow_graceful=False)

        run, records = Struck(), []
        for number in range(count):
            node = nodes.add_node(num_cpus=1)
            with played_on(there, run.trainer, small_worker(), _GROUPS, run.safe_point):
                records += [run.generation(), run.generation()]
                run.due.append((("play", "idle")[number % 2], lose))
                records.append(run.generation())
    expected, found = undisturbed(len(records))
    right = records == expected and outcome(run.trainer) == found and not run.due
    measured = f"{sum(a != b for a, b in zip(records, expected, strict=True))} generations lost, equal bits: {right}"
    return Row("a node removed without grace", count, "no generation lost, equal bits", measured, right)


def driver(count: int, generations: int) -> Row:
    """Kill the driver at a random moment; nothing is left of it, and it resumes with other groups."""
    rng, same, below = random.Random(3), 0, list[psutil.Process]()
    with folder() as runs:
        words = [*flags(runs), "--generations", str(generations), "--rivals", "none"]
        for attempt in range(count):
            name, reached = f"driver{attempt}", rng.randrange(1, generations)
            process = run_beside(*words, "--run", name, "--shards", "2")
            below += _reach(process, runs, name, reached)
            process.kill()
            process.communicate()
            run_here(*words, "--resume", name, "--shards", str(1 + 2 * (attempt % 2)))
            same += outcome_of_run(runs, name) == whole_run(generations).outcome
    left = len(psutil.wait_procs(below, timeout=LEFT_SECONDS)[1])
    must_be = f"bit-identical, none left after {LEFT_SECONDS:.0f} s"
    measured = f"{same} bit-identical, {left} processes left"
    is_ok = same == count and not left
    return Row("driver killed, resumed with 1 or 3 shards", count, must_be, measured, is_ok)


def interrupted(count: int, generations: int) -> Row:
    """Send Ctrl-C to a run and its process group, as a terminal would; time until everything has ended."""
    slowest, right = 0.0, 0
    with folder() as runs:
        words = [*flags(runs), "--generations", str(generations), "--rivals", "none"]
        for attempt in range(count):
            process = run_beside(*words, "--run", f"stopped{attempt}", "--shards", "2")
            below = _reach(process, runs, f"stopped{attempt}", attempt)
            started = time.perf_counter()
            for pid in (process.pid, *(child.pid for child in below)):
                with contextlib.suppress(ProcessLookupError):
                    if os.getpgid(pid) == os.getpgid(process.pid):
                        os.kill(pid, signal.SIGINT)
            process.communicate()
            _, alive = psutil.wait_procs(below, timeout=STOP_SECONDS)
            slowest = max(slowest, time.perf_counter() - started)
            right += process.returncode == 128 + signal.SIGINT and not alive
    measured = f"slowest {slowest:.1f} s, {right} exit 130 with no process left"
    is_ok = right == count and slowest <= STOP_SECONDS
    return Row("Ctrl-C", count, f"everything ends within {STOP_SECONDS:.0f} s, exit 130", measured, is_ok)


def _reach(process: Any, runs: Path, name: str, generation: int) -> list[psutil.Process]:
    """Wait until a run has workers and has reached a generation; return its child processes."""
    driver = psutil.Process(process.pid)
    while process.poll() is None and not workers(driver):
        time.sleep(0.05)
    while process.poll() is None and max(checkpoints_of(runs, name), default=0) < generation:
        time.sleep(0.002)
    return driver.children(recursive=True)


def full_store(there: Cluster) -> Row:
    """Fill the cluster's object store up to one MiB."""
    total = there.ray.cluster_resources()["object_store_memory"]
    filling = there.ray.put(np.zeros(int(total - _stored(there)) - MB, dtype=np.uint8))
    row = struck(there, "store nearly full", [])
    del filling
    return replace(row, count=1)


def another_version(there: Cluster) -> Row:
    """Start a worker with another version of the program."""
    run, other = Struck(), replace(there, facts={**there.facts, "source code": "another"})
    try:
        with played_on(other, run.trainer, small_worker(), 1, run.safe_point):
            run.generation()
        measured = "played"
    except ConfigError as error:
        measured = str(error)[:80]
    is_ok = "source code" in measured
    return Row("a worker with another version", 1, "refused in one line", measured, is_ok)


def flat(there: Cluster, generations: int) -> Row:
    """Run many small generations; the store and the memory of driver and workers must not grow."""
    run, used = Struck(), []
    with played_on(there, run.trainer, small_worker(), _GROUPS, run.safe_point):
        for _ in range(generations):
            run.generation()
            processes = [psutil.Process(), *workers()]
            used.append([_stored(there) / MB, *(process.memory_full_info().uss / MB for process in processes)])
    half = len(used) // 2
    rise = np.median(used[-half // 2 :], axis=0) - np.median(used[half : half + half // 2], axis=0)
    store, *memory = rise.tolist()
    measured = f"store {store:+.2f} MiB ({used[-1][0]:.2f}), driver {memory[0]:+.2f}, workers " + ", ".join(
        f"{value:+.2f}" for value in memory[1:]
    )
    is_ok = store <= 0.1 and max(memory) < 2.0
    return Row("growth over the second half", generations, "store 0, less than 2 MiB of memory", measured, is_ok)


def _stored(there: Cluster) -> float:
    """Return the bytes of all objects in the cluster's stores."""
    api: Any = importlib.import_module("ray._private.internal_api")
    state = api.get_state_from_address(there.ray.get_runtime_context().gcs_address)
    return float(api.get_memory_info_reply(state).store_stats.object_store_bytes_used)


def overhead(there: Cluster, generations: int) -> Row:
    """Run generations at full scale here and on one worker, in turn."""
    market, trainers = full_market(), []
    for _ in range(2):
        trainers.append(build_trainer(replace(full_scale(), generations=generations), market, CPU))
    with played_on(there, trainers[1], full_worker, 1, lambda: None):
        pairs = []
        for _ in range(generations):
            pairs.append([trainer.run_generation()["seconds"]["total"] for trainer in trainers])
    # The first ones wait for the worker, and fill the replay.
    here, apart = (statistics.median(seconds) for seconds in zip(*pairs[3:], strict=True))
    share = statistics.median(second / first for first, second in pairs[3:]) - 1
    same = outcome(trainers[0]) == outcome(trainers[1])
    measured = f"{100 * share:+.1f}% ({here:.2f} s here, {apart:.2f} s there), {'equal' if same else 'OTHER'} bits"
    return Row("a generation at full scale by one worker", generations, "at most 5% longer", measured, share <= 0.05)


def rows(share: float) -> Iterator[Row]:
    """Run all tests, with their counts scaled by `share`."""

    def times(count: int) -> int:
        return max(1, round(count * share))

    with connect("local", 2) as there:
        phases = [_PHASES[number % len(_PHASES)] for number in range(times(20))]
        yield struck(
            there, f"kill -9 of a worker: {', '.join(_PHASES)}", [(phase, psutil.Process.kill) for phase in phases]
        )
        yield struck(there, "a worker hangs (SIGSTOP)", [("play", psutil.Process.suspend)] * times(5))
        yield another_version(there)
        yield flat(there, times(100))
        yield full_store(there)
        yield overhead(there, 3 + times(12))
    yield lost_machines(times(5))
    yield driver(times(5), 6)
    yield interrupted(times(3), 1000)


def main(argv: list[str] | None = None) -> int:
    """Print the table; the exit code is 1 if a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    torch.set_num_threads(1)
    random.seed(0)
    results = []
    print(machine())
    print(LINE.format("test", "count", "must be", "measured", "ok"))
    for row in rows(arguments.share):
        results.append(row)
        print(line(row), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in results], indent=2) + "\n")
    return 1 if any(row.is_ok is False for row in results) else 0


if __name__ == "__main__":
    sys.exit(main())
