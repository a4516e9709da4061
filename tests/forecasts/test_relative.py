"""What networks learn of orders, relative to their day, and how forecasts are weighed, on numbers that are planted."""

from __future__ import annotations

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
from models.networks import Perceptrons
from models.trader import relative_to_day
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market, seeded
from training.forecasts.relative import Blend, RelativeOutcomes
from training.forecasts.ridge import TrainingDays

seeds = st.integers(0, 2**32)


@cache
def market() -> Market:
    return learnable_market(1)


@cache
def days() -> TrainingDays:
    return TrainingDays.of(market(), Portfolio.on(market(), TINY_RULES))


def outcomes_of(results: NDArray[np.float32] | None = None) -> RelativeOutcomes:
    """The outcomes of the market, or of it with other (targets, days, n) results."""
    samples = days().samples
    if results is not None:
        samples = replace(samples, results=results)
    return RelativeOutcomes.of(samples, days().inputs)


@cache
def outcomes() -> RelativeOutcomes:
    return outcomes_of()


def dense_y(found: RelativeOutcomes) -> Tensor:
    """The (training days, n, targets) results in standard deviations."""
    y = torch.zeros(*found.x.has_bar.shape, len(found.results))
    y[is_known(found)] = (found.relative(found.learned) / found.deviation[:, None]).T
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
            relative = (results - results.mean(axis=1, keepdims=True)).T / found.deviation.numpy()
            np.testing.assert_allclose(y[day, is_known(found)[day]], relative, rtol=1e-3, atol=1e-4)
            assert float(y[day].sum(0).abs().max()) < 1e-3
            days_with_results += 1
    assert days_with_results > 100
    np.testing.assert_allclose(y[is_known(found)].square().mean(0), 1.0, rtol=1e-3)


def test_rows_of_a_fold_overlap_neither_it_nor_what_surrounds_it() -> None:
    """No order is learned from whose trade may be open on a day on which one of the fold is, or the reverse."""
    samples, found = days().samples, outcomes()
    drawn = found.draw(20_000, seeded())
    assert drawn.shape == (20_000, len(samples.folds)) and len(found.held) == len(samples.folds) > 2
    covered = np.zeros(samples.train.days, dtype=np.bool_)
    for fold, own in enumerate(found.held):
        rows, held = drawn[:, fold], slice(own.start - found.x.days.start, own.stop - found.x.days.start)
        day, stock = day_and_stock(found, rows)
        assert bool(is_known(found)[day, stock].all())
        before, after = day < held.start, day >= held.stop
        assert bool((before | after).all())
        assert bool((day[before] + samples.longest < held.start).all())
        assert bool((day[after] >= held.stop + samples.longest).all())
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
    rows = found.draw(200, seeded(4)).T
    x, y = found.at(rows)
    day, stock = day_and_stock(found, rows)
    seen = days().inputs.for_networks(torch.from_numpy(found.x.dense(found.x.days)))
    assert torch.equal(x, seen[day, stock]) and torch.equal(y, dense_y(found)[day, stock])
    assert x.shape[-1] == found.x.inputs - 1


@pytest.mark.parametrize("fold", [0, 2, 4])
def test_results_of_a_fold_change_nothing_that_is_learned_for_it(fold: int) -> None:
    """But for the standard deviation, which is of all training days and the same for all orders."""
    samples, found = days().samples, outcomes()
    _, held = samples.folds[fold]
    results = samples.results.copy()
    results[:, held] = 3 * results[:, held] + np.random.default_rng(0).standard_normal(results[:, held].shape)
    other = outcomes_of(results)
    drawn = found.draw(500, seeded(2))
    assert torch.equal(other.draw(500, seeded(2)), drawn)
    own = drawn[:, fold]
    assert torch.equal(found.at(own)[0], other.at(own)[0])
    one, two = (part.at(own)[1] * part.deviation for part in (found, other))
    torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    scale = found.deviation / other.deviation
    assert bool((scale < 0.95).all())
    rest = drawn[:, (fold + 1) % 5]
    assert not torch.allclose(found.at(rest)[1] * scale, other.at(rest)[1], atol=1e-2)


def constants(values: Tensor) -> Perceptrons:
    """Networks of (A, folds, targets) that always expect the same, but for a share of the first input."""
    agents, folds, targets = values.shape
    inputs = outcomes().x.inputs - 1
    parts = Perceptrons.initialize((agents, folds), (inputs, 3, targets), seeded(1)).parts
    last = torch.randn(parts[4].shape, generator=seeded(2)) * values[:, :, None]
    return Perceptrons.of((*parts[:4], last, values[:, :, None]))


def test_each_day_is_judged_by_the_network_of_its_fold() -> None:
    """What the others expect does not matter: with theirs at no number, a network alone is heard on its days."""
    found, targets = outcomes(), [2, 0]
    values = 1.0 + torch.rand(2, 5, len(found.results), generator=seeded(3))
    networks = constants(values)
    tradable = found.x.has_bar

    def expectations(own: slice, networks: Perceptrons) -> Tensor:
        return found.x.spread(found.out_of_fold(own, networks, targets), own)

    expected = expectations(found.x.days, networks)
    seen = days().inputs.for_networks(torch.from_numpy(found.x.dense(found.x.days)))
    assert expected.shape == (2, *tradable.shape)
    for fold, own in enumerate(found.held):
        held = found.x.here(own)
        alone = networks.map(
            lambda part, fold=fold: torch.full_like(part, torch.nan).index_copy(  # type: ignore[misc]
                1, torch.tensor([fold]), part[:, fold : fold + 1]
            )
        )
        assert torch.equal(expectations(own, alone), expected[:, held])
        for agent, target in enumerate(targets):
            by_hand = networks(seen[held].flatten(0, 1))[agent, fold][:, target].view(-1, seen.shape[1])
            by_hand = by_hand * found.deviation[target]
            relative = relative_to_day(by_hand, tradable[held])[tradable[held]]
            torch.testing.assert_close(expected[agent, held][tradable[held]], relative, rtol=1e-4, atol=1e-4)
    total = torch.where(tradable, expected, 0.0).sum(-1)
    assert float(total.abs().max()) < 1e-2 < float(expected.abs().max())


def planted(
    agents: int, rows: int, weights: tuple[float, float], noise: float, seed: int, correlation: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Two forecasts, and results that follow them by these weights."""
    a, own, e = torch.randn(3, agents, rows, generator=seeded(seed), dtype=torch.float64)
    b = correlation * a + (1 - correlation**2) ** 0.5 * own
    return a, b, weights[0] * a + weights[1] * b + noise * e


@given(seeds, st.floats(0.05, 0.95), st.floats(0.05, 3.0), st.sampled_from((0.0, 0.6, -0.6)))
@settings(max_examples=30)
def test_a_blend_finds_the_weights_that_were_planted(seed: int, ridge: float, network: float, common: float) -> None:
    a, b, y = planted(2, 400, (ridge, network), 0.0, seed, common)
    blend = Blend.of(a, b, y)
    torch.testing.assert_close(blend.ridge, torch.full((2,), ridge, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(blend.network, torch.full((2,), network, dtype=torch.float64), atol=1e-5, rtol=0)
    torch.testing.assert_close(blend.explained[:, 1], torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)


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
    blend = Blend.of(a, b, y)
    found, slope = float(blend.ridge), float(blend.network)
    assert 0.0 <= found <= 1.0 and slope >= 0.0
    error, _, best = bounded(a[0], b[0], y[0])
    if slope > 0:
        own = float((y - found * a - slope * b).square().mean())
        assert own == pytest.approx(error, rel=1e-6, abs=1e-9) or own <= error
    else:
        assert found == 1.0 and best == pytest.approx(0.0, abs=1e-6)


@given(seeds, st.floats(-1.5, 2.5), st.floats(-1.5, 2.5), st.floats(0.1, 30.0))
@settings(max_examples=60)
def test_both_explain_no_less_than_ridge_regression_alone(
    seed: int, ridge: float, network: float, noise: float
) -> None:
    a, b, y = planted(3, 50, (ridge, network), noise, seed)
    blend = Blend.of(a, b, y)
    assert bool((blend.explained[:, 1] >= blend.explained[:, 0] - 1e-9).all())
    alone = 1 - (y - a).square().sum(1) / y.square().sum(1)
    both = y - blend.ridge[:, None] * a - blend.network[:, None] * b
    torch.testing.assert_close(blend.explained[:, 0], alone)
    torch.testing.assert_close(blend.explained[:, 1], 1 - both.square().sum(1) / y.square().sum(1))


def test_ridge_regression_stays_where_the_network_is_against_the_results() -> None:
    a, b, y = planted(4, 300, (0.4, -1.0), 0.5, 0)
    blend = Blend.of(a, b, y)
    assert blend.network.tolist() == [0.0] * 4 and blend.ridge.tolist() == [1.0] * 4
    blend = Blend.of(a, torch.zeros_like(b), y)
    assert blend.network.tolist() == [0.0] * 4 and blend.ridge.tolist() == [1.0] * 4


def test_nothing_is_known_without_forecasts_or_results() -> None:
    """Numbers stay finite."""
    nothing, a = torch.zeros(2, 50), torch.randn(2, 50, generator=seeded())
    for parts in (
        (nothing, a, a),
        (a, nothing, nothing),
        (nothing, nothing, a),
        (nothing, nothing, nothing),
        (a, a, a),
    ):
        blend = Blend.of(*parts)
        assert all(bool(part.isfinite().all()) for part in vars(blend).values())


def test_a_network_of_pure_noise_has_little_weight() -> None:
    """Over seeds; and what it explains out of fold by chance is next to nothing."""
    a, b, y = planted(200, 2000, (0.5, 0.0), 3.0, 1)
    blend = Blend.of(a, b, y)
    assert float(blend.network.median()) < 0.1 and float(blend.network.max()) < 0.3
    assert 0.35 < float((blend.network == 0).double().mean()) < 0.65
    assert float((blend.explained[:, 1] - blend.explained[:, 0]).mean()) < 0.03
    assert float(blend.ridge[blend.network > 0].mean()) == pytest.approx(0.5, abs=0.05)


def test_blends_of_agents_do_not_mix() -> None:
    a, b, y = planted(5, 80, (0.5, 0.5), 1.0, 4)
    together = Blend.of(a, b, y)
    for row in range(5):
        alone = Blend.of(*(part[row : row + 1] for part in (a, b, y)))
        for name, part in vars(alone).items():
            torch.testing.assert_close(part[0], getattr(together, name)[row], msg=name)
    selection = together.selection(a.float(), b.float())
    expected = together.ridge[:, None] * a + together.network[:, None] * b
    torch.testing.assert_close(selection.double(), expected, rtol=1e-5, atol=1e-5)


def test_without_networks_ridge_regression_is_all() -> None:
    blend = Blend.of_ridge(3)
    own, other = torch.randn(2, 3, 20, generator=seeded())
    assert torch.equal(blend.selection(own, other), own)


def test_what_networks_foresee_of_known_orders_gets_its_weight() -> None:
    """A forecast of a third of each result relative to its day, at the target of the agent, has a weight of 3."""
    found, targets = outcomes(), [1, 2]
    network = (dense_y(found) * found.deviation)[:, :, targets].permute(2, 0, 1) / 3
    # What is expected of orders of which nothing is known is not looked at, nor is the level of a day.
    network = torch.where(is_known(found), network, 50.0) + torch.randn(2, network.shape[1], 1, generator=seeded(1))
    ridge = torch.randn(network.shape, generator=seeded(2))

    def blended(targets: list[int]) -> Blend:
        parts = (found.x.relative(part[:, found.x.has_bar], found.x.days) for part in (ridge, network))
        return found.blend(found.products(found.x.days, *parts, targets))

    blend = blended(targets)
    torch.testing.assert_close(blend.network, torch.full((2,), 3.0, dtype=torch.float64), rtol=1e-3, atol=0)
    torch.testing.assert_close(blend.ridge, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-3)
    torch.testing.assert_close(blend.explained[:, 1], torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-3)
    swapped = blended(targets[::-1])
    assert bool((swapped.explained[:, 1] < 0.999).all())


def test_a_day_keeps_the_mean_that_ridge_regression_expects() -> None:
    """Whatever networks expect: they choose among the stocks of a day."""
    by_fold = torch.randn(2, 5, outcomes().x.inputs, generator=seeded(5), dtype=torch.float64)
    networks, targets = constants(torch.randn(2, 5, len(outcomes().results), generator=seeded(6))), [0, 1]
    blocks, _ = days().blended(by_fold, networks, targets)
    forecasts = [days().joined(found).expected for found in (blocks, days().out_of_fold(by_fold))]
    train = slice(market().splits.train.first, market().splits.train.last + 1)
    has_forecast = forecasts[0].isfinite()
    assert torch.equal(has_forecast[:, train], days().tradable[train].expand(2, -1, -1))
    assert int(has_forecast.sum()) == int(has_forecast[:, train].sum())
    pairs = (torch.where(has_forecast, part, 0.0).sum(-1) for part in forecasts)
    torch.testing.assert_close(*pairs, rtol=1e-4, atol=1e-3)


def test_blocks_of_days_change_forecasts_by_rounding_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of ridge regression and networks, and their blend; a large market has many blocks."""
    by_fold = torch.randn(2, 5, outcomes().x.inputs, generator=seeded(5), dtype=torch.float64)
    networks, targets = constants(torch.randn(2, 5, len(outcomes().results), generator=seeded(6))), [0, 1]
    found = []
    for cells in (2**18, 50):
        monkeypatch.setattr("models.input_rows._CELLS", cells)
        blocks, blend = days().blended(by_fold, networks, targets)
        found.append((days().joined(blocks, 2), blend))
    (one, blend), (other, in_blocks) = found
    torch.testing.assert_close(in_blocks.weights, blend.weights, rtol=1e-6, atol=1e-6)
    assert torch.equal(one.stock, other.stock)
    torch.testing.assert_close(other.expected, one.expected, rtol=1e-4, atol=1e-4)
