"""A census of the heap: objects by type, the memory that tensors and arrays occupy, and what holds the largest.

Of foreign objects only the type is read, so that proxies stay untouched.
"""

import contextlib
import gc
import sys
from collections import Counter, deque
from collections.abc import Iterable
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from utils.memory.guard import MB
from utils.tables import table

# A tensor asked for its storage makes a Python object that lives as long: our doing, not a leak.
UNCOUNTED = (torch.UntypedStorage, torch.Tensor, np.ndarray)
MIN_BLOB_BYTES = 2**16
MAX_LISTED = 20
MAX_HOLDERS = 6
MAX_KEY_CHARACTERS = 40
UNKNOWN_HOLDER = "a running function or an extension module"
_COLLECTIONS = (list, tuple, set, frozenset, deque)
_PLACES = (ModuleType, FunctionType, type, FrameType)
"""Types of holders that are places in the source."""


class Heap:
    """The objects alive now, uncollected garbage included. It keeps them alive: drop it as soon as it is read."""

    def __init__(self) -> None:
        """Find all objects, which takes a second for 500,000 of them."""
        # No inner scope may use `self`: its cell would be among the objects, and so keep them alive.
        tracked = [item for item in gc.get_objects() if type(item) is not Heap]
        untracked: dict[int, Any] = {}
        self.untracked = untracked
        """Arrays, byte strings and simple dicts and tuples: found through the objects that the collector tracks."""
        wanted = set(map(id, (bytes, bytearray, dict, tuple))) | _with_subclasses(np.ndarray)
        holders = tracked
        while holders:
            found = {id(item): item for item in gc.get_referents(*holders) if id(type(item)) in wanted}
            large = (item for item in found.values() if type(item) is not bytes or len(item) >= MIN_BLOB_BYTES)
            holders = [item for item in large if id(item) not in untracked and not gc.is_tracked(item)]
            untracked.update((id(item), item) for item in holders)
        self.objects = [*tracked, *untracked.values()]
        self.tensors = self._of_types(_with_subclasses(torch.Tensor))
        self.arrays = self._of_types(_with_subclasses(np.ndarray))

    def _of_types(self, wanted: set[int]) -> list[Any]:
        """Return the objects of exactly the types with these identities."""
        return [item for item in self.objects if id(type(item)) in wanted]

    def types(self) -> dict[str, int]:
        """Count objects by the name of their type, without tensors and arrays."""
        kinds = [type(item) for item in self.objects]
        counts, by_id = Counter(map(id, kinds)), {id(kind): kind for kind in kinds}
        return {type_name(kind): counts[key] for key, kind in by_id.items() if not issubclass(kind, UNCOUNTED)}

    def counts(self) -> dict[str, int]:
        """Count objects, the bytes of tensors and arrays (shared memory once), and tensors with a graph."""
        sizes = {"array": 0, "tensor": 0}
        for size, members in find_storages([*self.arrays, *self.tensors]):
            sizes["array" if issubclass(type(members[0]), np.ndarray) else "tensor"] += size
        graphs = 0
        with torch._C.DisableTorchFunctionSubclass():
            for tensor in self.tensors:
                with contextlib.suppress(Exception):  # of a view whose base was changed in place
                    graphs += tensor.grad_fn is not None
        containers = {f"{kind.__name__}s": len(self._of_types({id(kind)})) for kind in (list, dict)}
        found = {
            "objects": len(self.objects),
            "tensors": len(self.tensors),
            "arrays": len(self.arrays),
            "retained_graphs": graphs,
        }
        return {**found, **{f"{name}_bytes": size for name, size in sizes.items()}, **containers}

    def largest(self, min_mb: float = 10.0) -> list[dict[str, Any]]:
        """Describe the largest objects of at least `min_mb` MiB, largest first; each holder takes about 0.1 s.

        The size is that of the memory, not of one view of it, and of a container without its items.
        """
        blobs = self._of_types({id(bytes), id(bytearray)})
        containers = self._of_types(set(map(id, (dict, *_COLLECTIONS))))
        found = find_storages([*blobs, *self.arrays, *self.tensors])
        found += [(sys.getsizeof(item), [item]) for item in containers]
        found = sorted((pair for pair in found if pair[0] >= min_mb * MB), key=lambda pair: -pair[0])
        scanned = set(map(id, self.objects))  # anything else, such as these lists, is our own
        rows = []
        for size, members in found[:MAX_LISTED]:
            chains = [self._holders(member, scanned) for member in members[:2]]
            held_by = " in ".join(next(filter(None, chains), [UNKNOWN_HOLDER]))
            rows.append({"mb": size / MB, "object": _describe(members[0]), "held by": held_by})
        return rows

    def _holders(self, target: Any, scanned: set[int]) -> list[str]:
        """Describe what holds the target, what holds that, and so on to a place in the source."""
        links: list[str] = []
        seen, remoteness = {id(target)}, 1
        while len(links) < MAX_HOLDERS and remoteness:
            holders = gc.get_referrers(target)
            if not gc.is_tracked(target):
                # Only something untracked can sit in an untracked dict or tuple.
                untracked = self.untracked.values()
                holders += [item for item in untracked if any(one is target for one in gc.get_referents(item))]
            holders = [item for item in holders if id(item) in scanned and id(item) not in seen]
            if not holders:
                break
            holder = min(holders, key=_remoteness)
            remoteness = _remoteness(holder)
            links.append(_link(holder, target))
            seen.add(id(holder))
            target = holder
        return links


def large_object_table(heap: Heap, min_mb: float = 10.0) -> str:
    """Return the largest objects of at least `min_mb` MiB as a table."""
    return table(heap.largest(min_mb), ("mb", "object", "held by"))


def type_name(kind: type) -> str:
    """Return `module.qualname`, or the bare name for builtins."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _with_subclasses(kind: type) -> set[int]:
    return {id(kind)}.union(*map(_with_subclasses, type.__subclasses__(kind)))


def find_storages(items: Iterable[Any]) -> list[tuple[int, list[Any]]]:
    """Return bytes and members, owner first, of the memory behind byte strings, arrays and tensors, in this order."""
    sizes: dict[tuple[str, int], int] = {}
    members: dict[tuple[str, int], list[Any]] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for item in items:
            owner = item
            while issubclass(type(owner), np.ndarray) and issubclass(type(owner.base), (np.ndarray, torch.Tensor)):
                owner = owner.base
            device, low, size = "cpu", 0, 0
            if issubclass(type(owner), torch.Tensor):
                with contextlib.suppress(Exception):  # sparse and fake tensors have none
                    storage = owner.untyped_storage()
                    device, low, size = str(storage.device), storage.data_ptr(), storage.nbytes()
            else:
                array = owner if issubclass(type(owner), np.ndarray) else np.frombuffer(owner, np.uint8)
                low, high = byte_bounds(array)
                size = high - low
            if low and size:
                sizes[device, low] = max(size, sizes.get((device, low), 0))
                known = members.setdefault((device, low), [owner])
                known[:0] = [owner] * issubclass(type(known[0]), torch.Tensor)  # which may show an array's memory
                known.append(item)
    return [(size, members[place]) for place, size in sizes.items()]


def _describe(item: Any) -> str:
    name = type(item).__name__
    if issubclass(type(item), (torch.Tensor, np.ndarray)):
        with torch._C.DisableTorchFunctionSubclass():
            return f"{name} {tuple(item.shape)} {item.dtype} on {item.device}"
    return f"{name} of {len(item):,}"


def _remoteness(holder: Any) -> int:
    """Return less for holders that say more about where to look."""
    kind = type(holder)
    return 0 if issubclass(kind, _PLACES) else 2 if issubclass(kind, (dict, *_COLLECTIONS)) else 1


def _link(holder: Any, target: Any) -> str:
    """Describe a holder of the target, past any override of its class."""
    kind = type(holder)
    try:
        if issubclass(kind, _PLACES):
            return repr(holder)
        if issubclass(kind, _COLLECTIONS):
            return f"{kind.__name__} of {len(holder):,} items"
        items = holder if kind is dict else object.__getattribute__(holder, "__dict__")
        key = next(key for key, value in list(items.items()) if value is target)
        text = repr(key)[:MAX_KEY_CHARACTERS] if type(key) in (str, int) else type_name(type(key))
        return f"key {text}" if kind is dict else f"attribute {text} of {type_name(kind)}"
    except Exception:
        return type_name(kind)
