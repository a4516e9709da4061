"""Settings of the fuel-break experiment: the landscape and its tiles, fire weather, scenarios and the environment."""

from __future__ import annotations

from dataclasses import dataclass, field

from utils.config.settings import require


@dataclass(frozen=True)
class FuelMoisture:
    """Moisture of the fuel, percent of its dry weight; by default very dry (Scott and Burgan 2005, D1L1)."""

    dead_1h_percent: float = 3.0
    dead_10h_percent: float = 4.0
    dead_100h_percent: float = 5.0
    live_herbaceous_percent: float = 30.0
    """Below 120 a growing share of the herbaceous fuel counts as dead; at 30 all of it."""
    live_woody_percent: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(0 < value <= 300, f"0 < {name.replace('_', '-')} <= 300", value)


@dataclass(frozen=True)
class ScenarioConfig:
    """From what winds and ignitions fires are drawn.

    A set of fires has a purpose, and the sets of different purposes are independent: whoever places breaks sees the
    planning fires, is rewarded by others, and is judged by yet others. Otherwise it would learn to clear the very cells
    where the fires that it sees begin.
    """

    winds: int = 8
    """Winds of a set: directions evenly around the compass from a random start, speeds uniform."""
    min_wind_km_h: float = 15.0
    """Wind at midflame height."""
    max_wind_km_h: float = 25.0
    duration_minutes: float = 120.0
    planning_ignitions_per_wind: int = 40
    """Fires behind the burn probability and the downstream value that are observed."""
    reward_ignitions_per_wind: int = 5
    """Fires behind the reward: 40 with 8 winds."""
    judging_ignitions_per_wind: int = 25
    """Fires behind the figures of an evaluation."""

    def __post_init__(self) -> None:
        require(1 <= self.winds <= 360, "1 <= winds <= 360", self.winds)
        require(self.min_wind_km_h >= 0, "min-wind-km-h >= 0", self.min_wind_km_h)
        wind_range = (self.min_wind_km_h, self.max_wind_km_h)
        require(wind_range[0] <= wind_range[1] <= 200, "min-wind-km-h <= max-wind-km-h <= 200", wind_range)
        require(self.duration_minutes > 0, "duration-minutes > 0", self.duration_minutes)
        for name in ("planning", "reward", "judging"):
            ignitions = getattr(self, f"{name}_ignitions_per_wind")
            require(1 <= ignitions <= 1000, f"1 <= {name}-ignitions-per-wind <= 1000", ignitions)


@dataclass(frozen=True)
class FuelBreakConfig:
    """The environment in which fuel breaks are placed, one cell a step."""

    budget_cells: int = 20
    """Cells that an episode may clear; 5% of a tile of 20 x 20."""
    moisture: FuelMoisture = field(default_factory=FuelMoisture)
    scenarios: ScenarioConfig = field(default_factory=ScenarioConfig)
    cached_states: int = 16_384
    """States whose fires are kept rather than computed again; 3 KB each at 20 x 20 cells and 320 planning fires."""
    cached_episodes: int = 64
    """Tiles with scenario sets whose spread graphs are kept; 0.2 MB each at 20 x 20 cells and 8 winds."""

    def __post_init__(self) -> None:
        require(self.budget_cells >= 1, "budget-cells >= 1", self.budget_cells)
        require(self.cached_states >= 1, "cached-states >= 1", self.cached_states)
        require(self.cached_episodes >= 1, "cached-episodes >= 1", self.cached_episodes)
