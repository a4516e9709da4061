"""Fires on a tile: drawn, spread by minimum travel time, and updated while cells are cleared one by one.

A fire spreads from cell to cell in eight directions and reaches each at the least sum of travel times (Finney 2002,
"Fire growth using minimum travel time methods"). Cells are numbered by row, then by column; row 0 is north.
"""

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from data.fuel_breaks import Landscape, Tile
from environment.fuel_breaks.fire_behaviour import Wind, directional_rates, surface_fire
from utils.arrays import BoolArray, Float64Array, Int32Array, Int64Array
from utils.config.fuel_breaks import FuelBreakConfig, ScenarioConfig

_ROW_STEP = np.array([-1, -1, 0, 1, 1, 1, 0, -1])  # rows down by direction: north first, then clockwise
_COLUMN_STEP = np.array([0, 1, 1, 1, 0, -1, -1, -1])
_DIRECTIONS = np.arange(8)
_BACKWARD = (_DIRECTIONS + 4) % 8
Purpose = Literal["planning", "reward", "judging"]
"""Purpose of a set of fires; each has its own stream of random numbers."""


@lru_cache(maxsize=8)
def neighbours(rows: int, columns: int) -> Int32Array:
    """Return the (cells, 8) neighbour of each cell in each direction; the cell itself where the raster ends."""
    row, column = (a.reshape(-1, 1) for a in np.indices((rows, columns)))
    to_row, to_column = row + _ROW_STEP, column + _COLUMN_STEP
    is_inside = (to_row >= 0) & (to_row < rows) & (to_column >= 0) & (to_column < columns)
    return np.where(is_inside, to_row * columns + to_column, row * columns + column).astype(np.int32)


class SpreadTrees(NamedTuple):
    """The trees along which fires arrive: (n,) arrays over the burned cells of all fires, by fire, then by cell."""

    fire: Int64Array
    cell: Int64Array
    parent: Int64Array  # index of the parent in these arrays; n for an ignition

    def downstream(self) -> Int64Array:
        """Count the (n,) burned cells whose fire came through each cell, itself included, by pointer doubling."""
        count = len(self.cell)
        below = np.ones(count + 1)
        ancestor = np.append(self.parent, count)
        while (ancestor[:count] < count).any():
            below += np.bincount(ancestor[:count], weights=below[:count], minlength=count + 1)
            ancestor = ancestor[ancestor]
        return below[:count].astype(np.int64)


class Exposure(NamedTuple):
    """Damage by the fires of n states, summed over fires; integers, so that sums are exact."""

    burned: NDArray[np.integer]  # (n, cells) fires that burn each cell
    downstream: NDArray[np.integer]  # (n, cells) burned cells whose fire came through each cell, itself included
    start_burned_cells: NDArray[np.integer]  # (n, 1) cells burned without breaks


class Hazard:
    """F fires under W winds on a tile without breaks, and the time that each step from cell to cell takes."""

    def __init__(
        self, landscape: Landscape, winds: Sequence[Wind], ignition_cells: Int32Array, config: FuelBreakConfig
    ) -> None:
        """Take the winds and the (W, ignitions per wind) cells in which fires start."""
        self.winds, self.duration_minutes = winds, config.scenarios.duration_minutes
        self.neighbours = to = neighbours(*landscape.shape)
        self.cells = len(to)
        self.burnable = landscape.burnable.ravel()  # (cells,)
        self.ignition_cells = ignition_cells.ravel()  # (F,)
        self.wind_of_fire = np.repeat(np.arange(len(winds)), ignition_cells.shape[1])  # (F,)
        rates = directional_rates(surface_fire(landscape, winds, config.moisture)).reshape(len(winds), 8, -1)
        elevation = landscape.elevation_m.ravel().astype(np.float64)
        level = landscape.cell_size_m * np.where(_DIRECTIONS % 2 == 1, np.sqrt(2.0), 1.0)
        with np.errstate(divide="ignore"):
            pace = (1 / rates.transpose(0, 2, 1) + 1 / rates[:, _DIRECTIONS, to]) / 2
        minutes = np.hypot(level, elevation[to] - elevation[:, None]) * pace
        self.minutes = np.where(to == np.arange(self.cells)[:, None], np.inf, minutes)
        """(W, cells, 8) of steps along the ground, half at the rate of the source, half at the target's."""

    def burn(self, cleared: BoolArray, fires: Int64Array | None = None) -> Float64Array:
        """Return (n, cells) arrivals in minutes, infinite where a fire does not come, with (cells,) `cleared`.

        All fires burn, or those of (n,) `fires`. No step leaves or enters a cleared cell, and no fire starts in one.
        """
        fires = np.arange(len(self.ignition_cells)) if fires is None else fires
        arrival, pointers = np.empty((len(fires), self.cells)), np.arange(0, 8 * self.cells + 1, 8)
        is_closed = cleared[:, None] | cleared[self.neighbours]
        winds, ignitions = self.wind_of_fire[fires], self.ignition_cells[fires]
        for wind in np.unique(winds):
            minutes = np.where(is_closed, np.inf, self.minutes[wind]).ravel()
            graph = csr_array((minutes, self.neighbours.ravel(), pointers), shape=(self.cells, self.cells))
            blown = winds == wind
            arrival[blown] = dijkstra(graph, indices=ignitions[blown], limit=self.duration_minutes)
        arrival[cleared[ignitions]] = np.inf
        return arrival

    @cached_property
    def unbroken_arrival(self) -> Float64Array:
        """(F, cells) arrivals without breaks."""
        return self.burn(np.zeros(self.cells, dtype=np.bool_))

    @cached_property
    def start_burned_cells(self) -> int:
        """Cells burned without breaks, summed over fires."""
        return int(np.isfinite(self.unbroken_arrival).sum())


class BurnState:
    """The fires of a hazard with the breaks made so far; clearing a cell computes only the fires that burn it again."""

    def __init__(self, hazard: Hazard) -> None:
        self.hazard = hazard
        self.cleared = np.zeros(hazard.cells, dtype=np.bool_)
        self.arrival = hazard.unbroken_arrival.copy()  # (F, cells) minutes
        self._downstream = np.zeros(self.arrival.shape, dtype=np.int32)
        self._is_traced = np.zeros(len(self.arrival), dtype=np.bool_)

    def copy(self) -> Self:
        """Return an independent state under the same hazard."""
        return deepcopy(self, {id(self.hazard): self.hazard})

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

    def trees(self, fires: Int64Array | slice = slice(None)) -> SpreadTrees:
        """Return the spread trees of some fires (n,), by default all.

        A cell's parent is the neighbour through which fire arrives first, ties by direction. A cleared neighbour's
        arrival is infinite, so the trees are a function of the arrivals alone.
        """
        hazard, arrival, wind = self.hazard, self.arrival[fires], self.hazard.wind_of_fire[fires]
        fire, cell = np.nonzero(np.isfinite(arrival))
        senders = hazard.neighbours[cell][:, _BACKWARD]
        step_minutes = hazard.minutes[wind[fire][:, None], senders, _DIRECTIONS]
        from_sender = np.where(senders == cell[:, None], np.inf, arrival[fire[:, None], senders] + step_minutes)
        first = from_sender.argmin(axis=1)
        place = np.full(arrival.size + 1, len(cell))
        place[fire * hazard.cells + cell] = np.arange(len(cell))
        is_ignition = arrival[fire, cell] == 0
        parent_cell = fire * hazard.cells + senders[np.arange(len(cell)), first]
        return SpreadTrees(fire, cell, place[np.where(is_ignition, arrival.size, parent_cell)])

    @property
    def downstream(self) -> Int32Array:
        """(F, cells) burned cells whose fire came through the cell, itself included."""
        fires = np.flatnonzero(~self._is_traced)
        trees = self.trees(fires)
        self._downstream[fires] = 0
        self._downstream[fires[trees.fire], trees.cell] = trees.downstream()
        self._is_traced[fires] = True
        return self._downstream


def exposure_of(states: Sequence[BurnState]) -> Exposure:
    """Sum the damage of each state over fires."""
    return Exposure(
        np.stack([np.isfinite(state.arrival).sum(axis=0) for state in states]),
        np.stack([state.downstream.sum(axis=0) for state in states]),
        np.array([[state.hazard.start_burned_cells] for state in states]),
    )


def draw_scenarios(
    burnable: BoolArray, config: ScenarioConfig, purpose: Purpose, seed: int
) -> tuple[list[Wind], Int32Array]:
    """Draw the fires of a seed for one purpose: W winds and the (W, ignitions per wind) cells where fires start.

    Winds are spread evenly around the compass; ignitions are uniform, without replacement while cells last.
    """
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(get_args(Purpose).index(purpose),)))
    ignitions_per_wind = getattr(config, f"{purpose}_ignitions_per_wind")
    bearings = (generator.uniform(0, 360) + np.arange(config.winds) * 360 / config.winds) % 360
    speeds = generator.uniform(config.min_wind_km_h, config.max_wind_km_h, config.winds)
    cells, shape = np.flatnonzero(burnable).astype(np.int32), (config.winds, ignitions_per_wind)
    rounds = -(-math.prod(shape) // len(cells))
    ignitions = np.concatenate([generator.permutation(cells) for _ in range(rounds)])
    return list(map(Wind, speeds.tolist(), bearings.tolist())), np.resize(ignitions, shape)


def fires_of(tiles: Sequence[Tile], config: FuelBreakConfig, purpose: Purpose, tile: int, scenario_seed: int) -> Hazard:
    """Return the fires of a scenario seed on a tile, drawn for a purpose."""
    landscape = tiles[tile].landscape
    winds, ignition_cells = draw_scenarios(landscape.burnable.ravel(), config.scenarios, purpose, scenario_seed)
    return Hazard(landscape, winds, ignition_cells, config)
