"""Policies that a learned one must beat: random cells, and cells ranked by what fire is likely to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from environment.fuel_breaks.burn_state import BurnState, Hazard
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import BoolArray, Float64Array, downstream_cells, tree_depth

Policy = Callable[[VectorFuelBreakEnvironment], NDArray[np.int64]]
"""Chooses a legal cell for each lane from the environment's present state; for a terminated lane any number."""
Score = Callable[[BurnState], Float64Array]
"""Returns (cells,) how much a state's planning fires speak for clearing each cell."""

_DOMIRANK_SHARE = 0.5
"""Competition in DomiRank as a share of where it diverges; on validation tiles the best of 0.1, 0.5, 0.9 and 0.99."""


def burn_probability(state: BurnState) -> Float64Array:
    """Count the fires that burn each cell."""
    return np.asarray(np.isfinite(state.arrival).sum(axis=0), dtype=np.float64)


def downstream_value(state: BurnState) -> Float64Array:
    """Count the cells burned by way of each cell, itself included, over fires: its downstream protection value."""
    return np.asarray(state.downstream.sum(axis=0), dtype=np.float64)


def tree_betweenness(state: BurnState) -> Float64Array:
    """Sum betweenness (Freeman 1977) in the directed spread trees over fires.

    A tree has one path from each ancestor to each descendant, so a cell lies on ancestors times descendants of them.
    """
    trees = state.trees()
    pairs = tree_depth(trees) * (downstream_cells(trees) - 1)
    return np.asarray(np.bincount(trees.cell, pairs, state.hazard.grid.cells), dtype=np.float64)


def domirank(state: BurnState) -> Float64Array:
    """Rank cells by DomiRank in the network along which fires spread.

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


def best_legal(scores: Float64Array, state: BurnState) -> int:
    """Return the legal cell with the largest score, the first of equals; 0 if there is none."""
    return int(np.where(state.legal(), scores, -np.inf).argmax())


def adaptive(score: Score) -> Policy:
    """Clear the best cell by a score of the present fires, computed anew after each cell."""

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        return np.array([best_legal(score(state), state) for state in env.states])

    return choose


def static(score: Score) -> Policy:
    """Clear the best cells by a score of the fires on the unbroken tile."""
    known: WeakKeyDictionary[Hazard, Float64Array] = WeakKeyDictionary()

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        for hazard in {state.hazard for state in env.states}.difference(known):
            known[hazard] = score(BurnState(hazard))
        return np.array([best_legal(known[state.hazard], state) for state in env.states])

    return choose


def random_cells(generator: np.random.Generator) -> Policy:
    """Clear uniformly drawn legal cells."""

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        draws = generator.random((len(env.states), env.cells))
        return np.array([best_legal(own, state) for own, state in zip(draws, env.states, strict=True)])

    return choose


def baselines(seed: int = 0) -> dict[str, Policy]:
    """Return every baseline by name; the seed is that of the random cells."""
    return {
        "random": random_cells(np.random.Generator(np.random.PCG64(seed))),
        "burn probability": static(burn_probability),
        "DomiRank": static(domirank),
        "betweenness": static(tree_betweenness),
        "static downstream value": static(downstream_value),
        "adaptive downstream value": adaptive(downstream_value),
    }


def place(
    policy: Policy,
    env: VectorFuelBreakEnvironment,
    tiles: Sequence[int],
    scenario_seed: int,
    safe_point: Callable[[], None] = lambda: None,
) -> BoolArray:
    """Return the (tiles, cells) breaks that a policy makes on tiles, where it sees the planning fires of the seed."""
    env.reset(tiles, [scenario_seed] * len(tiles))
    while not env.terminated.all():
        safe_point()
        env.step(policy(env))
    return env.cleared


def reduction_percent(hazard: Hazard, cleared: BoolArray) -> float:
    """Return the reduction of the area that a hazard's fires burn, in percent, if (cells,) are cleared."""
    return 100 * (1 - BurnState(hazard, cleared).burned_cells / hazard.start_burned_cells)
