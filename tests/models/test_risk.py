"""Aversion to risk: sizes at which profit and risk balance, from what is forecast out of fold."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.study import study_config
from data.market import Market
from data.synthetic.built_in import PlantedScores
from models import risk
from models.cash_value import Accounts, CashValue
from models.ddpg_agent import DDPGAgent
from models.round_robin import RoundRobinPolicy
from tests.tiny import seeded
from training.erl_trainer import ERLTrainer, build_trainer
from training.forecasts.ridge import TrainingDays, fit_risk
from training.rollout import roll_out
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


@given(st.floats(-2, 2), st.floats(1e-3, 3))
def test_utility_is_the_largest_that_any_size_gives(expected: float, penalty: float) -> None:
    pair = torch.tensor(expected), torch.tensor(penalty)
    best = float((GRID * expected - GRID.square() * penalty).max())
    assert float(risk.utility(*pair)) == pytest.approx(best if expected > 0 else expected, abs=1e-5)


@given(st.integers(0, 2**32), st.sampled_from((4.0, 10.0)))
def test_sizes_balance_profit_and_risk_within_the_cash(seed: int, stake: float) -> None:
    """Without a value of cash: the best size by trial, where it is large enough to be placed."""
    generator, rules, lanes = seeded(seed), EnvironmentConfig(stake_percent=stake), 20
    draw = torch.rand(3, lanes, generator=generator, dtype=torch.float64)
    best, penalty, cash = 2 * draw[0] - 0.5, 2 * draw[1] + 0.01, draw[2]
    held = Accounts(cash, torch.zeros(lanes, 4, dtype=torch.float64), torch.full((lanes,), 5.0).double(), 0 * cash)
    decision = CashValue.zero(rules).greedy(best[:, None], held, penalty=penalty[:, None])
    largest = (cash / (rules.largest_order * rules.purchase_factor)).clamp(max=1.0)
    tried = GRID * largest[:, None]
    wanted = tried.gather(1, (tried * best[:, None] - tried.square() * penalty[:, None]).argmax(1, keepdim=True))[:, 0]
    smallest = 0.1 * min(1.0, 1 / (rules.largest_order * rules.purchase_factor))
    clear = (wanted - smallest).abs() > 1e-3
    expected = torch.where(wanted >= smallest, wanted, 0.0)
    torch.testing.assert_close(decision.size[clear, 0], expected[clear], rtol=0, atol=1e-4)
    earned = decision.size[:, 0] * best - decision.size[:, 0].square() * penalty
    torch.testing.assert_close(decision.reward, earned)


@pytest.fixture(scope="module")
def loaded() -> tuple[Market, PlantedScores]:
    market, scores = load_market(study_config(SETTINGS))
    assert scores is not None
    return market, scores


@pytest.fixture(scope="module", params=["ddpg", "closed-form"])
def trainer(request: pytest.FixtureRequest, loaded: tuple[Market, PlantedScores]) -> ERLTrainer:
    made = build_trainer(study_config([*SETTINGS, "--agent", request.param]), loaded[0], torch.device("cpu"))
    for _ in made.run(2):
        pass
    return made


def test_storms_cost_more_and_their_forecasts_come_true_less(
    trainer: ERLTrainer, loaded: tuple[Market, PlantedScores]
) -> None:
    days, sizes = trainer.days, loaded[1].sizes
    assert sizes is not None and days.risk is not None
    penalty, share = days.penalties(days.samples.x.days, days.risk[-1:, :-1])
    calm = sizes[days.samples.x.days, 0].repeat(16) > 0.8
    storm = sizes[days.samples.x.days, 0].repeat(16) < 0.15
    assert penalty[0, storm].mean() > 1.3 * penalty[0, calm].mean()
    assert share[0, calm].mean() > 1.15 * share[0, storm].mean()


def test_a_fold_does_not_tell_its_own_risk(trainer: ERLTrainer) -> None:
    days: TrainingDays = trainer.days
    assert days.risk is not None
    held, kept = days.samples.folds[2][1], days.samples.results.copy()
    days.samples.results[:, held] *= 10.0
    try:
        found = fit_risk(days, 0.5)
    finally:
        days.samples.results[:] = kept
    torch.testing.assert_close(found[:, 2], days.risk[:, 2])
    assert (found[:, [0, 1, 3, 4, 5], 4] > 1.5 * days.risk[:, [0, 1, 3, 4, 5], 4]).all()


def test_an_agent_keeps_its_risk_and_sees_it_in_any_form_of_inputs(
    trainer: ERLTrainer, loaded: tuple[Market, PlantedScores], tmp_path: Path
) -> None:
    champion, market = trainer.champion, loaded[0]
    later = trainer.days.later
    by_rows, by_day = champion.forecasts(market, later), champion.forecasts(market, days=later.days)
    champion.save(tmp_path / "agent.safetensors")
    again = DDPGAgent.load(tmp_path / "agent.safetensors").forecasts(market, days=later.days)
    for name in ("expected", "score", "penalty"):
        seen = getattr(by_rows, name)[:, later.days]
        torch.testing.assert_close(getattr(by_day, name)[:, later.days], seen, rtol=1e-3, atol=1e-4)
        assert torch.equal(getattr(again, name), getattr(by_day, name))
    assert (by_day.penalty is not None) and bool((by_day.penalty[:, later.days] > 0).all())


def test_fitness_is_less_the_squared_surprises(trainer: ERLTrainer) -> None:
    """The penalty grows in proportion to the aversion; profit stays what it is."""
    found, windows = [], trainer.draw_windows()
    for aversion in (0.0, 0.5, 2.0):
        trainer.rollouts.risk_aversion = aversion
        found.append(trainer.rollouts.evaluate(trainer.population, windows, 100)[0])
    trainer.rollouts.risk_aversion = 0.5
    free, averse, more = (one.fitness for one in found)
    assert (free > averse).all() and torch.equal(found[0].profit_percent, found[2].profit_percent)
    torch.testing.assert_close(free - more, 4 * (free - averse))


def test_holding_the_market_balances_profit_and_risk(trainer: ERLTrainer, loaded: tuple[Market, PlantedScores]) -> None:
    """The market's orders are as large as one order of mean risk and typical profit should be, in rollouts as well."""
    market, env = loaded[0], trainer.eval_env
    champion = replace(trainer.champion, trust=replace(trainer.champion.trust, orders=0.0))
    forecasts = champion.forecasts(market, days=trainer.days.later.days)
    policy = replace(champion.policy, typical=0.06)
    assert isinstance(policy, RoundRobinPolicy) and forecasts.penalty is not None
    days = torch.arange(market.splits.validation.first, market.splits.validation.last - env.rules.episode_steps, 9)
    cost = forecasts.penalty[0, days].mean(1, keepdim=True).double()
    best = GRID[(GRID * policy.typical - GRID.square() * cost).argmax(1)].clamp(max=policy.size)
    torch.testing.assert_close(policy.sizes(forecasts)[days], best, rtol=0, atol=1e-4)
    assert 0.1 < best.min() < 0.95 * best.max() < 0.5
    played = roll_out(env, champion.traders, forecasts, champion.cash_value, days, policy=policy)
    stakes = played.size[0].max(0).values[0] / MAX_COEFFICIENT
    placed = torch.where(best >= 0.1, best, 0.0)
    torch.testing.assert_close(stakes.double(), placed, rtol=1e-3, atol=1e-3)
