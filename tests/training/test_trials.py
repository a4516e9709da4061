"""The record of what every agent earned on validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.trials import SLICES, daily_profit, read_trials, trial_record

CAPITAL = 1000.0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 4), st.integers(2, 12))
def test_a_days_profit_is_the_mean_over_windows_side_by_side(seed: int, agents: int, windows: int, steps: int) -> None:
    rng = np.random.default_rng(seed)
    equity = CAPITAL + 10 * rng.standard_normal((steps + 1, agents, windows))
    starts = np.sort(rng.choice(20, windows, replace=False))
    found = daily_profit(equity, starts, CAPITAL)
    first = int(starts[0]) + 1
    for agent in range(agents):
        for day in range(len(found)):
            earned = [
                equity[first + day - start, agent, window] - equity[first + day - start - 1, agent, window]
                for window, start in enumerate(starts.tolist())
                if 1 <= first + day - start <= steps
            ]
            assert found[day, agent] == pytest.approx(100 * sum(earned) / windows / CAPITAL, abs=1e-9)


def test_slices_sum_to_what_the_champion_is_chosen_by() -> None:
    rng = np.random.default_rng(0)
    equity = CAPITAL + np.cumsum(rng.standard_normal((31, 3, 4)), axis=0)
    record = trial_record(equity, equity[:, 0], np.array([5, 9, 20, 40]), CAPITAL, [0, 0, 2])
    profit = 100 * (equity[-1] - equity[0]).mean(axis=1) / CAPITAL
    assert np.sum(record["slice_profit"], axis=1) == pytest.approx(profit, abs=1e-4)
    assert np.shape(record["slice_profit"]) == (3, SLICES) and record["founders"] == [0, 0, 2]
    assert record["information_ratio"][0] == 0.0, "it is the benchmark itself"
    over = daily_profit(equity[:, 1:] - equity[:, :1], np.array([5, 9, 20, 40]), CAPITAL)
    expected = over.mean(axis=0) / over.std(axis=0, ddof=1)
    assert record["information_ratio"][1:] == pytest.approx(expected, abs=1e-4)


def trials(profit: list[float | None], ratio: list[float | None], founders: list[int]) -> dict[str, Any]:
    """A generation's record."""
    record = {"slice_profit": [[one] * SLICES for one in profit], "information_ratio": ratio, "founders": founders}
    return {"validation": {"trials": record}}


def test_reading_leaves_out_broken_agents_and_needs_every_record() -> None:
    sound, broken = trials([1.0, 2.0], [0.1, 0.2], [0, 1]), trials([None, 3.0], [None, 0.3], [1, 1])
    found = read_trials([sound, broken])
    assert found is not None
    assert found.slice_profit.shape == (SLICES, 3) and found.information_ratio.tolist() == [0.1, 0.2, 0.3]
    assert found.lineage.tolist() == [0, 1, 1]
    assert read_trials([sound, {"validation": {"best": 1.0}}]) is None
    assert read_trials([]) is None


def test_an_agent_like_its_benchmark_has_no_ratio() -> None:
    equity = np.full((9, 1, 2), CAPITAL)
    assert trial_record(equity, equity[:, 0], np.array([0, 4]), CAPITAL, [0])["information_ratio"] == [0.0]
