"""Policies (random cells, cells ranked by what fires are likely to do, a Q-network), and how they are judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.config import FuelBreakConfig
from environment.fuel_breaks.env import CHANNELS, VectorFuelBreakEnvironment
from environment.fuel_breaks.fires import BoolArray, BurnState, FireSimulator, Float64Array, Hazard
from models.fuel_breaks.config import QNetworkConfig
from models.fuel_breaks.q_network import GridSymmetry, QNetwork, symmetric_values
from utils.progress import Progress

Policy = Callable[[VectorFuelBreakEnvironment], NDArray[np.int64]]
"""Chooses a legal cell for each lane that has not terminated."""
Score = Callable[[BurnState], Float64Array]  # ranks the (cells,) of a state for clearing
_DOMIRANK_SHARE = 0.5
"""Competition in DomiRank as a share of its limit; the best of 0.1, 0.5, 0.9 and 0.99 on validation tiles."""
DOWNSTREAM = CHANNELS.index("downstream_value")
PERCENT_PER_UNIT = 10.0  # percent of reduction per unit of the network's values
_PRIOR_SCALE = 100 / PERCENT_PER_UNIT
"""Initially the advantage is the downstream value: what clearing the cell saves if fire finds no way around."""


def burn_probability(state: BurnState) -> Float64Array:
    """Count the fires that burn each cell."""
    return np.asarray(np.isfinite(state.arrival).sum(axis=0), dtype=np.float64)


def downstream_value(state: BurnState) -> Float64Array:
    """Count the cells burned through each cell, itself included, over fires."""
    return np.asarray(state.downstream.sum(axis=0), dtype=np.float64)


def tree_betweenness(state: BurnState) -> Float64Array:
    """Sum betweenness (Freeman 1977) over spread trees: in a tree, the ancestors times the descendants of a cell."""
    trees = state.trees()
    pairs = trees.depth() * (trees.downstream() - 1)
    return np.asarray(np.bincount(trees.cell, pairs, state.hazard.grid.cells), dtype=np.float64)


def domirank(state: BurnState) -> Float64Array:
    """Rank cells by DomiRank in the network of spread, whose undirected links are weighted by fires.

    Source: Engsig, Tejedor, Moreno, Foufoula-Georgiou and Kasmi (2024), "DomiRank centrality reveals structural
    fragility of complex networks": x solves (sigma A + I) x = sigma A 1, sigma < -1 / the least eigenvalue of A.
    """
    trees, cells = state.trees(), state.hazard.grid.cells
    is_caught = trees.parent < len(trees.cell)
    links = np.zeros((cells, cells))
    np.add.at(links, (trees.cell[trees.parent[is_caught]], trees.cell[is_caught]), 1.0)
    links += links.T
    least = float(np.linalg.eigvalsh(links)[0])
    if least >= 0:  # no fire left its cell
        return burn_probability(state)
    competition = links * (_DOMIRANK_SHARE / -least)
    return np.asarray(np.linalg.solve(competition + np.eye(cells), competition.sum(axis=1)))


def best_legal(scores: Float64Array, state: BurnState) -> int:
    """Return the legal cell with the largest score; 0 if there is none."""
    return int(np.where(state.legal(), scores, -np.inf).argmax())


def adaptive(score: Score) -> Policy:
    """Clear the best cell by a score that is computed anew after each cell."""

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        return np.array([best_legal(score(state), state) for state in env.states])

    return choose


def static(score: Score) -> Policy:
    """Clear the best cells by a score of the fires without breaks."""
    known: WeakKeyDictionary[Hazard, Float64Array] = WeakKeyDictionary()

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        for hazard in {state.hazard for state in env.states}.difference(known):
            known[hazard] = score(BurnState(hazard))
        return np.array([best_legal(known[state.hazard], state) for state in env.states])

    return choose


def random_cells(generator: np.random.Generator) -> Policy:
    """Clear random legal cells."""

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        draws = generator.random((len(env.states), env.cells))
        return np.array([best_legal(own, state) for own, state in zip(draws, env.states, strict=True)])

    return choose


def baselines(seed: int = 0) -> dict[str, Policy]:
    """Return every baseline by name; the seed is for random cells."""
    return {
        "random": random_cells(np.random.Generator(np.random.PCG64(seed))),
        "burn probability": static(burn_probability),
        "DomiRank": static(domirank),
        "betweenness": static(tree_betweenness),
        "static downstream value": static(downstream_value),
        "adaptive downstream value": adaptive(downstream_value),
    }


def build_network(config: QNetworkConfig) -> QNetwork:
    """Build a network for the environment's observations."""
    prior = DOWNSTREAM if config.downstream_prior else None
    return QNetwork(len(CHANNELS), config, prior_channel=prior, prior_scale=_PRIOR_SCALE)


def build_symmetry(tile_cells: int) -> GridSymmetry:
    """Build the symmetries of the environment's observations."""
    compass = [number for number, name in enumerate(CHANNELS) if name.startswith("spread_rate")]
    east, north = CHANNELS.index("aspect_sine"), CHANNELS.index("aspect_cosine")
    return GridSymmetry(len(CHANNELS), tile_cells, compass=compass, east=east, north=north)


def greedy(network: QNetwork, device: torch.device, symmetry: GridSymmetry | None) -> Policy:
    """Choose the legal cell of the largest value, with a symmetry its mean over all eight."""

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        return np.asarray(action_values(network, env, device, symmetry).argmax(axis=1))

    return choose


@torch.no_grad()
def action_values(
    network: QNetwork, env: VectorFuelBreakEnvironment, device: torch.device, symmetry: GridSymmetry | None
) -> NDArray[np.float32]:
    """Return (lanes, cells) values of the current states, -inf for illegal cells."""
    observation = torch.from_numpy(env.observe()).to(device)
    legal = torch.from_numpy(env.action_masks()).to(device)
    if symmetry is None:
        return np.asarray(network(observation, legal).cpu().numpy())
    return np.asarray(symmetric_values(network, symmetry, observation, legal).cpu().numpy())


def downstream_values(env: VectorFuelBreakEnvironment) -> Float64Array:
    """Return the (lanes, cells) downstream value, 0 for illegal cells."""
    values = np.stack([exposure.downstream for exposure in env.exposures]).astype(np.float64)
    return np.asarray(values * env.action_masks())


def noisy_choice(values: Float64Array, legal: BoolArray, noise: float, generator: torch.Generator) -> NDArray[np.int64]:
    """Choose each lane's best legal cell, with log-normal noise on the values."""
    factors = np.exp(noise * torch.randn(values.shape, generator=generator, dtype=torch.float64).numpy())
    return np.asarray(np.where(legal, values * factors, -np.inf).argmax(axis=1))


def proportional_choice(values: Float64Array, legal: BoolArray, generator: torch.Generator) -> NDArray[np.int64]:
    """Draw a legal cell for each lane in proportion to its value, uniformly where all are 0."""
    weights = np.where(legal, values, 0.0)
    weights = np.where(weights.sum(axis=1, keepdims=True) > 0, weights, legal)
    totals = weights.cumsum(axis=1)
    draws = (1 - torch.rand(len(values), 1, generator=generator, dtype=torch.float64).numpy()) * totals[:, -1:]
    return np.asarray((totals < draws).sum(axis=1))


def place(
    policy: Policy,
    env: VectorFuelBreakEnvironment,
    tiles: Sequence[int],
    scenario_seed: int,
    on_step: Callable[[], None] = lambda: None,
) -> BoolArray:
    """Return the (tiles, cells) breaks that a policy makes, seeing the planning fires of the seed."""
    env.reset(tiles, [scenario_seed] * len(tiles))
    while not env.terminated.all():
        on_step()
        env.step(policy(env))
    return env.cleared


def reduction_percent(hazard: Hazard, cleared: BoolArray) -> float:
    """Return the reduction of the burned area in percent if (cells,) are cleared."""
    return 100 * (1 - BurnState(hazard, cleared).burned_cells / hazard.start_burned_cells)


def spaced(available: int, count: int) -> list[int]:
    """Return at most `count` evenly spaced numbers below `available`."""
    chosen: list[int] = np.unique(np.linspace(0, available - 1, min(count, available)).round().astype(int)).tolist()
    return chosen


class Judge:
    """Tiles with their fires, which are the same for every policy and computed once."""

    def __init__(
        self,
        tiles: Sequence[Tile],
        config: FuelBreakConfig,
        safe_point: Callable[[], None] = lambda: None,
        lanes: int = 16,
    ) -> None:
        own = replace(config, cached_episodes=len(tiles), cached_states=1)
        self.tiles = tuple(tiles)
        self._env = VectorFuelBreakEnvironment(tiles, own)
        self._judging = FireSimulator(tiles, own, "judging")
        self._safe_point, self._lanes = safe_point, lanes

    def reductions(self, policy: Policy, scenario_seeds: Sequence[int] = (0,)) -> Float64Array:
        """Return the (tiles,) reductions of the burned area in percent, means over scenario seeds."""
        results = np.zeros((len(scenario_seeds), len(self.tiles)))
        parts = [(row, first) for row in range(len(results)) for first in range(0, len(self.tiles), self._lanes)]
        with Progress("placing breaks", "step", len(parts) * self._env.config.budget_cells) as shown:

            def on_step() -> None:
                self._safe_point()
                shown.update()

            for row, first in parts:
                lanes, seed = range(len(self.tiles))[first : first + self._lanes], scenario_seeds[row]
                placed = place(policy, self._env, lanes, seed, on_step)
                hazards = (self._judging.hazard(tile, seed) for tile in lanes)
                results[row, lanes] = [reduction_percent(*pair) for pair in zip(hazards, placed, strict=True)]
        return np.asarray(results.mean(axis=0))
