"""What a learned placement of fuel breaks must beat: random cells, and cells ranked by what fire is likely to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.burn_state import BurnState, FireSimulator, Hazard, TracedBurnState
from environment.fuel_breaks.config import FuelBreakConfig
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import BoolArray, downstream_cells, tree_depth

Float64Array = NDArray[np.float64]
Policy = Callable[[VectorFuelBreakEnvironment], NDArray[np.int64]]
"""Chooses a legal cell for each lane from the environment's present state; for a terminated lane any number."""
Score = Callable[[TracedBurnState], Float64Array]
"""(cells,) how much a state's planning fires speak for clearing each cell."""

_DOMIRANK_SHARE = 0.5
"""Competition in DomiRank as a share of where it diverges; on validation tiles the best of 0.1, 0.5, 0.9 and 0.99."""


def burn_probability(state: TracedBurnState) -> Float64Array:
    """Fires that burn each cell."""
    return np.asarray(np.isfinite(state.arrival).sum(axis=0), dtype=np.float64)


def downstream_value(state: TracedBurnState) -> Float64Array:
    """Downstream protection value: cells burned by way of each cell, itself included, summed over fires."""
    return np.asarray(state.downstream.sum(axis=0), dtype=np.float64)


def tree_betweenness(state: TracedBurnState) -> Float64Array:
    """Betweenness (Freeman 1977) in the directed spread trees, summed over fires.

    In a tree every pair of an ancestor and a descendant has one path, so that as many pass through a cell as it has
    ancestors times descendants.
    """
    trees = state.trees()
    pairs = tree_depth(trees) * (downstream_cells(trees) - 1)
    return np.asarray(np.bincount(trees.cell, pairs, state.hazard.grid.cells), dtype=np.float64)


def domirank(state: TracedBurnState) -> Float64Array:
    """DomiRank of the cells in the network along which fires spread.

    An undirected link weighs as many fires as pass along it. Source: Engsig, Tejedor, Moreno, Foufoula-Georgiou and
    Kasmi (2024), "DomiRank centrality reveals structural fragility of complex networks": the solution of
    (sigma A + I) x = sigma A 1, with the competition sigma below -1 / the least eigenvalue of A.
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


def best_legal(scores: Float64Array, state: TracedBurnState) -> int:
    """The legal cell with the largest score, the first of equals; 0 if there is none."""
    return int(np.where(state.legal(), scores, -np.inf).argmax())


def adaptive(score: Score) -> Policy:
    """Clear the best cell by a score of the present fires, computed anew after each cell."""

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        return np.array([best_legal(score(state), state) for state in env.states])

    return choose


def static(score: Score) -> Policy:
    """Clear the best cells by a score of the fires on the unbroken tile."""
    known: WeakKeyDictionary[Hazard, Float64Array] = WeakKeyDictionary()

    def best(state: TracedBurnState) -> int:
        if state.hazard not in known:
            known[state.hazard] = score(TracedBurnState(state.hazard))
        return best_legal(known[state.hazard], state)

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        return np.array([best(state) for state in env.states])

    return choose


def random_cells(generator: np.random.Generator) -> Policy:
    """Clear uniformly drawn legal cells."""

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        draws = generator.random((len(env.states), env.observer.cells))
        return np.array([best_legal(own, state) for own, state in zip(draws, env.states, strict=True)])

    return choose


def baselines(seed: int = 0) -> dict[str, Policy]:
    """Every baseline by name; the seed is that of the random cells."""
    return {
        "random": random_cells(np.random.Generator(np.random.PCG64(seed))),
        "burn probability": static(burn_probability),
        "DomiRank": static(domirank),
        "betweenness": static(tree_betweenness),
        "static downstream value": static(downstream_value),
        "adaptive downstream value": adaptive(downstream_value),
    }


def place(policy: Policy, env: VectorFuelBreakEnvironment, tiles: Sequence[int], scenario_seed: int) -> BoolArray:
    """(tiles, cells) the breaks that a policy makes on tiles, seeing the planning fires of the seed."""
    env.reset(tiles, [scenario_seed] * len(tiles))
    while not env.terminated.all():
        env.step(policy(env))
    return env.cleared


def evaluate(
    policy: Policy, tiles: Sequence[Tile], scenario_seeds: Sequence[int], config: FuelBreakConfig
) -> Float64Array:
    """(tiles,) reduction of the burned area in percent, the mean over scenario seeds.

    For each seed breaks are placed once on each tile, then judged by fires that were drawn for this alone: no policy
    saw or was rewarded by them, and they are the same for every policy.
    """
    env = VectorFuelBreakEnvironment(tiles, config)
    judge = FireSimulator(tiles, config, "judging")
    reductions = np.empty((len(scenario_seeds), len(tiles)))
    for row, seed in zip(reductions, scenario_seeds, strict=True):
        placed = place(policy, env, range(len(tiles)), seed)
        row[:] = [reduction_percent(judge.hazard(tile, seed), cleared) for tile, cleared in enumerate(placed)]
    return np.asarray(reductions.mean(axis=0))


def reduction_percent(hazard: Hazard, cleared: BoolArray) -> float:
    """Reduction of the area that a hazard's fires burn, in percent, if (cells,) are cleared."""
    return 100 * (1 - BurnState(hazard, cleared).burned_cells / hazard.start_burned_cells)
