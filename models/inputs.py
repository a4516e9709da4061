"""Inputs of forecasts for a stock at a close: the multi-scale bank and the responses' forecasts, standardised."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.bank import HALF_LIVES, MarketSeries, multi_scale_bank, stock_blocks
from data.features import CLOSE
from data.market import Market
from models.input_rows import Blocks
from models.responses import FORECASTS, Responses
from utils.errors import DataError

BoolArray = NDArray[np.bool_]
Float32Array = NDArray[np.float32]

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
}
"""Inputs of each group: half-lives up to 4, 32 and 128 days are fast, medium and slow."""
GROUPS = (*_SIZES,)[1:]
"""Groups of inputs that share a penalty; the constant is not penalised."""
GROUP_OF_INPUT = np.repeat(np.arange(-1, len(GROUPS)), [*_SIZES.values()])
"""(inputs,) place among the groups; -1 for the constant."""
INPUTS = len(GROUP_OF_INPUT)
BANK = 2 * _SCALES + 2
"""Inputs before the forecasts of responses: the constant and the bank."""
SHARED = (0, *range(1 + _SCALES, 1 + 2 * _SCALES))
"""Places of the inputs that all stocks of a day share: the constant, and the market's past returns."""
BANK_CLIP = 6.0
"""Standard deviations to which the bank is clipped; the responses' forecasts are not: their rare extremes matter."""
_NETWORK_CLIP = 10.0
"""Likewise for networks, which extrapolate badly."""


@dataclass(frozen=True)
class TradeInputs:
    """The transformation of a market into inputs, fitted to its training days."""

    mean: Float32Array
    std: Float32Array
    """(inputs - 1,) of stocks with a bar on training days."""
    responses: Responses

    @classmethod
    def fit(cls, market: Market, learned: BoolArray) -> Self:
        """Fit responses and standardisation to the (days,) learned days."""
        responses = _responses(market, learned)
        days = slice(0, np.flatnonzero(learned)[-1:].sum() + 1)
        is_used = learned[days, None] & np.isfinite(market.close[days])
        raw = (raw[is_used[:, stocks]] for stocks, raw in _raw(market, responses, days))
        return cls(*standardisation(raw), responses)

    def of(self, market: Market, days: slice = slice(None)) -> Float32Array:
        """Return the (days, n, inputs) of some days of a market; row t depends on closes up to t only."""
        return np.concatenate([x for _, x in self.blocks(market, days)], axis=1)

    def blocks(self, market: Market, days: slice = slice(None)) -> Blocks:
        """Return likewise stocks and their inputs, one block of stocks by one."""
        for stocks, raw in _raw(market, self.responses, days):
            x = np.ones((*raw.shape[:2], INPUTS), dtype=np.float32)
            x[..., 1:] = self._standardised(raw, slice(None))
            yield stocks, x

    def banks(self, market: Market, days: slice) -> Blocks:
        """Return likewise the first inputs only, without forecasts of responses."""
        for stocks, bank in bank_blocks(market, days):
            x = np.ones((*bank.shape[:2], BANK), dtype=np.float32)
            x[..., 1:] = self._standardised(bank, slice(BANK - 1))
            yield stocks, x

    def forecasts(self, market: Market, learned: BoolArray, days: slice) -> Blocks:
        """Return likewise the other inputs, by responses that are fitted to other (days,) learned days."""
        responses = _responses(market, learned)
        close = market.data_array[:, :, CLOSE]
        for stocks, forecast in responses.forecasts(close, market.investable_columns, days):
            yield stocks, self._standardised(forecast, slice(BANK - 1, None))

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
        own, market = x[..., 1 : 1 + _SCALES], x[..., 1 + _SCALES : 1 + 2 * _SCALES]
        mean, std = self._standardisation_on(x.device)
        level = market * std[_SCALES : 2 * _SCALES] + mean[_SCALES : 2 * _SCALES]
        relative = own + (mean[:_SCALES] - level) / std[:_SCALES]
        return torch.cat((relative, x[..., 1 + _SCALES :]), dim=-1).clamp(-_NETWORK_CLIP, _NETWORK_CLIP)

    @cached_property
    def _on_devices(self) -> dict[torch.device, tuple[Tensor, Tensor]]:
        return {}

    def _standardisation_on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return `mean` and `std` on a device; copied once, since nothing may be copied within a CUDA graph."""
        if device not in self._on_devices:
            parts = torch.from_numpy(self.mean).to(device), torch.from_numpy(self.std).to(device)
            self._on_devices[device] = parts
        return self._on_devices[device]


def standardisation(blocks: Iterable[Float32Array]) -> tuple[Float32Array, Float32Array]:
    """Return means and standard deviations, (inputs,) each, of blocks of (rows, inputs) that begin with the bank;
    DataError where no close moves."""
    rows, mean, variance = 0, *np.zeros((2, 1))
    for raw in blocks:
        # Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for computing sample variances".
        share = len(raw) / max(rows + len(raw), 1)
        if share > 0:
            change, rows = raw.mean(axis=0, dtype=np.float64) - mean, rows + len(raw)
            spread = raw.var(axis=0, dtype=np.float64)
            variance = (1 - share) * variance + share * spread + (1 - share) * share * change**2
            mean = mean + share * change
    if not variance[:_SCALES].max(initial=0.0) > 0:
        raise DataError("expected closes that move, got constant ones on all training days")
    return mean.astype(np.float32), np.where(variance > 0, np.sqrt(variance), 1.0).astype(np.float32)


def _responses(market: Market, learned: BoolArray) -> Responses:
    return Responses.fit(market.data_array[:, :, CLOSE], market.investable_columns, learned)


def _raw(market: Market, responses: Responses, days: slice = slice(None)) -> Blocks:
    """Return the inputs before standardisation, one block of stocks by one."""
    close = market.data_array[:, :, CLOSE]
    forecasts = responses.forecasts(close, market.investable_columns, days)
    for (stocks, bank), (_, forecast) in zip(bank_blocks(market, days), forecasts, strict=True):
        yield stocks, np.concatenate((bank, forecast), axis=2)


def bank_blocks(market: Market, days: slice = slice(None)) -> Blocks:
    """Return stocks and their multi-scale banks on some days, one block of stocks by one."""
    close = market.close
    blocks, close = stock_blocks(*close.shape), close[: days.stop]
    series = MarketSeries.of(close, blocks)
    for stocks in blocks:
        yield stocks, multi_scale_bank(close[:, stocks], series)[days]
