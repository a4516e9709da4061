"""What actors add to the greedy rule: nothing until they learn, and never more than the cash pays for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.cash_value import BUCKETS, Accounts, CashValue, Decision
from models.networks import Networks
from models.trader import AccountPolicy, Forecasts, Traders, daily_orders
from tests.tiny import seeded, shake
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT

DAYS = 20
SMALLEST = MIN_COEFFICIENT / MAX_COEFFICIENT
seeds = st.integers(0, 2**32)
stakes = st.sampled_from((2.5, 4.0, 10.0))


def rules_of(stake: float = 4.0, cost: float = 40.0) -> EnvironmentConfig:
    """At a stake of 10 percent one order takes all cash, and its costs more than that."""
    return EnvironmentConfig(
        trading_days=DAYS, settlement_days=5, max_holding_days=5, stake_percent=stake, cost_bps=cost, slippage_bps=0.0
    )


def random_value(rules: EnvironmentConfig, seed: int) -> CashValue:
    nothing = CashValue.zero(rules)
    weights = torch.randn(len(nothing.weights), generator=seeded(seed), dtype=torch.float64)
    return nothing.with_values(weights, torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64))


def random_accounts(count: int, seed: int) -> Accounts:
    """Some have no cash, some hardly any."""
    generator = seeded(seed)
    cash, left, opportunity, kind = torch.rand(4, count, generator=generator, dtype=torch.float64)
    cash = torch.where(kind < 0.1, 0.0, torch.where(kind < 0.3, 0.1 * cash, cash))
    pending = 0.2 * torch.rand(count, BUCKETS, generator=generator, dtype=torch.float64)
    return Accounts(cash, pending, (left * DAYS).floor(), 2 * opportunity - 0.5)


def random_candidates(count: int, stocks: int, seed: int) -> Forecasts:
    """Minus infinity where there is no candidate; scores rank stocks otherwise than expected results do."""
    generator = seeded(seed)
    expected, score, target = torch.randn(3, count, stocks, generator=generator)
    is_none = torch.rand(count, stocks, generator=generator) < 0.3
    target = (30 + 20 * target).clamp(10, 50)
    expected, score = (part.masked_fill(is_none, -torch.inf) for part in (expected, score))
    return Forecasts(expected, score, target, score[:, 0])


def best_of(candidates: Forecasts) -> Tensor:
    """Expected results in the order of the scores."""
    return candidates.expected.gather(1, candidates.score.argsort(dim=1, descending=True, stable=True)).double()


def drawn_networks(agents: int, seed: int) -> Networks:
    return Networks.initialize(torch.ones(agents, 4, dtype=torch.bool), 5, 2, 0.01, seeded(seed))


def random_networks(agents: int, seed: int, scale: float = 1.0) -> Networks:
    return shake(drawn_networks(agents, seed), scale, seeded(seed))


def policy_of(networks: Networks, *, is_committee: bool = False) -> AccountPolicy:
    return AccountPolicy.of(networks.online, is_committee=is_committee)


def random_traders(count: int, seed: int) -> Traders:
    value_weight, size = torch.rand(2, count, generator=seeded(seed), dtype=torch.float64)
    return Traders(torch.zeros(count, 3, dtype=torch.float64), 10 + 40 * size, value_weight, 0.2 + 0.8 * size)


@given(seeds, stakes, st.integers(1, 4))
@settings(max_examples=30)
def test_untrained_actors_leave_the_greedy_rule(seed: int, stake: float, orders: int) -> None:
    """The same orders, bit for bit, as those of the best scores by the closed form alone."""
    rules, lanes = rules_of(stake), 12
    worth, accounts = random_value(rules, seed), random_accounts(2 * lanes, seed + 1)
    traders, candidates = random_traders(2 * lanes, seed), random_candidates(2 * lanes, 6, seed + 2)
    none = torch.zeros(2 * lanes, dtype=torch.float64)
    parts = traders, worth, candidates, accounts, none, orders
    greedy, plain = daily_orders(*parts)
    found, learned = daily_orders(*parts, adjustment=policy_of(drawn_networks(2, seed)).adjusting(accounts, worth))
    assert torch.equal(learned.size, plain.size)
    assert torch.equal(found.action(candidates.target), greedy.action(candidates.target))
    assert torch.equal(plain.best, best_of(candidates)[:, :orders])
    rule = worth.greedy(
        best_of(candidates)[:, :orders], accounts, value_weight=traders.value_weight, largest=traders.size
    )
    assert torch.equal(plain.size, rule.size)
    assert torch.equal(greedy.target_percent, candidates.target.gather(1, greedy.stock))


@given(seeds, stakes, st.integers(1, 5), st.floats(0.1, 30.0), st.floats(0.0, 3.0), st.sampled_from((0.0, 40.0, 300.0)))
@settings(max_examples=60)
def test_no_actor_and_no_noise_overspend(
    seed: int, stake: float, orders: int, scale: float, noise: float, cost: float
) -> None:
    """Sizes lie within 0 and what the cash of the moment pays for, and what is not there is not bought."""
    rules, lanes = rules_of(stake, cost), 20
    worth, accounts = random_value(rules, seed), random_accounts(lanes, seed + 1)
    traders, candidates = random_traders(lanes, seed), random_candidates(lanes, 6, seed + 2)
    drawn = noise * torch.randn(lanes, generator=seeded(seed), dtype=torch.float64)
    adjustment = policy_of(random_networks(2, seed, scale)).adjusting(accounts, worth, drawn)
    nothing = torch.zeros(lanes, dtype=torch.float64)
    choice, decision = daily_orders(traders, worth, candidates, accounts, nothing, orders, adjustment=adjustment)
    per_order = rules.largest_order * (1 + rules.cost_rate)
    assert bool(decision.size.isfinite().all()) and bool((decision.size >= 0).all())
    assert not bool(decision.size[decision.best.isinf()].any())
    for lane in range(lanes):
        cash = float(accounts.cash[lane])
        for size in decision.size[lane].tolist():
            assert size <= min(cash / per_order, float(traders.size[lane])) + 1e-12
            assert size == 0 or size >= SMALLEST * min(1.0, 1 / per_order) - 1e-12
            cash -= size * per_order
        assert cash >= -1e-12
        assert float(decision.after.cash[lane].detach()) == pytest.approx(cash, abs=1e-12)
    action = choice.action(candidates.target)
    given_ = action[..., 0]
    assert bool(((given_ == 0) | ((given_ >= MIN_COEFFICIENT) & (given_ <= MAX_COEFFICIENT))).all())
    assert int((given_ > 0).sum(1).max()) <= orders
    assert bool(((action[..., 1] >= 10) & (action[..., 1] <= 50)).all())


@given(seeds, st.floats(0.1, 50.0))
@settings(max_examples=20)
def test_any_candidate_is_a_number_to_an_actor(seed: int, scale: float) -> None:
    """Expected to earn anything at all."""
    worth, accounts = random_value(rules_of(), seed), random_accounts(20, seed + 1)
    adjustment, zero = policy_of(random_networks(2, seed, scale)).adjusting(accounts, worth), torch.zeros(20).double()
    for extreme in (torch.inf, -torch.inf, torch.nan, 1e30):
        assert bool(adjustment(accounts.levels, zero + extreme, zero + extreme).isfinite().all())


def mean_of(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).mean(0)


def test_a_committee_averages_what_its_members_say() -> None:
    worth, accounts = random_value(rules_of(), 0), random_accounts(15, 1)
    networks = random_networks(3, 2)
    size, best = torch.rand(2, 15, 1, generator=seeded(3), dtype=torch.float64)
    alone = [policy_of(networks.rows(torch.tensor([row]))) for row in range(3)]
    together = policy_of(networks, is_committee=True)
    seen = accounts.levels, best[:, 0], size[:, 0]
    said = [own.adjusting(accounts, worth)(*seen) for own in alone]
    torch.testing.assert_close(together.adjusting(accounts, worth)(*seen), mean_of(said), rtol=1e-5, atol=1e-6)
    decision = Decision(size, best, accounts, worth.largest_order, worth.purchase_factor)
    values = [own.value(decision, worth) for own in alone]
    torch.testing.assert_close(together.value(decision, worth), mean_of(values), rtol=1e-5, atol=1e-5)
