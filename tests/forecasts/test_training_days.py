"""Training days: folds, closed forms and forecasts out of fold, transitions as in plain Python, and evidence."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr
from torch import Tensor

from benchmarks.learning.study import study_config
from benchmarks.learning.unseen import training_market
from data.market import Market
from data.splits import Span
from environment.portfolio import Portfolio
from models.evidence import SIGNIFICANCE_LEVEL, Evidence
from models.inputs import BANK, INPUTS
from models.networks import Networks
from models.policy import Forecasts
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market, rows_of, seeded
from training.erl_trainer import build_trainer
from training.forecasts.samples import Moments, Samples
from training.forecasts.training_days import TrainingDays
from utils.arrays import Float64Array
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError

MARKET = learnable_market(3)
FOLD = 2


def days_of(market: Market, rules: EnvironmentConfig = TINY_RULES) -> TrainingDays:
    return TrainingDays.of(market, Portfolio.on(market, rules))


@pytest.fixture(scope="module")
def days() -> TrainingDays:
    return days_of(MARKET)


def test_results_of_a_fold_do_not_reach_the_networks_that_judge_it(days: TrainingDays) -> None:
    """Another result of every position of its days: its own start stays, those of the other folds move."""
    held, rows = days.samples.folds[FOLD][1], days.samples.x
    reward = days.transitions.reward.clone()
    reward[rows.rows(held)] *= -5.0
    other = replace(days, transitions=replace(days.transitions, reward=reward))
    unit = days.transitions.reward_scale / other.transitions.reward_scale
    found, expected = other.closed_form(1.0), days.closed_form(1.0)
    torch.testing.assert_close(found[FOLD, ..., 0], unit * expected[FOLD, ..., 0], rtol=1e-3, atol=1e-5)
    for fold in range(days.folds):
        assert fold == FOLD or not torch.allclose(found[fold, ..., 0], unit * expected[fold, ..., 0], atol=1e-3)


def test_later_prices_of_the_last_fold_do_not_reach_what_is_forecast_on_its_first_days(days: TrainingDays) -> None:
    """But for the scale of inputs. Responses that are fitted to all training days, as deployed, do know them."""
    held = days.samples.folds[-1][1]
    half = (held.start + held.stop) // 2
    data = MARKET.data_array.copy()
    drift = 0.01 * np.array([1.0, 0.0, -1.0, 1.0, 0.0])
    data[half:] *= np.exp(drift * np.arange(len(data) - half).clip(max=40)[:, None])[..., None]
    other, early = days_of(replace(MARKET, data_array=data)), slice(held.start, half)
    for place in range(BANK, INPUTS):
        one, two = (own.samples.x.x(early)[:, place] for own in (days, other))
        assert float(one.std()) == 0.0 or correlation_of(one, two) > 0.999, place
    bars = days.tradable[early]
    one, two = (torch.from_numpy(own.inputs.of(MARKET, early))[bars][:, BANK + 2] for own in (days, other))
    assert correlation_of(one, two) < 0.9


def correlation_of(one: Tensor, two: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, two)))[0, 1])


def test_each_fold_is_judged_by_its_own_networks(days: TrainingDays) -> None:
    """Networks of one fold begin with ones, the others with nothing: forecasts differ from zero there alone."""
    inputs = days.inputs.size - 1
    networks = Networks.initialize(torch.ones(1, inputs, dtype=torch.bool), 3, days.folds, 0.01, seeded(0))
    weights = torch.zeros(1, days.folds, 1 + inputs)
    weights[:, FOLD, 0] = 1.0
    networks.start_from(weights)
    forecasts = days.forecasts(networks.target, [0])
    held, known = days.samples.folds[FOLD][1], forecasts.score[0].isfinite()
    assert torch.equal(known[days.samples.x.days], days.tradable[days.samples.x.days])
    assert bool((forecasts.score[0, held][known[held]] == 1.0).all())
    known[held] = False
    assert not bool(forecasts.score[0][known].any()) and not bool(known[days.samples.x.days.stop :].any())


WIDTH, TARGETS = 5, 2


def samples_of(seed: int = 0, days: int = 90, stocks: int = 4, longest: int = 3, last: int | None = None) -> Samples:
    """Results that depend on the inputs, with noise; some are not known."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((days, stocks, WIDTH)).astype(np.float32)
    x[..., 0] = 1.0
    slopes = rng.standard_normal((TARGETS, WIDTH))
    results = np.einsum("dni,ti->tdn", x, slopes) + rng.standard_normal((TARGETS, days, stocks))
    train = Span(10, days - 11 if last is None else last)
    results[:, : train.first], results[:, train.last - longest + 1 :] = np.nan, np.nan
    results[:, rng.random((days, stocks)) < 0.15] = np.nan
    return Samples(rows_of(x), results.astype(np.float32), train, longest)


def ridge(x: Float64Array, y: Float64Array, penalty: Float64Array) -> Float64Array:
    """Least squares with further rows for the penalty, in multiples of the number of rows, but on the constant."""
    more = np.diag(np.sqrt(penalty * len(x)) * (np.arange(x.shape[1]) > 0))
    solved: Float64Array = np.linalg.lstsq(np.vstack((x, more)), np.vstack((y, np.zeros((len(more), y.shape[1])))))[0]
    return solved


@given(st.integers(20, 200), st.integers(1, 12), st.integers(0, 30))
@settings(max_examples=60)
def test_folds_part_the_training_days_and_trades_do_not_overlap(days: int, longest: int, after: int) -> None:
    train = Span(7, 6 + days)
    total = 7 + days + after
    x = rows_of(np.zeros((total, 1, 1), np.float32))
    samples = Samples(x, np.zeros((1, total, 1), np.float32), train, longest)
    judged = [day for _, held in samples.folds for day in range(held.start, held.stop)]
    assert judged == list(range(train.first, train.last + 1))
    for learned, held in samples.folds:
        judged_sessions = {day + age for day in range(held.start, held.stop) for age in range(longest + 1)}
        for day in range(total):
            sessions = range(day, day + longest + 1)
            is_known = train.first <= day and sessions[-1] <= train.last
            assert learned[day] == (is_known and judged_sessions.isdisjoint(sessions))


@given(st.integers(0, 2**20), st.lists(st.floats(1e-4, 1e2), min_size=WIDTH, max_size=WIDTH))
@settings(max_examples=40)
def test_a_ridge_regression_in_closed_form_is_one(seed: int, penalties: list[float]) -> None:
    samples = samples_of(seed)
    days, penalty = samples.folds[seed % 5][0], np.array(penalties)
    known = np.isfinite(samples.results[0, days])
    x = samples.x.dense(samples.x.days)[days][known].astype(np.float64)
    y = samples.results[:, days][:, known].T.astype(np.float64)
    sums = Moments.of(samples).over(days)
    np.testing.assert_allclose(sums.solve(penalty), ridge(x, y, penalty), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sums.solve(0.3), ridge(x, y, np.full(WIDTH, 0.3)), rtol=1e-3, atol=1e-4)
    assert penalty.tolist() == penalties
    weights = np.random.default_rng(seed).standard_normal(WIDTH)
    for target in range(TARGETS):
        error = ((y[:, target] - x @ weights) ** 2).sum()
        assert sums.error(weights, target) == pytest.approx(error, rel=1e-4)


def test_too_few_results_are_refused() -> None:
    samples_of(days=170, stocks=2).require_enough()
    with pytest.raises(DataError, match=r"expected the results of \d+ orders outside each fifth .*give more"):
        samples_of(days=60, stocks=2).require_enough()


def plain(
    bars: dict[int, tuple[float, float]], day: int, last: int, rules: EnvironmentConfig
) -> tuple[float, int, bool] | None:
    """Reward, day of the next decision and whether the position has been closed by then; None: not known."""
    lost, cost = rules.max_days_without_bar, 100 * rules.cost_rate
    left = 1 - rules.delisting_loss / 100

    def following(one: int) -> int | None:
        return next((later for later in range(one + 1, last + 1) if later in bars), None)

    first = following(day)
    if first is None or first - day > lost:
        reward = 0.0 if rules.fill == "next_open" else 100 * (left - 1) - cost  # an order for the next open lapses
        return (reward, day, True) if day + lost <= last else None
    if rules.fill == "same_close":
        return 100 * (bars[first][1] / bars[day][1] - 1), first, False
    second = following(first)
    if second is None or second - first > lost:
        if first + lost > last:
            return None
        return 100 * (bars[first][1] * left / bars[first][0] - 1) - cost, first, True
    return 100 * (bars[second][0] / bars[first][0] - 1), first, False


@pytest.mark.parametrize(
    "changes", [{}, {"fill": "same_close"}, {"delisting_loss": 30.0, "max_days_without_bar": 1}], ids=str
)
def test_transitions_are_those_of_one_stock_at_a_time(changes: dict[str, Any]) -> None:
    rules = replace(TINY_RULES, **changes)
    days, bars_of_all = days_of(MARKET, rules), Portfolio.on(MARKET, rules).bars
    known, rows = days.transitions, days.samples.x
    quotes = bars_of_all.quotes.view(bars_of_all.days, -1, 3).double().numpy()
    last, closed, first = rows.days.stop - 1, 0, rows.days.start
    place = {(day + first, stock): row for row, (day, stock) in enumerate(np.argwhere(rows.has_bar.numpy()).tolist())}
    for stock in range(quotes.shape[1]):
        bars = {day: (float(quotes[day, stock, 0]), float(quotes[day, stock, 2])) for day in range(last + 1)}
        bars = {day: bar for day, bar in bars.items() if bar[1] == bar[1]}
        for day in (day for day in bars if day >= first):
            row, expected = place[day, stock], plain(bars, day, last, rules)
            if expected is None:
                assert float(known.reward[row, 0]) == 0.0 and bool(known.terminated[row])
                continue
            reward, following, is_closed = expected
            assert float(known.reward[row, 0]) == pytest.approx(reward, rel=1e-4, abs=1e-3)
            assert bool(known.terminated[row]) == is_closed
            closed += is_closed
            if not is_closed:
                assert int(known.following[row]) == place[following, stock]
    assert closed > 3


def test_nothing_after_the_training_days_is_read(days: TrainingDays) -> None:
    changed = MARKET.data_array.copy()
    changed[MARKET.splits.train.last + 1 :] *= 3.0
    other = days_of(replace(MARKET, data_array=changed))
    for name in ("reward", "following", "terminated"):
        assert torch.equal(getattr(other.transitions, name), getattr(days.transitions, name)), name


def evidence_of(days: TrainingDays, score: npt.NDArray[np.floating], trials: int = 1, among: int = 1) -> Evidence:
    """Of (days, n) scores of an agent or (agents, days, n) of some."""
    own = torch.from_numpy(score).float().view(-1, *score.shape[-2:])
    return days.evidence(Forecasts.of(own, days.tradable), trials, among)


def mean_of_day(values: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
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
    own = results + 2.0 * draws
    one, few, many = (evidence_of(days, own, among=agents).coefficient for agents in (1, 4, 16))
    assert many < few < one
    one, many = (evidence_of(days, own[[0, 0, 0]], among=agents).coefficient for agents in (1, 16))
    assert many == pytest.approx(one, abs=1e-6)


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


@pytest.mark.parametrize("kind", ["momentum", "martingale"])
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
        assert champion.share > 0.7
    assert champion.share == champion.evidence.share


def test_closed_forms_that_found_noise_are_no_evidence() -> None:
    """Out of fold, on markets without structure: small p-values are about as rare as they say."""
    found = []
    for seed in range(8):
        days = days_of(learnable_market(seed))
        mask = torch.ones(1, days.inputs.size - 1, dtype=torch.bool)
        networks = Networks.initialize(mask, 2, days.folds, 0.0, seeded(seed))
        networks.start_from(days.closed_form(1.0)[None, :, :, -1])
        found.append(days.evidence(days.forecasts(networks.target, [0]), 1).smallest)
    assert min(found) > SIGNIFICANCE_LEVEL and sum(p_value < 0.1 for p_value in found) <= 2
