"""The ring against a bounded queue, and the transitions that come back out of it."""

from __future__ import annotations

import copy
from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.replay_buffer import cash_transitions, replay_buffer, transition_fields
from utils.tensor_ring import TensorRing

FIELDS = {"number": ((), torch.int32), "pair": ((2,), torch.float32), "flag": ((), torch.bool)}


def ring_rows(first: int, count: int) -> dict[str, Tensor]:
    number = torch.arange(first, first + count)
    return {"number": number, "pair": torch.stack((number, -number), -1).float(), "flag": number % 2 == 0}


def oldest_first(ring: TensorRing) -> dict[str, Tensor]:
    rows = (ring.next_row - ring.size + torch.arange(ring.size)) % ring.capacity
    return {name: store[rows] for name, store in ring.data.items()}


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 25), max_size=12))
def test_ring_is_a_bounded_queue(capacity: int, counts: list[int]) -> None:
    """Adds of any size, none and more than fit among them, leave what a deque of that length holds."""
    ring = TensorRing(capacity, FIELDS)
    places = {name: store.data_ptr() for name, store in ring.data.items()}
    queue: deque[int] = deque(maxlen=capacity)
    written = 0
    for count in counts:
        ring.add(ring_rows(written, count))
        queue.extend(range(written, written + count))
        written += count
        held = oldest_first(ring)
        assert ring.size == len(queue)
        assert held["number"].tolist() == list(queue)
        assert held["pair"].tolist() == [[n, -n] for n in queue]
        assert held["flag"].tolist() == [n % 2 == 0 for n in queue]
    assert {name: store.data_ptr() for name, store in ring.data.items()} == places


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 12), max_size=6), st.lists(st.integers(0, 12), max_size=4))
def test_ring_continues_after_its_state_is_loaded(capacity: int, before: list[int], after: list[int]) -> None:
    ring, other = TensorRing(capacity, FIELDS), TensorRing(capacity, FIELDS)
    for count in before:
        ring.add(ring_rows(ring.next_row, count))
    other.load_state_dict(copy.deepcopy(ring.state_dict()))
    for count in after:
        rows = ring_rows(100, count)
        ring.add(rows)
        other.add(rows)
    assert (ring.size, ring.next_row) == (other.size, other.next_row)
    for name in FIELDS:
        assert torch.equal(ring.data[name][: ring.size], other.data[name][: ring.size])


@pytest.mark.parametrize("rows", [{"number": torch.zeros(1)}, {**ring_rows(0, 1), "more": torch.zeros(1)}])
def test_ring_refuses_other_fields(rows: dict[str, Tensor]) -> None:
    ring = TensorRing(4, FIELDS)
    with pytest.raises(ValueError, match="expected the fields"):
        ring.add(rows)
    assert ring.size == 0


@pytest.mark.parametrize("count", [0, 3, 10, 25])
def test_transitions_come_back_as_they_were_added(count: int) -> None:
    """Only those that are held; of more than fit, the last."""
    replay = replay_buffer(10, 3)
    generator = torch.Generator().manual_seed(count)
    rows = {
        name: torch.randn(count, *shape, generator=generator).to(dtype)
        for name, (shape, dtype) in transition_fields(3).items()
    }
    replay.add(rows)
    held = cash_transitions(replay)
    order = (torch.arange(count) % 10)[-10:].argsort()
    expected = {name: value[-10:].double() for name, value in rows.items()}
    if count > 10:
        expected = {name: value[order] for name, value in expected.items()}
    for when in ("after", "next"):
        for name, value in vars(getattr(held, when)).items():
            assert value.dtype == torch.float64 and torch.equal(value, expected[f"{when}_{name}"]), (when, name)
    assert torch.equal(held.next_best, expected["next_best"]) and held.next_best.shape == (min(count, 10), 3)
    part = held.rows(slice(1, 3))
    assert torch.equal(part.after.pending, held.after.pending[1:3])
    assert torch.equal(part.next.left, held.next.left[1:3]) and torch.equal(part.next_best, held.next_best[1:3])
