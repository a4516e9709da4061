"""Fires against slow, plain oracles and FlamMap, by the compass, and what must hold of any fire."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.fuel_breaks import FUEL_MODELS, Landscape, load_landscape
from environment.fuel_breaks.fire_behaviour import Wind, directional_rates, fuel_bed, surface_fire
from environment.fuel_breaks.fire_spread import Hazard, draw_scenarios
from tests.fuel_breaks.run_cases import flat_landscape, random_landscape, random_mask, rotated, small_config
from utils.config.fuel_breaks import FuelMoisture, ScenarioConfig

NEIGHBOURS = {0: (-1, 0), 1: (-1, 1), 2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (1, -1), 6: (0, -1), 7: (-1, -1)}


def slow_arrival(
    landscape: Landscape, wind: Wind, cleared: NDArray[np.bool_], ignition: int, duration: float
) -> NDArray[np.float64]:
    """Bellman-Ford in plain Python over cells, edges written out."""
    rows, columns = landscape.shape
    rates = directional_rates(surface_fire(landscape, [wind], FuelMoisture()))[0]
    closed = cleared.reshape(rows, columns) | ~landscape.burnable
    best = {(r, c): float("inf") for r in range(rows) for c in range(columns)}
    best[divmod(ignition, columns)] = float("inf") if cleared[ignition] else 0.0
    for _ in range(rows * columns):
        for (r, c), minute in list(best.items()):
            for direction, (down, right) in NEIGHBOURS.items():
                to = (r + down, c + right)
                if minute == float("inf") or to not in best or closed[r, c] or closed[to]:
                    continue
                rise = float(landscape.elevation_m[to]) - float(landscape.elevation_m[r, c])
                metres = np.sqrt((30 * down) ** 2 + (30 * right) ** 2 + rise**2)
                taken = metres / 2 / rates[direction, r, c] + metres / 2 / rates[(direction, *to)]
                best[to] = min(best[to], minute + taken)
    arrival = np.array(list(best.values()))
    return np.where(arrival <= duration, arrival, np.inf)


def hazard_of(landscape: Landscape, wind: Wind, ignitions: list[int], duration: float) -> Hazard:
    config = small_config(scenarios=ScenarioConfig(duration_minutes=duration))
    return Hazard(landscape, [wind], np.array([ignitions], dtype=np.int32), config)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.floats(0, 30), st.floats(0, 360), st.floats(10, 600), st.floats(0, 0.4))
def test_arrivals_are_those_of_the_slow_search(
    seed: int, speed: float, bearing: float, duration: float, share: float
) -> None:
    landscape, wind = random_landscape(4, 5, seed), Wind(speed, bearing)
    cleared = random_mask(20, share, seed)
    ignition = int(landscape.burnable.argmax())
    fast = hazard_of(landscape, wind, [ignition], duration).burn(cleared)[0]
    np.testing.assert_allclose(fast, slow_arrival(landscape, wind, cleared, ignition, duration), rtol=1e-9)


@given(st.integers(0, 2**40), st.integers(1, 12), st.integers(1, 60))
def test_scenarios(seed: int, winds: int, ignitions: int) -> None:
    burnable = random_mask(50, 0.5, seed % 1000) | (np.arange(50) == 7)
    per_wind = {"planning_ignitions_per_wind": ignitions, "reward_ignitions_per_wind": ignitions}
    config = ScenarioConfig(winds, min_wind_km_h=3, **per_wind)
    drawn, cells = draw_scenarios(burnable, config, "planning", seed)
    again, same_cells = draw_scenarios(burnable, config, "planning", seed)
    assert drawn == again and (cells == same_cells).all()
    assert cells.shape == (winds, ignitions) and burnable[cells].all()
    counts = np.bincount(cells.ravel(), minlength=50)[burnable]
    assert counts.max() - counts.min() <= 1
    assert all(3 <= wind.speed_km_h <= config.max_wind_km_h for wind in drawn)
    bearings = np.sort([wind.from_degrees for wind in drawn])
    np.testing.assert_allclose(np.diff(bearings), 360 / winds)
    assert draw_scenarios(burnable, config, "reward", seed)[0] != drawn
    assert draw_scenarios(burnable, config, "planning", seed + 1)[0] != drawn


REAL = Path(__file__).parents[3] / "shared" / "data" / "landfire_vt_west.npz"
CHAINS_PER_HOUR_PER_METRE_PER_MINUTE = 60 / 20.1168
FLAMMAP_MOISTURE = FuelMoisture(6, 8, 10, 75, 60)
FLAMMAP_FLAT_CH_HR = (
    *((101, 0.5024), (102, 0.9697), (106, 2.578), (121, 0.728), (123, 1.553), (143, 0.32), (144, 1.957), (146, 1.554)),
    *((161, 0.288), (162, 0.8833), (165, 1.141), (181, 0.1212), (183, 0.1891), (185, 0.4324), (186, 0.601)),
    (189, 1.066),
)
"""What FlamMap gives for flat ground and calm air at these moistures, in chains an hour, by fuel model."""
CALM = Wind(0, 0)
N, NE, E, S, W = 0, 1, 2, 4, 6


@pytest.mark.parametrize(("code", "expected"), FLAMMAP_FLAT_CH_HR)
def test_flat_ground_spreads_as_in_flammap(code: int, expected: float) -> None:
    rate = fuel_bed(FUEL_MODELS[code], FLAMMAP_MOISTURE).base_rate_m_min * CHAINS_PER_HOUR_PER_METRE_PER_MINUTE
    assert rate == pytest.approx(expected, rel=1e-3)


@pytest.mark.skipif(not REAL.exists(), reason=f"no real landscape at {REAL}")
def test_a_real_landscape_spreads_as_in_flammap() -> None:
    landscape = load_landscape(REAL)
    with np.load(REAL) as stored:
        expected = stored["flammap_spread_rate_ch_hr"].astype(np.float64)
        is_surface = landscape.burnable & (stored["flammap_fire_type"] == 1)
    # FlamMap takes slopes in whole degrees; given the same, nothing is left but the rounding of its output.
    degrees = np.rint(np.rad2deg(np.arctan(landscape.slope_percent / 100)))
    rounded = (100 * np.tan(np.deg2rad(degrees))).astype(np.float32)

    def errors(slope: NDArray[np.float32]) -> NDArray[np.float64]:
        fire = surface_fire(replace(landscape, slope_percent=slope), [CALM], FLAMMAP_MOISTURE)
        rate = fire.head_rate_m_min[0] * CHAINS_PER_HOUR_PER_METRE_PER_MINUTE
        return np.abs(rate[is_surface] / expected[is_surface] - 1)

    error = errors(landscape.slope_percent)
    assert len(error) > 170_000 and np.median(error) < 0.015 and np.percentile(error, 95) < 0.0321
    assert errors(rounded).max() < 1e-3


@pytest.mark.parametrize(("aspect", "uphill"), [(180, N), (0, S), (90, W), (270, E), (225, NE)])
def test_fire_runs_uphill(aspect: float, uphill: int) -> None:
    landscape = flat_landscape(1, 1, slope_percent=40, aspect_degrees=aspect)
    assert directional_rates(surface_fire(landscape, [CALM], FuelMoisture()))[0, :, 0, 0].argmax() == uphill


@given(st.floats(0, 40), st.floats(0, 360), st.floats(0, 80), st.integers(0, 359))
def test_the_shape_is_an_ellipse(speed: float, bearing: float, slope: float, aspect: int) -> None:
    landscape = flat_landscape(1, 1, slope_percent=slope, aspect_degrees=aspect)
    fire = surface_fire(landscape, [Wind(speed, bearing)], FuelMoisture())
    head, eccentricity = fire.head_rate_m_min[0, 0, 0], fire.eccentricity[0, 0, 0]
    rates = directional_rates(fire)[0, :, 0, 0]
    assert (rates > 0).all() and (rates <= head * (1 + 1e-12)).all() and 0 <= eccentricity < 1
    # Chords of an ellipse through a focus: the inverses of opposite distances add up to 2 / semi-latus rectum.
    opposite = 1 / rates[:4] + 1 / rates[4:]
    np.testing.assert_allclose(opposite, 2 / (head * (1 - eccentricity)), rtol=1e-9)


def test_length_to_breadth_grows_with_the_wind() -> None:
    five_mph, ten_mph = 5 * 1.609344, 10 * 1.609344
    for speed, ratio in ((0.0, 1.0), (five_mph, 2.25), (ten_mph, 3.5), (100.0, 8.0)):
        eccentricity = surface_fire(flat_landscape(1, 1), [Wind(speed, 33)], FuelMoisture()).eccentricity[0, 0, 0]
        assert 1 / np.sqrt(1 - eccentricity**2) == pytest.approx(ratio, rel=1e-4)


@settings(max_examples=20)
@given(st.integers(0, 1000), st.floats(0, 40), st.floats(0, 360))
def test_turning_the_landscape_and_the_wind_turns_the_fire(seed: int, speed: float, bearing: float) -> None:
    landscape = random_landscape(4, 5, seed)
    rates = directional_rates(surface_fire(landscape, [Wind(speed, bearing)], FuelMoisture()))[0]
    turned = directional_rates(surface_fire(rotated(landscape), [Wind(speed, bearing - 90)], FuelMoisture()))[0]
    np.testing.assert_allclose(turned, np.rot90(np.roll(rates, -2, axis=0), axes=(1, 2)), rtol=1e-6, atol=1e-9)


@given(st.sampled_from(sorted(FUEL_MODELS)), st.floats(1, 40), st.floats(1, 40), st.floats(30, 300), st.floats(30, 300))
def test_wetter_fuel_spreads_no_faster(code: int, dry: float, wet: float, herb: float, woody: float) -> None:
    moistures = [FuelMoisture(dead, dead, dead, herb, woody) for dead in sorted((dry, wet))]
    dryer, wetter = (fuel_bed(FUEL_MODELS[code], moisture).base_rate_m_min for moisture in moistures)
    assert dryer >= wetter * (1 - 1e-9) >= 0
