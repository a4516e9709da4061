"""Crashes, full disks and rotten files: `python -m benchmarks.faults [--share 0.1] [--json FILE]`.

Prints one row a test: what was done, what must come of it, what came of it. `--share` scales the counts down.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.main_job import machine
from training.checkpoint import CheckpointError, list_checkpoints, load_checkpoint, load_latest, save_checkpoint

ROOT = Path(__file__).resolve().parent.parent
PAGE = 4096
SMALL_RUN = """
device = "cpu"
threads = 1
census_every = 0
plot_every = 100
[split]
context_window_days = 16
[synthetic]
days = 300
stocks = 6
[env]
trading_days = 12
settlement_days = 4
max_holding_days = 4
[network]
encoder_channels = 4
hidden_units = 8
summary_queries = 1
[learning]
gradient_steps = 4
batch_size = 16
block_days = 8
[replay]
capacity = 2000
training_starts = 50
[evolution]
population_size = 4
distillation_steps = 1
[evaluation]
fitness_windows = 2
validation_windows = 2
random_pickers = 5
"""


@dataclass(frozen=True)
class Row:
    """One test of the table."""

    test: str
    must_be: str
    came: str
    holds: bool


def state_of(generation: int) -> dict[str, dict[str, Any]]:
    """A state of about 2 MB that tells its generation."""
    generator = torch.Generator().manual_seed(generation)
    return {"part": {"generation": generation, "tensor": torch.randn(500_000, generator=generator)}}


def save(root: Path, generation: int) -> Path:
    """Write the checkpoint of a generation."""
    return save_checkpoint(root, generation, state_of(generation), run_id="faults", config_hash="none")


def is_whole(root: Path, generation: int) -> bool:
    """Whether the newest usable checkpoint is that generation's, with its content."""
    found = load_latest(root)
    if found is None or found.generation != generation:
        return False
    part = found.state["part"]
    return bool(
        part["generation"] == generation and torch.equal(part["tensor"], state_of(generation)["part"]["tensor"])
    )


def save_for_ever(root: Path, first: int, progress: Any) -> None:
    """Save generation after generation, reporting each that is complete."""
    torch.set_num_threads(1)
    for generation in range(first, first + 10_000):
        save(root, generation)
        progress.send(generation)


def kill_while_saving(count: int) -> Row:
    """kill -9 at a random moment of saving, then load."""
    context, rng = multiprocessing.get_context("spawn"), random.Random(1)
    lost, orphans = 0, 0
    with folder() as root:
        last = 0
        for _ in range(count):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=save_for_ever, args=(root, last + 1, sender))
            process.start()
            last = receiver.recv()
            time.sleep(rng.uniform(0, 0.05))
            process.kill()
            process.join()
            while receiver.poll():
                try:
                    last = receiver.recv()
                except EOFError:
                    break
            newest = max(list_checkpoints(root), default=0)
            lost += not (newest >= last and is_whole(root, newest))
            last = newest
            orphans += sum(path.name.startswith(".") for path in root.iterdir())
            for generation, path in list_checkpoints(root).items():
                if generation < newest:
                    shutil.rmtree(path)
    came = f"{count - lost} of {count} load, {lost} lost, {orphans} orphans"
    return Row(f"kill -9 while saving x {count}", "all load, none lost, no orphan", came, lost == orphans == 0)


def damage(kind: str, data: bytearray, rng: random.Random) -> None:
    """Spoil the bytes of a file in place."""
    if kind == "bit flips":
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "truncations":
        del data[rng.randrange(len(data)) :]
    else:
        start = rng.randrange(0, len(data), PAGE)
        page = slice(start, min(start + PAGE, len(data)))
        blank = bytes(page.stop - page.start)
        # A page that is zero already is not damaged by zeroing it.
        data[page] = blank if data[page] != blank else b"\x01" * len(blank)


def rot(kind: str, count: int) -> Row:
    """Damage one file of the newest checkpoint; the one before it must be used."""
    rng, detected = random.Random(kind), 0
    with folder() as root:
        save(root, 1)
        newest = save(root, 2)
        files = sorted(newest.iterdir())
        for _ in range(count):
            victim = rng.choice(files)
            good = victim.read_bytes()
            spoilt = bytearray(good)
            damage(kind, spoilt, rng)
            victim.write_bytes(spoilt)
            detected += is_whole(root, 1)
            victim.write_bytes(good)
        assert is_whole(root, 2)
    came = f"{detected} of {count} detected and fell back"
    return Row(f"{kind} in any file x {count}", "all detected, all fall back", came, detected == count)


def order_of_calls() -> Row:
    """System calls of one save, recorded in the process."""
    calls: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        calls.append("fsync directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "fsync file")
        real_fsync(descriptor)

    def rename(source: Any, target: Any) -> None:
        calls.append("rename")
        real_rename(source, target)

    with folder() as root:
        os.fsync, os.rename = fsync, rename  # type: ignore[assignment]
        try:
            path = save(root, 1)
        finally:
            os.fsync, os.rename = real_fsync, real_rename
        files = len(list(path.iterdir()))
    at = calls.index("rename")
    before, after = calls[:at], calls[at + 1 :]
    holds = before.count("fsync file") == files and before[-1] == "fsync directory" and after == ["fsync directory"]
    came = f"{before.count('fsync file')} of {files} files and the directory before, {len(after)} directory after"
    return Row("order of system calls of a save", "every fsync before the rename, directory after", came, holds)


def full_disk() -> Row:
    """Save into a tmpfs of 5 MB that holds two checkpoints of 2 MB."""
    test, must = "disk full while saving (tmpfs of 5 MB)", "clear error, old ones intact, no rest"
    with folder() as root:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(root)], capture_output=True)
        if mounted.returncode:
            return Row(test, must, "not measured: mounting a tmpfs is not allowed here", True)
        try:
            errors = []
            for generation in range(1, 5):
                try:
                    save(root, generation)
                except CheckpointError as error:
                    errors.append(str(error))
            kept = list(list_checkpoints(root))
            rest = [path.name for path in root.iterdir() if path.name.startswith(".")]
            holds = bool(errors) and "free" in errors[0] and is_whole(root, max(kept)) and not rest
            came = f"{len(errors)} clear errors, generations {kept} intact, {len(rest)} left over"
        finally:
            subprocess.run(["umount", str(root)], check=True)
    return Row(test, must, came, holds)


class Bomb:
    """A pickle that leaves a mark when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.mark),)


def pickle_bomb() -> Row:
    """A pickle in place of a checkpoint's file."""
    with folder() as root:
        path = save(root, 1)
        torch.save({"x": Bomb(root / "mark")}, path / "part.safetensors")
        try:
            load_checkpoint(path)
            refused = False
        except CheckpointError:
            refused = True
        marked = (root / "mark").exists()
    came = f"{'refused' if refused else 'loaded'}, side effect {'seen' if marked else 'absent'}"
    return Row("a pickle bomb as checkpoint", "refused, side effect absent", came, refused and not marked)


def run_main(runs: Path, *flags: str) -> subprocess.Popen[bytes]:
    """Start the program on the tiny market."""
    settings = runs / "small.toml"
    settings.write_text(SMALL_RUN)
    command = [sys.executable, str(ROOT / "main.py"), "--config", str(settings), "--profile", "quick"]
    command += ["--runs-dir", str(runs), *flags]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def outcome(runs: Path, name: str, generations: int) -> tuple[bytes, list[dict[str, Any]]]:
    """Last checkpoint's tensors and the metrics, but for what may differ between equal runs."""
    last = runs / name / "checkpoints" / f"generation-{generations:06d}"
    tensors = b"".join(
        (last / f"{part}.safetensors").read_bytes() for part in ("population", "champion", "replay", "random")
    )
    lines = (runs / name / "metrics.jsonl").read_text().splitlines()
    return tensors, [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "memory")} for line in lines]


def kill_and_resume(count: int, generations: int = 6) -> Row:
    """kill -9 at a random moment of a run, resume, compare with the run that was never interrupted."""
    rng, same, killed = random.Random(2), 0, 0
    with folder() as runs:
        run_main(runs, "--run", "whole", "--generations", str(generations)).wait()
        whole = outcome(runs, "whole", generations)
        for attempt in range(count):
            name = f"killed{attempt}"
            process = run_main(runs, "--run", name, "--generations", str(generations))
            reached = rng.randrange(1, generations)
            while process.poll() is None and max(list_checkpoints(runs / name / "checkpoints"), default=0) < reached:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.1))
            killed += process.poll() is None
            process.kill()
            process.wait()
            run_main(runs, "--resume", name, "--generations", str(generations)).wait()
            same += outcome(runs, name, generations) == whole
    came = f"{same} of {count} bit-identical ({killed} were still running when killed)"
    return Row(f"kill -9 and resume at random generations x {count}", "bit-identical", came, same == count)


def by_tests(test: str, must_be: str, *selection: str) -> Row:
    """A row that the test suite decides."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *selection]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.strip().splitlines() or ["no output"]
    return Row(test, must_be, f"pytest: {lines[-1]}", done.returncode == 0)


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def rows(share: float) -> Iterator[Row]:
    """All tests, with their counts scaled."""

    def times(count: int) -> int:
        return max(1, round(count * share))

    yield kill_while_saving(times(100))
    yield order_of_calls()
    for kind in ("bit flips", "truncations", "zeroed pages"):
        yield rot(kind, times(200))
    yield full_disk()
    yield kill_and_resume(times(10))
    yield pickle_bomb()
    yield by_tests(
        "non-finite parameters or actions of an agent",
        "left out, no fitness, never champion",
        "tests/test_ddpg.py",
        "tests/test_evaluation.py",
        "tests/test_evolution.py",
    )
    yield by_tests(
        "SIGTERM and Ctrl-C in every phase", "stops, resumes exactly", "tests/test_stopping.py", "-k", "signal"
    )
    yield by_tests(
        "leak under a low memory limit",
        "stops with its state saved, resumes",
        "tests/test_stopping.py",
        "-k",
        "memory_limit",
    )
    yield by_tests("malformed files and settings", "one clear error, exit code 2", "tests/test_main.py", "-k", "bad")


def main() -> int:
    """Print the table; the exit code is 1 if a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(machine())
    results = []
    for row in rows(arguments.share):
        results.append(row)
        print(
            f"{'ok  ' if row.holds else 'FAIL'} {row.test:<52} must be: {row.must_be:<48} came: {row.came}", flush=True
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in results], indent=2) + "\n")
    return 0 if all(row.holds for row in results) else 1


if __name__ == "__main__":
    sys.exit(main())
