"""The verdict: silent without skill, even on the best of many trials, and clear on skill."""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environment.trading_rules import Orders
from training.evaluation.verdict import Shifted, Verdict, outcome, verdict
from training.forecasts.skill import known_share
from utils.arrays import Float64Array
from utils.config.trader import EnvironmentConfig
from utils.statistics import mean_test

DAYS, STOCKS, HELD, DRAWS = 160, 12, 10, 150


def profits(picks: Float64Array, returns: Float64Array) -> Float64Array:
    """(policies, days) percent of capital of buying one stock a day, (policies, days) `picks`, and holding it on."""
    total = np.zeros(picks.shape)
    for age in range(HELD):
        days = np.arange(age, returns.shape[0])
        total[:, age:] += returns[days[None], picks[:, : len(days)]]
    return 100 / HELD * total


def null_market(rng: np.random.Generator) -> Float64Array:
    """(days, stocks) returns without any drift: one factor, heavy tails, and stocks that differ in both."""
    volatility, beta = 0.015 * np.exp(rng.normal(0, 0.5, STOCKS)), 1 + 0.5 * rng.standard_normal(STOCKS)
    own = volatility * rng.standard_t(4, (DAYS, STOCKS)) / np.sqrt(2)
    return np.asarray(own + beta * 0.01 * rng.standard_normal((DAYS, 1)))


def faithful_picks(rng: np.random.Generator, policies: int) -> Float64Array:
    """Policies without skill that like some stocks much better than others, each its own."""
    taste = np.exp(2.5 * rng.standard_normal((policies, STOCKS)))
    share = np.cumsum(taste / taste.sum(axis=1, keepdims=True), axis=1)
    drawn = rng.random((policies, DAYS))
    return np.stack([np.searchsorted(own, one) for own, one in zip(share, drawn, strict=True)]).clip(0, STOCKS - 1)


def still(random: Float64Array) -> Shifted:
    """Shifted selections that earn what the same-day ones earn: no timing."""
    return Shifted(random, np.ones(random.shape[1]))


def judge_the_best(seed: int, trials: int, allowed_for: int) -> Verdict:
    """On a market without structure, the best of some policies that pick by taste."""
    rng = np.random.default_rng(seed)
    returns = null_market(rng)
    tried = profits(faithful_picks(rng, trials), returns)
    best, random = tried[tried.sum(axis=1).argmax()], profits(rng.integers(0, STOCKS, (DRAWS, DAYS)), returns)
    return verdict(best, random, still(random), 100 * returns.mean(axis=1), trials=allowed_for)


def test_a_champion_without_skill_is_not_praised_on_days_that_chose_nothing() -> None:
    found = [judge_the_best(seed, 1, 1) for seed in range(300)]
    assert statistics.fmean(one.has_selection for one in found) <= 0.045
    assert statistics.fmean(one.is_better_than_equal_weight for one in found) <= 0.045
    # The rank alone would take a taste for volatile stocks for skill.
    assert statistics.fmean(one.rank_p_value <= 0.05 for one in found) > 0.1


def test_the_best_of_many_without_skill_is_not_praised() -> None:
    allowed = [judge_the_best(seed, 60, 60) for seed in range(100)]
    assert sum(one.has_selection for one in allowed) <= 4
    forgotten = [judge_the_best(seed, 60, 1) for seed in range(100)]
    assert sum(one.has_selection for one in forgotten) > 15, "the choice must be allowed for"


def test_skill_is_praised_and_who_is_worse_than_random_or_equal_weight_is_told_so() -> None:
    """In both parts of the profit, by the tests that would call the opposite skill."""
    rng = np.random.default_rng(3)
    random, shifted = 0.1 * rng.standard_normal((2, DRAWS, DAYS))
    noise = 0.01 * rng.standard_normal((3, DAYS))
    noise -= noise.mean(axis=1, keepdims=True)
    for selection, timing, words in (
        (-1.0, -1.0, "Worse than random in selection (-252.0) and timing (-252.0); worse than equal weight (-252.0)"),
        (-1.0, 0.0, "Worse than random in selection (-252.0), no significant skill in timing; worse than equal weight"),
        (1.0, -1.0, "Skill in selection (+252.0), worse than random in timing (-252.0); better than equal weight (+"),
        (1.0, 0.0, "Skill in selection (+252.0), not in timing; better than equal weight (+252.0)"),
        (0.0, 0.0, "No significant skill in selection or timing; not significantly different from equal weight ("),
    ):
        same_day, moved = random - random.mean(axis=0), shifted - shifted.mean(axis=0) - timing + 0.3 * noise[0]
        found = verdict(noise[1] + selection, same_day, Shifted(moved, np.ones(DAYS)), noise[2], trials=320)
        assert found.sentence.startswith(words) and found.sentence.endswith("(% a year; of 320 trials).")
        assert found.has_skill == found.is_better_than_equal_weight == (selection > 0)
        assert found.selection.interval[0] < 252 * selection < found.selection.interval[1]


def test_at_equal_weights_exposure_and_volatility_a_diluted_champion_is_level() -> None:
    """A third of equal weight's own positions earns less, takes less risk, and is no worse at the same of either."""
    rng = np.random.default_rng(4)
    market = 0.05 + rng.standard_normal(DAYS)
    random = rng.standard_normal((DRAWS, DAYS))
    found = verdict(market / 3, random, still(random), market, exposure_ratio=3.0)
    assert found.over_equal_weight.mean == pytest.approx(-2 / 3 * 252 * market.mean())
    assert [*found.scaled] == ["exposure", "volatility"]
    assert [test.mean for test in found.scaled.values()] == pytest.approx([0.0, 0.0], abs=1e-9)
    levered = verdict(2 * market, random, still(random), market, exposure_ratio=1.0)
    assert levered.scaled["exposure"].mean == pytest.approx(252 * market.mean())
    assert levered.scaled["volatility"].mean == pytest.approx(0.0, abs=1e-9)


def test_who_never_trades_is_not_better() -> None:
    none = np.zeros((DRAWS, DAYS))
    idle = verdict(none[0], none, Shifted(none, none[0]), none[0], baselines={"rule": none[0]})
    assert not idle.scaled, "nothing can be scaled"
    assert not idle.has_skill and not idle.is_better_than_equal_weight
    assert idle.sentence.startswith("No significant skill in selection or timing; not significantly different from")
    assert "not significantly different from rule (+0.0, interval +0.0 to +0.0)" in idle.sentence


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 400))
def test_selection_timing_and_exposure_sum_to_the_profit(seed: int, trials: int) -> None:
    rng = np.random.default_rng(seed)
    champion, random, shifted = rng.standard_normal(DAYS), *rng.standard_normal((2, 7, DAYS))
    found = verdict(champion, random, Shifted(shifted, np.ones(DAYS)), champion, trials=trials)
    parts = (found.selection, found.timing, found.exposure)
    assert sum(part.mean for part in parts) == pytest.approx(252 * champion.mean())
    assert all(part.trials == 2 * trials for part in parts), "selection and timing are both looked at"


RULES = EnvironmentConfig(trading_days=60, settlement_days=10, max_holding_days=10)
WINDOWS, SHIFTS, WARM_UP = 4, 16, 60


def judge_timing(is_ordering: Float64Array, market: Float64Array) -> Verdict:
    """Judge orders of one size for the whole market: (WINDOWS, trading days) and (WINDOWS, days) daily profits."""
    steps, held = RULES.episode_steps, RULES.max_holding_days

    def exposure(orders: Float64Array) -> Float64Array:
        total = np.cumsum(np.pad(orders, ((0, 0), (held, RULES.settlement_days))), axis=1)
        return (total[:, held:] - total[:, :-held]) / held

    size = torch.zeros(steps, 1, WINDOWS, dtype=torch.float64)
    size[: RULES.trading_days, 0] = torch.from_numpy(is_ordering.T)
    known = known_share(Orders(size, size, size), RULES)
    circle = is_ordering.ravel()
    moved = [np.roll(circle, place * len(circle) // SHIFTS).reshape(is_ordering.shape) for place in range(SHIFTS)]
    profits = np.stack([(exposure(orders) * market).ravel() for orders in moved])
    own = (exposure(is_ordering) * market).ravel()
    # Whoever buys the market has no choice to make.
    return verdict(own, np.stack((own, own)), Shifted(profits, known), market.ravel())


def plan_of(kind: str, past: Float64Array, rng: np.random.Generator) -> Float64Array:
    """(WINDOWS, trading days) 1.0 where orders are given, without skill; `past` are the returns before each window's
    days and on them, (WINDOWS, WARM_UP + days)."""
    days = np.arange(RULES.trading_days)
    total = np.cumsum(past, axis=1)
    if kind == "moods":
        return np.repeat(rng.random((WINDOWS, 6)) < 0.5, 10, axis=1).astype(float)
    if kind == "late":
        return np.repeat([[0.0], [0.0], [1.0], [1.0]], RULES.trading_days, axis=1)
    # Known at the close before the day whose return is `past[:, WARM_UP + day]`.
    back = total[:, days + WARM_UP - 1] - total[:, days + WARM_UP - 1 - 20]
    return (back < 0 if kind == "after falls" else back > 0).astype(float)


@pytest.mark.parametrize("kind", ["moods", "late", "after falls", "after rises"])
def test_plans_without_skill_are_not_praised_for_timing(kind: str) -> None:
    """In a rising market without structure."""
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        days = 0.002 + 0.01 * rng.standard_t(5, WARM_UP + WINDOWS * RULES.episode_steps)
        begin = RULES.episode_steps * np.arange(WINDOWS)[:, None]
        past = 100 * days[begin + np.arange(WARM_UP + RULES.episode_steps)]
        found.append(judge_timing(plan_of(kind, past, rng), past[:, WARM_UP:]))
    assert statistics.fmean(one.has_timing for one in found) <= 0.025
    if kind == "after falls":
        scores = [one.timing.mean / one.timing.standard_error for one in found]
        assert statistics.fmean(scores) > 2 / math.sqrt(len(scores)), "the plan's mean size is known only at the end"
    if kind == "late":
        praised = statistics.fmean(one.timing_known.p_value <= 0.025 for one in found)
        assert praised > 0.06, "a rising market pays who invests late"


def test_a_perfect_timer_is_praised_for_timing() -> None:
    rng = np.random.default_rng(0)
    is_rising = np.repeat(rng.random((WINDOWS, 7)) < 0.5, 10, axis=1)
    market = np.where(is_rising, 0.5, -0.5) + rng.standard_normal(is_rising.shape)
    found = judge_timing(is_rising[:, : RULES.trading_days].astype(float), market)
    assert found.has_timing and found.has_skill and not found.has_selection
    assert found.sentence.startswith("Skill in timing (+") and ", not in selection; " in found.sentence


def test_the_baseline_that_earned_most_is_named() -> None:
    rng = np.random.default_rng(0)
    champion, random = rng.standard_normal(DAYS), rng.standard_normal((DRAWS, DAYS))
    good = champion + 1.0 + 0.1 * rng.standard_normal(DAYS)
    baselines = {"poor": champion - 1.0, "good": good, "fair": champion * 0.5}
    for names, words in ((("poor", "good", "fair"), "worse than good"), (("poor",), "better than poor")):
        noisy = {name: baselines[name] + 0.1 * rng.standard_normal(DAYS) for name in names}
        found = verdict(champion, random, still(random), champion, baselines=noisy)
        assert f"; {words} (" in found.sentence
    assert found.best_baseline is not None and found.best_baseline.among == 1


def test_the_best_of_many_equals_is_rarely_called_better() -> None:
    """Baselines as good as the champion; the best of them is chosen by what it earned on the same days."""
    worse = forgotten = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        profits = rng.standard_normal((9, DAYS))
        names = {f"baseline {row}": own for row, own in enumerate(profits[1:])}
        found = verdict(profits[0], profits[1:], still(profits[1:]), profits[0], baselines=names)
        assert found.best_baseline is not None
        worse += outcome(found.best_baseline.test) == "worse than"
        best = max(names.values(), key=np.sum)
        forgotten += mean_test(profits[0] - best).interval[1] < 0
        assert outcome(found.best_baseline.test) != "better than" or profits[0].sum() > best.sum()
    assert worse <= 0.025 * 300 + 6 and forgotten > 0.1 * 300
