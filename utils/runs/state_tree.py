"""A nested state as tensors by name plus JSON values, and back, bit for bit.

In the JSON values a mapping with one marked key stands for what JSON lacks: {"$tensor": name}, {"$tuple": [...]} and
{"$float": bits} for inf and nan. A key of the state that begins with `$` gets a second one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

DTYPES = frozenset(
    {torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64}
    | {torch.int8, torch.int16, torch.int32, torch.int64}
    | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
)

Array = np.ndarray[Any, Any]


def flatten(tree: Mapping[str, Any]) -> tuple[dict[str, Tensor], Any]:
    """Split a nested state into tensors by dotted name and the rest as JSON values; `unflatten` joins them.

    The state holds mappings with string keys, lists, tuples, tensors, numpy arrays and JSON scalars. The tensors are
    contiguous, on the CPU, share no memory with one another and are, where that takes no copy, the caller's memory.
    Raises ValueError for anything else.
    """
    tensors: dict[str, Tensor] = {}
    rest = _flatten(tree, "", tensors)
    return _apart(tensors), rest


def unflatten(tensors: Mapping[str, Tensor], rest: Any) -> dict[str, Any]:
    """Join the parts that `flatten` made: dicts, lists, tuples, tensors and JSON scalars.

    Raises ValueError if the two do not belong together.
    """
    unused = dict(tensors)
    tree = _unflatten(rest, unused)
    _require(isinstance(tree, dict), f"expected a mapping, got {type(tree).__name__}")
    _require(not unused, f"expected a place for every tensor, got none for {sorted(unused)[:3]}")
    return dict(tree)


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    match value:
        case Tensor() | np.ndarray():
            return {"$tensor": _add_tensor(value, name, tensors)}
        case tuple():
            return {"$tuple": _flatten(list(value), name, tensors)}
        case np.generic() if value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
            return _flatten(value.item(), name, tensors)
        case float() if not math.isfinite(value):
            return {"$float": struct.pack(">d", value).hex()}
        case Mapping():
            return {_escape(key, name): _flatten(item, _joined(name, key), tensors) for key, item in value.items()}
        case list():
            return [_flatten(item, _joined(name, str(place)), tensors) for place, item in enumerate(value)]
        case None | bool() | int() | float() | str():
            return value
    raise ValueError(
        f"expected mappings, lists, tensors or JSON scalars, got {type(value).__name__} at {name!r}; convert it first"
    )


def _unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    match value:
        case {"$tensor": str(name)}:
            _require(name in tensors, f"expected a tensor of its own for each place, got none for {name!r}")
            return tensors.pop(name)
        case {"$tuple": list(items)}:
            return tuple(_unflatten(items, tensors))
        case {"$float": str(bits)} if len(bits) == 16:
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case dict():
            return {_unescape(key): _unflatten(item, tensors) for key, item in value.items()}
        case list():
            return [_unflatten(item, tensors) for item in value]
    return value


def _escape(key: Any, name: str) -> str:
    _require(isinstance(key, str), f"expected keys that are strings, got {key!r} at {name!r}; convert it first")
    return f"${key}" if key.startswith("$") else str(key)


def _unescape(key: str) -> str:
    _require(not key.startswith("$") or key.startswith("$$"), f"expected a known marker, got {key!r}")
    return key[1:] if key.startswith("$") else key


def _joined(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


def _add_tensor(value: Tensor | Array, name: str, tensors: dict[str, Tensor]) -> str:
    # Keys may hold dots themselves, so two places can have one name; safetensors keeps __metadata__ for itself.
    plain = unique = name.encode("utf-8", "backslashreplace").decode()
    count = 1
    while unique in tensors or unique == "__metadata__":
        count += 1
        unique = f"{plain}~{count}"
    tensors[unique] = _saveable(value, name)
    return unique


def _saveable(value: Tensor | Array, name: str) -> Tensor:
    tensor = value if isinstance(value, Tensor) else _from_numpy(value, name)
    supported = tensor.dtype in DTYPES and tensor.layout == torch.strided and tensor.device.type != "meta"
    _require(supported, f"expected a dense tensor of real numbers, got {tensor.dtype}, {tensor.layout} at {name!r}")
    return tensor.detach().cpu().resolve_neg().contiguous()


def _from_numpy(array: Array, name: str) -> Tensor:
    try:
        # A copy in native byte order: torch takes neither foreign orders nor read-only memory.
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    except TypeError as error:
        raise ValueError(f"expected numbers, got an array of {array.dtype} at {name!r}; convert it first") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, copied where an earlier one lies in the same memory, which safetensors refuses."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if storage in seen else tensor
        seen.add(storage)
    return apart


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
