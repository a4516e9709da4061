"""A cache of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """Keeps the values used last, at most `capacity` of them; what is dropped must be cheap enough to make again."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"expected a capacity of at least 1, got {capacity}")
        self.capacity = capacity
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def put(self, key: Key, value: Value) -> None:
        """Keep a value, dropping the one unused for longest if there are too many."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self.capacity:
            self._values.popitem(last=False)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value kept under the key, or what `make` returns, which is then kept."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = make()
        self.put(key, value)
        return value
