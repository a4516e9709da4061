"""Rows of inputs: one for each stock that has a bar on a day."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from data.features.forms import FeatureInputs
from data.market import Market
from utils.arrays import BoolArray, Float32Array

Blocks = Iterator[tuple[slice, Float32Array]]
"""Stocks, and their (days, stocks, inputs)."""
_CELLS = 2**18
"""Days times stocks of a block of rows."""
LARGEST = 1000.0
"""Standard deviations to which all inputs are clipped: half precision ends at 65,504."""


class InputRows:
    """Inputs of the stocks that have a bar on some days, by day, then by stock.

    Inputs that all stocks of a day share are kept once a day. Days are those of the market.
    """

    separate: Tensor
    """(rows, inputs that are not shared) float16: of a large market they are most of what the program keeps."""
    shared: Tensor
    """(days, shared inputs) float32."""
    stock: Tensor
    """(rows,) int32."""
    has_bar: Tensor
    """(days, n) bool."""
    whole: InputRows | None = None
    """Of which these are a part, and share the memory."""

    def __init__(self, days: slice, has_bar: BoolArray, inputs: int, shared: Sequence[int] = ()) -> None:
        """Allocate the rows of (all days, n) bars on these days; `shared` are the places of inputs."""
        self.days, self.inputs = days, inputs
        bars = has_bar[days]
        self.first = [0, *np.cumsum(bars.sum(axis=1)).tolist()]
        """First row of each day, and the number of rows."""
        self.first_rows = torch.tensor(self.first)
        self.has_bar = torch.from_numpy(bars)
        self.stock = torch.from_numpy(np.nonzero(bars)[1].astype(np.int32))
        self._is_shared = np.isin(np.arange(inputs), shared)
        self.separate = torch.zeros(self.first[-1], int((~self._is_shared).sum()), dtype=torch.float16)
        self.shared = torch.zeros(len(bars), int(self._is_shared.sum()))
        self._place = place = np.where(self._is_shared, self._is_shared.cumsum(), (~self._is_shared).cumsum()) - 1
        runs = (list(run) for _, run in groupby(range(inputs), key=lambda column: self._is_shared[column]))
        self._pieces = [(bool(self._is_shared[run[0]]), slice(place[run[0]], place[run[-1]] + 1)) for run in runs]

    def fill(self, days: slice, blocks: Blocks, first: int = 0) -> None:
        """Write inputs of some days, from the `first` one on as many as there are in the blocks."""
        here = self.here(days)
        bars, of_stock, shared = self.has_bar[here].numpy(), self.separate.numpy(), self.shared.numpy()
        row = np.array(self.first[here.start : here.stop])[:, None]
        for stocks, x in blocks:
            is_known, is_shared = bars[:, stocks], self._is_shared[first : first + x.shape[2]]
            places = row + is_known.cumsum(axis=1) - 1
            begin, count = (~self._is_shared[:first]).sum(), (~is_shared).sum()
            of_stock[places[is_known], begin : begin + count] = x[is_known][:, ~is_shared].clip(-LARGEST, LARGEST)
            begin = self._is_shared[:first].sum()
            shared[here, begin : begin + is_shared.sum()] = x[:, 0, is_shared]
            row = row + is_known.sum(axis=1, keepdims=True)

    def fill_features(self, features: FeatureInputs, market: Market, first: int) -> None:
        """Write the inputs that are features, from the `first` on, one by one: all of a large market are large."""
        bars, of_stock, shared = self.has_bar.numpy(), self.separate.numpy(), self.shared.numpy()
        for place, values in features.columns(market, self.days):
            column = self._place[first + place]
            if self._is_shared[first + place]:
                shared[:, column] = values[:, 0]
            else:
                of_stock[:, column] = values[bars].clip(-LARGEST, LARGEST)

    def to(self, device: torch.device | str) -> InputRows:
        """Return the same rows on a device."""
        other = copy.copy(self)
        for name in ("separate", "shared", "stock", "has_bar", "first_rows"):
            setattr(other, name, getattr(self, name).to(device))
        other.whole = self.whole if other.separate is self.separate else None
        return other

    def part(self, days: slice) -> InputRows:
        """Return the rows of some of these days, which share their memory."""
        other, here, rows = copy.copy(self), self.here(days), self.rows(days)
        other.whole = self.whole or self
        other.days, other.first = days, [row - rows.start for row in self.first[here.start : here.stop + 1]]
        other.first_rows = torch.tensor(other.first)
        other.separate, other.stock = self.separate[rows], self.stock[rows]
        other.shared, other.has_bar = self.shared[here], self.has_bar[here]
        return other

    def joined(self, later: InputRows) -> InputRows:
        """Return the same rows and those of the days that follow."""
        assert self.days.stop == later.days.start
        if self.whole is not None and self.whole is later.whole:
            return self.whole.part(slice(self.days.start, later.days.stop))
        other = copy.copy(self)
        other.whole, other.days = None, slice(self.days.start, later.days.stop)
        other.first = [*self.first, *(self.first[-1] + row for row in later.first[1:])]
        other.first_rows = torch.tensor(other.first)
        for name in ("separate", "shared", "stock", "has_bar"):
            setattr(other, name, torch.cat((getattr(self, name), getattr(later, name))))
        return other

    @property
    def counts(self) -> Tensor:
        """Return the (days,) number of rows of each day."""
        return self.first_rows.diff()

    def rows(self, days: slice) -> slice:
        """Return the rows of some days."""
        here = self.here(days)
        return slice(self.first[here.start], self.first[here.stop])

    def x(self, days: slice) -> Tensor:
        """Return the (rows, inputs) of some days."""
        here, of_stock = self.here(days), self.separate[self.rows(days)]
        counts = self.has_bar[here].sum(1)
        return self._joined(of_stock, self.shared[here].repeat_interleave(counts, dim=0, output_size=len(of_stock)))

    def take(self, rows: Tensor) -> Tensor:
        """Return the (..., inputs) of (...) rows."""
        day = torch.searchsorted(self.first_rows, rows.contiguous(), right=True) - 1
        return self._joined(self.separate[rows], self.shared[day])

    def dense(self, days: slice) -> Float32Array:
        """Return the (days, n, inputs) of some days, 0 without a bar, on the CPU."""
        bars = self.has_bar[self.here(days)]
        dense = torch.zeros(*bars.shape, self.inputs)
        dense[bars] = self.x(days)
        return dense.numpy()

    def spread(self, values: Tensor, days: slice) -> Tensor:
        """Return (..., rows) values of some days as (..., days, n), minus infinity without a bar."""
        bars = self.has_bar[self.here(days)]
        shape = (*values.shape[:-1], *bars.shape)
        return values.new_full(shape, -torch.inf).masked_scatter_(bars, values)

    def blocks(self, days: slice | None = None) -> list[slice]:
        """Divide days, default all, into blocks of a fixed size, so that sums over blocks have one order."""
        days, size = days or self.days, max(1, _CELLS // max(self.has_bar.shape[1], 1))
        return [slice(first, min(first + size, days.stop)) for first in range(days.start, days.stop, size)]

    def here(self, days: slice) -> slice:
        """Return the places of some days among these."""
        assert self.days.start <= days.start <= days.stop <= self.days.stop
        return slice(days.start - self.days.start, days.stop - self.days.start)

    def _joined(self, of_stock: Tensor, shared: Tensor) -> Tensor:
        of_stock = of_stock.float()
        pieces = [(shared if is_shared else of_stock)[..., columns] for is_shared, columns in self._pieces]
        return torch.cat(pieces, dim=-1)
