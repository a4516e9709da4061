"""The supervisor of a box: runs the program, and resumes its newest unfinished run after a crash or a restart.

`python -m box.supervise` resumes; with arguments of `main.py`, it begins a run with them.
"""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from utils.cloud.store import open_cloud
from utils.config.kinds import RUNS
from utils.errors import ProgramError
from utils.runs.find import CONFIG, SUMMARY, RunFiles, Standing, files_of_runs, standings
from utils.runs.run_lock import wait_for_lost_owner
from utils.runs.run_log import REPORT

logger = logging.getLogger("box")
PROGRAM = Path(__file__).parents[1] / "main.py"
PID_FILE = Path(f"{os.environ.get('BOX_ROOT', '')}/run/erl-trader.pid")
MISTAKE, LOOKS_AHEAD = 2, 4
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
MAX_FAILURES = 5
"""Consecutive failures, without a generation between them, after which it gives up."""
FIRST_WAIT, LONGEST_WAIT = 10.0, 300.0
"""Seconds before the first retry, doubled for each one after it."""


class RunKind(NamedTuple):
    """A kind of run, by where it lies and the files of its folder."""

    folder: str
    begin: str
    end: str
    command: list[str]


KINDS = (
    RunKind("", CONFIG, SUMMARY, []),
    RunKind("", "walk_forward.json", REPORT, ["walk-forward"]),
    RunKind("fuel-breaks/", CONFIG, SUMMARY, ["fuel-breaks", "train"]),
)


class LastRun(NamedTuple):
    """The run that progressed last."""

    resume: list[str]
    """Arguments of `main.py` that resume it."""
    has_ended: bool


def last_to_progress(files: Mapping[str, float]) -> LastRun | None:
    """Return the run that progressed last, by the times of files below the folder of runs or in a bucket.

    One with settings alone, whose data may never have been accepted, does not hide an unfinished one.
    """
    known = list[tuple[Standing, LastRun]]()
    for kind in KINDS:
        below = {name.removeprefix(kind.folder): time for name, time in files.items() if name.startswith(kind.folder)}
        for run in standings(below, RunFiles(begin=kind.begin, end=kind.end)):
            known.append((run, LastRun([*kind.command, f"--resume={run.name}"], not run.is_unfinished)))
    accepted = [(standing, run) for standing, run in known if standing.is_accepted]
    newest = max(accepted, key=_progress, default=None)
    if newest is None or newest[1].has_ended:
        newest = max(known, key=_progress, default=None)
    return None if newest is None else newest[1]


def _progress(known: tuple[Standing, LastRun]) -> float:
    standing, _ = known
    return standing.progressed


def to_resume(runs: Path) -> list[str] | None:
    """Return the arguments that resume the newest run, here or else in the cloud; None if it has ended.

    Raises ProgramError for a cloud that cannot be used.
    """
    latest = last_to_progress(files_of_runs(runs))
    if latest is None and (store := open_cloud()) is not None:
        latest = last_to_progress(store.list(""))
    return None if latest is None or latest.has_ended else latest.resume


def resumed_names(words: Sequence[str]) -> list[str]:
    """Return what `--resume NAME` or `--resume=NAME` names among the arguments."""
    names = [word.removeprefix("--resume=") for word in words if word.startswith("--resume=")]
    return names + [name for flag, name in pairwise(words) if flag == "--resume" and not name.startswith("-")]


class Supervisor:
    """The program's process, started again where that helps, and the signal that stops both."""

    def __init__(self, runs: Path, program: Sequence[str], first_wait: float = FIRST_WAIT) -> None:
        self._runs, self._program, self._first_wait = runs, program, first_wait
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def stop(self, number: int, _: object) -> None:
        """Hand a signal on to the program; as a signal handler."""
        self._stopped.set()
        if self._child is not None:
            self._child.send_signal(number)

    def supervise(self, words: list[str]) -> int:
        """Run the program until it ends for good; return its exit code."""
        failures, earlier = 0, last_to_progress(files_of_runs(self._runs))
        while True:
            before = self._generations()
            code = self._run_program(words)
            logger.info("the program ended with exit code %d", code)
            if code in (0, MISTAKE, LOOKS_AHEAD, *STOPPED) or self._stopped.is_set():
                return code
            # At the memory limit, too, a new process may get further than the last one.
            failures = 1 if self._generations() != before else failures + 1
            if failures == MAX_FAILURES:
                logger.error("given up after %d failures without a generation between them", failures)
                return code
            seconds = min(self._first_wait * 2 ** (failures - 1), LONGEST_WAIT)
            logger.info("it is resumed in %.0f s", seconds)
            if self._stopped.wait(seconds):
                return code
            begun = last_to_progress(files_of_runs(self._runs))
            is_resumed = any(word.startswith("--resume") for word in words)
            if not is_resumed and begun is not None and begun != earlier:
                words = begun.resume

    def _run_program(self, words: list[str]) -> int:
        for name in resumed_names(words):
            # A lost machine's lock outlives it for a while; one that is renewed shows that the run goes on elsewhere.
            wait_for_lost_owner(self._runs / ("fuel-breaks" if "fuel-breaks" in words else "") / name)
        logger.info("starting main.py %s", " ".join(words))
        self._child = subprocess.Popen([*self._program, *words])
        if self._stopped.is_set():
            self._child.terminate()
        return self._child.wait()

    def _generations(self) -> set[Path]:
        """Return the saved generations; each new one changes them."""
        return {path for depth in ("*/", "*/*/") for path in self._runs.glob(f"{depth}checkpoints/generation-*")}


def main(arguments: list[str]) -> int:
    """Begin a run with these arguments, or resume one; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s box: %(message)s")
    with PID_FILE.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            logger.error("process %s trains here already", file.read())
            return MISTAKE
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        supervisor = Supervisor(RUNS, [sys.executable, str(PROGRAM)])
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, supervisor.stop)
        try:
            words = arguments or to_resume(RUNS)
        except ProgramError as error:
            logger.error("%s", error)
            return error.exit_code
        if words is None:
            logger.info("no unfinished run in %s: start one with `train`", RUNS)
            return 0
        return supervisor.supervise(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
