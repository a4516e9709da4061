"""The memory that this process may use, and a check that stops it before the kernel does."""

import ctypes
import math
import re
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from utils.errors import ConfigError, MemoryLimitReached

MIB = 2**20
SHARE_OF_ALLOWED = 0.9
UNLIMITED_BYTES = 2**60  # cgroup v1 writes "no limit" as about 2^63
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)
_LARGEST_KEPT = 2**26
_STATUS = Path("/proc/self/status")


class MemoryGuard:
    """Compares resident memory with a limit in MiB; by default 90% of what machine and cgroup allow."""

    def __init__(self, limit_mb: float | None = None) -> None:
        self.limit_mb = SHARE_OF_ALLOWED * memory_limit_mb() if limit_mb is None else limit_mb
        self._process = psutil.Process()

    def check(self) -> None:
        """Raise MemoryLimitReached if resident memory is above the limit now."""
        rss_mb = self._process.memory_info().rss / MIB
        if rss_mb > self.limit_mb:
            raise MemoryLimitReached(
                f"resident memory of {rss_mb:,.0f} MiB exceeds the limit of {self.limit_mb:,.0f} MiB; stopped before "
                "the system kills the run"
            )


def memory_limit_mb(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> float:
    """Return the MiB that this process may use: that of the machine or a tighter cgroup's (of v1 the root's)."""
    # Inside a container the path may be the host's and not exist here: then only the root counts.
    groups = {Path()}
    for line in _read(membership).splitlines():
        group = Path(line.removeprefix("0::/"))
        # A path with ".." is outside the process's cgroup namespace and cannot be followed from here.
        if line.startswith("0::/") and ".." not in group.parts:
            groups |= {group, *group.parents}
    files = [root / "memory/memory.limit_in_bytes", *(root / group / "memory.max" for group in groups)]
    limits = [int(text) for text in map(_read, files) if text.isdigit() and 0 < int(text) < UNLIMITED_BYTES]
    return min([psutil.virtual_memory().total, *limits]) / MIB


def free_memory_mb() -> float:
    """Return the MiB that this process can still take: what the machine has free, or its limit less what it has."""
    left = memory_limit_mb() - psutil.Process().memory_info().rss / MIB
    return min(psutil.virtual_memory().available / MIB, left)


def require_memory(what: str, factors: Mapping[str, float]) -> None:
    """Raise ConfigError where what is asked for takes more memory than is free.

    Args:
        factors: of its bytes, by the flag or the unit of each; the last are the bytes of one.
    """
    needed_mb, free_mb = math.prod(factors.values()) / MIB, free_memory_mb()
    if needed_mb > free_mb:
        asked = [name for name in factors if name.startswith("--")] or [*factors][:-1]
        raise ConfigError(
            f"expected {what} to fit into {free_mb:,.0f} MiB of free memory, got "
            f"{' x '.join(f'{size:,.0f} {name}' for name, size in factors.items())} = {needed_mb:,.0f} MiB; reduce "
            f"{max(asked, key=lambda name: factors[name])}"
        )


def peak_rss_mb() -> float:
    """Return the largest resident memory of this process so far, MiB."""
    # On Linux getrusage begins with the peak of the process that started this one; VmHWM does not.
    if match := re.search(r"^VmHWM:\s+(\d+)", _read(_STATUS), re.MULTILINE):
        return int(match[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MIB  # macOS counts bytes


def keep_freed_memory() -> None:
    """Let the C heap keep freed blocks, slow to fault in again, until `release_free_memory` (glibc only).

    Blocks from `_LARGEST_KEPT` on are given back when they are freed: arrays of a large market would leave gigabytes.
    """
    _call_glibc("mallopt", _M_MMAP_THRESHOLD, _LARGEST_KEPT)
    _call_glibc("mallopt", _M_TRIM_THRESHOLD, 2**30)


def release_free_memory() -> None:
    """Return free memory of the C heap to the system, which would else look like growth (glibc only)."""
    _call_glibc("malloc_trim", 0)


def _call_glibc(name: str, *arguments: int) -> None:
    function: Any = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
