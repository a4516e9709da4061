"""Shared storage counts once, large objects tell what holds them, looking changes nothing; the limit of memory."""

import weakref
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from numpy.lib.stride_tricks import as_strided

from tests.data.files import written
from tests.memory.thing import Environment, Thing
from utils.errors import ConfigError, MemoryLimitReached
from utils.memory_census import UNKNOWN_HOLDER, Heap, count_living
from utils.memory_guard import MIB, MemoryGuard, memory_limit_mb, require_memory
from utils.memory_profiler import MemoryProfiler


def census_bytes(profiler: MemoryProfiler) -> tuple[float, float]:
    measures = profiler.log_memory("census", show_objects=True).measures
    return measures["array_bytes"], measures["tensor_bytes"]


@pytest.mark.usefixtures("small_heap")
def test_views_share_the_bytes_of_their_array_or_tensor(profiler: MemoryProfiler) -> None:
    arrays, tensors = census_bytes(profiler)
    base, other = np.zeros((100, 50)), torch.zeros(100, 50)
    views: list[Any] = [base[3:], base.T, base[::-1, ::-2], np.broadcast_to(base[0], (9, 9, 50))]
    views += [as_strided(base, (3, 3), (8, 8)), torch.from_numpy(base), torch.from_numpy(base)[4:].numpy()]
    views += [other[3:], other.t(), other.expand(4, 100, 50), other.detach(), torch.nn.Parameter(other)]
    views += [other.numpy(), other[7:].numpy()[::2]]
    without_storage = torch.zeros(5, 5).to_sparse(), torch.zeros(10**9, device="meta"), torch.zeros(0)
    expected = arrays + 100 * 50 * 8, tensors + 100 * 50 * 4
    assert census_bytes(profiler) == expected
    del base, other, views[8:], views[1:7], without_storage  # one slice keeps the whole array or tensor
    assert census_bytes(profiler) == expected


@pytest.mark.usefixtures("small_heap")
def test_largest_objects_tell_what_they_are_and_what_holds_them() -> None:
    holder = Thing(np.zeros((512, 512)))
    tensors = Thing({"weights": [torch.zeros(3 * MIB // 4), None]})
    view = [np.frombuffer(b"x" * (4 * MIB), np.uint8)[5:]]
    module = ModuleType("keeper")
    module.__dict__["KEPT"] = [np.zeros(5 * MIB // 8)]
    numbers = [0] * (7 * MIB // 8)
    found = {round(row["mb"]): (row["object"], row["held by"]) for row in Heap().largest(min_mb=1.5)}
    thing = f"{Thing.__module__}.Thing"
    assert found == {
        7: (f"list of {7 * MIB // 8:,}", UNKNOWN_HOLDER),
        5: (f"ndarray ({5 * MIB // 8},) float64 on cpu", "list in dict in <module 'keeper'>"),
        4: (f"ndarray ({4 * MIB},) uint8 on cpu", "list"),
        3: (f"Tensor ({3 * MIB // 4},) torch.float32 on cpu", f"list in dict in {thing}"),
        2: ("ndarray (512, 512) float64 on cpu", thing),
    }
    del holder, tensors, view, numbers


class Hostile:
    """An object that fails at whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"read {name}")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    def __len__(self) -> int:
        raise RuntimeError("measured")


@pytest.mark.usefixtures("small_heap")
def test_hostile_objects_and_dead_proxies_are_left_alone(profiler: MemoryProfiler) -> None:
    dead = weakref.proxy(Thing())
    kept = [Hostile(), {"key": Hostile()}, dead]
    holder = Hostile()
    object.__setattr__(holder, "array", np.zeros(2 * MIB // 8))
    kept.append(holder)
    profiler.log_memory("hostile", show_objects=True)
    large = [row for row in Heap().largest(min_mb=1.5) if str(2 * MIB // 8) in row["object"]]
    assert len(large) == 1 and "Hostile" in large[0]["held by"]
    del kept


@pytest.mark.usefixtures("small_heap")
def test_nothing_is_kept_alive(profiler: MemoryProfiler) -> None:
    array, tensor, thing = np.zeros(MIB // 4), torch.zeros(MIB), Environment()
    profiler.log_memory("here", show_objects=True)
    assert count_living()["environments"] == 1
    references = [weakref.ref(item) for item in (array, tensor, thing)]
    del array, tensor, thing
    assert [reference() for reference in references] == [None] * 3
    assert count_living()["environments"] == 0


V1 = "9:name=systemd:/\n4:memory,hugetlb:/docker/abc\n0::/"
CGROUPS = {
    "v2 tightest": ("0::/some/run", {"some/memory.max": 300, "some/run/memory.max": "max"}, 300),
    "v2 host path not visible": ("0::/../other", {"memory.max": 400}, 400),
    "v1": (V1, {"memory/memory.limit_in_bytes": 120}, 120),
    "v1 without limit": (V1, {"memory/memory.limit_in_bytes": 9223372036854771712 / MIB}, None),
    "junk": ("nonsense\n1:memory", {"memory.max": "", "memory/memory.limit_in_bytes": "-1"}, None),
}


@pytest.mark.parametrize(("membership", "files", "limit_mb"), CGROUPS.values(), ids=CGROUPS)
def test_limit_is_read_from_cgroup_files(
    tmp_path: Path, membership: str, files: dict[str, float | str], limit_mb: float | None
) -> None:
    written(tmp_path / "self", f"{membership}\n")
    for name, value in files.items():
        written(tmp_path / "fs" / name, f"{value if isinstance(value, str) else int(value * MIB)}\n")
    machine_mb = psutil.virtual_memory().total / MIB
    assert memory_limit_mb(tmp_path / "fs", tmp_path / "self") == pytest.approx(limit_mb or machine_mb)


@pytest.mark.parametrize(
    ("factors", "says"),
    [
        (
            {"--a": 3, "sessions": 9, "--b": 4, "bytes": MIB},
            "got 3 --a x 9 sessions x 4 --b x 1,048,576 bytes = 108 MiB; reduce --b",
        ),
        (
            {"days": 5, "tickers": 21, "bytes": MIB},
            "got 5 days x 21 tickers x 1,048,576 bytes = 105 MiB; reduce tickers",
        ),
        ({"--a": 100, "bytes": MIB}, ""),
    ],
)
def test_what_takes_more_than_is_free_names_what_to_reduce(
    monkeypatch: pytest.MonkeyPatch, factors: dict[str, float], says: str
) -> None:
    monkeypatch.setattr("utils.memory_guard.free_memory_mb", lambda: 100.0)
    with (
        pytest.raises(ConfigError, match=f"^expected it to fit into 100 MiB of free memory, {says}$")
        if says
        else nullcontext()
    ):
        require_memory("it", factors)


def test_guard_compares_resident_memory_with_its_limit() -> None:
    MemoryGuard(limit_mb=1e9).check()
    with pytest.raises(MemoryLimitReached, match="exceeds the limit of 1 MiB"):
        MemoryGuard(limit_mb=1).check()
