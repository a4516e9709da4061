"""Inputs of forecasts for a stock at a close: the multi-scale bank, the responses' forecasts and the features of the
data, standardised; and the rows in which they are kept, one for each stock that has a bar on a day."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.bank import HALF_LIVES, MarketSeries, multi_scale_bank, stock_blocks
from data.features.inputs import FeatureInputs
from data.features.nine import CLOSE
from data.market import Market
from models.impulses.deviations import fit_deviations
from models.responses import FORECASTS, Responses, up_to_the_last
from utils.arrays import BoolArray, Float32Array, Float64Array
from utils.errors import DataError
from utils.threads import in_order

OfBlock = Callable[[slice], Float32Array]
"""From a block of stocks to their (days, stocks, inputs)."""
Blocks = Iterator[tuple[slice, Float32Array]]
"""Stocks, and their (days, stocks, inputs)."""
_CELLS = 2**18
"""Days times stocks of a block of rows."""

_SCALES = len(HALF_LIVES)
_SIZES = {
    "constant": 1,
    **{f"own {scale}": size for scale, size in (("fast", 3), ("medium", 3), ("slow", _SCALES - 6))},
    **{f"market {scale}": size for scale, size in (("fast", 3), ("medium", 3), ("slow", _SCALES - 6))},
    "volatility": 1,
    "events": len(FORECASTS) - 3,
    "leaders": 1,
    "states": 1,
    "pairs": 1,
    "deviations": 1,
}
"""Inputs of each group: half-lives up to 4, 32 and 128 days are fast, medium and slow."""
_GROUP_OF_INPUT = [name for name, size in _SIZES.items() for _ in range(size)][1:]
INPUTS = sum(_SIZES.values())
"""Inputs that closes tell, the constant included; those of features follow."""
BANK = 2 * _SCALES + 2
"""Inputs before the forecasts of responses: the constant and the bank."""
SHARED = (0, *range(1 + _SCALES, 1 + 2 * _SCALES))
"""Places of those that all stocks of a day share: the constant, and the market's past returns."""
BANK_CLIP = 6.0
"""Standard deviations to which the bank is clipped; the responses' forecasts are not: their rare extremes matter."""
_LARGEST = 1000.0
"""Standard deviations to which all inputs are clipped: half precision ends at 65,504."""
_NETWORK_CLIP = 10.0
"""The bound for networks, which extrapolate badly."""


@dataclass(frozen=True)
class TradeInputs:
    """The transformation of a market into inputs, fitted to its training days."""

    mean: Float32Array
    std: Float32Array
    """(INPUTS - 1,) of stocks with a bar on training days."""
    responses: Responses
    deviations: Float64Array
    """(n, BANK) weights of each stock's own regression."""
    features: FeatureInputs = field(default_factory=FeatureInputs)

    @property
    def size(self) -> int:
        """Number of inputs, the constant included."""
        return INPUTS + len(self.features)

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of inputs, which networks see together or not."""
        return (*(*_SIZES,)[1:], *self.features.groups)

    @property
    def group_of_input(self) -> list[int]:
        """Place among the groups of each input but the constant."""
        names = [*_GROUP_OF_INPUT, *(feature.group for feature in self.features.inputs)]
        return [self.groups.index(name) for name in names]

    def named_places(self) -> dict[str, list[int]]:
        """Return the places of what networks see, by group of what closes tell and by feature."""
        names, places = [*_GROUP_OF_INPUT, *(feature.name for feature in self.features.inputs)], dict[str, list[int]]()
        for place, name in enumerate(names):
            places.setdefault(name, []).append(place)
        return places

    @classmethod
    def fit(cls, market: Market, learned: BoolArray) -> Self:
        """Fit responses, deviations and standardisation to the (days,) learned days."""
        days = up_to_the_last(learned)
        is_used = learned[days, None] & np.isfinite(market.close[days])
        bank, stocks = bank_of(market, days), blocks_of(market)
        scale = standardisation(in_order(lambda block: moments_of(bank(block)[is_used[:, block]]), stocks))
        deviations = np.zeros((market.close.shape[1], BANK))
        inputs = cls(*scale, _responses(market, learned), deviations, FeatureInputs.fit(market, is_used))
        inputs = replace(inputs, deviations=inputs._deviations(market, learned[None])[0])
        told = inputs._forecaster(market, days)

        def moments_of_told(block: slice) -> Moments:
            return moments_of(told(block, inputs._with_constant(bank(block)))[is_used[:, block]])

        rest = pooled_moments(in_order(moments_of_told, stocks))
        mean, std = (np.concatenate(arrays) for arrays in zip(scale, rest, strict=True))
        return replace(inputs, mean=mean, std=std)

    def of(self, market: Market, days: slice = slice(None)) -> Float32Array:
        """Return the (days, n, inputs) of some days of a market; row t depends on bars up to t only."""
        x = np.concatenate([x for _, x in self.blocks(market, days)], axis=1)
        return np.concatenate((x, self.features.of(market, days)), axis=2) if len(self.features) else x

    def rows(self, market: Market, days: slice) -> InputRows:
        """Return the rows of some days, still empty."""
        # In the order of days: the last bits of sums depend on the layout.
        has_bar = np.ascontiguousarray(np.isfinite(market.close))
        return InputRows(days, has_bar, self.size, (*SHARED, *(INPUTS + place for place in self.features.shared)))

    def rows_of(self, market: Market, days: slice) -> InputRows:
        """Return the inputs of the stocks that have a bar on some days."""
        rows = self.rows(market, days)
        rows.fill(days, self.blocks(market, days))
        rows.fill_features(self.features, market, INPUTS)
        return rows

    def blocks(self, market: Market, days: slice = slice(None)) -> Blocks:
        """Return blocks of stocks and their first `INPUTS` on some days, one block after the other."""
        bank, told = bank_of(market, days), self._forecaster(market, days)

        def inputs_of(block: slice) -> Float32Array:
            x = self._with_constant(bank(block))
            return np.concatenate((x, self._standardised(told(block, x), slice(BANK - 1, None))), axis=2)

        return blocks(market, inputs_of)

    def banks(self, market: Market, days: slice) -> Blocks:
        """Return the first `BANK` inputs alone, without forecasts of responses and deviations, block by block."""
        bank = bank_of(market, days)
        return blocks(market, lambda block: self._with_constant(bank(block)))

    def refitted(self, market: Market, learned: BoolArray) -> Iterator[TradeInputs]:
        """Yield the same with responses and deviations that are fitted to the days of one of (sets, days) after the
        other; the standardisation stays."""
        for days, deviations in zip(learned, self._deviations(market, learned), strict=True):
            yield replace(self, responses=_responses(market, days), deviations=deviations)

    def forecasts(self, market: Market, days: slice) -> Blocks:
        """Return the inputs after the bank up to `INPUTS`, block by block."""
        bank, told, rest = bank_of(market, days), self._forecaster(market, days), slice(BANK - 1, None)
        return blocks(market, lambda block: self._standardised(told(block, self._with_constant(bank(block))), rest))

    def _deviations(self, market: Market, learned: BoolArray) -> Float64Array:
        days = up_to_the_last(np.bitwise_or.reduce(learned))
        bank, close, stocks = bank_of(market, days), market.close[days], blocks_of(market)
        return fit_deviations(close, learned[:, days], lambda block: self._with_constant(bank(block)), stocks)

    def _forecaster(self, market: Market, days: slice) -> Callable[[slice, Float32Array], Float32Array]:
        """Return what computes the forecasts of responses and deviations of stocks, before standardisation, from their
        first `BANK` inputs."""
        forecast = self.responses.forecaster(market.data_array[:, :, CLOSE], market.investable_columns, days)

        def told(block: slice, x: Float32Array) -> Float32Array:
            weights = self.deviations[block].astype(np.float32)
            deviation = (x * weights).sum(axis=2, keepdims=True)
            return np.concatenate((forecast(block), deviation), axis=2)

        return told

    def _with_constant(self, bank: Float32Array) -> Float32Array:
        """Return a 1 and the bank, standardised."""
        return np.concatenate((np.ones_like(bank[..., :1]), self._standardised(bank, slice(BANK - 1))), axis=2)

    def _standardised(self, raw: Float32Array, places: slice) -> Float32Array:
        """Return (..., inputs) at some places in standard deviations of the training days."""
        x = (raw - self.mean[places]) / self.std[places]
        bank = x[..., : max(0, BANK - 1 - (places.start or 0))]
        np.clip(bank, -BANK_CLIP, BANK_CLIP, out=bank)
        return x

    def for_networks(self, x: Tensor) -> Tensor:
        """Return what networks see of (..., inputs), (..., inputs - 1): a stock's own past is relative to the market's.

        Groups stay the same. Relative to the market, a stock's past is at most a third as noisy.
        """
        past, market = x[..., 1 : 1 + _SCALES], x[..., 1 + _SCALES : 1 + 2 * _SCALES]
        mean, std = self._standardisation_on(x.device)
        level = market * std[_SCALES : 2 * _SCALES] + mean[_SCALES : 2 * _SCALES]
        relative = past + (mean[:_SCALES] - level) / std[:_SCALES]
        return torch.cat((relative, x[..., 1 + _SCALES :]), dim=-1).clamp(-_NETWORK_CLIP, _NETWORK_CLIP)

    @cached_property
    def _on_devices(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def _standardisation_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return `mean` and `std` on a device; copied once, since nothing may be copied within a CUDA graph."""
        if device not in self._on_devices:
            tensors = torch.from_numpy(self.mean).to(device), torch.from_numpy(self.std).to(device)
            self._on_devices[device] = tensors
        return self._on_devices[device]


Moments = tuple[int, Float64Array, Float64Array]
"""Of a block of inputs: the number of rows, and the (inputs,) means and variances."""


def moments_of(raw: Float32Array) -> Moments:
    """Return the moments of (rows, inputs)."""
    if not len(raw):
        return 0, *np.zeros((2, raw.shape[1]))
    return len(raw), raw.mean(axis=0, dtype=np.float64), raw.var(axis=0, dtype=np.float64)


def pooled_moments(blocks: Iterable[Moments]) -> tuple[Float32Array, Float32Array]:
    """Return means and standard deviations, (inputs,) each, from the moments of blocks of inputs; 1 in place of 0."""
    rows, mean, variance = 0, *np.zeros((2, 1))
    for count, level, spread in blocks:
        # Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample variances".
        share = count / max(rows + count, 1)
        if share > 0:
            change, rows = level - mean, rows + count
            variance = (1 - share) * variance + share * spread + (1 - share) * share * change**2
            mean = mean + share * change
    return mean.astype(np.float32), np.where(variance > 0, np.sqrt(variance), 1.0).astype(np.float32)


def standardisation(blocks: Iterable[Moments]) -> tuple[Float32Array, Float32Array]:
    """Return the same of inputs that begin with the bank; DataError where no close moves."""
    known = [*blocks]
    if not max((spread[:_SCALES].max(initial=0.0) for count, _, spread in known if count), default=0.0) > 0:
        raise DataError("expected closes that move, got constant ones on all training days")
    return pooled_moments(known)


def _responses(market: Market, learned: BoolArray) -> Responses:
    return Responses.fit(market.data_array[:, :, CLOSE], market.investable_columns, learned)


def bank_of(market: Market, days: slice = slice(None)) -> OfBlock:
    """Return what computes the multi-scale banks of stocks on some days."""
    close = market.close[: days.stop]
    series = MarketSeries.of(close, blocks_of(market))
    return lambda block: multi_scale_bank(close[:, block], series)[days]


def blocks_of(market: Market) -> list[slice]:
    """Divide the stocks of a market into blocks."""
    return stock_blocks(len(market.dates), len(market.investable_columns))


def blocks(market: Market, of_block: OfBlock) -> Blocks:
    """Return blocks of stocks, and what is computed of each."""
    return in_order(lambda block: (block, of_block(block)), blocks_of(market))


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

    def __init__(self, days: slice, has_bar: NDArray[np.bool_], inputs: int, shared: Sequence[int] = ()) -> None:
        """Allocate the rows of (all days, n) bars on these days; `shared` are the places of inputs."""
        self.days, self.inputs = days, inputs
        bars = has_bar[days]
        self.first = [0, *np.cumsum(bars.sum(axis=1)).tolist()]
        """First row of each day, and the number of rows."""
        self.first_rows = torch.tensor(self.first)
        self.has_bar = torch.from_numpy(bars)
        self.stock = torch.from_numpy(np.nonzero(bars)[1].astype(np.int32))
        self._is_shared = np.isin(np.arange(inputs), shared)
        self.separate = torch.empty(self.first[-1], int((~self._is_shared).sum()), dtype=torch.float16)
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
            of_stock[places[is_known], begin : begin + count] = x[is_known][:, ~is_shared].clip(-_LARGEST, _LARGEST)
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
                of_stock[:, column] = values[bars].clip(-_LARGEST, _LARGEST)

    def to(self, device: torch.device | str) -> InputRows:
        """Return the same rows on a device."""
        other = copy.copy(self)
        for name in ("separate", "shared", "stock", "has_bar", "first_rows"):
            setattr(other, name, getattr(self, name).to(device))
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

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the (..., inputs) of (...) rows, with their days, counted from the first of these, and stocks."""
        day = torch.searchsorted(self.first_rows, rows.contiguous(), right=True) - 1
        return self._joined(self.separate[rows], self.shared[day]), day, self.stock[rows].long()

    def dense(self, days: slice) -> Float32Array:
        """Return the (days, n, inputs) of some days, 0 without a bar, on the CPU."""
        bars = self.has_bar[self.here(days)]
        dense = torch.zeros(*bars.shape, self.inputs)
        dense[bars] = self.x(days)
        return np.asarray(dense.numpy(), dtype=np.float32)

    def spread(self, values: Tensor, days: slice, fill: float = 0.0) -> Tensor:
        """Return (..., rows) values of some days as (..., days, n), `fill` without a bar."""
        bars = self.has_bar[self.here(days)]
        shape = (*values.shape[:-1], *bars.shape)
        return values.new_full(shape, fill).masked_scatter_(bars, values)

    def compact(self, values: Tensor, days: slice) -> Tensor:
        """Return (A, days, n) values of some days as (A, rows)."""
        day = torch.arange(values.shape[1], device=values.device)
        place = self.of_day(day[None], days)[0] * values.shape[2] + self.stock[self.rows(days)]
        return values.flatten(1).index_select(1, place)

    def mean(self, values: Tensor, days: slice) -> Tensor:
        """Return the means over the stocks of each day of (A, rows) values, (A, days)."""
        return self.spread(values, days).sum(-1) / self.has_bar[self.here(days)].sum(1).clamp(min=1)

    def of_day(self, values: Tensor, days: slice) -> Tensor:
        """Return the (A, rows) values of the day of each row, from (A, days)."""
        rows, counts = self.rows(days), self.has_bar[self.here(days)].sum(1)
        return values.repeat_interleave(counts, dim=1, output_size=rows.stop - rows.start)

    def relative(self, values: Tensor, days: slice) -> Tensor:
        """Return (A, rows) values less their mean over the stocks of the day."""
        return values - self.of_day(self.mean(values, days), days)

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
