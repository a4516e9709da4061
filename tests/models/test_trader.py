"""Decisions of a population: what is expected, what is ordered of it, and what the account then fills."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.cash_value import BUCKETS, Accounts, CashValue, Decision, accounts_of
from models.trader import Forecasts, Traders, daily_orders
from tests.tiny import World, random_world, seeded, tiny_rules
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT

seeds = st.integers(0, 2**20)


def traders_of(agents: int, seed: int = 0, inputs: int = 6) -> Traders:
    generator = seeded(seed)
    weights = torch.randn(agents, inputs, generator=generator, dtype=torch.float64)
    target, value_weight = torch.rand(2, agents, generator=generator, dtype=torch.float64)
    return Traders(weights, 10 + 40 * target, value_weight, torch.ones_like(target))


def some_value(rules: EnvironmentConfig, seed: int, worth: float = 1.0) -> CashValue:
    nothing = CashValue.zero(rules)
    weights = worth * torch.rand(len(nothing.weights), generator=seeded(seed), dtype=torch.float64)
    return nothing.with_values(weights, nothing.opportunity_knots)


@given(seeds, st.integers(1, 12), st.booleans())
@settings(max_examples=40)
def test_forecasts_know_what_can_be_ordered_and_what_the_best_of_it_is_worth(
    seed: int, stocks: int, is_scored: bool
) -> None:
    """The opportunity of a day is what is expected of the stocks with the best scores."""
    generator = seeded(seed)
    drawn, scores = torch.randn(2, 2, 9, stocks, generator=generator)
    drawn[torch.rand(drawn.shape, generator=generator) < 0.2] = torch.nan
    tradable = torch.rand(9, stocks, generator=generator) < 0.7
    tradable[0] = False
    target = torch.tensor([20.0, 40.0])
    forecasts = Forecasts.of(drawn.clone(), tradable, target, scores if is_scored else None)
    assert not forecasts.expected.isnan().any() and forecasts.stock is None
    for agent in range(2):
        assert bool((forecasts.target[agent] == target[agent]).all())
        for day in range(9):
            known = [
                float(value) if may and value == value else -np.inf
                for value, may in zip(drawn[agent, day], tradable[day], strict=True)
            ]
            assert forecasts.expected[agent, day].tolist() == known
            own = scores[agent, day].tolist() if is_scored else known
            ranks = [score if value > -np.inf else -np.inf for value, score in zip(known, own, strict=True)]
            assert forecasts.score[agent, day].tolist() == ranks
            order = sorted(range(stocks), key=lambda stock: -ranks[stock])[:5]
            best = [known[stock] for stock in order if known[stock] > -np.inf]
            assert float(forecasts.opportunity[agent, day]) == pytest.approx(sum(best) / max(len(best), 1), abs=1e-6)


@given(seeds, st.integers(5, 9), st.integers(5, 12))
@settings(max_examples=30)
def test_forecasts_of_the_best_stocks_are_those_of_the_best_scores(seed: int, most: int, stocks: int) -> None:
    """In the order of the stocks, whether the rest is dropped at once or later; the opportunity stays."""
    generator = seeded(seed)
    expected, score, target = torch.randn(3, 2, 6, stocks, generator=generator)
    tradable = torch.rand(6, stocks, generator=generator) < 0.9
    whole = Forecasts.of(expected, tradable, target, score)
    for best in (Forecasts.of(expected, tradable, target, score, most), whole.best(most)):
        assert best.stock is not None and torch.equal(best.opportunity, whole.opportunity)
        wanted = whole.score >= whole.score.topk(min(most, stocks), dim=2).values[..., -1:]
        chosen = torch.zeros_like(wanted).scatter(2, best.stock, True)
        assert torch.equal(chosen & whole.score.isfinite(), wanted & whole.score.isfinite())
        assert bool((best.stock.diff(dim=2) > 0).all())
        for name in ("expected", "score", "target"):
            assert torch.equal(getattr(best, name), getattr(whole, name).gather(2, best.stock)), name


def candidates_of(expected: Tensor, target: Tensor, score: Tensor | None = None) -> Forecasts:
    """Candidates with (L,) sale targets; stocks are ranked by what is expected of them if not by another score."""
    score = expected if score is None else torch.where(expected.isfinite(), score, -torch.inf)
    return Forecasts(expected, score, target.to(expected.dtype)[:, None].expand(expected.shape), expected[:, 0])


def decided(
    world: World, traders: Traders, expected: Tensor, cash_value: CashValue, score: Tensor | None = None
) -> tuple[Tensor, Decision]:
    """The action and decision of the accounts of an environment; what is held may not be ordered."""
    env = world.env
    expected = torch.where(env.candidates(), expected, -torch.inf)
    rows = traders.rows(torch.arange(traders.count).repeat_interleave(len(expected) // traders.count))
    candidates = candidates_of(expected, rows.target_percent, score)
    best = expected.clamp(min=0).max(1).values.double()
    accounts = accounts_of(env.positions().features, env.account(), best, env.rules)
    none = torch.zeros_like(accounts.cash)
    choice, decision = daily_orders(rows, cash_value, candidates, accounts, none, env.orders_per_day)
    ranked = expected.gather(1, candidates.score.argsort(dim=1, descending=True, stable=True))
    torch.testing.assert_close(decision.best, ranked[:, : env.orders_per_day].double())
    return choice.action(candidates.target), decision


@given(seeds, st.integers(1, 4), st.sampled_from((1.0, 4.0, 9.0)), st.sampled_from((0.0, 50.0)))
@settings(max_examples=25)
def test_the_account_fills_what_was_decided(seed: int, orders: int, stake: float, cost: float) -> None:
    """Day by day, two agents of three accounts each: sizes, ranks, targets and the cash that is left."""
    rules = tiny_rules(
        max_new_positions_per_day=orders, stake_percent=stake, cost_bps=cost, fill="same_close", trading_days=12
    )
    world, traders = random_world(seed % 50, rules=rules), traders_of(2, seed)
    env, generator, cash_value = world.env, seeded(seed), some_value(rules, seed, worth=0.05)
    env.reset(world.starts(6, seed))
    ordered = 0
    for step in range(rules.trading_days):
        expected, score = torch.randn(2, 6, world.stocks, generator=generator)
        action, decision = decided(world, traders, expected, cash_value, score)
        value = decision.size * rules.largest_order * rules.initial_capital
        # An account places orders one after the other, without those that are none.
        places = (value > 0).to(torch.int8).argsort(dim=1, descending=True, stable=True)
        value = value.gather(1, places)
        cash, is_candidate = env.cash.clone(), env.candidates()
        env.step(action)
        rows = slice(step * env.orders_per_day, (step + 1) * env.orders_per_day)
        ledger = env.ledger()
        torch.testing.assert_close(ledger.value[rows].T, value, rtol=1e-5, atol=1e-5 * rules.initial_capital)
        left = cash - value.sum(1) * (1 + rules.cost_rate)
        torch.testing.assert_close(
            decision.after.cash * rules.initial_capital, left, rtol=1e-5, atol=1e-6 * rules.initial_capital
        )
        rank = torch.where(is_candidate, score, -torch.inf).argsort(dim=1, descending=True, stable=True)
        filled = ledger.value[rows].T > 0
        assert torch.equal(ledger.stock[rows].T[filled], rank.gather(1, places)[filled])
        target = traders.target_percent.repeat_interleave(3)[:, None].expand(filled.shape)
        torch.testing.assert_close(ledger.target_percent[rows].T[filled], target[filled], rtol=1e-6, atol=0)
        ordered += int(filled.sum())
    assert ordered > 6


def test_the_smallest_order_is_not_lost_to_the_trace_of_its_rank() -> None:
    """The best order leaves cash for the smallest one."""
    rules = tiny_rules(max_new_positions_per_day=2, stake_percent=9.0, cost_bps=0.0, slippage_bps=0.0)
    least = MIN_COEFFICIENT / MAX_COEFFICIENT
    cash = torch.tensor([(1 + least) * rules.largest_order + 1e-12], dtype=torch.float64)
    accounts = Accounts(cash, torch.zeros(1, BUCKETS).double(), torch.ones(1).double(), torch.ones(1).double())
    expected = torch.tensor([[4.0, -torch.inf, 5.0, -1.0]])
    candidates, traders = candidates_of(expected, torch.full((1,), 20.0)), traders_of(1)
    choice, decision = daily_orders(traders, CashValue.zero(rules), candidates, accounts, torch.zeros(1).double(), 2)
    assert decision.size.tolist() == [pytest.approx([1.0, least])]
    assert choice.action(candidates.target)[0, :, 0].tolist() == [MIN_COEFFICIENT, 0.0, MAX_COEFFICIENT, 0.0]
