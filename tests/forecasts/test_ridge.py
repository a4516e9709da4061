"""Ridge forecasts of a population in closed form: fitted to what each agent looks at, out of fold on training days."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from data.synthetic.built_in import built_in_market
from environment.portfolio import Portfolio
from models.evolution import TARGET, random_genes
from models.inputs import GROUP_OF_INPUT
from models.population import target_percents
from models.responses import Responses
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market, seeded
from training.forecasts.hindsight import order_results
from training.forecasts.ridge import TrainingDays
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig

AGENTS = 5


@pytest.fixture(scope="module")
def market() -> Market:
    return learnable_market(1)


def days_of(market: Market) -> TrainingDays:
    return TrainingDays.of(market, Portfolio.on(market, TINY_RULES))


@pytest.fixture(scope="module")
def days(market: Market) -> TrainingDays:
    return days_of(market)


@pytest.fixture(scope="module")
def genes() -> Tensor:
    return random_genes(AGENTS, seeded(3))


def with_prices(market: Market, factor: NDArray[Any]) -> Market:
    """The market with all prices multiplied by (days, columns)."""
    data = market.data_array.copy()
    data[:, :, [OPEN, HIGH, LOW, CLOSE]] *= factor[..., None].astype(np.float32)
    return replace(market, data_array=data)


def dense(days: TrainingDays) -> NDArray[np.float32]:
    """The inputs of all days, (days, n, inputs): 0 outside the training days, and without a bar."""
    rows = days.samples.x
    x = np.zeros((*days.tradable.shape, rows.inputs), dtype=np.float32)
    x[rows.days] = rows.dense(rows.days)
    return x


def expected_by(days: TrainingDays, genes: Tensor) -> Tensor:
    """What agents with these genes expect of all orders, out of fold."""
    return days.forecasts(days.fit(genes), target_percents(genes))[0].expected


def ridge_by_hand(days: TrainingDays, learned: NDArray[np.bool_], gene: Tensor) -> NDArray[np.float64]:
    """The weights of one agent from the rows themselves: least squares with further rows for the penalties."""
    samples = days.samples
    known = np.isfinite(samples.results[0]) & learned[:, None]
    x, y = dense(days)[known].astype(np.float64), samples.results[int(gene[TARGET])][known].astype(np.float64)
    penalty = [0.0 if group < 0 else 10.0 ** float(gene[group]) for group in GROUP_OF_INPUT]
    rows = np.vstack((x, np.diag(np.sqrt(np.array(penalty) * len(x)))))
    weights: NDArray[np.float64] = np.linalg.lstsq(rows, np.concatenate((y, np.zeros(len(penalty)))))[0]
    return weights


def test_each_agent_has_the_ridge_regression_of_its_genes(days: TrainingDays, genes: Tensor) -> None:
    ridge, x = days.fit(genes), dense(days)
    for agent, gene in enumerate(genes):
        expected = ridge_by_hand(days, days.samples.train_days, gene)
        np.testing.assert_allclose(x @ ridge.weights[agent].numpy(), x @ expected, rtol=1e-3, atol=2e-3)
        for fold, (learned, _) in enumerate(days.samples.folds):
            expected = ridge_by_hand(days, learned, gene)
            np.testing.assert_allclose(x @ ridge.by_fold[agent, fold].numpy(), x @ expected, rtol=1e-3, atol=2e-3)


def test_what_is_expected_on_a_day_is_out_of_fold(days: TrainingDays, genes: Tensor) -> None:
    ridge, samples, x = days.fit(genes), days.samples, dense(days)
    forecasts, blend = days.forecasts(ridge, target_percents(genes))
    train = samples.train
    assert blend.ridge.tolist() == [1.0] * AGENTS and blend.network.tolist() == [0.0] * AGENTS
    is_train = torch.arange(len(days.tradable)).clamp(train.first, train.last) == torch.arange(len(days.tradable))
    percents = target_percents(genes).float()[:, None, None].expand(-1, int(is_train.sum()), days.tradable.shape[1])
    assert torch.equal(forecasts.target[:, is_train], percents)
    assert bool((forecasts.expected[:, : train.first] == -torch.inf).all())
    assert bool((forecasts.expected[:, train.last + 1 :] == -torch.inf).all())
    for fold, (_, held) in enumerate(samples.folds):
        tradable = days.tradable[held].numpy()
        total = np.where(tradable[..., None], x[held], 0.0).sum(axis=1)
        means = total / tradable.sum(axis=1, keepdims=True).clip(min=1)
        for agent in range(AGENTS):
            score = x[held] @ ridge.by_fold[agent, fold].numpy()
            shift = means @ ridge.shift_by_fold[agent, fold].numpy()
            for found, expected in (forecasts.score, score), (forecasts.expected, score + shift[:, None]):
                np.testing.assert_allclose(
                    found[agent, held], np.where(tradable, expected, -np.inf), rtol=1e-3, atol=1e-4
                )


def test_prices_of_a_fold_do_not_reach_what_is_learned_without_it(market: Market, days: TrainingDays) -> None:
    """Other prices on its days change no result on the days that its critics learn from, nor their responses."""
    learned, held = days.samples.folds[2]
    factor = np.ones(market.data_array.shape[:2])
    factor[held] = np.exp(np.random.default_rng(0).uniform(-0.3, 0.3, factor[held].shape))
    other_market = with_prices(market, factor)
    other = days_of(other_market)
    one, two = days.samples.results[:, learned], other.samples.results[:, learned]
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(days.samples.results, other.samples.results, equal_nan=True)
    longest = days.samples.longest
    apart = np.arange(len(market.dates)) <= market.splits.train.last
    apart[max(0, held.start - longest) : held.stop + longest] = False
    closes = (m.data_array[:, :, CLOSE] for m in (market, other_market))
    fitted = [Responses.fit(close, market.investable_columns, apart) for close in closes]
    for name, value in vars(fitted[0]).items():
        np.testing.assert_array_equal(getattr(fitted[1], name), value, err_msg=name)
    inputs = replace(days.inputs, responses=fitted[0]).of(market, held)
    has_bar = days.tradable.numpy()[held]
    np.testing.assert_array_equal(dense(days)[held][has_bar], inputs[has_bar])


def test_results_of_a_fold_do_not_reach_what_is_expected_on_it(
    market: Market, days: TrainingDays, genes: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the results on: other ones on a fold and as long before and after it as a trade may take."""
    _, held = days.samples.folds[2]
    longest, first = days.samples.longest, market.splits.train.first
    changed = slice(held.start - longest - first, held.stop + longest - first)

    def other_results(*args: Any) -> Any:
        known = order_results(*args)
        known[:, changed] = known[:, changed] * 7 + 3
        return known

    monkeypatch.setattr("training.forecasts.samples.order_results", other_results)
    one, two = (expected_by(own, genes) for own in (days, days_of(market)))
    assert torch.equal(one[:, held], two[:, held])
    assert not torch.allclose(one[:, : held.start].nan_to_num(0, 0, 0), two[:, : held.start].nan_to_num(0, 0, 0))


def test_days_after_training_are_as_in_use(market: Market, days: TrainingDays) -> None:
    last, span = market.splits.train.last, market.splits.validation
    rows, has_bar = days.later, days.tradable.numpy()[span.first : span.last + 1]
    assert rows.days == slice(span.first, span.last + 1)
    np.testing.assert_array_equal(rows.dense(rows.days)[has_bar], days.inputs.of(market, rows.days)[has_bar])
    later = np.ones(market.data_array.shape[:2])
    later[last + 1 :] = np.random.default_rng(1).uniform(0.5, 2.0, later[last + 1 :].shape)
    other = days_of(with_prices(market, later))
    np.testing.assert_array_equal(other.samples.results, days.samples.results)
    np.testing.assert_array_equal(dense(other), dense(days))


def test_agents_are_the_same_in_any_company(days: TrainingDays) -> None:
    """Ridge forecasts and expectations, bit for bit, whatever the number of agents that are computed at once."""
    genes = random_genes(18, seeded(4))
    ridge, start = days.fit(genes), target_percents(genes)
    expected, _ = days.forecasts(ridge, start)
    for some in (slice(0, 1), slice(5, 8), slice(2, 18)):
        own = days.fit(genes[some])
        for name, value in vars(own).items():
            np.testing.assert_array_equal(value, getattr(ridge, name)[some], err_msg=name)
        forecasts, _ = days.forecasts(own, start[some])
        assert torch.equal(forecasts.expected, expected.expected[some])
        assert torch.equal(forecasts.opportunity, expected.opportunity[some])


def test_what_is_planted_is_learned_and_noise_is_not() -> None:
    split, rules = DataConfig(context_window_days=64), EnvironmentConfig(trading_days=40, settlement_days=20)
    explained = {}
    for kind in ("momentum", "martingale"):
        market, _ = built_in_market(SyntheticConfig(kind=kind, days=1500, stocks=12), split, rules)
        forecasts = TrainingDays.of(market, Portfolio.on(market, rules)).fit(random_genes(8, seeded(0)))
        explained[kind] = float(forecasts.explained.max())
    assert explained["momentum"] > 0.02 and explained["martingale"] < 0.01
