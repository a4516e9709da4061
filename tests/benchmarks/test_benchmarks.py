"""The benchmarks measure what they say: fits know their slope, phases add up, what is missing is told."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speed import __main__ as speed
from benchmarks.speed import default_run, environment
from benchmarks.speed import rivals as rivals_cost
from benchmarks.speed.environment import lane_steps_per_second, portfolio_of
from benchmarks.speed.evaluation import EvaluationFigures, evaluation_rows, measure_evaluation
from benchmarks.speed.generation import generation_rows, measure_generation
from benchmarks.speed.growth import DIMENSIONS, Workload, exponent, measure_workload
from benchmarks.speed.harness import CPU, MemoryGauge, random_market
from benchmarks.speed.updates import FOLDS, PlainAgent, Size, draw, plain_generation, stacked_generation
from utils.config.trader import (
    Config,
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    EvolutionConfig,
    LearningConfig,
)

torch.set_num_threads(1)


def tiny_config(context_days: int = 20) -> Config:
    return Config(
        census_every=0,
        split=DataConfig(context_window_days=context_days, train_fraction=0.5, validation_fraction=0.25),
        env=EnvironmentConfig(trading_days=8, settlement_days=3, max_holding_days=3),
        learning=LearningConfig(policy_iterations=1, replay_capacity=256),
        evolution=EvolutionConfig(population_size=3),
        evaluation=EvaluationConfig(fitness_windows=2, exploration_windows=1, validation_windows=1),
    )


def test_evaluating_together_is_compared_with_as_many_evaluations_of_pairs() -> None:
    config = tiny_config()
    figures = measure_evaluation(config, random_market(config, 800, 5, 3), CPU, repeats=1)
    assert figures.agents == 3 and min(figures.seconds, figures.pair_seconds) > 0
    rows = evaluation_rows("tiny", EvaluationFigures(16, 2.0, 0.5))
    assert [row.value for row in rows] == [2.0, 0.5] and rows[0].ratio == 8 * 0.5 / 2.0


@given(st.floats(-2, 2), st.floats(0.01, 100), st.integers(1, 1000))
def test_exponent_of_a_power_law(power: float, scale: float, first: int) -> None:
    sizes = [first * 2**step for step in range(4)]
    assert exponent(sizes, [scale * size**power for size in sizes]) == pytest.approx(power, abs=1e-6)


def test_no_exponent_of_nothing() -> None:
    assert exponent([1, 2], [0.0, 1.0]) is None


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_each_dimension_of_the_workload_can_double(dimension: str) -> None:
    base = Workload(days=1000, columns=4, population=2, windows=2, buffer=256, investable=2)
    larger = replace(base, **{dimension: 2 * getattr(base, dimension)})
    config = larger.config()
    assert (config.evolution.population_size, config.learning.replay_capacity) == (larger.population, larger.buffer)
    assert config.evaluation.exploration_windows == config.evaluation.fitness_windows == larger.windows
    assert config != base.config() or dimension in ("days", "columns", "investable")


def test_workload_is_measured() -> None:
    work = Workload(days=1000, columns=4, population=2, windows=2, buffer=256, investable=2)
    point = measure_workload(work, CPU)
    assert point.generation_seconds > 0
    assert point.prepare_seconds > 0


def test_phases_add_up_to_the_generation() -> None:
    config = tiny_config()
    figures = measure_generation(config, random_market(config, 800, 5, 3), CPU, 1)
    phases = {name: seconds for name, seconds in figures.seconds.items() if name != "total"}
    assert set(phases) == {"evaluate", "train", "evolve", "validate"}
    assert sum(phases.values()) == pytest.approx(figures.seconds["total"])
    assert figures.build_seconds > 0
    shares = [row.ratio for row in generation_rows("tiny", figures) if row.unit == "s"]
    assert sum(share for share in shares if share) == pytest.approx(2.0)


@pytest.mark.parametrize("name", [name for names in default_run.PHASES.values() for name in names])
def test_a_phase_of_the_program_is_a_function_that_is_there(name: str) -> None:
    module, _, path = name.partition(":")
    found = reduce(getattr, path.split("."), importlib.import_module(module))
    function = inspect.unwrap(found)
    code = getattr(function, "__func__", function).__code__  # type: ignore[attr-defined]
    assert f"{function.__module__}:{code.co_qualname}" == name or "importlib" in name


def test_the_time_of_a_function_is_that_of_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_run, "INTERVAL_SECONDS", 0.001)
    monkeypatch.setitem(default_run.PHASES, "judge", (f"{__name__}:burn",))
    with default_run.measured_phases() as seconds:
        burn(lambda: seconds["judge"][1] > 0.0)
    assert default_run.phase_of(["main:main", default_run.PHASES["train"][0], f"{__name__}:burn"]) == "train"
    assert default_run.phase_of(["main:main"]) == default_run.REST


def burn(is_enough: Callable[[], bool]) -> None:
    assert any(is_enough() for _ in range(50_000_000))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_agents_one_by_one_learn_what_they_learn_together(accumulate: int) -> None:
    """Modules and optimisers of torch, one agent after the other, come to the same networks but for rounding."""
    drawn = draw(Size(agents=3, hidden=8, batch=128, accumulate=accumulate, updates=6, transitions=500))
    agents = [PlainAgent(drawn.learners, agent) for agent in range(3)]
    rows = drawn.begin()
    stacked_generation(drawn)
    plain_generation(agents, drawn, *rows)
    stacked = drawn.learners.networks
    for row, agent in enumerate(agents):
        for kind in ("", "_target"):
            critic, actor = getattr(stacked, f"critic{kind}"), getattr(stacked, f"actor{kind}")
            modules, (size, choice, slope) = getattr(agent, f"critic{kind}"), getattr(agent, f"actor{kind}")
            pairs = [(size[place], actor.size.parts[place][row]) for place in (0, 2, 4)]
            pairs += [(modules[-1][place], critic.continuation.parts[place][row]) for place in (0, 2, 4)]
            for fold in range(FOLDS):
                pairs += [(modules[fold][place], critic.reward.parts[place][row, fold]) for place in (0, 2, 4)]
                pairs.append((choice[fold], actor.choice[row, fold, :-1]))
                torch.testing.assert_close(slope[fold], actor.slope[row, fold], rtol=0.0, atol=1e-3)
            for module, weights in pairs:
                torch.testing.assert_close(module.weight.T, weights, rtol=0.0, atol=1e-3)


def test_environment_is_played_to_the_end() -> None:
    config = tiny_config()
    portfolio, first_days = portfolio_of(config, 3, CPU)
    assert lane_steps_per_second(portfolio, 2, first_days[:2], 0.0) > 0
    assert portfolio.is_done
    assert int(portfolio.summary().positions_opened.min()) > 0


def test_random_actions_lie_in_the_action_space() -> None:
    actions = environment.random_actions(5, 7, CPU)
    assert 0 <= float(actions[..., 0].min()) <= float(actions[..., 0].max()) <= 10
    assert 10 <= float(actions[..., 1].min()) <= float(actions[..., 1].max()) <= 50


def test_threads_are_put_back_after_an_error() -> None:
    before = torch.get_num_threads()
    with pytest.raises(RuntimeError), environment.threads(2):
        assert torch.get_num_threads() == 2
        raise RuntimeError
    assert torch.get_num_threads() == before


def test_gauge_sees_memory_that_was_given_back() -> None:
    gauge = MemoryGauge()
    block = torch.ones(2**25)  # 128 MiB
    del block
    assert gauge.rise_mb() >= 100


def test_report_holds_every_key_and_leaves_what_was_not_measured_open() -> None:
    figures = speed.Report().figures
    assert set(figures) == {
        "population_evaluation_ratio",
        "lane_steps_per_second",
        "generation_seconds",
        "growth_exponents",
        "peak_rss_mb",
    }
    dimensions = {"days", "columns", "investable", "population", "windows", "buffer"}
    assert set(figures.pop("growth_exponents")) == dimensions
    assert set(figures.values()) == {None}
    assert set(speed.SECTIONS) == set(speed._SECTIONS)


def test_the_rivals_cost_is_that_of_the_rivals_that_are_fitted(capsys: pytest.CaptureFixture[str]) -> None:
    rivals_cost.main(["--synthetic.days", "1600", "--synthetic.stocks", "6"])
    shown = capsys.readouterr().out
    assert "1,056 training days of 6 stocks among 7 columns" in shown
    assert {line.split(":")[0] for line in shown.splitlines()[-2:]} == {"ridge", "LightGBM"}
