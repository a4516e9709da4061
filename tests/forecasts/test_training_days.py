"""Training days: outcomes and transitions as in plain Python, folds, gains, and forecasts out of fold."""

import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data.features.formulas import Formulas
from data.features.grammar import Formula
from data.features.inputs import BANK, INPUTS, TradeInputs
from data.market import Market
from data.splits import Span
from environment.quotes import Quotes
from models.networks import Networks
from models.policy import Forecasts
from tests.market_cases import random_panel
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market, rows_of, seeded
from training.forecasts import outcomes
from training.forecasts.outcomes import discounted_returns
from training.forecasts.samples import Moments, Samples
from training.forecasts.training_days import TrainingDays, input_gains
from utils.arrays import BoolArray, Float64Array
from utils.config.trader import OUTCOME_SESSIONS, EnvironmentConfig
from utils.errors import DataError
from utils.statistics import expected_maximum

pytestmark = pytest.mark.usefixtures("all_formulas")
MARKET = learnable_market(3)
FOLD = 2


def days_of(market: Market, rules: EnvironmentConfig = TINY_RULES) -> TrainingDays:
    return TrainingDays.of(market, Quotes.on(market), rules)


@pytest.fixture(scope="module")
def days() -> TrainingDays:
    return days_of(MARKET)


def test_what_follows_lies_beside_the_training_days(days: TrainingDays) -> None:
    """Of a large market both take gigabytes: together they are not copied, and not computed again."""
    rows, last = days.samples.x, MARKET.splits.validation.last
    both = rows.joined(days.inputs.rows_of(MARKET, slice(rows.days.stop, last + 1)))
    assert both.separate.data_ptr() == rows.separate.data_ptr() and both.days == slice(rows.days.start, last + 1)
    judged = slice(MARKET.splits.validation.first, last + 1)
    anew = days.inputs.rows_of(replace(MARKET), judged)
    np.testing.assert_array_equal(both.dense(judged), anew.dense(judged))
    np.testing.assert_array_equal(days.later.dense(judged), anew.dense(judged))


def test_results_of_a_fold_do_not_reach_the_networks_that_judge_it(days: TrainingDays) -> None:
    """Another result of every position of its days: its own gains stay, those of the other folds move."""
    held, rows = days.samples.folds[FOLD][1], days.samples.x
    reward = days.transitions.reward.clone()
    reward[rows.rows(held)] *= -5.0
    found = input_gains(replace(days.transitions, reward=reward))
    torch.testing.assert_close(found[FOLD], days.gains[FOLD])
    for fold in range(days.folds):
        assert fold == FOLD or not torch.allclose(found[fold], days.gains[fold], atol=1e-3)


def test_gains_follow_evidence_in_plain_regressions(days: TrainingDays) -> None:
    """Two forecasts of formulas tell of rewards, a feature repeats one of them, and another tells what they leave."""
    rows, noise = deepcopy(days.samples.x), torch.randn(4, len(days.transitions.reward), generator=seeded(1))
    one, two, three = days.transitions.reward / days.transitions.reward.std() + 4 * noise[:3]
    rows.separate[:, -4:] = torch.stack((three, one + 0.2 * noise[3], one, two), dim=1).clamp(-9, 9).half()
    known = replace(days.transitions, x=rows)
    found, allowed = input_gains(known)[FOLD], known.allowed[FOLD].numpy()
    chosen = allowed[rows.days].repeat(rows.counts.numpy())
    here = days.inputs.for_networks(rows.x(rows.days)).numpy()[chosen].astype(np.float64)
    reward = known.reward.numpy()[chosen].astype(np.float64)
    day = np.arange(len(rows.counts)).repeat(rows.counts.numpy())[chosen]
    level, mean = (pd.DataFrame(part).groupby(day).transform("mean").to_numpy() for part in (reward, here))
    relative = (here - mean)[:, -2:]  # what formulas forecast, and what they leave
    apart, shrunk = reward[:, None] - level, 0.1 * np.diag(np.sqrt((relative**2).sum(0)))
    left = apart - relative @ np.linalg.lstsq(np.vstack((relative, shrunk)), np.vstack((apart, np.zeros((2, 1)))))[0]
    selection = pd.DataFrame(here * left).groupby(day).sum().to_numpy()
    timing = pd.DataFrame(mean * (level - reward.mean())).groupby(day).mean().to_numpy()
    told = pd.DataFrame(relative * apart).groupby(day).sum().to_numpy()

    def squared_t(parts: Float64Array) -> Float64Array:
        return np.asarray(parts.sum(0) ** 2 / np.maximum((parts**2).sum(0), 1e-12), dtype=np.float64)

    def joint(parts: Float64Array) -> float:
        """The mean of the days over its covariance, an input; those that never vary tell nothing."""
        parts = parts[:, (parts**2).sum(0) > 1e-12]
        spread = parts.T @ parts
        spread += 0.001 * np.diag(spread.diagonal())
        return float(parts.sum(0) @ np.linalg.inv(spread) @ parts.sum(0)) / parts.shape[1]

    square = np.maximum(squared_t(selection), squared_t(timing))
    evidence = square - 2 * np.log(here.shape[1])
    evidence[: BANK - 1] = max(joint(selection[:, : BANK - 1]), joint(timing[:, : BANK - 1])) - 1
    evidence[-2:] = squared_t(told) - 1
    evidence = np.maximum(evidence, 0.1)
    expected = evidence / (1 + evidence)
    assert expected[-4] > 0.8 > 0.3 > expected[-3] and expected[-2:].min() > 0.8 and expected[BANK] < 0.3
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4)


def test_later_prices_of_the_last_fold_do_not_reach_what_is_forecast_on_its_first_days(days: TrainingDays) -> None:
    """But for the scale of inputs. Responses that are fitted to all training days, as deployed, do know them."""
    held = days.samples.folds[-1][1]
    half = (held.start + held.stop) // 2
    data = MARKET.data_array.copy()
    drift = 0.01 * np.resize([1.0, 0.0, -1.0], data.shape[1])
    data[half:] *= np.exp(drift * np.arange(len(data) - half).clip(max=40)[:, None])[..., None]
    other, early = days_of(replace(MARKET, data_array=data)), slice(held.start, half)
    for place in range(BANK, INPUTS):
        one, two = (own.samples.x.x(early)[:, place] for own in (days, other))
        assert float(one.std()) == 0.0 or correlation_of(one, two) > 0.999, place
    bars = days.tradable[early]
    one, two = (torch.from_numpy(own.inputs.of(MARKET, early))[bars][:, BANK + 2] for own in (days, other))
    assert correlation_of(one, two) < 0.95


def test_formulas_that_forecast_a_fold_are_found_outside_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found is another number of each set of days; those of all training days are the deployed ones."""
    market, sets = learnable_market(4), list[BoolArray]()

    def found(place: int) -> Formulas:
        return Formulas((Formula("intraday"),), ((1.0 + place, -1.0 - place),))

    def search(inputs: TradeInputs, market: Market, days: slice, learned: Sequence[BoolArray]) -> list[Formulas]:
        sets.extend(learned)
        return [found(place) for place in range(len(learned))]

    monkeypatch.setattr(TradeInputs, "fit_formulas", search)
    days = days_of(market)
    rows, apart = days.samples.x, days.samples.longest
    assert days.inputs.formulas == found(0) and len(sets) == 1 + days.folds
    for place, (learned, (_, test)) in enumerate(zip(sets[1:], days.samples.folds, strict=True), 1):
        assert learned.any() and not learned[max(0, test.start - apart) : test.stop + apart].any()
        told = torch.from_numpy(found(place).of(market, test)).permute(1, 2, 0)[rows.has_bar[rows.here(test)]]
        torch.testing.assert_close(rows.separate[rows.rows(test), -2:].float(), told, rtol=1e-3, atol=1e-3)


def correlation_of(one: Tensor, two: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, two)))[0, 1])


def test_each_fold_is_judged_by_its_own_networks(days: TrainingDays) -> None:
    """Networks of one fold begin with ones, the others with nothing: forecasts differ from zero there alone."""
    networks = Networks.initialize(days.gains[None], 3, 0.01, seeded(0))
    networks.tensors["actor_target"][:, FOLD, -1] = 1.0
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
    with pytest.raises(DataError, match=r"expected the results of \d+ positions outside each fifth .*give more"):
        samples_of(days=60, stocks=2).require_enough()


class Stock:
    """One stock's bars up to a day, open and close by day, and the rules, in plain Python."""

    def __init__(self, opened: Float64Array, close: Float64Array, last: int, rules: EnvironmentConfig) -> None:
        days = [day for day in range(last + 1) if close[day] == close[day]]
        self.bars, self.last, self.rules = {day: (float(opened[day]), float(close[day])) for day in days}, last, rules
        self.left = 1 - rules.delisting_loss / 100

    def following(self, day: int) -> int | None:
        return next((later for later in range(day + 1, self.last + 1) if later in self.bars), None)

    def transition(self, day: int) -> tuple[float, int, bool] | None:
        """Reward, day of the next decision and whether the position has been closed by then; None: not known."""
        lost, cost, bars = self.rules.max_days_without_bar, 100 * self.rules.cost_rate, self.bars
        first = self.following(day)
        if first is None or first - day > lost:
            # An order for the next open lapses.
            reward = 0.0 if self.rules.fill == "next_open" else 100 * (self.left - 1) - cost
            return (reward, day, True) if day + lost <= self.last else None
        if self.rules.fill == "same_close":
            return 100 * (bars[first][1] / bars[day][1] - 1), first, False
        second = self.following(first)
        if second is None or second - first > lost:
            if first + lost > self.last:
                return None
            return 100 * (bars[first][1] * self.left / bars[first][0] - 1) - cost, first, True
        return 100 * (bars[second][0] / bars[first][0] - 1), first, False

    def value(self, day: int) -> tuple[float, bool] | None:
        """What a unit that is decided on is traded at, and whether it is closed; None: not known."""
        before, after, lost = max(one for one in self.bars if one <= day), self.following(day), self.last + 1
        has_ended = (lost if after is None else after) - before > self.rules.max_days_without_bar
        if self.rules.fill == "same_close":
            is_closed = day - before >= self.rules.max_days_without_bar
            return self.bars[before][1] * (self.left if is_closed else 1.0), is_closed
        if has_ended:
            return self.bars[before][1] * self.left, True
        return None if after is None else (self.bars[after][0], False)

    def discounted_return(self, day: int, gamma: float) -> float:
        found, total = self.value(day), 0.0
        for session in range(OUTCOME_SESSIONS):
            later = self.value(day + session + 1)
            if found is None or later is None or day + OUTCOME_SESSIONS > self.last:
                return math.nan
            total += gamma**session * 100 * (later[0] / found[0] - 1)
            if later[1]:
                break
            found = later
        return total


RULES: list[dict[str, Any]] = [
    {},
    {"fill": "same_close", "delisting_loss": 20.0},
    {"delisting_loss": 30.0, "max_days_without_bar": 1},
]


@pytest.mark.parametrize("changes", RULES, ids=str)
@pytest.mark.parametrize("gamma", [0.0, 0.8, 1.0])
def test_discounted_returns_are_those_of_one_stock_at_a_time(
    changes: dict[str, Any], gamma: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over gaps, late starts, ends of stocks and the end of the data, which is not known beyond."""
    rules, first, last = replace(TINY_RULES, **changes), 3, 70
    panel = random_panel(np.random.default_rng(8), 80, 12, missing=0.08, delist=0.4, halt=0.4)
    opened, close = panel[..., 0].astype(np.float64), panel[..., 3].astype(np.float64)
    quotes = Quotes.of(*map(torch.from_numpy, (opened, close)))
    found = discounted_returns(quotes, rules, first, last, gamma)
    monkeypatch.setattr(outcomes, "_STOCKS", 5)
    torch.testing.assert_close(
        discounted_returns(quotes, rules, first, last, gamma), found, rtol=0, atol=0, equal_nan=True
    )
    assert found.shape == (last + 1 - first, 12)
    expected = np.full(found.shape, np.nan)
    for column in range(12):
        stock = Stock(opened[:, column], close[:, column], last, rules)
        for day in (day for day in stock.bars if day >= first):
            expected[day - first, column] = stock.discounted_return(day, gamma)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)
    assert np.isfinite(expected).mean() > 0.3


@pytest.mark.parametrize("changes", RULES, ids=str)
def test_transitions_are_those_of_one_stock_at_a_time(changes: dict[str, Any]) -> None:
    rules, quotes = replace(TINY_RULES, **changes), Quotes.on(MARKET)
    days = days_of(MARKET, rules)
    known, rows, closed = days.transitions, days.samples.x, 0
    last, first = rows.days.stop - 1, rows.days.start
    place = {(day + first, stock): row for row, (day, stock) in enumerate(np.argwhere(rows.has_bar.numpy()).tolist())}
    for column in range(quotes.stocks):
        stock = Stock(quotes.open[:, column].numpy(), quotes.close[:, column].numpy(), last, rules)
        for day in (day for day in stock.bars if day >= first):
            row, expected = place[day, column], stock.transition(day)
            if expected is None:
                assert float(known.reward[row]) == 0.0 and bool(known.terminated[row])
                continue
            reward, following, is_closed = expected
            assert float(known.reward[row]) == pytest.approx(reward, rel=1e-4, abs=1e-3)
            assert bool(known.terminated[row]) == is_closed
            closed += is_closed
            assert is_closed or int(known.following[row]) == place[following, column]
    assert closed > 2


def test_nothing_after_the_training_days_is_read(days: TrainingDays) -> None:
    changed = MARKET.data_array.copy()
    changed[MARKET.splits.train.last + 1 :] *= 3.0
    other = days_of(replace(MARKET, data_array=changed))
    for name in ("reward", "following", "terminated"):
        assert torch.equal(getattr(other.transitions, name), getattr(days.transitions, name)), name


@pytest.mark.parametrize("changes", RULES, ids=str)
def test_results_are_known_no_earlier_than_said(changes: dict[str, Any]) -> None:
    """Bars after the day by which they are said to be known change none of them: rivals are refitted to these."""
    rules, train = replace(TINY_RULES, **changes), Span(3, 75)
    panel = random_panel(np.random.default_rng(9), 80, 20, missing=0.3, halt=0.4)
    opened, close = (torch.from_numpy(panel[..., place]).double() for place in (0, 3))
    x = rows_of(np.zeros((80, 20, 1), np.float32))
    samples = Samples.of(x, Quotes.of(opened, close), rules, train, train.last, [0.6])
    for end in range(30, train.last):
        later = torch.where(torch.arange(80)[:, None] > end, torch.nan, close)
        known = samples.known_by(end)[train.first : end + 1]
        cut = discounted_returns(Quotes.of(opened, later), rules, train.first, end, 0.6).numpy()
        np.testing.assert_array_equal(cut[known], samples.results[0, train.first : end + 1][known])
    assert known.any()


def test_the_best_leads_by_the_less_the_more_agents_are_alike(days: TrainingDays) -> None:
    draws = torch.randn(3, *days.tradable.shape, generator=seeded(0))
    nothing = torch.zeros(1, 1)

    def lead(scores: Tensor, among: int = 16) -> float:
        return days.lead(Forecasts.of(scores, nothing, days.relative_risk), among)

    none, apart, alike = lead(draws[:1], 1), lead(draws), lead(draws[[0, 0, 0]] + 5.0)
    assert none == 0.0 and alike == pytest.approx(0.0, abs=0.01)
    assert apart == pytest.approx(expected_maximum(1.0, 16), rel=0.02)
    related = draws + 2.0 * draws.mean(0)
    correlation = float(torch.corrcoef(related.flatten(1))[0, 1])
    expected = expected_maximum(math.sqrt(1 - correlation), 16)
    assert lead(related) == pytest.approx(expected, rel=0.1)
