"""How much memory this process may use, and a check that says so before the kernel kills it."""

from __future__ import annotations

import ctypes
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

from utils.errors import ConfigError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST_KEPT = 2**30
_STATUS = Path("/proc/self/status")
MB = 2**20
SHARE_OF_ALLOWED = 0.9
# cgroup v1 writes "no limit" as a page-rounded 2^63; anything above an exbibyte is no limit.
UNLIMITED_BYTES = 2**60


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """Resident memory of the process against its limit, in MiB."""

    rss_mb: float
    limit_mb: float
    exceeded: bool

    def __str__(self) -> str:
        """One sentence for the log and for the message with which a run stops."""
        verdict = "exceeds" if self.exceeded else "is within"
        return f"resident memory of {self.rss_mb:,.0f} MB {verdict} the limit of {self.limit_mb:,.0f} MB"


class MemoryGuard:
    """Compares resident memory with a limit in MiB; the default is 90% of what machine and cgroup allow.

    Raises ConfigError when the limit is not positive.
    """

    def __init__(self, limit_mb: float | None = None) -> None:
        if limit_mb is not None and not limit_mb > 0:
            raise ConfigError(f"expected a memory limit > 0 MB, got {limit_mb!r}")
        self.limit_mb = SHARE_OF_ALLOWED * memory_limit_mb() if limit_mb is None else float(limit_mb)
        self._process = psutil.Process()

    def check(self) -> MemoryStatus:
        """Measure now."""
        rss_mb = self._process.memory_info().rss / MB
        return MemoryStatus(rss_mb, self.limit_mb, rss_mb > self.limit_mb)


def memory_limit_mb(cgroup_root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """MiB that this process may use: the machine's memory or the tightest cgroup limit (v1, v2), if smaller."""
    limits = [float(psutil.virtual_memory().total), *_cgroup_limits(cgroup_root, membership)]
    return min(limits) / MB


def peak_rss_mb() -> float:
    """Largest resident memory of this process so far, MiB."""
    # The kernel's accounts of a process begin with the peak of the one that started it; those of its memory do not.
    if _STATUS.exists():
        line = next((line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM")), None)
        if line is not None:
            return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (MB if sys.platform == "darwin" else 1024)  # macOS counts bytes, Linux KiB


def keep_freed_memory() -> None:
    """Let the C heap keep freed blocks of any size for the next request (glibc only; elsewhere nothing happens).

    By default it returns large blocks to the system at once and faults every page in again when the next tensor of that
    size is made. `release_free_memory` still gives back what is free.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tune is not None:
        for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            tune(parameter, _LARGEST_KEPT)


def release_free_memory() -> None:
    """Give memory that is free inside the C heap back to the system (glibc only; elsewhere nothing happens).

    Without it the heap keeps whatever the busiest moment needed, which looks like growth where there is none.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _cgroup_limits(root: Path, membership: Path) -> list[float]:
    """Every finite limit on the way from this process's cgroups up to the root, bytes."""
    found: list[float] = []
    for hierarchy, group, filename in _memory_groups(root, membership):
        # Inside a container the path may be the host's and not exist here: then only the root counts.
        for folder in (hierarchy / group, *(hierarchy / parent for parent in group.parents)):
            limit = _read_limit(folder / filename)
            if limit is not None:
                found.append(limit)
    return found


def _memory_groups(root: Path, membership: Path) -> list[tuple[Path, Path, str]]:
    """(hierarchy, group below it, name of the limit file) for v2 (`0::/path`) and v1 (`4:memory:/path`) lines."""
    groups = [(root, Path(), "memory.max"), (root / "memory", Path(), "memory.limit_in_bytes")]
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        fields = line.split(":", 2)
        if len(fields) != 3:
            continue
        group = Path(fields[2].lstrip("/"))
        if ".." in group.parts:
            continue  # a process outside its cgroup namespace: the path cannot be followed from here
        if not fields[1]:
            # The unified hierarchy is mounted below root/unified where v1 still owns the root.
            groups += [(root, group, "memory.max"), (root / "unified", group, "memory.max")]
        elif "memory" in fields[1].split(","):
            groups.append((root / "memory", group, "memory.limit_in_bytes"))
    return groups


def _read_limit(path: Path) -> float | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    if not text.isdigit() or not 0 < int(text) < UNLIMITED_BYTES:
        return None
    return float(text)
