"""Faults of a whole run: killed, signalled, leaking; it must resume exactly."""

import random
import signal
import time
from pathlib import Path

from benchmarks.faults.child import PHASES, SAVING
from benchmarks.faults.harness import (
    QUICK_RUN,
    Row,
    checkpoints_of,
    flags,
    folder,
    outcome,
    run_beside,
    run_here,
    whole_run,
)

STOP_SECONDS = 5.0
LEAK_MB = 600
LEAK_LIMIT_MB = 1300


def kill_and_resume(count: int, generations: int) -> Row:
    """Kill a run at a random moment, resume it, and compare with the run that was never interrupted."""
    rng, same, killed = random.Random(2), 0, 0
    with folder() as runs:
        settings = [*flags(runs), "--generations", str(generations)]
        for attempt in range(count):
            name = f"killed{attempt}"
            process = run_beside(*settings, "--run", name)
            reached = rng.randrange(1, generations)
            while process.is_alive() and max(checkpoints_of(runs, name), default=0) < reached:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.1))
            killed += process.is_alive()
            process.kill()
            process.join()
            run_here(*settings, "--resume", name)
            same += outcome(runs, name) == whole_run(generations).outcome
    measured = f"{same} bit-identical ({killed} were still running when killed)"
    return Row("kill -9 and resume at random generations", count, "bit-identical", measured, same == count)


def sigterm(generations: int, phases: tuple[str, ...] = (*PHASES, SAVING), settings: str = QUICK_RUN) -> Row:
    """Send SIGTERM in each phase of generation 2, time the end of the process, then resume and compare."""
    slowest, right = 0.0, 0
    with folder() as runs:
        words = [*flags(runs, settings), "--generations", str(generations)]
        for phase in phases:
            code, seconds = _signalled(runs, words, phase)
            slowest = max(slowest, seconds)
            run_here(*words, "--resume", phase)
            right += code == 128 + signal.SIGTERM and outcome(runs, phase) == whole_run(generations, settings).outcome
    profile = "quick profile" if settings == QUICK_RUN else "small run"
    measured = f"slowest {slowest:.1f} s, {right} exit 143 and resume bit-identical ({profile})"
    test, must_be = f"SIGTERM during {', '.join(phases)}", f"stops within {STOP_SECONDS:.0f} s, resumes exactly"
    return Row(test, len(phases), must_be, measured, slowest <= STOP_SECONDS and right == len(phases))


def _signalled(runs: Path, words: list[str], phase: str) -> tuple[int, float]:
    """Return the exit code, and the seconds from the signal to the end of the process."""
    marker = runs / f"{phase}.marker"
    fault = {"kind": "pause", "phase": phase, "generation": 2, "marker": str(marker)}
    process = run_beside(*words, "--run", phase, fault=fault)
    while process.is_alive() and not marker.exists():
        time.sleep(0.01)
    started = time.perf_counter()
    process.terminate()
    marker.unlink(missing_ok=True)
    process.join()
    return process.exitcode or 0, time.perf_counter() - started


def leak(generations: int) -> Row:
    """Leak memory under a limit that the first generations stay below, whatever the libraries need."""
    with folder() as runs:
        words = [*flags(runs), "--generations", str(generations)]
        limit = ["--memory-limit-mb", str(LEAK_LIMIT_MB)]
        fault, output = {"kind": "leak", "megabytes": LEAK_MB}, runs / "shown.txt"
        process = run_beside(*words, *limit, "--run", "leak", fault=fault, shown=output)
        process.join()
        shown = output.read_text()
        log = (runs / "leak" / "run.log").read_text()
        saved = max(checkpoints_of(runs, "leak"), default=0)
        # The limit was for the leaking process: this one may need more.
        run_here(*words, "--resume", "leak", "--memory-limit-mb", "0")
        is_same = outcome(runs, "leak") == whole_run(generations).outcome
    names_it = "exceeds the limit" in shown and f"{LEAK_MB}.00  Tensor " in log
    is_ok = process.exitcode == 3 and 1 <= saved < generations and names_it and is_same
    exact = "bit-identically" if is_same else "OTHERWISE"
    measured = f"exit {process.exitcode} with generation {saved} saved, object named: {names_it}, resumes {exact}"
    return Row("injected leak under a low memory limit", 1, "stops with a checkpoint, exit 3; resumes", measured, is_ok)
