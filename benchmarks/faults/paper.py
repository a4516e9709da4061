"""Faults of a paper account: kill -9 at every write of a step, a full disk, a clock set back, two steps at once."""

import contextlib
import ctypes
import itertools
import logging
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.faults.harness import Row, flags, folder, run_here
from training.paper.folder import load_account, opened
from training.paper.journal import JOURNAL, Journal
from utils.errors import ProgramError

_SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/types.h>
#include <unistd.h>
static long left = -1, passed = 0;
void arm(long writes) { left = writes; passed = 0; }
long writes(void) { return passed; }
static void boundary(void) { passed++; if (left >= 0 && left-- == 0) kill(getpid(), SIGKILL); }
#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
ssize_t pwrite64(int f, const void *b, size_t n, off64_t o) { NEXT(pwrite64); boundary(); return next(f, b, n, o); }
ssize_t pwrite(int f, const void *b, size_t n, off_t o) { NEXT(pwrite); boundary(); return next(f, b, n, o); }
ssize_t write(int f, const void *b, size_t n) { NEXT(write); if (f > 2) boundary(); return next(f, b, n); }
int fsync(int f) { NEXT(fsync); boundary(); return next(f); }
int fdatasync(int f) { NEXT(fdatasync); boundary(); return next(f); }
int ftruncate64(int f, off64_t n) { NEXT(ftruncate64); boundary(); return next(f, n); }
int ftruncate(int f, off_t n) { NEXT(ftruncate); boundary(); return next(f, n); }
int rename(const char *a, const char *b) { NEXT(rename); boundary(); return next(a, b); }
int unlink(const char *a) { NEXT(unlink); boundary(); return next(a); }
"""
"""Counts what a process writes, and kills it before a write of choice."""
_ROOT = Path(__file__).parents[2]
_MUST_BE = "the journal of an undisturbed account"


def in_children(act: Callable[[], object], count: int = 1) -> list[int]:
    """Do something in forked processes side by side; return their wait statuses."""
    children = []
    for _ in range(count):
        if (child := os.fork()) == 0:
            code = 1
            logging.disable(logging.WARNING)
            try:
                act()
                code = 0
            except ProgramError:
                code = 2
            finally:
                os._exit(code)
        children.append(child)
    return [os.waitpid(child, 0)[1] for child in children]


@contextlib.contextmanager
def account() -> Iterator[Path]:
    """Make a folder of runs with an account in it that begins on the first training day."""
    with folder() as runs:
        assert run_here(*flags(runs), "--run", "one", "--generations", "1").code == 0
        path = runs / "account"
        assert run_here("paper", "open", path.name, "--run", "one", "--runs-dir", str(runs)).code == 0
        begin_early(path)
        yield path


def begin_early(path: Path) -> None:
    """Let an account without a session begin on the first training day."""
    with Journal(path / JOURNAL) as journal:
        opening, market = journal.opening, load_account(journal).market
    (path / JOURNAL).unlink()
    start = str(market.dates[market.splits.train.first].astype("datetime64[D]"))
    Journal.create(path / JOURNAL, opening | {"start": start})


class Steps:
    """An account whose market is in memory, so that a step takes milliseconds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Journal(path / JOURNAL) as journal:
            self.account = load_account(journal)
        self.days = range(self.account.market.splits.train.first, len(self.account.market.dates))

    def step(self, path: Path, day: int, now: datetime | None = None) -> None:
        """Step as the command does, without its page."""
        with opened(path) as journal:
            self.account.on(day, path=path, journal=journal).step(now)

    def copy(self) -> Path:
        """Copy the account, in place of the copy before."""
        copy = self.path.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        return shutil.copytree(self.path, copy)


def last(path: Path) -> str:
    """Return the hash of a journal's last row, which stands for all of them."""
    with Journal(path / JOURNAL) as journal:
        return journal.last.hash


def rows(kills: int, steps: int) -> Iterator[Row]:
    """Kill an account at every write in turn, and disturb some steps in each other way."""
    with account() as path:
        yield kill_at_writes(path, kills)
        yield from disturbed(path, steps)


def kill_at_writes(path: Path, count: int) -> Row:
    """Kill steps at every write in turn, half of their repetitions too, and compare with an undisturbed account."""
    source, shim = path.with_name("shim.c"), path.with_name("shim.so")
    source.write_text(_SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    with folder() as copies:
        copy = shutil.copytree(path, copies / path.name)
        words = [sys.executable, "-m", "benchmarks.faults.paper", str(copy), str(shim), str(count)]
        environment = {**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=_ROOT, env=environment, capture_output=True, text=True, check=True)
    killed, days, different = map(int, done.stdout.split()[-3:])
    measured = f"{killed} kills on {days} sessions: {different} journals differ"
    test = "paper: kill -9 before every write of a step"
    return Row(test, killed, _MUST_BE, measured, different == 0 and killed >= count)


def _kills(path: Path, library: str, count: int) -> tuple[int, int, int]:
    """Return how often a step was killed, on how many sessions, and how often the journal was not the expected one."""
    steps, shim, rng = Steps(path), ctypes.CDLL(library), random.Random(0)
    shim.arm.argtypes = [ctypes.c_long]
    killed = different = 0

    def step(path: Path, day: int, writes: int) -> bool:
        def act() -> None:
            shim.arm(writes)
            steps.step(path, day)

        return os.WIFSIGNALED(in_children(act)[0])

    session = 0
    for session, day in enumerate(steps.days, start=1):  # noqa: B007
        undisturbed = steps.copy().rename(steps.path.with_name("undisturbed"))
        steps.step(undisturbed, day)
        expected = last(undisturbed)
        for writes in itertools.count():
            if not step(copy := steps.copy(), day, writes):
                break  # it has fewer writes
            killed += 1
            if rng.random() < 0.5:
                killed += step(copy, day, rng.randrange(writes + 1))
            step(copy, day, -1)
            different += last(copy) != expected
        shutil.rmtree(steps.path)
        undisturbed.rename(steps.path)
        if killed >= count:
            break
    return killed, session, different


def disturbed(path: Path, count: int) -> Iterator[Row]:
    """Step on a disk that is full after some bytes, with a clock set back, or twice at once; then step undisturbed."""
    steps, rng = Steps(path), random.Random(1)
    for place, (kind, fault) in enumerate(_FAULTS.items()):
        days, different, met = steps.days[count * place :][:count], 0, 0
        for day in days:
            copy = steps.copy()
            met += fault(steps, copy, day, rng)
            steps.step(copy, day)
            steps.step(steps.path, day)
            different += last(copy) != last(steps.path)
        measured = f"{met} steps disturbed: {different} journals differ"
        yield Row(f"paper: {kind}", len(days), _MUST_BE, measured, different == 0 < met)


def _full(steps: Steps, path: Path, day: int, rng: random.Random) -> bool:
    def act() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(1, 40_000), resource.RLIM_INFINITY))
        steps.step(path, day)

    return in_children(act) != [0]


def _set_back(steps: Steps, path: Path, day: int, _: random.Random) -> bool:
    try:
        steps.step(path, day, datetime(1990, 1, 1, tzinfo=UTC))
    except ProgramError:
        return True
    return False


def _at_once(steps: Steps, path: Path, day: int, _: random.Random) -> bool:
    return 0 in in_children(lambda: steps.step(path, day), 2)


_FAULTS: dict[str, Callable[[Steps, Path, int, random.Random], Any]] = {
    "disk full": _full,
    "clock set back": _set_back,
    "two steps at once": _at_once,
}


if __name__ == "__main__":
    print(*_kills(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
