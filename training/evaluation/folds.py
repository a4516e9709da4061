"""The folds of a walk-forward test: training, validation and test days, each fold later than the one before."""

from __future__ import annotations

from dataclasses import dataclass

from data.splits import Span, Splits
from utils.config.trader import DataConfig, EnvironmentConfig
from utils.errors import DataError


@dataclass(frozen=True)
class FoldPlan:
    """The number of folds and the lengths of their parts."""

    folds: int
    test_windows: int
    """Episodes on a fold's test days, each beginning on the day on which the one before it ended."""
    validation_days: int
    train_days: int
    """0: all days from the first with a full context on."""


@dataclass(frozen=True)
class FoldResult:
    """A trained fold and the result of its champion on its test days."""

    name: str
    dates: dict[str, list[str]]
    """First and last date of its training, validation and test days."""
    champion_generation: int
    return_percent: float
    random_return_percent: float
    """Mean of the random pickers'."""


def make_folds(days: int, plan: FoldPlan, split: DataConfig, env: EnvironmentConfig) -> list[Splits]:
    """Divide `days` sessions; the test days of each fold are its holdout, and those of the last one end with the data.

    Test days follow one another: a fold's begin on the day on which those of the fold before it end, with an account
    that holds nothing. Between training, validation and test lie `max_holding_days` days that no part uses.

    Raises:
        DataError: a part of a fold holds no whole episode.
    """
    length, needed, purge = plan.test_windows * env.episode_steps, env.episode_steps + 1, env.max_holding_days + 1
    folds = []
    for number in range(1, plan.folds + 1):
        first = days - 1 - length * (plan.folds + 1 - number)
        validation = Span(first - purge - plan.validation_days + 1, first - purge)
        last = validation.first - purge
        earliest = max(last - plan.train_days + 1 if plan.train_days else 0, split.context_window_days)
        fold = Splits(Span(earliest, last), validation, Span(first, first + length))
        for name in ("train", "validation"):
            found = getattr(fold, name).days
            if found < needed:
                raise DataError(
                    f"expected at least {needed} {name} days in fold {number}, got {found} of {days} days in all; "
                    "give more data, or other --folds, --test-windows, --validation-days or --train-days"
                )
        folds.append(fold)
    return folds
