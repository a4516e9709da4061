"""A census of the heap: objects by type, and tensors and arrays by the storage that they really occupy.

Arrays, byte strings, and dicts and tuples of only such objects, which the garbage collector does not track, are found
through the objects that it tracks. Only `type(obj)` is read of foreign objects, so that proxies stay untouched.
"""

from __future__ import annotations

import gc
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import compress, filterfalse
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

CHUNK_OBJECTS = 20_000
MAX_GRAPH_NODES = 200_000
MIN_BLOB_BYTES = 2**16
HAS_GC_FLAG = 1 << 14  # Py_TPFLAGS_HAVE_GC
CONTAINER_IDS = frozenset(map(id, (dict, tuple)))
BLOB_IDS = frozenset(map(id, (bytes, bytearray)))
# A tensor asked for its storage makes a Python object that lives as long: our doing, not a leak.
UNCOUNTED = (torch.UntypedStorage, torch.Tensor, np.ndarray, type(None), bool)


class Census(NamedTuple):
    """Counts over the heap."""

    counts: dict[str, int]
    """`tensors`, `tensor_bytes`, `arrays`, `array_bytes` (shared storage counts once), `lists`, `dicts`, `objects` and
    `graph_nodes`."""
    types: dict[str, int]  # living objects by type, for types that the garbage collector tracks
    references: dict[str, int]
    """References to objects of the other types (numbers, strings), which cannot be counted themselves."""


@dataclass(slots=True)
class Storage:
    """A range of memory and the tensors, arrays and byte strings that share it, its owner first."""

    device: str = ""
    low: int = 0
    high: int = 0
    rank: int = 0  # orders storages that begin at the same address
    members: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Heap:
    """The objects alive now. It keeps them alive: drop it as soon as it is read. Keys are identities."""

    objects: list[Any] = field(default_factory=list)
    """Tracked objects, then the untracked dicts and tuples below them."""
    containers: dict[int, Any] = field(default_factory=dict)  # the untracked dicts and tuples
    tensors: list[torch.Tensor] = field(default_factory=list)
    arrays: dict[int, Any] = field(default_factory=dict)
    blobs: dict[int, bytes | bytearray] = field(default_factory=dict)
    types: dict[int, type] = field(default_factory=dict)
    references: Counter[int] = field(default_factory=Counter)  # references found to each type

    def of_types(self, wanted: Collection[int]) -> list[Any]:
        """Return the objects of exactly the types with these identities."""
        return list(_of_types(self.objects, map(id, map(type, self.objects)), wanted))


def scan_heap(ignore: Iterable[type] = ()) -> Heap:
    """Find the objects alive now, uncollected garbage included, except those of exactly the types `ignore`."""
    tracked = gc.get_objects()
    heap = Heap()
    hidden = {id(kind) for kind in (*ignore, Heap)}
    kinds = list(map(type, tracked))
    heap.types.update(zip(map(id, kinds), kinds, strict=True))
    heap.objects = list(compress(tracked, map(operator.not_, map(hidden.__contains__, map(id, kinds)))))
    for start in range(0, len(heap.objects), CHUNK_OBJECTS):
        _add_referents(heap, heap.objects[start : start + CHUNK_OBJECTS])
    heap.objects.extend(heap.containers.values())
    heap.tensors = heap.of_types({key for key, kind in heap.types.items() if issubclass(kind, torch.Tensor)})
    return heap


def take_census(heap: Heap) -> Census:
    """Count what a scan found."""
    sizes = {"tensor_bytes": 0, "array_bytes": 0}
    for storage in find_storages(heap.tensors, heap.arrays.values()):
        is_array = issubclass(type(storage.members[0]), np.ndarray)
        sizes["array_bytes" if is_array else "tensor_bytes"] += storage.high - storage.low
    by_type = Counter(map(id, map(type, heap.objects)))
    counted = {key: kind for key, kind in heap.types.items() if not issubclass(kind, UNCOUNTED)}
    untracked = {key: kind for key, kind in counted.items() if not kind.__flags__ & HAS_GC_FLAG}
    return Census(
        {
            "tensors": len(heap.tensors),
            "arrays": len(heap.arrays),
            **sizes,
            "lists": by_type[id(list)],
            "dicts": by_type[id(dict)],
            "objects": len(heap.objects) - by_type[id(torch.UntypedStorage)],
            "graph_nodes": count_graph_nodes(heap.tensors),
        },
        types=_by_name(counted, by_type),
        references=_by_name(untracked, heap.references),
    )


def type_name(kind: type) -> str:
    """Return `module.qualname`, or the bare name for builtins."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def find_storages(
    tensors: Iterable[torch.Tensor], arrays: Iterable[Any], blobs: Iterable[bytes | bytearray] = ()
) -> list[Storage]:
    """Return the storages of the given objects; those that overlap in memory are merged."""
    with torch._C.DisableTorchFunctionSubclass():
        pieces = [*map(_tensor_storage, tensors), *map(_array_storage, arrays)]
        pieces += [Storage("cpu", *byte_bounds(np.frombuffer(blob, np.uint8)), 0, [blob]) for blob in blobs]
    merged: list[Storage] = []
    for piece in sorted(pieces, key=lambda piece: (piece.device, piece.low, -piece.high, piece.rank)):
        last = merged[-1] if merged else None
        if last is not None and last.device == piece.device and piece.low < min(last.high, piece.high):
            last.high = max(last.high, piece.high)
            last.members += piece.members
        elif piece.low < piece.high:
            merged.append(piece)
    return merged


def count_graph_nodes(tensors: Iterable[torch.Tensor]) -> int:
    """Count the autograd nodes that these tensors keep alive, up to MAX_GRAPH_NODES."""
    with torch._C.DisableTorchFunctionSubclass():
        waiting = [node for tensor in tensors if (node := _gradient_node(tensor)) is not None]
    # The wrappers are kept: identities of freed ones would be reused.
    found = {id(node): node for node in waiting}
    waiting = list(found.values())
    while waiting and len(found) < MAX_GRAPH_NODES:
        for node, _ in waiting.pop().next_functions:
            if node is not None and id(node) not in found:
                found[id(node)] = node
                waiting.append(node)
    return len(found)


def _by_name(kinds: dict[int, type], counts: Counter[int]) -> dict[str, int]:
    named: Counter[str] = Counter()
    for key, kind in kinds.items():
        if counts[key]:
            named[type_name(kind)] += counts[key]
    return dict(named)


def _add_referents(heap: Heap, owners: list[Any]) -> None:
    """Add the arrays, byte strings and untracked containers that `owners` refer to, and those below them."""
    # A heap has millions of references: work per reference runs in the interpreter's own loops.
    while owners:
        found = gc.get_referents(*owners)
        kinds = list(map(type, found))
        keys = list(map(id, kinds))
        counts = Counter(keys)
        heap.references.update(counts)
        if not counts.keys() <= heap.types.keys():
            heap.types.update(zip(keys, kinds, strict=True))
        array_ids = {key for key in counts if issubclass(heap.types[key], np.ndarray)}
        heap.arrays.update((id(item), item) for item in _of_types(found, keys, array_ids))
        blobs = _of_types(found, keys, BLOB_IDS)
        heap.blobs.update((id(item), item) for item in blobs if len(item) >= MIN_BLOB_BYTES)
        inner = filterfalse(gc.is_tracked, _of_types(found, keys, CONTAINER_IDS))
        new = {id(item): item for item in inner if id(item) not in heap.containers}
        heap.containers.update(new)
        owners = list(new.values())


def _of_types(found: list[Any], keys: Iterable[int], wanted: Collection[int]) -> Iterator[Any]:
    return compress(found, map(wanted.__contains__, keys))


def _tensor_storage(tensor: torch.Tensor) -> Storage:
    try:
        storage = tensor.untyped_storage()
        device, low, size = str(storage.device), storage.data_ptr(), storage.nbytes()
    except Exception:  # sparse and fake tensors have none
        return Storage()
    return Storage() if device == "meta" else Storage(device, low, low + size if low else 0, 2, [tensor])


def _array_storage(array: Any) -> Storage:
    root = array
    while issubclass(type(root), np.ndarray):
        owner, root = root, root.base
        if type(root).__name__ == "DummyArray":  # numpy's as_strided puts this holder in between
            root = root.base
    plain = np.asarray(owner)
    low, high = byte_bounds(plain) if plain.size else (0, 0)
    rank = 1 if owner.flags.owndata else 3
    return Storage("cpu", low, high, rank, [owner] if array is owner else [owner, array])


def _gradient_node(tensor: torch.Tensor) -> Any:
    try:
        return tensor.grad_fn
    except Exception:
        return None
