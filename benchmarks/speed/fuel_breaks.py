"""Fire spread against FlamMap, fires a second, and the baselines' results on real ground.

`python -m benchmarks.speed.fuel_breaks [--landscape FILE.npz] [--split validation|test] [--json FILE]`. Without a
landscape the built-in one is used and FlamMap's rows are left open; with one, the file must also hold what FlamMap
computed: `flammap_spread_rate_ch_hr` and `flammap_fire_type` (1 where a surface fire burns), for calm air.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.fuel_breaks.config import TileConfig
from data.fuel_breaks.fuel_models import FUEL_MODELS
from data.fuel_breaks.landscape import Landscape, Tile, cut_tiles, generated_landscape, load_landscape, split_tiles
from environment.fuel_breaks.config import FuelBreakConfig, FuelMoisture
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_behaviour import CHAINS_PER_HOUR_PER_METRE_PER_MINUTE, Wind, surface_fire
from environment.fuel_breaks.fires import BurnState
from training.fuel_breaks.policies import (
    baselines,
    best_by,
    downstream_value,
    judging_environment,
    place,
    reductions,
    spaced,
)

logger = logging.getLogger("benchmarks.speed.fuel_breaks")
FLAMMAP_MOISTURE = FuelMoisture(6, 8, 10, 75, 60)
"""The moistures for which FlamMap was run."""
_SURFACE = 1


@dataclass(frozen=True)
class SpreadError:
    """Relative errors of the spread rate on a group of cells."""

    group: str
    cells: int
    median: float
    percentile_95: float
    median_whole_degrees: float
    """With slopes rounded to whole degrees, as FlamMap takes them."""
    percentile_95_whole_degrees: float


def spread_errors(path: Path) -> list[SpreadError]:
    """Compare head-fire rates with FlamMap's on surface-fire cells: all of them, then by fuel model."""
    landscape = load_landscape(path)
    with np.load(path) as stored:
        expected = stored["flammap_spread_rate_ch_hr"].astype(np.float64)
        chosen = landscape.burnable & (stored["flammap_fire_type"] == _SURFACE) & (expected > 0)
    degrees = np.rint(np.rad2deg(np.arctan(landscape.slope_percent / 100)))
    whole = replace(landscape, slope_percent=(100 * np.tan(np.deg2rad(degrees))).astype(np.float32))
    codes, reference = landscape.fuel_model[chosen], expected[chosen]
    errors = [np.abs(_calm_rate_ch_hr(own)[chosen] / reference - 1) for own in (landscape, whole)]
    groups = [("all", np.ones(len(codes), dtype=np.bool_))]
    groups += [(FUEL_MODELS[int(code)].name, codes == code) for code in np.unique(codes)]
    return [
        SpreadError(
            name, int(own.sum()), *(float(np.percentile(error[own], share)) for error in errors for share in (50, 95))
        )
        for name, own in groups
    ]


def _calm_rate_ch_hr(landscape: Landscape) -> NDArray[np.float64]:
    rate = surface_fire(landscape, [Wind(0, 0)], FLAMMAP_MOISTURE).head_rate_m_min[0]
    return np.asarray(rate * CHAINS_PER_HOUR_PER_METRE_PER_MINUTE)


def cpu_seconds(work: Any, seconds: float = 2.0) -> float:
    """Return processor seconds of one call of `work`, over as many calls as take about the stated time."""
    work()
    calls, started, until = 0, time.process_time(), time.process_time() + seconds
    while time.process_time() < until:
        work()
        calls += 1
    return (time.process_time() - started) / calls


def speed_figures(tiles: Sequence[Tile], config: FuelBreakConfig) -> dict[str, float]:
    """Count fires and environment steps a second of one core, on up to 16 tiles with the settings' planning fires."""
    env = VectorFuelBreakEnvironment(tiles[:16], config)
    lanes, nothing = range(len(env.tiles)), np.zeros(env.cells, dtype=np.bool_)
    hazards = [env.planning(tile, 0) for tile in lanes]
    fires = sum(len(hazard.ignition_cells) for hazard in hazards)
    traced = cpu_seconds(lambda: [BurnState(hazard).downstream for hazard in hazards])
    episode_seconds = cpu_seconds(lambda: place(best_by(downstream_value), env, lanes, 0))
    return {
        "mean_burned_cells": sum(hazard.start_burned_cells for hazard in hazards) / fires,
        "fires_per_second": fires / cpu_seconds(lambda: [hazard.burn(nothing) for hazard in hazards]),
        "fires_with_trees_per_second": fires / traced,
        "steps_per_second": len(hazards) * config.budget_cells / episode_seconds,
    }


def baseline_table(tiles: Sequence[Tile], seeds: int, config: FuelBreakConfig) -> dict[str, dict[str, float]]:
    """Return the mean reduction of the burned area in percent over tiles, and its standard error, by baseline."""
    table, env = {}, judging_environment(tiles, config)
    for name, policy in baselines().items():
        reduction = reductions(policy, env, range(seeds), lanes=len(tiles))
        error = float(reduction.std(ddof=1)) / math.sqrt(len(tiles)) if len(tiles) > 1 else math.nan
        table[name] = {"reduction_percent": float(reduction.mean()), "standard_error": error}
        logger.info("%-28s %5.1f +- %.1f %%", name, *table[name].values())
    return table


def run(path: Path | None, split: str, seeds: int, max_tiles: int) -> dict[str, Any]:
    """Measure everything that the JSON file holds."""
    config, tile_config = FuelBreakConfig(), TileConfig()
    landscape = load_landscape(path) if path else generated_landscape(0)
    tiles = split_tiles(cut_tiles(landscape, tile_config), tile_config)[split]
    chosen = [tiles[tile] for tile in spaced(len(tiles), max_tiles)]
    errors = spread_errors(path) if path else []
    for error in errors:
        logger.info(
            "%-4s %7d cells: median error %.2f%%, 95th percentile %.2f%%; slopes in whole degrees %.3f%%, %.3f%%",
            *(error.group, error.cells, *(100 * value for value in list(vars(error).values())[2:])),
        )
    speed = speed_figures(tiles, config)
    logger.info("\n".join(f"{name}: {value:,.0f}" for name, value in speed.items()))
    return {
        "spread_errors": [asdict(error) for error in errors],
        "speed": speed,
        "tiles": len(chosen),
        "baselines": baseline_table(chosen, seeds, config),
    }


def main() -> None:
    """Measure, log the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--landscape", type=Path)
    parser.add_argument("--split", choices=("train", "validation", "test"), default="validation")
    parser.add_argument("--seeds", type=int, default=3, help="scenario seeds that a tile's reduction is averaged over")
    parser.add_argument("--tiles", type=int, default=30, help="at most this many tiles, evenly spaced in the split")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    results = run(arguments.landscape, arguments.split, arguments.seeds, arguments.tiles)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
