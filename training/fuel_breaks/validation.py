"""How well a policy does on tiles that it did not learn from, on fires that stay the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.burn_state import FireSimulator
from environment.fuel_breaks.config import FuelBreakConfig
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from training.fuel_breaks.baselines import Policy, reduction_percent

Float64Array = NDArray[np.float64]
_LANES = 16
_SCENARIO_SEED = 0


def spaced(tiles: Sequence[Tile], count: int) -> tuple[Tile, ...]:
    """At most `count` tiles, evenly spaced in the list."""
    chosen = np.unique(np.linspace(0, len(tiles) - 1, min(count, len(tiles))).round().astype(int))
    return tuple(tiles[place] for place in chosen)


class Validation:
    """Tiles with their fires, computed once and kept, since every generation is judged by the same ones."""

    def __init__(self, tiles: Sequence[Tile], config: FuelBreakConfig, safe_point: Callable[[], None]) -> None:
        own = replace(config, cached_episodes=len(tiles), cached_states=1)
        self.tiles = tuple(tiles)
        self._env = VectorFuelBreakEnvironment(tiles, own)
        self._judge = FireSimulator(tiles, own, "judging")
        self._safe_point = safe_point

    def reductions(self, policy: Policy) -> Float64Array:
        """(tiles,) reduction of the burned area in percent."""
        results = np.empty(len(self.tiles))
        for first in range(0, len(self.tiles), _LANES):
            lanes = range(first, min(first + _LANES, len(self.tiles)))
            self._env.reset(lanes, [_SCENARIO_SEED] * len(lanes))
            while not self._env.terminated.all():
                self._safe_point()
                self._env.step(policy(self._env))
            for tile, cleared in zip(lanes, self._env.cleared, strict=True):
                results[tile] = reduction_percent(self._judge.hazard(tile, _SCENARIO_SEED), cleared)
        return results
