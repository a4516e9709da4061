"""Shared storage counts once, large objects tell what holds them, and looking at them changes nothing."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from tests.memory.thing import Environment, Thing
from utils.memory.census import UNKNOWN_HOLDER, Heap, find_storages, largest_objects
from utils.memory.guard import MB
from utils.memory.living import count_living
from utils.memory_profiler import MemoryProfiler

pytestmark = pytest.mark.usefixtures("small_heap")


def census_bytes(profiler: MemoryProfiler) -> tuple[float, float]:
    measures = profiler.log_memory("census", census=True).measures
    return measures["array_bytes"], measures["tensor_bytes"]


def largest(min_mb: float, top: int = 20) -> list[dict[str, Any]]:
    return largest_objects(Heap(), min_mb, top)


def test_views_of_an_array_share_its_bytes(profiler: MemoryProfiler) -> None:
    arrays, tensors = census_bytes(profiler)
    base = np.zeros((100, 50))
    views: list[Any] = [
        base[3:],
        base.T,
        base[::-1, ::-2],
        np.broadcast_to(base[0], (9, 9, 50)),
        as_strided(base, (3, 3), (8, 8)),
    ]
    views.append(torch.from_numpy(base))
    views.append(torch.from_numpy(base)[4:].numpy())
    assert census_bytes(profiler) == (arrays + base.nbytes, tensors)
    del base
    del views[1:]  # one slice keeps the whole array
    assert census_bytes(profiler) == (arrays + 100 * 50 * 8, tensors)


def test_views_of_a_tensor_share_its_storage(profiler: MemoryProfiler) -> None:
    arrays, tensors = census_bytes(profiler)
    base = torch.zeros(100, 50)
    views: list[Any] = [base[3:], base.t(), base.expand(4, 100, 50), base.detach(), torch.nn.Parameter(base)]
    views += [base.numpy(), base[7:].numpy()[::2]]
    assert census_bytes(profiler) == (arrays, tensors + 100 * 50 * 4)
    assert len(find_storages(views)) == 1


@given(parts=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 30)), max_size=8), with_whole=st.booleans())
def test_storage_of_slices_is_that_of_their_base(parts: list[tuple[int, int]], with_whole: bool) -> None:
    bases: list[Any] = [np.zeros(100), torch.zeros(100, dtype=torch.float64)]
    for base in bases:
        slices = [base[start : start + length] for start, length in parts] + [base] * with_whole
        assert [high - low for _, low, high, _ in find_storages(slices)] == ([800] if slices else [])


def test_tensors_without_storage_are_counted_and_cost_nothing(profiler: MemoryProfiler) -> None:
    before = profiler.log_memory("census", census=True).measures
    kept = [torch.zeros(5, 5).to_sparse(), torch.zeros(10**9, device="meta"), torch.zeros(0)]
    after = profiler.log_memory("census", census=True).measures
    assert after["tensors"] - before["tensors"] == len(kept)
    assert after["tensor_bytes"] == before["tensor_bytes"]


def capture(array: np.ndarray) -> Callable[[], np.ndarray]:
    def captured() -> np.ndarray:
        return array

    return captured


def test_largest_objects_tell_what_they_are_and_who_holds_them() -> None:
    holder = Thing(np.zeros((512, 512)))
    tensors = {"weights": [torch.zeros(3 * MB // 4), None]}
    blob = [b"x" * (4 * MB)]
    view = [np.frombuffer(blob[0], np.uint8)[5:]]
    closure = capture(np.zeros(5 * MB // 8))
    numbers = [0] * (7 * MB // 8)
    found = {round(item["mb"]): item for item in largest(min_mb=1.5)}
    assert [(mb, found[mb]["object"]) for mb in found] == [
        (7, f"list of {7 * MB // 8:,}"),
        (5, f"ndarray ({5 * MB // 8},) float64 on cpu"),
        (4, f"bytes of {4 * MB:,}"),
        (3, f"Tensor ({3 * MB // 4},) torch.float32 on cpu"),
        (2, "ndarray (512, 512) float64 on cpu"),
    ]
    assert found[2]["held by"].startswith(f"attribute 'value' of {Thing.__module__}.Thing")
    assert found[3]["held by"].startswith("list of 2 items in key 'weights'")
    assert found[5]["held by"].endswith(f"function {__name__}.capture.<locals>.captured")
    assert found[7]["held by"] == UNKNOWN_HOLDER
    assert [item["mb"] for item in largest(min_mb=4.5, top=1)] == [found[7]["mb"]]
    del holder, tensors, view, numbers, closure


def test_holders_are_followed_to_the_module_that_keeps_them() -> None:
    module = ModuleType("keeper")
    module.__dict__["KEPT"] = [np.zeros(17 * MB // 8)]
    found = [item for item in largest(min_mb=16) if round(item["mb"]) == 17]
    assert [item["held by"] for item in found] == ["list of 1 items in key 'KEPT' in module keeper"]


class HostileMeta(type):
    """A type that fails at whatever is asked of it."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("checked")


class Hostile(metaclass=HostileMeta):
    """An object that fails at whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"read {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        raise RuntimeError("measured")


def test_hostile_objects_and_dead_proxies_are_left_alone(profiler: MemoryProfiler) -> None:
    make = type.__call__
    dead = weakref.proxy(Thing())
    kept = [make(Hostile), {"key": make(Hostile)}, dead]
    holder = make(Hostile)
    object.__setattr__(holder, "array", np.zeros(2 * MB // 8))
    kept.append(holder)
    profiler.log_memory("hostile", show_objects=True)
    large = [item for item in largest(min_mb=1.5) if str(2 * MB // 8) in item["object"]]
    assert len(large) == 1 and "Hostile" in large[0]["held by"]
    del kept


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
