"""A CUDA device whose tensors lie on the CPU: what runs on it gives the CPU's numbers, and what a card refuses fails.

Refused are operations on tensors of both devices, and numbers drawn on the device. `python -m
benchmarks.gpu_budget.card_with_values WORDS` runs `main.py WORDS` on it, several commands parted by `--then`, and names
at the end the operations that have no deterministic kernel on a card. Needs g++, once a torch.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu_budget.fake_card import MixedDevicesError, install_before_torch, line_of_code
from main import main as program

THEN = "--then"
"""Between two commands."""
_COPIES = frozenset({"_to_copy", "copy_"})
_INDEXED = frozenset({"index", "index_put", "index_put_"})
"""Operations that copy indices from the host."""
_TAKES_A_NUMBER = frozenset({"fill", "fill_", "masked_fill", "masked_fill_", *_INDEXED})
"""Operations besides those on each element that take a tensor of one number from the host."""
_NO_FIXED_ORDER = frozenset({"put_", "put", "histc", "median", "ctc_loss", "nll_loss_forward", "nll_loss2d_forward"})
"""Operations without a deterministic CUDA kernel, see `torch.use_deterministic_algorithms`."""
_NO_FIXED_ORDER_OF_FLOATS = frozenset({"cumsum", "cumsum_"})
unordered: set[str] = set()
"""Those that ran, with their lines of code."""


class DrawnOnCardError(Exception):
    """Random numbers of the device, which no CPU draws and whose state no checkpoint holds."""


class OnCard(Tensor):
    """A tensor that says it lies on a CUDA device, and the CPU's tensor whose values it has."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnCard:
        """Take a CPU tensor onto the card, without a copy."""
        new: OnCard = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device("cuda", 0),
        )
        new.held = held
        return new

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the values, which torch refuses to tell of its subclasses."""
        return self.held.tolist()


class CardWithValues(TorchDispatchMode):
    """Puts tensors that are made on `cuda` onto the card while the block runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU what is asked of the card; leave alone what is asked of the CPU."""
    tensors: list[Tensor] = []

    def value(part: Any) -> Any:
        if isinstance(part, Tensor):
            tensors.append(part)
        return part.held if isinstance(part, OnCard) else part

    values, target = [_mapped(value, part) for part in args], kwargs.get("device")
    named = {name: _mapped(value, part) for name, part in kwargs.items()}
    on_card = [tensor for tensor in tensors if isinstance(tensor, OnCard)]
    is_to_card = bool(on_card) if target is None else torch.device(target).type == "cuda"
    if not on_card and not is_to_card:
        return func(*args, **kwargs)
    _refuse(func, args, tensors)
    out = func(*values, **(named if target is None else {**named, "device": torch.device("cpu")}))
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():  # the shape that the tensor shows, which is not that of what it holds
            func(*args, **kwargs)
    known: dict[int, Tensor] = {id(tensor.held): tensor for tensor in on_card}
    # A tensor of the host that was written to stays there.
    known |= {id(tensor): tensor for tensor in tensors if not isinstance(tensor, OnCard)}

    def returned(part: Any) -> Any:
        if not isinstance(part, Tensor) or not is_to_card:
            return part
        return known[id(part)] if id(part) in known else OnCard(part)

    assert all(tensor.shape == tensor.held.shape for tensor in on_card), f"{func} changed a shape in place"
    return _mapped(returned, out)


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Change what is in lists and tuples; torch's own trees take most of the time of a run."""
    return type(value)([change(part) for part in value]) if type(value) in (list, tuple) else change(value)


def _refuse(func: Any, args: Any, tensors: Sequence[Tensor]) -> None:
    """Raise DrawnOnCardError or MixedDevicesError; note what has no deterministic kernel."""
    name = func._schema.name.removeprefix("aten::")
    elsewhere = [tensor for tensor in tensors if not isinstance(tensor, OnCard)]
    if torch.Tag.nondeterministic_seeded in func.tags:
        raise DrawnOnCardError(f"{name} draws on the device at {line_of_code()}")
    is_of_floats = any(tensor.is_floating_point() for tensor in tensors)
    if name in _NO_FIXED_ORDER or (name in _NO_FIXED_ORDER_OF_FLOATS and is_of_floats):
        unordered.add(f"{name} at {line_of_code()}")
    if name in _INDEXED and isinstance(args[0], OnCard):
        elsewhere = [tensor for tensor in elsewhere if all(tensor is not index for index in args[1])]
    takes_numbers = torch.Tag.pointwise in func.tags or name in _TAKES_A_NUMBER
    if name not in _COPIES and any(tensor.dim() or not takes_numbers for tensor in elsewhere):
        raise MixedDevicesError(f"{name} on tensors of both devices at {line_of_code()}")


@contextlib.contextmanager
def card_with_values() -> Iterator[None]:
    """Let this process have a CUDA device while the block runs; `install` must have been called."""
    answers = {"is_available": True, "device_count": 1, "get_device_name": "a card with values"}
    answers |= dict.fromkeys(("_lazy_init", "synchronize"))
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, lambda *_, answer=answer: answer))
        # Parameters that move are made anew: those of the CPU cannot take in a tensor of another class.
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        # As torch's own fake tensors do: `torch.tensor(..., device="cuda")` is made here, then shown to the mode.
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, False)
        stack.enter_context(CardWithValues())
        yield


def main(words: Sequence[str]) -> int:
    """Run the commands one after the other; return the code of the first that fails."""
    install_before_torch("benchmarks.gpu_budget.card_with_values", words)
    command: list[str] = []
    with card_with_values():
        for word in (*words, THEN):
            if word != THEN:
                command.append(word)
                continue
            code = program(command)
            if code:
                return code
            command.clear()
    for line in sorted(unordered):
        print(f"no deterministic kernel: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
