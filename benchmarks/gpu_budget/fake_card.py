"""A CUDA device that is not there: tensors on it have shapes and no values, and all that is done to them is counted.

Tensors on the CPU are real. What the host reads back from the device is made up: ones. Needs g++, once a torch.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.gpu_budget.counts import Phase

ROOT = Path(__file__).resolve().parents[2]
_SOURCE = Path(__file__).with_name("one_card.cpp")
_PRELOAD = "LD_PRELOAD"
_KERNELS_OF_CARDS = torch.library.Library("aten", "IMPL", "CUDA")
_BLOCK = 512
"""Bytes to which torch's allocator rounds up."""
_WAITING = frozenset({"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "_linalg_check_errors"})
"""Operations that read values back, or whose result's shape depends on values."""


class MixedDevicesError(Exception):
    """An operation on tensors of different devices."""


def install() -> Path:
    """Compile the runtime where it is not yet there, give this process a card, and return the library.

    Ends the process where there is no g++.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a real one would be asked for memory
    version = f"{torch.__version__}-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}"
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


class Meter(TorchDispatchMode):
    """Counts what is done on the device, by phase."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: dict[str, Phase] = defaultdict(Phase)
        self.name = ""
        self.faults: list[str] = []
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:  # a fake tensor is asked where it is: no work
            return func(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        on_card = [tensor for tensor in tensors if isinstance(tensor, FakeTensor)]
        target = torch.device(kwargs.get("device") or (on_card[0].device if on_card else "cpu"))
        if not on_card and target.type == "cpu":
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if name in ("_to_copy", "copy_") and (len(on_card) < len(tensors) or target.type == "cpu"):
            return self._copy_across(name, args, kwargs, target)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.faults.append(f"a draw on the device, whose state no checkpoint holds: {name} at {line_of_code()}")
        if name in _WAITING:
            self._wait(name, 8)
            self._add()
            return self._made_up(name, args)
        if name in ("index", "index_put_"):
            args = (args[0], [part for index in args[1] for part in self._indices(index, args[2:])], *args[2:])
        elif name == "where" and any(tensor.dim() == 0 and not isinstance(tensor, FakeTensor) for tensor in tensors):
            self._wait("copy of a number by where", 8)
        try:
            out = func(*args, **kwargs)
        except RuntimeError as error:
            if "same device" in str(error) or "on device" in str(error):
                raise MixedDevicesError(f"{name} at {line_of_code()}: {error}") from error
            raise
        self._add()
        for value in tree_leaves(out):
            if isinstance(value, FakeTensor):
                self._hold(value)
        return out

    def _add(self) -> None:
        self.phase.lines[line_of_code()] += 1

    def _copy_across(self, name: str, args: Any, kwargs: Any, target: torch.device) -> Tensor:
        """Copy between host and device, where the host waits unless it says that it need not."""
        source: Tensor = args[1] if name == "copy_" else args[0]
        to_card = args[0].device.type == "cuda" if name == "copy_" else target.type == "cuda"
        non_blocking = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])
        size = source.element_size() * source.numel()
        self.phase.copied += size
        if not non_blocking:
            self._wait("copy to the device" if to_card else "copy to the host")
        if name == "copy_":
            if not to_card:
                with unset_fake_temporarily():
                    args[0].fill_(1)
            copy: Tensor = args[0]
        elif to_card:
            copy = torch.empty(source.shape, dtype=kwargs.get("dtype") or source.dtype, device=target)
            self._hold(copy)
        else:
            with unset_fake_temporarily():
                copy = torch.ones(source.shape, dtype=kwargs.get("dtype") or source.dtype)
        self._add()
        return copy

    def _wait(self, cause: str, size: int = 0) -> None:
        self.phase.waits[f"{cause} at {line_of_code()}"] += 1
        self.phase.copied += size

    def _made_up(self, name: str, args: Any) -> Any:
        """Return a value in place of one that the device would have given."""
        if name == "nonzero":
            return torch.empty(args[0].numel(), args[0].dim(), dtype=torch.int64, device="cuda")
        if name == "_local_scalar_dense":
            dtype = args[0].dtype
            return True if dtype == torch.bool else 1.0 if dtype.is_floating_point else 1
        return None if name == "_linalg_check_errors" else True

    def _indices(self, index: Tensor | None, value: Any) -> list[Tensor | None]:
        """Return an index as the device takes it: a mask is made numbers, one on the host is copied, and both wait."""
        is_mask = index is not None and index.dtype in (torch.bool, torch.uint8)
        is_filled = is_mask and bool(value) and value[0].numel() == 1  # by a kernel that reads the mask itself
        if index is None or is_filled or (isinstance(index, FakeTensor) and not is_mask):
            return [index]
        self._wait("index by a mask" if is_mask else "copy of an index", index.element_size() * index.numel())
        shape = (index.numel(),) if is_mask else index.shape
        return [torch.empty(shape, dtype=torch.int64, device="cuda") for _ in range(index.dim() if is_mask else 1)]

    def _hold(self, tensor: Tensor) -> None:
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
def fake_card() -> Iterator[Meter]:
    """Let tensors on `cuda` be fake while the block runs, and count what is done to them."""
    meter = Meter()
    with FakeTensorMode(allow_non_fake_inputs=True), meter:
        yield meter
