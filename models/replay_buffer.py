"""Replay: preallocated, overwritten in place, indexed by day. A transition holds no market data, only its day index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from utils.spaces import ACCOUNT_FEATURES, POSITION_FEATURES
from utils.tensor_ring import TensorRing


@dataclass(frozen=True)
class TransitionBatch:
    """Sampled transitions of a block of days, (A, B, ...) each."""

    day: Tensor
    slot_stock: Tensor
    slot_features: Tensor
    account: Tensor
    order_stock: Tensor
    """(A, B, m) stocks bought, n where nothing was."""
    order_size: Tensor
    """(A, B, m) value bought as a share of the largest order."""
    order_target: Tensor
    reward: Tensor
    terminated: Tensor
    next_slot_stock: Tensor
    next_slot_features: Tensor
    next_account: Tensor

    def of(self, agents: slice) -> TransitionBatch:
        """Return the transitions of some agents."""
        return TransitionBatch(**{name: value[agents] for name, value in vars(self).items()})


class ReplayBuffer:
    """The population's shared experience: transitions of all agents and generations, sampled by blocks of days."""

    def __init__(
        self,
        capacity: int,
        *,
        first_day: int,
        last_day: int,
        slots: int,
        orders_per_day: int,
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocate for transitions whose day of decision lies in `first_day`..`last_day`, inclusive."""
        state: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "slot_stock": ((slots,), torch.int16),
            "slot_features": ((slots, POSITION_FEATURES), torch.float32),
            "account": ((ACCOUNT_FEATURES,), torch.float32),
        }
        self.ring = TensorRing(
            capacity,
            {
                "day": ((), torch.int32),
                **state,
                "order_stock": ((orders_per_day,), torch.int16),
                "order_size": ((orders_per_day,), torch.float32),
                "order_target": ((orders_per_day,), torch.float32),
                "reward": ((), torch.float32),
                "terminated": ((), torch.bool),
                **{f"next_{name}": field for name, field in state.items()},
            },
            device,
        )
        self.first_day, self.last_day = first_day, last_day
        self._rows_by_day = torch.zeros(0, dtype=torch.int64, device=device)
        self._first_of_day = torch.zeros(last_day + 2, dtype=torch.int64, device=device)

    @property
    def size(self) -> int:
        """Transitions held."""
        return self.ring.size

    @property
    def capacity(self) -> int:
        """Most transitions it can hold."""
        return self.ring.capacity

    @property
    def bytes_per_transition(self) -> int:
        """Storage of one transition."""
        return self.ring.bytes_per_row

    def add(self, transitions: Mapping[str, Tensor]) -> None:
        """Append (count, ...) transitions, then bring the index of days up to date."""
        self.ring.add(transitions)
        self._index_days()

    def _index_days(self) -> None:
        day = self.ring.data["day"][: self.size].long()
        self._rows_by_day = day.argsort(stable=True)
        counts = torch.bincount(day, minlength=self.last_day + 1)
        self._first_of_day[1:] = counts.cumsum(0)

    def sample_block(
        self, block_days: int, population: int, batch: int, generator: torch.Generator
    ) -> tuple[Tensor, TransitionBatch]:
        """Draw transitions that fall into one random block of consecutive days.

        The block is placed around a transition drawn uniformly, so days count by how often they were visited.

        Returns:
            The block's first day, a 0-dimensional int64 tensor, and the (population, batch) transitions.
        """
        device = self._rows_by_day.device
        draw = torch.rand(2 + population * batch, generator=generator, device=device, dtype=torch.float64)
        # Tensors of one element: an index without dimensions would make the host wait for its value.
        anchor = self.ring.data["day"][(draw[:1] * self.size).long()].long()
        highest = max(self.first_day, self.last_day + 1 - block_days)
        first_day = (anchor - (draw[1] * block_days).long()).clamp(self.first_day, highest)
        low = self._first_of_day[first_day]
        high = self._first_of_day[(first_day + block_days).clamp(max=self.last_day + 1)]
        place = low + (draw[2:] * (high - low)).long()
        rows = self._rows_by_day[place].view(population, batch)
        return first_day.squeeze(0), self._gather(rows)

    def _gather(self, rows: Tensor) -> TransitionBatch:
        widened = {torch.int16: torch.int64, torch.int32: torch.int64}
        return TransitionBatch(
            **{name: store[rows].to(widened.get(store.dtype, store.dtype)) for name, store in self.ring.data.items()}
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly."""
        return self.ring.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.ring.load_state_dict(state)
        self._index_days()
