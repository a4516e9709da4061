"""Jobs in processes of this machine, one thread each."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from utils.jobs.job import Finished, Job, perform_pickled
from utils.jobs.pool import POLL_SECONDS, STOP_SECONDS, Pool, Worker

_SPAWN = multiprocessing.get_context("spawn")


class _Process(Worker):
    """A worker process of this machine."""

    def __init__(self, logs: Path | None) -> None:
        self.connection, theirs = _SPAWN.Pipe()
        self.process: BaseProcess = _SPAWN.Process(target=_work, args=(theirs, logs), daemon=True)
        # Ctrl-C must reach this process only, from the very start of the other: the pool stops its workers itself.
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
        # In a thread: a pipe to a process that hangs is soon full.
        message = pickle.dumps((job.name, pickle.dumps(job)))
        threading.Thread(target=self._send, args=(message,), daemon=True).start()

    def _send(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # exited while idle; the next poll detects it
            self.connection.send_bytes(message)

    def outcome(self) -> Finished | str:
        with contextlib.suppress(EOFError, ConnectionResetError):
            if self.connection.poll():
                finished: Finished = pickle.loads(self.connection.recv_bytes())
                return finished
        self.process.join()
        code = self.process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"process {self.process.pid}, {how}"

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


class Processes(Pool[_Process]):
    """An executor whose workers are processes of this machine."""

    def __init__(self, count: int, logs: Path | None, safe_point: Callable[[], None]) -> None:
        """Take the number of processes, the folder of logs, and see `Pool`."""
        super().__init__(safe_point)
        self._count, self._logs = count, logs

    def _capacity(self) -> int:
        return self._count

    def _start(self) -> _Process:
        return _Process(self._logs)

    def _reporting(self) -> list[_Process]:
        ends = [end for worker in self._workers for end in (worker.connection, worker.process.sentinel)]
        ready = wait(ends, POLL_SECONDS)
        return [worker for worker in self._workers if worker.connection in ready or worker.process.sentinel in ready]

    def _stop(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.kill()


def _work(connection: Connection, logs: Path | None) -> None:
    """Run the jobs that arrive, until a signal stops one or the other process is gone."""
    # A session of its own, because a terminal's signals are for the process that started this one.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            name, pickled = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(perform_pickled(name, pickled, logs))


def _end_with_parent() -> None:
    """Stop at a safe point once the process that started this one is gone: nobody needs the result."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(STOP_SECONDS)
        os._exit(1)
