"""The verdict: silent without skill, even on the best of many trials, and clear on skill."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import seeded
from training.evaluation.permutation_nulls import Active, Timing
from training.evaluation.verdict import Verdict, outcome, verdict
from utils.arrays import Float64Array
from utils.statistics import mean_test

DAYS, STOCKS, DRAWS = 160, 12, 150


def null_market(rng: np.random.Generator) -> Float64Array:
    """(days, stocks) returns without any drift: one factor, heavy tails, and stocks that differ in both."""
    volatility, beta = 0.015 * np.exp(rng.normal(0, 0.5, STOCKS)), 1 + 0.5 * rng.standard_normal(STOCKS)
    own = volatility * rng.standard_t(4, (DAYS, STOCKS)) / np.sqrt(2)
    return np.asarray(own + beta * 0.01 * rng.standard_normal((DAYS, 1)))


def tastes(rng: np.random.Generator) -> Float64Array:
    """(days, stocks) weights without skill: some stocks are liked better than others, and moods last for a week."""
    moods = np.repeat(rng.standard_normal((DAYS // 5, STOCKS)), 5, axis=0)
    liked = np.exp(rng.standard_normal(STOCKS) + 1.5 * moods)
    return np.asarray(liked / liked.sum(axis=1, keepdims=True))


def active_of(weights: Float64Array, returns: Float64Array) -> Active:
    """Weights beside equal ones, held over whole sessions."""
    active = weights - 1 / STOCKS
    return Active(active, active, np.zeros_like(returns), returns)


def judge_the_best(seed: int, trials: int, allowed_for: int) -> Verdict:
    """On a market without structure, the best of some policies that hold by taste."""
    rng = np.random.default_rng(seed)
    returns = null_market(rng)
    market = 100 * returns.mean(axis=1)
    tried = [active_of(tastes(rng), returns) for _ in range(trials)]
    best = max(tried, key=lambda active: float((active.held * returns).sum()))
    daily = market + 100 * (best.held * returns).sum(axis=1)
    drawn = daily + best.permuted(DRAWS, seeded(seed))
    return verdict(daily, drawn, best.selection, np.ones(DAYS), market, trials=allowed_for)


def test_a_champion_without_skill_is_not_praised_on_days_that_chose_nothing() -> None:
    found = [judge_the_best(seed, 1, 1) for seed in range(300)]
    assert statistics.fmean(one.has_selection for one in found) <= 0.03
    assert statistics.fmean(one.is_better_than_benchmark for one in found) <= 0.045
    assert not any(one.has_timing for one in found), "exposure never varies"


def test_the_best_of_many_without_skill_is_not_praised() -> None:
    allowed = [judge_the_best(seed, 60, 60) for seed in range(100)]
    assert sum(one.has_selection for one in allowed) <= 4
    forgotten = [judge_the_best(seed, 60, 1) for seed in range(100)]
    assert sum(one.has_selection for one in forgotten) > 8, "the choice must be allowed for"


def test_skill_is_praised_and_who_is_worse_than_random_or_the_benchmark_is_told_so() -> None:
    """In both parts, by the tests that would call the opposite skill."""
    rng = np.random.default_rng(3)
    random = 0.1 * rng.standard_normal((DRAWS, DAYS))
    noise, is_up = 0.01 * rng.standard_normal((2, DAYS)), rng.random(DAYS) < 0.5
    market = np.where(is_up, 2.0, -2.0)
    for selection, timing, words in (
        (-1.0, -1.0, "Worse than random in selection (-25"),
        (-1.0, 0.0, "Worse than random in selection (-2"),
        (1.0, -1.0, "Skill in selection (+25"),
        (1.0, 0.0, "Skill in selection (+25"),
        (0.0, 1.0, "Skill in timing (+25"),
        (0.0, 0.0, "No significant skill in selection or timing; not significantly different from equal weight ("),
    ):
        exposure = 0.5 + 0.5 * timing * np.where(is_up, 1.0, -1.0) + 0.001 * noise[1]
        daily = exposure * market + selection + noise[0]
        drawn = (daily - selection)[None] + random
        found = verdict(daily, drawn, noise[0] + selection, exposure, market + noise[1], trials=20)
        assert found.sentence.startswith(words) and found.sentence.endswith("(% a year; of 20 trials).")
        assert (found.selection.sign, found.timing.sign) == (int(selection), int(timing))
        assert found.has_skill == (max(selection, timing) > 0)
        assert found.selection.test.interval[0] < 252 * (selection + noise[0].mean()) < found.selection.test.interval[1]


def test_at_the_benchmarks_exposure_and_volatility_a_diluted_champion_is_level() -> None:
    """A third of the benchmark's own positions earns less, takes less risk, and is no worse at the same of either."""
    rng = np.random.default_rng(4)
    market, random = 0.05 + rng.standard_normal(DAYS), rng.standard_normal((DRAWS, DAYS))
    third, none = np.full(DAYS, 1 / 3), np.zeros(DAYS)
    found = verdict(market / 3, random, none, third, market, exposure_ratio=3.0)
    assert found.over_benchmark.mean == pytest.approx(-2 / 3 * 252 * market.mean())
    assert [*found.scaled] == ["exposure", "volatility"]
    assert [test.mean for test in found.scaled.values()] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert not found.remarks
    lead = 2 * market.mean() / 3 + 1e-3 * rng.standard_normal(DAYS)
    steady = verdict(market / 3 + lead, random, none, third, market)
    assert steady.remarks == [
        "Scaled to its volatility it is better than equal weight; the verdict goes by what was earned."
    ]
    levered = verdict(2 * market, random, none, third, market, exposure_ratio=1.0)
    assert levered.scaled["exposure"].mean == pytest.approx(252 * market.mean())
    assert levered.scaled["volatility"].mean == pytest.approx(0.0, abs=1e-9)


def test_who_never_trades_is_not_better() -> None:
    none = np.zeros((DRAWS, DAYS))
    idle = verdict(none[0], none, none[0], none[0], none[0], baselines={"rule": none[0]}, name="benchmark")
    assert not idle.scaled, "nothing can be scaled"
    assert not idle.has_skill and not idle.is_better_than_benchmark
    assert idle.selection.p_value == idle.timing.p_value == 1.0
    assert "not significantly different from benchmark (+0.0)" in idle.sentence
    assert "not significantly different from rule (+0.0, interval +0.0 to +0.0)" in idle.sentence


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(1, 400))
def test_selection_timing_and_exposure_sum_to_the_returns(seed: int, trials: int) -> None:
    rng = np.random.default_rng(seed)
    champion, selection, exposure, market = rng.standard_normal((4, DAYS))
    found = verdict(champion, rng.standard_normal((7, DAYS)), selection, exposure, market, trials=trials)
    parts = (found.selection.test, found.timing.test, found.exposure)
    assert sum(part.mean for part in parts) == pytest.approx(252 * champion.mean())
    assert all(part.trials == 2 * trials for part in parts), "selection and timing are both looked at"


def test_shifted_exposures_are_rolled_by_each_number_of_days() -> None:
    exposure, market = np.random.default_rng(0).random((2, 9))
    found = Timing.of(exposure, market)
    expected = [float(np.roll(exposure - exposure.mean(), -shift) @ market) for shift in range(1, 9)]
    np.testing.assert_allclose(found.shifted, expected, atol=1e-12)
    before = [exposure[: max(1, day)].mean() for day in range(9)]
    np.testing.assert_allclose(found.known, (exposure - before) * market)
    assert found.daily.sum() == pytest.approx(float((exposure - exposure.mean()) @ market))
    assert not any(part.any() for part in Timing.of(0.9 + 0.009 * exposure, market)), "as good as steady"


def exposure_of(kind: str, returns: Float64Array, rng: np.random.Generator) -> Float64Array:
    """(DAYS,) exposures without skill; `returns` has 20 days more, before the first one."""
    days = len(returns) - 20
    if kind == "moods":
        return np.repeat(rng.random(days // 10) < 0.5, 10).astype(float)
    if kind == "late":
        return (np.arange(days) >= days // 2).astype(float)
    back = np.convolve(returns, np.ones(20), mode="valid")[:days]
    return (back < 0 if kind == "after falls" else back > 0).astype(float)


@pytest.mark.parametrize("kind", ["moods", "late", "after falls", "after rises"])
def test_exposure_without_skill_is_not_praised_for_timing(kind: str) -> None:
    """In a rising market without structure."""
    found = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        returns = 100 * (0.002 + 0.01 * rng.standard_t(5, 300))
        exposure, market = exposure_of(kind, returns, rng), returns[20:]
        own = exposure * market
        found.append(verdict(own, own[None], np.zeros(len(own)), exposure, market))
    assert statistics.fmean(one.has_timing for one in found) <= 0.025
    if kind == "after falls":
        tests = [one.timing.test for one in found if one.timing.test.standard_error > 0]
        scores = [test.mean / test.standard_error for test in tests]
        assert statistics.fmean(scores) > 2 / math.sqrt(len(scores)), "the mean exposure is known only at the end"
    if kind == "late":
        praised = statistics.fmean(one.timing.in_time.p_value <= 0.025 for one in found)
        assert praised > 0.06, "a rising market pays who invests late"


def test_a_perfect_timer_is_praised_for_timing() -> None:
    rng = np.random.default_rng(0)
    is_rising = np.repeat(rng.random(28) < 0.5, 10)
    market = np.where(is_rising, 0.5, -0.5) + rng.standard_normal(280)
    own = is_rising * market
    found = verdict(own, own[None], np.zeros(280), is_rising.astype(float), market)
    assert found.has_timing and found.has_skill and not found.has_selection
    assert found.sentence.startswith("Skill in timing (+") and ", not in selection; " in found.sentence


def test_the_baseline_that_earned_most_is_named_and_of_many_equals_rarely_called_better() -> None:
    rng = np.random.default_rng(0)
    champion, random, steady = rng.standard_normal(DAYS), rng.standard_normal((DRAWS, DAYS)), np.ones(DAYS)
    none, good = np.zeros(DAYS), champion + 1.0 + 0.1 * rng.standard_normal(DAYS)
    baselines = {"poor": champion - 1.0, "good": good, "fair": champion * 0.5}
    for names, words in ((("poor", "good", "fair"), "worse than good"), (("poor",), "better than poor")):
        noisy = {name: baselines[name] + 0.1 * rng.standard_normal(DAYS) for name in names}
        found = verdict(champion, random, none, steady, champion, baselines=noisy)
        assert f"; {words} (" in found.sentence
    assert found.best_baseline is not None and found.best_baseline.among == 1
    worse = forgotten = 0
    for seed in range(300):
        own, *others = np.random.default_rng(seed).standard_normal((9, DAYS))
        named = {f"baseline {row}": other for row, other in enumerate(others)}
        best = verdict(own, np.stack(others), none, steady, own, baselines=named).best_baseline
        assert best is not None
        worse += outcome(best.test) == "worse than"
        forgotten += mean_test(own - max(others, key=np.sum)).interval[1] < 0
    assert worse <= 0.025 * 300 + 6 and forgotten > 0.1 * 300
