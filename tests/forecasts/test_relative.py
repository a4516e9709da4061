"""What networks learn of orders, relative to their day, and how forecasts are weighed, on numbers that are planted."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from data.market import Market
from environment.portfolio import Portfolio
from models.networks import ActorCritic, Networks
from models.trader import Blend, products
from tests.models import plain
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market, regressions, seeded, shake
from training.forecasts.relative import RelativeOutcomes
from training.forecasts.ridge import TrainingDays
from utils.spaces import TARGET_PERCENTS

seeds = st.integers(0, 2**32)
Array = NDArray[np.float64]


@cache
def market() -> Market:
    return learnable_market(1)


@cache
def days() -> TrainingDays:
    return TrainingDays.of(market(), Portfolio.on(market(), TINY_RULES))


@cache
def outcomes() -> RelativeOutcomes:
    return RelativeOutcomes.of(days().samples, days().inputs)


def dense_y(found: RelativeOutcomes) -> Tensor:
    """The (training days, n, targets) results in standard deviations."""
    y = torch.zeros(*found.x.has_bar.shape, len(found.results))
    y[is_known(found)] = (found.relative(found.learned) / found.outcomes.deviation[:, None]).T
    return y


def is_known(found: RelativeOutcomes) -> Tensor:
    """Which (training days, n) orders have a known result."""
    return found.x.has_bar & (torch.arange(len(found.x.has_bar)) < found.learned.stop - found.learned.start)[:, None]


def day_and_stock(found: RelativeOutcomes, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Where rows are among the training days and the stocks, by counting bars."""
    day, stock = found.x.has_bar.nonzero()[rows].unbind(-1)
    return day, stock


def test_outcomes_are_those_of_each_day_less_their_mean() -> None:
    samples, found = days().samples, outcomes()
    first, y = samples.train.first, dense_y(outcomes())
    assert found.learned.start == found.x.days.start == first and len(y) == samples.train.days
    days_with_results = 0
    for day in range(samples.train.days):
        known = np.isfinite(samples.results[0, first + day]) & samples.train_days[first + day]
        assert is_known(found)[day].tolist() == known.tolist()
        assert not bool(y[day, ~is_known(found)[day]].any())
        if known.any():
            results = samples.results[:, first + day, known].astype(np.float64)
            relative = (results - results.mean(axis=1, keepdims=True)).T / found.outcomes.deviation.numpy()
            np.testing.assert_allclose(y[day, is_known(found)[day]], relative, rtol=1e-3, atol=1e-4)
            assert float(y[day].sum(0).abs().max()) < 1e-3
            days_with_results += 1
    assert days_with_results > 100
    np.testing.assert_allclose(y[is_known(found)].square().mean(0), 1.0, rtol=1e-3)
    results = np.where(samples.train_days[:, None], samples.results, np.nan)[:, found.learned]
    by_day = [[own[np.isfinite(own)].mean() if np.isfinite(own).any() else 0.0 for own in part] for part in results]
    np.testing.assert_allclose(found.outcomes.typical, np.mean(by_day, axis=1), rtol=1e-4)


def test_rows_of_a_fold_overlap_neither_it_nor_what_surrounds_it() -> None:
    """No order is learned from whose trade may be open on a day on which one of the fold is, or the reverse."""
    samples, found = days().samples, outcomes()
    drawn, stocks = found.draw(4, 15_000, seeded()), found.x.has_bar.shape[1]
    assert drawn.shape == (4, len(found.held), 15_000 // stocks, stocks) and len(found.held) == len(samples.folds) > 2
    covered = np.zeros(samples.train.days, dtype=np.bool_)
    for fold, own in enumerate(found.held):
        rows, held = drawn[:, fold].flatten(), slice(own.start - found.x.days.start, own.stop - found.x.days.start)
        day, stock = day_and_stock(found, rows)
        whole_days = day.view(-1, stocks)
        assert bool((whole_days == whole_days[:, :1]).all()), "an actor chooses among the stocks of one day"
        for one, bought in zip(whole_days[:500, 0].tolist(), stock.view(-1, stocks)[:500].tolist(), strict=True):
            assert set(bought) == set(is_known(found)[one].nonzero().flatten().tolist())
        allowed = {
            (d, s)
            for d, s in is_known(found).nonzero().tolist()
            if d + samples.longest < held.start or d >= held.stop + samples.longest
        }
        assert len(set(rows.tolist())) > 0.99 * len(allowed)  # all that may be are drawn
        assert set(zip(day.tolist(), stock.tolist(), strict=True)) <= allowed
        covered[held] = True
    assert covered.all()


def test_a_row_has_the_inputs_and_results_of_its_day_and_stock() -> None:
    found = outcomes()
    rows = found.draw(2, 200, seeded(4))
    x, y = found.at(rows)
    day, stock = day_and_stock(found, rows)
    seen = torch.from_numpy(found.x.dense(found.x.days))
    assert torch.equal(x, seen[day, stock]) and torch.equal(y, dense_y(found)[day, stock])
    assert x.shape == (*rows.shape, found.x.inputs) and y.shape == (*rows.shape, len(TARGET_PERCENTS))


def random_agents() -> ActorCritic:
    """Two agents, no number of which is zero."""
    mask = torch.ones(2, outcomes().x.inputs - 1, dtype=torch.bool)
    networks = shake(Networks.initialize(mask, 3, 5, 0.0, seeded(1)), 0.7, seeded(2))
    networks.base.copy_(torch.tensor([[0.6, 1.5, 0.4], [0.9, 0.3, 2.0]]))
    return networks.targets


def ridge_by_fold() -> Tensor:
    return torch.randn(2, 5, outcomes().x.inputs, generator=seeded(5), dtype=torch.float64)


def by_hand(
    agents: ActorCritic, agent: int, fold: int, x: Array, ridge: Array, start: float
) -> tuple[Array, Array, Array, Array]:
    """What an agent thinks of the stocks of one day by (stocks, inputs) and ridge forecasts relative to the day.

    Scores relative to the day, sale targets, and rewards at the first target and at these, less the first's mean.
    """
    added, shift, rewards = plain.judged(agents.actor, agents.critic, (agent, fold), x)
    slope, base = plain.numbers(agents.actor.slope[agent, fold]), plain.numbers(agents.base[agent])
    rewards, target = rewards * plain.numbers(outcomes().outcomes.deviation), plain.target_of(start, shift)
    first, own = rewards[:, list(TARGET_PERCENTS).index(start)], plain.at(rewards, target)
    score = base[2] * added + base[1] * (1 + slope[1]) * first + (base[0] * (1 + slope[0]) - 1) * ridge
    return score - score.mean(), target, first - first.mean(), own - first.mean()


START = torch.tensor([TARGET_PERCENTS[2], TARGET_PERCENTS[0]], dtype=torch.float64)


def test_forecasts_are_made_of_ridge_regression_and_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand for some weights of both; the best five stocks by score are the opportunity of a day."""
    found, agents, by_fold = outcomes(), random_agents(), ridge_by_fold()
    weight, network = [0.6, 0.3], [0.5, 1.2]
    blend = replace(Blend.of_ridge(2), ridge=torch.tensor(weight), network=torch.tensor(network))
    monkeypatch.setattr(Blend, "of_products", lambda *_: blend)
    forecasts, same = days().forecasts(regressions(by_fold), START, agents)
    closed, _ = days().forecasts(regressions(by_fold), START)
    typical = found.outcomes.typical.double().numpy()
    assert same is blend and forecasts.stock is not None
    stocks = forecasts.stock[:, found.x.days]
    assert torch.equal(stocks, torch.arange(stocks.shape[2]).expand(stocks.shape)), "of all"
    seen = days().inputs.for_networks(torch.from_numpy(found.x.dense(found.x.days))).double().numpy()
    for fold, own in enumerate(found.held):
        for day in range(own.start, own.stop, 3):
            has_bar = found.x.has_bar[day - found.x.days.start].numpy()
            for agent in range(2) if has_bar.any() else ():
                ridge = closed.expected[agent, day].double().numpy()[has_bar]
                level, start = ridge.mean(), float(START[agent])
                x = seen[day - found.x.days.start, has_bar]
                score, target, _, reward = by_hand(agents, agent, fold, x, ridge - level, start)
                beyond = np.interp(target, TARGET_PERCENTS, typical) - np.interp(start, TARGET_PERCENTS, typical)
                expected = level + weight[agent] * (ridge - level) + network[agent] * reward + beyond
                parts = (forecasts.score, ridge + score), (forecasts.target, target), (forecasts.expected, expected)
                for whole, one in parts:
                    np.testing.assert_allclose(whole[agent, day].numpy()[has_bar], one, rtol=1e-3, atol=1e-2)
                best = expected[np.argsort(-score - ridge)[:5]].mean()
                assert float(forecasts.opportunity[agent, day]) == pytest.approx(best, rel=1e-3, abs=1e-2)
            assert bool((forecasts.expected[:, day, ~has_bar] == -torch.inf).all())
    shifted = forecasts.target[:, found.learned] - START[:, None, None]
    assert float(shifted.abs().mean()) > 1.0 and float(shifted.std()) > 1.0


def blend_of(ridge: Tensor, network: Tensor, results: Tensor) -> Blend:
    return Blend.of_products(products(ridge, network, results))


def planted(
    agents: int, rows: int, weights: tuple[float, float], noise: float, seed: int, correlation: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Two forecasts, and results that follow them by these weights."""
    a, own, e = torch.randn(3, agents, rows, generator=seeded(seed), dtype=torch.float64)
    b = correlation * a + (1 - correlation**2) ** 0.5 * own
    return a, b, weights[0] * a + weights[1] * b + noise * e


def bounded(a: Tensor, b: Tensor, y: Tensor) -> tuple[float, float, float]:
    """The least mean squared error with weights of 0 to 1 and of 0 or more, and these weights."""
    a, b, y = (part.double() for part in (a, b, y))
    found = []
    inside = torch.linalg.lstsq(torch.stack((a, b), 1), y).solution
    for w, s in (
        (float(inside[0]), float(inside[1])),
        (0.0, float(b @ y / (b @ b))),
        (1.0, float(b @ (y - a) / (b @ b))),
        (float((a @ y / (a @ a)).clamp(0, 1)), 0.0),
    ):
        if 0 <= w <= 1 and s >= 0:
            found.append((float((y - w * a - s * b).square().mean()), w, s))
    return min(found)


@given(seeds, st.floats(-1.5, 2.5), st.floats(-1.5, 2.5), st.floats(0.0, 3.0), st.floats(-0.95, 0.95))
@settings(max_examples=150)
def test_weights_are_the_best_within_their_bounds(
    seed: int, ridge: float, network: float, noise: float, common: float
) -> None:
    """Where the network has no weight, ridge regression stays as it is, though less of it might be better."""
    a, b, y = planted(1, 60, (ridge, network), noise, seed, common)
    blend = blend_of(a, b, y)
    found, slope = float(blend.ridge), float(blend.network)
    assert 0.0 <= found <= 1.0 and slope >= 0.0
    error, _, best = bounded(a[0], b[0], y[0])
    if slope > 0:
        own = float((y - found * a - slope * b).square().mean())
        assert own == pytest.approx(error, rel=1e-6, abs=1e-9) or own <= error
    else:
        assert found == 1.0 and best == pytest.approx(0.0, abs=1e-6)


def test_the_unit_of_scores_is_the_deviation_of_forecasts() -> None:
    """At least a fiftieth of that of results, so that scores do not vanish with the forecasts."""
    a, b, y = planted(3, 400, (0.4, 1.5), 0.5, 3)
    blend = blend_of(a, b, y)
    forecast = blend.ridge[:, None] * a + blend.network[:, None] * b
    torch.testing.assert_close(blend.unit, forecast.square().mean(1).sqrt())
    torch.testing.assert_close(blend_of(1e-9 * a, 0 * b, y).unit, 0.02 * y.square().mean(1).sqrt())
    assert bool((blend_of(0 * a, 0 * b, 0 * y).unit > 0).all())


def test_a_day_keeps_the_mean_that_ridge_regression_expects() -> None:
    """Whatever networks expect: they choose among the stocks of a day. Sale targets alone may add to it."""
    agents, by_fold = random_agents(), ridge_by_fold()
    unshifted = replace(agents, actor=replace(agents.actor, choice=torch.zeros_like(agents.actor.choice)))
    forecasts, plain = (days().forecasts(regressions(by_fold), START, own)[0] for own in (unshifted, None))
    train = slice(market().splits.train.first, market().splits.train.last + 1)
    has_forecast = forecasts.expected.isfinite()
    assert torch.equal(has_forecast[:, train], days().tradable[train].expand(2, -1, -1))
    assert int(has_forecast.sum()) == int(has_forecast[:, train].sum())
    of_agents = days().forecasts(regressions(by_fold), START, agents)[0]
    level = torch.where(has_forecast, plain.expected, 0.0).sum(-1)
    for part in (forecasts.expected, forecasts.score, of_agents.score):
        torch.testing.assert_close(torch.where(has_forecast, part, 0.0).sum(-1), level, rtol=1e-4, atol=1e-3)
    assert not torch.allclose(of_agents.score[has_forecast], plain.expected[has_forecast], atol=0.1)


def test_blocks_of_days_change_forecasts_by_rounding_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of ridge regression and networks, and their blend; a large market has many blocks."""
    found = []
    for cells in (2**18, 50):
        monkeypatch.setattr("models.inputs._CELLS", cells)
        found.append(days().forecasts(regressions(ridge_by_fold()), START, random_agents(), most=2))
    (one, blend), (other, in_blocks) = found
    for name, part in vars(blend).items():
        torch.testing.assert_close(getattr(in_blocks, name), part, rtol=1e-6, atol=1e-6, msg=name)
    assert one.stock is not None and other.stock is not None and torch.equal(one.stock, other.stock)
    for name in ("expected", "score", "target"):
        torch.testing.assert_close(getattr(other, name), getattr(one, name), rtol=1e-4, atol=1e-4, msg=name)
