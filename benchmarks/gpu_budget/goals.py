"""What a card is to reach with wide networks, and what is predicted of it: counted, not measured.

`benchmarks.first_hour` measures it where a card is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu_budget.costs import ALL_CARDS, CARDS, Card, Phase, joined
from benchmarks.gpu_budget.fake_card import fake_card
from benchmarks.gpu_budget.generation import APART, FULL, UPDATES, count_generation
from benchmarks.speed.updates import Size, draw

GOALS = Path(__file__).with_name("goals.json")
WIDE = 256
"""Units of a hidden layer."""
GENERATIONS = 25
JUDGING_SECONDS = 8.1
"""Of one core, to judge a run: about what `benchmarks.speed.default_run` shows for judging."""
GRAPH_MEMORY = 2
"""Factor by which graphs raise the peak memory: their pools hold what is alive within a rollout or an update."""


FILLING = {"H200": Size(384, WIDE, 8192), "RTX 4090": Size(64, WIDE, 8192)}
"""Populations and batches that use most of a card's memory and keep it busy."""


class Goal(NamedTuple):
    """A figure that a card is to reach."""

    name: str
    unit: str
    value: float
    is_least: bool
    """Whether more is better."""


UPDATES_OF = {batch: f"updates a second, batch {batch:,}" for batch in (256, 8192)}
IN_ONE = "generation, 32 updates of one batch of 1,536"
"""As many rows an update: `--learning.gradient-accumulation 1 --learning.batch-size 1536`."""
GENERATION, RUN, MEMORY = "generation, 32 updates of 6 batches", "25 generations, judged", "peak memory, 64 agents"
GOAL_LIST = (
    Goal(UPDATES_OF[256], "1/s", 1000, True),
    Goal(UPDATES_OF[8192], "1/s", 150, True),
    Goal(GENERATION, "s", 0.5, False),
    Goal(IN_ONE, "s", 0.5, False),
    Goal(RUN, "s", 30, False),
    Goal(MEMORY, "GB", 4, False),
)


def count_update(size: Size) -> Phase:
    """Count one update of all agents, which begins with the gathering of its rows."""
    with fake_card() as meter:
        drawn = draw(size, torch.device("cuda"))
        drawn.begin()
        drawn.updates.take()
        with meter.within(UPDATES):
            drawn.updates.take()
            meter.phase.graphs = 1
        return meter.phases[UPDATES]


def count_wide_generation(agents: int) -> dict[str, Phase]:
    """Count a generation at full scale with wide networks."""
    config = replace(FULL.config, learning=replace(FULL.config.learning, hidden=WIDE))
    size = replace(FULL, config=config)
    phases, _ = count_generation(size, agents, *size.ready())
    return {name: phase for name, phase in phases.items() if name not in APART}


def seconds_of(phase: Phase, card: Card, *, has_graphs: bool) -> float:
    """Predict the seconds of a phase on card and host, numpy included."""
    known = phase if has_graphs else replace(phase, graphs=0)
    return known.seconds(card)[1] + known.host


def fills() -> str:
    """Format settings that fill a card, with what is predicted of them."""
    lines = ["| card | agents | hidden | batch | memory | updates a second |", "| --- | --- | --- | --- | --- | --- |"]
    for card in CARDS:
        size = FILLING[card.name]
        phase = count_update(size)
        rate, share = 1 / seconds_of(phase, card, has_graphs=True), phase.peak / card.memory
        memory = f"{phase.peak / 1e9:.3g} GB ({share:.0%}) predicted"
        lines.append(
            f"| {card.name} | {size.agents} | {size.hidden} | {size.batch:,} | {memory} | {rate:.3g} predicted |"
        )
    return "\n".join(lines)


def predict() -> dict[str, dict[str, float]]:
    """Return the predictions: for each goal by card, eager and with graphs."""
    found: dict[str, dict[str, float]] = {goal.name: {} for goal in GOAL_LIST}
    updates = {batch: count_update(Size(hidden=WIDE, batch=batch)) for batch in UPDATES_OF}
    of_16, of_64 = count_wide_generation(16), joined(list(count_wide_generation(64).values()))
    learning = FULL.config.learning
    whole = count_update(Size(hidden=WIDE, batch=learning.batch_size * learning.gradient_accumulation))
    steps = learning.gradient_steps
    for card in ALL_CARDS:
        for has_graphs, way in ((False, "eager"), (True, "graphs")):
            key = f"{card.name}, {way}"
            for batch, phase in updates.items():
                found[UPDATES_OF[batch]][key] = 1 / seconds_of(phase, card, has_graphs=has_graphs)
            generation = sum(seconds_of(phase, card, has_graphs=has_graphs) for phase in of_16.values())
            found[GENERATION][key] = generation
            others = sum(seconds_of(phase, card, has_graphs=has_graphs) for n, phase in of_16.items() if n != UPDATES)
            found[IN_ONE][key] = others + steps * seconds_of(whole, card, has_graphs=has_graphs)
            found[RUN][key] = GENERATIONS * generation + JUDGING_SECONDS
            found[MEMORY][key] = of_64.peak / 1e9 * (GRAPH_MEMORY if has_graphs else 1)
    return found


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    """Format the predictions beside the goals."""
    keys = list(next(iter(found.values())))
    lines = [f"| | goal | {' | '.join(keys)} |", f"| --- | --- |{' --- |' * len(keys)}"]
    for goal in GOAL_LIST:
        row = found[goal.name]
        cells = [f"{row[key]:,.3g} predicted{'' if is_reached(goal, row[key]) else ', missed'}" for key in keys]
        bound = "at least" if goal.is_least else "at most"
        lines.append(f"| {goal.name} | {bound} {goal.value:g} {goal.unit} | {' | '.join(cells)} |")
    return "\n".join(lines)


def is_reached(goal: Goal, value: float) -> bool:
    """Tell whether a figure reaches its goal."""
    return value >= goal.value if goal.is_least else value <= goal.value
