"""The environment in which fuel breaks are placed, as a Gymnasium environment and as many lanes in lockstep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from data.fuel_breaks.landscape import Landscape, Tile
from environment.fuel_breaks.burn_state import BurnState, Exposure, FireSimulator, TracedBurnState
from environment.fuel_breaks.config import FuelBreakConfig
from environment.fuel_breaks.fire_behaviour import Wind, directional_rates, surface_fire
from environment.fuel_breaks.fire_spread import BoolArray

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Int64Array = NDArray[np.int64]
IntegerArray = Sequence[int] | Int64Array

STATIC_CHANNELS = (
    *(f"spread_rate_{name}" for name in ("n", "ne", "e", "se", "s", "sw", "w", "nw")),
    "slope",
    "aspect_sine",
    "aspect_cosine",
    "elevation",
    "canopy_cover",
    "unburnable",
)
DYNAMIC_CHANNELS = ("cleared", "burn_probability", "downstream_value", "budget_left")
CHANNELS = (*STATIC_CHANNELS, *DYNAMIC_CHANNELS)
"""Channels of an observation (channels, rows, columns), all from -1 to 1.

Spread rates r in m/min are shown as r / (r + 2), slopes as percent / (percent + 100), elevations relative to the tile's
middle in its range. Burn probability and downstream value are those of the planning fires: the latter is the share of
the cells burned at the start whose fire now comes through the cell. The budget left is a share of the whole budget.
"""
_HALF_RATE_M_MIN = 2.0
_HALF_SLOPE_PERCENT = 100.0
_CLIMATE_WINDS = 8
MAX_SCENARIO_SEED = 2**31


def static_channels(landscape: Landscape, config: FuelBreakConfig) -> Float32Array:
    """Return the (14, rows, columns) channels that no break changes.

    Spread rates are the mean over winds of mean speed from eight directions. They tell of the landscape and the season,
    not of one scenario set.
    """
    speed = (config.scenarios.min_wind_km_h + config.scenarios.max_wind_km_h) / 2
    winds = [Wind(speed, 360 * i / _CLIMATE_WINDS) for i in range(_CLIMATE_WINDS)]
    rates = directional_rates(surface_fire(landscape, winds, config.moisture)).mean(axis=0)
    slope, aspect = landscape.slope_percent, np.deg2rad(landscape.aspect_degrees)
    has_aspect = landscape.aspect_degrees >= 0
    low, high = landscape.elevation_m.min(), landscape.elevation_m.max()
    channels = [
        *(rates / (rates + _HALF_RATE_M_MIN)),
        slope / (slope + _HALF_SLOPE_PERCENT),
        np.where(has_aspect, np.sin(aspect), 0),
        np.where(has_aspect, np.cos(aspect), 0),
        (2 * landscape.elevation_m - low - high) / max(high - low, 1),
        landscape.canopy_cover_percent / 100,
        ~landscape.burnable,
    ]
    return np.stack(channels).astype(np.float32)


class Observer:
    """Observations of states; the static channels of each tile are computed once and kept."""

    def __init__(self, simulator: FireSimulator) -> None:
        self.simulator = simulator
        self.budget_cells = simulator.config.budget_cells
        scenarios = simulator.config.scenarios
        self._fires = scenarios.winds * scenarios.planning_ignitions_per_wind
        self._static: dict[int, Float32Array] = {}

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, rows, columns."""
        return (len(CHANNELS), *self.simulator.shape)

    @property
    def cells(self) -> int:
        """Cells of a tile."""
        return self.shape[1] * self.shape[2]

    def static_channels(self, tile: int) -> Float32Array:
        """Return a tile's static channels, computed when first asked for."""
        if tile not in self._static:
            self._static[tile] = static_channels(self.simulator.tiles[tile].landscape, self.simulator.config)
        return self._static[tile]

    def render(self, tile: int, cleared: BoolArray, exposure: Exposure) -> Float32Array:
        """Return (channels, rows, columns) of a state: (cells,) cleared on a tile, and the planning fires' exposure."""
        observation = np.empty(self.shape, dtype=np.float32)
        observation[: len(STATIC_CHANNELS)] = self.static_channels(tile)
        dynamic = observation[len(STATIC_CHANNELS) :].reshape(len(DYNAMIC_CHANNELS), -1)
        dynamic[0] = cleared
        dynamic[1] = exposure.burned / self._fires
        dynamic[2] = exposure.downstream / exposure.start_burned_cells
        dynamic[3] = max(self.budget_cells - int(cleared.sum()), 0) / self.budget_cells
        return observation


class VectorFuelBreakEnvironment:
    """Many tiles in lockstep: each step clears one cell in every lane.

    Observations tell of a lane's planning fires. The reward is how much less its reward fires burn for the cell, in
    percent of what they burned at the start of the episode; an episode's sum is the reduction by all its breaks. Both
    sets of fires are functions of the lane's tile and scenario seed.
    """

    def __init__(self, tiles: Sequence[Tile], config: FuelBreakConfig) -> None:
        self.planning = FireSimulator(tiles, config, "planning")
        self.rewarding = FireSimulator(tiles, config, "reward")
        self.observer = Observer(self.planning)
        self.budget_cells = config.budget_cells
        """Of an episode."""
        self.tiles = np.zeros(0, dtype=np.int64)
        """(lanes,) indices into the list of tiles."""
        self.scenario_seeds = np.zeros(0, dtype=np.int64)
        """(lanes,)"""
        self.states: list[TracedBurnState] = []
        """Planning fires of each lane."""
        self.exposures: list[Exposure] = []
        self._rewarded: list[BurnState] = []

    @property
    def cleared(self) -> BoolArray:
        """(lanes, cells) the breaks so far, as a copy."""
        return np.stack([state.cleared for state in self.states])

    @property
    def burned_cells(self) -> Float64Array:
        """(lanes,) cells burned, the mean over the reward fires."""
        return np.array([state.burned_cells / len(state.arrival) for state in self._rewarded])

    @property
    def terminated(self) -> BoolArray:
        """(lanes,) whose budget is spent or that have nothing left to clear."""
        return np.array([state.cleared.sum() >= self.budget_cells or not state.legal().any() for state in self.states])

    def reset(self, tiles: IntegerArray, scenario_seeds: IntegerArray) -> None:
        """Begin one episode a lane, (lanes,) of each argument.

        Raises:
            ValueError: a tile that is not there, a seed below 0, or unequal lengths.
        """
        self.tiles, self.scenario_seeds = np.asarray(tiles, np.int64), np.asarray(scenario_seeds, np.int64)
        shapes, count = (self.tiles.shape, self.scenario_seeds.shape), len(self.planning.tiles)
        if len(shapes[0]) != 1 or shapes[0] != shapes[1] or not shapes[0][0]:
            raise ValueError(f"expected a tile and a scenario seed a lane, got shapes {shapes[0]} and {shapes[1]}")
        if self.tiles.min() < 0 or self.tiles.max() >= count or self.scenario_seeds.min() < 0:
            raise ValueError(
                f"expected tiles from 0 to {count - 1} and scenario seeds from 0, got tiles {self.tiles.tolist()} and "
                f"seeds {self.scenario_seeds.tolist()}"
            )
        lanes = list(zip(self.tiles.tolist(), self.scenario_seeds.tolist(), strict=True))
        self.states = [TracedBurnState(self.planning.hazard(*lane)) for lane in lanes]
        self._rewarded = [BurnState(self.rewarding.hazard(*lane)) for lane in lanes]
        self.exposures = [self.planning.exposure(*lane, s) for lane, s in zip(lanes, self.states, strict=True)]

    def action_masks(self) -> BoolArray:
        """Return the (lanes, cells) that may be cleared."""
        return np.stack([state.legal() for state in self.states])

    def step(self, actions: IntegerArray) -> Float64Array:
        """Clear one cell (by its number) a lane and return the (lanes,) rewards in percent.

        A lane that has terminated stays as it is, whatever its action.

        Raises:
            ValueError: an action that the mask forbids, or not one a lane.
        """
        is_open = ~self.terminated
        cells = np.asarray(actions, np.int64)
        if cells.shape != is_open.shape:
            raise ValueError(f"expected {len(is_open)} actions, one a lane, got shape {cells.shape}")
        rewards = np.zeros(len(is_open))
        for lane in np.flatnonzero(is_open).tolist():
            state, rewarded, cell = self.states[lane], self._rewarded[lane], int(cells[lane])
            if not (0 <= cell < len(state.cleared) and state.legal()[cell]):
                raise ValueError(f"expected a cell that the action mask allows, got {cell} in lane {lane}")
            state.clear(cell)
            self.exposures[lane] = self.planning.exposure(int(self.tiles[lane]), int(self.scenario_seeds[lane]), state)
            before = rewarded.burned_cells
            rewarded.clear(cell)
            rewards[lane] = 100 * (before - rewarded.burned_cells) / rewarded.hazard.start_burned_cells
        return rewards

    def observe(self) -> Float32Array:
        """Return the (lanes, channels, rows, columns) of the present states."""
        lanes = zip(self.tiles.tolist(), self.states, self.exposures, strict=True)
        return np.stack([self.observer.render(tile, state.cleared, exposure) for tile, state, exposure in lanes])


class FuelBreakEnvironment(gym.Env[Float32Array, np.int64]):
    """One tile as a Gymnasium environment: an action is the number of the cell to clear.

    An illegal action changes nothing and is rewarded with 0 (`info["is_legal"]` is false). An episode is truncated
    after as many steps as the budget has cells. `action_masks` gives the legal actions.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it so

    def __init__(self, tiles: Sequence[Tile], config: FuelBreakConfig) -> None:
        self.vector = VectorFuelBreakEnvironment(tiles, config)
        shape = self.vector.observer.shape
        self.observation_space = gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        self.action_space = gym.spaces.Discrete(shape[1] * shape[2])
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Float32Array, dict[str, Any]]:
        """Begin an episode on `options["tile"]` with `options["scenario_seed"]`; what is left out is drawn."""
        super().reset(seed=seed)
        chosen = {
            "tile": int(self.np_random.integers(len(self.vector.planning.tiles))),
            "scenario_seed": int(self.np_random.integers(MAX_SCENARIO_SEED)),
            **(options or {}),
        }
        self.steps = 0
        self.vector.reset([chosen["tile"]], [chosen["scenario_seed"]])
        return self.vector.observe()[0], self._info(True)

    def step(self, action: np.int64 | int) -> tuple[Float32Array, float, bool, bool, dict[str, Any]]:
        """Clear a cell; the reward is in percent of the area burned at the start."""
        self.steps += 1
        reward, is_legal = 0.0, bool(self.action_masks()[action])
        if is_legal:
            reward = float(self.vector.step([int(action)])[0])
        terminated = bool(self.vector.terminated[0])
        truncated = not terminated and self.steps >= self.vector.budget_cells
        return self.vector.observe()[0], reward, terminated, truncated, self._info(is_legal)

    def action_masks(self) -> BoolArray:
        """Return the (cells,) that may be cleared."""
        return self.vector.states[0].legal()

    def _info(self, is_legal: bool) -> dict[str, Any]:
        return {
            "tile": int(self.vector.tiles[0]),
            "scenario_seed": int(self.vector.scenario_seeds[0]),
            "burned_cells": float(self.vector.burned_cells[0]),
            "is_legal": is_legal,
            "action_mask": self.action_masks(),
        }
