"""A census of the heap: memory of tensors and arrays, the largest objects, and the living of some classes.

Of foreign objects only the type is read, so that proxies stay untouched.
"""

import contextlib
import gc
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import wraps
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np
import torch
from numpy.lib.array_utils import byte_bounds

from utils.memory_guard import MIB
from utils.tables import Rows, table

MAX_LISTED = 20
MAX_HOLDERS = 4
UNKNOWN_HOLDER = "a running function or a plain dict or tuple"
_UNTRACKED = (np.ndarray, bytes, bytearray, dict, tuple)
"""Types whose objects the collector may not track."""
_CONTAINERS = {list, dict, tuple, set, frozenset, deque}
_SIZED = {*_CONTAINERS, bytes, bytearray}
CLASSES = {"environments": "TradingEnvironment", "agents": "DDPGAgent", "replay_buffers": "ReplayBuffer"}
"""Names of the classes by label, as reports show them."""
_living: dict[str, WeakSet[Any]] = {label: WeakSet() for label in CLASSES}
T = TypeVar("T")


class Heap:
    """The objects alive now, uncollected garbage included. It keeps them alive: drop it as soon as it is read."""

    def __init__(self) -> None:
        """Find all objects, which takes a second for 500,000 of them."""
        # No inner scope may use `self`: its cell would be among the objects, and so keep them alive.
        self.objects = [item for item in gc.get_objects() if type(item) is not Heap]
        is_tracked, kinds = gc.is_tracked, _family(*_UNTRACKED)
        holders, known = self.objects, set[int]()
        while holders:
            referents = gc.get_referents(*holders)
            items = {id(item): item for item in referents if type(item) in kinds and not is_tracked(item)}
            holders = [item for key, item in items.items() if key not in known]
            known |= items.keys()
            self.objects += holders
        tensors, arrays = _family(torch.Tensor), _family(np.ndarray)
        self.tensors = [item for item in self.objects if type(item) in tensors]
        self.arrays = [item for item in self.objects if type(item) in arrays]

    def counts(self) -> dict[str, int]:
        """Count objects, the bytes of tensors and arrays (shared memory once), and tensors with a graph."""
        sizes, graphs = {"array_bytes": 0, "tensor_bytes": 0}, 0
        for size, owner, _ in find_storages([*self.arrays, *self.tensors]):
            sizes["array_bytes" if issubclass(type(owner), np.ndarray) else "tensor_bytes"] += size
        with torch._C.DisableTorchFunctionSubclass():
            for tensor in self.tensors:
                with contextlib.suppress(Exception):  # of a view whose base was changed in place
                    graphs += tensor.grad_fn is not None
        counts = {"objects": len(self.objects), "tensors": len(self.tensors), "arrays": len(self.arrays)}
        kinds = Counter(map(type, self.objects))
        return {**counts, "retained_graphs": graphs, **sizes, "lists": kinds[list], "dicts": kinds[dict]}

    def largest(self, min_mb: float) -> Rows:
        """Describe the largest objects of at least `min_mb` MiB, largest first.

        The size is that of the memory, not of one view of it, and of a container without its items.
        """
        sized = [item for item in self.objects if type(item) in _SIZED]
        alone = ((size, item, item) for size, item in zip(map(sys.getsizeof, sized), sized, strict=True))
        storages = chain(find_storages([*self.arrays, *self.tensors]), alone)
        large = sorted((one for one in storages if one[0] >= min_mb * MIB), key=lambda one: -one[0])[:MAX_LISTED]
        held_by = self._held_by([item for _, _, item in large])
        return [
            {"mb": size / MIB, "object": _describe(owner), "held by": holders}
            for (size, owner, _), holders in zip(large, held_by, strict=True)
        ]

    def _held_by(self, items: list[Any]) -> list[str]:
        """Return what holds each object, what holds that, and so on to the first that is no container.

        The heap is searched once for all holders of a level.
        """
        known = set(map(id, self.objects if items else ()))  # anything else, such as these lists, is our own
        links: list[list[str]] = [[] for _ in items]
        followed = dict(enumerate(items))
        for _ in range(MAX_HOLDERS):
            holders = _holders([*followed.values()], known)
            followed = {
                place: min(holders[id(item)], key=lambda one: type(one) in _CONTAINERS)
                for place, item in followed.items()
                if id(item) in holders
            }
            for place, item in followed.items():
                kind = type(item)
                is_named = kind in (ModuleType, FunctionType)
                links[place].append(repr(item) if is_named else f"{kind.__module__}.{kind.__qualname__}")
            followed = {place: item for place, item in followed.items() if type(item) in _CONTAINERS}
        return [" in ".join(link).replace("builtins.", "") or UNKNOWN_HOLDER for link in links]


def _family(*kinds: type) -> set[type]:
    """Return types with all that are derived from them."""
    family, more = set[type](), list(kinds)
    while more:
        if (kind := more.pop()) not in family:
            family.add(kind)
            more += type.__subclasses__(kind)
    return family


def counted(label: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class so that its objects are counted under a label while they live; they are not kept alive."""

    def decorate(kind: type[T]) -> type[T]:
        # `__new__` also makes what `copy`, `deepcopy` and `pickle` make without `__init__`.
        @wraps(kind.__init__)
        def new(cls: type[T], *_: Any, **__: Any) -> T:
            made = object.__new__(cls)
            _living.setdefault(label, WeakSet()).add(made)
            return made

        kind.__new__ = new  # type: ignore[method-assign, assignment]
        return kind

    return decorate


def count_living() -> dict[str, int]:
    """Return the number of living objects by label."""
    return {label: len(living) for label, living in _living.items()}


def forget_living() -> None:
    """Count only objects that are made from now on."""
    for living in _living.values():
        living.clear()


def large_object_table(heap: Heap, min_mb: float) -> str:
    """Return the largest objects of at least `min_mb` MiB as a table."""
    return table(rows) if (rows := heap.largest(min_mb)) else "none"


def find_storages(items: Iterable[Any]) -> list[tuple[int, Any, Any]]:
    """Return the bytes of each piece of memory behind arrays and tensors, its owner, and the first item that shows it.

    Memory of an array that a tensor shows is the array's.
    """
    storages: dict[tuple[str, int], tuple[int, Any, Any]] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for item in items:
            owner = item
            while issubclass(type(owner), np.ndarray) and issubclass(type(owner.base), (np.ndarray, torch.Tensor)):
                owner = owner.base
            place, size = ("cpu", 0), 0
            if issubclass(type(owner), np.ndarray):
                low, high = byte_bounds(owner)
                place, size = ("cpu", low), high - low
            else:
                with contextlib.suppress(Exception):  # sparse and fake tensors have none
                    storage = owner.untyped_storage()
                    place, size = (str(storage.device), storage.data_ptr()), storage.nbytes()
            if place[1] and size:
                largest, known, first = storages.get(place, (0, owner, item))
                storages[place] = max(size, largest), owner if issubclass(type(known), torch.Tensor) else known, first
    return list(storages.values())


def _describe(item: Any) -> str:
    name = type(item).__name__
    if issubclass(type(item), (torch.Tensor, np.ndarray)):
        with torch._C.DisableTorchFunctionSubclass():
            return f"{name} {tuple(item.shape)} {item.dtype} on {item.device}"
    return f"{name} of {len(item):,}"


def _holders(items: list[Any], known: set[int]) -> dict[int, list[Any]]:
    """Return, by the identity of an item, the known objects that refer to it."""
    holders: dict[int, list[Any]] = {}
    wanted = set(map(id, items))
    for holder in gc.get_referrers(*items) if items else ():
        if id(holder) in known:
            for item in wanted.intersection(map(id, gc.get_referents(holder))):
                holders.setdefault(item, []).append(holder)
    return holders
