"""The certificate is fair to a champion without skill, and finds one that has it."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.learning.certificate import (
    CRASHES,
    MEDIAN_SESSIONS,
    crash_careers,
    median_sessions,
    null_careers,
    sessions_to_line,
)
from data.features.nine import CLOSE
from tests.paper.cases import MARKET, START, Walk, keeper, multiplied
from tests.small_market import TINY_RULES
from training.paper.certificate import BETS, BOUND, LINE, RUIN, TERMS, Stake, bounded_result, capital_curves, finding

DAY = 60
FIRST = int(np.flatnonzero(np.isfinite(MARKET.close[DAY]))[0])


def stake_of(share: float) -> Stake:
    """A position in a stock with a bar, in place of which any other could have been."""
    return Stake(FIRST, share, False, np.ones(MARKET.close.shape[1], bool))


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.integers(1, 4))
def test_the_capital_is_a_fair_bet(sizes: list[float], days: int) -> None:
    """Over all orders of results that cancel out, the expected capital is 1, whatever the sizes: a martingale."""
    results = np.array([*sizes, *(-size for size in sizes)])
    paths = np.stack(np.meshgrid(*[results] * days), axis=-1).reshape(-1, days)
    assert capital_curves(paths)[:, -1].mean() == pytest.approx(1.0)
    assert capital_curves(paths).min() > 0
    by_hand = np.mean([math.prod(1 + bet * result for result in paths[0]) for bet in BETS])
    assert capital_curves(paths[0])[-1] == pytest.approx(by_hand)


def test_a_stock_drawn_at_random_has_no_result_on_average() -> None:
    candidates = np.isfinite(MARKET.close[DAY - 1])
    for is_entry in (False, True):
        drawn = [bounded_result(MARKET, DAY, [Stake(s, 0.1, is_entry, candidates)]) for s in np.flatnonzero(candidates)]
        inside = [result for result in drawn if result < BOUND / RUIN]
        assert len(inside) < len(drawn) or np.mean(drawn) == pytest.approx(0.0, abs=1e-9)
        assert any(drawn)


@given(st.floats(0.01, 0.5))
@settings(max_examples=10)
def test_a_result_does_not_depend_on_the_future_or_the_size(share: float) -> None:
    result, bars = bounded_result(MARKET, DAY, [stake_of(share)]), MARKET.data_array.copy()
    bars[DAY + 1 :] = np.nan
    assert result == bounded_result(dataclasses.replace(MARKET, data_array=bars), DAY, [stake_of(share)])
    assert result == pytest.approx(bounded_result(MARKET, DAY, [stake_of(0.1)]))


def test_false_alarms_are_rare_and_the_table_holds() -> None:
    assert null_careers(60, 3, np.random.default_rng(1)) <= 1 / LINE
    for ratio in (6.0, 4.0):
        assert median_sessions(ratio, 300, np.random.default_rng(2)) == pytest.approx(MEDIAN_SESSIONS[ratio], rel=0.15)


@pytest.mark.parametrize(("crashes", "deviations"), CRASHES)
def test_crashes_are_no_skill(crashes: float, deviations: float) -> None:
    """Selections that gain a little on most days and lose it all at times, with a true mean of zero, or below it."""
    for yearly in (0.0, -0.5):
        draws = np.random.default_rng(4)
        crossed = crash_careers(200, 10, draws, crashes=crashes, deviations=deviations, yearly=yearly)
        assert crossed <= 1 / LINE


def test_gains_are_cut_and_losses_are_not() -> None:
    """A stock that loses all takes no more than the capital of a bet; one that gains as much is cut."""
    found, column = dict[float, float](), MARKET.investable_columns[FIRST]
    for factor in (1e-6, 0.5, 10.0, 100.0):
        bars = MARKET.data_array.copy()
        bars[DAY, column] = bars[DAY - 1, column] * factor
        found[factor] = bounded_result(dataclasses.replace(MARKET, data_array=bars), DAY, [stake_of(0.3)])
    assert found[10.0] == found[100.0] <= BOUND / RUIN
    assert -1.0 <= found[1e-6] < 1.5 * found[0.5] < 0
    ruin = capital_curves(np.array([[-1.0, 0.5], [-30.0, 0.5]]))
    assert ruin[0, 0] == pytest.approx(1 - np.mean(BETS)) and ruin[1].tolist() == [0.0, 0.0]
    assert "nobody can tell" in finding([-30.0] * 30, ["2020-01-01"] * 30)
    assert "other terms" in finding([], [], {**TERMS, "bound": 3.0})


@pytest.mark.parametrize(("pause", "loss"), [(40, 0.0), (40, 50.0), (2, 0.0), (3, 0.0), (6, 50.0)])
def test_a_stock_whose_bars_end_counts_a_loss(tmp_path: Path, pause: int, loss: float) -> None:
    """Once, after the sessions that the rules wait, and not if it trades again: then its price counts."""
    rules, first = dataclasses.replace(TINY_RULES, delisting_loss=loss), START + 4
    walk = Walk(tmp_path, keeper(), rules)
    walk.step(*range(START, first))
    ticker = walk.one_held()
    walk.market = multiplied(MARKET, ticker, slice(first, first + pause), np.nan)
    charged = list[float]()
    for day in range(first, first + 9):
        walk.step(day)
        found = walk.at(day).book.stakes(day)
        charged.append(sum(one.loss for one in found))
        free = [dataclasses.replace(one, loss=0.0) for one in found]
        moved = bounded_result(walk.market, day, found) - bounded_result(walk.market, day, free)
        assert (charged[-1] > 0) == (moved < 0)
    expected = max(0.3, loss / 100)
    # No bar on the first two sessions: the rules sell at the second one, and it is lost in the third.
    after = [expected] if pause > 2 else []
    is_back = np.isfinite(walk.market.data_array[first + pause, MARKET.tickers.index(ticker), CLOSE])
    back = [-expected] if 2 < pause < 9 and is_back else []
    assert [one for one in charged if one] == pytest.approx([*after, *back])
    assert not after or charged[2] == pytest.approx(expected)


def test_the_words_are_honest() -> None:
    dates = [str(day) for day in np.datetime64("2020-01-01") + np.arange(400)]
    assert "Nothing is shown yet" in finding([], [])
    noise = np.random.default_rng(3).standard_normal(400) / 4
    for unclear in ([0.1] * 5, (noise - noise.mean() - 0.05).tolist()):
        assert "nobody can tell" in finding(unclear, dates)
    assert "until about 20" in finding((noise - noise.mean() + 0.01).tolist(), dates)
    strong = np.clip(noise + 0.3, -1, 1).tolist()
    assert f"Shown on {dates[int(sessions_to_line(np.array(strong))) - 1]}" in finding(strong, dates)
