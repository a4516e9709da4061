"""Fires on a tile: drawn, spread by minimum travel time, and updated while cells are cleared one by one.

A fire spreads from cell to cell in eight directions and reaches each at the least sum of travel times (Finney 2002,
"Fire growth using minimum travel time methods"). Cells are numbered by row, then by column; row 0 is north.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from data.fuel_breaks.landscape import Landscape, Tile
from environment.fuel_breaks.config import FuelBreakConfig, ScenarioConfig
from environment.fuel_breaks.fire_behaviour import Wind, directional_rates, surface_fire

Float64Array = NDArray[np.float64]
Int32Array = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

_ROW_STEP = np.array([-1, -1, 0, 1, 1, 1, 0, -1])  # rows down by direction: north first, then clockwise
_COLUMN_STEP = np.array([0, 1, 1, 1, 0, -1, -1, -1])
Purpose = Literal["planning", "reward", "judging"]
"""Purpose of a set of fires; each has its own stream of random numbers."""


@dataclass(frozen=True)
class SpreadGrid:
    """The E steps that fire can take on a raster, by source cell, then by direction."""

    cells: int
    source: Int32Array
    target: Int32Array
    direction: Int32Array
    first_step: Int32Array  # (cells + 1,) first step of each cell: the row pointers of a sparse matrix
    incoming: Int32Array  # (cells, 8) the steps to each cell, by direction; E where the raster ends
    sender: Int32Array  # (cells, 8) their source cells; 0 where the raster ends


@lru_cache(maxsize=8)
def spread_grid(rows: int, columns: int) -> SpreadGrid:
    """Build the grid of a shape."""
    row, column, direction = (a.ravel() for a in np.indices((rows, columns, 8)))
    to_row, to_column = row + _ROW_STEP[direction], column + _COLUMN_STEP[direction]
    inside = (to_row >= 0) & (to_row < rows) & (to_column >= 0) & (to_column < columns)
    source = (row * columns + column)[inside].astype(np.int32)
    target = (to_row * columns + to_column)[inside].astype(np.int32)
    direction = direction[inside].astype(np.int32)
    first_step = np.searchsorted(source, np.arange(rows * columns + 1)).astype(np.int32)
    incoming = np.full((rows * columns, 8), len(source), dtype=np.int32)
    incoming[target, direction] = np.arange(len(source))
    sender = np.zeros((rows * columns, 8), dtype=np.int32)
    sender[target, direction] = source
    return SpreadGrid(rows * columns, source, target, direction, first_step, incoming, sender)


@dataclass(frozen=True)
class SpreadTrees:
    """The trees along which fires arrive: (n,) arrays over the burned cells of all fires, by fire, then by cell."""

    fire: NDArray[np.int64]
    cell: NDArray[np.int64]
    parent: NDArray[np.int64]  # index of the parent in these arrays; n for an ignition

    def downstream(self) -> NDArray[np.int64]:
        """Count the (n,) burned cells whose fire came through each cell, itself included, by pointer doubling."""
        count = len(self.cell)
        below = np.ones(count + 1)
        ancestor = np.append(self.parent, count)
        while (ancestor[:count] < count).any():
            below += np.bincount(ancestor[:count], weights=below[:count], minlength=count + 1)
            ancestor = ancestor[ancestor]
        return below[:count].astype(np.int64)

    def depth(self) -> NDArray[np.int64]:
        """Count the (n,) steps from the ignition to each cell, by pointer doubling."""
        count = len(self.cell)
        ancestor = np.append(self.parent, count)
        depth = np.append((self.parent < count).astype(np.int64), 0)
        while (ancestor[:count] < count).any():
            depth += depth[ancestor]
            ancestor = ancestor[ancestor]
        return depth[:count]


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
        self.grid = grid = spread_grid(*landscape.shape)
        self.burnable = landscape.burnable.ravel()  # (cells,)
        self.ignition_cells = ignition_cells.ravel()  # (F,)
        self.wind_of_fire = np.repeat(np.arange(len(winds)), ignition_cells.shape[1])  # (F,)
        rates = directional_rates(surface_fire(landscape, winds, config.moisture)).reshape(len(winds), 8, -1)
        leaving, entering = rates[:, grid.direction, grid.source], rates[:, grid.direction, grid.target]
        elevation = landscape.elevation_m.ravel().astype(np.float64)
        rise = elevation[grid.target] - elevation[grid.source]
        level = landscape.cell_size_m * np.where(grid.direction % 2 == 1, np.sqrt(2.0), 1.0)
        with np.errstate(divide="ignore"):
            pace = (1 / leaving + 1 / entering) / 2
        self.minutes = np.hypot(level, rise) * pace
        """(W, E) of steps along the ground, half at the rate of the source, half at the target's."""

    def burn(self, cleared: BoolArray, fires: NDArray[np.int64] | None = None) -> Float64Array:
        """Return (n, cells) arrivals in minutes, infinite where a fire does not come, with (cells,) `cleared`.

        All fires burn, or those of (n,) `fires`. No step leaves or enters a cleared cell, and no fire starts in one.
        """
        fires = np.arange(len(self.ignition_cells)) if fires is None else fires
        arrival, grid = np.empty((len(fires), self.grid.cells)), self.grid
        is_closed = cleared[grid.source] | cleared[grid.target]
        winds, ignitions = self.wind_of_fire[fires], self.ignition_cells[fires]
        for wind in np.unique(winds):
            minutes = np.where(is_closed, np.inf, self.minutes[wind])
            graph = csr_array((minutes, grid.target, grid.first_step), shape=(grid.cells, grid.cells))
            own = winds == wind
            arrival[own] = dijkstra(graph, indices=ignitions[own], limit=self.duration_minutes)
        arrival[cleared[ignitions]] = np.inf
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

    def trees(self, fires: NDArray[np.int64] | slice = slice(None)) -> SpreadTrees:
        """Return the spread trees of some fires (n,), by default all.

        A cell's parent is the neighbour through which fire arrives first, ties by direction. A cleared neighbour's
        arrival is infinite, so the trees are a function of the arrivals alone.
        """
        grid, arrival, wind = self.hazard.grid, self.arrival[fires], self.hazard.wind_of_fire[fires]
        fire, cell = np.nonzero(np.isfinite(arrival))
        steps = grid.incoming[cell]
        ends = steps == len(grid.source)
        step_minutes = self.hazard.minutes[wind[fire][:, None], np.where(ends, 0, steps)]
        from_sender = arrival[fire[:, None], grid.sender[cell]] + step_minutes
        first = np.where(ends, np.inf, from_sender).argmin(axis=1)
        place = np.full(arrival.size + 1, len(cell))
        place[fire * grid.cells + cell] = np.arange(len(cell))
        is_ignition = arrival[fire, cell] == 0
        parent_cell = np.where(is_ignition, arrival.size, fire * grid.cells + grid.sender[cell, first])
        return SpreadTrees(fire, cell, place[parent_cell])

    @property
    def downstream(self) -> Int32Array:
        """(F, cells) burned cells whose fire came through the cell, itself included."""
        fires = np.flatnonzero(~self._is_traced)
        trees = self.trees(fires)
        self._downstream[fires] = 0
        self._downstream[fires[trees.fire], trees.cell] = trees.downstream()
        self._is_traced[fires] = True
        return self._downstream

    def exposure(self) -> Exposure:
        """Sum the damage over fires, in the smallest types that hold the sums."""
        return Exposure(
            np.isfinite(self.arrival).sum(axis=0).astype(np.min_scalar_type(len(self.arrival))),
            self.downstream.sum(axis=0).astype(np.min_scalar_type(self.arrival.size)),
            self.hazard.start_burned_cells,
        )


def draw_scenarios(
    burnable: BoolArray, config: ScenarioConfig, purpose: Purpose, seed: int
) -> tuple[list[Wind], Int32Array]:
    """Draw the fires of a seed for one purpose: W winds and the (W, ignitions per wind) cells where fires start.

    Winds are spread evenly around the compass; ignitions are uniform, without replacement while cells last.
    """
    stream = np.random.SeedSequence(seed, spawn_key=(get_args(Purpose).index(purpose),))
    generator = np.random.Generator(np.random.PCG64(stream))
    ignitions_per_wind = getattr(config, f"{purpose}_ignitions_per_wind")
    bearings = (generator.uniform(0, 360) + np.arange(config.winds) * 360 / config.winds) % 360
    speeds = generator.uniform(config.min_wind_km_h, config.max_wind_km_h, config.winds)
    cells, fires = np.flatnonzero(burnable).astype(np.int32), config.winds * ignitions_per_wind
    rounds = -(-fires // len(cells))
    ignitions = np.concatenate([generator.permutation(cells) for _ in range(rounds)])[:fires]
    winds = [Wind(float(speed), float(bearing)) for speed, bearing in zip(speeds, bearings, strict=True)]
    return winds, ignitions.reshape(config.winds, ignitions_per_wind)


class FireSimulator:
    """Fires drawn for one purpose on a list of tiles, in bounded caches."""

    def __init__(self, tiles: Sequence[Tile], config: FuelBreakConfig, purpose: Purpose) -> None:
        self.tiles = tuple(tiles)
        self._cached_states = config.cached_states
        self._exposures: dict[tuple[int, int, bytes], Exposure] = {}  # least recently used first

        @lru_cache(config.cached_episodes)
        def hazard(tile: int, scenario_seed: int) -> Hazard:
            landscape = tiles[tile].landscape
            drawn = draw_scenarios(landscape.burnable.ravel(), config.scenarios, purpose, scenario_seed)
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
