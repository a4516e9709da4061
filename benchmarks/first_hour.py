"""What a first hour on a CUDA card should settle, in one command: `python -m benchmarks.first_hour [--out FILE.json]`.

The card and its driver; the tests that need CUDA; the same small run on the CPU and twice on the card; seconds of
generations, and their memory against what `benchmarks.gpu_budget` counts; a default run. Every step is a process of its
own, so that one that fails leaves the others. Ends with 1 where numbers are wrong, a step fails, or memory is more than
1.5 times its prediction. Without a card the CPU is measured, and what needs a card is left out.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.golden import Case, differences, trace
from benchmarks.gpu_budget.__main__ import BUDGET, TOTAL
from benchmarks.gpu_budget.generation import FULL, SMALL
from benchmarks.harness import ROOT, MemoryGauge, machine, measure_run, random_market, seconds_of
from benchmarks.trainers import build_trainer, run_generation
from utils.memory_guard import MIB
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import write_json

_METRICS = "trace/metrics.jsonl"
MOST_RATIO = 1.5
"""Of what is measured to what is predicted."""
TOLERANCE = 0.01
"""By which numbers of a first generation may differ between devices: rounding turns a few of its orders."""
NEEDS_CARD = "left out: needs a CUDA card"
_GENERATIONS = 4
_STEP_SECONDS = 3600.0
_SMALL = (
    "--population-size 4 --split.context-window-days 16 --synthetic.days 300 --synthetic.stocks 6 --env.trading-days 6 "
    "--env.settlement-days 2 --env.max-days-without-bar 2 --rivals none"
)


@dataclass(frozen=True)
class Finding:
    """One figure."""

    name: str
    value: float | str | None
    unit: str = ""
    expected: float | None = None
    """What was predicted, in the same unit."""
    note: str = ""
    fault: str = ""
    """What is wrong; empty: nothing."""

    def __str__(self) -> str:
        value = self.value
        text = "-" if value is None else value if isinstance(value, str) else f"{value:,.4g} {self.unit}".rstrip()
        ratio = ""
        if self.expected is not None and isinstance(value, float | int):
            ratio = f"predicted {self.expected:,.4g}, ratio {value / self.expected:.2f}"
        rest = "; ".join(part for part in (ratio, self.note, self.fault and f"FAULT {self.fault}") if part)
        return f"{self.name:<64} {text:>18}  {rest}".rstrip()


def predicted(name: str, value: float, unit: str, expected: float | None) -> Finding:
    """Return a figure with its prediction; it is a fault to be far above."""
    is_over = expected is not None and value > MOST_RATIO * expected
    fault = f"{value:.3g} {unit}, predicted {expected:.3g}, at most {MOST_RATIO} times that" if is_over else ""
    return Finding(name, value, unit, expected, "no prediction" * (expected is None), fault)


@dataclass(frozen=True)
class Setup:
    """Device and size of the measurements."""

    device: torch.device
    is_small: bool

    @property
    def is_card(self) -> bool:
        """Tell whether there is a card."""
        return self.device.type == "cuda"


def describe(setup: Setup) -> list[Finding]:
    """Name the machine and the card."""
    here = [Finding("machine", machine())]
    if not setup.is_card:
        return [*here, Finding("card", None, note=NEEDS_CARD)]
    properties = torch.cuda.get_device_properties(setup.device)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    return [
        *here,
        Finding("card", properties.name),
        Finding("memory of the card", properties.total_memory / MIB, "MiB"),
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
    traces = [trace(case, device) for device in ("cpu", *[setup.device.type] * (2 if setup.is_card else 1))]
    again = differences(traces[-2], traces[-1])
    fault = f"not repeatable, first difference: {again[0]}" if again else ""
    repeated = Finding("run repeated on the device, fields that differ", len(again), fault=fault)
    if not setup.is_card:
        return [repeated, Finding("CPU against card", None, note=NEEDS_CARD)]
    begun = differences(traces[0][_METRICS][0], traces[1][_METRICS][0], tolerance=TOLERANCE)
    whole = differences(traces[0], traces[1], tolerance=TOLERANCE)
    first = f"first difference: {begun[0]}" if begun else ""
    later = f"rounding turns orders, first difference: {whole[0]}" if whole else ""
    return [
        repeated,
        Finding(f"CPU against card, generation 1, fields apart by over {TOLERANCE:g}", len(begun), fault=first),
        Finding("CPU against card, later and judged, fields apart by as much", len(whole) - len(begun), note=later),
    ]


def generation(setup: Setup, agents: int) -> list[Finding]:
    """Measure generations with a full replay: their time, and their memory against the budget."""
    choose_threads(1)
    size, name = SMALL if setup.is_small else FULL, f"generation, {agents} agents"
    config = replace(size.config, evolution=replace(size.config.evolution, population_size=agents))
    market = random_market(config, size.days, size.columns, size.investable)
    gauge = MemoryGauge(setup.device)
    trainer = build_trainer(config, market, setup.device)
    trainer.replay_buffer.size = trainer.replay_buffer.capacity
    taken = [seconds_of(partial(run_generation, trainer), setup.device) for _ in range(_GENERATIONS)]
    budget = json.loads(BUDGET.read_text()).get(f"{size.name} {agents}") if setup.is_card else None
    # Graphs keep, beside all that is counted, their inputs and pools of what is alive within a rollout.
    peak = 2 * budget[TOTAL]["peak"] / MIB if budget else None
    return [
        Finding(name, statistics.median(taken[2:]), "s"),  # nothing is warm before, and graphs are captured
        predicted(f"{name}, peak memory", gauge.peak_mb(), "MiB", peak),
    ]


def default_run(setup: Setup) -> list[Finding]:
    """Time a run without any settings but the device."""
    flags = f"--profile quick --generations 2 {_SMALL}".split() if setup.is_small else []
    summary = measure_run(*flags, "--device", setup.device.type)
    name = f"default run, {summary['generations']} generations"
    return [
        Finding(name, summary["wall_seconds"], "s"),
        Finding("default run, peak resident memory", summary["peak_rss_mb"], "MiB"),
    ]


def steps(setup: Setup) -> dict[str, Callable[[Setup], list[Finding]]]:
    """Return the steps by name, in their order."""
    populations = (4,) if setup.is_small else (16, 64, 256) if setup.is_card else (16,)
    generations = {f"generation-{agents}": partial(generation, agents=agents) for agents in populations}
    known = {"machine": describe, "tests": run_tests, "trace": compare_devices}
    return {**known, **generations, "run": default_run}


def run_step(name: str, words: list[str]) -> list[Finding]:
    """Run a step in a separate process; one that fails is a fault."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "found.json"
        command = [sys.executable, "-m", "benchmarks.first_hour", *words, "--here", "--only", name, "--out", str(path)]
        try:
            step = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_STEP_SECONDS)
        except subprocess.TimeoutExpired:
            return [Finding(name, None, fault=f"not done after {_STEP_SECONDS:.0f} s")]
        if step.returncode or not path.exists():
            return [Finding(name, None, fault=f"exit code {step.returncode}: {(step.stderr.splitlines() or [''])[-1]}")]
        return [Finding(**finding) for finding in json.loads(path.read_text())["findings"]]


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
    words = ["--device", setup.device.type, *["--small"] * setup.is_small]
    findings: list[Finding] = []
    for name in chosen:
        results = known[name](setup) if arguments.here else run_step(name, words)
        print(*results, sep="\n", flush=True)
        findings += results
        if arguments.out:  # after each step: what is known stays known
            write_json(arguments.out, {"device": str(setup.device), "findings": [asdict(one) for one in findings]})
    return 0 if arguments.here else int(any(finding.fault for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
