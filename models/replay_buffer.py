"""The replay buffer: the population's shared experience, preallocated and overwritten in place.

A transition holds accounts, and what was expected of the candidates of its days; nothing of the market is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Self

import torch
from torch import Tensor

from models.cash_value import BUCKETS, Accounts
from utils.memory.living import counted
from utils.tensor_ring import Fields, TensorRing

_LARGEST_RATIO = 3.0
_ACCOUNT: dict[str, tuple[int, ...]] = {"cash": (), "pending": (BUCKETS,), "left": (), "opportunity": ()}
_WHEN = ("state", "after", "next")


@dataclass(frozen=True)
class Transitions:
    """N transitions of accounts from one decision to the next."""

    state: Accounts
    """Before the decision, (N,) each, float64."""
    best: Tensor
    """(N, k) results that were expected of the largest orders for the chosen stocks, percent of the initial capital."""
    action: Tensor
    """(N, k) order sizes, shares of the largest order."""
    reward: Tensor
    """(N,) what those orders earned, percent of the initial capital, credited to the day of the decision."""
    after: Accounts
    """After the decision."""
    next: Accounts
    """Before the next one."""
    next_best: Tensor
    """(N, k)"""
    terminated: Tensor
    """(N,) bool: the next decision is the last of the episode, after which nothing follows."""
    penalty: Tensor | None = None
    """(N, k) what the risk of the largest orders costs, see `models.risk`; None: nothing."""
    next_penalty: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return transitions of the changed parts."""
        held = {name: part for name, part in vars(self).items() if part is not None}
        parts: dict[str, Any] = {n: part.map(change) if n in _WHEN else change(part) for n, part in held.items()}
        return replace(self, **parts)


@dataclass(frozen=True)
class Batch:
    """A batch of replayed transitions, and of counterfactual outcomes of orders on training days."""

    transitions: Transitions
    """(N,)"""
    x: Tensor
    """(folds, D, S, inputs) of the orders of S stocks on each of D days outside the fold."""
    y: Tensor
    """(folds, D, S, targets) what they earned beyond the mean of their day, in standard deviations."""

    def split(self, parts: int) -> Iterator[tuple[Batch, float]]:
        """Split it into at most `parts` micro-batches, to accumulate gradients over; with each one's share of it."""
        rows, days = len(self.transitions.reward), self.x.shape[1]
        parts = min(parts, rows, days)
        for part in range(parts):
            own, those = (slice(count * part // parts, count * (part + 1) // parts) for count in (rows, days))
            share = (those.stop - those.start) / days
            yield Batch(self.transitions.map(itemgetter(own)), self.x[:, those], self.y[:, those]), share


def transition_fields(orders_per_day: int, *, has_risk: bool = False) -> Fields:
    """Return the fields of a transition."""
    shapes = {f"{when}_{name}": shape for when in _WHEN for name, shape in _ACCOUNT.items()}
    orders = (orders_per_day,)
    shapes |= {"best": orders, "action": orders, "reward": (), "next_best": orders}
    if has_risk:
        shapes |= {"penalty": orders, "next_penalty": orders}
    fields: Fields = {name: (shape, torch.float32) for name, shape in shapes.items()}
    return {**fields, "terminated": ((), torch.bool)}


@counted("replay_buffers")
class ReplayBuffer(TensorRing):
    """A ring buffer of transitions; learning starts once it holds enough of them."""

    def __init__(
        self,
        capacity: int,
        orders_per_day: int,
        training_starts: int = 0,
        device: torch.device | str = "cpu",
        *,
        has_risk: bool = False,
    ) -> None:
        """Allocate `capacity` transitions; networks learn once it holds `training_starts` of them."""
        super().__init__(capacity, transition_fields(orders_per_day, has_risk=has_risk), device)
        self.training_starts = min(training_starts, capacity)

    @property
    def is_ready(self) -> bool:
        """Tell whether it holds enough transitions to learn from."""
        return self.size >= max(self.training_starts, 1)

    def sample(self, rows: Tensor | slice) -> Transitions:
        """Return the transitions of some rows."""
        chosen = {name: store[rows] for name, store in self.data.items()}
        numbers: dict[str, Any] = {name: part.double() for name, part in chosen.items() if part.is_floating_point()}
        for when in _WHEN:
            numbers[when] = Accounts(**{name: numbers.pop(f"{when}_{name}") for name in _ACCOUNT})
        return Transitions(**numbers, terminated=chosen["terminated"])

    def calibration(self) -> Tensor:
        """Return realised over expected results of all orders held, () float64, clipped to a factor of 3."""
        action, best = self.data["action"][: self.size].double(), self.data["best"][: self.size].double()
        expected = torch.where(action > 0, action * best, 0.0).sum()
        earned = self.data["reward"][: self.size].double().sum()
        ratio = (earned / expected.clamp(min=1e-9)).clamp(1 / _LARGEST_RATIO, _LARGEST_RATIO)
        return torch.where(expected > 0, ratio, 1.0)

    def __str__(self) -> str:
        if self.is_ready:
            return f"Replay buffer {self.size:,} / {self.capacity:,}, ready"
        return f"Buffer not ready: {self.size:,} / {self.training_starts:,}"
