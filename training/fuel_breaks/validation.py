"""Judging policies on tiles that they did not learn from, by fires that they neither saw nor were rewarded by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.burn_state import BurnState, FireSimulator, Hazard
from environment.fuel_breaks.config import FuelBreakConfig
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import BoolArray, Float64Array
from training.fuel_breaks.policies import Policy


def place(
    policy: Policy,
    env: VectorFuelBreakEnvironment,
    tiles: Sequence[int],
    scenario_seed: int,
    safe_point: Callable[[], None] = lambda: None,
) -> BoolArray:
    """Return the (tiles, cells) breaks that a policy makes, seeing the planning fires of the seed."""
    env.reset(tiles, [scenario_seed] * len(tiles))
    while not env.terminated.all():
        safe_point()
        env.step(policy(env))
    return env.cleared


def reduction_percent(hazard: Hazard, cleared: BoolArray) -> float:
    """Return the reduction of the burned area in percent if (cells,) are cleared."""
    return 100 * (1 - BurnState(hazard, cleared).burned_cells / hazard.start_burned_cells)


def spaced(available: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced numbers below `available`."""
    chosen: list[int] = np.unique(np.linspace(0, available - 1, min(count, available)).round().astype(int)).tolist()
    return chosen


class Judge:
    """Tiles with their fires, which are the same for every policy and computed once."""

    def __init__(
        self,
        tiles: Sequence[Tile],
        config: FuelBreakConfig,
        safe_point: Callable[[], None] = lambda: None,
        lanes: int = 16,
    ) -> None:
        own = replace(config, cached_episodes=len(tiles), cached_states=1)
        self.tiles = tuple(tiles)
        self._env = VectorFuelBreakEnvironment(tiles, own)
        self._judging = FireSimulator(tiles, own, "judging")
        self._safe_point, self._lanes = safe_point, lanes

    def reductions(self, policy: Policy, scenario_seeds: Sequence[int] = (0,)) -> Float64Array:
        """Return the (tiles,) reductions of the burned area in percent, means over scenario seeds."""
        results = np.zeros((len(scenario_seeds), len(self.tiles)))
        for row, seed in zip(results, scenario_seeds, strict=True):
            for first in range(0, len(self.tiles), self._lanes):
                lanes = range(len(self.tiles))[first : first + self._lanes]
                placed = place(policy, self._env, lanes, seed, self._safe_point)
                hazards = (self._judging.hazard(tile, seed) for tile in lanes)
                row[lanes] = [reduction_percent(*pair) for pair in zip(hazards, placed, strict=True)]
        return np.asarray(results.mean(axis=0))
