"""The policy with known answers: what is bought, kept and sold, by the price of capital, and in which size, by risk."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.learning.study import study_config
from data.synthetic.built_in import PlantedScores
from models.policy import Forecasts, decide, invested_share
from tests.tiny import seeded, tiny_trainer
from training.erl_trainer import ERLTrainer, build_trainer
from training.forecasts.training_days import fit_risk
from training.run.market import load_market
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT

RULES = EnvironmentConfig(cost_bps=30.0, slippage_bps=20.0, max_new_positions_per_day=2)
"""A leg costs half a percent."""


def decided(scores: list[float], price: float = 0.0, **changes: Tensor | float):  # type: ignore[no-untyped-def]
    score = torch.tensor([scores])
    given = {"cash": torch.ones(1), "candidate": score > -torch.inf, "target_percent": torch.tensor([30.0])} | changes
    return decide(Forecasts(score), torch.tensor([price]), rules=RULES, **given)  # type: ignore[arg-type]


def test_between_buying_and_selling_nothing_is_traded_and_capital_must_earn_its_price() -> None:
    decision = decided([0.6, 0.4, -0.4, -0.6, -torch.inf])
    assert decision.stock[decision.coefficient > 0].tolist() == [0]
    assert decision.keep.tolist() == [[True, True, True, False, True]], "one without a bar is kept"
    assert decision.moved_target.tolist() == [[30.0] * 5]
    free, dear = decided([4.0, 5.0, 1.5]), decided([4.0, 5.0, 1.5], price=4.0)
    assert (free.coefficient > 0).tolist() == [[True, True]] and free.keep.all()
    assert dear.stock[dear.coefficient > 0].tolist() == [1] and dear.keep.tolist() == [[True, True, False]]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0, 5))
def test_a_position_that_would_be_ordered_again_is_kept(scores: list[float], price: float) -> None:
    """Whatever its forecast and the price of capital: nothing is sold and bought again at once."""
    decision = decided(scores, price=price)
    assert decision.keep[0, decision.stock[decision.coefficient > 0]].all()


def test_orders_are_ranked_and_ties_go_to_the_lower_stock() -> None:
    decision = decided([1.0, 2.0, 2.0, 0.0], candidate=torch.tensor([[True, False, True, True]]))
    assert decision.stock.tolist() == [[2, 0]]
    assert decision.coefficient[0, 0] > decision.coefficient[0, 1] > 9.99
    assert not bool(decided([3.0], cash=torch.tensor([0.005])).coefficient.any()), "less cash than the smallest order"


def test_capital_has_a_price_as_far_as_it_is_invested_while_something_may_be_bought() -> None:
    cash, left = torch.tensor([1.2, 1.0, 0.25, 0.0, -0.1, 0.25]), torch.tensor([9.0, 9.0, 1.0, 3.0, 3.0, 0.0])
    assert invested_share(cash, left).tolist() == [0.0, 0.0, 0.75, 1.0, 1.0, 0.0]


SETTINGS = (
    *("--synthetic.kind", "storms", "--synthetic.days", "1600", "--synthetic.stocks", "16"),
    *("--population-size", "4", "--learning.risk-aversion", "0.5"),
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
def begun() -> tuple[ERLTrainer, PlantedScores]:
    config = study_config(SETTINGS)
    market, scores = load_market(config)
    assert scores is not None
    return build_trainer(config, market, torch.device("cpu")), scores


def test_storms_cost_more(begun: tuple[ERLTrainer, PlantedScores]) -> None:
    trainer, sizes = begun[0], begun[1].sizes
    days = trainer.training_days
    assert sizes is not None and days.risk is not None
    penalty = days.forecasts(trainer.population.networks.target, [0]).penalty
    assert penalty is not None
    within = days.samples.x.days
    cost, size = penalty[0, within].mean(1), torch.from_numpy(sizes[within, 0])
    assert cost[size < 0.15].mean() > 1.3 * cost[size > 0.8].mean()


def test_a_fold_does_not_tell_its_own_risk(begun: tuple[ERLTrainer, PlantedScores]) -> None:
    days = begun[0].training_days
    assert days.risk is not None
    held, results = days.samples.folds[2][1], days.samples.results.copy()
    results[:, held] *= 10.0
    found = fit_risk(replace(days, samples=replace(days.samples, results=results)), 0.5)
    torch.testing.assert_close(found[2], days.risk[2])
    assert (found[[0, 1, 3, 4, 5], 4] > 1.5 * days.risk[[0, 1, 3, 4, 5], 4]).all()


def test_risk_lowers_the_fitness_of_who_trades() -> None:
    trainer, found = tiny_trainer(), []
    list(trainer.run(2))
    windows = trainer.draw_windows()
    for aversion in (0.5, 0.0):
        trainer.rollouts.risk_aversion = aversion
        found.append(trainer.rollouts.evaluate(trainer.population, windows, 100)[0])
    averse, free = found
    trades = free.profit_percent != 0
    assert trades.any() and torch.equal(free.fitness > averse.fitness, trades)
