"""The environment in which fuel breaks are placed, on many tiles in lockstep."""

from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np

from data.fuel_breaks import Landscape, Tile
from environment.fuel_breaks.fire_behaviour import Wind, directional_rates, surface_fire
from environment.fuel_breaks.fire_spread import BurnState, Exposure, Purpose, exposure_of, fires_of
from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from utils.config.fuel_breaks import FuelBreakConfig
from utils.memory_census import counted

IntegerArray = Sequence[int] | Int64Array

CHANNELS = (
    "spread_rate_n",
    "spread_rate_ne",
    "spread_rate_e",
    "spread_rate_se",
    "spread_rate_s",
    "spread_rate_sw",
    "spread_rate_w",
    "spread_rate_nw",
    "slope",
    "aspect_sine",
    "aspect_cosine",
    "elevation",
    "canopy_cover",
    "unburnable",
    "cleared",
    "burn_probability",
    "downstream_value",
    "budget_left",
)
"""Channels of an observation (channels, rows, columns), all from -1 to 1.

Spread rates r in m/min are r / (r + 2), slopes percent / (percent + 100), elevations relative to the middle of the
tile's range; these fourteen do not change. Burn probability and downstream value are those of the planning fires, the
latter as a share of the cells burned at the start. The budget left is a share of the whole budget.
"""
_HALF_RATE_M_MIN, _HALF_SLOPE_PERCENT, _CLIMATE_WINDS = 2.0, 100.0, 8
MAX_SCENARIO_SEED = 2**31


def static_channels(landscape: Landscape, config: FuelBreakConfig) -> Float32Array:
    """Return the (14, rows, columns) channels that no break changes; spread rates are means over eight winds."""
    speed = (config.scenarios.min_wind_km_h + config.scenarios.max_wind_km_h) / 2
    winds = [Wind(speed, 360 * i / _CLIMATE_WINDS) for i in range(_CLIMATE_WINDS)]
    rates = directional_rates(surface_fire(landscape, winds, config.moisture)).mean(axis=0)
    slope, aspect = landscape.slope_percent, np.deg2rad(landscape.aspect_degrees)
    low, high = float(landscape.elevation_m.min()), float(landscape.elevation_m.max())
    channels = [
        *(rates / (rates + _HALF_RATE_M_MIN)),
        slope / (slope + _HALF_SLOPE_PERCENT),
        *np.where(aspect >= 0, [np.sin(aspect), np.cos(aspect)], 0),
        (2 * landscape.elevation_m - low - high) / max(high - low, 1),
        landscape.canopy_cover_percent / 100,
        ~landscape.burnable,
    ]
    return np.stack(channels).astype(np.float32)


@counted("environments")
class VectorFuelBreakEnvironment:
    """Many tiles in lockstep: each step clears one cell in every lane.

    Observations show a lane's planning fires. The reward is the area saved from its reward fires, in percent of what
    they burn without breaks. Both sets of fires are functions of the lane's tile and scenario seed.
    """

    def __init__(
        self, tiles: Sequence[Tile], config: FuelBreakConfig, rewarded_by: Purpose = "reward", kept: int = 16
    ) -> None:
        """Take the purpose of the fires behind rewards, and how many episodes' fires are kept for further ones."""
        self.tiles, self.config = tuple(tiles), config
        self.planning = lru_cache(kept)(partial(fires_of, tiles, config, "planning"))
        self.rewarding = lru_cache(kept)(partial(fires_of, tiles, config, rewarded_by))
        self._static = np.stack([static_channels(tile.landscape, config) for tile in tiles])
        self.cells = tiles[0].landscape.burnable.size
        self.states: list[BurnState] = []  # planning fires by lane
        self._rewarded: list[BurnState] = []

    def cleanup_memory(self) -> None:
        """Forget the episodes and all fires, which later resets simulate again."""
        self.states, self._rewarded = [], []
        self.planning.cache_clear()
        self.rewarding.cache_clear()

    @property
    def cleared(self) -> BoolArray:
        """A copy of the (lanes, cells) breaks so far."""
        return np.stack([state.cleared for state in self.states])

    @property
    def terminated(self) -> BoolArray:
        """(lanes,) whether the budget is spent or nothing is left to clear."""
        budget = self.config.budget_cells
        return np.array([state.cleared.sum() >= budget or not state.legal().any() for state in self.states])

    @property
    def reductions(self) -> Float64Array:
        """(lanes,) areas saved from the reward fires so far, in percent."""
        return np.array([100 * (1 - one.burned_cells / one.hazard.start_burned_cells) for one in self._rewarded])

    def reset(self, tiles: IntegerArray, scenario_seeds: IntegerArray) -> None:
        """Begin an episode per lane; arguments are (lanes,)."""
        self.lane_tiles, self.scenario_seeds = np.asarray(tiles, np.int64), np.asarray(scenario_seeds, np.int64)
        lanes = list(zip(self.lane_tiles.tolist(), self.scenario_seeds.tolist(), strict=True))
        planning = {lane: BurnState(self.planning(*lane)) for lane in set(lanes)}
        rewarding = {lane: BurnState(self.rewarding(*lane)) for lane in set(lanes)}
        exposure_of(list(planning.values()))  # traces the fires of a tile once, before its lanes copy them
        self.states = [planning[lane].copy() for lane in lanes]
        self._rewarded = [rewarding[lane].copy() for lane in lanes]
        self.exposure = exposure_of(self.states)

    def action_masks(self) -> BoolArray:
        """Return the (lanes, cells) that may be cleared."""
        return np.stack([state.legal() for state in self.states])

    def step(self, actions: IntegerArray) -> Float64Array:
        """Clear a cell in each open lane; return (lanes,) rewards in percent. ValueError for an illegal action."""
        rewards = np.zeros(len(self.states))
        for lane in np.flatnonzero(~self.terminated).tolist():
            state, rewarded, cell = self.states[lane], self._rewarded[lane], int(actions[lane])
            if not (0 <= cell < len(state.cleared) and state.legal()[cell]):
                raise ValueError(f"expected a cell that the action mask allows, got {cell} in lane {lane}")
            state.clear(cell)
            before = rewarded.burned_cells
            rewarded.clear(cell)
            rewards[lane] = 100 * (before - rewarded.burned_cells) / rewarded.hazard.start_burned_cells
        self.exposure = exposure_of(self.states)
        return rewards

    def observe(self) -> Float32Array:
        """Return (lanes, channels, rows, columns) of the current states."""
        return self.render(self.lane_tiles, self.cleared, self.exposure)

    def render(self, tiles: Int64Array, cleared: BoolArray, exposure: Exposure) -> Float32Array:
        """Return (n, channels, rows, columns) of states: tiles (n,), cleared (n, cells), exposure to planning fires."""
        budget, scenarios = self.config.budget_cells, self.config.scenarios
        left = np.maximum(budget - cleared.sum(axis=1, keepdims=True), 0) / budget
        burned = exposure.burned / (scenarios.winds * scenarios.planning_ignitions_per_wind)
        dynamic = [cleared, burned, exposure.downstream / exposure.start_burned_cells, np.repeat(left, self.cells, 1)]
        maps = np.stack(dynamic, axis=1).reshape(len(tiles), -1, *self._static.shape[2:])
        return np.concatenate([self._static[tiles], maps.astype(np.float32)], axis=1)
