"""Features as inputs of networks and regressions: standardised, and 0 where a value is missing, in which case another
input says so."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Any, Self

import numpy as np
import pandas as pd

from data.features.bank import apart, exponential_mean, has_return, log_returns, stock_blocks
from data.features.catalogue import LIBRARY, Feature
from data.features.wide import WideBars
from data.market import Market
from utils.arrays import BoolArray, Float32Array, Float64Array
from utils.config.settings import hint
from utils.errors import DataError
from utils.progress import in_parts

_CLIP = 6.0
"""Standard deviations to which inputs are clipped."""
_YEAR, _LEAST = 252, 60
"""Sessions of its own past to which a market-wide value is compared, and the fewest that are."""
_TRENDS = (2, 8, 32)
"""Half-lives in days of the trends by which market-wide values are multiplied."""
_COMPLETE = 0.99
"""Coverage of the learned rows from which on missing values get no input of their own."""
_ROUNDING = 1e-4
"""Share of a feature's largest value up to which it varies by the rounding of prices."""
_KEPT_CELLS = 2**19
"""Days times stocks up to which values of features are kept: those of a large market are large."""


@dataclass(frozen=True)
class FeatureValues:
    """A feature's values, and closes, (days, n) each since the first day of the data, with what its inputs share."""

    values: Float32Array
    close: Float32Array

    @cached_property
    def against_past(self) -> Float64Array:
        """(days, 1) what the stocks of a day share, in standard deviations of the year before."""
        of_day = pd.DataFrame(self.values).astype(np.float64).bfill(axis=1).iloc[:, 0]
        past = of_day.rolling(_YEAR, min_periods=_LEAST)
        against = ((of_day - past.mean()) / past.std().where(lambda std: std > 0)).ffill()
        scores: Float64Array = against.to_numpy()[:, None]
        return scores

    @cached_property
    def _relative_returns(self) -> Float64Array:
        """(days, n) log returns less those of all stocks."""
        returns, is_move = log_returns(self.close), has_return(self.close)
        market = returns.sum(axis=1, keepdims=True) / np.maximum(is_move.sum(axis=1, keepdims=True), 1)
        return np.where(is_move, returns - market, 0.0)

    def trend(self, half_life: int) -> Float64Array:
        """Return the (days, n) exponentially weighted means of the stocks' relative returns."""
        return exponential_mean(self._relative_returns, half_life)


@dataclass(frozen=True)
class FeatureInput:
    """One input: a feature in its form, or whether it is known."""

    name: str
    group: str
    form: str
    """`level`: as it is, standardised over all stocks and learned days; `relative`: less the mean of the day's stocks;
    `rank`: among these; `past`: against the year before; `trend`: that times a stock's own trend; `known`: whether
    there is a value."""
    mean: float = 0.0
    std: float = 1.0
    half_life: int = 0
    """Days, of a trend."""

    def of(self, read: FeatureValues, days: slice = slice(None)) -> Float32Array:
        """Return the (days, n) input on some days."""
        values, known = read.values[days], np.isfinite(read.values[days])
        if self.form == "known":
            return known.astype(np.float32) - 1.0
        if self.form == "rank":
            frame = pd.DataFrame(np.where(known, values, np.nan))
            count = known.sum(axis=1, keepdims=True)
            scaled = (frame.rank(axis=1).to_numpy() - (count + 1) / 2) * np.sqrt(12.0) / np.maximum(count, 2)
        elif self.form == "relative":
            scaled = apart(values) / self.std
        elif self.form == "past":
            scaled = np.broadcast_to(read.against_past[days], values.shape)
        elif self.form == "trend":
            scaled = read.against_past[days] * (read.trend(self.half_life)[days] / self.std)
        else:
            scaled = (values - self.mean) / self.std
        inputs: Float32Array = np.clip(np.nan_to_num(scaled), -_CLIP, _CLIP).astype(np.float32)
        return inputs


@dataclass(frozen=True)
class FeatureInputs:
    """The features that agents read, in order."""

    inputs: tuple[FeatureInput, ...] = ()

    @classmethod
    def fit(cls, market: Market, is_used: BoolArray) -> Self:
        """Take the features of a market; standardise levels over the (days, n) cells that are learned from.

        A feature that never varies there but by rounding is left out; one that lacks values has an input that says so.
        """
        inputs, bars, stop = list[FeatureInput](), StockBars.bought(market, len(is_used)), len(is_used)
        close = market.close[:stop]
        for feature in in_parts([one for one in market.features if one.group != LIBRARY], 20):
            read = FeatureValues(values_from(feature, bars)[:stop], close)
            values = np.where(is_used, read.values, np.nan)
            known = values[np.isfinite(values)].astype(np.float64)
            if not known.size or np.ptp(known) <= _ROUNDING * np.abs(known).max():
                continue
            mean, std = (float(known.mean()), float(known.std())) if feature.form == "level" else (0.0, 1.0)
            if feature.form == "relative":
                std = float(np.nanstd(apart(values)[np.isfinite(values)])) or 1.0
            of_feature = partial(FeatureInput, feature.name, feature.group)
            inputs.append(of_feature(feature.form, mean, std))
            if feature.form == "past":  # alone it does not tell one stock from another
                for half_life in _TRENDS:
                    std = float(read.trend(half_life)[is_used].std())
                    inputs.append(of_feature("trend", std=std, half_life=half_life))
            if known.size < _COMPLETE * is_used.sum():
                inputs.append(of_feature("known"))
        return cls(tuple(inputs))

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def shared(self) -> tuple[int, ...]:
        """Places of the inputs that all stocks of a day share."""
        return tuple(place for place, one in enumerate(self.inputs) if one.form == "past")

    def places(self, name: str, first: int = 0) -> list[int]:
        """Return the places of the inputs that a feature gives, the first of all at `first`."""
        return [first + place for place, one in enumerate(self.inputs) if one.name == name]

    @property
    def groups(self) -> tuple[str, ...]:
        """Names of the groups of inputs, each once."""
        return tuple(dict.fromkeys(one.group for one in self.inputs))

    def columns(self, market: Market, days: slice) -> Iterator[tuple[int, Float32Array]]:
        """Yield place and (days, n) values of each input on some days. Raises DataError where the market lacks one."""
        days = market.bounded(days)
        close, bars = market.close[: days.stop], StockBars.bought(market, days.stop)
        by_name = groupby(enumerate(self.inputs), key=lambda one: one[1].name)
        for name, inputs in in_parts([(name, [*inputs]) for name, inputs in by_name], 8):
            read = FeatureValues(values_from(feature_of(market, name), bars)[: days.stop], close)
            for place, feature in inputs:
                yield place, feature.of(read, days)

    def state(self) -> list[dict[str, Any]]:
        """Return JSON values."""
        return [vars(one) for one in self.inputs]

    @classmethod
    def from_state(cls, state: Sequence[dict[str, Any]]) -> Self:
        """Restore what `state` gave."""
        return cls(tuple(FeatureInput(**fields) for fields in state))


def observed_columns(market: Market) -> dict[FeatureInput, Float32Array]:
    """Return volume and the further columns of a market, (days, columns) each, by the form in which they are observed:
    none for agents of past returns."""
    if not market.features:
        return {}
    forms = {one.name: one.form for one in market.features}
    return {FeatureInput(name, "", forms.get(name, "rank")): values for name, values in market.extra_columns.items()}


def values_of(market: Market, name: str, days: slice) -> Float32Array:
    """Return the (days, n) values of a feature of the stocks that may be bought, NaN where there is none.

    Raises `DataError` if the market does not have it.
    """
    days = market.bounded(days)
    return values_from(feature_of(market, name), StockBars.bought(market, days.stop))[days]


def feature_of(market: Market, name: str) -> Feature:
    """Return a feature of a market by its name. Raises `DataError` if the market does not have it."""
    feature = next((one for one in market.features if one.name == name), None)
    if feature is None:
        known = [one.name for one in market.features]
        raise DataError(
            f"expected data with {name!r}, which the agents read, got {', '.join(known) or 'no features'}"
            f"{hint(name, known)}; give data that have it"
        )
    return feature


class StockBars:
    """Bars of a market's stocks before a day: in blocks, for frames of a large market are large."""

    def __init__(self, market: Market, stop: int, count: int, *, keeps: bool = False) -> None:
        """Take the first of its stocks; each is seen beside all of them. Values of features may be kept."""
        self.count, self.stop, self.known = count, stop, dict[str, Float32Array]()
        self.keeps = keeps and stop * count <= _KEPT_CELLS
        # What features keep of all stocks is kept once; days after these change nothing.
        self.whole: WideBars = market.known_until("whole", stop, lambda last: market.wide(market.stock_columns, last))
        blocks = stock_blocks(stop, self.count)
        self.blocks = [market.wide(market.stock_columns[: self.count][block], stop) for block in blocks]

    @classmethod
    def bought(cls, market: Market, stop: int) -> Self:
        """Return those of the stocks that may be bought, of at least these days, which keep values of features."""
        bought = len(market.investable_columns)
        return market.known_until("bars", stop, lambda last: cls(market, last, bought, keeps=True))


def values_from(feature: Feature, bars: StockBars) -> Float32Array:
    """Return the (days, n) values of a feature, NaN where there is none."""
    if feature.name in bars.known:
        return bars.known[feature.name]
    values, last = np.empty((bars.stop, bars.count), dtype=np.float32), 0
    for some in [bars.whole] if feature.reads_all else bars.blocks:
        first, last = last, min(last + len(some.tickers), bars.count)
        with np.errstate(all="ignore"):
            values[:, first:last] = feature.of(some).to_numpy(np.float32)[: bars.stop, : last - first]
    values[~np.isfinite(values)] = np.nan
    if bars.keeps:
        bars.known[feature.name] = values
    return values
