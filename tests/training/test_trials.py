"""The record of what every agent earned on validation."""

from __future__ import annotations

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
    record = trial_record(equity, np.array([5, 9, 20, 40]), CAPITAL)
    profit = 100 * (equity[-1] - equity[0]).mean(axis=1) / CAPITAL
    assert np.sum(record["slice_profit"], axis=1) == pytest.approx(profit, abs=1e-4)
    assert np.shape(record["slice_profit"]) == (3, SLICES) and len(record["daily_sharpe"]) == 3


def test_reading_leaves_out_broken_agents_and_needs_a_record() -> None:
    sound = {"slice_profit": [[1.0] * SLICES, [2.0] * SLICES], "daily_sharpe": [0.1, 0.2]}
    broken = {"slice_profit": [[None] * SLICES, [3.0] * SLICES], "daily_sharpe": [None, 0.3]}
    found = read_trials([{"validation": {"trials": sound}}, {"validation": {"trials": broken}}])
    assert found is not None
    assert found[0].shape == (SLICES, 3) and found[1].tolist() == [0.1, 0.2, 0.3]
    assert read_trials([{"validation": {"best": 1.0}}]) is None
    assert read_trials([]) is None


def test_an_idle_agent_has_no_ratio() -> None:
    assert trial_record(np.full((9, 1, 2), CAPITAL), np.array([0, 4]), CAPITAL)["daily_sharpe"] == [0.0]
