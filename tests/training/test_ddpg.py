"""The update of DDPG against the same in plain numbers, one transition after the other, and on known worlds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from models.cash_value import BUCKETS, FEATURES, Accounts, CashValue
from models.networks import Networks, NetworkSizes, Perceptrons
from models.replay_buffer import Batch, Transitions
from models.trader import PolicyNetworks, Traders
from tests.tiny import seeded, tiny_trainer
from training.ddpg import Losses, act, given, update
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT

Floats = NDArray[np.float64]
RULES = EnvironmentConfig(
    trading_days=12, settlement_days=6, stake_percent=5.0, max_holding_days=5, max_days_without_bar=2, cost_bps=40.0
)
SIZES = NetworkSizes(hidden=6, folds=2, outputs=3, account=FEATURES)
INPUTS, RATE = 5, 0.01
seeds = st.integers(0, 2**32)


def random_networks(agents: int, seed: int = 0, scale: float = 0.5, rate: float = RATE) -> Networks:
    """Networks, targets other than these, and calibrations."""
    generator = seeded(seed)
    input_mask = torch.rand(agents, INPUTS, generator=generator) < 0.8
    networks = Networks.initialize(input_mask, SIZES, rate, generator)
    for name, part in networks.tensors().items():
        if name == "calibration":
            part.uniform_(0.5, 2.0, generator=generator)
        elif part.is_floating_point() and "optimizer" not in name:
            part += scale * torch.randn(part.shape, generator=generator)
    networks.apply_mask()
    return networks


def random_traders(agents: int, seed: int = 0) -> Traders:
    value_weight, size = torch.rand(2, agents, generator=seeded(seed), dtype=torch.float64)
    return Traders(torch.zeros(agents, 3, dtype=torch.float64), 0 * size, value_weight, 0.5 + 0.5 * size)


def random_value(seed: int = 0) -> CashValue:
    """Values of cash about as large as what is expected of orders."""
    nothing = CashValue.zero(RULES)
    weights = torch.randn(len(nothing.weights), generator=seeded(seed), dtype=torch.float64)
    return nothing.with_values(weights, torch.tensor([0.2, 0.5, 1.3], dtype=torch.float64))


def random_batch(rows: int, orders: int = 2, seed: int = 0, *, missing: float = 0.0) -> Batch:
    """Transitions, a quarter of them to the last decision.

    Args:
        missing: share of the days with fewer candidates than orders.
    """
    draws = seeded(seed)

    def account(left: Tensor) -> Accounts:
        cash, opportunity = torch.rand(2, rows, generator=draws, dtype=torch.float64)
        pending = 0.2 * torch.rand(rows, BUCKETS, generator=draws, dtype=torch.float64)
        return Accounts(cash, pending, left, 2 * opportunity)

    def candidates() -> Tensor:
        best = torch.randn(rows, orders, generator=draws, dtype=torch.float64).sort(1, descending=True).values
        best[torch.rand(rows, generator=draws) < missing, -1] = -torch.inf
        return best

    left = torch.randint(1, RULES.trading_days, (rows,), generator=draws).double()
    left[::4] = 1.0
    state, following, best = account(left), account(left - 1), candidates()
    action = torch.rand(rows, orders, generator=draws, dtype=torch.float64) * best.isfinite()
    invested = action.sum(1) * RULES.largest_order
    after = state.after(invested * (1 + RULES.cost_rate), invested)
    reward = torch.randn(rows, generator=draws, dtype=torch.float64)
    transitions = Transitions(state, best, action, reward, after, following, candidates(), left <= 1)
    x = torch.randn(SIZES.folds, rows, INPUTS, generator=draws)
    return Batch(transitions, x, torch.randn(SIZES.folds, rows, SIZES.outputs, generator=draws))


def taken(
    networks: Networks,
    traders: Traders,
    cash_value: CashValue,
    batch: Batch,
    accumulate: int = 1,
    *,
    gamma: float = 1.0,
    tau: float = 0.3,
    trains_actor: bool = True,
) -> Losses:
    return update(networks, traders, cash_value, batch, accumulate, gamma=gamma, tau=tau, trains_actor=trains_actor)


# What follows says the same as the code under test in plain numbers, for one agent and one account.


def perceptron(parts: Sequence[Tensor], x: Floats) -> Floats:
    w1, b1, w2, b2, w3, b3 = (part.detach().double().numpy() for part in parts)

    def silu(z: Floats) -> Floats:
        return np.asarray(z / (1 + np.exp(-z)))

    return np.asarray(silu(silu(x @ w1 + b1[0]) @ w2 + b2[0]) @ w3 + b3[0])


@dataclass
class Account:
    """One account."""

    cash: float
    pending: list[float]
    left: float
    opportunity: float

    @classmethod
    def of(cls, accounts: Accounts, row: int) -> Account:
        parts = (accounts.cash[row], accounts.left[row], accounts.opportunity[row])
        cash, left, opportunity = (float(part) for part in parts)
        return cls(cash, accounts.pending[row].tolist(), left, opportunity)

    def bought(self, size: float) -> Account:
        invested = size * RULES.largest_order
        pending = [*self.pending[:-1], self.pending[-1] + invested]
        return replace(self, cash=self.cash - invested * (1 + RULES.cost_rate), pending=pending)

    @property
    def levels(self) -> list[float]:
        return [self.cash, self.cash + sum(self.pending[:2]), self.cash + sum(self.pending)]


class Agent:
    """One agent of a stack, in plain numbers: its value function, its policy and its Q."""

    def __init__(self, networks: Networks, agent: int, traders: Traders, worth: CashValue, *, is_target: bool) -> None:
        actor, critic = (
            (networks.actor_target, networks.critic_target) if is_target else (networks.actor, networks.critic)
        )
        self.actor = [part[agent] for part in actor.parts]
        self.continuation = [part[agent] for part in critic.continuation.parts]
        self.value_weight, self.largest = float(traders.value_weight[agent]), float(traders.size[agent])
        self.calibration, self.good = float(networks.calibration[agent]), float(worth.opportunity_knots[-1])
        days, held = RULES.trading_days, RULES.max_holding_days
        self.times = sorted({0.0, held / 4, float(held), 3.0 * held, float(days)} & {*np.arange(0, days + 0.01, 0.25)})
        self.knots = worth.opportunity_knots.tolist()
        self.weights = worth.weights.numpy().reshape(len(self.times), 3, 3, 5)

    def value(self, time: Account, levels: list[float]) -> float:
        """What the closed form expects of levels of cash on a day."""
        if time.left <= 0:
            return 0.0
        heights = np.zeros((len(self.times), 3))
        for t, o in np.ndindex(*heights.shape):
            curves = [
                np.interp(cash, (0.0, 0.1, 0.25, 0.5, 1.0), self.weights[t, o, n]) for n, cash in enumerate(levels)
            ]
            heights[t, o] = sum(curves)
        by_time = [np.interp(time.opportunity, self.knots, row) for row in heights]
        return float(np.interp(time.left, self.times, by_time))

    def time(self, account: Account) -> list[float]:
        opportunity = float(np.clip(account.opportunity / self.good, -4, 4))
        return [account.left / RULES.trading_days, min(account.left / 21, 1.0), opportunity]

    def policy(self, account: Account, best: Sequence[float]) -> list[float]:
        """The sizes that it orders of the best candidates."""
        per_order = RULES.largest_order * (1 + RULES.cost_rate)
        smallest = MIN_COEFFICIENT / MAX_COEFFICIENT * min(1.0, 1 / per_order)
        sizes, now = [], account
        for expected in best:
            size = 0.0
            if math.isfinite(expected):
                largest = min(now.cash / per_order, self.largest)
                before, after = self.value(account, now.levels), self.value(account, now.bought(largest).levels)
                gain = largest * expected - self.value_weight * (before - after)
                seen = [float(np.clip(number / self.good, -4, 4)) for number in (expected, gain)]
                features = np.array([*now.levels, *self.time(account), *seen])
                share = float(gain > 0) + 0.5 * math.tanh(float(perceptron(self.actor, features)[0]))
                size = largest * min(max(share, 0.0), 1.0)
            sizes.append(size if size >= smallest else 0.0)
            now = now.bought(sizes[-1])
        return sizes

    def q(self, account: Account, best: Sequence[float], sizes: Sequence[float]) -> float:
        reward = sum(size * expected for size, expected in zip(sizes, best, strict=True) if size > 0)
        after = account.bought(sum(sizes))
        known = self.calibration * (reward + self.value(after, after.levels))
        features = np.array([after.cash, *after.pending, *self.time(after)])
        return known + self.good * float(perceptron(self.continuation, features)[0]) * (after.left > 0)


def losses_by_hand(
    networks: Networks, traders: Traders, worth: CashValue, batch: Batch, gamma: float
) -> tuple[Floats, Floats]:
    """The (A,) losses of critics and actors before an update."""
    held, found = batch.transitions, np.zeros((2, traders.count))
    for row in range(traders.count):
        online = Agent(networks, row, traders, worth, is_target=False)
        target = Agent(networks, row, traders, worth, is_target=True)
        errors, values = [], []
        for n in range(len(held.reward)):
            state, following = Account.of(held.state, n), Account.of(held.next, n)
            best, next_best = held.best[n].tolist(), held.next_best[n].tolist()
            y = float(held.reward[n]) + gamma * target.q(following, next_best, target.policy(following, next_best))
            errors.append((online.q(state, best, held.action[n].tolist()) - y) / online.good)
            values.append(online.q(state, best, online.policy(state, best)) / online.good)
        rewards = [
            (perceptron([part[row, fold] for part in networks.critic.reward.parts], x.double().numpy()) - y.numpy())
            ** 2
            for fold, (x, y) in enumerate(zip(batch.x, batch.y, strict=True))
        ]
        found[:, row] = np.mean(np.square(errors)) + sum(error.mean() for error in rewards), -np.mean(values)
    return found[0], found[1]


@over(seeds, st.integers(1, 3), st.sampled_from((0.0, 0.7, 1.0)), st.sampled_from((0.0, 0.6)))
@settings(max_examples=15)
def test_losses_are_those_in_plain_numbers(seed: int, orders: int, gamma: float, missing: float) -> None:
    """Critics: Q(s, a) against r + gamma Q'(s', mu'(s')), of which nothing follows the last decision."""
    networks, traders, worth = random_networks(2, seed, rate=0.0), random_traders(2, seed), random_value(seed)
    batch = random_batch(8, orders, seed + 1, missing=missing)
    critic, actor = losses_by_hand(networks, traders, worth, batch, gamma)
    losses = taken(networks, traders, worth, batch, gamma=gamma)
    np.testing.assert_allclose(losses.critic.numpy(), critic, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(losses.actor.numpy(), actor, rtol=1e-4, atol=1e-5)


def test_nothing_follows_the_last_decision_but_what_its_orders_earn() -> None:
    """Neither a value of cash nor a continuation, however large they are."""
    networks, traders, worth = random_networks(1), random_traders(1), random_value()
    account = Accounts(
        torch.full((1,), 0.9).double(),
        torch.zeros(1, BUCKETS).double(),
        torch.zeros(1).double(),
        torch.ones(1).double(),
    )
    target = PolicyNetworks.of(networks.actor_target, networks.critic_target, networks.calibration)
    decision = act(target, traders, worth, account, torch.tensor([[2.0]], dtype=torch.float64))
    expected = float(networks.calibration[0]) * 2.0 * float(decision.size[0, 0])
    assert float(target.value(decision, worth)) == pytest.approx(expected) and expected > 0
    others = replace(worth, weights=100 + worth.weights)
    assert float(target.value(decision, others)) == pytest.approx(expected)


@over(seed=seeds, orders=st.sampled_from((1, 3)))
@settings(max_examples=12)
@mock.patch("models.cash_value.MIN_COEFFICIENT", 0.0)
@mock.patch(f"{__name__}.MIN_COEFFICIENT", 0.0)
def test_the_actors_gradient_is_that_of_q_in_plain_numbers(seed: int, orders: int) -> None:
    """By differences of the output bias and of a hidden one; critics do not move.

    As if orders of any size were given: so an actor learns of those that are too small.
    """
    networks, traders, worth = random_networks(1, seed), random_traders(1, seed), random_value(seed)
    networks.critic_optimizer.learning_rate = 0.0
    batch = random_batch(6, orders, seed + 1)

    def loss() -> float:
        return float(losses_by_hand(networks, traders, worth, batch, 1.0)[1][0])

    found: list[tuple[int, float, float]] = []
    for place in (5, 3):
        part, width = networks.actor.parts[place].detach(), 1e-3
        numbers = []
        for step in (width, -width, 0.1 * width, -0.1 * width):
            part[0, 0, 0] += step
            numbers.append(loss())
            part[0, 0, 0] -= step
        wide, narrow = (numbers[0] - numbers[1]) / 2 / width, (numbers[2] - numbers[3]) / 0.2 / width
        found.append((place, wide, narrow))
    taken(networks, traders, worth, batch)
    clipped = 10.0 / max(10.0, float(networks.actor_optimizer.norm))
    for place, wide, narrow in found:
        if abs(wide - narrow) < 1e-3:  # else there is a bend in between: an order that begins, or cash that ends
            first = networks.actor.of_numbers(networks.actor_optimizer.first).parts[place]
            gradient = float(first[0, 0, 0]) / 0.1
            assert gradient == pytest.approx(clipped * narrow, rel=0.02, abs=5e-3)


def tensors_of(networks: Networks) -> dict[str, Tensor]:
    return {name: part.clone() for name, part in networks.tensors().items()}


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    for name, part in expected.items():
        torch.testing.assert_close(found[name], part, rtol=2e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize("trains_actor", [True, False])
def test_an_agent_learns_alone_what_it_learns_in_a_stack(trains_actor: bool) -> None:
    networks, traders, worth = random_networks(4), random_traders(4), random_value()
    alone = [networks.rows(torch.tensor([row])) for row in range(4)]
    together: list[Losses] = []
    for step in range(3):
        together.append(taken(networks, traders, worth, random_batch(16, seed=step), trains_actor=trains_actor))
    for row, own in enumerate(alone):
        for step, losses in enumerate(together):
            some = traders.rows(slice(row, row + 1))
            found = taken(own, some, worth, random_batch(16, seed=step), trains_actor=trains_actor)
            assert float(found.critic) == pytest.approx(float(losses.critic[row]), rel=1e-5)
            assert float(found.actor) == pytest.approx(float(losses.actor[row]), rel=1e-5, abs=1e-6)
        assert_close(tensors_of(own), {name: part[row : row + 1] for name, part in tensors_of(networks).items()})
    assert not torch.equal(networks.critic.reward.parts[5][0], networks.critic.reward.parts[5][1])


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_gradients_over_parts_of_a_batch_add_up_to_that_of_all(parts: int) -> None:
    """Moments too, which hold the gradient itself."""
    found = []
    for accumulate in (1, parts):
        networks = random_networks(2)
        losses = taken(networks, random_traders(2), random_value(), random_batch(16), accumulate)
        found.append({**tensors_of(networks), "losses": torch.stack((losses.critic, losses.actor))})
    moments = [name for name in found[0] if "optimizer" in name]
    for name in (*moments, "losses"):
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-4, atol=1e-6)
    assert float(found[0]["critic_optimizer.0"].abs().max()) > 1e-4


@pytest.mark.parametrize("parts", [2, 4])
def test_gradients_over_parts_that_are_not_alike_add_up_too(parts: int) -> None:
    """Five rows in two parts, or in four of which there are but three."""
    losses = [
        taken(random_networks(1), random_traders(1), random_value(), random_batch(5), accumulate)
        for accumulate in (1, parts)
    ]
    torch.testing.assert_close(losses[1].critic, losses[0].critic, rtol=1e-4, atol=1e-6)


def test_targets_are_online_networks_where_they_follow_at_once() -> None:
    networks = random_networks(2)
    for step in range(3):
        taken(networks, random_traders(2), random_value(), random_batch(8, seed=step), tau=1.0)
        for slow, fast in ((networks.critic_target, networks.critic), (networks.actor_target, networks.actor)):
            assert all(torch.equal(a, b) for a, b in zip(slow.parameters(), fast.parameters(), strict=True))


def test_targets_follow_slowly_once_many_steps_are_taken() -> None:
    networks = random_networks(1)
    networks.critic_optimizer.steps.fill_(1000.0)
    before = [part.clone() for part in networks.critic_target.parameters()]
    taken(networks, random_traders(1), random_value(), random_batch(8), tau=0.1)
    parts = zip(networks.critic_target.parameters(), before, networks.critic.parameters(), strict=True)
    for slow, old, fast in parts:
        torch.testing.assert_close(slow, old + 0.1 * (fast.detach() - old))


def test_actors_stay_bit_for_bit_while_critics_learn_alone() -> None:
    networks = random_networks(2)
    before = tensors_of(networks)
    losses = taken(networks, random_traders(2), random_value(), random_batch(8), trains_actor=False)
    after = tensors_of(networks)
    for name, part in after.items():
        if name.startswith(("actor.", "actor_optimizer")):
            assert torch.equal(part, before[name]), name
    assert losses.actor.tolist() == [0.0, 0.0]
    assert not torch.equal(after["critic.0"], before["critic.0"])


def test_without_a_future_nothing_of_it_matters() -> None:
    """At a discount factor of 0."""
    batch = random_batch(8)
    other = replace(batch, transitions=replace(batch.transitions, next_best=-3 * batch.transitions.next_best))
    for gamma, is_alike in ((0.0, True), (1.0, False)):
        found = []
        for own in (batch, other):
            networks = random_networks(2)
            taken(networks, random_traders(2), random_value(), own, gamma=gamma, trains_actor=False)
            found.append(tensors_of(networks))
        assert all(torch.equal(part, found[1][name]) for name, part in found[0].items()) == is_alike


def broken(batch: Batch, part: str) -> Batch:
    """The batch with one number that is none."""
    if part in ("x", "y"):
        values = getattr(batch, part).clone()
        values[0, 2, 1] = torch.nan
        return replace(batch, **{part: values})
    values = getattr(batch.transitions, part).clone()
    values[3] = torch.nan
    return replace(batch, transitions=replace(batch.transitions, **{part: values}))


@pytest.mark.parametrize("part", ["x", "y", "reward", "action"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_is_no_number_leaves_critics_as_they_were(part: str, accumulate: int) -> None:
    """It is counted, and leaves no trace: the next step is as if it had not been."""
    networks, spared = random_networks(2), random_networks(2)
    rest = random_traders(2), random_value()
    before = tensors_of(networks)
    taken(networks, *rest, broken(random_batch(8), part), accumulate, trains_actor=False)
    after = tensors_of(networks)
    for name, old in before.items():
        if name.startswith(("critic.", "actor.")) or ("optimizer" in name and name != "critic_optimizer.25"):
            assert torch.equal(after[name], old), name
    assert networks.critic_optimizer.skipped.tolist() == [1, 1]
    assert all(bool(part.isfinite().all()) for part in after.values())
    targets = {name: part for name, part in after.items() if "_target" in name}
    spared.assign({**tensors_of(spared), **targets})
    for own in (networks, spared):
        taken(own, *rest, random_batch(8, seed=1), trains_actor=False)
    for name, learned in tensors_of(networks).items():
        assert name == "critic_optimizer.25" or torch.equal(learned, tensors_of(spared)[name]), name


def test_an_agent_whose_networks_are_no_number_harms_no_other() -> None:
    networks, others = random_networks(3), random_networks(3).rows(torch.tensor([0, 2]))
    networks.critic.continuation.parts[2].detach()[1, 0, 0] = torch.nan
    before, batch = tensors_of(networks), random_batch(8)
    traders = random_traders(3)
    for _ in range(2):
        taken(networks, traders, random_value(), batch)
        taken(others, traders.rows(torch.tensor([0, 2])), random_value(), batch)
    assert networks.critic_optimizer.skipped.tolist() == [0, 2, 0]
    assert networks.actor_optimizer.skipped.tolist() == [0, 2, 0]
    assert torch.equal(networks.actor.parts[0][1], before["actor.0"][1])
    assert_close({name: part[[0, 2]] for name, part in tensors_of(networks).items()}, tensors_of(others))


def test_critics_learn_a_batch_that_they_see_again_and_again() -> None:
    networks = random_networks(2, scale=0.0, rate=0.01)
    batch, rest = random_batch(16), (random_traders(2), random_value())
    losses = [taken(networks, *rest, batch, gamma=0.0, trains_actor=False).critic for _ in range(120)]
    assert bool((losses[-1] < 0.6 * losses[0]).all())
    assert bool((torch.stack(losses[-10:]).mean(0) < torch.stack(losses[30:40]).mean(0)).all())


@pytest.mark.parametrize("level", [1.5, -0.8])
def test_continuations_learn_what_accounts_earn_beyond_the_forecast(level: float) -> None:
    """Results of all orders are higher by as much as is planted, over two decisions the second of which is known."""
    rows, worth = 64, CashValue.zero(RULES)
    traders = replace(random_traders(1), value_weight=torch.zeros(1).double(), size=torch.ones(1).double())
    networks = random_networks(1, scale=0.0, rate=0.02)
    batch = random_batch(rows, orders=1)
    held = batch.transitions
    alike = {"left": torch.ones(rows).double()}, {"left": torch.zeros(rows).double()}
    state, following = (replace(own, **left) for own, left in zip((held.state, held.next), alike, strict=True))
    forecast = (held.action * held.best).sum(1)
    planted = replace(held, state=state, next=following, reward=forecast + level)
    for _ in range(100):
        taken(networks, traders, worth, replace(batch, transitions=planted), trains_actor=False)
    policy = PolicyNetworks.of(networks.actor, networks.critic, networks.calibration)
    learned = policy.value(given(planted, 1, worth), worth).detach() - networks.calibration * forecast
    later = following.cash.div(RULES.largest_order * (1 + RULES.cost_rate)).clamp(max=1.0)
    later = later * (later >= 0.1) * held.next_best[:, 0].clamp(min=0.0)
    expected = level + float((networks.calibration * later).mean() + ((1 - networks.calibration) * forecast).mean())
    assert float(learned.mean()) == pytest.approx(expected, abs=0.1)
    # To the last decision of an episode nothing is added.
    last = replace(planted, state=following)
    found = policy.value(given(last, 1, worth), worth)
    torch.testing.assert_close(found.detach(), networks.calibration * forecast)


def of_cash_worth(slope: float, good: float = 1.0) -> CashValue:
    """A value of cash now of so many percent for all of the capital, at any time."""
    nothing = CashValue.zero(RULES)
    weights = torch.zeros(len(nothing.by_left[0]), 3, 3, 5, dtype=torch.float64)
    weights[:, :, 0] = slope * nothing.cash_knots
    knots = torch.tensor([0.0, 0.5 * good, good], dtype=torch.float64)
    return nothing.with_values(weights.flatten(), knots)


def order_of(networks: Networks, traders: Traders, worth: CashValue, batch: Batch) -> Tensor:
    policy = PolicyNetworks.of(networks.actor, networks.critic, networks.calibration)
    return act(policy, traders, worth, batch.transitions.state, batch.transitions.best).size.detach()[:, 0]


def frozen(bias: float, cash_worth: Callable[[Perceptrons], Perceptrons] | None = None) -> Networks:
    """Networks of one agent: critics do not learn, its actor departs from the greedy rule alike everywhere."""
    networks = random_networks(1, scale=0.0)
    networks.calibration.fill_(1.0)
    networks.critic_optimizer.learning_rate = 0.0
    networks.actor.parts[5].detach().fill_(bias)
    if cash_worth is not None:
        for critic in (networks.critic, networks.critic_target):
            for part, other in zip(critic.continuation.parts, cash_worth(critic.continuation).parts, strict=True):
                part.detach().copy_(other)
    return networks


def worth_cash(slope: float) -> Callable[[Perceptrons], Perceptrons]:
    """A continuation that rises with the cash left, about by this slope: one hidden unit, far from its bend."""

    def change(continuation: Perceptrons) -> Perceptrons:
        first, bias, second, other, last, level = (torch.zeros_like(part.detach()) for part in continuation.parts)
        first[0, 0, 0], bias[0, 0, 0], second[0, 0, 0], other[0, 0, 0] = 1.0, 20.0, 1.0, 20.0
        last[0, 0, 0], level[0, 0, 0] = slope, -40.0 * slope
        return Perceptrons.of((first, bias, second, other, last, level))

    return change


@pytest.mark.parametrize(
    ("best", "cash", "learned", "bias", "grows"),
    [
        (3.0, 0.0, 0.0, -1.0, True),
        (3.0, 2.0, 0.0, -1.0, True),
        (-3.0, 0.0, 0.0, 1.0, False),
        (0.3, 2.0, 0.0, 1.0, False),
        (3.0, 0.0, 20.0, -1.0, False),
        (0.3, 2.0, -20.0, 1.0, True),
    ],
    ids=["gain", "worth its cash", "loss", "not worth its cash", "continuation wants cash", "continuation needs none"],
)
def test_orders_grow_where_they_are_worth_more_than_their_cash(
    best: float, cash: float, learned: float, bias: float, grows: bool
) -> None:
    """And shrink where they are worth less, by the closed form and what is learned beyond it."""
    rows, traders = 8, replace(random_traders(1), value_weight=torch.ones(1).double(), size=torch.ones(1).double())
    batch = random_batch(rows, orders=1)
    held = batch.transitions
    state = replace(held.state, cash=0.6 + 0.4 * held.state.cash, left=torch.full((rows,), 6.0).double())
    batch = replace(batch, transitions=replace(held, state=state, best=torch.full_like(held.best, best)))
    networks, worth = frozen(bias, worth_cash(learned)), of_cash_worth(cash)
    before = order_of(networks, traders, worth, batch)
    assert bool(((before > 0.1) & (before < 0.9)).all())
    for _ in range(3):
        taken(networks, traders, worth, batch)
    after = order_of(networks, traders, worth, batch)
    assert bool((after > before).all() if grows else (after < before).all())


def test_an_actor_learns_on_days_without_a_candidate() -> None:
    """Of which nothing can be learned."""
    networks, batch = random_networks(1), random_batch(16, orders=1, missing=0.5)
    assert bool(batch.transitions.best.isinf().any())
    taken(networks, random_traders(1), random_value(), batch)
    assert networks.actor_optimizer.steps.tolist() == [1] and float(networks.actor_optimizer.norm) > 0


@pytest.mark.parametrize("orders", [2, 3])
def test_an_actor_learns_on_days_with_fewer_candidates_than_orders(orders: int) -> None:
    networks, batch = random_networks(1), random_batch(16, orders, missing=0.5)
    taken(networks, random_traders(1), random_value(), batch)
    assert networks.actor_optimizer.steps.tolist() == [1] and float(networks.actor_optimizer.norm) > 0


def test_actors_of_a_run_with_several_orders_a_day_learn() -> None:
    trainer = tiny_trainer(rules=replace(RULES, max_new_positions_per_day=2))
    for _ in trainer.run(3):
        pass
    networks = trainer.population.networks
    assert networks is not None and networks.actor_optimizer.skipped.tolist() == [0] * 4
