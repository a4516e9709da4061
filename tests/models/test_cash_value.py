"""The value of cash on worlds so small that it is known, and the rules by which orders spend cash."""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import cash_value as module
from models.cash_value import BUCKETS, Accounts, CashValue, accounts_of, hats, improve
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, POSITION_FEATURES, SESSIONS_HELD, SIZE

GOOD, POOR = 3.0, 1.0

SMALLEST = MIN_COEFFICIENT / MAX_COEFFICIENT
seeds = st.integers(0, 2**32)


class CashTransitions(NamedTuple):
    """Transitions between two decisions, as `improve` takes them."""

    after: Accounts
    next: Accounts
    next_best: Tensor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rules_of(days: int, held: int = 4, stake: float = 10.0, cost: float = 0.0) -> EnvironmentConfig:
    """At a stake of 10 percent one order takes all cash."""
    return EnvironmentConfig(
        trading_days=days,
        settlement_days=held,
        max_holding_days=held,
        stake_percent=stake,
        cost_bps=cost,
        slippage_bps=0.0,
    )


def accounts(cash: Tensor, left: Tensor | float, opportunity: Tensor | float = 0.0) -> Accounts:
    """Accounts with cash only."""
    cash = cash.double()
    later, chances = (torch.as_tensor(value, dtype=torch.float64).expand_as(cash) for value in (left, opportunity))
    return Accounts(cash, cash.new_zeros(len(cash), BUCKETS), later, chances)


def random_accounts(count: int, days: int, generator: torch.Generator) -> Accounts:
    cash, share, left, opportunity = torch.rand(4, count, generator=generator, dtype=torch.float64)
    parts = torch.rand(count, BUCKETS, generator=generator, dtype=torch.float64)
    pending = parts / parts.sum(1, keepdim=True) * (share * (1 - cash))[:, None]
    return Accounts(cash, pending, (left * days).floor(), opportunity)


def random_value(rules: EnvironmentConfig, generator: torch.Generator) -> CashValue:
    nothing = CashValue.zero(rules)
    weights = torch.randn(len(nothing.weights), generator=generator, dtype=torch.float64)
    return nothing.with_values(weights, torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64))


@given(seeds, st.integers(2, 6))
def test_hats_interpolate_between_knots_and_stay_level_beyond(seed: int, count: int) -> None:
    generator = seeded(seed)
    knots = (0.1 + torch.rand(count, generator=generator, dtype=torch.float64)).cumsum(0) - 2.0
    heights = torch.randn(count, generator=generator, dtype=torch.float64)
    values = torch.cat((4 * torch.randn(50, generator=generator, dtype=torch.float64), knots))
    weights = hats(values, knots)
    assert bool((weights >= 0).all()) and int((weights > 1e-12).sum(1).max()) <= 2
    torch.testing.assert_close(weights.sum(1), torch.ones(len(values), dtype=torch.float64))
    torch.testing.assert_close(weights[50:], torch.eye(count, dtype=torch.float64))
    np.testing.assert_allclose(weights @ heights, np.interp(values, knots, heights), rtol=0, atol=1e-12)


def test_what_is_due_soon_stands_in_front() -> None:
    """Two sessions a bucket; a position that is overdue, for want of a bar, counts among the first."""
    held = 2 * BUCKETS
    rules = rules_of(30, held, stake=5.0)
    positions = torch.zeros(1, held + 3, POSITION_FEATURES)
    expected = torch.zeros(1, BUCKETS, dtype=torch.float64)
    for session in range(1, held + 2):
        positions[0, session, SESSIONS_HELD], positions[0, session, SIZE] = session / held, 2.0**-session
        expected[0, max(held - session - 1, 0) // 2] += 2.0**-session * rules.largest_order
    found = accounts_of(positions, torch.tensor([[0.3, 0.6, 10 / 30]]), torch.tensor([0.7]), rules)
    assert float(found.cash) == pytest.approx(0.3) and float(found.left) == 9
    torch.testing.assert_close(found.pending, expected, rtol=1e-6, atol=1e-9)


@given(seeds, st.integers(1, 4), st.sampled_from((4.0, 10.0)), st.sampled_from((0.0, 60.0)))
@example(5550730, 1, 10.0, 60.0)
@settings(max_examples=30)
def test_orders_are_those_of_the_rule_by_hand(seed: int, orders: int, stake: float, cost: float) -> None:
    """One account after the other, one order after the other, the best first, by the values before and after it."""
    generator, rules = seeded(seed), rules_of(20, 5, stake, cost)
    cash_value, held = random_value(rules, generator), random_accounts(20, 20, generator)
    best = torch.randn(20, orders, generator=generator, dtype=torch.float64).sort(1, descending=True).values
    best[torch.rand(best.shape, generator=generator) < 0.2] = -torch.inf
    value_weight, exploration_threshold = torch.rand(2, 20, generator=generator, dtype=torch.float64)
    decision = cash_value.greedy(best, held, value_weight=value_weight, exploration_threshold=exploration_threshold)
    per_order = rules.largest_order * (1 + rules.cost_rate)
    smallest = SMALLEST * min(1.0, 1.0 / per_order)
    for lane in range(20):
        account = Accounts(**{name: value[lane : lane + 1] for name, value in vars(held).items()})
        reward = 0.0
        for order, expected in enumerate(best[lane].tolist()):
            size = min(1.0, float(account.cash) / per_order)
            found, is_ordered = float(decision.size[lane, order]), False
            if size >= smallest and expected > -np.inf:
                after = account.after(
                    *torch.tensor([[size * per_order], [size * rules.largest_order]], dtype=torch.float64)
                )
                gain = size * expected - float(value_weight[lane]) * float(
                    cash_value.of(account) - cash_value.of(after)
                )
                margin = gain - float(exploration_threshold[lane]) * size * rules.largest_order
                is_ordered = found > 0 if abs(margin) < 1e-9 else margin > 0
            assert found == pytest.approx(size if is_ordered else 0.0, abs=1e-12)
            if is_ordered:
                account, reward = after, reward + size * expected
        assert float(decision.reward[lane]) == pytest.approx(reward, abs=1e-9)
        for name, value in vars(decision.after).items():
            torch.testing.assert_close(value[lane : lane + 1], getattr(account, name), msg=name)


@cache
def lived(days: int, held: int, chance: float, accounts_count: int = 1000) -> tuple[EnvironmentConfig, CashTransitions]:
    """Transitions of accounts that can pay for one order at a time, and give one on every tenth day.

    A day is good with this chance, else poor. An order's cash comes back `held` days later.
    """
    generator, rules = seeded(2), rules_of(days)
    parts: list[CashTransitions] = []
    due = torch.zeros(accounts_count, dtype=torch.int64)  # days until the cash comes back, 0: it is there
    before, _ = _day(due, days - 1, held, chance, generator)
    for left in range(days - 1, 0, -1):
        is_ordered = (due == 0) & (torch.rand(accounts_count, generator=generator) < 0.1)
        due = torch.where(is_ordered, held, due)
        after = replace(_state(due, left, held), opportunity=before.opportunity)
        due = (due - 1).clamp(min=0)
        before, best = _day(due, left - 1, held, chance, generator)
        parts.append(CashTransitions(after, before, best))
    fields = (
        {n: torch.cat([getattr(p, when).__dict__[n] for p in parts]) for n in vars(before)}
        for when in ("after", "next")
    )
    after, following = (Accounts(**values) for values in fields)
    return rules, CashTransitions(after, following, torch.cat([p.next_best for p in parts]))


def _state(due: Tensor, left: int, held: int) -> Accounts:
    state = accounts((due == 0).double(), float(left))
    bucket = ((due - 1).clamp(min=0) * BUCKETS // held).clamp(max=BUCKETS - 1)
    return replace(state, pending=state.pending.scatter(1, bucket[:, None], (due > 0).double()[:, None]))


def _day(due: Tensor, left: int, held: int, chance: float, generator: torch.Generator) -> tuple[Accounts, Tensor]:
    worth = torch.where(torch.rand(len(due), generator=generator) < chance, GOOD, POOR).double()
    return replace(_state(due, left, held), opportunity=worth), worth[:, None]


def optimum(days: int, held: int, chance: float) -> np.ndarray:
    """Values (left, days until the cash comes back) after a decision, by dynamic programming."""
    value = np.zeros((days, held + 1))
    for left in range(1, days):
        for due in range(held + 1):
            now = max(due - 1, 0)  # on the next day
            waits = value[left - 1, now]
            orders = value[left - 1, held]
            best = [max(worth + orders, waits) if now == 0 else waits for worth in (GOOD, POOR)]
            value[left, due] = chance * best[0] + (1 - chance) * best[1]
    return value


@pytest.mark.parametrize("chance", [0.1, 0.2, 0.35])
def test_scarce_cash_that_never_comes_back_is_kept_for_a_good_day(chance: float) -> None:
    """Optimal stopping: the last day alone takes a poor trade."""
    days = 12
    rules, transitions = lived(days, 100, chance)
    cash_value = improve(CashValue.zero(rules), *transitions, 1.0, 6)
    left = np.arange(1, days)
    expected = optimum(days, 100, chance)[1:, 0]
    for today in (GOOD, POOR):
        found = cash_value.of(accounts(torch.ones(days - 1), torch.from_numpy(left), today))
        np.testing.assert_allclose(found, expected, rtol=0.2)
    none = cash_value.of(_state(torch.full((days - 1,), 100), 5, 100))
    assert float(none.abs().max()) < 0.1 * expected[4]
    is_clear = expected > 1.15 * POOR
    held = accounts(torch.ones(days), torch.arange(days), POOR)
    poor, good = (
        cash_value.greedy(torch.full((days, 1), worth).double(), replace(held, opportunity=held.cash * worth)).size[
            :, 0
        ]
        for worth in (POOR, GOOD)
    )
    assert good[1:][torch.from_numpy(expected < 0.9 * GOOD)].all() and float(good[0]) == 1.0
    assert float(poor[0]) == 1.0 and is_clear.any() and not poor[1:][torch.from_numpy(is_clear)].any()


def test_cash_that_comes_back_is_worth_what_it_still_earns() -> None:
    """A poor trade is taken where it delays no likely good one, that is near the end only."""
    days, held, chance = 24, 4, 0.25
    rules, transitions = lived(days, held, chance)
    cash_value = improve(CashValue.zero(rules), *transitions, 1.0, 8)
    exact = optimum(days, held, chance)
    for left in (6, 12, 20, 23):
        for due in (0, held):
            found = float(cash_value.of(replace(_state(torch.tensor([due]), left, held), opportunity=torch.ones(1))))
            assert found == pytest.approx(exact[left, due], rel=0.2, abs=0.15), (left, due)
    gain_of_poor = POOR + exact[:, held] - exact[:, 0]
    clear = [left for left in range(days) if abs(gain_of_poor[left]) > 0.3]
    state = accounts(torch.ones(len(clear)), torch.tensor(clear), POOR)
    poor = cash_value.greedy(torch.full((len(clear), 1), POOR).double(), state).size[:, 0] > 0
    assert poor.tolist() == [gain_of_poor[left] > 0 for left in clear]


@pytest.mark.parametrize("gamma", [0.5, 1.0])
def test_an_iteration_is_the_least_squares_of_temporal_differences(
    gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows are taken at once; solved anew from all features in double precision."""
    generator, rules = seeded(5), rules_of(20, 5, 4.0)
    transitions = CashTransitions(
        random_accounts(500, 20, generator),
        random_accounts(500, 20, generator),
        torch.randn(500, 2, generator=generator, dtype=torch.float64),
    )
    before = random_value(rules, generator)
    found = improve(before, *transitions, gamma, 1)
    decision = before.greedy(transitions.next_best, transitions.next)
    now, following = (found.features(state).double().numpy() for state in (transitions.after, decision.after))
    penalty = module._RIDGE * 500 * np.eye(now.shape[1])
    exact = np.linalg.solve(now.T @ (now - gamma * following) + penalty, now.T @ (gamma * decision.reward.numpy()))
    np.testing.assert_allclose(now @ found.weights.numpy(), now @ exact, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(
        found.of(transitions.after), found.features(transitions.after).double() @ found.weights, rtol=1e-4, atol=1e-4
    )
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 64)
    pieces = improve(before, *transitions, gamma, 1)
    np.testing.assert_allclose(now @ pieces.weights.numpy(), now @ exact, rtol=1e-3, atol=1e-3)
