"""The replay buffer: the population's shared experience, preallocated and overwritten in place.

A transition holds a day and what happened to an account on it. Nothing of the market is copied, and no action: every
stock of the day is learned from, bought or not, see `training.forecasts.transitions`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from utils.memory_census import counted
from utils.memory_guard import require_memory

Fields = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class TensorRing:
    """A ring buffer of rows in named, preallocated tensors."""

    def __init__(self, capacity: int, fields: Fields, device: torch.device | str = "cpu") -> None:
        self.capacity = capacity
        self.size = 0
        self.next_row = 0
        # zero_ takes all pages now, so that the process does not grow as the ring fills.
        self.data = {
            name: torch.empty(capacity, *shape, dtype=dtype, device=device).zero_()
            for name, (shape, dtype) in fields.items()
        }

    @property
    def bytes_per_row(self) -> int:
        """The size of a row."""
        return sum(t.element_size() * t[0].numel() for t in self.data.values())

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Write (count, ...) rows over the oldest ones, only the last if not all fit."""
        count = len(next(iter(rows.values())))
        kept = min(count, self.capacity)
        first = (self.next_row + count - kept) % self.capacity
        head = min(kept, self.capacity - first)
        for name, store in self.data.items():
            new = rows[name][count - kept :]
            store[first : first + head] = new[:head]
            store[: kept - head] = new[head:]
        self.next_row = (self.next_row + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def clear(self) -> None:
        """Empty the ring; it keeps its memory."""
        self.size = self.next_row = 0

    def state_dict(self) -> dict[str, Any]:
        """Return all rows, even empty ones, so that checkpoints have the same size from the start."""
        return {"size": self.size, "next_row": self.next_row, "rows": dict(self.data)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, into the same tensors."""
        self.size, self.next_row = state["size"], state["next_row"]
        for name, store in self.data.items():
            store[: self.size] = state["rows"][name][: self.size].to(store.device)


@dataclass(frozen=True)
class AccountTransitions:
    """N transitions of accounts from one close to the next.

    Updates read days and prices of capital; what positions earn on a day is looked up for all stocks. Cash and reward
    tell what happened to the account.
    """

    day: Tensor
    """(N,) int32 index of the day of the decision."""
    cash: Tensor
    """(N,) float32 share of the equity."""
    price: Tensor
    """(N,) float32 shadow price of the account's capital, percent, see `models.target_weights`."""
    reward: Tensor
    """(N,) float32 change of equity, percent of the initial capital."""
    next_cash: Tensor
    next_price: Tensor


FIELDS: Fields = {f.name: ((), torch.int32 if f.name == "day" else torch.float32) for f in fields(AccountTransitions)}
"""Of a transition."""


@counted("replay_buffers")
class ReplayBuffer(TensorRing):
    """A ring buffer of transitions; learning starts once it holds enough of them."""

    def __init__(self, capacity: int, training_starts: int = 0, device: torch.device | str = "cpu") -> None:
        """Allocate `capacity` transitions; networks learn once it holds `training_starts` of them."""
        # Each field has 4 bytes, and a checkpoint takes a copy.
        require_memory("a replay buffer", {"--learning.replay-capacity": capacity, "bytes": 2 * 4 * len(FIELDS)})
        super().__init__(capacity, FIELDS, device)
        self.training_starts = min(training_starts, capacity)

    @property
    def is_ready(self) -> bool:
        """Tell whether it holds enough transitions to learn from."""
        return self.size >= max(self.training_starts, 1)

    def at(self, rows: Tensor | slice) -> AccountTransitions:
        """Return the transitions of some rows."""
        return AccountTransitions(**{name: store[rows] for name, store in self.data.items()})

    def rows_on_days(self, is_allowed: Tensor) -> Tensor:
        """Return the rows of the transitions on (days,) allowed days."""
        return is_allowed[self.data["day"][: self.size].long()].nonzero()[:, 0]

    def has_days(self, allowed: Tensor) -> bool:
        """Tell whether it holds transitions on (folds, days) allowed days of each fold."""
        return all(len(self.rows_on_days(days)) for days in allowed)

    def sample(self, batch_size: int, generator: torch.Generator, *, batches: int, allowed: Tensor) -> Tensor:
        """Draw rows for batches, with replacement: (batches, folds, batch_size), on (folds, days) allowed days of each
        fold, of which at least one has been replayed; see `has_days`."""
        # The draws do not depend on how many rows there are, nor on the device.
        drawn = torch.rand(batches, batch_size, len(allowed), generator=generator, dtype=torch.float64)
        of_fold = zip(map(self.rows_on_days, allowed), drawn.unbind(2), strict=True)
        return torch.stack([rows[(draw.to(rows.device) * len(rows)).long()] for rows, draw in of_fold], dim=1)

    def __str__(self) -> str:
        if self.is_ready:
            return f"Replay buffer {self.size:,} / {self.capacity:,}, ready"
        return f"Buffer not ready: {self.size:,} / {self.training_starts:,}"
