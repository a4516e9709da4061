"""Fires over a raster: minimum travel times from an ignition, and the trees along which fire arrives.

A fire spreads from cell to cell in eight directions and reaches each at the least sum of travel times (Finney 2002,
"Fire growth using minimum travel time methods"). Cells are numbered by row, then by column; row 0 is north.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from data.fuel_breaks.landscape import Landscape
from environment.fuel_breaks.config import FuelMoisture, ScenarioConfig
from environment.fuel_breaks.fire_behaviour import Wind, directional_rates, surface_fire

Float64Array = NDArray[np.float64]
Int32Array = NDArray[np.int32]
BoolArray = NDArray[np.bool_]

ROW_STEP = np.array([-1, -1, 0, 1, 1, 1, 0, -1])  # rows down by direction: north first, then clockwise
COLUMN_STEP = np.array([0, 1, 1, 1, 0, -1, -1, -1])
Purpose = Literal["planning", "reward", "judging"]
"""Purpose of a set of fires; each has its own stream of random numbers."""


@dataclass(frozen=True)
class SpreadGrid:
    """The E steps that fire can take on a raster, by source cell, then by direction."""

    shape: tuple[int, int]
    source: Int32Array
    target: Int32Array
    direction: Int32Array
    first_step: Int32Array  # (cells + 1,) first step of each cell: the row pointers of a sparse matrix
    incoming: Int32Array  # (cells, 8) the steps to each cell, by direction; E where the raster ends
    sender: Int32Array  # (cells, 8) their source cells; 0 where the raster ends

    @property
    def cells(self) -> int:
        return self.shape[0] * self.shape[1]


@lru_cache(maxsize=8)
def spread_grid(rows: int, columns: int) -> SpreadGrid:
    """Build the grid of a shape."""
    row, column, direction = (a.ravel() for a in np.indices((rows, columns, 8)))
    to_row, to_column = row + ROW_STEP[direction], column + COLUMN_STEP[direction]
    inside = (to_row >= 0) & (to_row < rows) & (to_column >= 0) & (to_column < columns)
    source = (row * columns + column)[inside].astype(np.int32)
    target = (to_row * columns + to_column)[inside].astype(np.int32)
    direction = direction[inside].astype(np.int32)
    first_step = np.searchsorted(source, np.arange(rows * columns + 1)).astype(np.int32)
    incoming = np.full((rows * columns, 8), len(source), dtype=np.int32)
    incoming[target, direction] = np.arange(len(source))
    sender = np.zeros((rows * columns, 8), dtype=np.int32)
    sender[target, direction] = source
    return SpreadGrid((rows, columns), source, target, direction, first_step, incoming, sender)


def travel_minutes(landscape: Landscape, winds: Sequence[Wind], moisture: FuelMoisture) -> Float64Array:
    """Return the (W, E) minutes of steps along the ground, half at the rate of the source, half at the target's."""
    grid = spread_grid(*landscape.shape)
    rates = directional_rates(surface_fire(landscape, winds, moisture)).reshape(len(winds), 8, -1)
    leaving, entering = rates[:, grid.direction, grid.source], rates[:, grid.direction, grid.target]
    elevation = landscape.elevation_m.ravel().astype(np.float64)
    rise = elevation[grid.target] - elevation[grid.source]
    level = landscape.cell_size_m * np.where(grid.direction % 2 == 1, np.sqrt(2.0), 1.0)
    with np.errstate(divide="ignore"):
        pace = (1 / leaving + 1 / entering) / 2
    return np.asarray(np.hypot(level, rise) * pace)


def arrival_minutes(
    grid: SpreadGrid, minutes: Float64Array, cleared: BoolArray, ignition_cells: Int32Array, duration_minutes: float
) -> Float64Array:
    """Return (fires, cells) arrivals of fires that start at minute 0 in the (fires,) ignition cells, else infinite.

    `minutes` (E,) are those of the steps without breaks; no step may leave or enter (cells,) `cleared`.
    """
    open_minutes = np.where(cleared[grid.source] | cleared[grid.target], np.inf, minutes)
    graph = csr_array((open_minutes, grid.target, grid.first_step), shape=(grid.cells, grid.cells))
    arrival: Any = dijkstra(graph, indices=ignition_cells, limit=duration_minutes)
    return np.asarray(arrival, dtype=np.float64)


@dataclass(frozen=True)
class SpreadTrees:
    """The trees along which fires arrive: (n,) arrays over the burned cells of all fires, by fire, then by cell."""

    fire: NDArray[np.int64]
    cell: NDArray[np.int64]
    parent: NDArray[np.int64]  # index of the parent in these arrays; n for an ignition


def spread_trees(
    grid: SpreadGrid, minutes: Float64Array, wind_of_fire: NDArray[np.int64], arrival: Float64Array
) -> SpreadTrees:
    """Return the trees of fires with known (fires, cells) arrivals; `minutes` (W, E) are those without breaks.

    A cell's parent is the neighbour through which fire arrives first, ties by direction. A cleared neighbour's arrival
    is infinite, so the trees are a function of the arrivals alone.
    """
    fire, cell = np.nonzero(np.isfinite(arrival))
    steps = grid.incoming[cell]
    ends = steps == len(grid.source)
    step_minutes = minutes[wind_of_fire[fire][:, None], np.where(ends, 0, steps)]
    from_sender = arrival[fire[:, None], grid.sender[cell]] + step_minutes
    first = np.where(ends, np.inf, from_sender).argmin(axis=1)
    place = np.full(arrival.size + 1, len(cell))
    place[fire * grid.cells + cell] = np.arange(len(cell))
    is_ignition = arrival[fire, cell] == 0
    parent_cell = np.where(is_ignition, arrival.size, fire * grid.cells + grid.sender[cell, first])
    return SpreadTrees(fire, cell, place[parent_cell])


def downstream_cells(trees: SpreadTrees) -> NDArray[np.int64]:
    """Count the (n,) burned cells whose fire came through each cell, itself included, by pointer doubling."""
    count = len(trees.cell)
    below = np.ones(count + 1)
    ancestor = np.append(trees.parent, count)
    while (ancestor[:count] < count).any():
        below += np.bincount(ancestor[:count], weights=below[:count], minlength=count + 1)
        ancestor = ancestor[ancestor]
    return below[:count].astype(np.int64)


def tree_depth(trees: SpreadTrees) -> NDArray[np.int64]:
    """Count the (n,) steps from the ignition to each cell of the trees, by pointer doubling."""
    count = len(trees.cell)
    ancestor = np.append(trees.parent, count)
    depth = np.append((trees.parent < count).astype(np.int64), 0)
    while (ancestor[:count] < count).any():
        depth += depth[ancestor]
        ancestor = ancestor[ancestor]
    return depth[:count]


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
