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
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from utils.memory.guard import MB
from utils.memory.leaks import FIGURES, GRAPH, TYPE
from utils.tables import table

MIN_BLOB_BYTES = 2**16
MAX_GRAPH_NODES = 200_000
MAX_HOLDERS = 6
MAX_MEMBERS = 3
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
        """Find all objects except those of exactly the type `ignored`; takes half a second for 500,000 of them."""
        # No inner scope may use `self`: its cell would be among the objects, and so keep them alive.
        tracked = [item for item in gc.get_objects() if type(item) is not Heap and type(item) is not ignored]
        self.untracked = untracked = dict[int, Any]()
        """Arrays, byte strings and simple dicts and tuples: found through the objects that the collector tracks."""
        wanted = set(map(id, (bytes, bytearray, dict, tuple))) | _with_subclasses(np.ndarray)
        holders = tracked
        while holders:
            # A heap has millions of references: work per reference runs in the interpreter's own loops.
            found = gc.get_referents(*holders)
            chosen = compress(found, map(wanted.__contains__, map(id, map(type, found))))
            large = (item for item in chosen if type(item) is not bytes or len(item) >= MIN_BLOB_BYTES)
            new = {id(item): item for item in large if id(item) not in untracked and not gc.is_tracked(item)}
            untracked.update(new)
            holders = list(new.values())
        self.objects = [*tracked, *untracked.values()]
        kinds = list(map(type, self.objects))
        self.by_type = Counter(map(id, kinds))
        self.kinds = {id(kind): kind for kind in kinds}
        self.tensors = self.of_types(_with_subclasses(torch.Tensor))
        self.arrays = self.of_types(_with_subclasses(np.ndarray))

    def of_types(self, wanted: set[int]) -> list[Any]:
        """Return the objects of exactly the types with these identities."""
        return list(compress(self.objects, map(wanted.__contains__, map(id, map(type, self.objects)))))

    def counts(self) -> dict[str, int]:
        """Count objects, the bytes of tensors and arrays (shared memory once), and nodes of autograd's graph."""
        found = {"tensors": len(self.tensors), "arrays": len(self.arrays), "tensor_bytes": 0, "array_bytes": 0}
        for _, low, high, members in find_storages([*self.arrays, *self.tensors]):
            found["array_bytes" if issubclass(type(members[0]), np.ndarray) else "tensor_bytes"] += high - low
        sizes = {"lists": self.by_type[id(list)], "dicts": self.by_type[id(dict)], "objects": len(self.objects)}
        return {**found, **sizes, "graph_nodes": count_graph_nodes(self.tensors)}

    def causes(self, living: Mapping[str, int]) -> Counter[str]:
        """Count by kind all that may leak; `living` are objects by tracked label."""
        found = Counter({label.replace("_", " "): count for label, count in living.items()})
        found |= {GRAPH: count_graph_nodes(self.tensors), "tensors": len(self.tensors), "arrays": len(self.arrays)}
        for key, kind in self.kinds.items():
            if not issubclass(kind, UNCOUNTED):
                name = type_name(kind)
                found[FIGURES if name == FIGURE_TYPE else TYPE + name] += self.by_type[key]
        return found


def type_name(kind: type) -> str:
    """Return `module.qualname`, or the bare name for builtins."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _with_subclasses(kind: type) -> set[int]:
    return {id(kind)}.union(*map(_with_subclasses, type.__subclasses__(kind)))


def find_storages(items: Iterable[Any]) -> list[Storage]:
    """Return the storages of byte strings, arrays and tensors, in this order; those that overlap are merged."""
    with torch._C.DisableTorchFunctionSubclass():
        pieces = [piece for item in items for piece in (_storage(item),) if piece.low < piece.high]
    merged: list[Storage] = []
    for piece in sorted(pieces, key=lambda piece: (piece.device, piece.low, -piece.high)):
        last = merged[-1] if merged else None
        if last is not None and last.device == piece.device and piece.low < last.high:
            merged[-1] = last._replace(high=max(last.high, piece.high))
            last.members.extend(piece.members)
        else:
            merged.append(piece)
    return merged


def _storage(item: Any) -> Storage:
    """Return the memory behind an object, of which it may show a part."""
    owner = item
    while issubclass(type(owner), np.ndarray) and issubclass(type(owner.base), (np.ndarray, torch.Tensor)):
        owner = owner.base
    low = high = 0
    device = "cpu"
    if issubclass(type(owner), torch.Tensor):
        with contextlib.suppress(Exception):  # sparse and fake tensors have none
            storage = owner.untyped_storage()
            device, low = str(storage.device), storage.data_ptr()
            high = low and low + storage.nbytes()
    else:
        array = np.asarray(owner) if issubclass(type(owner), np.ndarray) else np.frombuffer(owner, np.uint8)
        low, high = byte_bounds(array) if array.size else (0, 0)
    return Storage(device, low, high, [owner, item])


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


def large_object_table(heap: Heap, min_mb: float = 10.0) -> str:
    """Return the largest objects of at least `min_mb` MiB as a table."""
    return table(largest_objects(heap, min_mb), ("mb", "object", "held by"))


def largest_objects(heap: Heap, min_mb: float = 10.0, top: int = 20) -> list[dict[str, Any]]:
    """Describe the `top` largest objects of at least `min_mb` MiB, largest first; each holder takes about 0.1 s.

    The size is that of the memory, not of one view of it, and of a container without its items.
    """
    blobs = [blob for blob in heap.of_types({id(bytes), id(bytearray)}) if len(blob) >= min_mb * MB]
    storages = find_storages([*blobs, *heap.arrays, *heap.tensors])
    containers = heap.of_types(set(map(id, (dict, *_COLLECTIONS))))
    found = [(high - low, members) for _, low, high, members in storages if high - low >= min_mb * MB]
    found += [(size, [item]) for item in containers if (size := sys.getsizeof(item)) >= min_mb * MB]
    found.sort(key=lambda pair: -pair[0])
    scanned = set(map(id, heap.objects))  # anything else, such as these lists, is our own
    rows = []
    for size, members in found[:top]:
        distinct = list({id(member): member for member in members}.values())
        chains = (_chain(member, heap, scanned) for member in distinct[:MAX_MEMBERS])
        held_by = " in ".join(next(filter(None, chains), [UNKNOWN_HOLDER]))
        rows.append({"mb": size / MB, "object": _describe(members[0]), "held by": held_by})
    return rows


def _describe(item: Any) -> str:
    name = type(item).__name__
    if issubclass(type(item), (torch.Tensor, np.ndarray)):
        with torch._C.DisableTorchFunctionSubclass():
            return f"{name} {tuple(item.shape)} {item.dtype} on {item.device}"
    return f"{name} of {len(item):,}"


def _chain(target: Any, heap: Heap, scanned: set[int]) -> list[str]:
    """Describe what holds the target, what holds that, and so on to a place in the source."""
    links: list[str] = []
    seen, remoteness = {id(target)}, 1
    while len(links) < MAX_HOLDERS and remoteness:
        holders = gc.get_referrers(target)
        if not gc.is_tracked(target):
            # Only something untracked can sit in an untracked dict or tuple.
            is_target = partial(operator.is_, target)
            holders += [item for item in heap.untracked.values() if any(map(is_target, gc.get_referents(item)))]
        holders = [item for item in holders if id(item) in scanned and id(item) not in seen]
        if not holders:
            break
        holder = min(holders, key=_remoteness)
        remoteness = _remoteness(holder)
        links.append(_link(holder, target))
        seen.add(id(holder))
        target = holder
    return links


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
