"""A golden trace of the whole program: `python -m benchmarks.golden record DIR`, later `... compare DIR`.

Recorded are the numbers that a few small runs of `main.py` leave behind, one thread each: metrics of every generation,
the last checkpoint's tensors by SHA-256, evaluations on both splits, signals, a walk-forward test and the fuel breaks.
A refactoring leaves all of them equal, bit for bit, on the machine that recorded them. Times and memory are left out. A
field that was renamed on purpose is given as `--renamed OLD=NEW` (parts of dotted names).
"""

import argparse
import hashlib
import json
import logging
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import safe_open

logger = logging.getLogger("golden")
ROOT = Path(__file__).resolve().parents[1]
TRACE = "trace.json"
UNSTEADY = frozenset({"seconds", "memory", "minutes", "step_times", "collection_times"})
"""Keys whose values are times or memory, which differ from run to run."""
_SHOWN = 20
_TINY = "--population-size 4 --split.context-window-days 32 --evaluation.random-pickers 20"
_PICKERS = "--random-pickers 50"
_NETWORKS = "--learning.training-starts 4000 --learning.gradient-steps 8 --learning.batch-size 64"
"""Networks learn from the first generation on."""
_REQUIRED = f"{_NETWORKS} --learning.replay-capacity 80000 --evaluation.evidence require"


@dataclass(frozen=True)
class Case:
    """Commands that run one after the other, and the files that they leave in the runs folder."""

    name: str
    commands: tuple[str, ...]
    """Arguments of main.py; {runs} and {data} stand for the folder of runs and the data file."""
    files: tuple[str, ...]
    """Patterns below the folder of runs; of checkpoints the newest is taken."""


def _judged(run: str) -> tuple[str, ...]:
    """Commands that judge a finished run and ask it for orders."""
    return (
        f"evaluate --runs-dir {{runs}} --run {run} --split validation {_PICKERS}",
        f"evaluate --runs-dir {{runs}} --run {run} --split holdout --spend-look {_PICKERS}",
        f"signals --runs-dir {{runs}} --run {run} --json {{runs}}/orders.json",
    )


_JUDGED_FILES = ("*/evaluation-*/results.json", "*/evaluation-*/*.csv", "orders.json")
_FUEL = "--runs-dir {runs} --run fire"
CASES = (
    Case(
        "full",
        (
            f"--data {{data}} --profile full --generations 3 {_TINY} {_REQUIRED} --runs-dir {{runs}} --run full",
            *_judged("full"),
        ),
        ("full/metrics.jsonl", "full/checkpoints/*", *_JUDGED_FILES),
    ),
    Case(
        "walk-forward",
        (
            f"walk-forward --data {{data}} --profile full --folds 2 --test-windows 1 --generations 2 {_TINY} "
            f"{_REQUIRED} --validation-days 160 --runs-dir {{runs}} --run walk",
        ),
        ("walk/results.json", "walk/*.csv", "walk/fold-*/metrics.jsonl", "walk/fold-2/checkpoints/*"),
    ),
    Case(
        "networks",
        (f"--profile quick --generations 4 {_NETWORKS} --runs-dir {{runs}} --run agents", *_judged("agents")),
        ("agents/metrics.jsonl", "agents/checkpoints/*", *_JUDGED_FILES),
    ),
    Case(
        "fuel-breaks",
        (
            f"fuel-breaks train {_FUEL} --minutes 0 --episodes 192 --generation-episodes 96 --validation-tiles 4",
            f"fuel-breaks evaluate {_FUEL} --tiles 3 --scenario-seeds 1",
        ),
        ("fire/metrics.jsonl", "fire/checkpoints/*", "fire/evaluation*.json"),
    ),
)
_NAMES = [case.name for case in CASES]


def trace(case: Case, device: str = "cpu") -> dict[str, Any]:
    """Run a case; return what it left, as JSON values by file. Raises SystemExit where a command fails."""
    with tempfile.TemporaryDirectory() as folder:
        runs, data = Path(folder, "runs"), Path(folder, "prices.parquet")
        _write_prices(data)
        for command in case.commands:
            _run([word.format(runs=runs, data=data) for word in command.split()], device)
        left = {str(path.relative_to(runs)): _read(path) for path in _files(runs, case.files)}
    if not left:
        raise SystemExit(f"golden: expected files of {case.name} in {runs}, got none")
    return dict(json.loads(json.dumps(left)))


def differences(
    expected: Any, actual: Any, renamed: Sequence[tuple[str, str]] = (), tolerance: float = 0.0
) -> list[str]:
    """List every field that is missing, added or changed, a line each; `renamed` are parts of names, old and new.

    Args:
        tolerance: by which numbers may differ, absolutely and as a share.
    """
    before, after = dict(_fields(expected)), dict(_fields(actual))
    for old, new in renamed:
        before = {name.replace(old, new): value for name, value in before.items()}
    lines = [f"{name}: missing" for name in before if name not in after]
    lines += [f"{name}: added" for name in after if name not in before]
    changed = [name for name in before if name in after and not _is_equal(before[name], after[name], tolerance)]
    return lines + [f"{name}: expected {before[name]!r}, got {after[name]!r}" for name in changed]


def _write_prices(path: Path) -> None:
    """Write 1,200 sessions of 12 tickers, one of which starts late and one of which skips days; always the same."""
    generator = np.random.default_rng(2026)
    days = pd.bdate_range("2010-01-04", periods=1200)
    frames = []
    for number in range(12):
        close = 50 * np.exp(np.cumsum(generator.normal(0.0003, 0.015, len(days))))
        open_ = close * np.exp(generator.normal(0, 0.004, len(days)))
        spread = np.exp(np.abs(generator.normal(0, 0.006, (2, len(days)))))
        frame = pd.DataFrame({"date": days, "ticker": f"T{number:02d}", "open": open_})
        frame["high"] = np.maximum(open_, close) * spread[0]
        frame["low"] = np.minimum(open_, close) / spread[1]
        frame["close"] = close
        frames.append(frame)
    frames[3] = frames[3].iloc[200:]
    frames[5] = frames[5].drop(frames[5].index[generator.integers(0, 1200, 40)])
    pd.concat(frames).to_parquet(path, index=False)


def _run(words: Sequence[str], device: str) -> None:
    command = [sys.executable, "main.py", *words, "--threads", "1"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "CLOUD_PROVIDER": ""}
    if device == "cpu":
        one_thread["CUDA_VISIBLE_DEVICES"] = ""
    else:
        command += ["--device", device]
    done = subprocess.run(command, cwd=ROOT, env=one_thread, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"golden: expected {' '.join(command)} to end with 0, got {done.returncode}:\n{done.stderr}")


def _files(runs: Path, patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        paths = sorted(runs.glob(pattern))
        yield from paths[-1:] if "checkpoints" in pattern else paths


def _read(path: Path) -> Any:
    if path.is_dir():
        return {part.name: _read(part) for part in sorted(path.iterdir()) if part.name != "manifest.json"}
    if path.suffix == ".safetensors":
        with safe_open(path, framework="np") as file:
            names = file.keys()
            return {name: hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest() for name in names}
    if path.suffix == ".csv":
        return path.read_text(encoding="utf-8").splitlines()
    lines = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in lines.splitlines()] if path.suffix == ".jsonl" else json.loads(lines)


def _fields(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested JSON values by its dotted name, without times and memory."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if key not in UNSTEADY:
                yield from _fields(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def _is_equal(one: Any, other: Any, tolerance: float) -> bool:
    if tolerance and isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)


def main() -> int:
    """Record a trace, or compare with one; returns 1 where anything differs."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path, help="where the trace lies")
    parser.add_argument("--cases", nargs="+", choices=_NAMES, default=_NAMES, help="default: all")
    parser.add_argument("--workers", type=int, default=2, help="cases that run side by side")
    parser.add_argument("--renamed", nargs="*", default=[], metavar="OLD=NEW", help="fields renamed on purpose")
    parser.add_argument("--may-add", action="store_true", help="fields that were not recorded count as equal")
    arguments = parser.parse_args()
    path = arguments.folder / TRACE
    cases = [case for case in CASES if case.name in arguments.cases]
    with ThreadPoolExecutor(arguments.workers) as pool:
        actual = {case.name: left for case, left in zip(cases, pool.map(trace, cases), strict=True)}
    if arguments.action == "record":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(actual, indent=1), encoding="utf-8")
        logger.info("recorded %d numbers and digests in %s", sum(1 for _ in _fields(actual)), path)
        return 0
    known = json.loads(path.read_text(encoding="utf-8"))
    pairs = [(old, new) for old, _, new in (pair.partition("=") for pair in arguments.renamed)]
    lines = differences({name: known[name] for name in actual}, actual, pairs)
    if arguments.may_add:
        lines = [line for line in lines if not line.endswith(": added")]
    for line in lines[:_SHOWN]:
        logger.info("%s", line)
    logger.info("%d fields compared, %d differ", sum(1 for _ in _fields(actual)), len(lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
