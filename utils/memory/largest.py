"""The largest objects of the process and the objects that refer to them."""

from __future__ import annotations

import gc
import operator
import sys
import tracemalloc
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import CellType, CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
import torch

from utils.memory.guard import MB
from utils.memory.heap import Heap, Storage, find_storages, type_name
from utils.tables import table

MAX_HOPS = 6
MAX_KEY_CHARACTERS = 40
UNKNOWN_REFERRER = "a running function or an extension module"
_ITEM_HOLDERS = frozenset(map(id, (list, tuple, set, frozenset, deque)))
_CONTAINERS = _ITEM_HOLDERS | {id(dict)}
_REMOTENESS = {id(ModuleType): 0, id(dict): 2, id(CellType): 3, id(FrameType): 4} | dict.fromkeys(_ITEM_HOLDERS, 3)
"""Less for holders that say more about where to look; 1 for others."""


@dataclass(frozen=True, slots=True)
class LargeObject:
    """A storage or container, described without referring to it."""

    kind: str  # `tensor`, `array`, `memmap`, `bytes`, `bytearray` or the name of a builtin container
    shape: tuple[int, ...]
    dtype: str
    device: str
    mb: float  # size of the storage in MiB, not of one view of it; the virtual size for a memmap
    views: int = 1  # tensors and arrays that share the storage
    referrer: str = UNKNOWN_REFERRER  # the objects that keep it alive, from the nearest outwards


def largest_objects(heap: Heap, min_mb: float = 10.0, top: int = 20) -> list[LargeObject]:
    """Return the `top` largest objects of at least `min_mb` MiB, largest first; each referrer takes about 0.1 s."""
    candidates = [*_large_storages(heap, min_mb * MB), *_large_containers(heap, min_mb * MB)]
    candidates.sort(key=lambda candidate: -candidate[0].mb)
    scanned = set(map(id, heap.objects))  # anything else, such as these lists, is the profiler's own
    return [replace(found, referrer=_referrer(targets, heap, scanned)) for found, targets in candidates[:top]]


def large_object_table(heap: Heap, min_mb: float = 10.0) -> str:
    """Return the largest objects of at least `min_mb` MiB as a table."""
    rows = [asdict(item) for item in largest_objects(heap, min_mb)]
    return table(rows, ("mb", "kind", "dtype", "device", "shape", "views", "referrer"))


def allocation_table(earlier: tracemalloc.Snapshot | None, top: int = 10) -> tuple[tracemalloc.Snapshot, str]:
    """Return the lines of code whose living allocations grew most since an earlier snapshot, with a new snapshot."""
    taken = tracemalloc.take_snapshot()
    rows = [
        {"mb": grown.size / MB, "change": grown.size_diff / MB, "blocks": grown.count, "allocated at": grown.traceback}
        for grown in taken.compare_to(earlier or tracemalloc.Snapshot((), 1), "lineno")[:top]
    ]
    return taken, table(rows, ("mb", "change", "blocks", "allocated at"))


Candidate = tuple[LargeObject, list[Any]]
"""A description without its referrer, and the objects whose referrers to find."""


def _large_storages(heap: Heap, min_bytes: float) -> Iterator[Candidate]:
    for storage in find_storages(heap.tensors, heap.arrays.values(), heap.blobs.values()):
        if storage.high - storage.low >= min_bytes:
            members = {id(member): member for member in storage.members}
            with torch._C.DisableTorchFunctionSubclass():
                yield _describe(storage, len(members)), list(members.values())


def _describe(storage: Storage, views: int) -> LargeObject:
    owner, mb = storage.members[0], (storage.high - storage.low) / MB
    if isinstance(owner, bytes | bytearray):
        return LargeObject(type(owner).__name__, (len(owner),), "uint8", "cpu", mb, views)
    kind = "tensor" if isinstance(owner, torch.Tensor) else "memmap" if isinstance(owner, np.memmap) else "array"
    return LargeObject(kind, tuple(owner.shape), str(owner.dtype).removeprefix("torch."), storage.device, mb, views)


def _large_containers(heap: Heap, min_bytes: float) -> Iterator[Candidate]:
    """Find builtin containers that are that large without their items."""
    for item in heap.of_types(_CONTAINERS):
        size = sys.getsizeof(item)
        if size >= min_bytes:
            yield LargeObject(type(item).__name__, (len(item),), "references", "cpu", size / MB), [item]


def _referrer(targets: list[Any], heap: Heap, scanned: set[int]) -> str:
    """Describe the holders of the first of up to three targets that has any, from the nearest outwards."""
    for target in targets[:3]:
        links: list[str] = []
        seen, is_named = {id(target)}, False
        while len(links) < MAX_HOPS and not is_named:
            holders = [item for item in _holders(target, heap) if id(item) in scanned and id(item) not in seen]
            if not holders:
                break
            holder = min(holders, key=lambda item: _REMOTENESS.get(id(type(item)), 1))
            text, is_named = _link(holder, target)
            links.append(text)
            seen.add(id(holder))
            target = holder
        if links:
            return " in ".join(links)
    return UNKNOWN_REFERRER


def _holders(target: Any, heap: Heap) -> Iterator[Any]:
    """Find the objects that refer directly to the target."""
    yield from gc.get_referrers(target)
    if not gc.is_tracked(target):
        # Only something untracked can sit in an untracked dict or tuple.
        is_target = partial(operator.is_, target)
        yield from (item for item in heap.containers.values() if any(map(is_target, gc.get_referents(item))))


def _link(holder: Any, target: Any) -> tuple[str, bool]:
    """Describe a holder, and return whether it is a place in the source, where the search may end."""
    kind = type(holder)
    if kind is ModuleType:
        return f"module {holder.__name__}", True
    if kind is FunctionType:
        return f"function {holder.__module__}.{holder.__qualname__}", True
    if kind is GeneratorType or kind is CoroutineType:
        return f"local variable of {holder.__qualname__}", True
    if kind is FrameType:
        return f"frame of {holder.f_code.co_qualname}, kept by a traceback", True
    if issubclass(kind, type):
        return f"class {type_name(holder)}", True
    if kind is dict:
        return f"key {_key_of(target, holder)}", False
    if id(kind) in _ITEM_HOLDERS:
        return f"{kind.__name__} of {len(holder):,} items", False
    return "a closure" if kind is CellType else _attribute_text(holder, target), False


def _key_of(target: Any, holder: dict[Any, Any]) -> str:
    key = next((key for key, value in list(holder.items()) if value is target), None)
    text = repr(key) if type(key) is str or type(key) is int else type_name(type(key))
    return text if len(text) <= MAX_KEY_CHARACTERS else text[:MAX_KEY_CHARACTERS] + "..."


def _attribute_text(holder: Any, target: Any) -> str:
    """Name the attribute in the instance's own dict, read past any override of its class; else the type only."""
    kind = type_name(type(holder))
    try:
        own = object.__getattribute__(holder, "__dict__")
        name = next((name for name, value in list(own.items()) if value is target), None)
    except Exception:
        name = None
    return kind if name is None else f"attribute {name!r} of {kind}"
