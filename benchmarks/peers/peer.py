"""A peer: another way to learn the same task from the same training path, within a budget of CPU seconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.learning.unseen import UnseenPath
from data.market import Market
from utils.config.trader import Config

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Learned:
    """What a peer learned."""

    play: Callable[[UnseenPath], Array]
    """Plays the path's windows; returns their (windows,) profits in percent of the initial capital."""
    environment_steps: int
    """Account steps that it learned from."""


@dataclass(frozen=True)
class Budget:
    """CPU seconds of this process that a peer may learn for; it stops at its first step of work after them."""

    seconds: float

    def started(self) -> Callable[[], bool]:
        """Start the clock; return a function that tells whether the budget is spent."""
        end = time.process_time() + self.seconds
        return lambda: time.process_time() >= end


Peer = Callable[[Config, Market, Budget], Learned]
"""Learns from the training days of a market with the seed of the settings; it may select on the validation days."""
