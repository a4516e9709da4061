"""Policies (random cells, cells ranked by what fires are likely to do, a Q-network), and how they are judged."""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from data.fuel_breaks import Tile
from environment.fuel_breaks.env import CHANNELS, VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import BurnState, Hazard
from models.fuel_breaks import GridSymmetry, QNetwork, symmetric_values
from utils.arrays import BoolArray, Float64Array, Int64Array
from utils.config.fuel_breaks import FuelBreakConfig, QNetworkConfig

Policy = Callable[[VectorFuelBreakEnvironment], Int64Array]
"""Chooses a legal cell for each lane that has not terminated."""
Score = Callable[[BurnState], Float64Array]  # ranks the (cells,) of a state for clearing
_DOMIRANK_SHARE = 0.5
"""Competition in DomiRank as a share of its limit; the best of 0.1, 0.5, 0.9 and 0.99 on validation tiles."""
PERCENT_PER_UNIT = 10.0  # percent of reduction per unit of the network's values


def burn_probability(state: BurnState) -> Float64Array:
    """Count the fires that burn each cell."""
    return np.asarray(np.isfinite(state.arrival).sum(axis=0), dtype=np.float64)


def downstream_value(state: BurnState) -> Float64Array:
    """Count the cells burned through each cell, itself included, over fires."""
    return np.asarray(state.downstream.sum(axis=0), dtype=np.float64)


def tree_betweenness(state: BurnState) -> Float64Array:
    """Sum betweenness (Freeman 1977) over spread trees: in a tree, the ancestors times the descendants of a cell."""
    trees = state.trees()
    depth, ancestor = np.zeros(len(trees.cell), dtype=np.int64), trees.parent
    while (has_ancestor := ancestor < len(depth)).any():
        depth += has_ancestor
        ancestor = np.append(trees.parent, len(depth))[ancestor]
    pairs = depth * (trees.downstream() - 1)
    return np.asarray(np.bincount(trees.cell, pairs, state.hazard.cells), dtype=np.float64)


def domirank(state: BurnState) -> Float64Array:
    """Rank cells by DomiRank in the network of spread, whose undirected links are weighted by fires.

    Source: Engsig, Tejedor, Moreno, Foufoula-Georgiou and Kasmi (2024), "DomiRank centrality reveals structural
    fragility of complex networks": x solves (sigma A + I) x = sigma A 1, sigma < -1 / the least eigenvalue of A.
    """
    trees, cells = state.trees(), state.hazard.cells
    is_caught = trees.parent < len(trees.cell)
    links = np.zeros((cells, cells))
    np.add.at(links, (trees.cell[trees.parent[is_caught]], trees.cell[is_caught]), 1.0)
    links += links.T
    least = float(np.linalg.eigvalsh(links)[0])
    if least >= 0:  # no fire left its cell
        return burn_probability(state)
    competition = links * (_DOMIRANK_SHARE / -least)
    return np.linalg.solve(competition + np.eye(cells), competition.sum(axis=1))


def best_by(score: Score) -> Policy:
    """Clear the best legal cell by a score of the fires as they burn now."""
    return lambda env: np.array([np.where(one.legal(), score(one), -np.inf).argmax() for one in env.states])


def at_start(score: Score) -> Score:
    """Return a score of the fires without breaks, computed once for each set of fires."""
    known = WeakKeyDictionary[Hazard, Float64Array]()

    def lookup(state: BurnState) -> Float64Array:
        if state.hazard not in known:
            known[state.hazard] = score(BurnState(state.hazard))
        return known[state.hazard]

    return lookup


def baselines(seed: int = 0) -> dict[str, Policy]:
    """Return every baseline by name; the seed is for random cells."""
    generator = np.random.default_rng(seed)
    scores: dict[str, Score] = {
        "random": lambda state: generator.random(len(state.cleared)),
        "burn probability": at_start(burn_probability),
        "DomiRank": at_start(domirank),
        "betweenness": at_start(tree_betweenness),
        "static downstream value": at_start(downstream_value),
        "adaptive downstream value": downstream_value,
    }
    return {name: best_by(score) for name, score in scores.items()}


def build_network(config: QNetworkConfig) -> QNetwork:
    """Build a network for the environment's observations.

    Initially the advantage is the downstream value: what clearing the cell saves if fire finds no way around.
    """
    prior = CHANNELS.index("downstream_value") if config.downstream_prior else None
    return QNetwork(len(CHANNELS), config, prior_channel=prior, prior_scale=100 / PERCENT_PER_UNIT)


def build_symmetry(tile_cells: int) -> GridSymmetry:
    """Build the symmetries of the environment's observations."""
    compass = [number for number, name in enumerate(CHANNELS) if name.startswith("spread_rate")]
    east, north = CHANNELS.index("aspect_sine"), CHANNELS.index("aspect_cosine")
    return GridSymmetry(len(CHANNELS), tile_cells, compass=compass, east=east, north=north)


def greedy(network: QNetwork, symmetry: GridSymmetry) -> Policy:
    """Choose the legal cell whose value is largest in the mean over all symmetries."""
    return lambda env: action_values(network, env, symmetry).argmax(axis=1)


@torch.no_grad()
def action_values(
    network: QNetwork, env: VectorFuelBreakEnvironment, symmetry: GridSymmetry | None = None
) -> NDArray[np.float32]:
    """Return (lanes, cells) values of the current states, -inf for illegal cells."""
    arrays = env.observe(), env.action_masks()
    observation, legal = (torch.from_numpy(array).to(network.input_mean.device) for array in arrays)
    values = symmetric_values(network, symmetry, observation, legal) if symmetry else network(observation, legal)
    return values.cpu().numpy()


def proportional_choice(values: Float64Array, legal: BoolArray, generator: torch.Generator) -> Int64Array:
    """Draw a legal cell for each lane in proportion to its value, uniformly where all are 0."""
    weights = np.where(legal, values, 0.0)
    weights = np.where(weights.sum(axis=1, keepdims=True) > 0, weights, legal)
    totals = weights.cumsum(axis=1)
    draws = (1 - torch.rand(len(values), 1, generator=generator, dtype=torch.float64).numpy()) * totals[:, -1:]
    return np.asarray((totals < draws).sum(axis=1))


def place(policy: Policy, env: VectorFuelBreakEnvironment, tiles: Sequence[int], scenario_seed: int) -> BoolArray:
    """Return the (tiles, cells) breaks that a policy makes, seeing the planning fires of the seed."""
    env.reset(tiles, [scenario_seed] * len(tiles))
    while not env.terminated.all():
        env.step(policy(env))
    return env.cleared


def spaced(available: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced numbers below `available`."""
    chosen: list[int] = np.unique(np.linspace(0, available - 1, min(count, available)).round().astype(int)).tolist()
    return chosen


def judging_environment(tiles: Sequence[Tile], config: FuelBreakConfig) -> VectorFuelBreakEnvironment:
    """Return an environment whose rewards are by judging fires, the same for every policy and drawn once."""
    return VectorFuelBreakEnvironment(tiles, config, "judging", kept=len(tiles))


def reductions(
    policy: Policy,
    env: VectorFuelBreakEnvironment,
    scenario_seed: int = 0,
    lanes: int = 16,
    safe_point: Callable[[], None] = lambda: None,
) -> Float64Array:
    """Return the (tiles,) areas saved by a policy's breaks, in percent by the environment's reward fires.

    The tiles are played `lanes` at a time.
    """
    tiles, saved = range(len(env.tiles)), np.zeros(len(env.tiles))
    for first in tiles[::lanes]:
        safe_point()
        place(policy, env, tiles[first : first + lanes], scenario_seed)
        saved[first : first + lanes] = env.reductions
    return saved
