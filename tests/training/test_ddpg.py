"""The update of DDPG against the same in plain numbers, one agent and one transition at a time, and on known worlds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from models.cash_value import Accounts, CashValue
from models.ddpg_agent import LOSSES
from models.inputs import TradeInputs
from models.networks import Networks, Perceptrons
from models.population import Learners, Outcomes
from models.replay_buffer import Batch, Transitions
from models.trader import Traders
from tests import tiny
from tests.models import plain
from tests.models.plain import Floats, numbers
from tests.small_market import small_market
from tests.tiny import INPUTS, seeded, shake, tiny_agent
from training import ddpg
from training.ddpg import update
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, TARGET_PERCENTS

RULES = EnvironmentConfig(
    trading_days=12, settlement_days=6, stake_percent=5.0, max_holding_days=5, max_days_without_bar=2, cost_bps=40.0
)
HIDDEN, FOLDS = 6, 2
RATE, DECAY = 0.01, 0.05
TARGETS = len(TARGET_PERCENTS)
seeds = st.integers(0, 2**32)


@cache
def inputs() -> TradeInputs:
    return tiny_agent(small_market(days=120)).inputs


def random_networks(agents: int, seed: int = 0, scale: float = 0.5, rate: float = RATE) -> Networks:
    """Networks, targets other than these, calibrations, and weights of what scores are made of."""
    draws = seeded(seed)
    input_mask = torch.rand(agents, INPUTS - 1, generator=draws) < 0.8
    networks = shake(Networks.initialize(input_mask, HIDDEN, FOLDS, rate, draws), scale, draws)
    networks.base.copy_(0.3 + torch.rand(agents, 3, generator=draws))
    return networks


def random_traders(agents: int, seed: int = 0) -> Traders:
    """Their sale targets are some of those among which agents choose."""
    draws = seeded(seed)
    value_weight, size = torch.rand(2, agents, generator=draws, dtype=torch.float64)
    target = torch.tensor(TARGET_PERCENTS).double()[torch.randint(TARGETS, (agents,), generator=draws)]
    return Traders(torch.zeros(agents, INPUTS, dtype=torch.float64), target, value_weight, 0.5 + 0.5 * size)


def random_value(seed: int = 0) -> CashValue:
    """Values of cash about as large as what is expected of orders."""
    nothing = CashValue.zero(RULES)
    weights = torch.randn(len(nothing.weights), generator=seeded(seed), dtype=torch.float64)
    return nothing.with_values(weights, torch.tensor([0.2, 0.5, 1.3], dtype=torch.float64))


def learners_of(networks: Networks, seed: int = 0, worth: CashValue | None = None) -> Learners:
    """Agents on these networks, on closed forms that are drawn at random."""
    agents, draws = len(networks.input_mask), seeded(seed)
    by_fold = 0.2 * torch.randn(agents, FOLDS, INPUTS, generator=draws)
    outcomes = Outcomes(0.5 + torch.rand(TARGETS, generator=draws), 0.2 * torch.randn(TARGETS, generator=draws))
    traders = random_traders(agents, seed)
    return Learners(networks, traders, by_fold, worth or random_value(seed), inputs(), outcomes)


def random_learners(agents: int, seed: int = 0, scale: float = 0.5, rate: float = RATE) -> Learners:
    return learners_of(random_networks(agents, seed, scale, rate), seed)


def random_batch(rows: int, orders: int = 2, seed: int = 0, *, days: int = 4, missing: float = 0.0) -> Batch:
    return tiny.random_batch(RULES, rows, FOLDS, orders=orders, days=days, seed=seed, missing=missing)


def taken(
    learners: Learners, batch: Batch, accumulate: int = 1, *, gamma: float = 1.0, tau: float = 0.3
) -> dict[str, Tensor]:
    return update(learners, batch, accumulate, gamma=gamma, tau=tau)


# What follows says the same as the code under test in plain numbers, for one agent and one account.


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

    def __init__(self, learners: Learners, agent: int, *, is_target: bool) -> None:
        networks, worth, traders = learners.networks, learners.cash_value, learners.traders
        pair = (networks.actor_target, networks.critic_target) if is_target else (networks.actor, networks.critic)
        self.actor, self.critic = pair
        self.learners, self.place = learners, agent
        self.size = [part[agent] for part in self.actor.size.parts]
        self.continuation = [part[agent] for part in self.critic.continuation.parts]
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

    def policy(self, account: Account, best: Sequence[float]) -> tuple[list[float], list[float]]:
        """The sizes that it orders of the best candidates, and its departures from the greedy rule."""
        per_order = RULES.largest_order * (1 + RULES.cost_rate)
        smallest = MIN_COEFFICIENT / MAX_COEFFICIENT * min(1.0, 1 / per_order)
        sizes, departures, now = [], [], account
        for candidate in best:
            expected = candidate if math.isfinite(candidate) else 0.0
            largest = min(now.cash / per_order, self.largest)
            before, after = self.value(account, now.levels), self.value(account, now.bought(largest).levels)
            gain = largest * expected - self.value_weight * (before - after)
            seen = [float(np.clip(number / self.good, -4, 4)) for number in (expected, gain)]
            features = np.array([*now.levels, *self.time(account), *seen])
            departures.append(float(plain.perceptron(self.size, features)[0]))
            share = min(max(float(gain > 0) + departures[-1], 0.0), 1.0)
            size = largest * share if math.isfinite(candidate) else 0.0
            sizes.append(size if size >= smallest else 0.0)
            now = now.bought(sizes[-1])
        return sizes, departures

    def following(self, after: Account) -> float:
        """The value of an account after the orders of a day that is not the last."""
        features = np.array([after.cash, *after.pending, *self.time(after)])
        learned = float(plain.perceptron(self.continuation, features)[0])
        return self.calibration * self.value(after, after.levels) + self.good * learned

    def expects(self, best: Sequence[float], sizes: Sequence[float]) -> float:
        earned = sum(size * expected for size, expected in zip(sizes, best, strict=True) if size > 0)
        return self.calibration * earned

    def size_loss(self, batch: Batch) -> float:
        """The mean squared departure with its weight, less Q in units of a good order."""
        held, found = batch.transitions, []
        for n in range(len(held.reward)):
            state, best = Account.of(held.state, n), held.best[n].tolist()
            sizes, departures = self.policy(state, best)
            q = self.expects(best, sizes) + self.following(state.bought(sum(sizes)))
            found.append(ddpg.SIZE_TRUST * np.mean(np.square(departures)) - q / self.good)
        return float(np.mean(found))

    def choice_loss(self, batch: Batch) -> float:
        """The sum over folds of what the softmax over a day's stocks earns, negative, and of the trust."""
        learners, found = self.learners, 0.0
        deviation, typical = (numbers(part) for part in vars(learners.outcomes).values())
        start = float(learners.traders.target_percent[self.place])
        at_start = TARGET_PERCENTS.index(start)
        base = learners.networks.base[self.place].tolist()
        for fold in range(FOLDS):
            x, y = numbers(batch.x[fold]), numbers(batch.y[fold])
            seen = plain.seen_by_networks(learners.inputs, x)
            added, shift, rewards = plain.judged(self.actor, self.critic, (self.place, fold), seen)
            ridge = x @ numbers(learners.by_fold[self.place, fold])
            slope = numbers(self.actor.slope[self.place, fold])
            score = (
                base[0] * (1 + slope[0]) * ridge
                + base[1] * (1 + slope[1]) * rewards[..., at_start] * deviation[at_start]
            )
            score = (score / base[2] + added) / ddpg.TEMPERATURE
            mixed = (1 - ddpg.OUTCOMES) * rewards + ddpg.OUTCOMES * y
            result = plain.at(mixed * deviation + typical, plain.target_of(start, shift)) / deviation[at_start]
            for own, scores in zip(result, score, strict=True):
                share = np.exp(scores - scores.max())
                found -= float(share @ own / share.sum()) / len(score)
            found += ddpg.CHOICE_TRUST * float(np.mean(added**2)) + ddpg.TARGET_TRUST * float(np.mean(shift**2))
        return found


def errors_of(learners: Learners, batch: Batch, agent: int) -> list[Floats]:
    """Those of rewards, by fold, in deviations of results."""
    found = []
    for fold, (x, y) in enumerate(zip(batch.x, batch.y, strict=True)):
        seen = plain.seen_by_networks(learners.inputs, numbers(x))
        parts = [part[agent, fold] for part in learners.networks.critic.reward.parts]
        found.append(plain.perceptron(parts, seen) - numbers(y))
    return found


def temporal_of(learners: Learners, batch: Batch, agent: int, gamma: float) -> Floats:
    """Temporal differences by transition, percent of the initial capital: nothing follows a terminated one."""
    held, found = batch.transitions, []
    online, target = (Agent(learners, agent, is_target=is_target) for is_target in (False, True))
    for n in range(len(held.reward)):
        following, best = Account.of(held.next, n), held.next_best[n].tolist()
        sizes, _ = target.policy(following, best)
        y = target.expects(best, sizes)
        if not held.terminated[n]:
            y += target.following(following.bought(sum(sizes)))
        found.append(online.following(Account.of(held.after, n)) - gamma * y)
    return np.array(found)


def critic_loss(learners: Learners, batch: Batch, agent: int, gamma: float = 1.0) -> float:
    """What an agent's critic descends."""
    good = float(learners.cash_value.opportunity_knots[-1])
    temporal = float(np.mean((temporal_of(learners, batch, agent, gamma) / good) ** 2))
    return temporal + sum(float(np.mean(error**2)) for error in errors_of(learners, batch, agent))


def actor_loss(learners: Learners, batch: Batch, agent: int) -> float:
    own = Agent(learners, agent, is_target=False)
    return own.choice_loss(batch) + own.size_loss(batch)


def losses_by_hand(learners: Learners, batch: Batch, gamma: float) -> dict[str, Floats]:
    """The (A,) losses before an update."""
    deviation, agents = numbers(learners.outcomes.deviation), range(learners.traders.count)
    errors = [np.array(errors_of(learners, batch, agent)) * deviation for agent in agents]
    return {
        "reward": np.array([np.mean(error**2) for error in errors]),
        "temporal": np.array([np.mean(temporal_of(learners, batch, agent, gamma) ** 2) for agent in agents]),
        "actor": np.array([actor_loss(learners, batch, agent) for agent in agents]),
    }


@over(seeds, st.integers(1, 3), st.sampled_from((0.0, 0.7, 1.0)), st.sampled_from((0.0, 0.6)))
@settings(max_examples=8)
def test_losses_are_those_in_plain_numbers(seed: int, orders: int, gamma: float, missing: float) -> None:
    """Of rewards; of V(s, a) against gamma (r' + V'(s', mu'(s'))); of what actors choose and how much they buy."""
    learners, batch = random_learners(2, seed, rate=0.0), random_batch(8, orders, seed + 1, missing=missing)
    expected = losses_by_hand(learners, batch, gamma)
    losses = taken(learners, batch, gamma=gamma)
    assert list(losses) == list(LOSSES)
    for name, loss in losses.items():
        np.testing.assert_allclose(loss.numpy(), expected[name], rtol=1e-4, atol=1e-4, err_msg=name)


def slopes_by_hand(loss: Callable[[], float], part: Tensor, place: tuple[int, ...]) -> tuple[float, float]:
    """The slopes of a loss in one number, to the left and to the right of it."""
    part, found = part.detach(), []
    number, before = float(part[place]), loss()
    for step in (-1e-4, 1e-4):
        part[place] = number + step
        found.append((loss() - before) / (float(part[place]) - number))
    part[place] = number
    return found[0], found[1]


@over(seed=seeds, orders=st.sampled_from((1, 3)))
@settings(max_examples=5)
@mock.patch("models.cash_value.MIN_COEFFICIENT", 0.0)
@mock.patch(f"{__name__}.MIN_COEFFICIENT", 0.0)
def test_a_step_is_that_of_adamw_along_the_gradient_in_plain_numbers(seed: int, orders: int) -> None:
    """Of critics by their own loss alone, of actors by theirs; in all layers, targets follow.

    As if orders of any size were given: so an actor learns of those that are too small.
    """
    learners, batch = random_learners(1, seed), random_batch(6, orders, seed + 1)
    networks, pick = learners.networks, np.random.default_rng(seed)
    networks.calibration.fill_(1.0)
    parts = {
        **{f"critic.reward {n}": part for n, part in enumerate(networks.critic.reward.parts)},
        **{f"critic.continuation {n}": part for n, part in enumerate(networks.critic.continuation.parts)},
        "actor.choice": networks.actor.choice,
        "actor.slope": networks.actor.slope,
        **{f"actor.size {n}": part for n, part in enumerate(networks.actor.size.parts)},
    }
    seen = networks.input_mask[0].nonzero().flatten().tolist()
    found = []
    for name, part in parts.items():
        place = tuple(int(pick.integers(length)) for length in part.shape)
        if name == "critic.reward 0":
            place = (*place[:2], int(pick.choice(seen)), place[3])
        of_critic = name.startswith("critic")
        slopes = slopes_by_hand(
            lambda of_critic=of_critic: (critic_loss if of_critic else actor_loss)(learners, batch, 0),  # type: ignore[misc]
            part,
            place,
        )
        found.append((name, part, place, float(part.detach()[place]), *slopes))
    taken(learners, batch, tau=0.25)
    # Targets are the networks themselves after the first step.
    assert all(torch.equal(networks.tensors[n.replace(".", "_target.")], networks.tensors[n]) for n in LEARNED)
    clips = {n: 10.0 / max(10.0, float(getattr(networks, f"{n}_optimizer").norm)) for n in ("critic", "actor")}
    checked = 0
    for name, part, place, before, left, right in found:
        gradient = clips[name.split(".")[0]] * (left + right) / 2
        tolerance = 2e-3 + 0.02 * abs(gradient)
        if abs(left - right) > tolerance:
            continue  # there is a bend: an order that begins, or a sale target at its end
        first = first_moment(networks, name, place) / 0.1
        assert first == pytest.approx(gradient, abs=tolerance), name
        step = before * (1 - RATE * DECAY) - float(part.detach()[place])
        assert abs(step) <= RATE * 1.0001, name
        if abs(gradient) > tolerance:
            assert step == pytest.approx(RATE * math.copysign(1, gradient), rel=1e-3), name
        checked += 1
    assert checked > len(found) // 2


LEARNED = "critic.reward", "critic.continuation", "actor.choice", "actor.slope", "actor.size"


def first_moment(networks: Networks, name: str, place: tuple[int, ...]) -> float:
    """The first moment of the gradient of one number."""
    whole, _, layer = name.partition(" ")
    moment = networks.tensors[whole.replace(".", "_first.")]
    if layer:
        sizes = networks.of_stock if whole == "critic.reward" else networks.of_account
        moment = Perceptrons(moment, sizes).parts[int(layer)]
    return float(moment[place])


def tensors_of(networks: Networks) -> dict[str, Tensor]:
    return {name: part.detach().clone() for name, part in networks.tensors.items()}


@pytest.mark.parametrize(("rows", "days", "parts"), [(16, 4, 4), (5, 5, 2), (5, 5, 9)])
def test_gradients_over_parts_of_a_batch_add_up_to_that_of_all(rows: int, days: int, parts: int) -> None:
    """Moments too, which hold the gradient itself; also where parts are not of one size."""
    found = []
    for accumulate in (1, parts):
        learners = random_learners(2)
        losses = taken(learners, random_batch(rows, days=days, missing=0.5), accumulate)
        found.append({**tensors_of(learners.networks), **losses})
    for name in (*LEARNED, *LOSSES):
        for part in (name,) if name in LOSSES else (name.replace(".", f"_{kind}.") for kind in ("first", "second")):
            torch.testing.assert_close(found[1][part], found[0][part], rtol=1e-4, atol=1e-6, msg=part)
    assert float(found[0]["critic_first.reward"].abs().max()) > 1e-4


def broken(batch: Batch, part: str) -> Batch:
    """The batch with one number that is none."""
    if part in ("x", "y"):
        values = getattr(batch, part).clone()
        values[0, 2, 1] = torch.nan
        return replace(batch, **{part: values})
    account: Accounts = getattr(batch.transitions, part)
    cash = account.cash.clone()
    cash[3] = torch.nan
    parts = vars(batch.transitions) | {part: replace(account, cash=cash)}
    return replace(batch, transitions=Transitions(**parts))


@pytest.mark.parametrize(
    ("part", "spoilt"),
    [
        ("x", {"critic", "actor"}),
        ("y", {"critic", "actor"}),
        ("after", {"critic"}),
        ("next", {"critic"}),
        ("state", {"actor"}),
    ],
)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_batch_that_is_no_number_leaves_networks_as_they_were(part: str, spoilt: set[str], accumulate: int) -> None:
    """It is counted, and leaves no trace."""
    learners = random_learners(2)
    networks, before = learners.networks, tensors_of(learners.networks)
    taken(learners, broken(random_batch(8), part), accumulate)
    after = tensors_of(networks)
    for owner in ("critic", "actor"):
        optimizer = getattr(networks, f"{owner}_optimizer")
        is_spoilt = owner in spoilt
        assert optimizer.skipped.tolist() == [is_spoilt] * 2 and optimizer.steps.tolist() == [not is_spoilt] * 2
        for name in LEARNED:
            if name.startswith(owner):
                kept = [torch.equal(after[own], before[own]) for own in (name, name.replace(".", "_first."))]
                assert kept == [is_spoilt] * 2, name
    assert all(bool(own.isfinite().all()) for name, own in after.items() if not name.endswith("counts"))


# Known worlds: one input tells good stocks from bad ones.

GOOD = INPUTS - 1


def planted(good: Tensor, y: Tensor) -> Batch:
    """Days on which the last input is (folds, D, S) `good`, and results are those of `y`."""
    batch = random_batch(8, orders=1)
    x = torch.zeros(*good.shape, INPUTS)
    x[..., GOOD] = good
    return replace(batch, x=x, y=y.expand(*good.shape, TARGETS))


def untrained(start: float = 30.0, ridge: float = 0.0, agents: int = 2) -> Learners:
    """Agents that look at all inputs and have learned nothing; ridge regressions see what is good by this slope."""
    drawn = Networks.initialize(torch.ones(agents, INPUTS - 1, dtype=torch.bool), HIDDEN, FOLDS, 0.02, seeded(1))
    learners = learners_of(drawn)
    by_fold = torch.zeros_like(learners.by_fold)
    by_fold[..., GOOD] = ridge
    target = torch.full((agents,), start).double()
    outcomes = Outcomes(torch.ones(TARGETS), torch.zeros(TARGETS))
    return replace(
        learners, by_fold=by_fold, outcomes=outcomes, traders=replace(learners.traders, target_percent=target)
    )


def judged(learners: Learners, good: float) -> list[tuple[float, float]]:
    """Scores and sale targets of a stock by all agents and folds."""
    x = torch.zeros(1, INPUTS)
    x[0, GOOD] = good
    seen, networks, found = learners.inputs.for_networks(x), learners.networks, []
    for agent, fold in np.ndindex(len(networks.input_mask), FOLDS):
        start = float(learners.traders.target_percent[agent])
        score, target, *_ = networks.online.judge(agent, fold, seen, start, learners.outcomes.deviation)
        ridge = float(networks.online.weights[agent, fold, 0]) * float(x[0] @ learners.by_fold[agent, fold])
        found.append((float(score) + ridge, float(target)))
    return found


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_the_choice_learns_to_prefer_the_better_stock(sign: float, weight: float) -> None:
    """With and without the critic's reward in its score; what actors earn rises."""
    learners = untrained()
    learners.networks.base[:, 1] = weight
    good = torch.randn(FOLDS, 16, 4, generator=seeded(2)).sign()
    batch = planted(good, sign * good[..., None])
    assert judged(learners, 1.0) == judged(learners, -1.0)
    losses = [taken(learners, batch)["actor"] for _ in range(60)]
    for better, worse in zip(judged(learners, sign), judged(learners, -sign), strict=True):
        assert better[0] > worse[0] + 0.1
    assert bool((losses[-1] < losses[0] - 0.1).all())


@pytest.mark.parametrize("typical", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_sale_target_learns_what_earns_more(sign: float, typical: bool) -> None:
    """By outcomes of the stock, or by what is typical of all orders; from the agent's own target on."""
    learners, good = untrained(), torch.ones(FOLDS, 16, 4)
    rising = sign * torch.linspace(-1, 1, TARGETS)
    if typical:
        learners = replace(learners, outcomes=replace(learners.outcomes, typical=rising))
    batch = planted(good, 0 * rising if typical else rising)
    assert {target for _, target in judged(learners, 1.0)} == {30.0}
    for _ in range(60):
        taken(learners, batch)
    for _, target in judged(learners, 1.0):
        assert target > 35 if sign > 0 else target < 25
