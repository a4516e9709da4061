"""Evidence on training days: it is there where something was planted, and an agent without it holds the market."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import pearsonr

from benchmarks.learning.study import study_config
from benchmarks.learning.unseen import training_market
from data.market import Market
from environment.portfolio import Portfolio
from models.evidence import SIGNIFICANCE_LEVEL, Evidence
from models.networks import Networks
from models.policy import Forecasts
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market, seeded
from training.erl_trainer import build_trainer
from training.forecasts.training_days import TrainingDays

Array = NDArray[np.floating]


@pytest.mark.parametrize("kind", ["momentum", "regime", "martingale"])
def test_what_was_planted_is_evidence_and_luck_is_none(kind: str) -> None:
    """Of the champion of a small population after two generations on 3,600 days of 12 stocks."""
    words = ("--synthetic.kind", kind, "--synthetic.days", "3600", "--synthetic.stocks", "12", "--seed", "3")
    small = ("--population-size", "4", "--evaluation.fitness-windows", "4", "--learning.gradient-steps", "5")
    inputs = ("--inputs", "all" if kind == "martingale" else "past")
    config = study_config([*words, *small, *inputs])
    trainer = build_trainer(config, training_market(config)[0], torch.device("cpu"))
    for _ in trainer.run(2):
        pass
    champion = trainer.champion
    if kind == "martingale":
        assert not champion.evidence.is_significant and champion.evidence.smallest > 10 * SIGNIFICANCE_LEVEL
        assert champion.share < 0.2
    else:
        assert champion.share > (0.7 if kind == "momentum" else 0.3)
    assert champion.share == champion.evidence.share


@pytest.fixture(scope="module")
def days() -> TrainingDays:
    """Of a market with a hundred days of each of some stocks, which are as good as noise."""
    return TrainingDays.of(*market_and_account(0))


def market_and_account(seed: int) -> tuple[Market, Portfolio]:
    market = learnable_market(seed)
    return market, Portfolio.on(market, TINY_RULES)


def evidence_of(days: TrainingDays, score: Array, trials: int = 1) -> Evidence:
    """Of (days, n) scores."""
    return days.evidence(Forecasts.of(torch.from_numpy(score).float()[None], days.tradable), trials)


def mean_of_day(values: Array) -> Array:
    """Of the known ones, (days, 1); 0 where there are none."""
    return np.nansum(values, axis=1, keepdims=True) / np.isfinite(values).sum(axis=1, keepdims=True).clip(min=1)


def test_evidence_by_hand(days: TrainingDays) -> None:
    """Who nearly knows the results is sure in both; who expects a constant knows nothing; who knows them relative to
    the day's mean alone knows nothing of the day."""
    results = days.samples.results[-1]
    noisy = results + np.nanstd(results) * np.random.default_rng(0).standard_normal(results.shape)
    nothing = evidence_of(days, np.zeros_like(results))
    assert (nothing.selection, nothing.timing, nothing.coefficient, nothing.share) == (1.0, 1.0, 0.0, 0.0)
    knowing = evidence_of(days, noisy)
    assert max(knowing.selection, knowing.timing) < 1e-3 and knowing.coefficient > 0.2 and knowing.share == 1.0
    relative = evidence_of(days, noisy - mean_of_day(noisy))
    assert relative.selection < 1e-3 and relative.timing > 0.01 and relative.share > 0.5
    level = evidence_of(days, mean_of_day(results) + np.zeros_like(results))
    assert level.selection == 1.0 and level.timing < 1e-3 and level.coefficient == 0.0
    assert level.timing_coefficient > 0.5
    opposite = evidence_of(days, -noisy)
    assert opposite.selection > 0.99 and opposite.smallest == min(opposite.selection, opposite.timing)
    assert opposite.coefficient < -0.2 and opposite.share == 0.0


def test_the_coefficient_is_the_mean_of_the_days_correlations(days: TrainingDays) -> None:
    """Where the error is small against it; by those of a library, day by day."""
    results = days.samples.results[-1].astype(np.float64)
    noisy = results + 0.2 * np.nanstd(results) * np.random.default_rng(0).standard_normal(results.shape)
    known = days.samples.is_known & days.samples.train_days[:, None]
    pairs = [(noisy[day][own], results[day][own]) for day, own in enumerate(known) if own.sum() > 2]
    expected = np.mean([pearsonr(*pair).statistic for pair in pairs])
    assert evidence_of(days, noisy).coefficient == pytest.approx(expected, rel=0.02)


def test_the_best_of_many_is_believed_less_the_less_they_are_alike(days: TrainingDays) -> None:
    """Of agents with the same scores nothing can be chosen, so that nothing is taken off."""
    results = days.samples.results[-1]
    draws = np.random.default_rng(0).standard_normal((3, *results.shape)) * np.nanstd(results)
    own = torch.from_numpy(results + 2.0 * draws).float()

    def coefficient(score: torch.Tensor, among: int) -> float:
        return days.evidence(Forecasts.of(score, days.tradable), 1, among).coefficient

    same = own[:1].expand(3, -1, -1)
    assert coefficient(same, 16) == pytest.approx(coefficient(same, 1), abs=1e-6)
    assert coefficient(own, 16) < coefficient(own, 4) < coefficient(own, 1)


def test_trials_are_in_the_p_values_alone(days: TrainingDays) -> None:
    score = 0.3 * np.random.default_rng(1).standard_normal(days.tradable.shape)
    one, many = evidence_of(days, score), evidence_of(days, score, trials=7)
    for name in ("selection", "timing"):
        assert getattr(many, name) == pytest.approx(min(1.0, 7 * getattr(one, name)), rel=0.05), name
    assert (many.coefficient, many.share) == (one.coefficient, one.share)


def test_results_after_training_and_before_are_not_looked_at(days: TrainingDays) -> None:
    samples = days.samples
    results, gain = samples.results.copy(), np.random.default_rng(1).standard_normal(samples.results.shape[1:])
    results[:, ~samples.train_days] = 1e6
    spoilt = replace(days, samples=replace(samples, results=results))
    gain[~samples.train_days] = 1e6
    other = np.random.default_rng(1).standard_normal(gain.shape)
    assert evidence_of(spoilt, gain) == evidence_of(days, other)


def test_closed_forms_that_found_noise_are_no_evidence() -> None:
    """Out of fold, on markets without structure: small p-values are about as rare as they say."""
    found = []
    for seed in range(8):
        market, account = market_and_account(seed)
        days = TrainingDays.of(market, account)
        mask = torch.ones(1, days.inputs.size - 1, dtype=torch.bool)
        networks = Networks.initialize(mask, 2, days.folds, 0.0, seeded(seed))
        networks.start_from(days.closed_form(1.0)[None, :, :, -1])
        found.append(days.evidence(days.forecasts(networks.target, [0]), 1).smallest)
    assert min(found) > SIGNIFICANCE_LEVEL and sum(p_value < 0.1 for p_value in found) <= 2
