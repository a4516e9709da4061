"""Memory checks every so many episodes, environment steps and training steps, and what they found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from training.fuel_breaks.config import BoundsConfig
from utils.memory.guard import MB, release_free_memory
from utils.memory.profiler import gpu_memory


class MemoryWatch:
    """Counts work and calls the safe point when a check is due; checks of episodes also clean up.

    The safe point raises where memory reaches its limit or a signal asked the run to stop.
    """

    def __init__(self, bounds: BoundsConfig, safe_point: Callable[[], None]) -> None:
        self.safe_point = safe_point
        self.checks = {"episodes": 0, "environment_steps": 0, "training_steps": 0}
        self.freed_mb = 0.0
        """By all clean-ups so far."""
        self._every = {
            "episodes": bounds.check_every_episodes,
            "environment_steps": bounds.check_every_environment_steps,
            "training_steps": bounds.check_every_training_steps,
        }
        self._since = dict.fromkeys(self._every, 0)
        self._process = psutil.Process()

    def episodes(self, count: int) -> None:
        """So many episodes have ended; where a check is due, free memory goes back to the system too."""
        if self._is_due("episodes", count):
            before = self._process.memory_info().rss
            release_free_memory()
            self.freed_mb += max(0, before - self._process.memory_info().rss) / MB

    def environment_steps(self, count: int) -> None:
        """So many steps have been taken, counted over lanes."""
        self._is_due("environment_steps", count)

    def training_steps(self, count: int) -> None:
        """So many gradient steps have been taken."""
        self._is_due("training_steps", count)

    def record(self) -> dict[str, Any]:
        """Resident and GPU memory now, checks made, and what cleaning up gave back."""
        allocated, reserved = gpu_memory()
        return {
            "rss_mb": self._process.memory_info().rss / MB,
            "gpu_allocated_mb": allocated / MB,
            "gpu_reserved_mb": reserved / MB,
            "checks": dict(self.checks),
            "freed_mb": self.freed_mb,
        }

    def _is_due(self, work: str, count: int) -> bool:
        self._since[work] += count
        if self._since[work] < self._every[work]:
            return False
        self._since[work] %= self._every[work]
        self.checks[work] += 1
        self.safe_point()
        return True
