"""Supervised baselines: an independent regression, purged folds, causality, planted rules, what cannot be fitted."""

import logging
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.loader import StockDataLoader
from data.market import Market, build_market
from data.splits import Span
from data.synthetic.built_in import bars_frame, built_in_market, synthetic_market
from environment.portfolio import Portfolio, play
from tests.evaluation.page_case import case
from tests.tiny import rows_of
from training.evaluation import baselines, supervised
from training.evaluation.baselines import ORACLE, BandRule, Tuning
from training.evaluation.judge import Evaluation
from training.evaluation.supervised import LIGHTGBM, RIDGE, fit_ridge, fit_supervised
from training.forecasts.look_ahead import MOST_IC
from training.forecasts.samples import Samples
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig

RULES = EnvironmentConfig(trading_days=40, settlement_days=20)
SPLIT = DataConfig(context_window_days=64)
PRICES = (OPEN, HIGH, LOW, CLOSE)


@pytest.fixture(autouse=True, scope="module")
def one_thread(restore_process: None) -> None:
    torch.set_num_threads(1)


@cache
def market_of(kind: str, seed: int = 1, days: int = 3000, stocks: int = 12) -> Market:
    return built_in_market(SyntheticConfig(kind=kind, days=days, stocks=stocks), SPLIT, RULES, seed=seed)[0]


def corrupted(market: Market, first_day: int) -> Market:
    data_array = market.data_array.copy()
    noise = np.random.default_rng(0).uniform(0.5, 1.5, data_array[first_day:, :, :1].shape).astype(np.float32)
    data_array[first_day:, :, PRICES] *= noise
    return replace(market, data_array=data_array)


def tuning_of(market: Market) -> Tuning:
    return Tuning.of(market, Portfolio.on(market, RULES))


def lead(market: Market, rule: BandRule) -> float:
    """Profit over the benchmark over all days of a market, in windows side by side."""
    portfolio, steps = Portfolio.on(market, RULES), (len(market.dates) - 65) // 8
    play(portfolio, rule.policy(tuning_of(market).risk), 64 + steps * torch.arange(8), steps=steps)
    own, other = (account.equity_curve[-1].log() for account in (portfolio.account, portfolio.benchmark))
    return float((own - other).sum())


def test_the_error_of_a_ridge_regression_is_that_of_its_scores_out_of_fold() -> None:
    generator = np.random.default_rng(3)
    x = generator.standard_normal((200, 4, 3)).astype(np.float32)
    x[..., 0] = 1
    results = (2 + x[..., 1] - 0.5 * x[..., 2] + generator.standard_normal((200, 4))).astype(np.float32)[None]
    results[:, generator.random((200, 4)) < 0.1] = np.nan
    results[:, 175:] = np.nan
    samples = Samples(rows_of(x), results, Span(20, 179), longest=5)
    ridge = fit_ridge(samples)
    scores = ridge.ranker(0).out_of_fold(samples)
    assert ridge.error == pytest.approx(float(np.nansum((results[0] - scores) ** 2)), rel=1e-3)


def test_baselines_find_what_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_WINDOWS", 2)
    monkeypatch.setattr(supervised, "_ROUNDS", 40)
    market = market_of("momentum", days=1500)
    unseen, scores = built_in_market(SyntheticConfig(kind="momentum", days=1000, stocks=12), SPLIT, RULES, seed=2)
    planted = max(lead(unseen, BandRule(scores.rule[20], unit, largest=0.2)) for unit in (10.0, 30.0, 100.0))
    for name, baseline in fit_supervised(market, tuning_of(market)).items():
        least = {RIDGE: 0.7, LIGHTGBM: 0.6}[name]
        assert lead(unseen, baseline.rule_on(unseen)) > least * planted > 0.2


def test_fits_learn_only_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit, once or rolling, depends on results that are known by then, and a day's scores on the days up to it."""
    monkeypatch.setattr(supervised, "_ROUNDS", 3)
    monkeypatch.setattr(baselines, "_WINDOWS", 2)
    market = market_of("momentum", days=900, stocks=4)
    day = market.splits.validation.first + 110
    other = corrupted(market, day + 1)
    first, second = (fit_supervised(one, tuning_of(one), refit_days=100) for one in (market, other))
    once = fit_supervised(other, tuning_of(other))
    for name, baseline in first.items():
        np.testing.assert_array_equal(baseline.rule.scores[: day + 1], second[name].rule.scores[: day + 1])
        train = slice(market.splits.train.last + 1)
        np.testing.assert_array_equal(baseline.rule.scores[train], once[name].rule.scores[train])
        assert (baseline.rule.scores[day] != once[name].rule.scores[day]).any()
        assert replace(baseline.rule, scores=once[name].rule.scores) == once[name].rule


@pytest.mark.parametrize("spoil", ["constant", "few days"])
def test_what_cannot_be_fitted_is_left_out_with_one_line(spoil: str, caplog: pytest.LogCaptureFixture) -> None:
    market = market_of("momentum", stocks=2, days=1800)
    if spoil == "constant":
        data_array = market.data_array.copy()
        data_array[:, :, PRICES] = 10.0
        market = replace(market, data_array=data_array)
    else:
        train = Span(market.splits.train.first, market.splits.train.first + 200)
        market = replace(market, splits=replace(market.splits, train=train))
    with caplog.at_level(logging.WARNING):
        assert fit_supervised(market, tuning_of(market)) == {}
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "left out: expected" in said and "\n" not in said


def dated_a_day_early(kind: str) -> Market:
    """A market whose file has each close in the row of the session before."""
    drawn = synthetic_market(SyntheticConfig(kind=kind, days=700, stocks=12), 1)
    frame = bars_frame(drawn)
    frame["close"] = frame.groupby("ticker")["close"].shift(-1)
    loader = StockDataLoader.from_frame(frame.dropna(), config=SPLIT, investable_tickers=drawn.tickers[:12])
    loader.load_and_prepare()
    return build_market(loader, SPLIT, RULES)


def judged(market: Market) -> Evaluation:
    """An evaluation in which ridge regression, fitted to the training days, scores the validation days."""
    validation = market.splits.validation
    fitted = fit_supervised(market, tuning_of(market), days=slice(validation.first, validation.last + 1))
    scores = fitted[RIDGE].rule.scores
    days = np.arange(market.splits.validation.first, market.splits.validation.last + 1)
    base = case()
    played = replace(base.played, days=days, scores={RIDGE: scores[days[:-1]]})
    return replace(base, market=market, played=played)


def test_closes_that_are_dated_a_day_early_are_called_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervised, "_ROUNDS", 2)
    monkeypatch.setattr(baselines, "_WINDOWS", 2)
    leaking, healthy = judged(dated_a_day_early("momentum")), judged(market_of("momentum", days=700))
    assert healthy.suspicion == "" and "leak" not in healthy.sentence
    ic = leaking.ahead[RIDGE].session.ic
    assert ic > MOST_IC > 2 * abs(healthy.ahead[RIDGE].session.ic)
    says = f"Scores of {RIDGE} have a rank IC of {ic:.2f} with session 1 after their day, more than knowing"
    assert leaking.sentence.startswith(says) and leaking.suspicion.endswith("dated a day early.")
    of_oracle = replace(leaking.played, scores={ORACLE: leaking.played.scores[RIDGE]})
    assert replace(leaking, played=of_oracle).suspicion == ""
