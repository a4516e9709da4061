"""Train, validation and holdout days, with a purge between them, and the windows that episodes are drawn from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from utils.config.trader import OUTCOME_SESSIONS, DataConfig, EnvironmentConfig
from utils.errors import DataError


@dataclass(frozen=True)
class Span:
    """Days `first`..`last`, inclusive; an episode that starts on day s observes days s..s + steps."""

    first: int
    last: int

    @property
    def days(self) -> int:
        """Number of days."""
        return max(0, self.last - self.first + 1)


@dataclass(frozen=True)
class Splits:
    """Days on which episodes may run; their contexts extend further back."""

    train: Span
    validation: Span
    holdout: Span


def make_splits(days: int, config: DataConfig, env: EnvironmentConfig) -> Splits:
    """Divide `days` sessions by the configured fractions, in order of time.

    The first training day has a full context. A purge of `OUTCOME_SESSIONS` days between splits keeps trades of one
    from being open in the next. Raises `DataError` if a split holds no whole episode.
    """
    known, kept_out = config.train_fraction + config.validation_fraction, config.holdout_fraction
    if kept_out is None and 1.0 - known < 1e-9:
        raise DataError(
            "expected split.train-fraction + split.validation-fraction < 1, got 1: no day is left for the holdout; "
            "lower one of them, or give --split.holdout-fraction 0"
        )
    scale = 1.0 if kept_out is None else (1.0 - kept_out) / known
    # 0.1 + 0.7 is a little less than 0.8: without the margin such fractions would lose a day.
    train_end = int(days * scale * config.train_fraction + 1e-9)
    validation_end = int(days * scale * known + 1e-9)
    splits = Splits(
        Span(config.context_window_days, train_end - 1),
        Span(train_end + OUTCOME_SESSIONS, validation_end - 1),
        Span(days - 1, days - 2) if kept_out == 0 else Span(validation_end + OUTCOME_SESSIONS, days - 1),
    )
    for name, span in vars(splits).items():
        if span.days <= env.episode_steps and (name != "holdout" or kept_out != 0):
            context = f" after {config.context_window_days} of context" if name == "train" else ""
            smaller = "--split.context-window-days or --env.trading-days" if context else "--env.trading-days"
            raise DataError(
                f"expected at least {env.episode_steps + 1} days for one episode in the {name} split, got {span.days} "
                f"of {days} days in all{context}: too few days; give more data, other fractions --split.*, "
                f"or a smaller {smaller}"
            )
    return splits


@dataclass(frozen=True)
class FoldPlan:
    """The number of folds of a walk-forward test and the lengths of their parts."""

    folds: int
    test_windows: int
    """Episodes on a fold's test days, each beginning on the day on which the one before it ended."""
    validation_days: int
    train_days: int
    """0: all days from the first with a full context on."""


def make_folds(days: int, plan: FoldPlan, split: DataConfig, env: EnvironmentConfig) -> list[Splits]:
    """Divide `days` sessions; the test days of each fold are its holdout, and those of the last one end with the data.

    Test days are consecutive: a fold's begin on the day on which those of the fold before it end, with an account
    that holds nothing. Between training, validation and test lie `OUTCOME_SESSIONS` days that no part uses.
    Raises `DataError` if a part of a fold holds no whole episode.
    """
    length, needed, purge = plan.test_windows * env.episode_steps, env.episode_steps + 1, OUTCOME_SESSIONS + 1
    folds = []
    for number in range(1, plan.folds + 1):
        first = days - 1 - length * (plan.folds + 1 - number)
        validation = Span(first - purge - plan.validation_days + 1, first - purge)
        last = validation.first - purge
        earliest = max(last - plan.train_days + 1 if plan.train_days else 0, split.context_window_days)
        fold = Splits(Span(earliest, last), validation, Span(first, first + length))
        for name in ("train", "validation"):
            available = getattr(fold, name).days
            if available < needed:
                raise DataError(
                    f"expected at least {needed} {name} days in fold {number}, got {available} of {days} days in all; "
                    "give more data, or other --folds, --test-windows, --validation-days or --train-days"
                )
        folds.append(fold)
    return folds


def random_windows(span: Span, steps: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw the first days of episodes of `steps` steps, one in each of `count` equal parts of the span: (count,).

    Stratified draws vary less than independent ones. Raises `DataError` if the span holds no such episode.
    """
    starts = _possible_starts(span, steps)
    draw = torch.rand(count, generator=generator, device=generator.device, dtype=torch.float64)
    part = (torch.arange(count, device=draw.device) + draw) / count
    return span.first + (part * starts).long().clamp(max=starts - 1)


def spaced_windows(span: Span, steps: int, count: int) -> Tensor:
    """Return distinct, sorted, evenly spaced first days, from the first to the last possible one.

    (count,), or fewer where the span is so short that each day on which an episode can start is given. A single window
    is the last of the span, the market as it was most recently. Raises `DataError` if the span holds no such episode.
    """
    starts = _possible_starts(span, steps)
    gaps = min(count, starts) - 1
    if gaps < 1:
        return torch.tensor([span.first + starts - 1])
    # Integers rounded half up: a gap is at least a day, so that starts are distinct.
    return span.first + (2 * torch.arange(gaps + 1) * (starts - 1) + gaps) // (2 * gaps)


def consecutive_windows(span: Span, steps: int) -> Tensor:
    """Return first days of as many episodes of `steps` steps as fit into the span in a row, to its last day.

    Each begins on the day on which the one before it ended, without positions. Raises `DataError` if the span holds no
    such episode.
    """
    count = (_possible_starts(span, steps) - 1) // steps + 1
    return span.last - steps * torch.arange(count, 0, -1)


def _possible_starts(span: Span, steps: int) -> int:
    starts = span.days - steps
    if starts < 1:
        raise DataError(
            f"expected at least {steps + 1} days for an episode of {steps} steps, got {span}; give more data"
        )
    return starts
