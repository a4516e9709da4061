"""The ring against a bounded queue, and block sampling against its documented distribution."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from environment.ledger import Bars
from environment.portfolio import Portfolio
from models.replay_buffer import ReplayBuffer
from tests.tiny import seeded
from utils.config.trader import EnvironmentConfig
from utils.spaces import ACCOUNT_FEATURES, POSITION_FEATURES
from utils.tensor_ring import TensorRing

FIELDS = {"number": ((), torch.int32), "pair": ((2,), torch.float32), "flag": ((), torch.bool)}
FIRST, LAST, SLOTS, ORDERS = 5, 24, 3, 2


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


def buffer(capacity: int = 200) -> ReplayBuffer:
    return ReplayBuffer(capacity, first_day=FIRST, last_day=LAST, slots=SLOTS, orders_per_day=ORDERS)


def transitions(days: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Random transitions on these days, whose rewards are 0, 1, 2, ..."""
    g, count = seeded(seed), len(days)
    rows: dict[str, Any] = {"day": torch.tensor(days, dtype=torch.int32), "reward": torch.arange(count).float()}
    for prefix in ("", "next_"):
        rows[f"{prefix}slot_stock"] = torch.randint(0, 30_000, (count, SLOTS), generator=g).to(torch.int16)
        rows[f"{prefix}slot_features"] = torch.randn(count, SLOTS, POSITION_FEATURES, generator=g)
        rows[f"{prefix}account"] = torch.randn(count, ACCOUNT_FEATURES, generator=g)
    rows["order_stock"] = torch.randint(0, 30_000, (count, ORDERS), generator=g).to(torch.int16)
    rows["order_size"], rows["order_target"] = torch.rand(2, count, ORDERS, generator=g)
    rows["terminated"] = torch.rand(count, generator=g) < 0.3
    return rows


days_lists = st.lists(st.integers(FIRST, LAST), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(days_lists, st.integers(1, 30), st.integers(1, 3), st.integers(1, 9), st.integers(0, 10**6))
def test_a_block_holds_whole_transitions_of_its_days(
    days: list[int], block_days: int, agents: int, batch: int, seed: int
) -> None:
    """Every row comes back as it was added, in wider integers, from a block inside the buffer's days."""
    replay, rows = buffer(), transitions(days)
    replay.add(rows)
    first, sample = replay.sample_block(block_days, agents, batch, seeded(seed))
    assert first.dtype == torch.int64 and first.dim() == 0
    assert FIRST <= int(first) <= LAST
    assert int(first) + block_days - 1 <= LAST or int(first) == FIRST
    assert sample.day.shape == (agents, batch)
    assert bool(((sample.day >= first) & (sample.day < first + block_days)).all())
    assert sample.day.dtype == sample.slot_stock.dtype == sample.next_slot_stock.dtype == torch.int64
    assert sample.order_stock.dtype == torch.int64 and sample.terminated.dtype == torch.bool
    taken = sample.reward.long()
    for name, value in vars(sample).items():
        assert torch.equal(value, rows[name][taken].to(value.dtype)), name


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(FIRST, LAST), min_size=1, max_size=8), st.integers(1, 30))
def test_every_transition_is_reached(days: list[int], block_days: int) -> None:
    replay, g = buffer(), seeded()
    replay.add(transitions(days))
    seen: set[float] = set()
    for _ in range(400):
        seen.update(replay.sample_block(block_days, 1, 16, g)[1].reward.flatten().tolist())
        if len(seen) == len(days):
            return
    assert seen == set(map(float, range(len(days))))


def first_day_chances(days: list[int], block_days: int) -> dict[float, float]:
    """Chance of each first day: an anchor drawn from the transitions stands anywhere in the block, kept inside."""
    chances: dict[float, float] = defaultdict(float)
    for anchor in days:
        for offset in range(block_days):
            first = min(max(anchor - offset, FIRST), max(FIRST, LAST + 1 - block_days))
            chances[first] += 1 / (len(days) * block_days)
    return chances


def chi_square(observed: Counter[float], expected: Mapping[float, float]) -> float:
    total = sum(observed.values())
    assert set(observed) <= set(expected)
    return sum((observed[key] - total * chance) ** 2 / (total * chance) for key, chance in expected.items())


@pytest.mark.parametrize("block_days", [1, 4, 25])
def test_days_count_by_how_often_they_were_visited(block_days: int) -> None:
    days = [FIRST] * 3 + [7] * 9 + [8, 9, 9, 13] + [20] * 5 + [LAST] * 2
    replay, g, draws = buffer(), seeded(1), 4000
    replay.add(transitions(days))
    blocks: Counter[float] = Counter()
    drawn: Counter[float] = Counter()
    for _ in range(draws):
        first, sample = replay.sample_block(block_days, 1, 1, g)
        blocks[int(first)] += 1
        drawn[int(sample.day)] += 1
    chances = first_day_chances(days, block_days)
    by_day: dict[float, float] = defaultdict(float)
    for first_day, chance in chances.items():
        inside = [day for day in days if first_day <= day < first_day + block_days]
        for day in inside:
            by_day[day] += chance / len(inside)
    # The mean of chi-square is its degrees of freedom, its deviation the root of twice as many.
    for observed, expected in ((blocks, chances), (drawn, by_day)):
        freedom = max(1, len(expected) - 1)
        assert chi_square(observed, expected) < freedom + 5 * np.sqrt(2 * freedom)


def test_transitions_of_a_block_are_equally_likely() -> None:
    days = [10] * 7 + [11] * 2 + [13] * 4
    replay = buffer()
    replay.add(transitions(days))
    sample = replay.sample_block(30, 4, 2000, seeded(2))[1]
    freedom = len(days) - 1
    observed = Counter(sample.reward.flatten().tolist())
    expected = {float(row): 1 / len(days) for row in range(len(days))}
    assert chi_square(observed, expected) < freedom + 5 * np.sqrt(2 * freedom)


def test_overwritten_transitions_are_not_sampled() -> None:
    replay = buffer(capacity=6)
    replay.add(transitions([FIRST] * 5))
    replay.add({**transitions([12] * 6), "reward": torch.full((6,), 99.0)})
    for seed in range(20):
        assert replay.sample_block(3, 2, 8, seeded(seed))[1].reward.flatten().tolist() == [99.0] * 16


def test_same_generator_state_gives_the_same_batch() -> None:
    replay = buffer()
    replay.add(transitions([6, 7, 7, 9, 12, 20]))
    samples = [replay.sample_block(4, 3, 7, seeded(3)) for _ in range(2)]
    assert torch.equal(samples[0][0], samples[1][0])
    for name, value in vars(samples[0][1]).items():
        assert torch.equal(value, getattr(samples[1][1], name))


def test_loaded_state_continues_bit_for_bit() -> None:
    """Also where the buffer has wrapped around, and into a buffer that held something else."""
    replay, other = buffer(capacity=16), buffer(capacity=16)
    rng = np.random.default_rng(0)
    for seed in range(3):
        replay.add(transitions(rng.integers(FIRST, LAST + 1, 7).tolist(), seed))
    other.add(transitions([8] * 11, 9))
    other.load_state_dict(copy.deepcopy(replay.state_dict()))
    first, second = seeded(4), seeded(4)
    for seed in range(4):
        mine, theirs = replay.sample_block(5, 2, 6, first), other.sample_block(5, 2, 6, second)
        assert torch.equal(mine[0], theirs[0])
        for name, value in vars(mine[1]).items():
            assert torch.equal(value, getattr(theirs[1], name))
        more = transitions(rng.integers(FIRST, LAST + 1, 5).tolist(), seed)
        replay.add(more)
        other.add(more)


def test_size_of_a_transition_is_small_and_independent_of_the_market() -> None:
    rules, sizes = EnvironmentConfig(), []
    for stocks in (108, 669):
        prices = torch.ones(3, stocks)
        portfolio = Portfolio(Bars.from_prices(prices, prices, prices), rules)
        replay = ReplayBuffer(
            10, first_day=0, last_day=9, slots=portfolio.slots, orders_per_day=portfolio.orders_per_day
        )
        assert replay.bytes_per_transition == sum(t.nbytes for t in replay.ring.data.values()) / 10
        sizes.append(replay.bytes_per_transition)
    assert sizes[0] == sizes[1] < 4096
