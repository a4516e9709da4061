"""Inputs of forecasts for a stock at a close: the multi-scale bank and the responses' forecasts, standardised."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.bank import HALF_LIVES, multi_scale_bank
from data.features import CLOSE
from data.market import Market
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
_BANK = 2 * _SCALES + 1
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
        raw = _raw(market, responses)[learned[:, None] & np.isfinite(market.close)]
        return cls(*standardisation(raw), responses)

    def of(self, market: Market) -> Float32Array:
        """Return the (days, n, inputs) of a market; row t depends on closes up to t only."""
        x = (_raw(market, self.responses) - self.mean) / self.std
        x[..., :_BANK] = np.clip(x[..., :_BANK], -BANK_CLIP, BANK_CLIP)
        return np.concatenate((np.ones_like(x[..., :1]), x), axis=2)

    def for_networks(self, x: Tensor) -> Tensor:
        """Return what networks see, (days, n, inputs - 1): a stock's own past is relative to the market's.

        Groups stay the same. Relative to the market, a stock's past is at most a third as noisy.
        """
        own, market = x[..., 1 : 1 + _SCALES], x[..., 1 + _SCALES : 1 + 2 * _SCALES]
        mean, std = (torch.from_numpy(part).to(x.device) for part in (self.mean, self.std))
        level = market * std[_SCALES : 2 * _SCALES] + mean[_SCALES : 2 * _SCALES]
        relative = own + (mean[:_SCALES] - level) / std[:_SCALES]
        return torch.cat((relative, x[..., 1 + _SCALES :]), dim=-1).clamp(-_NETWORK_CLIP, _NETWORK_CLIP)

    def without(self, x: Float32Array, market: Market, learned: BoolArray, days: slice = slice(None)) -> Float32Array:
        """Return a market's inputs `x` of some days, with the forecasts of responses fitted to other days in place."""
        forecast = (_forecast(market, _responses(market, learned))[days] - self.mean[_BANK:]) / self.std[_BANK:]
        return np.concatenate((x[days, :, : 1 + _BANK], forecast), axis=2)


def standardisation(raw: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Return means and standard deviations, (inputs,) each, of (rows, inputs) that begin with the bank; DataError
    where no close moves."""
    std = raw.std(axis=0, dtype=np.float64)
    if not std[:_SCALES].max(initial=0.0) > 0:
        raise DataError("expected closes that move, got constant ones on all training days")
    mean = raw.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean, np.where(std > 0, std, 1.0).astype(np.float32)


def _responses(market: Market, learned: BoolArray) -> Responses:
    return Responses.fit(market.data_array[:, :, CLOSE], market.investable_columns, learned)


def _raw(market: Market, responses: Responses) -> Float32Array:
    return np.concatenate((multi_scale_bank(market.close), _forecast(market, responses)), axis=2)


def _forecast(market: Market, responses: Responses) -> Float32Array:
    return responses.forecast(market.data_array[:, :, CLOSE], market.investable_columns)
