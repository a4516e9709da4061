"""The ring against a bounded queue, and the transitions that come back out of the replay buffer."""

from collections import deque

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.replay_buffer import FIELDS, ReplayBuffer
from tests.tiny import random_batch, seeded
from utils.tensor_ring import TensorRing

RING_FIELDS = {"number": ((), torch.int32), "pair": ((2,), torch.float32), "flag": ((), torch.bool)}


def ring_rows(first: int, count: int) -> dict[str, Tensor]:
    number = torch.arange(first, first + count)
    return {"number": number, "pair": torch.stack((number, -number), -1).float(), "flag": number % 2 == 0}


def oldest_first(ring: TensorRing) -> Tensor:
    """The places of all rows, in the order in which they came."""
    return (ring.next_row - ring.size + torch.arange(ring.size)) % ring.capacity


def lived(count: int, seed: int = 0) -> dict[str, Tensor]:
    """Transitions of which no two are alike, and no two numbers of one."""
    generator = seeded(seed)
    return {
        name: (100 * torch.randn(count, *shape, generator=generator)).to(dtype)
        for name, (shape, dtype) in FIELDS.items()
    }


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 25), max_size=12))
def test_ring_is_a_bounded_queue(capacity: int, counts: list[int]) -> None:
    ring = TensorRing(capacity, RING_FIELDS)
    places = {name: store.data_ptr() for name, store in ring.data.items()}
    queue: deque[int] = deque(maxlen=capacity)
    written = 0
    for count in counts:
        ring.add(ring_rows(written, count))
        queue.extend(range(written, written + count))
        written += count
        held = {name: store[oldest_first(ring)] for name, store in ring.data.items()}
        assert ring.size == len(queue)
        assert held["number"].tolist() == list(queue)
        assert held["pair"].tolist() == [[n, -n] for n in queue]
        assert held["flag"].tolist() == [n % 2 == 0 for n in queue]
    assert {name: store.data_ptr() for name, store in ring.data.items()} == places


def test_it_tells_what_accounts_earn_a_day_and_which_rows_lie_on_some_days() -> None:
    replay, added = ReplayBuffer(50), lived(30)
    replay.add({**added, "day": torch.arange(30, dtype=torch.int32)})
    assert float(replay.reward_rate()) == pytest.approx(max(0.0, float(added["reward"].mean())), rel=1e-5)
    allowed = torch.zeros(40, dtype=torch.bool)
    allowed[[3, 8, 35]] = True
    assert replay.rows_on_days(allowed).tolist() == [3, 8]
    assert float(ReplayBuffer(5).reward_rate()) == 0.0


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
    ("size", "shown"), [(9_999, "Buffer not ready: 9999 / 10000"), (60_000, "Replay buffer 50000 / 50000, ready")]
)
def test_it_says_whether_networks_can_learn_from_it(size: int, shown: str) -> None:
    """No part of a transition grows with the market: what it holds is all that the buffer allocates."""
    replay = ReplayBuffer(50_000, 10_000)
    replay.add(lived(size))
    assert str(replay) == shown and replay.is_ready == shown.endswith("ready")
    assert replay.bytes_per_row <= 300
    assert sum(store.untyped_storage().nbytes() for store in replay.data.values()) == 50_000 * replay.bytes_per_row


def test_a_sample_has_only_allowed_days_of_each_fold_and_all_of_them() -> None:
    buffer = ReplayBuffer(50)
    added = {name: torch.zeros(30) for name in FIELDS}
    buffer.add({**added, "day": torch.arange(30, dtype=torch.int32) % 10})
    allowed = torch.zeros(2, 10, dtype=torch.bool)
    allowed[0, 2:5], allowed[1, 7] = True, True
    rows = buffer.sample(40, torch.Generator().manual_seed(1), batches=6, allowed=allowed)
    assert rows.shape == (6, 2, 40)
    days = buffer.at(rows).day
    assert set(days[:, 0].unique().tolist()) == {2, 3, 4} and set(days[:, 1].unique().tolist()) == {7}
    assert len(rows[:, 1].unique()) == 3  # each of the rows of this day
