"""Garbage and the GPU's cache, given back between two phases of work."""

import gc
import logging
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch

from utils.memory.guard import MIB, release_free_memory

logger = logging.getLogger(__name__)


def clean_up(generation: int = 2) -> float:
    """Collect garbage up to a generation, and give CUDA's unused cache to the driver; return the MiB given back.

    After a full collection free memory is given to the system, too.
    """
    process = psutil.Process()
    resident = process.memory_info().rss
    gc.collect(generation)
    if generation == 2:
        release_free_memory()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return max(0, resident - process.memory_info().rss) / MIB


def gpu_memory() -> tuple[int, int]:
    """Return the bytes allocated and reserved on all CUDA devices; never starts CUDA itself."""
    if not torch.cuda.is_initialized():
        return 0, 0
    devices = range(torch.cuda.device_count())
    return sum(map(torch.cuda.memory_allocated, devices)), sum(map(torch.cuda.memory_reserved, devices))


class PeriodicChecks:
    """Calls a safe point and cleans up memory after a number of units of each kind of work."""

    def __init__(self, safe_point: Callable[[], None], every: Mapping[str, int]) -> None:
        """Take how often each kind of work is checked."""
        self.safe_point, self._every = safe_point, every
        self.counts, self._since = dict.fromkeys(every, 0), dict.fromkeys(every, 0)
        self.freed_mb = dict.fromkeys(every, 0.0)

    def add(self, work: str, units: int) -> None:
        """Count work; if a check is due, make it and clean up."""
        self._since[work] += units
        if self._since[work] >= self._every[work]:
            self._since[work] %= self._every[work]
            self.counts[work] += 1
            self.safe_point()
            freed = clean_up(1)  # a full collection takes as long as several steps, and their garbage is young
            self.freed_mb[work] += freed
            logger.debug("clean-up %d after %s gave back %.1f MiB", self.counts[work], work, freed)

    def record(self) -> dict[str, Any]:
        """Return the memory in use (MiB), and by work the checks made and what their clean-ups gave back."""
        allocated, reserved = gpu_memory()
        sizes = {"rss": psutil.Process().memory_info().rss, "gpu_allocated": allocated, "gpu_reserved": reserved}
        in_use = {f"{name}_mb": size / MIB for name, size in sizes.items()}
        return {**in_use, "checks": dict(self.counts), "freed_mb": dict(self.freed_mb)}
