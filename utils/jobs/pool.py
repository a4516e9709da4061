"""Jobs in several processes: who gets which job, and what follows when a process is lost."""

import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from utils.errors import ClusterError
from utils.jobs.job import Finished, Job, Notify, perform_pickled

logger = logging.getLogger(__name__)
MOST_LOSSES = 3
"""How often a job is resubmitted after its process was lost."""
STOP_SECONDS = 8.0
"""Time for running jobs to reach a safe point after a stop signal; then their processes are killed."""
POLL_SECONDS = 0.2


class WorkerLost(Exception):
    """A process that is gone, and how."""


class Pool(ABC):
    """An executor of jobs in other processes; use it in a `with` block, which ends them.

    If a process or its machine is gone, its job is resubmitted, at most `MOST_LOSSES` times; other jobs go on.
    """

    is_apart = True

    def __init__(self, safe_point: Callable[[], None]) -> None:
        """Take a function that is called several times a second and may raise to stop."""
        self._safe_point = safe_point
        self._running: dict[Future[bytes], Job] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    @abstractmethod
    def capacity(self) -> int:
        """Return how many jobs may run at once."""

    @abstractmethod
    def submit(self, name: str, pickled: bytes) -> Future[bytes]:
        """Start a pickled job, see `perform_pickled`; return the answer to come."""

    @abstractmethod
    def answer(self, call: Future[bytes]) -> bytes:
        """Return an answer that has come. Raises WorkerLost."""

    @abstractmethod
    def ask_to_stop(self) -> None:
        """Ask all running jobs to stop at a safe point."""

    @abstractmethod
    def kill(self) -> None:
        """End all processes at once."""

    def run(self, jobs: Iterable[Job], notify: Notify = lambda *_: None) -> Iterator[Finished]:
        """Run jobs side by side; see `InProcess.run`."""
        source, lost, losses = iter(jobs), list[Job](), Counter[str]()
        try:
            while True:
                while len(self._running) < self.capacity() and (job := lost.pop() if lost else next(source, None)):
                    notify(job.name, "running")
                    self._running[self.submit(job.name, pickle.dumps(job))] = job
                if not self._running:
                    return
                self._safe_point()
                wait(self._running, POLL_SECONDS, FIRST_COMPLETED)
                for call in [call for call in self._running if call.done()]:
                    job = self._running.pop(call)
                    try:
                        end: Finished = pickle.loads(self.answer(call))
                    except WorkerLost as how:
                        losses[job.name] += 1
                        if losses[job.name] <= MOST_LOSSES:
                            text = "%s: worker was lost (%s), %d of at most %d"
                            logger.warning(text, job.name, how, losses[job.name], MOST_LOSSES)
                            notify(job.name, f"lost: {how}")
                            lost.append(job)
                            continue
                        times = f"{losses[job.name]} that were lost, the last one: {how}"
                        end = Finished(job.name, exception=ClusterError(f"expected a worker to finish, got {times}"))
                    yield end
        finally:
            if self._running:
                self._stop()

    def _stop(self) -> None:
        """Ask all jobs to stop at a safe point, and kill those that do not in time."""
        if self._running:
            self.ask_to_stop()
            wait(self._running, STOP_SECONDS)
        self.kill()
        self._running.clear()


class Processes(Pool):
    """An executor of jobs in processes of this machine, one thread each."""

    def __init__(self, count: int, logs: Path | None, safe_point: Callable[[], None]) -> None:
        """Take the number of processes, and the folder for what jobs print."""
        super().__init__(safe_point)
        self._count, self._logs = count, logs
        self._idle: list[tuple[ProcessPoolExecutor, BaseProcess]] = []
        self._busy: dict[Future[bytes], tuple[ProcessPoolExecutor, BaseProcess]] = {}

    def capacity(self) -> int:
        return self._count

    def submit(self, name: str, pickled: bytes) -> Future[bytes]:
        # An executor of its own for each process, because one that is lost breaks its executor.
        executor, process = self._idle.pop() if self._idle else _start()
        call = executor.submit(perform_pickled, name, pickled, self._logs)
        self._busy[call] = executor, process
        return call

    def answer(self, call: Future[bytes]) -> bytes:
        executor, process = self._busy.pop(call)
        try:
            answer = call.result()
        except BrokenExecutor:
            executor.shutdown()
            code = process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise WorkerLost(f"process {process.pid}, {how}") from None
        self._idle.append((executor, process))
        return answer

    def ask_to_stop(self) -> None:
        for _, process in self._busy.values():
            process.terminate()

    def kill(self) -> None:
        workers = [*self._idle, *self._busy.values()]
        self._idle, self._busy = [], {}
        for executor, process in workers:
            process.kill()
            executor.shutdown()


def _start() -> tuple[ProcessPoolExecutor, BaseProcess]:
    """Start a process of this machine."""
    executor = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin)
    # Ctrl-C must reach this process only, from the very start of the other: the pool stops its workers itself.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"  # libraries read it when they are loaded
    try:
        executor.submit(int)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        del os.environ["OMP_NUM_THREADS"]
        os.environ |= {} if threads is None else {"OMP_NUM_THREADS": threads}
    (process,) = executor._processes.values()
    return executor, process


def _begin() -> None:
    """Prepare a process for jobs: a terminal's signals are for the process that started it."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Stop at a safe point once the process that started this one is gone: nobody needs the result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os._exit(1)
