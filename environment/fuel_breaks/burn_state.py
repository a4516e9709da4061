"""The fires of a set of scenarios on a tile, updated while cells are cleared one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from data.fuel_breaks.landscape import Landscape, Tile
from environment.fuel_breaks import fire_spread
from environment.fuel_breaks.config import FuelBreakConfig
from environment.fuel_breaks.fire_behaviour import Wind
from environment.fuel_breaks.fire_spread import BoolArray, Float64Array, Int32Array, Purpose, SpreadTrees


@dataclass(frozen=True)
class Exposure:
    """Damage by a state's fires, summed over the scenario set; integers, so that sums are exact."""

    burned: NDArray[np.unsignedinteger]  # (cells,) fires that burn each cell
    downstream: NDArray[np.unsignedinteger]
    """(cells,) burned cells whose fire came through each cell, itself included."""
    start_burned_cells: int  # cells burned without breaks


class Hazard:
    """F fires under W winds on a tile without breaks, and the time that each of E steps of the grid takes."""

    def __init__(
        self, landscape: Landscape, winds: Sequence[Wind], ignition_cells: Int32Array, config: FuelBreakConfig
    ) -> None:
        """Take the winds and the (W, ignitions per wind) cells in which fires start."""
        self.winds, self.duration_minutes = winds, config.scenarios.duration_minutes
        self.grid = fire_spread.spread_grid(*landscape.shape)
        self.burnable = landscape.burnable.ravel()  # (cells,)
        self.minutes = fire_spread.travel_minutes(landscape, winds, config.moisture)  # (W, E)
        self.ignition_cells = ignition_cells.ravel()  # (F,)
        self.wind_of_fire = np.repeat(np.arange(len(winds)), ignition_cells.shape[1])  # (F,)

    def burn(self, cleared: BoolArray, fires: NDArray[np.int64] | None = None) -> Float64Array:
        """Return (n, cells) arrivals in minutes of some fires (n,), by default all, with (cells,) `cleared`."""
        fires = np.arange(len(self.ignition_cells)) if fires is None else fires
        arrival = np.empty((len(fires), self.grid.cells))
        winds = self.wind_of_fire[fires]
        for wind in np.unique(winds):
            own = winds == wind
            ignitions = self.ignition_cells[fires[own]]
            arrival[own] = fire_spread.arrival_minutes(
                self.grid, self.minutes[wind], cleared, ignitions, self.duration_minutes
            )
        arrival[cleared[self.ignition_cells[fires]]] = np.inf  # no fire starts in a cleared cell
        return arrival

    @cached_property
    def start_burned_cells(self) -> int:
        """Cells burned without breaks, summed over fires."""
        return int(np.isfinite(self.burn(np.zeros(self.grid.cells, dtype=np.bool_))).sum())


class BurnState:
    """The fires of a hazard with the breaks made so far; clearing a cell computes only the fires that burn it again."""

    def __init__(self, hazard: Hazard, cleared: BoolArray | None = None) -> None:
        self.hazard = hazard
        self.cleared = np.zeros(hazard.grid.cells, dtype=np.bool_) if cleared is None else cleared.copy()
        self.arrival = hazard.burn(self.cleared)  # (F, cells) minutes
        self._downstream = np.zeros(self.arrival.shape, dtype=np.int32)
        self._is_traced = np.zeros(len(self.arrival), dtype=np.bool_)

    @property
    def burned_cells(self) -> int:
        """Cells burned, summed over fires."""
        return int(np.isfinite(self.arrival).sum())

    def legal(self) -> BoolArray:
        """Return the (cells,) that may be cleared: burnable and not cleared yet."""
        return self.hazard.burnable & ~self.cleared

    def clear(self, cell: int) -> None:
        """Clear a cell and update the fires."""
        self.cleared[cell] = True
        changed = np.flatnonzero(np.isfinite(self.arrival[:, cell]))
        self.arrival[changed] = self.hazard.burn(self.cleared, changed)
        self._is_traced[changed] = False

    def trees(self, fires: NDArray[np.int64] | None = None) -> SpreadTrees:
        """Return the spread trees of some fires (n,), by default all."""
        chosen, hazard = slice(None) if fires is None else fires, self.hazard
        return fire_spread.spread_trees(hazard.grid, hazard.minutes, hazard.wind_of_fire[chosen], self.arrival[chosen])

    @property
    def downstream(self) -> Int32Array:
        """(F, cells) burned cells whose fire came through the cell, itself included."""
        fires = np.flatnonzero(~self._is_traced)
        trees = self.trees(fires)
        self._downstream[fires] = 0
        self._downstream[fires[trees.fire], trees.cell] = fire_spread.downstream_cells(trees)
        self._is_traced[fires] = True
        return self._downstream

    def exposure(self) -> Exposure:
        """Sum the damage over fires, in the smallest types that hold the sums."""
        return Exposure(
            np.isfinite(self.arrival).sum(axis=0).astype(np.min_scalar_type(len(self.arrival))),
            self.downstream.sum(axis=0).astype(np.min_scalar_type(self.arrival.size)),
            self.hazard.start_burned_cells,
        )


class FireSimulator:
    """Fires drawn for one purpose on a list of tiles, in bounded caches."""

    def __init__(self, tiles: Sequence[Tile], config: FuelBreakConfig, purpose: Purpose) -> None:
        self.tiles = tuple(tiles)
        self._cached_states = config.cached_states
        self._exposures: dict[tuple[int, int, bytes], Exposure] = {}  # least recently used first

        @lru_cache(config.cached_episodes)
        def hazard(tile: int, scenario_seed: int) -> Hazard:
            landscape = tiles[tile].landscape
            drawn = fire_spread.draw_scenarios(landscape.burnable.ravel(), config.scenarios, purpose, scenario_seed)
            return Hazard(landscape, *drawn, config)

        self.hazard = hazard

    def clear(self) -> None:
        """Empty the caches."""
        self._exposures.clear()
        self.hazard.cache_clear()

    def exposure(self, tile: int, scenario_seed: int, state: BurnState) -> Exposure:
        """Return the exposure of a state, from the `cached_states` last used if it is there."""
        key = (tile, scenario_seed, np.packbits(state.cleared).tobytes())
        exposure = self._exposures.pop(key, None) or state.exposure()
        self._exposures[key] = exposure
        if len(self._exposures) > self._cached_states:
            del self._exposures[next(iter(self._exposures))]
        return exposure
