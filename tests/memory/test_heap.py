"""Shared storage counts once, large objects tell what holds them, and looking at them changes nothing."""

import gc
import weakref
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from tests.memory.thing import Environment, Thing
from utils.memory.census import UNKNOWN_HOLDER, Heap
from utils.memory.clean_up import frozen_heap, thawed_heap
from utils.memory.guard import MB
from utils.memory.living import count_living
from utils.memory_profiler import MemoryProfiler


def census_bytes(profiler: MemoryProfiler) -> tuple[float, float]:
    measures = profiler.log_memory("census", census=True).measures
    return measures["array_bytes"], measures["tensor_bytes"]


def test_what_is_frozen_is_collected_and_seen_only_when_thawed() -> None:
    kept, garbage = Thing(None), Thing(None)
    garbage.held = garbage
    gone = weakref.ref(garbage)
    with frozen_heap():
        del garbage
        gc.collect()
        assert gone() is not None
        assert not any(item is kept for item in gc.get_objects())
        with thawed_heap():
            assert gone() is None and any(item is kept for item in gc.get_objects())
        assert not any(item is kept for item in gc.get_objects())
    assert any(item is kept for item in gc.get_objects())


@pytest.mark.usefixtures("small_heap")
def test_views_share_the_bytes_of_their_array_or_tensor(profiler: MemoryProfiler) -> None:
    arrays, tensors = census_bytes(profiler)
    base, other = np.zeros((100, 50)), torch.zeros(100, 50)
    views: list[Any] = [base[3:], base.T, base[::-1, ::-2], np.broadcast_to(base[0], (9, 9, 50))]
    views += [as_strided(base, (3, 3), (8, 8)), torch.from_numpy(base), torch.from_numpy(base)[4:].numpy()]
    views += [other[3:], other.t(), other.expand(4, 100, 50), other.detach(), torch.nn.Parameter(other)]
    views += [other.numpy(), other[7:].numpy()[::2]]
    expected = arrays + 100 * 50 * 8, tensors + 100 * 50 * 4
    assert census_bytes(profiler) == expected
    del base, other, views[8:], views[1:7]  # one slice keeps the whole array or tensor
    assert census_bytes(profiler) == expected


@pytest.mark.usefixtures("small_heap")
def test_tensors_without_storage_are_counted_and_cost_nothing(profiler: MemoryProfiler) -> None:
    before = profiler.log_memory("census", census=True).measures
    kept = [torch.zeros(5, 5).to_sparse(), torch.zeros(10**9, device="meta"), torch.zeros(0)]
    after = profiler.log_memory("census", census=True).measures
    assert after["tensors"] - before["tensors"] == len(kept)
    assert after["tensor_bytes"] == before["tensor_bytes"]


@pytest.mark.usefixtures("small_heap")
def test_largest_objects_tell_what_they_are_and_what_holds_them() -> None:
    holder = Thing(np.zeros((512, 512)))
    tensors = Thing({"weights": [torch.zeros(3 * MB // 4), None]})
    view = [np.frombuffer(b"x" * (4 * MB), np.uint8)[5:]]
    module = ModuleType("keeper")
    module.__dict__["KEPT"] = [np.zeros(5 * MB // 8)]
    numbers = [0] * (7 * MB // 8)
    found = {round(row["mb"]): (row["object"], row["held by"]) for row in Heap().largest(min_mb=1.5)}
    thing = f"{Thing.__module__}.Thing"
    assert found == {
        7: (f"list of {7 * MB // 8:,}", UNKNOWN_HOLDER),
        5: (f"ndarray ({5 * MB // 8},) float64 on cpu", "list in dict in <module 'keeper'>"),
        4: (f"ndarray ({4 * MB},) uint8 on cpu", "list"),
        3: (f"Tensor ({3 * MB // 4},) torch.float32 on cpu", f"list in dict in {thing}"),
        2: ("ndarray (512, 512) float64 on cpu", thing),
    }
    del holder, tensors, view, numbers


class Hostile:
    """An object that fails at whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"read {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        raise RuntimeError("measured")


@pytest.mark.usefixtures("small_heap")
def test_hostile_objects_and_dead_proxies_are_left_alone(profiler: MemoryProfiler) -> None:
    dead = weakref.proxy(Thing())
    kept = [Hostile(), {"key": Hostile()}, dead]
    holder = Hostile()
    object.__setattr__(holder, "array", np.zeros(2 * MB // 8))
    kept.append(holder)
    profiler.log_memory("hostile", show_objects=True)
    large = [row for row in Heap().largest(min_mb=1.5) if str(2 * MB // 8) in row["object"]]
    assert len(large) == 1 and "Hostile" in large[0]["held by"]
    del kept


@pytest.mark.usefixtures("small_heap")
def test_nothing_is_kept_alive(profiler: MemoryProfiler) -> None:
    def run() -> list[weakref.ref[Any]]:
        array, tensor, thing = np.zeros(MB // 4), torch.zeros(MB), Environment()
        profiler.log_memory("here", show_objects=True)
        assert count_living()["environments"] == 1
        references = [weakref.ref(item) for item in (array, tensor, thing)]
        del array, tensor, thing
        assert [reference() for reference in references] == [None] * 3
        return references

    run()
    assert count_living()["environments"] == 0
