"""A nested state as tensors by name plus JSON values, and back, bit for bit.

In the JSON {"$tensor": name} stands for a tensor and {"$tuple": [...]} for a tuple.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def flatten(tree: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state into CPU copies of tensors by dotted name and JSON values. ValueError for other types."""
    tensors: dict[str, Tensor] = {}
    return tensors, _flatten(tree, (), tensors)


def unflatten(tensors: Mapping[str, Tensor], rest: Any) -> Any:
    """Join the parts that `flatten` made. Raises KeyError if a tensor is missing."""
    match rest:
        case {"$tensor": str(name)}:
            return tensors[name]
        case {"$tuple": list(items)}:
            return tuple(unflatten(tensors, items))
        case dict():
            return {key: unflatten(tensors, item) for key, item in rest.items()}
        case list():
            return [unflatten(tensors, item) for item in rest]
    return rest


def misfit(saved: Any, like: Any, name: str = "state") -> str:
    """Return what a trainer in state `like` cannot take over from a saved state; empty if it can take over all.

    Values under keys of both must be of one kind, tensors of one shape and type, without NaN. Missing keys are left to
    `load_state_dict`, which can do without those that earlier versions did not save.
    """
    if isinstance(like, Mapping):
        if not isinstance(saved, Mapping):
            return f"expected parts of {name}, got {_shown(saved)}"
        both = (key for key in like if key in saved)
        return next(filter(None, (misfit(saved[key], like[key], f"{name}.{key}") for key in both)), "")
    if not isinstance(like, Tensor):
        if like is None:
            return ""
        expected = (int, float) if isinstance(like, int | float) else type(like)
        if isinstance(saved, expected):
            return ""
        return f"expected {type(like).__name__} for {name}, got {type(saved).__name__}"
    if not isinstance(saved, Tensor) or (saved.shape, saved.dtype) != (like.shape, like.dtype):
        return f"expected {_shown(like)} for {name}, got {_shown(saved)}"
    return f"expected numbers in {name}, got NaN" if saved.is_floating_point() and bool(saved.isnan().any()) else ""


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _flatten(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    name = ".".join(path)
    match value:
        # Keys may contain dots: two tensors must not have one name.
        case Tensor() if name not in tensors:
            tensors[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            return {"$tensor": name}
        case tuple():
            return {"$tuple": _flatten(list(value), path, tensors)}
        case Mapping() if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _flatten(item, (*path, key), tensors) for key, item in value.items()}
        case list():
            return [_flatten(item, (*path, str(place)), tensors) for place, item in enumerate(value)]
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(f"expected mappings, lists, tensors and JSON values, got {type(value).__name__} at {name!r}")
