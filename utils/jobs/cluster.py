"""A Ray cluster: connected to, with every node held to what this program is; the one place that imports Ray."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import platform
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.errors import ConfigError, first_line

logger = logging.getLogger(__name__)
AUTO, LOCAL = "auto", "local"
"""Addresses of a cluster that runs here or else a new one, and of a new one."""
ROOT = Path(__file__).parents[2]
PACKAGES = ("data", "environment", "models", "training", "utils", "benchmarks")
_QUIET = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_STORE_BYTES = 100 << 20
"""Memory of a local cluster for objects: results are small."""
_FACTS_SECONDS = 120.0

Facts = dict[str, str]


@dataclass(frozen=True)
class Cluster:
    """A connection to a cluster."""

    ray: Any
    """The library, imported."""
    nodes: int

    def cpus(self) -> int:
        """Return the number of processors of all nodes now, at least 1."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def gpus(self) -> int:
        """Return the number of cards of all nodes now."""
        return int(self.ray.cluster_resources().get("GPU", 0))


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
    """Connect to the cluster at an address, `local` to a new one on this machine, `auto` to one that runs or a new one.

    A new one has a token of its own and ends with the block. A token is required, for whoever is let in can run any
    code. Every node is asked once for its versions, its copy of this program and of `files`.

    Args:
        cpus: processors of a new one; default: all of this machine.
        files: read by jobs, equal on all nodes.
        folder: written to by jobs, and shared by all nodes.

    Raises:
        ConfigError: Ray is not installed, the cluster is not there or refuses the token, or a node differs.
    """
    ray = import_ray()
    handler = signal.getsignal(signal.SIGTERM)
    _begin(ray, address, cpus)
    try:
        # Ray takes over SIGTERM, in the main thread.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        # Where a worker dies Ray prints a page of advice; one line of ours says so.
        ray._private.worker._worker_logs_enabled = False
        yield _checked(ray, [path.absolute() for path in files], folder)
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _begin(ray: Any, address: str, cpus: int | None) -> None:
    """Connect; raise ConfigError in one line if that fails."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address != LOCAL:
            try:
                ray.init(address, **quiet)
                return
            except ConnectionError:
                if address != AUTO:
                    raise
        if not any(os.environ.get(name) for name in _TOKENS) and not _home_token().is_file():
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        own = {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        ray.init(LOCAL, **own, **quiet)
        logger.info("started a cluster on this machine")
    except (ConnectionError, OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ConfigError(
            f"expected a Ray cluster that lets this program in at --cluster {address}, got: {_sentence(error)}; see "
            "`ray status`, and give its token in RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        ) from None


def _sentence(error: Exception) -> str:
    """Return the first sentence of an error, whose rest is advice on Ray's own commands."""
    return first_line(error).partition(". ")[0]


def _home_token() -> Path:
    return Path.home() / ".ray" / "auth_token"


def _checked(ray: Any, files: Sequence[Path], folder: Path | None) -> Cluster:
    """Ask every node what it is. Raises ConfigError for the first that differs from this process."""
    own, nodes = facts(files), [node for node in ray.nodes() if node["Alive"]]
    with _mark(folder) as mark:
        asked = [_ask(ray, node, files, mark) for node in nodes]
        for node, answer in zip(nodes, asked, strict=True):
            theirs, is_shared = _answer(ray, node, answer)
            require_same(theirs, own, _name(node))
            if not is_shared:
                raise ConfigError(
                    f"expected a folder that all nodes share, got {folder}, which is another one on {_name(node)}; "
                    "choose a shared --runs-dir, or keep runs in a bucket (CLOUD_PROVIDER and CLOUD_BUCKET)"
                )
    cluster = Cluster(ray, len(nodes))
    logger.info("cluster of %d nodes, %d processors, %d cards", len(nodes), cluster.cpus(), cluster.gpus())
    return cluster


def require_same(theirs: Facts, own: Facts, node: str) -> None:
    """Raise ConfigError for the first fact that differs on a node."""
    for name, value in own.items():
        if theirs.get(name) != value:
            raise ConfigError(
                f"expected {name} {value} on all nodes, as here, got {theirs.get(name)} on {node}; install the same "
                "there, or take the node out of the cluster"
            )


@contextlib.contextmanager
def _mark(folder: Path | None) -> Iterator[Path | None]:
    """Give a file in the folder that only those can see who share it."""
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder.absolute() / f".shared-{secrets.token_hex(8)}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _ask(ray: Any, node: dict[str, Any], files: Sequence[Path], mark: Path | None) -> Any:
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=here)(_facts_of_node)
    return task.remote(files, mark)


def _answer(ray: Any, node: dict[str, Any], answer: Any) -> tuple[Facts, bool]:
    try:
        found: tuple[Facts, bool] = ray.get(answer, timeout=_FACTS_SECONDS)
        return found
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise ConfigError(
            f"expected this program in {ROOT} on all nodes, got on {_name(node)}: {reason[0]}; install it there"
        ) from None


def _name(node: dict[str, Any]) -> str:
    return f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def _facts_of_node(files: Sequence[Path], mark: Path | None) -> tuple[Facts, bool]:
    return facts(files), mark is None or mark.exists()


def facts(files: Sequence[Path]) -> Facts:
    """Return what results depend on here: versions, and checksums of this program and of files."""
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
