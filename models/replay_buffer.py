"""The replay buffer: the population's shared experience, preallocated and overwritten in place.

A transition holds a day and what happened to an account on it. Nothing of the market is copied, and no action: every
stock of the day is learned from, bought or not, see `training.forecasts.transitions`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from utils.memory.living import counted
from utils.tensor_ring import Fields, TensorRing


@dataclass(frozen=True)
class Transitions:
    """N transitions of accounts from one close to the next."""

    day: Tensor
    """(N,) int32 index of the day of the decision."""
    cash: Tensor
    """(N,) float32 share of the initial capital."""
    left: Tensor
    """(N,) float32 days on which purchases are accepted, this one included."""
    reward: Tensor
    """(N,) float32 change of equity, percent of the initial capital, less penalties."""
    next_cash: Tensor
    next_left: Tensor


@dataclass(frozen=True)
class Batch:
    """Transitions of S stocks on D replayed days outside of each fold, and of the accounts of these days.

    Prices do not react to orders, so that every stock of a replayed day is a transition, held or not.
    """

    x: Tensor
    """(folds, D, S, inputs) of the stocks, as networks see them."""
    next_x: Tensor
    """(folds, D, S, inputs) at the close on which a position in them is decided on next."""
    reward: Tensor
    """(folds, D, S, targets) percent that a position earns between the two decisions, at each sale target."""
    terminated: Tensor
    """(folds, D, S) bool: the position has been closed by then, or what follows is not known."""
    invested: Tensor
    """(folds, D) share of the capital that the replayed account has invested; 0 once nothing may be bought any more."""
    next_invested: Tensor
    """(folds, D) a session later, also where the stock's next decision is later."""

    def split(self, count: int) -> Iterator[tuple[Batch, float]]:
        """Split it into at most `count` micro-batches, to accumulate gradients over; with each one's share of it."""
        days = self.x.shape[1]
        count = min(count, days)
        for part in range(count):
            some = slice(days * part // count, days * (part + 1) // count)
            tensors = {name: value[:, some] for name, value in vars(self).items()}
            yield Batch(**tensors), (some.stop - some.start) / days


FIELDS: Fields = {f.name: ((), torch.int32 if f.name == "day" else torch.float32) for f in fields(Transitions)}
"""Of a transition."""


@counted("replay_buffers")
class ReplayBuffer(TensorRing):
    """A ring buffer of transitions; learning starts once it holds enough of them."""

    def __init__(self, capacity: int, training_starts: int = 0, device: torch.device | str = "cpu") -> None:
        """Allocate `capacity` transitions; networks learn once it holds `training_starts` of them."""
        super().__init__(capacity, FIELDS, device)
        self.training_starts = min(training_starts, capacity)

    @property
    def is_ready(self) -> bool:
        """Tell whether it holds enough transitions to learn from."""
        return self.size >= max(self.training_starts, 1)

    def at(self, rows: Tensor | slice) -> Transitions:
        """Return the transitions of some rows."""
        return Transitions(**{name: store[rows] for name, store in self.data.items()})

    def on_days(self, is_allowed: Tensor) -> Tensor:
        """Return the rows of the transitions on (days,) allowed days."""
        return is_allowed[self.data["day"][: self.size].long()].nonzero()[:, 0]

    def sample(self, batch_size: int, generator: torch.Generator, *, batches: int, allowed: Tensor) -> Tensor:
        """Draw rows for batches, with replacement: (batches, folds, batch_size), on (folds, days) allowed days of each
        fold, of which at least one has been replayed."""
        chance = torch.rand(batches, batch_size, len(allowed), generator=generator, dtype=torch.float64)
        known = [self.on_days(days) for days in allowed]
        drawn = zip(known, chance.unbind(2), strict=True)
        return torch.stack([rows[(share.to(rows.device) * len(rows)).long()] for rows, share in drawn], dim=1)

    def reward_rate(self) -> Tensor:
        """Return the mean reward of all transitions held, () float32 percent a day, at least 0."""
        return self.data["reward"][: max(self.size, 1)].mean().clamp(min=0.0)

    def __str__(self) -> str:
        if self.is_ready:
            return f"Replay buffer {self.size} / {self.capacity}, ready"
        return f"Buffer not ready: {self.size} / {self.training_starts}"
