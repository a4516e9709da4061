"""Settings of the fuel-break environment: fire weather, sets of fires and the task."""

from dataclasses import field
from typing import Annotated

from pydantic import Field

from utils.config.kinds import NonNegativeFloat, PositiveFloat, PositiveInt
from utils.config.settings import checked_dataclass, require

_Moisture = Annotated[float, Field(gt=0, le=300)]
_Ignitions = Annotated[int, Field(ge=1, le=1000)]


@checked_dataclass
class FuelMoisture:
    """Moisture of the fuel, percent of its dry weight; by default very dry (Scott and Burgan 2005, D1L1)."""

    dead_1h_percent: _Moisture = 3.0
    """Moisture of dead fuel that dries within an hour."""
    dead_10h_percent: _Moisture = 4.0
    """Moisture of dead fuel that dries within 10 hours."""
    dead_100h_percent: _Moisture = 5.0
    """Moisture of dead fuel that dries within 100 hours."""
    live_herbaceous_percent: _Moisture = 30.0
    """Moisture of live herbs: below 120 a growing share of them counts as dead; at 30 all of it."""
    live_woody_percent: _Moisture = 60.0
    """Moisture of live shrubs."""


@checked_dataclass
class ScenarioConfig:
    """Winds and ignitions of sets of fires, which are independent by purpose.

    A policy sees planning fires, is rewarded by others, and is judged by yet others: otherwise it would learn to clear
    the very cells where the fires that it sees begin.
    """

    winds: Annotated[int, Field(ge=1, le=360)] = 8
    """Winds of a set: directions evenly around the compass from a random start, speeds uniform."""
    min_wind_km_h: NonNegativeFloat = 15.0
    """Lowest speed of the wind at midflame height."""
    max_wind_km_h: Annotated[float, Field(le=200)] = 25.0
    """Highest speed of the wind at midflame height."""
    duration_minutes: PositiveFloat = 120.0
    """Minutes that a fire burns."""
    planning_ignitions_per_wind: _Ignitions = 40
    """Fires behind the burn probability and the downstream value that are observed."""
    reward_ignitions_per_wind: _Ignitions = 20
    """Fires behind the reward: 160 with 8 winds, since with 40 the noise drowns the effect of one cell."""
    judging_ignitions_per_wind: _Ignitions = 25
    """Fires behind the figures of an evaluation."""

    def __post_init__(self) -> None:
        speeds = (self.min_wind_km_h, self.max_wind_km_h)
        require(speeds[0] <= speeds[1], "min-wind-km-h <= max-wind-km-h", speeds)


@checked_dataclass
class FuelBreakConfig:
    """The environment in which fuel breaks are placed, one cell a step."""

    budget_cells: PositiveInt = 20
    """Cells that an episode may clear; 5% of a tile of 20 x 20."""
    moisture: FuelMoisture = field(default_factory=FuelMoisture)
    scenarios: ScenarioConfig = field(default_factory=ScenarioConfig)
