"""The ring against a bounded queue, and the transitions that come back out of the replay buffer."""

from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.replay_buffer import FIELDS, ReplayBuffer, TensorRing
from tests.tiny import random_batch, seeded


def transitions(count: int, **changes: Tensor) -> dict[str, Tensor]:
    return {name: torch.zeros(count, dtype=dtype) for name, (_, dtype) in FIELDS.items()} | changes


@settings(max_examples=80)
@given(st.integers(1, 9), st.lists(st.integers(0, 25), max_size=12))
def test_ring_is_a_bounded_queue(capacity: int, counts: list[int]) -> None:
    ring = TensorRing(capacity, {"number": ((), torch.int32), "pair": ((2,), torch.float32)})
    places = {name: store.data_ptr() for name, store in ring.data.items()}
    queue: deque[int] = deque(maxlen=capacity)
    written = 0
    for count in counts:
        numbers = torch.arange(written, written + count)
        ring.add({"number": numbers, "pair": torch.stack((numbers, -numbers), -1).float()})
        queue.extend(range(written, written + count))
        written += count
        oldest_first = (ring.next_row - ring.size + torch.arange(ring.size)) % capacity
        held = {name: store[oldest_first] for name, store in ring.data.items()}
        assert ring.size == len(queue)
        assert held["number"].tolist() == list(queue)
        assert held["pair"].tolist() == [[n, -n] for n in queue]
    assert {name: store.data_ptr() for name, store in ring.data.items()} == places


def test_parts_of_a_batch_are_the_batch() -> None:
    """Gradients are accumulated over parts that hold each day once, also where they cannot be of one size."""
    days = 7
    whole = random_batch(days=days)
    for count in (1, 2, 3, 9):
        parts, shares = zip(*whole.split(count), strict=True)
        assert len(parts) == min(count, days) and sum(shares) == pytest.approx(1)
        assert list(shares) == pytest.approx([part.x.shape[1] / days for part in parts])
        for name, value in vars(whole).items():
            assert torch.equal(torch.cat([getattr(part, name) for part in parts], dim=1), value), name


@pytest.mark.parametrize(
    ("size", "shown"), [(9_999, "Buffer not ready: 9,999 / 10,000"), (60_000, "Replay buffer 50,000 / 50,000, ready")]
)
def test_it_says_whether_networks_can_learn_from_it(size: int, shown: str) -> None:
    """No part of a transition grows with the market: what it holds is all that the buffer allocates."""
    replay = ReplayBuffer(50_000, 10_000)
    replay.add(transitions(size))
    assert str(replay) == shown and replay.is_ready == shown.endswith("ready")
    assert replay.bytes_per_row <= 300
    assert sum(store.untyped_storage().nbytes() for store in replay.data.values()) == 50_000 * replay.bytes_per_row


def test_a_sample_has_only_allowed_days_of_each_fold_and_all_of_them() -> None:
    buffer = ReplayBuffer(50)
    buffer.add(transitions(30, day=torch.arange(30) % 10))
    allowed = torch.zeros(2, 10, dtype=torch.bool)
    allowed[0, :3], allowed[1, 7] = True, True
    rows = buffer.sample(40, seeded(1), batches=6, allowed=allowed)
    assert rows.shape == (6, 2, 40) and int(rows.max()) < buffer.size == 30
    days = buffer.at(rows).day
    assert set(days[:, 0].unique().tolist()) == {0, 1, 2} and set(days[:, 1].unique().tolist()) == {7}
    assert len(rows[:, 1].unique()) == 3  # each of the rows of this day
