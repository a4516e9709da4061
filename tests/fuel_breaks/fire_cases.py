"""Small landscapes and tiles for the tests of fire."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.fuel_breaks.config import TileConfig
from data.fuel_breaks.landscape import Landscape, Tile, cut_tiles, generated_landscape, landscape_from_bands
from environment.fuel_breaks.config import FuelBreakConfig, ScenarioConfig
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import BoolArray, BurnState, exposure_of

GRASS, LITTER, WATER = 102, 186, 98


def stored_bands(rows: int, columns: int, **values: Any) -> dict[str, NDArray[Any]]:
    """Flat, valid ground under one fuel, in the units of a file; numbers or arrays by band replace it."""
    defaults = {
        "slope_percent": 0,
        "aspect_degrees": -1,
        "elevation_m": 100,
        "canopy_cover_percent": 50,
        "fuel_model": LITTER,
    }
    return {name: np.broadcast_to(value, (rows, columns)).copy() for name, value in {**defaults, **values}.items()}


def flat_landscape(rows: int, columns: int, **values: Any) -> Landscape:
    """The landscape of `stored_bands`."""
    return landscape_from_bands(stored_bands(rows, columns, **values), "a test")


def random_landscape(rows: int, columns: int, seed: int) -> Landscape:
    """Independent random cells of several fuels and slopes; a fifth of them do not burn."""
    rng = np.random.default_rng(seed)
    return flat_landscape(
        rows,
        columns,
        slope_percent=rng.integers(0, 60, (rows, columns)),
        aspect_degrees=rng.integers(0, 360, (rows, columns)),
        elevation_m=rng.integers(100, 160, (rows, columns)),
        fuel_model=rng.choice([GRASS, LITTER, 122, 165, WATER], (rows, columns)),
    )


def rotated(landscape: Landscape) -> Landscape:
    """The landscape turned a quarter counterclockwise: what was north is west."""
    turned: dict[str, Any] = {name: np.rot90(array).copy() for name, array in landscape.arrays().items()}
    aspect = turned["aspect_degrees"]
    turned["aspect_degrees"] = np.where(aspect >= 0, (aspect - 90) % 360, aspect)
    return replace(landscape, **turned)


def random_mask(cells: int, share: float, seed: int) -> BoolArray:
    """(cells,) with about this share true."""
    return np.random.default_rng(seed).random(cells) < share


@lru_cache(maxsize=1)
def small_tiles() -> tuple[Tile, ...]:
    """A few tiles of 10 x 10 cells of the built-in landscape."""
    return tuple(cut_tiles(generated_landscape(1, 60, 60), TileConfig(tile_cells=10))[:8])


def small_config(**changes: Any) -> FuelBreakConfig:
    """Few fires and a budget of 4 cells."""
    scenarios = ScenarioConfig(
        winds=3, planning_ignitions_per_wind=12, reward_ignitions_per_wind=4, judging_ignitions_per_wind=10
    )
    return FuelBreakConfig(**{"budget_cells": 4, "scenarios": scenarios, **changes})


def observe_anew(
    env: VectorFuelBreakEnvironment, tiles: NDArray[Any], cleared: BoolArray, scenario_seeds: NDArray[Any]
) -> NDArray[np.float32]:
    """(n, channels, rows, columns) of n states, burned from nothing but tile, cleared (n, cells) and scenario seed."""
    lanes = zip(tiles.tolist(), scenario_seeds.tolist(), strict=True)
    states = [BurnState(env.planning(*lane), mask) for lane, mask in zip(lanes, cleared, strict=True)]
    return env.render(tiles, cleared, exposure_of(states))
