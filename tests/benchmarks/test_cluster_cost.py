"""The model of what several machines cost: known answers and what must hold of any such model."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest

from benchmarks.cluster.cost import AGENTS, MACHINES, MEASURED, Model, Sizes, count_bytes, table
from benchmarks.cluster.population import small_config
from benchmarks.gpu_budget.__main__ import BUDGET
from benchmarks.gpu_budget.costs import CARDS
from benchmarks.speed.harness import full_scale
from models.inputs import INPUTS
from models.replay_buffer import transition_fields


@pytest.fixture(params=[*CARDS, None], ids=lambda card: "core" if card is None else card.name)
def model(request: pytest.FixtureRequest) -> Model:
    budget, seconds = json.loads(BUDGET.read_text()), json.loads(MEASURED.read_text())
    return Model(budget, seconds, Sizes(inputs=200.0, results=700.0, transition=68.0), request.param)


def test_bytes_are_those_of_the_arrays() -> None:
    """Means, share of orders that differ, blend, counts; profits of 32 windows, also of the closed form; penalties and
    costs of 40; a transition."""
    sizes, config = count_bytes(), small_config()
    assert sizes.results == 8 * (3 + 1 + 5 + 6 + 2 * 32 + 2 * 40)
    fields = transition_fields(config.env.max_new_positions_per_day).values()
    assert sizes.transition == sum(math.prod(shape) * kind.itemsize for shape, kind in fields)
    hidden, noise = config.learning.hidden, 8 * 8 * config.env.trading_days
    networks = 4 * hidden * (hidden + INPUTS)
    assert noise + networks < sizes.inputs < noise + 10 * networks + 8 * 16 * INPUTS, "networks of each fold, and draws"


def test_calls_take_what_their_bytes_do(model: Model) -> None:
    """Two machines and a slow network: half of the agents go there and back, each with its own candidates."""
    kept = full_scale().learning.replay_capacity
    moved = (900 * 1024 + 68 * kept * 2) / 2
    assert model.calls(1024, 2, 1e3) == pytest.approx(moved / 1e3, rel=1e-3)
    assert model.calls(1024, 1, 1e3) == 0.0


def test_workers_take_less_and_the_driver_the_same(model: Model) -> None:
    for agents in AGENTS:
        alone = model.generation(agents, 1, 1e9)
        assert alone == pytest.approx(model.worker(agents) + model.driver(agents))
        for machines in MACHINES:
            assert model.generation(agents, machines, 1e9) >= model.driver(agents)
            assert model.generation(agents, machines, 1e9) <= model.generation(agents, machines, 1e8)
    assert model.worker(2_500) < 0.6 * model.worker(10_000), "the driver trains the networks of all"


def test_the_table_says_where_more_machines_gain_nothing(model: Model) -> None:
    for line, agents in zip(table(model, 10.0), AGENTS, strict=True):
        *cells, useful = line.strip("| ").split(" | ")[1:]
        assert len(cells) == len(MACHINES) and int(useful) in MACHINES
        number = MACHINES.index(int(useful))
        seconds = [model.generation(agents, machines, 1.25e9) for machines in MACHINES]
        assert number == len(MACHINES) - 1 or seconds[number + 1] > 0.9 * seconds[number]
        assert all(later <= 0.9 * now for now, later in pairwise(seconds[: number + 1]))
