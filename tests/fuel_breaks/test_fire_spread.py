"""Fires over a raster against slow, plain oracles, and what must hold of any fire."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.fuel_breaks.landscape import Landscape
from environment.fuel_breaks.config import FuelMoisture, ScenarioConfig
from environment.fuel_breaks.fire_behaviour import Wind, directional_rates, surface_fire
from environment.fuel_breaks.fire_spread import BurnState, Hazard, draw_scenarios, exposure_of
from tests.fuel_breaks.fire_cases import random_landscape, random_mask, small_config

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


def random_hazard(seed: int) -> Hazard:
    landscape = random_landscape(8, 7, seed)
    drawn = draw_scenarios(landscape.burnable.ravel(), small_config().scenarios, "planning", seed)
    return Hazard(landscape, *drawn, small_config())


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 12))
def test_step_by_step_is_bit_for_bit_as_from_scratch(seed: int, breaks: int) -> None:
    hazard = random_hazard(seed)
    state = BurnState(hazard)
    rng = np.random.default_rng(seed)
    for _ in range(breaks):
        legal = np.flatnonzero(state.legal())
        if len(legal):
            state.clear(int(rng.choice(legal)))
    fresh = BurnState(hazard, state.cleared)
    assert (state.arrival == fresh.arrival).all() and (state.downstream == fresh.downstream).all()
    assert all(map(np.array_equal, exposure_of([state]), exposure_of([fresh])))


@given(st.integers(0, 2**40), st.integers(1, 12), st.integers(1, 60))
def test_scenarios(seed: int, winds: int, ignitions: int) -> None:
    burnable = random_mask(50, 0.5, seed % 1000) | (np.arange(50) == 7)
    config = ScenarioConfig(
        winds, planning_ignitions_per_wind=ignitions, reward_ignitions_per_wind=ignitions, min_wind_km_h=3
    )
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
