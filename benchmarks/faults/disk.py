"""Faults of a checkpoint: killed while saving, rotten files, a full disk, the order of system calls."""

import logging
import os
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.faults.harness import PROCESSES, Row, checkpoints_of, flags, folder, run_here, whole_run
from benchmarks.harness import log_level
from utils.runs.checkpoint import encode_state, list_checkpoints, load_latest, save_checkpoint
from utils.runs.durable import remove_leftovers

PAGE = 4096
ROT = ("bit flips", "truncations", "zeroed pages")


def state_of(generation: int) -> dict[str, dict[str, Any]]:
    """Make a state of about 2 MB that holds its generation."""
    generator = torch.Generator().manual_seed(generation)
    return {"part": {"generation": generation, "tensor": torch.randn(500_000, generator=generator)}}


def save(root: Path, generation: int) -> Path:
    """Write the checkpoint of a generation."""
    return save_checkpoint(root, generation, encode_state(state_of(generation)), run_id="faults", config_hash="none")


def is_whole(root: Path, generation: int) -> bool:
    """Return whether the newest usable checkpoint is that generation's, with its content."""
    loaded = load_latest(root)
    if loaded is None or loaded.generation != generation:
        return False
    part, expected = loaded.state["part"], state_of(generation)["part"]
    return part["generation"] == generation and torch.equal(part["tensor"], expected["tensor"])


def save_for_ever(root: Path, first: int, progress: Any) -> None:
    """Save generation after generation, reporting each that is complete."""
    torch.set_num_threads(1)
    for generation in range(first, first + 10_000):
        save(root, generation)
        progress.send(generation)


def kill_while_saving(count: int) -> Row:
    """Kill at a random moment of saving, then load."""
    rng, lost, orphans, last = random.Random(1), 0, 0, 0
    with folder() as root:
        for _ in range(count):
            reported = _killed_after(root, last + 1, rng.uniform(0, 0.05))
            remove_leftovers(root)
            last = max(list_checkpoints(root), default=0)
            lost += not (last >= reported and is_whole(root, last))
            orphans += sum(path.name.startswith(".") for path in root.iterdir())
            for generation, path in list_checkpoints(root).items():
                if generation < last:
                    shutil.rmtree(path)
    measured = f"{count - lost} load, {lost} lost, {orphans} orphans"
    return Row("kill -9 while saving", count, "all load, none lost, no orphan", measured, lost == orphans == 0)


def _killed_after(root: Path, first: int, seconds: float) -> int:
    """Kill a process that saves, some time after its first report; return the last generation that it reported."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=save_for_ever, args=(root, first, sender))
    process.start()
    sender.close()
    last = int(receiver.recv())
    time.sleep(seconds)
    process.kill()
    process.join()
    while True:
        try:
            last = int(receiver.recv())
        except EOFError:
            return last


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
    # Else a warning for each of hundreds of rotten files.
    with folder() as root, log_level("utils.runs.checkpoint", logging.ERROR):
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
        is_good_again = is_whole(root, 2)
    measured, is_ok = f"{detected} detected and fell back", detected == count and is_good_again
    return Row(f"{kind} in any file", count, "all detected, all fall back", measured, is_ok)


def order_of_calls() -> Row:
    """Record the system calls of one save."""
    calls: list[str] = []

    def seen(descriptor: int) -> Any:
        calls.append("fsync directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "fsync file")
        return mock.DEFAULT  # the call goes on

    def renamed(*_: Any) -> Any:
        calls.append("rename")
        return mock.DEFAULT

    with folder() as root:
        fsync, rename = (mock.Mock(wraps=real, side_effect=of) for real, of in ((os.fsync, seen), (os.rename, renamed)))
        with mock.patch.multiple(os, fsync=fsync, rename=rename):
            files = len(list(save(root, 1).iterdir()))
    at = calls.index("rename")
    before, after = calls[:at], calls[at + 1 :]
    is_ok = before.count("fsync file") == files and before[-1] == "fsync directory" and after == ["fsync directory"]
    measured = f"{before.count('fsync file')} of {files} files and the directory before, {len(after)} directory after"
    must_be = "files and directory synced before the rename, parent after"
    return Row("order of system calls of a save", 1, must_be, measured, is_ok)


def full_disk(generations: int) -> Row:
    """Run on a disk, a tmpfs, that holds two of its checkpoints and what else it writes, not three."""
    test, must_be = "disk full while saving (small tmpfs)", "stops: one clear error, exit 1; last one whole, no rest"
    with folder() as root:
        settings = flags(root)
        disk = root / "disk"
        disk.mkdir()
        size = whole_run(generations).checkpoint_bytes
        mount = ["mount", "-t", "tmpfs", "-o", f"size={int(2.5 * size + 100_000)}", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True).returncode:
            return Row(test, 1, must_be, "mounting a tmpfs is not allowed here", None)
        try:
            ended = run_here(*settings, "--runs-dir", str(disk), "--run", "full", "--generations", str(generations))
            kept = checkpoints_of(disk, "full")
            loaded = load_latest(disk / "full" / "checkpoints")
            rest = [path.name for path in (disk / "full" / "checkpoints").iterdir() if path.name.startswith(".")]
        finally:
            # Lazily, for this process still has the log of the run open.
            subprocess.run(["umount", "--lazy", str(disk)], check=True)
    is_whole_last = loaded is not None and loaded.generation == max(kept)
    is_ok = ended.code == 1 and ended.says("No space left") and is_whole_last and not rest
    measured = f"exit {ended.code}, generations {list(kept)} whole, {len(rest)} left over"
    return Row(test, 1, must_be, measured, is_ok)
