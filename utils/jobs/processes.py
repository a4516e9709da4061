"""Jobs side by side in processes of this machine, one thread each."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from utils.errors import StopRequested
from utils.jobs.job import STOP_SECONDS, Finished, Job, Losses, Tell, perform_apart, tell_nobody

_SPAWN = multiprocessing.get_context("spawn")
_LOOK_SECONDS = 0.2


class _Worker:
    """A process that does one job after the other."""

    def __init__(self, logs: Path | None) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process: BaseProcess = _SPAWN.Process(target=_work, args=(theirs, logs), daemon=True)
        self.job: Job | None = None
        # Ctrl-C is for this process alone, from the first moment of the other one on: it stops its workers itself.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        threads = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"  # libraries read it when they are loaded
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            del os.environ["OMP_NUM_THREADS"]
            os.environ |= {} if threads is None else {"OMP_NUM_THREADS": threads}
        theirs.close()

    def begin(self, job: Job) -> None:
        # Plain pickling: a tensor goes over as bytes, not as memory that ends with the process which made it.
        self.job = job
        with contextlib.suppress(BrokenPipeError):  # it died idle; the next look finds it lost
            self.connection.send_bytes(pickle.dumps((job.name, pickle.dumps(job))))

    def outcome(self) -> Finished | str:
        """Return what became of the job of a worker that has something to say, or why the process is lost."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self.connection.poll():
                finished: Finished = pickle.loads(self.connection.recv_bytes())
                return finished
        self.process.join()
        code = self.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"process {self.process.pid}, {how}"


class Processes:
    """An executor that does jobs in processes of this machine; use it in a `with` block, which ends them."""

    is_apart = True

    def __init__(self, count: int, logs: Path | None, safe_point: Callable[[], None]) -> None:
        """Take the number of processes, the folder of logs, and what raises StopRequested after a signal."""
        self._count, self._logs, self._safe_point = count, logs, safe_point
        self._workers: list[_Worker] = []

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, jobs: Iterable[Job], tell: Tell = tell_nobody) -> Iterator[Finished]:
        """Do jobs side by side; see `Executor`."""
        waiting, again, losses = iter(jobs), list[Job](), Losses()
        try:
            while self._begin(waiting, again, tell):
                self._safe_point()
                for worker in self._heard():
                    job, worker.job = worker.job, None
                    outcome = worker.outcome()
                    if isinstance(outcome, Finished):
                        yield outcome
                        continue
                    self._workers.remove(worker)
                    if job is None:  # it died idle
                        continue
                    if (end := losses.count(job, outcome, tell)) is not None:
                        yield end
                    else:
                        again.append(job)
        finally:
            if any(worker.job is not None for worker in self._workers):
                self._stop()

    def _begin(self, waiting: Iterator[Job], again: list[Job], tell: Tell) -> bool:
        """Give a job to each process that has none; tell whether any has one."""
        busy = [worker for worker in self._workers if worker.job is not None]
        idle = [worker for worker in self._workers if worker.job is None]
        while len(busy) < self._count:
            job = again.pop(0) if again else next(waiting, None)
            if job is None:
                break
            if not idle:
                idle.append(_Worker(self._logs))
                self._workers.append(idle[-1])
            busy.append(idle.pop())
            tell(job.name, "running")
            busy[-1].begin(job)
        return bool(busy)

    def _heard(self) -> list[_Worker]:
        """Return the workers that finished a job or are gone, after a short wait for the first."""
        ready = wait(
            [end for worker in self._workers for end in (worker.connection, worker.process.sentinel)], _LOOK_SECONDS
        )
        return [worker for worker in self._workers if worker.connection in ready or worker.process.sentinel in ready]

    def _stop(self) -> None:
        """Ask all processes to stop at a safe point, and end those that do not in time."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()
            worker.connection.close()


def _work(connection: Connection, logs: Path | None) -> None:
    """Do the jobs that come, until a signal stops one or the other end is gone."""
    # A session of its own: what a terminal sends goes to the process that started this one.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            name, pickled = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            finished = perform_apart(Job(name, partial(_load_and_do, pickled)), logs)
        except StopRequested as stop:
            raise SystemExit(stop.exit_code) from None
        connection.send_bytes(_pickled(finished))


def _load_and_do(pickled: bytes) -> Any:
    """Load a job and do it, so that an error of loading is the job's: what it needs may not be importable here."""
    return pickle.loads(pickled).work()


def _pickled(finished: Finished) -> bytes:
    try:
        return pickle.dumps(finished)
    except Exception as error:
        reason = f"expected a result that can be pickled, got: {error}"
        return pickle.dumps(Finished(finished.name, error=reason, exit_code=1, seconds=finished.seconds))


def _end_with_parent() -> None:
    """Stop at a safe point when the process that started this one is gone, for nobody wants the result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os._exit(1)
