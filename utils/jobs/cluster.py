"""Jobs on a Ray cluster whose nodes all run this version of the program; the only module that imports Ray."""

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import platform
import secrets
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from utils.errors import ConfigError, first_line
from utils.jobs.job import perform_pickled
from utils.jobs.pool import Pool, WorkerLost

logger = logging.getLogger(__name__)
AUTO, LOCAL = "auto", "local"
"""Addresses: a cluster that runs on this machine or else a new one, and always a new one."""
ROOT = Path(__file__).parents[2]
PACKAGES = ("data", "environment", "models", "training", "utils", "benchmarks")
_QUIET = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_STORE_BYTES = 100 << 20
"""Object store of a local cluster: results are small."""
_PASSED_ON = ("CLOUD_PROVIDER", "CLOUD_BUCKET", "CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS")
"""Environment variables that workers get from this process."""

Facts = dict[str, str]


@dataclass(frozen=True)
class Cluster:
    """What jobs need on every node of a cluster, and what must be the same there as here."""

    files: tuple[Path, ...]
    folder: Path | None
    mark: Path | None
    """A file in the folder, visible only on nodes that share it."""
    facts: Facts

    def require_same(self) -> None:
        """Raise ConfigError if this node differs from the one of the program."""
        theirs, node = facts(self.files), platform.node()
        for name, value in self.facts.items():
            if theirs.get(name) != value:
                raise ConfigError(
                    f"expected {name} {value} on all nodes, as here, got {theirs.get(name)} on node {node}; install "
                    "the same version there, or remove the node from the cluster"
                )
        if self.mark is not None and not self.mark.exists():
            raise ConfigError(
                f"expected a folder that all nodes share, got {self.folder}, which node {node} does not see; choose a "
                "shared --runs-dir, or keep runs in a bucket (CLOUD_PROVIDER and CLOUD_BUCKET)"
            )


def import_ray() -> Any:
    """Return Ray. Raises ConfigError where it is not installed."""
    # Ray reads them when it is imported.
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ConfigError("expected Ray for a cluster, got none; pip install -r requirements-cluster.txt") from None
    return ray


@contextlib.contextmanager
def connect(
    address: str, cpus: int | None = None, files: Sequence[Path] = (), folder: Path | None = None
) -> Iterator[Cluster]:
    """Connect to the cluster at an address; `local` starts a new one here, `auto` does so if none is running.

    A new cluster has its own token and ends with the block. A token is required because anyone with access can run any
    code.

    Args:
        cpus: CPUs of a new cluster; default: all of this machine.
        files: read by jobs; must be equal on all nodes.
        folder: written by jobs; must be shared by all nodes.

    Raises:
        ConfigError: Ray is not installed, or the cluster is unreachable or rejects the token.
    """
    ray, read = import_ray(), tuple(path.absolute() for path in files)
    with contextlib.ExitStack() as stack:
        restore_sigterm = partial(_handle_sigterm, signal.getsignal(signal.SIGTERM))
        stack.callback(restore_sigterm)
        _begin(ray, address, cpus)
        stack.callback(ray.shutdown)
        restore_sigterm()
        # Ray prints a page of advice when a worker dies; the pool logs one line.
        ray._private.worker._worker_logs_enabled = False
        mark = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            mark = Path(stack.enter_context(tempfile.NamedTemporaryFile(prefix=".shared-", dir=folder.absolute())).name)
        counts = len(ray.nodes()), _count("CPU"), _count("GPU")
        logger.info("cluster of %d nodes, %d CPUs, %d GPUs", *counts)
        yield Cluster(read, folder, mark, facts(read))


def _count(resource: str) -> int:
    """Return the current number of CPUs or GPUs of all nodes."""
    return int(import_ray().cluster_resources().get(resource, 0))


def _handle_sigterm(handler: Any) -> None:
    """Set the handler of SIGTERM, which Ray takes over, in the main thread."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def _begin(ray: Any, address: str, cpus: int | None) -> None:
    """Connect, or raise ConfigError with one line."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address != LOCAL:
            try:
                ray.init(address, **quiet)
                return
            except ConnectionError:
                if address != AUTO:
                    raise
        if not any(os.environ.get(name) for name in _TOKENS) and not (Path.home() / ".ray" / "auth_token").is_file():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        ray.init(LOCAL, **own, **quiet)
        logger.info("started a cluster on this machine")
    except (ConnectionError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        sentence = first_line(error).partition(". ")[0]  # the rest is advice on Ray's own commands
        raise ConfigError(
            f"expected a Ray cluster that lets this program in at --cluster {address}, got: {sentence}; see "
            "`ray status`, and give its token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from None


@cache
def facts(files: tuple[Path, ...]) -> Facts:
    """Return what results depend on: versions, and checksums of this program and of files."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy")}
    sources = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    program = hashlib.sha256()
    for path in sources:
        program.update(f"{path.relative_to(ROOT)}\0{_checksum(path)}\n".encode())
    data = {str(path): _checksum(path)[:16] if path.is_file() else "no file" for path in files}
    return {"Python": platform.python_version(), **versions, "source code": program.hexdigest()[:16], **data}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ClusterTasks(Pool):
    """An executor of jobs on the nodes of a cluster, with one CPU each and a whole number of GPUs where it has any."""

    def __init__(
        self, cluster: Cluster, most: int | None, logs: Path | None, safe_point: Callable[[], None], gpus: int = 0
    ) -> None:
        """Take the largest number of jobs at once, the folder for what they print, and the GPUs of each."""
        super().__init__(safe_point)
        self._ray, self._most, self._gpus = import_ray(), most, min(gpus, _count("GPU"))
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._place = cluster, Path.cwd(), None if logs is None else logs.absolute(), environment
        remote = self._ray.remote(num_cpus=1, num_gpus=self._gpus, scheduling_strategy="SPREAD", max_retries=0)
        self._task = remote(perform_on_node)
        self._calls: dict[Future[bytes], Any] = {}

    def capacity(self) -> int:
        room = _count("GPU") // self._gpus if self._gpus else _count("CPU")
        return max(1, room if self._most is None else min(room, self._most))

    def submit(self, name: str, pickled: bytes) -> Future[bytes]:
        reference = self._task.remote(*self._place, name, pickled)
        call: Future[bytes] = reference.future()
        self._calls[call] = reference
        return call

    def answer(self, call: Future[bytes]) -> bytes:
        del self._calls[call]
        try:
            return call.result()
        except self._ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), ConfigError):
                raise cause from None
            if "failed to import" in str(error):
                reason = str(error).strip().splitlines()[-1]
                raise ConfigError(f"expected this program in {ROOT} on all nodes, got: {reason}; install it") from None
            raise WorkerLost(type(error).__name__) from None  # its text is a page of advice

    def ask_to_stop(self) -> None:
        for reference in self._calls.values():
            self._ray.cancel(reference)  # as by Ctrl-C

    def kill(self) -> None:
        for reference in self._calls.values():
            self._ray.cancel(reference, force=True)
        self._calls.clear()


def perform_on_node(
    cluster: Cluster, folder: Path, logs: Path | None, environment: Mapping[str, str], name: str, pickled: bytes
) -> bytes:
    """Run a pickled job in the folder of the program, see `perform_pickled`. ConfigError if the node differs."""
    os.environ.update(environment)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    cluster.require_same()
    return perform_pickled(name, pickled, logs)
