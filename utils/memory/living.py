"""Objects that are counted while they live: environments, agents and replay buffers."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakSet

CLASSES = {"environments": "TradingEnvironment", "agents": "DDPGAgent", "replay_buffers": "ReplayBuffer"}
"""Names of the classes by label, as reports show them."""
_living: dict[str, WeakSet[Any]] = {label: WeakSet() for label in CLASSES}
T = TypeVar("T")


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
