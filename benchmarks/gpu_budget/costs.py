"""What operations cost on a card: kernels, bytes and FLOPs of each, and the seconds that follow from them.

Kernels are what torch is known to launch, not measured; bytes are those that must be moved at least. An operation takes
the longest of its kernels' least time, its bytes and its FLOPs; nothing overlaps, and caches are left out.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

HOST_SECONDS = 8e-6
"""Of a thread of Python, to send one operation to the device."""
KERNEL_SECONDS = 2e-6
"""Least time of a kernel."""
GRAPH_SECONDS = 20e-6
"""Of the host, to launch a CUDA graph of a thousand kernels."""
FLOPS_SHARE, BYTES_SHARE = 0.7, 0.8
"""Of what a data sheet says, as large kernels of cuBLAS and of element-wise operations reach."""
COPY_BYTES_PER_SECOND = 12e9
"""Of a blocking copy from or to memory that is not pinned."""
_KERNELS = {"sort": 4, "topk": 2, "_linalg_solve_ex": 12, "index_put_": 6, "nonzero": 4, "cat": 1, "cumsum": 1}
"""Of operations that launch several."""
_NO_KERNEL = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view", "lift_fresh"})
_READ_IN_PART = frozenset({"index", "index_select", "gather", "embedding"})
"""Operations that read as much of their first argument as they return."""
_WRITTEN_WHOLE = frozenset({"zero_", "fill_", "copy_"})
"""Operations that do not read what they write over."""


@dataclass(frozen=True)
class Card:
    """A device by its data sheet."""

    name: str
    bytes_per_second: float
    flops: float
    """A second, in float32 without tensor cores."""
    double_flops: float
    memory: float
    """Bytes."""


CARDS = (Card("H200", 4.8e12, 67e12, 34e12, 141e9), Card("RTX 4090", 1.008e12, 82.6e12, 1.29e12, 24e9))
ALL_CARDS = (Card("H100", 3.35e12, 67e12, 34e12, 80e9), *CARDS)


class Cost(NamedTuple):
    """Of one operation."""

    kernels: int
    bytes: int
    flops: int
    is_double: bool


@dataclass
class Phase:
    """What one stretch of a generation did."""

    costs: Counter[Cost] = field(default_factory=Counter)
    lines: Counter[str] = field(default_factory=Counter)
    """Operations by line of code."""
    waits: Counter[str] = field(default_factory=Counter)
    """Of the host for the device, by cause and line of code."""
    copied: int = 0
    """Bytes between host and device."""
    peak: int = 0
    """Largest memory of tensors on the device, bytes."""
    host: float = 0.0
    """Seconds of numpy on this machine."""
    graphs: int = 0
    """CUDA graphs that are launched in place of its operations from the third generation on; 0: none."""

    def figures(self) -> dict[str, int]:
        """Return what a budget holds; all but the peak add up over phases."""
        totals = {name: sum(getattr(cost, name) * n for cost, n in self.costs.items()) for name in Cost._fields[:3]}
        counts = {"operations": self.costs.total(), "waits": self.waits.total(), "copied": self.copied}
        seconds = {f"{card.name} us": round(1e6 * self.card_seconds(card)) for card in ALL_CARDS}
        return {**counts, **totals, **seconds, "peak": self.peak}

    def card_seconds(self, card: Card) -> float:
        """Return the predicted seconds of the card, were the host never late."""
        return sum(n * _seconds(cost, card) for cost, n in self.costs.items())

    def launch_seconds(self) -> float:
        """Return the predicted seconds of the host to send all operations, or to launch their graphs."""
        return self.graphs * GRAPH_SECONDS if self.graphs else self.costs.total() * HOST_SECONDS

    def copy_seconds(self) -> float:
        """Return the predicted seconds of copies between host and device."""
        return self.copied / COPY_BYTES_PER_SECOND

    def seconds(self, card: Card) -> tuple[float, float]:
        """Return the predicted seconds of the card alone, and of both: the host runs ahead until it waits."""
        own = self.card_seconds(card)
        return own, max(own, self.launch_seconds()) + self.copy_seconds()


def joined(phases: Sequence[Phase]) -> Phase:
    """Add up phases."""
    whole = Phase()
    for phase in phases:
        for name in ("costs", "lines", "waits"):
            getattr(whole, name).update(getattr(phase, name))
        for name in ("copied", "host", "graphs"):
            setattr(whole, name, getattr(whole, name) + getattr(phase, name))
        whole.peak = max(whole.peak, phase.peak)
    return whole


def over_budget(figures: Mapping[str, int], budget: Mapping[str, int], slack: float = 0.02) -> list[str]:
    """List what is more than its budget by more than a share of it."""
    return [
        f"{name}: {figures[name]:,}, budget {most:,}"
        for name, most in budget.items()
        if figures[name] > most * (1 + slack)
    ]


def cost_of(
    func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor], out: Any
) -> Cost:
    """Return the cost of one operation on a device, whose tensors are its arguments."""
    outs = [value for value in (out if isinstance(out, tuple | list) else [out]) if isinstance(value, Tensor)]
    aliases = [returned.alias_info for returned in func._schema.returns]
    is_view = bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)
    if is_view or name in _NO_KERNEL:
        return Cost(0, 0, 0, False)
    known = {id(tensor) for tensor in tensors}
    written = sum(_touched(value) for value in outs)  # in place too
    read = [tensor for tensor in tensors if not (name in _WRITTEN_WHOLE and tensor is args[0])]
    if name in _READ_IN_PART:
        read = [tensor for tensor in read if tensor is not args[0]] + [
            value for value in outs if id(value) not in known
        ]
    count = flop_registry.get(func._overloadpacket)
    flops = 0 if count is None else int(count(*args, **kwargs, out_val=out))
    moved = written + sum(_touched(tensor) for tensor in read)
    return Cost(_KERNELS.get(name, 1), moved, flops, bool(outs) and outs[0].dtype == torch.float64)


def _touched(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements; what is expanded counts once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in sizes if stride != 0 or size == 0)


def _seconds(cost: Cost, card: Card) -> float:
    rate = FLOPS_SHARE * (card.double_flops if cost.is_double else card.flops)
    return max(cost.kernels * KERNEL_SECONDS, cost.bytes / (BYTES_SHARE * card.bytes_per_second), cost.flops / rate)
