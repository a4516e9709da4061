"""`python main.py fuel-breaks show`: pictures of a tile with the breaks of the network and of the baselines."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.fuel_breaks.fuel_models import FUEL_MODELS
from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.burn_state import BurnState, FireSimulator, Hazard
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_behaviour import Wind
from environment.fuel_breaks.fire_spread import BoolArray, draw_scenarios
from training.fuel_breaks.arguments import FuelBreakShowArguments
from training.fuel_breaks.baselines import baselines, place, reduction_percent
from training.fuel_breaks.evaluate_command import AGENT
from training.fuel_breaks.pictures import (
    COVERS,
    FirePair,
    Placement,
    TileMap,
    draw_breaks,
    draw_burn_probability,
    draw_fire,
    draw_learning,
)
from training.fuel_breaks.run import GENERATED, SavedAgent, open_agent
from utils.errors import ConfigError
from utils.runs.devices import choose_device, choose_threads

logger = logging.getLogger(__name__)
_RIVAL = "adaptive downstream value"
_IGNITIONS_PER_WIND = 200
"""Of the pictures: more fires than an evaluation has, so that the maps are smooth."""
_COVER_OF_PREFIX = {"GR": 1, "GS": 2, "SH": 3, "TU": 4, "TL": 5, "SB": 6}


def run_show(arguments: FuelBreakShowArguments) -> Path:
    """Draw one tile into `runs/fuel-breaks/NAME/tile-SPLIT-K/` and the run's learning curve; returns that folder.

    Raises:
        ConfigError, DataError: there is no such run or tile, or its landscape cannot be read.
    """
    device = choose_device(arguments.device)
    choose_threads(arguments.threads)
    agent = open_agent(arguments.runs_dir, arguments.run, device)
    tiles = agent.tiles(arguments.split)
    if arguments.tile >= len(tiles):
        raise ConfigError(f"expected a {arguments.split} tile from 0 to {len(tiles) - 1}, got {arguments.tile}")
    folder = agent.run.path / f"tile-{arguments.split}-{arguments.tile}"
    folder.mkdir(exist_ok=True)
    _draw_tile(agent, tiles[arguments.tile], arguments, folder)
    note = _note(agent)
    if records := agent.run.records():
        draw_learning(records, agent.run.path / "learning.png", note)
    logger.info("pictures in %s and %s", folder, agent.run.path / "learning.png")
    return folder


def _draw_tile(agent: SavedAgent, tile: Tile, arguments: FuelBreakShowArguments, folder: Path) -> None:
    seed = arguments.scenario_seed
    config = replace(
        agent.config.env, scenarios=replace(agent.config.env.scenarios, judging_ignitions_per_wind=_IGNITIONS_PER_WIND)
    )
    judge = FireSimulator([tile], config, "judging").hazard(0, seed)
    placements = place_all(agent, tile, judge, seed)
    ground = tile_map(tile)
    name = f"{arguments.split.capitalize()} tile {arguments.tile}"
    fires = f"{len(judge.ignition_cells)} fires of {judge.duration_minutes:.0f} minutes that no policy saw"
    note = "; ".join([fires, *([text] if (text := _note(agent)) else [])])
    ordered = list(placements.values())
    budget = f"{agent.config.env.budget_cells} cells ({_hectares(agent, ground):.1f} ha)"
    draw_breaks(ground, ordered, folder / "breaks.png", f"{name}: where each policy clears {budget}", note)
    before = _burn_probability(judge, np.zeros(judge.grid.cells, dtype=np.bool_))
    chosen = [placements[AGENT], placements[_RIVAL]]
    title = f"{name}: burn probability before and after"
    draw_burn_probability(ground, before, chosen, folder / "burn_probability.png", title, note)
    winds = draw_scenarios(judge.burnable, config.scenarios, "judging", seed).winds
    fire = typical_fire(judge, placements[AGENT].cleared, winds)
    draw_fire(ground, fire, folder / "fire.gif", f"{name}: one fire, without and with breaks", note=_note(agent))
    for placement in ordered:
        logger.info("%-28s %6.2f %%", placement.name, placement.reduction_percent)


def place_all(agent: SavedAgent, tile: Tile, judge: Hazard, scenario_seed: int) -> Mapping[str, Placement]:
    """The breaks of the network, then those of each baseline, judged by the same fires."""
    env = VectorFuelBreakEnvironment([tile], agent.config.env)
    placements = {}
    for name, policy in {AGENT: agent.policy, **baselines(agent.config.seed)}.items():
        cleared = place(policy, env, [0], scenario_seed)[0]
        shape = tile.landscape.shape
        reduction = reduction_percent(judge, cleared)
        placements[name] = Placement(name, cleared.reshape(shape), reduction, _burn_probability(judge, cleared))
    return placements


def typical_fire(judge: Hazard, cleared: BoolArray, winds: Sequence[Wind]) -> FirePair:
    """Of the judging fires of at least mean size, the one for which breaks save the share closest to that of all."""
    without = BurnState(judge).arrival
    with_breaks = BurnState(judge, cleared.ravel()).arrival
    before, after = (np.isfinite(arrival).sum(axis=1) for arrival in (without, with_breaks))
    share = 1 - after / np.maximum(before, 1)
    distance = np.where(before >= before.mean(), np.abs(share - (1 - after.sum() / before.sum())), np.inf)
    fire = int(distance.argmin())
    wind, shape = winds[int(judge.wind_of_fire[fire])], judge.grid.shape
    return FirePair(
        without[fire].reshape(shape),
        with_breaks[fire].reshape(shape),
        cleared,
        judge.duration_minutes,
        wind.speed_km_h,
        wind.from_degrees,
    )


def tile_map(tile: Tile) -> TileMap:
    """A tile as the pictures show it: kinds of fuel by the letters of their models' names."""
    landscape = tile.landscape
    cover = np.zeros(landscape.shape, dtype=np.int64)
    for code in np.unique(landscape.fuel_model[landscape.burnable]).tolist():
        cover[landscape.burnable & (landscape.fuel_model == code)] = _COVER_OF_PREFIX[FUEL_MODELS[code].name[:2]]
    assert cover.max() < len(COVERS)
    return TileMap(cover, landscape.elevation_m, landscape.cell_size_m)


def _burn_probability(hazard: Hazard, cleared: BoolArray) -> NDArray[np.float64]:
    burned = np.isfinite(BurnState(hazard, cleared).arrival).mean(axis=0)
    return np.asarray(burned.reshape(hazard.grid.shape))


def _hectares(agent: SavedAgent, ground: TileMap) -> float:
    return agent.config.env.budget_cells * ground.cell_hectares


def _note(agent: SavedAgent) -> str | None:
    return GENERATED if agent.config.landscape is None else None
