"""Surface fire behaviour: Rothermel's spread model on rasters, its wind and slope, and spread in eight directions.

Sources: Rothermel (1972), "A mathematical model for predicting fire spread in wildland fuels", INT-115, with the later
amendments as collected by Andrews (2018), "The Rothermel surface fire spread model and associated developments",
RMRS-GTR-371. The equations hold in British units; what leaves this module is in metres and minutes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data.fuel_breaks import FUEL_MODELS, FuelModel, Landscape
from utils.arrays import Float64Array
from utils.config.fuel_breaks import FuelMoisture

DIRECTION_DEGREES = np.arange(8) * 45.0  # bearings of the eight directions: north first, then clockwise
_FEET_PER_METRE = 1 / 0.3048
_FEET_PER_MINUTE_PER_KM_H = 1000 * _FEET_PER_METRE / 60
_MILES_PER_HOUR_PER_FOOT_PER_MINUTE = 60 / 5280
_POUNDS_PER_SQUARE_FOOT = 2000 / 43560  # in one short ton per acre
_PARTICLE_DENSITY = 32.0  # pounds per cubic foot, oven dry
_TOTAL_MINERAL, _EFFECTIVE_MINERAL = 0.0555, 0.010
_SAV_10H, _SAV_100H = 109.0, 30.0
_SIZE_CLASS_EDGES = (16.0, 48.0, 96.0, 192.0, 1200.0)
"""Surface-area-to-volume ratios between the size classes by which net loads are weighted."""
_CURED_PERCENT, _GREEN_PERCENT = 30.0, 120.0
"""Herbaceous moisture at which all, and none, of the herbaceous fuel counts as dead."""
_MAX_LENGTH_TO_BREADTH = 8.0


@dataclass(frozen=True)
class Wind:
    """Wind at midflame height, under trees 10% to 33% of that in the open at 6.1 m (Andrews 2012, RMRS-GTR-266)."""

    speed_km_h: float
    from_degrees: float  # where it comes from, clockwise from north


class FuelBed(NamedTuple):
    """Coefficients of spread of a fuel model at one moisture: rate = base (1 + wind factor + slope factor), as vectors.

    The slope factor is `slope * tan^2` of the slope, the wind factor `wind * U^wind_exponent`, U in feet per minute.
    """

    base_rate_m_min: float
    slope: float
    wind: float
    wind_exponent: float


class SurfaceFire(NamedTuple):
    """Head fire of each cell (W, rows, columns): rate along the ground, bearing, eccentricity of the fire's ellipse."""

    head_rate_m_min: Float64Array
    head_degrees: Float64Array
    eccentricity: Float64Array


@dataclass(frozen=True)
class _Particles:
    """The (n,) fuel classes of a model: loads in pounds per square foot, surface-area-to-volume ratios, moistures."""

    load: Float64Array
    sav: Float64Array
    moisture: Float64Array

    @property
    def area(self) -> Float64Array:
        return self.sav * self.load / _PARTICLE_DENSITY

    @property
    def weights(self) -> Float64Array:
        """Shares in the surface area."""
        return self.area / max(float(self.area.sum()), 1e-30)

    def mean(self, values: Float64Array) -> float:
        """Return the mean over classes, weighted by surface area."""
        return float((self.weights * values).sum())

    def damped_load(self, extinction: float) -> float:
        """Return the load without minerals, weighted by size class (Albini 1976), that moisture leaves to burn."""
        size = np.digitize(self.sav, _SIZE_CLASS_EDGES)
        shares = np.array([self.weights[size == other].sum() for other in size])
        ratio = self.mean(self.moisture) / extinction
        # The cubic is 0 at a ratio of 1, up to rounding.
        damping = 1 - 2.59 * ratio + 5.11 * ratio**2 - 3.52 * ratio**3 if ratio < 1 else 0.0
        return float((shares * self.load).sum() * (1 - _TOTAL_MINERAL)) * damping

    def heat_to_ignite(self) -> float:
        """Return the heat of preignition of the heated part of the fuel, Btu per pound."""
        return self.mean(np.exp(-138 / np.maximum(self.sav, 1.0)) * (250 + 1116 * self.moisture))


def _particles(model: FuelModel, moisture: FuelMoisture) -> tuple[_Particles, _Particles]:
    """Return dead and live fuel of a model; cured herbaceous fuel is dead, at the moisture of the finest dead fuel."""
    tons_acre = (model.load_1h, model.load_10h, model.load_100h, model.load_herbaceous, model.load_woody)
    loads = np.array(tons_acre) * _POUNDS_PER_SQUARE_FOOT
    cured = min(max((_GREEN_PERCENT - moisture.live_herbaceous_percent) / (_GREEN_PERCENT - _CURED_PERCENT), 0.0), 1.0)
    finest = moisture.dead_1h_percent
    dead = _Particles(
        np.array([*loads[:3], cured * loads[3]]),
        np.array([model.sav_1h, _SAV_10H, _SAV_100H, model.sav_herbaceous]),
        np.array([finest, moisture.dead_10h_percent, moisture.dead_100h_percent, finest]) / 100,
    )
    live = _Particles(
        np.array([(1 - cured) * loads[3], loads[4]]),
        np.array([model.sav_herbaceous, model.sav_woody], dtype=np.float64),
        np.array([moisture.live_herbaceous_percent, moisture.live_woody_percent]) / 100,
    )
    return dead, live


def _live_extinction(dead: _Particles, live: _Particles, dead_extinction: float) -> float:
    """Return the moisture of extinction of live fuel: the more fine dead fuel dries it, the higher."""
    # A class without load has ratio 0, which would give exp(-inf).
    fine_dead = dead.load * np.exp(-138 / np.maximum(dead.sav, 1.0))
    fine_live = live.load * np.exp(-500 / np.maximum(live.sav, 1.0))
    dead_to_live = fine_dead.sum() / fine_live.sum()
    fine_moisture = (fine_dead * dead.moisture).sum() / fine_dead.sum()
    extinction = 2.9 * dead_to_live * (1 - fine_moisture / dead_extinction) - 0.226
    return max(float(extinction), dead_extinction)


def fuel_bed(model: FuelModel, moisture: FuelMoisture) -> FuelBed:
    """Compute the spread coefficients of a fuel model at one moisture (Andrews 2018, tables 5 to 8)."""
    dead, live = _particles(model, moisture)
    area = np.array([dead.area.sum(), live.area.sum()])
    dead_share, live_share = (area / area.sum()).tolist()
    sav = dead_share * dead.mean(dead.sav) + live_share * live.mean(live.sav)
    bulk_density = float(dead.load.sum() + live.load.sum()) / model.depth_ft
    packing = bulk_density / _PARTICLE_DENSITY
    relative_packing = packing / (3.348 * sav**-0.8189)

    extinction = model.extinction_moisture_percent / 100
    damped_load = dead.damped_load(extinction)
    if live_share > 0:
        damped_load += live.damped_load(_live_extinction(dead, live, extinction))

    exponent = 133 * sav**-0.7913
    fastest_reaction = sav**1.5 / (495 + 0.0594 * sav**1.5)
    reaction = fastest_reaction * relative_packing**exponent * math.exp(exponent * (1 - relative_packing))
    mineral_damping = min(0.174 * _EFFECTIVE_MINERAL**-0.19, 1.0)
    intensity = reaction * damped_load * model.heat_btu_lb * mineral_damping
    flux_ratio = math.exp((0.792 + 0.681 * math.sqrt(sav)) * (packing + 0.1)) / (192 + 0.2595 * sav)
    preheated = dead_share * dead.heat_to_ignite() + live_share * live.heat_to_ignite()
    return FuelBed(
        base_rate_m_min=intensity * flux_ratio / (bulk_density * preheated) / _FEET_PER_METRE,
        slope=5.275 * packing**-0.3,
        wind=7.47 * math.exp(-0.133 * sav**0.55) * relative_packing ** (-0.715 * math.exp(-3.59e-4 * sav)),
        wind_exponent=0.02526 * sav**0.54,
    )


@lru_cache(maxsize=8)
def _bed_table(moisture: FuelMoisture) -> Float64Array:
    """Return the (4, 256) fields of `FuelBed` by fuel model code; base rate 0 where nothing burns."""
    table = np.ones((4, 256))
    table[0] = 0.0
    for code, model in FUEL_MODELS.items():
        table[:, code] = fuel_bed(model, moisture)
    return table


def surface_fire(landscape: Landscape, winds: Sequence[Wind], moisture: FuelMoisture) -> SurfaceFire:
    """Return each cell's head fire under each of W winds, wind and slope added as vectors (Andrews 2018, section 4.3).

    Unburnable cells have rate 0. The wind factor has no upper limit (Andrews, Cruz and Rothermel 2013).
    """
    base, slope, wind, exponent = _bed_table(moisture)[:, landscape.fuel_model]
    base = np.where(landscape.burnable, base, 0.0)
    upslope = np.deg2rad(landscape.aspect_degrees.astype(np.float64) + 180.0)
    is_sloped = landscape.aspect_degrees >= 0
    slope_factor = np.where(is_sloped, slope * (landscape.slope_percent / 100) ** 2, 0.0)
    # (W, 1, 1) against (rows, columns)
    downwind = np.deg2rad([one.from_degrees + 180.0 for one in winds])[:, None, None]
    speed_ft_min = np.array([one.speed_km_h * _FEET_PER_MINUTE_PER_KM_H for one in winds])[:, None, None]
    wind_factor = wind * speed_ft_min**exponent
    east = slope_factor * np.sin(upslope) + wind_factor * np.sin(downwind)
    north = slope_factor * np.cos(upslope) + wind_factor * np.cos(downwind)
    factor = np.hypot(east, north)
    effective_mph = (factor / wind) ** (1 / exponent) * _MILES_PER_HOUR_PER_FOOT_PER_MINUTE
    # Length to breadth of the ellipse of a fire under uniform conditions (section 4.5, as in BehavePlus).
    ratio = np.minimum(1 + effective_mph / 4, _MAX_LENGTH_TO_BREADTH)
    return SurfaceFire(base * (1 + factor), np.rad2deg(np.arctan2(east, north)) % 360.0, np.sqrt(1 - 1 / ratio**2))


def directional_rates(fire: SurfaceFire) -> Float64Array:
    """Return (W, 8, rows, columns) rates of spread in m/min along the eight directions.

    R(angle) = R_head (1 - e) / (1 - e cos(angle)) from the head's bearing (Alexander 1985; Andrews 2018, section 4.5).
    """
    angle = np.deg2rad(DIRECTION_DEGREES[:, None, None] - fire.head_degrees[:, None])
    eccentricity = fire.eccentricity[:, None]
    rate = fire.head_rate_m_min[:, None] * (1 - eccentricity)
    return np.asarray(rate / (1 - eccentricity * np.cos(angle)))
