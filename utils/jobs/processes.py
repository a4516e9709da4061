"""Jobs in processes of this machine, one thread each."""

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from utils.jobs.job import Finished, Job, perform_pickled
from utils.jobs.pool import STOP_SECONDS, Pool, Worker, WorkerLost

_SPAWN = multiprocessing.get_context("spawn")


def local_processes(count: int, logs: Path | None, safe_point: Callable[[], None]) -> Pool:
    """Return an executor of processes of this machine, whose jobs print into the folder of logs; see `Pool`."""
    return Pool(lambda: count, partial(_Process, logs), safe_point)


class _Process(Worker):
    """A worker process of this machine, and a thread that waits for its answers."""

    def __init__(self, logs: Path | None) -> None:
        self._connection, theirs = _SPAWN.Pipe()
        self._process: BaseProcess = _SPAWN.Process(target=_work, args=(theirs, logs), daemon=True)
        self._thread = ThreadPoolExecutor(1)
        # Ctrl-C must reach this process only, from the very start of the other: the pool stops its workers itself.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        threads = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"  # libraries read it when they are loaded
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            del os.environ["OMP_NUM_THREADS"]
            os.environ |= {} if threads is None else {"OMP_NUM_THREADS": threads}
        theirs.close()

    def begin(self, job: Job) -> Future[bytes]:
        return self._thread.submit(self._exchange, pickle.dumps((job.name, pickle.dumps(job))))

    def _exchange(self, message: bytes) -> bytes:
        try:
            self._connection.send_bytes(message)
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise WorkerLost(f"process {self._process.pid}, {how}") from None

    def outcome(self, call: Future[bytes]) -> Finished:
        finished: Finished = pickle.loads(call.result())
        return finished

    def stop(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._thread.shutdown()  # once it has met the end of the connection
        self._process.join()
        self._connection.close()


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
