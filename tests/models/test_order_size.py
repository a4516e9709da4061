"""Aversion to risk: sizes at which profit and risk balance, from what is forecast out of fold."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.learning.study import study_config
from data.market import Market
from data.synthetic.built_in import PlantedScores
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts, decide
from tests.tiny import seeded
from training.erl_trainer import ERLTrainer, build_trainer
from training.forecasts.training_days import TrainingDays, fit_risk
from training.run.market import load_market
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT

SETTINGS = (
    *("--synthetic.kind", "storms", "--synthetic.days", "1600", "--synthetic.stocks", "16", "--generations", "2"),
    *("--population-size", "4", "--learning.training-starts", "100", "--learning.gradient-steps", "2"),
    *("--evaluation.fitness-windows", "4", "--evaluation.exploration-windows", "2"),
    *("--learning.risk-aversion", "0.5", "--evaluation.evidence", "report"),
)
GRID = torch.linspace(0, 1, 20_001, dtype=torch.float64)


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from((4.0, 10.0)))
def test_sizes_balance_profit_and_risk(seed: int, stake: float) -> None:
    """The best size by trial, where it is large enough to be placed; the best utility is bought."""
    generator, rules, lanes = seeded(seed), EnvironmentConfig(stake_percent=stake), 20
    score, penalty = 3 * torch.rand(2, lanes, 4, generator=generator)
    penalty = rules.largest_order * (penalty + 0.01)
    forecasts = Forecasts(score - 1.0, penalty)
    every, plenty = torch.ones(lanes, 4, dtype=torch.bool), torch.ones(lanes)
    decision = decide(forecasts, torch.zeros(lanes), plenty, every, 50 * plenty, rules)
    worth = rules.largest_order * (forecasts.score - 100 * rules.cost_rate).double()
    for lane in range(lanes):
        utilities = worth[lane, :, None] * GRID - penalty[lane, :, None].double() * GRID.square()
        best = int(utilities.max(1).values.argmax())
        size = float(GRID[utilities[best].argmax()])
        if utilities[best].max() > 1e-4 and abs(size - 0.1) > 1e-3:
            found = float(decision.coefficient[lane, 0]) / MAX_COEFFICIENT
            assert found == pytest.approx(size if size >= 0.1 else 0.0, abs=1e-3)
            assert size < 0.1 or int(decision.stock[lane, 0]) == best


@pytest.fixture(scope="module")
def loaded() -> tuple[Market, PlantedScores]:
    market, scores = load_market(study_config(SETTINGS))
    assert scores is not None
    return market, scores


@pytest.fixture(scope="module")
def trainer(loaded: tuple[Market, PlantedScores]) -> ERLTrainer:
    made = build_trainer(study_config(SETTINGS), loaded[0], torch.device("cpu"))
    for _ in made.run(2):
        pass
    return made


def test_storms_cost_more(trainer: ERLTrainer, loaded: tuple[Market, PlantedScores]) -> None:
    days, sizes = trainer.days, loaded[1].sizes
    assert sizes is not None and days.risk is not None
    penalty = days.forecasts(trainer.population.networks.targets, [0]).penalty
    assert penalty is not None
    within = days.samples.x.days
    cost, size = penalty[0, within].mean(1), torch.from_numpy(sizes[within, 0])
    assert cost[size < 0.15].mean() > 1.3 * cost[size > 0.8].mean()


def test_a_fold_does_not_tell_its_own_risk(trainer: ERLTrainer) -> None:
    days: TrainingDays = trainer.days
    assert days.risk is not None
    held, kept = days.samples.folds[2][1], days.samples.results.copy()
    days.samples.results[:, held] *= 10.0
    try:
        found = fit_risk(days, 0.5)
    finally:
        days.samples.results[:] = kept
    torch.testing.assert_close(found[2], days.risk[2])
    assert (found[[0, 1, 3, 4, 5], 4] > 1.5 * days.risk[[0, 1, 3, 4, 5], 4]).all()


def test_an_agent_keeps_its_risk_and_sees_it_in_any_form_of_inputs(
    trainer: ERLTrainer, loaded: tuple[Market, PlantedScores], tmp_path: Path
) -> None:
    champion, market = trainer.champion, loaded[0]
    later = trainer.days.later
    by_rows, by_day = champion.forecasts(market, later), champion.forecasts(market, days=later.days)
    champion.save(tmp_path / "agent.safetensors")
    again = DDPGAgent.load(tmp_path / "agent.safetensors").forecasts(market, days=later.days)
    for name in ("score", "penalty"):
        seen = getattr(by_rows, name)[:, later.days]
        torch.testing.assert_close(getattr(by_day, name)[:, later.days], seen, rtol=1e-3, atol=1e-4)
        assert torch.equal(getattr(again, name), getattr(by_day, name))
    assert (by_day.penalty is not None) and bool((by_day.penalty[:, later.days] > 0).all())


def test_fitness_is_less_the_squared_results_of_trades(trainer: ERLTrainer) -> None:
    found, windows = [], trainer.draw_windows()
    for aversion in (0.0, 0.5, 2.0):
        trainer.rollouts.risk_aversion = aversion
        found.append(trainer.rollouts.evaluate(trainer.population, windows, 100)[0])
    trainer.rollouts.risk_aversion = 0.5
    free, averse, more = (one.fitness for one in found)
    trades = found[0].profit_percent != 0
    assert trades.any() and torch.equal(found[0].profit_percent, found[2].profit_percent)
    assert torch.equal(free > averse, trades)
    torch.testing.assert_close(free - more, 4 * (free - averse))
