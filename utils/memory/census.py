"""A census of the heap: objects by type, the memory that tensors and arrays occupy, and what holds the largest.

Of foreign objects only the type is read, so that proxies stay untouched.
"""

from __future__ import annotations

import contextlib
import gc
import operator
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import compress
from types import CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from utils.memory.guard import MB
from utils.memory.leaks import GRAPH, HOLDINGS, LIBRARY, OWNERS, TYPE, Cause
from utils.tables import table

CHUNK_OBJECTS = 20_000
MAX_GRAPH_NODES = 200_000
MAX_HOLDERS = 6
MAX_KEY_CHARACTERS = 40
# A tensor asked for its storage makes a Python object that lives as long: our doing, not a leak.
UNCOUNTED = (torch.UntypedStorage, torch.Tensor, np.ndarray, type(None), bool)
FIGURE_TYPE = "matplotlib.figure.Figure"
UNKNOWN_HOLDER = "a running function or an extension module"
_COLLECTIONS = (list, tuple, set, frozenset, deque)
_PLACES: dict[type, Callable[[Any], str]] = {
    ModuleType: lambda module: f"module {module.__name__}",
    FunctionType: lambda function: f"function {function.__module__}.{function.__qualname__}",
    type: lambda kind: f"class {type_name(kind)}",
    GeneratorType: lambda generator: f"local variable of {generator.__qualname__}",
    CoroutineType: lambda coroutine: f"local variable of {coroutine.__qualname__}",
    FrameType: lambda frame: f"frame of {frame.f_code.co_qualname}, kept by a traceback",
}
"""Holders that are places in the source, and their descriptions."""


class Storage(NamedTuple):
    """A range of memory and the tensors, arrays or byte strings that share it, its owner first."""

    device: str
    low: int
    high: int
    members: list[Any]


class Heap:
    """The objects alive now, uncollected garbage included. It keeps them alive: drop it as soon as it is read."""

    def __init__(self, ignored: type | None = None) -> None:
        """Find all objects except those of exactly the type `ignored`; takes 1 s for 500,000 of them."""
        # No inner scope may use `self`: its cell would be among the objects, and so keep them alive.
        tracked = [item for item in gc.get_objects() if type(item) is not Heap and type(item) is not ignored]
        self.kinds = {id(kind): kind for kind in map(type, tracked)}
        self.references: Counter[int] = Counter()
        """References by the identity of the type that they refer to."""
        self.untracked = untracked = dict[int, Any]()
        """Arrays, byte strings and simple dicts and tuples: found through the objects that the collector tracks."""
        wanted = set(map(id, (bytes, bytearray, dict, tuple))) | _with_subclasses(np.ndarray)
        for start in range(0, len(tracked), CHUNK_OBJECTS):
            holders = tracked[start : start + CHUNK_OBJECTS]
            # A heap has millions of references: work per reference runs in the interpreter's own loops.
            while holders:
                found = gc.get_referents(*holders)
                kinds = list(map(type, found))
                keys = list(map(id, kinds))
                self.references.update(keys)
                self.kinds.update(zip(keys, kinds, strict=True))
                chosen = compress(found, map(wanted.__contains__, keys))
                new = {id(item): item for item in chosen if id(item) not in untracked and not gc.is_tracked(item)}
                untracked.update(new)
                holders = list(new.values())
        self.objects = [*tracked, *untracked.values()]
        self.by_type = Counter(map(id, map(type, self.objects)))
        self.tensors = self.of_types(_with_subclasses(torch.Tensor))
        self.arrays = self.of_types(_with_subclasses(np.ndarray))

    def of_types(self, wanted: set[int]) -> list[Any]:
        """Return the objects of exactly the types with these identities."""
        return list(compress(self.objects, map(wanted.__contains__, map(id, map(type, self.objects)))))

    def counts(self) -> dict[str, int]:
        """Count objects, the bytes of tensors and arrays (shared memory once), and nodes of autograd's graph."""
        found = {"tensors": len(self.tensors), "arrays": len(self.arrays), "tensor_bytes": 0, "array_bytes": 0}
        for storage in find_storages([*self.tensors, *self.arrays]):
            is_array = issubclass(type(storage.members[0]), np.ndarray)
            found["array_bytes" if is_array else "tensor_bytes"] += storage.high - storage.low
        sizes = {"lists": self.by_type[id(list)], "dicts": self.by_type[id(dict)], "objects": len(self.objects)}
        return {**found, **sizes, "graph_nodes": count_graph_nodes(self.tensors)}

    def causes(self, living: Mapping[str, int]) -> Counter[Cause]:
        """Count all that may leak; `living` are objects by tracked label."""
        found = Counter({Cause(label.replace("_", " "), OWNERS): count for label, count in living.items()})
        found[Cause("retained graph", GRAPH)] = count_graph_nodes(self.tensors)
        found[Cause("tensors", HOLDINGS)] = len(self.tensors)
        found[Cause("arrays", HOLDINGS)] = len(self.arrays)
        for key, kind in self.kinds.items():
            if not issubclass(kind, UNCOUNTED):
                # Numbers and strings are not tracked: references to them are counted instead.
                is_counted = key in self.by_type
                found[_cause(type_name(kind), is_counted)] += (self.by_type if is_counted else self.references)[key]
        return found


def _cause(name: str, is_counted: bool) -> Cause:
    if name == FIGURE_TYPE:
        return Cause("figures", OWNERS)
    is_library = "." not in name or name.partition(".")[0] in sys.stdlib_module_names
    # A history that gains a row per visit is no leak unless it holds tensors or arrays.
    rank, least = (LIBRARY, 1000) if not is_counted else (LIBRARY, 50) if is_library else (HOLDINGS, 10)
    return Cause(f"{TYPE} {name}", rank, least)


def type_name(kind: type) -> str:
    """Return `module.qualname`, or the bare name for builtins."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _with_subclasses(kind: type) -> set[int]:
    return {id(kind)}.union(*map(_with_subclasses, type.__subclasses__(kind)))


def find_storages(items: Iterable[Any]) -> list[Storage]:
    """Return the storages of tensors, arrays and byte strings; those that overlap in memory are merged."""
    with torch._C.DisableTorchFunctionSubclass():
        pieces = [piece for item in items for piece in (_storage(item),) if piece.low < piece.high]
    merged: list[Storage] = []
    for piece in sorted(pieces, key=lambda piece: (piece.device, piece.low, -piece.high, _rank(piece.members[0]))):
        last = merged[-1] if merged else None
        if last is not None and last.device == piece.device and piece.low < last.high:
            merged[-1] = last._replace(high=max(last.high, piece.high))
            last.members.extend(piece.members)
        else:
            merged.append(piece)
    return merged


def _storage(item: Any) -> Storage:
    if issubclass(type(item), torch.Tensor):
        try:
            storage = item.untyped_storage()
            low, device = storage.data_ptr(), str(storage.device)
            return Storage(device, low, low + storage.nbytes() if low else 0, [item])
        except Exception:  # sparse and fake tensors have none
            return Storage("", 0, 0, [item])
    if not issubclass(type(item), np.ndarray):
        return Storage("cpu", *byte_bounds(np.frombuffer(item, np.uint8)), [item])
    owner = item
    while issubclass(type(owner.base), np.ndarray):
        owner = owner.base
    return Storage("cpu", *byte_bounds(np.asarray(owner)), [owner, item]) if owner.size else Storage("", 0, 0, [item])


def _rank(owner: Any) -> int:
    """Order owners of the same memory: byte strings, arrays that allocated it, tensors, arrays that borrow it."""
    if issubclass(type(owner), np.ndarray):
        return 1 if owner.flags.owndata else 3
    return 2 if issubclass(type(owner), torch.Tensor) else 0


def count_graph_nodes(tensors: Iterable[torch.Tensor]) -> int:
    """Count the autograd nodes that these tensors keep alive, up to MAX_GRAPH_NODES."""
    found: dict[int, Any] = {}  # the wrappers are kept: identities of freed ones would be reused
    waiting: list[Any] = []
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors:
            with contextlib.suppress(Exception):  # of a view whose base was changed in place
                waiting.append(tensor.grad_fn)
    while waiting and len(found) < MAX_GRAPH_NODES:
        node = waiting.pop()
        if node is not None and id(node) not in found:
            found[id(node)] = node
            waiting += [following for following, _ in node.next_functions]
    return len(found)


def largest_objects(heap: Heap, min_mb: float = 10.0, top: int = 20) -> list[dict[str, Any]]:
    """Describe the `top` largest objects of at least `min_mb` MiB, largest first; each holder takes about 0.1 s.

    The size is that of the memory, not of one view of it, and of a container without its items.
    """
    blobs = [blob for blob in heap.of_types({id(bytes), id(bytearray)}) if len(blob) >= min_mb * MB]
    found: list[tuple[dict[str, Any], list[Any]]] = []
    with torch._C.DisableTorchFunctionSubclass():
        for storage in find_storages([*heap.tensors, *heap.arrays, *blobs]):
            if (mb := (storage.high - storage.low) / MB) >= min_mb:
                members = list({id(member): member for member in storage.members}.values())
                data = np.frombuffer(members[0], np.uint8) if type(members[0]) in (bytes, bytearray) else members[0]
                dtype, shape = str(data.dtype).removeprefix("torch."), tuple(data.shape)
                row = {"kind": type(members[0]).__name__, "dtype": dtype, "device": storage.device, "shape": shape}
                found.append(({"mb": mb, **row, "views": len(members)}, members))
    for item in heap.of_types(set(map(id, (dict, *_COLLECTIONS)))):
        if (mb := sys.getsizeof(item) / MB) >= min_mb:
            row = {"kind": type(item).__name__, "dtype": "references", "device": "cpu", "shape": (len(item),)}
            found.append(({"mb": mb, **row, "views": 1}, [item]))
    found.sort(key=lambda pair: -pair[0]["mb"])
    scanned = set(map(id, heap.objects))  # anything else, such as these lists, is our own
    return [{**row, "held by": _held_by(members, heap, scanned)} for row, members in found[:top]]


def large_object_table(heap: Heap, min_mb: float = 10.0) -> str:
    """Return the largest objects of at least `min_mb` MiB as a table."""
    columns = ("mb", "kind", "dtype", "device", "shape", "views", "held by")
    return table(largest_objects(heap, min_mb), columns)


def _held_by(members: list[Any], heap: Heap, scanned: set[int]) -> str:
    """Describe the holders of the first of up to three members that has any, from the nearest outwards."""
    for target in members[:3]:
        links: list[str] = []
        seen, is_place = {id(target)}, False
        while len(links) < MAX_HOLDERS and not is_place:
            holders = [item for item in _holders(target, heap) if id(item) in scanned and id(item) not in seen]
            if not holders:
                break
            holder = min(holders, key=_remoteness)
            is_place = _remoteness(holder) == 0
            links.append(_link(holder, target))
            seen.add(id(holder))
            target = holder
        if links:
            return " in ".join(links)
    return UNKNOWN_HOLDER


def _holders(target: Any, heap: Heap) -> list[Any]:
    """Return the objects that refer directly to the target."""
    found = gc.get_referrers(target)
    if not gc.is_tracked(target):
        # Only something untracked can sit in an untracked dict or tuple.
        is_target = partial(operator.is_, target)
        found += [item for item in heap.untracked.values() if any(map(is_target, gc.get_referents(item)))]
    return found


def _remoteness(holder: Any) -> int:
    """Return less for holders that say more about where to look."""
    kind = type(holder)
    return 0 if issubclass(kind, tuple(_PLACES)) else 2 if issubclass(kind, (dict, *_COLLECTIONS)) else 1


def _link(holder: Any, target: Any) -> str:
    """Describe a holder of the target, past any override of its class."""
    kind = type(holder)
    try:
        if describe := next((text for place, text in _PLACES.items() if issubclass(kind, place)), None):
            return describe(holder)
        if issubclass(kind, _COLLECTIONS):
            return f"{kind.__name__} of {len(holder):,} items"
        items = holder if kind is dict else object.__getattribute__(holder, "__dict__")
        key = next(key for key, value in list(items.items()) if value is target)
        text = repr(key)[:MAX_KEY_CHARACTERS] if type(key) in (str, int) else type_name(type(key))
        return f"key {text}" if kind is dict else f"attribute {text} of {type_name(kind)}"
    except Exception:
        return type_name(kind)
