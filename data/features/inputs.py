"""Inputs of forecasts for a stock at a close: the multi-scale bank, the responses' forecasts and the features of the
data, standardised."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from data.features.bank import HALF_LIVES, MarketSeries, multi_scale_bank, stock_blocks
from data.features.deviations import fit_deviations
from data.features.forms import FeatureInputs
from data.features.formulas import FORECASTS as FORMULAS
from data.features.formulas import Formulas
from data.features.grammar import next_returns
from data.features.nine import CLOSE
from data.features.responses import EVENT_SESSIONS, Responses, up_to_the_last
from data.features.rows import LARGEST, Blocks, InputRows
from data.market import Market
from utils.arrays import BoolArray, Float32Array, Float64Array, in_order
from utils.errors import DataError

OfBlock = Callable[[slice], Float32Array]
"""From a block of stocks to their (days, stocks, inputs)."""

_SCALES = len(HALF_LIVES)
_SIZES_OF_SCALES = ("fast", 3), ("medium", 3), ("slow", _SCALES - 6)
_SIZES = {
    "constant": 1,
    **{f"{whose} {scale}": size for whose in ("own", "market") for scale, size in _SIZES_OF_SCALES},
    "volatility": 1,
    "events": len(EVENT_SESSIONS),
    "leaders": 2,
    "states": 2,
    "deviations": 1,
}
"""Inputs of each group: half-lives up to 4, 32 and 128 days are fast, medium and slow."""
_GROUP_OF_INPUT = [name for name, size in _SIZES.items() for _ in range(size)][1:]
_FORMULAS = "formulas"
INPUTS = sum(_SIZES.values())
"""Inputs that closes tell, the constant included; those of features follow."""
BANK = 2 * _SCALES + 2
"""Inputs before the forecasts of responses: the constant and the bank."""
SHARED = (0, *range(1 + _SCALES, 1 + 2 * _SCALES))
"""Places of those that all stocks of a day share: the constant, and the market's past returns."""
BANK_CLIP = 6.0
"""Standard deviations to which the bank is clipped; the responses' forecasts are not: their rare extremes matter."""
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
    formulas: Formulas = field(default_factory=Formulas)

    @property
    def size(self) -> int:
        """Number of inputs, the constant included; the last ones are forecasts of formulas."""
        return INPUTS + len(self.features) + FORMULAS

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of inputs, which networks see together or not."""
        return (*(*_SIZES,)[1:], *self.features.groups, _FORMULAS)

    @property
    def group_of_input(self) -> list[int]:
        """Place among the groups of each input but the constant."""
        names = [*_GROUP_OF_INPUT, *(feature.group for feature in self.features.inputs), *[_FORMULAS] * FORMULAS]
        return [self.groups.index(name) for name in names]

    def named_places(self) -> dict[str, list[int]]:
        """Return the places of what networks see, by group of what closes tell, by feature, and formulas."""
        formulas = "; ".join((_FORMULAS, *map(str, self.formulas.formulas)))
        names = [*_GROUP_OF_INPUT, *(feature.name for feature in self.features.inputs), *[formulas] * FORMULAS]
        places = dict[str, list[int]]()
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
        rows = self.rows_of(market, market.bounded(days))
        return rows.dense(rows.days)

    def rows(self, market: Market, days: slice) -> InputRows:
        """Return the rows of some days, still empty."""
        # In the order of days: the last bits of sums depend on the layout.
        has_bar = np.ascontiguousarray(np.isfinite(market.close))
        return InputRows(days, has_bar, self.size, (*SHARED, *(INPUTS + place for place in self.features.shared)))

    def rows_of(self, market: Market, days: slice, within: InputRows | None = None) -> InputRows:
        """Return the inputs of the stocks that have a bar on some days, perhaps `within` rows that are still empty."""
        _, (inputs, rows) = market.memo.get("rows", (0, (None, None)))
        if inputs is not self or not rows.days.start <= days.start <= days.stop <= rows.days.stop:
            rows = self.rows(market, days) if within is None else within.part(days)
            rows.fill(days, self.blocks(market, days))
            rows.fill_features(self.features, market, INPUTS)
            self.fill_formulas(rows, market, days)
            market.memo.clear()  # these rows are all that is needed of it
            market.memo["rows"] = days.stop, (self, rows)
        part: InputRows = rows.part(days)
        return part

    def fill_formulas(self, rows: InputRows, market: Market, days: slice) -> None:
        """Write forecasts of formulas on some days of rows."""
        forecasts = torch.from_numpy(self.formulas.of(market, days)).permute(1, 2, 0)[rows.has_bar[rows.here(days)]]
        rows.separate[rows.rows(days), -FORMULAS:] = forecasts.clamp(-LARGEST, LARGEST).half()

    def fit_formulas(self, market: Market, days: slice, learned: Sequence[BoolArray]) -> list[Formulas]:
        """Search formulas by each of some sets of (days,) on which the next returns of these days may be read."""
        returns = np.full((2, days.stop, len(market.stock_columns)), np.nan)
        returns[:, days] = next_returns(market, days)
        return Formulas.fit(market, returns, [known[: days.stop] for known in learned])

    def blocks(self, market: Market, days: slice) -> Blocks:
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

    def refitted(self, market: Market, learned: BoolArray) -> Iterator[Self]:
        """Yield the same with responses and deviations that are fitted to the days of one of (sets, days) after the
        other; the standardisation stays."""
        for days, deviations in zip(learned, self._deviations(market, learned), strict=True):
            yield replace(self, responses=_responses(market, days), deviations=deviations)

    def forecasts(self, market: Market, days: slice) -> Blocks:
        """Return the inputs after the bank up to `INPUTS`, block by block."""
        return ((stocks, x[..., BANK:]) for stocks, x in self.blocks(market, days))

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
        """Return a 1 and the bank, standardised and clipped."""
        x = self._standardised(bank, slice(BANK - 1)).clip(-BANK_CLIP, BANK_CLIP)
        return np.concatenate((np.ones_like(bank[..., :1]), x), axis=2)

    def _standardised(self, raw: Float32Array, places: slice) -> Float32Array:
        """Return (..., inputs) at some places in standard deviations of the training days."""
        return (raw - self.mean[places]) / self.std[places]

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


def bank_of(market: Market, days: slice) -> OfBlock:
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
