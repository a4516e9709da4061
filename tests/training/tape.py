"""A tape of operations in place of a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from training.cuda_graph import Tensors

READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::is_nonzero", "aten::masked_select"}


class Tape(TorchDispatchMode):
    """Every operation with its tensors; what a stream that is captured does not allow is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.made: dict[int, Tensor] = {}
        """Of memory that operations allocated, by storage."""
        self.written: dict[int, tuple[Tensor, Tensor]] = {}
        """Of memory that was there before and was written to: all of it, and a copy as it was."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.name() in READS:
            raise RuntimeError(f"{func.name()} is not permitted when stream is capturing")
        if func._schema.is_mutable:
            self._keep(tensors_in(args, kwargs))
        given = {storage_of(tensor) for tensor in tensors_in(args, kwargs)}
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        for tensor in tensors_in(out):
            if storage_of(tensor) not in given:
                self.made.setdefault(storage_of(tensor), tensor)
        return out

    def _keep(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            key = storage_of(tensor)
            if key not in self.made and key not in self.written:
                whole = tensor.detach().new_empty(0)
                whole.set_(tensor.untyped_storage(), 0, (tensor.untyped_storage().nbytes() // tensor.element_size(),))
                self.written[key] = whole, whole.clone()


def taped(work: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
    """As `cuda_graph`: a launch runs the operations again, and writes where they wrote.

    Nothing has run before: what was there is as it was, and what the operations gave is lost.
    """
    tape = Tape()
    try:
        with tape:
            outputs = work()
    finally:
        for whole, before in tape.written.values():
            whole.copy_(before)
    for tensor in tape.made.values():
        tensor.detach().fill_(torch.nan if tensor.is_floating_point() else 1)

    @torch.no_grad()
    def launch() -> None:
        for func, args, kwargs, out in tape.calls:
            for old, new in zip(tensors_in(out), tensors_in(func(*args, **kwargs)), strict=True):
                if storage_of(old) != storage_of(new):
                    old.copy_(new)

    return outputs, launch


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def tensors_in(*values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]
