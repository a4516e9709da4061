"""A census of the heap: objects by type, and tensors and arrays by the storage that they really occupy.

Arrays, byte strings and the dicts and tuples that hold only such things are unknown to the garbage collector, so they
are found through the objects that it tracks and through the local variables of running functions.
Types are told by `type(obj)` alone and no attribute of a foreign object is read, so proxies stay untouched.
"""

from __future__ import annotations

import gc
import operator
import sys
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, filterfalse
from types import FrameType
from typing import Any

import numpy as np
import torch

CHUNK_OBJECTS = 20_000
MAX_GRAPH_NODES = 200_000
MAX_STACK_FRAMES = 2_000
HAS_GC_FLAG = 1 << 14  # Py_TPFLAGS_HAVE_GC
OPTIMIZED_CODE = 1  # CO_OPTIMIZED: the code of a function, not of a module or class body
MIN_BLOB_BYTES = 2**16
CONTAINER_IDS = frozenset({id(dict), id(tuple)})

# Read through `type` itself, so that a metaclass cannot answer instead.
_type_module = type.__dict__["__module__"].__get__
_type_qualname = type.__dict__["__qualname__"].__get__
_type_flags = type.__dict__["__flags__"].__get__
# Read through ndarray itself, so that a subclass cannot answer instead.
_array_base = np.ndarray.__dict__["base"].__get__
_array_interface = np.ndarray.__dict__["__array_interface__"].__get__
_array_shape = np.ndarray.__dict__["shape"].__get__
_array_strides = np.ndarray.__dict__["strides"].__get__
_array_flags = np.ndarray.__dict__["flags"].__get__
_array_itemsize = np.ndarray.__dict__["itemsize"].__get__

# Asking a tensor for its storage makes a Python object that lives as long as the storage: our doing, not a leak.
_UNCOUNTED = (torch.UntypedStorage, torch.Tensor, np.ndarray, type(None), bool)


@dataclass(frozen=True, slots=True)
class Census:
    """Counts over the heap; shared storage counts once in the bytes."""

    tensors: int
    tensor_bytes: int
    arrays: int
    array_bytes: int
    objects: int
    graph_nodes: int
    """Autograd nodes reachable from living tensors."""
    types: dict[str, int]
    """Living objects by type, for types that the garbage collector follows."""
    references: dict[str, int]
    """References to objects of the other types (numbers, strings), which cannot be counted themselves."""


@dataclass(slots=True)
class Storage:
    """A piece of memory and the tensors, arrays and byte strings that share it."""

    device: str
    low: int
    high: int
    members: list[tuple[tuple[int, int], object]]
    """(rank, object): the member of the highest rank owns the storage."""

    @property
    def owner(self) -> Any:
        """The object that the storage belongs to."""
        return max(self.members, key=lambda member: member[0])[1]


@dataclass(slots=True)
class Heap:
    """The objects alive now. It keeps them alive: drop it as soon as it is read."""

    objects: list[Any] = field(default_factory=list)
    """Tracked objects, then the untracked dicts and tuples below them."""
    containers: dict[int, Any] = field(default_factory=dict)
    """The untracked dicts and tuples, by identity."""
    tensors: list[torch.Tensor] = field(default_factory=list)
    arrays: dict[int, Any] = field(default_factory=dict)
    blobs: dict[int, bytes | bytearray] = field(default_factory=dict)
    local_names: dict[int, str] = field(default_factory=dict)
    """Description of the local variable, by identity of the value."""
    types: dict[int, type] = field(default_factory=dict)
    references: Counter[int] = field(default_factory=Counter)
    """References found to each type, by the type's identity."""

    def of_type(self, *bases: type) -> list[Any]:
        """The objects whose type is, or derives from, one of `bases`."""
        wanted = {key for key, kind in self.types.items() if _derives(kind, bases)}
        return _select(self.objects, wanted)

    def internals(self) -> set[int]:
        """Identities of this object's own collections, which also refer to everything found."""
        return {id(getattr(self, name)) for name in self.__slots__} | {id(self)}


def scan_heap(ignore: Iterable[type] = ()) -> Heap:
    """Find the objects alive now, garbage not yet collected included, except those of exactly the types `ignore`."""
    tracked = gc.get_objects()
    heap = Heap()
    hidden = {id(kind) for kind in (*ignore, Heap)}
    kinds = list(map(type, tracked))
    heap.types.update(zip(map(id, kinds), kinds, strict=True))
    heap.objects = list(compress(tracked, map(operator.not_, map(hidden.__contains__, map(id, kinds)))))
    for start in range(0, len(heap.objects), CHUNK_OBJECTS):
        _follow(heap, heap.objects[start : start + CHUNK_OBJECTS])
    local_values = []
    for name, value in _stack_locals():
        heap.local_names[id(value)] = name
        local_values.append(value)
    _follow(heap, [local_values])
    heap.objects.extend(heap.containers.values())
    heap.tensors = heap.of_type(torch.Tensor)
    return heap


def take_census(heap: Heap) -> Census:
    """Count what a scan found."""
    tensor_bytes = array_bytes = 0
    for storage in find_storages(heap.tensors, heap.arrays.values()):
        size = storage.high - storage.low
        if _derives(type(storage.owner), (np.ndarray,)):
            array_bytes += size
        else:
            tensor_bytes += size
    counts = Counter(map(id, map(type, heap.objects)))
    counted = {key for key, kind in heap.types.items() if not _derives(kind, _UNCOUNTED)}
    return Census(
        tensors=len(heap.tensors),
        tensor_bytes=tensor_bytes,
        arrays=len(heap.arrays),
        array_bytes=array_bytes,
        objects=len(heap.objects) - sum(n for key, n in counts.items() if heap.types[key] is torch.UntypedStorage),
        graph_nodes=count_graph_nodes(heap.tensors),
        types=_named(heap, {key: n for key, n in counts.items() if key in counted}),
        references=_named(
            heap,
            {k: n for k, n in heap.references.items() if k in counted and not _type_flags(heap.types[k]) & HAS_GC_FLAG},
        ),
    )


def type_name(kind: type) -> str:
    """`module.qualname`, or the bare name for builtins."""
    module, name = _type_module(kind), str(_type_qualname(kind))
    return name if module == "builtins" else f"{module}.{name}"


def is_one_of(kind: type, kinds: Sequence[type]) -> bool:
    """Whether a type is exactly one of some others; `in` would ask a metaclass that compares in its own way."""
    return any(kind is other for other in kinds)


def find_storages(
    tensors: Iterable[torch.Tensor], arrays: Iterable[Any], blobs: Iterable[bytes | bytearray] = ()
) -> list[Storage]:
    """Storages behind the given objects; those that overlap in memory are one."""
    with torch._C.DisableTorchFunctionSubclass():
        pieces = [piece for tensor in tensors if (piece := _tensor_storage(tensor)) is not None]
    pieces += (_array_storage(array) for array in arrays)
    for blob in blobs:
        view = _array_storage(np.frombuffer(blob, np.uint8))
        pieces.append(Storage(view.device, view.low, view.high, [((view.high - view.low, 3), blob)]))
    pieces.sort(key=lambda piece: (piece.device, piece.low))
    merged: list[Storage] = []
    for piece in pieces:
        if piece.high == piece.low:
            continue
        last = merged[-1] if merged else None
        if last is not None and last.device == piece.device and piece.low < last.high:
            last.high = max(last.high, piece.high)
            last.members += piece.members
        else:
            merged.append(piece)
    return merged


def count_graph_nodes(tensors: Iterable[torch.Tensor]) -> int:
    """Autograd nodes that these tensors keep alive, at most MAX_GRAPH_NODES."""
    with torch._C.DisableTorchFunctionSubclass():
        waiting = [node for tensor in tensors if (node := _gradient_node(tensor)) is not None]
    # The wrappers are kept until the end: identities of freed ones would be used again.
    seen = {id(node): node for node in waiting}
    waiting = list(seen.values())
    while waiting and len(seen) < MAX_GRAPH_NODES:
        for node, _ in waiting.pop().next_functions:
            if node is not None and id(node) not in seen:
                seen[id(node)] = node
                waiting.append(node)
    return len(seen)


def root_array(array: Any) -> Any:
    """The array whose memory this one is a view of, or itself."""
    while True:
        base = _array_base(array)
        if type(base).__name__ == "DummyArray":  # numpy's as_strided puts this holder in between
            base = base.base
        if not _derives(type(base), (np.ndarray,)):
            return array
        array = base


def _derives(kind: type, bases: Sequence[type]) -> bool:
    return any(type.__subclasscheck__(base, kind) for base in bases)


def _select(objects: list[Any], type_ids: set[int]) -> list[Any]:
    return list(compress(objects, map(type_ids.__contains__, map(id, map(type, objects)))))


def _named(heap: Heap, counts: dict[int, int]) -> dict[str, int]:
    named: Counter[str] = Counter()
    for key, count in counts.items():
        named[type_name(heap.types[key])] += count
    return dict(named)


def _follow(heap: Heap, owners: list[Any]) -> None:
    """Find the arrays, byte strings and untracked containers that `owners` refer to, and those below them."""
    # A heap has millions of references: what is done for each of them runs inside the interpreter's own loops.
    while owners:
        found = gc.get_referents(*owners)
        kinds = list(map(type, found))
        keys = list(map(id, kinds))
        counts = Counter(keys)
        heap.references.update(counts)
        if not counts.keys() <= heap.types.keys():
            heap.types.update(zip(keys, kinds, strict=True))
        _keep_arrays(heap, list(_of_kinds(found, keys, {key for key in counts if _is_leaf(heap.types[key])})))
        inner = filterfalse(gc.is_tracked, _of_kinds(found, keys, CONTAINER_IDS))
        new = {id(item): item for item in inner if id(item) not in heap.containers}
        heap.containers.update(new)
        owners = list(new.values())


def _of_kinds(found: list[Any], keys: list[int], wanted: Collection[int]) -> Iterator[Any]:
    return compress(found, map(wanted.__contains__, keys))


def _keep_arrays(heap: Heap, leaves: list[Any]) -> None:
    for item in leaves:
        if not is_one_of(type(item), (bytes, bytearray)):
            heap.arrays[id(item)] = item
        elif len(item) >= MIN_BLOB_BYTES:
            heap.blobs[id(item)] = item


def _is_leaf(kind: type) -> bool:
    return is_one_of(kind, (bytes, bytearray)) or _derives(kind, (np.ndarray,))


def _tensor_storage(tensor: torch.Tensor) -> Storage | None:
    """Where a tensor's storage lies; None for those without one (sparse, meta, fake)."""
    try:
        storage = tensor.untyped_storage()
        device, low, size = str(storage.device), storage.data_ptr(), storage.nbytes()
    except Exception:
        return None
    if device == "meta" or low == 0:
        return None
    return Storage(device, low, low + size, [((size, 1), tensor)])


def _array_storage(array: Any) -> Storage:
    root = root_array(array)
    low = high = _array_interface(root)["data"][0]
    shape = _array_shape(root)
    if 0 not in shape:
        # Strides may be zero or negative where the memory is someone else's.
        steps = [(length - 1) * stride for length, stride in zip(shape, _array_strides(root), strict=True)]
        low += sum(step for step in steps if step < 0)
        high += sum(step for step in steps if step > 0) + _array_itemsize(root)
    owns = 2 if _array_flags(root).owndata else 0
    members: list[tuple[tuple[int, int], object]] = [((high - low, owns), root)]
    if array is not root:
        members.append(((0, 0), array))
    return Storage("cpu", low, high, members)


def _gradient_node(tensor: torch.Tensor) -> Any:
    try:
        return tensor.grad_fn
    except Exception:
        return None


# A frame's view of its locals is one dict that `locals()` also returns: leave functions that use it alone.
_READS_LOCALS = frozenset({"locals", "vars"})


def _stack_locals() -> Iterator[tuple[str, Any]]:
    """(description, value) of the local variables of all running functions but the profiler's own."""
    if sys.gettrace() is not None:
        return  # a debugger writes its view of the locals back into the function
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        for _ in range(MAX_STACK_FRAMES):
            if frame is None:
                break
            yield from _frame_locals(frame)
            frame = frame.f_back


def _frame_locals(frame: FrameType) -> list[tuple[str, Any]]:
    code = frame.f_code
    if (
        not code.co_flags & OPTIMIZED_CODE
        or code.co_filename == __file__
        or not _READS_LOCALS.isdisjoint(code.co_names)
    ):
        return []
    view = frame.f_locals
    values = [(f"local variable {name!r} of {code.co_qualname}", value) for name, value in view.items()]
    if sys.version_info < (3, 13):
        view.clear()  # before PEP 667 this is a copy that would keep the values alive until the function ends
    return values


SHALLOW_TYPES = (list, dict, set, frozenset, tuple, deque)


def large_containers(heap: Heap, min_bytes: int) -> list[tuple[int, Any]]:
    """(bytes, container) of builtin containers whose own table, without the items, is that large."""
    candidates = _select(heap.objects, {id(kind) for kind in SHALLOW_TYPES})
    internals = heap.internals()
    return [
        (size, item)
        for size, item in zip(map(sys.getsizeof, candidates), candidates, strict=True)
        if size >= min_bytes and id(item) not in internals
    ]
