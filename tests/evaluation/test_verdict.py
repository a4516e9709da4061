"""The verdict: silent on luck, even on the best of many trials, and clear on skill."""

from __future__ import annotations

import statistics

import numpy as np
import numpy.typing as npt
import pytest

from training.evaluation.verdict import Judgement, verdict

Array = npt.NDArray[np.float64]
DAYS, STOCKS, HELD, PICKERS = 160, 12, 10, 150


def profits(picks: Array, returns: Array) -> Array:
    """(policies, days) percent of capital of buying one stock a day, (policies, days) `picks`, and holding it on."""
    total = np.zeros(picks.shape)
    for age in range(HELD):
        days = np.arange(age, returns.shape[0])
        total[:, age:] += returns[days[None], picks[:, : len(days)]]
    return 100 / HELD * total


def null_market(rng: np.random.Generator) -> Array:
    """(days, stocks) returns without any drift: one factor, heavy tails, and stocks that differ in both."""
    volatility, beta = 0.015 * np.exp(rng.normal(0, 0.5, STOCKS)), 1 + 0.5 * rng.standard_normal(STOCKS)
    own = volatility * rng.standard_t(4, (DAYS, STOCKS)) / np.sqrt(2)
    return np.asarray(own + beta * 0.01 * rng.standard_normal((DAYS, 1)))


def faithful_picks(rng: np.random.Generator, policies: int) -> Array:
    """Policies without skill that like some stocks much better than others, each its own."""
    taste = np.exp(2.5 * rng.standard_normal((policies, STOCKS)))
    share = np.cumsum(taste / taste.sum(axis=1, keepdims=True), axis=1)
    drawn = rng.random((policies, DAYS))
    return np.stack([np.searchsorted(own, one) for own, one in zip(share, drawn, strict=True)]).clip(0, STOCKS - 1)


def judge_the_best(seed: int, trials: int, allowed_for: int) -> Judgement:
    """On a market without structure, the best of some policies that pick by taste."""
    rng = np.random.default_rng(seed)
    returns = null_market(rng)
    tried = profits(faithful_picks(rng, trials), returns)
    pickers = profits(rng.integers(0, STOCKS, (PICKERS, DAYS)), returns)
    return verdict(tried[tried.sum(axis=1).argmax()], pickers, 100 * returns.mean(axis=1), trials=allowed_for)


def test_a_champion_without_skill_is_not_praised_on_days_that_chose_nothing() -> None:
    found = [judge_the_best(seed, 1, 1) for seed in range(300)]
    assert statistics.fmean(one.is_better_than_pickers for one in found) <= 0.045
    assert statistics.fmean(one.is_better_than_equal_weight for one in found) <= 0.045
    # The rank alone would take a taste for volatile stocks for skill.
    assert statistics.fmean(one.picker_chance <= 0.025 for one in found) > 0.1


def test_the_best_of_many_without_skill_is_not_praised() -> None:
    allowed = [judge_the_best(seed, 60, 60) for seed in range(100)]
    assert sum(one.is_better_than_pickers for one in allowed) <= 4
    forgotten = [judge_the_best(seed, 60, 1) for seed in range(100)]
    assert sum(one.is_better_than_pickers for one in forgotten) > 15, "the choice must be allowed for"


def skilled(edge: float, trials: int = 1) -> Judgement:
    """A picker whose stocks rise by `edge` a day more than others."""
    rng = np.random.default_rng(0)
    returns = null_market(rng)
    picks = rng.integers(0, STOCKS, (1 + PICKERS, DAYS))
    earned = profits(picks, returns)
    champion = earned[0] + 100 * edge
    return verdict(champion, earned[1:], 100 * returns.mean(axis=1), trials=trials)


def test_skill_is_praised() -> None:
    found = skilled(0.01, trials=320)
    assert found.is_better and found.share_of_pickers_beaten == 1.0
    assert found.sentence.startswith("Better than random pickers with the same orders (+")
    assert " and equal weight (+" in found.sentence and "choice among 320 trials" in found.sentence
    low, high = found.against_pickers.interval
    assert low < 252 < high, "one percent a day is 252 a year"


def test_the_sentence_says_what_it_is_not_better_than() -> None:
    none = skilled(0.0)
    assert none.sentence.startswith("Not better than random pickers") and " nor than equal weight" in none.sentence
    assert not none.is_better and "trials" not in none.sentence
    rng = np.random.default_rng(1)
    champion, pickers = rng.standard_normal(DAYS) * 0.1 + 1, rng.standard_normal((PICKERS, DAYS)) * 0.1
    only_pickers = verdict(champion, pickers, champion + rng.standard_normal(DAYS))
    assert only_pickers.sentence.startswith("Better than random pickers")
    assert ", but not better than equal weight" in only_pickers.sentence
    assert only_pickers.is_better_than_pickers and not only_pickers.is_better


@pytest.mark.parametrize("trials", [1, 50])
def test_who_never_trades_is_not_better(trials: int) -> None:
    idle = verdict(np.zeros(DAYS), np.zeros((PICKERS, DAYS)), np.zeros(DAYS), trials=trials)
    assert not idle.is_better_than_pickers and not idle.is_better_than_equal_weight
    assert idle.sentence.startswith("Not better")
