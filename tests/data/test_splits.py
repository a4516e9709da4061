"""Splits keep their distance from one another, and windows stay within them."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from data.splits import Span, make_splits, random_windows, spaced_windows
from utils.config.trader import OUTCOME_SESSIONS, DataConfig, EnvironmentConfig
from utils.errors import DataError


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, DataConfig, EnvironmentConfig]:
    train = draw(st.integers(5, 90))
    validation = draw(st.integers(1, 99 - train))
    config = DataConfig(
        context_window_days=draw(st.integers(2, 200)), train_fraction=train / 100, validation_fraction=validation / 100
    )
    env = EnvironmentConfig(trading_days=draw(st.integers(1, 60)), settlement_days=draw(st.integers(0, 20)))
    return draw(st.integers(0, 4000)), config, env


@st.composite
def spans(draw: st.DrawFn) -> tuple[Span, int]:
    """A span, and a number of steps for which it holds an episode."""
    first, steps = draw(st.integers(0, 1000)), draw(st.integers(1, 200))
    return Span(first, first + steps + draw(st.integers(0, 300))), steps


@pytest.mark.parametrize(
    ("days", "data", "rules", "expected"),
    [
        (3781, {}, {}, [(504, 2645), (2666, 3212), (3233, 3780)]),
        (3781, {"holdout_fraction": 0.0}, {}, [(504, 3112), (3133, 3780), (3780, 3779)]),
        (4000, {"holdout_fraction": 0.35}, {}, [(504, 2140), (2161, 2599), (2620, 3999)]),
        (1000, {"train_fraction": 0.8, "validation_fraction": 0.2, "holdout_fraction": 0.0}, {"trading_days": 50},
         [(504, 799), (820, 999), (999, 998)]),
        # 0.7 + 0.1 is rounded down
        (1000, {"context_window_days": 2, "train_fraction": 0.7, "validation_fraction": 0.1}, {"trading_days": 10},
         [(2, 699), (720, 799), (820, 999)]),
    ],
)  # fmt: skip
def test_known_days(days: int, data: dict[str, Any], rules: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    splits = make_splits(days, DataConfig(**data), EnvironmentConfig(**rules))
    assert [(span.first, span.last) for span in vars(splits).values()] == expected


@settings(suppress_health_check=[HealthCheck.filter_too_much])  # many cases hold too few days
@given(cases())
def test_splits_respect_context_purge_and_fractions(case: tuple[int, DataConfig, EnvironmentConfig]) -> None:
    days, config, env = case
    try:
        splits = make_splits(days, config, env)
    except DataError:
        assume(False)
    train, validation, holdout = spans = [*vars(splits).values()]
    assert train.first == config.context_window_days
    assert holdout.last == days - 1
    for before, after in ((train, validation), (validation, holdout)):
        assert len(range(before.last + 1, after.first)) >= OUTCOME_SESSIONS
    for share, last in (
        (Fraction(round(100 * config.train_fraction), 100), train.last),
        (Fraction(round(100 * (config.train_fraction + config.validation_fraction)), 100), validation.last),
    ):
        assert -1 <= last + 1 - share * days <= 0  # the whole days of the share; one less where it is rounded down
    assert all(span.days == len(range(span.first, span.last + 1)) >= env.episode_steps + 1 for span in spans)


def test_fractions_that_leave_no_holdout_are_named() -> None:
    config = DataConfig(train_fraction=0.45, validation_fraction=0.55)
    with pytest.raises(DataError, match=r"train-fraction.*validation-fraction < 1.*holdout-fraction 0"):
        make_splits(100_000, config, EnvironmentConfig())


@given(spans(), st.integers(1, 40))
def test_spaced_windows_are_distinct_sorted_and_cover_the_span(case: tuple[Span, int], count: int) -> None:
    span, steps = case
    possible = span.last - steps - span.first + 1
    starts = spaced_windows(span, steps, count)
    days, gaps = starts.tolist(), starts.diff()
    assert starts.dtype == torch.long and len(days) == min(count, possible)
    assert days[-1] + steps == span.last
    if len(days) > 1:
        assert days[0] == span.first
        assert gaps.min() > 0 and gaps.max() - gaps.min() <= 1


@given(spans(), st.integers(1, 40), st.integers(0, 2**32))
def test_one_random_window_starts_in_each_equal_part_of_the_span(case: tuple[Span, int], count: int, seed: int) -> None:
    span, steps = case
    possible = span.days - steps
    starts = random_windows(span, steps, count, torch.Generator().manual_seed(seed)).tolist()
    for part, start in enumerate(starts):
        first, end = Fraction(part * possible, count), Fraction((part + 1) * possible, count)
        # A start is a whole day: that on which a moment of its part falls.
        assert int(first) <= start - span.first <= min(math.ceil(end), possible - 1)


@given(spans(), st.integers(1, 50))
def test_a_span_shorter_than_an_episode_is_refused(case: tuple[Span, int], short_by: int) -> None:
    span, steps = case
    steps = span.days - 1 + short_by
    with pytest.raises(DataError, match="give more data"):
        spaced_windows(span, steps, 3)
    with pytest.raises(DataError, match="give more data"):
        random_windows(span, steps, 3, torch.Generator())
