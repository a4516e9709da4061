"""Replay: the population's shared experience of waiting, preallocated and overwritten in place.

A transition holds two accounts, not the market: what prices do is in the expected results alone.
"""

from __future__ import annotations

import torch

from models.cash_value import BUCKETS, Accounts, CashTransitions
from utils.tensor_ring import Fields, TensorRing


def transition_fields(orders_per_day: int) -> Fields:
    """Return the fields of a transition, from the account after a decision to that before the next, float32 each."""
    shapes: dict[str, tuple[int, ...]] = {"cash": (), "pending": (BUCKETS,), "left": (), "opportunity": ()}
    fields = {f"{when}_{name}": shape for when in ("after", "next") for name, shape in shapes.items()}
    return {name: (shape, torch.float32) for name, shape in {**fields, "next_best": (orders_per_day,)}.items()}


def replay_buffer(capacity: int, orders_per_day: int, device: torch.device | str = "cpu") -> TensorRing:
    """Allocate a replay buffer."""
    return TensorRing(capacity, transition_fields(orders_per_day), device)


def cash_transitions(replay: TensorRing) -> CashTransitions:
    """Return all transitions held."""
    held = {name: store[: replay.size].double() for name, store in replay.data.items()}
    after, following = (
        Accounts(**{name: held[f"{when}_{name}"] for name in ("cash", "pending", "left", "opportunity")})
        for when in ("after", "next")
    )
    return CashTransitions(after, following, held["next_best"])
