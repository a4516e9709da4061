"""What a first hour on a CUDA card should settle, in one command: `python -m benchmarks.first_hour [--out FILE.json]`.

The card and its driver; the tests that need CUDA; microseconds that an operation takes of the host; the same small run
on the CPU and twice on the card; seconds and memory of generations against what `benchmarks.gpu_budget` predicts, the
first against later ones, one thread against more; the goals of wide networks, with the bits of updates that are
launched as a graph against eager ones; a default run. Every step is a process of its own, so that one that
fails leaves the others. Ends with 1 where numbers are wrong, a step fails, or anything is more than 1.5 times its
prediction. Without a card the CPU is measured, and what needs a card is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.golden import Case, differences, trace
from benchmarks.gpu_budget.__main__ import BUDGET, TOTAL
from benchmarks.gpu_budget.costs import ALL_CARDS, COPY_BYTES_PER_SECOND, HOST_SECONDS, Card
from benchmarks.gpu_budget.finding import Finding, line, predicted
from benchmarks.gpu_budget.generation import APART, DAYS, FULL, SMALL, UPDATES
from benchmarks.gpu_budget.generation import Size as MarketSize
from benchmarks.gpu_budget.goals import GENERATION, GOAL_LIST, GOALS, IN_ONE, MEMORY, RUN, UPDATES_OF, WIDE
from benchmarks.gpu_budget.measure import first_difference, run_seconds, update_milliseconds, wide_generation
from benchmarks.speed.harness import MemoryGauge, random_market, synchronize
from benchmarks.speed.main_job import ROOT, machine, measure_run
from benchmarks.speed.updates import Size
from training.forecasts.ridge import SkillTest, TrainingDays
from training.run.trainer import build_trainer
from utils.memory.guard import MB
from utils.runs.devices import choose_device, choose_threads

_METRICS = "trace/metrics.jsonl"
TOLERANCE = 0.01
"""By which numbers of a first generation may differ between devices: rounding turns a few of its orders."""
NEEDS_CARD = "left out: needs a CUDA card"
_GENERATIONS = 4
_OPERATIONS = 2000
_STEP_SECONDS = 3600.0
_SMALL = (
    "--population-size 4 --split.context-window-days 16 --synthetic.days 300 --synthetic.stocks 6 --env.trading-days 6 "
    "--env.settlement-days 2 --env.max-holding-days 3 --env.max-days-without-bar 2 --evaluation.rivals none"
)


@dataclass(frozen=True)
class Setup:
    """Device and size of the measurements."""

    device: torch.device
    is_small: bool

    @property
    def is_card(self) -> bool:
        """Tell whether there is a card."""
        return self.device.type == "cuda"

    @property
    def size(self) -> MarketSize:
        """Return the market on which generations are measured."""
        return SMALL if self.is_small else FULL

    @property
    def card(self) -> Card:
        """Return the card of the predictions whose name the device's holds, else the first."""
        name = torch.cuda.get_device_name(self.device)
        return next((card for card in ALL_CARDS if card.name in name), ALL_CARDS[0])

    def goal(self, name: str, way: str = "graphs") -> float | None:
        """Return what is predicted of a goal on this card; None without one, and at other sizes."""
        if not self.is_card or self.is_small:
            return None
        return float(json.loads(GOALS.read_text())[name][f"{self.card.name}, {way}"])


def describe(setup: Setup) -> list[Finding]:
    """Name the machine and the card."""
    found = [Finding("machine", machine())]
    if not setup.is_card:
        return [*found, Finding("card", None, note=NEEDS_CARD)]
    properties = torch.cuda.get_device_properties(setup.device)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return [
        *found,
        Finding("card", properties.name, note=f"predictions are those of {setup.card.name}"),
        Finding("memory of the card", properties.total_memory / MB, "MiB"),
        Finding("driver", driver, note=f"torch is built for CUDA {torch.version.cuda}"),
    ]


def run_tests(setup: Setup) -> list[Finding]:
    """Run the tests that need a card."""
    if not setup.is_card:
        return [Finding("tests on the card", None, note=NEEDS_CARD)]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-k", "cuda or a_gpu", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line] or [done.stderr[-200:]]
    failed = "; ".join(line for line in lines if line.startswith(("FAILED", "ERROR")))
    is_passed = done.returncode == 0 and " passed" in lines[-1]
    return [Finding("tests on the card", lines[-1], fault="" if is_passed else failed or "none passed")]


def compare_devices(setup: Setup) -> list[Finding]:
    """Make the same small run on the CPU and twice on the device, and name the first difference."""
    training = f"--profile quick --generations 2 {_SMALL if setup.is_small else ''} --runs-dir {{runs}} --run trace"
    judging = "evaluate --runs-dir {runs} --run trace --split validation --random-pickers 50"
    case = Case("trace", (training, judging), (_METRICS, "trace/evaluation-validation/results.json"))
    found: list[dict[str, Any]] = []
    for device in ("cpu", *[setup.device.type] * (2 if setup.is_card else 1)):
        with tempfile.TemporaryDirectory() as folder:
            found.append(json.loads(json.dumps(trace(case, Path(folder), device))))
    again = differences(found[-2], found[-1])
    repeated = Finding(
        "run repeated on the device, fields that differ",
        len(again),
        fault=f"not repeatable, first difference: {again[0]}" if again else "",
    )
    if not setup.is_card:
        return [repeated, Finding("CPU against card", None, note=NEEDS_CARD)]
    begun = differences(found[0][_METRICS][0], found[1][_METRICS][0], tolerance=TOLERANCE)
    whole = differences(found[0], found[1], tolerance=TOLERANCE)
    return [
        repeated,
        Finding(
            f"CPU against card, generation 1, fields apart by over {TOLERANCE:g}",
            len(begun),
            fault=f"first difference: {begun[0]}" if begun else "",
        ),
        Finding(
            "CPU against card, later and judged, fields apart by as much",
            len(whole) - len(begun),
            note=f"rounding turns orders, first difference: {whole[0]}" if whole else "",
        ),
    ]


def launch(setup: Setup) -> list[Finding]:
    """Measure what one small operation takes of the host, sent alone and waited for."""
    x = torch.zeros(1, device=setup.device)

    def microseconds(*, waits: bool) -> float:
        taken = []
        for _ in range(_OPERATIONS):
            started = time.perf_counter()
            torch.add(x, 1.0, out=x)
            if waits:
                synchronize(setup.device)
            taken.append(1e6 * (time.perf_counter() - started))
        synchronize(setup.device)
        return statistics.median(taken)

    microseconds(waits=True)
    alone, waited = microseconds(waits=False), microseconds(waits=True)
    return [
        predicted("operation, launched", alone, "us", 1e6 * HOST_SECONDS if setup.is_card else None),
        Finding("operation, waited for", waited, "us"),
    ]


@dataclass(frozen=True)
class Run:
    """Generations that are measured in one process."""

    agents: int
    threads: int = 1
    is_eager: bool = False
    """Rollouts are played day by day, not replayed as a CUDA graph."""

    def __str__(self) -> str:
        """Name it in the table."""
        threads = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"generation, {self.agents} agents, {threads}{', no graph' * self.is_eager}"


def generation(setup: Setup, run: Run) -> list[Finding]:
    """Measure generations with a full replay: time against the prediction, memory against the budget."""
    choose_threads(run.threads)
    if run.is_eager:
        torch.backends.cuda.is_built = lambda: False
    size = setup.size
    evolution = replace(size.config.evolution, population_size=run.agents)
    config = replace(size.config, evolution=evolution)
    market = random_market(config, size.days, size.columns, size.investable)
    gauge, started = MemoryGauge(setup.device), time.perf_counter()
    trainer = build_trainer(config, market, setup.device)
    trainer.replay.size = trainer.replay.capacity
    synchronize(setup.device)
    taken = [time.perf_counter() - started]
    with timed((TrainingDays, "fit"), (SkillTest, "__call__"), (SkillTest, "evidence")) as in_numpy:
        for _ in range(_GENERATIONS):
            started = time.perf_counter()
            trainer.run_generation()
            synchronize(setup.device)
            taken.append(time.perf_counter() - started)
    host, seconds, peak = sum(in_numpy) / _GENERATIONS, None, None
    budget = json.loads(BUDGET.read_text()).get(f"{size.name} {run.agents}")
    if setup.is_card and budget:
        seconds = host + generation_seconds(budget, setup.card, is_replayed=not run.is_eager)
        # A graph keeps, beside all that, its inputs and a pool of what is alive within a rollout.
        peak = budget[TOTAL]["peak"] / MB * (1 if run.is_eager else 2)
    return [
        Finding(f"{run}, set up", taken[0], "s"),
        Finding(f"{run}, the first", taken[1], "s", note="nothing is warm"),
        Finding(
            f"{run}, the second", taken[2], "s", note="" if run.is_eager or not setup.is_card else "captures graphs"
        ),
        Finding(f"{run}, of it numpy", host, "s"),
        predicted(str(run), statistics.median(taken[3:]), "s", seconds),
        predicted(f"{run}, peak memory", gauge.peak_mb(), "MiB", peak),
    ]


@contextlib.contextmanager
def timed(*methods: tuple[type, str]) -> Iterator[list[float]]:
    """Yield a list to which each call of these methods adds its seconds while the block runs."""
    seconds: list[float] = []

    def watched(work: Callable[..., Any]) -> Callable[..., Any]:
        def measured(*args: Any) -> Any:
            started = time.perf_counter()
            result = work(*args)
            seconds.append(time.perf_counter() - started)
            return result

        return measured

    with contextlib.ExitStack() as stack:
        for owner, name in methods:
            stack.enter_context(mock.patch.object(owner, name, watched(getattr(owner, name))))
        yield seconds


def generation_seconds(figures: Mapping[str, Mapping[str, int]], card: Card, *, is_replayed: bool) -> float:
    """Predict the seconds of a generation from its budget: of each phase the slower of card and host, and copies.

    Days and updates that are launched as CUDA graphs take the host nothing; numpy is left out.
    """
    total = 0.0
    for name, phase in figures.items():
        if name not in (*APART, TOTAL):
            is_graph = is_replayed and (name.endswith(DAYS) or name == UPDATES)
            host = 0.0 if is_graph else phase["operations"] * HOST_SECONDS
            total += max(phase[f"{card.name} us"] / 1e6, host) + phase["copied"] / COPY_BYTES_PER_SECOND
    return total


def wide_updates(setup: Setup, batch: int) -> list[Finding]:
    """Measure updates of wide networks, as a graph and eagerly, and compare their bits."""
    size = Size(4, 8, 16, updates=3, transitions=200) if setup.is_small else Size(hidden=WIDE, batch=batch)
    differs = first_difference(replace(size, updates=3), setup.device)
    fault = f"first in {differs}" if differs else ""
    found = [Finding(f"update, batch {batch:,}, graph against eager, tensors apart", int(bool(differs)), fault=fault)]
    for has_graphs, way in ((True, "graphs"), (False, "eager")):
        goal = next(goal for goal in GOAL_LIST if goal.name == UPDATES_OF[batch])
        value = update_milliseconds(size, setup.device, has_graphs=has_graphs)
        rate = setup.goal(goal.name, way)
        name = f"update of {size.agents} agents, batch {batch:,}, {way}"
        found.append(predicted(name, value, "ms", rate and 1e3 / rate, f"goal {1e3 / goal.value:g} ms"))
    return found


def wide_generations(setup: Setup) -> list[Finding]:
    """Measure generations of wide networks, the memory of 64 agents, and a whole run."""
    if not setup.is_card or setup.is_small:
        return [Finding("generations of wide networks", None, note=NEEDS_CARD)]
    seconds, _ = wide_generation(setup.device, 16)
    in_one, _ = wide_generation(setup.device, 16, is_in_one=True)
    _, peak = wide_generation(setup.device, 64)
    trained, judged = run_seconds(setup.device)
    values = {GENERATION: seconds, IN_ONE: in_one, RUN: trained + judged, MEMORY: peak}
    found = [
        predicted(f"wide: {goal.name}", values[goal.name], goal.unit, setup.goal(goal.name), f"goal {goal.value:g}")
        for goal in GOAL_LIST
        if goal.name in values
    ]
    return [*found, Finding(f"wide: {RUN}, of it judging", judged, "s")]


def default_run(setup: Setup) -> list[Finding]:
    """Time a run without any settings but the device."""
    flags = f"--profile quick --generations 2 {_SMALL}".split() if setup.is_small else []
    summary = measure_run(*flags, "--device", setup.device.type)
    return [
        Finding(
            f"default run, {summary['profile']} profile, {summary['generations']} generations",
            summary["wall_seconds"],
            "s",
        ),
        Finding("default run, peak resident memory", summary["peak_rss_mb"], "MiB"),
    ]


def runs_of(setup: Setup) -> list[Run]:
    """Return the populations that are measured, the first of them also in other ways."""
    populations = (4,) if setup.is_small else (16, 64, 256) if setup.is_card else (16,)
    threads = min(4, os.cpu_count() or 1)
    others = [Run(populations[0], threads)] * (threads > 1) + [Run(populations[0], is_eager=True)] * setup.is_card
    return [Run(agents) for agents in populations] + others


def steps(setup: Setup) -> dict[str, Callable[[Setup], list[Finding]]]:
    """Return the steps by name, in their order."""
    known = {"machine": describe, "tests": run_tests, "launch": launch, "trace": compare_devices}
    measured = {
        f"generation-{run.agents}-{'eager' if run.is_eager else run.threads}": partial(generation, run=run)
        for run in runs_of(setup)
    }
    wide = {f"updates-{batch}": partial(wide_updates, batch=batch) for batch in UPDATES_OF}
    return {**known, **wide, **measured, "wide": wide_generations, "run": default_run}


def run_step(name: str, words: list[str]) -> list[Finding]:
    """Run a step in a process of its own; one that fails is a fault."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.first_hour", *words, "--here", "--only", name, "--out", str(path)]
        # A session of its own, so that what a step has started ends with it.
        step = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            _, shown = step.communicate(timeout=_STEP_SECONDS)
        except subprocess.TimeoutExpired:
            return [Finding(name, None, fault=f"not done after {_STEP_SECONDS:.0f} s")]
        finally:
            if step.poll() is None:
                os.killpg(step.pid, signal.SIGKILL)
        if step.returncode or not path.exists():
            return [Finding(name, None, fault=f"exit code {step.returncode}: {(shown.splitlines() or [''])[-1]}")]
        return [Finding(**finding) for finding in json.loads(path.read_text())]


def choices(setup: Setup, findings: Sequence[Finding]) -> list[str]:
    """Say which way of running the first population was the fastest, and how much slower the others were."""
    seconds = {finding.name: finding.value for finding in findings if isinstance(finding.value, float)}
    first, *others = [
        str(run) for run in runs_of(setup) if run.agents == runs_of(setup)[0].agents and str(run) in seconds
    ] or [""]
    return [f"{other}: {seconds[other] / seconds[first]:.2f} times the seconds of {first}" for other in others]


def write_findings(path: Path, content: object) -> None:
    """Write figures, the whole file or none of it."""
    begun = path.with_name(f"{path.name}.begun")
    begun.write_text(json.dumps(content, indent=1) + "\n")
    begun.replace(path)


def main() -> int:
    """Run the steps, print the table, write the file; return 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file of figures (JSON)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--small", action="store_true", help="sizes that take seconds")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="machine, tests, launch, trace, ...; default: all")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    setup = Setup(choose_device(arguments.device), arguments.small)
    known = steps(setup)
    chosen = arguments.only or list(known)
    if not set(chosen) <= set(known):
        parser.error(f"expected --only of {', '.join(known)}, got {', '.join(chosen)}")
    if arguments.here:
        write_findings(arguments.out, [asdict(finding) for name in chosen for finding in known[name](setup)])
        return 0
    findings: list[Finding] = []
    for name in chosen:
        found = run_step(name, ["--device", setup.device.type, *["--small"] * setup.is_small])
        print("\n".join(line(finding) for finding in found), flush=True)
        findings += found
        if arguments.out:  # after each step: what is known stays known
            write_findings(arguments.out, {"device": str(setup.device), "findings": [asdict(one) for one in findings]})
    print("\n".join(choices(setup, findings)))
    return int(any(finding.fault for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
