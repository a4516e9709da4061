"""`python main.py fuel-breaks show`: pictures of a tile with the breaks of the network and of the baselines."""

import logging
from dataclasses import replace
from pathlib import Path

from data.fuel_breaks.landscape import Tile
from training.fuel_breaks.config import FuelBreakShowArguments
from training.fuel_breaks.pictures import draw_breaks, draw_burn_probability, draw_fire, draw_learning
from training.fuel_breaks.policies import baselines, judging_environment, place
from training.fuel_breaks.run import AGENT, SavedAgent, open_agent
from utils.errors import ConfigError

logger = logging.getLogger(__name__)
_IGNITIONS_PER_WIND = 200  # more fires than in an evaluation, so that the maps are smooth


def run_show(arguments: FuelBreakShowArguments) -> Path:
    """Draw a tile into `runs/fuel-breaks/NAME/tile-SPLIT-K/`, and the learning curve; return that folder."""
    agent = open_agent(arguments.runs_dir, arguments.run, arguments.device, arguments.threads)
    tiles = agent.tiles[arguments.split]
    if arguments.tile >= len(tiles):
        raise ConfigError(f"expected a {arguments.split} tile from 0 to {len(tiles) - 1}, got {arguments.tile}")
    folder = agent.run.path / f"tile-{arguments.split}-{arguments.tile}"
    folder.mkdir(exist_ok=True)
    name = f"{arguments.split.capitalize()} tile {arguments.tile}"
    _draw_tile(agent, tiles[arguments.tile], name, arguments.scenario_seed, folder)
    if records := agent.run.records():
        draw_learning(records, agent.run.path / "learning.png", "; ".join(agent.notes))
    logger.info("pictures in %s and %s", folder, agent.run.path / "learning.png")
    return folder


def _draw_tile(agent: SavedAgent, tile: Tile, name: str, seed: int, folder: Path) -> None:
    env, landscape = agent.config.env, tile.landscape
    config = replace(env, scenarios=replace(env.scenarios, judging_ignitions_per_wind=_IGNITIONS_PER_WIND))
    vector, placements = judging_environment([tile], config), {}
    judging = vector.rewarding(0, seed)
    for policy_name, policy in {AGENT: agent.policy, **baselines(agent.config.seed)}.items():
        cleared = place(policy, vector, [0], seed)[0]
        placements[policy_name] = cleared, float(vector.reductions[0])
        logger.info("%-28s %6.2f %%", policy_name, placements[policy_name][1])
    fires = f"{len(judging.ignition_cells)} fires of {judging.duration_minutes:.0f} minutes that no policy saw"
    fires_note = "; ".join([fires, *agent.notes])
    hectares = env.budget_cells * landscape.cell_size_m**2 / 10_000
    title = f"{name}: where each policy clears {env.budget_cells} cells ({hectares:.1f} ha)"
    draw_breaks(landscape, placements, folder / "breaks.png", title, fires_note)
    cleared = placements[AGENT][0]
    title = f"{name}: burn probability before and after"
    draw_burn_probability(landscape, judging, cleared, folder / "burn_probability.png", title, fires_note)
    title = f"{name}: one fire, without and with breaks"
    draw_fire(landscape, judging, cleared, folder / "fire.gif", title, "; ".join(agent.notes))
