"""A CUDA device whose tensors lie on the CPU: what runs on it gives the CPU's numbers, and what a card refuses fails.

Refused are operations on tensors of both devices, and numbers drawn on the device. A meter counts what is done on it.
`python -m benchmarks.gpu_budget.card WORDS` runs `main.py WORDS` on it, several commands parted by `--then`, and names
at the end the operations that have no deterministic kernel on a card. Needs a torch without CUDA, and g++ once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[2]
THEN = "--then"
"""Between two commands."""
_SOURCE = Path(__file__).with_name("one_card.cpp")
_PRELOAD = "LD_PRELOAD"
_KERNELS_OF_CARDS = torch.library.Library("aten", "IMPL", "CUDA")
_BLOCK = 512
"""Bytes to which torch's allocator rounds up."""
_WAITING = frozenset({"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_linalg_check_errors"})
"""Operations that read values back, or whose result's shape depends on values."""
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


class MixedDevicesError(Exception):
    """An operation on tensors of different devices."""


class DrawnOnCardError(Exception):
    """Random numbers of the device, which no CPU draws and whose state no checkpoint holds."""


def install() -> Path:
    """Compile the runtime where it is not yet there, give this process a card, and return the library.

    Ends the process where there is no g++, or where torch has a runtime for CUDA, which asks for a real card.
    """
    if torch.version.cuda is not None:
        raise SystemExit(f"expected a build of torch without CUDA for the fake card, got {torch.__version__}")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a real one would be asked for memory
    version = f"{torch.__version__}-{hashlib.sha256(_SOURCE.read_bytes() + torch.__file__.encode()).hexdigest()[:16]}"
    library = Path(tempfile.gettempdir()) / f"one-card-{os.getuid()}" / f"{version}.so"
    if not library.exists():
        library.parent.mkdir(mode=0o700, exist_ok=True)
        torch_folder = Path(torch.__file__).parent
        begun = library.with_suffix(f".{os.getpid()}")
        flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{torch_folder / 'include'}"]
        libraries = [f"-L{torch_folder / 'lib'}", "-lc10", f"-Wl,-rpath,{torch_folder / 'lib'}"]
        subprocess.run(["g++", *flags, str(_SOURCE), "-o", str(begun), *libraries], check=True)
        begun.rename(library)
    ctypes.CDLL(str(library))
    # A torch without CUDA has no kernel for it, and would count what it is made of; a card runs one kernel.
    _KERNELS_OF_CARDS.impl("silu_backward", lambda *_: None)
    return library


def install_before_torch(module: str, words: Sequence[str]) -> None:
    """Install, and start this process anew as `python -m module words` where torch was loaded before the runtime was.

    A backward pass asks torch for its device, which must have been answered before torch is loaded.
    """
    library = str(install())
    if os.environ.get(_PRELOAD) != library:
        os.execve(sys.executable, [sys.executable, "-m", module, *words], {**os.environ, _PRELOAD: library})
    del os.environ[_PRELOAD]  # not for the processes that this one starts


@dataclass
class Phase:
    """What one stretch of a generation did."""

    lines: Counter[str] = field(default_factory=Counter)
    """Operations launched, by line of code."""
    waits: Counter[str] = field(default_factory=Counter)
    """Of the host for the device, by cause and line of code."""
    copied: int = 0
    """Bytes between host and device."""
    peak: int = 0
    """Largest memory of tensors on the device, bytes."""

    def figures(self) -> dict[str, int]:
        """Return what a budget holds; all but the peak add up over phases."""
        operations, waits = self.lines.total(), self.waits.total()
        return {"operations": operations, "waits": waits, "copied": self.copied, "peak": self.peak}


def joined(phases: Sequence[Phase]) -> Phase:
    """Add up phases."""
    whole = Phase()
    for phase in phases:
        whole.lines.update(phase.lines)
        whole.waits.update(phase.waits)
        whole.copied += phase.copied
        whole.peak = max(whole.peak, phase.peak)
    return whole


def over_budget(figures: Mapping[str, int], budget: Mapping[str, int], slack: float = 0.02) -> list[str]:
    """List what is more than its budget by more than a share of it."""
    return [
        f"{name}: {figures[name]:,}, budget {most:,}"
        for name, most in budget.items()
        if figures[name] > most * (1 + slack)
    ]


class Meter:
    """What is done on the device, by phase."""

    def __init__(self) -> None:
        self.phases: dict[str, Phase] = defaultdict(Phase)
        self.name = ""
        self._memory = 0
        self._storages: dict[int, weakref.ref[Any]] = {}

    @property
    def phase(self) -> Phase:
        """The phase that runs."""
        return self.phases[self.name]

    @contextlib.contextmanager
    def within(self, name: str) -> Iterator[None]:
        """Count what follows to the phase of that name."""
        before, self.name = self.name, name
        self.phase.peak = max(self.phase.peak, self._memory)
        try:
            yield
        finally:
            self.name = before

    def count(self, name: str, args: Any, kwargs: Any, tensors: Sequence[Tensor], is_to_card: bool) -> None:
        """Count an operation, and the waits of the host for it."""
        self.phase.lines[line_of_code()] += 1
        if name in _COPIES:
            source: Tensor = args[1] if name == "copy_" else args[0]
            to_card = isinstance(args[0], OnCard) if name == "copy_" else is_to_card
            if isinstance(source, OnCard) != to_card:
                self.phase.copied += source.element_size() * source.numel()
                if not (kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])):
                    self.wait("copy to the device" if to_card else "copy to the host")
        elif name in _WAITING:
            self.wait(name, 8)
        elif name in ("index", "index_put_"):
            for index in args[1]:
                self._count_index(index, args[2:])
        elif name == "where" and any(tensor.dim() == 0 and not isinstance(tensor, OnCard) for tensor in tensors):
            self.wait("copy of a number by where", 8)

    def _count_index(self, index: Tensor | None, value: Any) -> None:
        """Count an index as the device takes it: a mask is made numbers, one on the host is copied, and both wait."""
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        is_filled = is_mask and bool(value) and value[0].numel() == 1  # by a kernel that reads the mask itself
        if index is not None and not is_filled and (is_mask or not isinstance(index, OnCard)):
            self.wait("index by a mask" if is_mask else "copy of an index", index.element_size() * index.numel())

    def wait(self, cause: str, size: int = 0) -> None:
        """Count a wait of the host for the device, and the bytes that it waits for."""
        self.phase.waits[f"{cause} at {line_of_code()}"] += 1
        self.phase.copied += size

    def hold(self, tensor: Tensor) -> None:
        """Add the storage of a tensor to the memory in use, until it is freed."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // _BLOCK) * _BLOCK
        if key in self._storages:
            return

        def free(_: object) -> None:
            del self._storages[key]
            self._memory -= size

        self._storages[key] = weakref.ref(storage, free)
        self._memory += size
        self.phase.peak = max(self.phase.peak, self._memory)


_meters: list[Meter] = []
"""The meter of the device, if it has one."""


class OnCard(Tensor):
    """A tensor that says it lies on a CUDA device, and the CPU's tensor whose values it has."""

    wrapped: Tensor

    @staticmethod
    def __new__(cls, wrapped: Tensor) -> OnCard:
        """Take a CPU tensor onto the card, without a copy."""
        new: OnCard = Tensor._make_wrapper_subclass(
            cls,
            wrapped.shape,
            strides=wrapped.stride(),
            storage_offset=wrapped.storage_offset(),
            dtype=wrapped.dtype,
            device=torch.device("cuda", 0),
        )
        new.wrapped = wrapped
        return new

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Return the values, which torch refuses to tell of its subclasses."""
        return self.cpu().tolist()


class Card(TorchDispatchMode):
    """Puts tensors that are made on `cuda` onto the card while the block runs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU what is asked of the card; leave alone what is asked of the CPU."""
    tensors: list[Tensor] = []

    def value(part: Any) -> Any:
        if isinstance(part, Tensor):
            tensors.append(part)
        return part.wrapped if isinstance(part, OnCard) else part

    values, target = [_mapped(value, part) for part in args], kwargs.get("device")
    named = {name: _mapped(value, part) for name, part in kwargs.items()}
    on_card = [tensor for tensor in tensors if isinstance(tensor, OnCard)]
    is_to_card = bool(on_card) if target is None else torch.device(target).type == "cuda"
    if not on_card and not is_to_card:
        return func(*args, **kwargs)
    _refuse(func, args, tensors)
    for meter in _meters:
        meter.count(func._schema.name.removeprefix("aten::"), args, kwargs, tensors, is_to_card)
    out = func(*values, **(named if target is None else {**named, "device": torch.device("cpu")}))
    if torch.Tag.inplace_view in func.tags:
        with no_dispatch():  # the shape that the tensor shows, which is not that of what it holds
            func(*args, **kwargs)
    known: dict[int, Tensor] = {id(tensor.wrapped): tensor for tensor in on_card}
    # A tensor of the host that was written to stays there.
    known |= {id(tensor): tensor for tensor in tensors if not isinstance(tensor, OnCard)}

    def returned(part: Any) -> Any:
        if not isinstance(part, Tensor) or not is_to_card:
            return part
        if id(part) in known:
            return known[id(part)]
        for meter in _meters:
            meter.hold(part)
        return OnCard(part)

    assert all(tensor.shape == tensor.wrapped.shape for tensor in on_card), f"{func} changed a shape in place"
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


@functools.cache
def _own_file(name: str) -> str:
    """Return a file of the project by its path in it; empty for all others and for those here."""
    path = Path(name)
    is_own = path.is_relative_to(ROOT) and path.parent != _SOURCE.parent and ".venv" not in path.parts
    return str(path.relative_to(ROOT)) if is_own else ""


def line_of_code() -> str:
    """Return the line of the project that asked for the operation."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _own_file(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


@contextlib.contextmanager
def card() -> Iterator[Meter]:
    """Let this process have a CUDA device while the block runs, with a meter; `install` must have been called."""
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
        stack.enter_context(Card())
        _meters.append(Meter())
        stack.callback(_meters.pop)
        yield _meters[-1]


def run(words: Sequence[str]) -> int:
    """Run the commands one after the other on an installed card; return the code of the first that fails."""
    from main import main as program  # not for those that only count

    command: list[str] = []
    with card():
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
    install_before_torch("benchmarks.gpu_budget.card", sys.argv[1:])
    sys.exit(run(sys.argv[1:]))
