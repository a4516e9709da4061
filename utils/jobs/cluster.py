"""Jobs on a Ray cluster whose nodes all run this version of the program; the only module that imports Ray."""

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import platform
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from utils.errors import ConfigError, first_line
from utils.jobs.executor import Pool
from utils.jobs.job import perform_pickled

logger = logging.getLogger(__name__)
ROOT = Path(__file__).parents[2]
PACKAGES = ("data", "environment", "models", "training", "utils", "benchmarks")
_QUIET = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_PASSED_ON = ("CLOUD_PROVIDER", "CLOUD_BUCKET", "CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS")
"""Environment variables that workers get from this process."""


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
def connect(address: str) -> Iterator[None]:
    """Connect to the cluster at an address; `local` starts a new one here, `auto` does so if none is running.

    A new cluster ends with the block. A token is required because anyone with access can run any code.

    Raises:
        ConfigError: Ray is not installed, or the cluster is unreachable or rejects the token.
    """
    ray, handler = import_ray(), signal.getsignal(signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGTERM, handler)  # Ray takes it over, here and when it shuts down
        try:
            ray.init(
                None if address == "auto" else address,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            sentence = first_line(error).partition(". ")[0]  # the rest is advice on Ray's own commands
            raise ConfigError(
                f"expected a Ray cluster that lets this program in at --cluster {address}, got: {sentence}; see "
                "`ray status`, and give its token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            ) from None
        stack.callback(ray.shutdown)
        signal.signal(signal.SIGTERM, handler)
        # Ray prints a page of advice when a worker dies; the pool logs one line.
        ray._private.worker._worker_logs_enabled = False
        logger.info("cluster of %d nodes, %d CPUs, %d GPUs", len(ray.nodes()), _count("CPU"), _count("GPU"))
        yield


def _count(resource: str) -> int:
    return int(import_ray().cluster_resources().get(resource, 0))


@cache
def facts(files: tuple[Path, ...]) -> dict[str, str]:
    """Return what results depend on: versions, and checksums of this program and of files."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "numpy")}
    sources = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    data = {str(path): _checksum(path) if path.is_file() else "no file" for path in files}
    return {"Python": platform.python_version(), **versions, "source code": _checksum(*sources), **data}


def _checksum(*paths: Path) -> str:
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: whole)
    return whole.hexdigest()[:16]


@dataclass(frozen=True)
class NodeSetup:
    """What every node must have, and where jobs run on it."""

    files: tuple[Path, ...]
    facts: Mapping[str, str]
    folder: Path
    logs: Path | None
    environment: Mapping[str, str]


class ClusterTasks(Pool):
    """Runs jobs on the nodes of a cluster, with one CPU each and a whole number of GPUs where it has any."""

    def __init__(
        self, files: Sequence[Path], most: int | None, logs: Path | None, safe_point: Callable[[], None], gpus: int = 0
    ) -> None:
        """Take what all nodes must have, the most jobs at once, a folder for what they print, and the GPUs of each."""
        super().__init__(safe_point)
        self._ray, self._most, self._gpus = import_ray(), most, min(gpus, _count("GPU"))
        read = tuple(path.absolute() for path in files)
        self._setup = NodeSetup(
            files=read,
            facts=facts(read),
            folder=Path.cwd(),
            logs=None if logs is None else logs.absolute(),
            environment={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        )
        remote = self._ray.remote(num_cpus=1, num_gpus=self._gpus, scheduling_strategy="SPREAD", max_retries=0)
        self._task = remote(perform_on_node)

    def capacity(self) -> int:
        room = _count("GPU") // self._gpus if self._gpus else _count("CPU")
        return max(1, room if self._most is None else min(room, self._most))

    def submit(self, name: str, pickled: bytes) -> Future[bytes]:
        return self._task.remote(self._setup, name, pickled).future()  # type: ignore[no-any-return]

    def is_lost(self, error: Exception) -> bool:
        if isinstance(cause := getattr(error, "cause", None), ConfigError):
            raise cause from None
        errors = self._ray.exceptions
        return isinstance(error, errors.RayError) and not isinstance(error, errors.RayTaskError)

    def stop(self, *, force: bool = False) -> None:
        for call in self._running:
            self._ray.cancel(call.object_ref, force=force)  # type: ignore[attr-defined]

    def kill(self) -> None:
        self.stop(force=True)


def perform_on_node(setup: NodeSetup, name: str, pickled: bytes) -> bytes:
    """Run a pickled job in the folder of the program, see `perform_pickled`. ConfigError if the node differs."""
    os.environ.update(setup.environment)
    setup.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(setup.folder)
    for what, here in facts(setup.files).items():
        if here != setup.facts[what]:
            raise ConfigError(
                f"expected {what} {setup.facts[what]} on all nodes, got {here} on node {platform.node()}; install the "
                "same version and files there, share --runs-dir or keep runs in a bucket, or remove the node"
            )
    return perform_pickled(name, pickled, setup.logs)
