"""A ring buffer of rows in preallocated tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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
