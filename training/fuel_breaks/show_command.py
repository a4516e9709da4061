"""`python main.py fuel-breaks show`: pictures of a tile with the breaks of the network and of the baselines."""

import logging
from dataclasses import replace
from pathlib import Path

from training.fuel_breaks.config import FuelBreakShowArguments
from training.fuel_breaks.pictures import draw_breaks, draw_burn_probability, draw_fire
from training.fuel_breaks.policies import baselines, judging_environment, place
from training.fuel_breaks.run import AGENT, open_agent
from utils.errors import ConfigError

logger = logging.getLogger(__name__)
_IGNITIONS_PER_WIND = 200  # more fires than in an evaluation, so that the maps are smooth


def run_show(arguments: FuelBreakShowArguments) -> Path:
    """Draw a tile into `runs/fuel-breaks/NAME/tile-test-K/`; return that folder."""
    agent = open_agent(arguments.runs_dir, arguments.run, arguments.device, arguments.threads)
    tiles, env, seed = agent.test_tiles, agent.config.env, arguments.scenario_seed
    if arguments.tile >= len(tiles):
        raise ConfigError(f"expected a test tile from 0 to {len(tiles) - 1}, got {arguments.tile}")
    tile = tiles[arguments.tile]
    config = replace(env, scenarios=replace(env.scenarios, judging_ignitions_per_wind=_IGNITIONS_PER_WIND))
    vector, placements = judging_environment([tile], config), {}
    for policy_name, policy in {AGENT: agent.policy, **baselines(agent.config.seed)}.items():
        cleared = place(policy, vector, [0], seed)[0]
        placements[policy_name] = cleared, float(vector.reductions[0])
        logger.info("%-28s %6.2f %%", policy_name, placements[policy_name][1])
    folder, judging = agent.run.path / f"tile-test-{arguments.tile}", vector.rewarding(0, seed)
    folder.mkdir(exist_ok=True)
    name = f"Test tile {arguments.tile}"
    fires = f"{len(judging.ignition_cells)} fires of {judging.duration_minutes:.0f} minutes that no policy saw"
    note = "; ".join([fires, *agent.notes])
    hectares = env.budget_cells * tile.landscape.cell_size_m**2 / 10_000
    title = f"{name}: where each policy clears {env.budget_cells} cells ({hectares:.1f} ha)"
    draw_breaks(tile.landscape, placements, folder / "breaks.png", title, note)
    fires_on = tile.landscape, judging, placements[AGENT][0]
    title = f"{name}: burn probability before and after"
    draw_burn_probability(*fires_on, folder / "burn_probability.png", title, note)
    draw_fire(*fires_on, folder / "fire.gif", f"{name}: one fire, without and with breaks", note)
    logger.info("pictures in %s", folder)
    return folder
