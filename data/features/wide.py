"""Daily bars as wide frames, days by tickers, as features are computed from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from data.features.nine import CLOSE, HIGH, LOW, NUM_FEATURES, OPEN
from utils.arrays import DateArray, Float32Array, Int64Array
from utils.config.settings import hint
from utils.errors import DataError


@dataclass(frozen=True)
class WideBars:
    """Bars of some tickers as (days, tickers) frames: `close`, `volume`, and every further column by `bars["name"]`.

    Values are NaN where there is none. Frames are made anew each time: changing one changes nothing else.
    """

    data_array: Float32Array
    """(days, columns, 9), of which days up to the last date are read."""
    dates: DateArray
    tickers: Sequence[str]
    shares: Float32Array | None = None
    """(days, columns) traded; None where the data have no volume."""
    columns: Mapping[str, Float32Array] = field(default_factory=dict)
    """(days, columns) further columns of the data by name."""
    places: Int64Array | None = None
    """Column of each ticker; None: all in order. Nothing is copied before a frame is made."""

    @property
    def open(self) -> pd.DataFrame:
        """First price of the session."""
        return self.feature(OPEN)

    @property
    def high(self) -> pd.DataFrame:
        """Highest price of the session."""
        return self.feature(HIGH)

    @property
    def low(self) -> pd.DataFrame:
        """Lowest price of the session."""
        return self.feature(LOW)

    @property
    def close(self) -> pd.DataFrame:
        """Last price of the session."""
        return self.feature(CLOSE)

    @property
    def volume(self) -> pd.DataFrame:
        """Shares traded. Raises DataError where the data have none."""
        if self.shares is None:
            raise DataError("expected data with a column 'volume', which a feature reads, got data without it")
        return self._frame(self.shares)

    @property
    def previous_close(self) -> pd.DataFrame:
        """Last close before the day."""
        return self.close.ffill().shift()

    @property
    def log_returns(self) -> pd.DataFrame:
        """Logarithm of the close over the last one before it."""
        if "returns" not in self.memo:
            self.memo["returns"] = np.log(self.close / self.previous_close)
        return self.memo["returns"].copy()

    @property
    def relative_returns(self) -> pd.DataFrame:
        """The same less their mean over the stocks of each day."""
        if "relative" not in self.memo:
            returns = self.log_returns
            self.memo["relative"] = returns.sub(returns.mean(axis=1), axis=0)
        return self.memo["relative"].copy()

    def __getitem__(self, name: str) -> pd.DataFrame:
        """Return a further column of the data. Raises DataError for an unknown one."""
        if name in ("open", "high", "low", "close", "volume"):
            return getattr(self, name)
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise DataError(f"expected a further column of the data ({known}), got {name!r}{hint(name, self.columns)}")
        return self._frame(self.columns[name])

    def feature(self, place: int) -> pd.DataFrame:
        """Return one of the nine features by its place."""
        assert 0 <= place < NUM_FEATURES
        return self._frame(self.data_array[:, :, place])

    def _frame(self, values: Float32Array) -> pd.DataFrame:
        values = values[: len(self.dates)]
        values = values if self.places is None else values[:, self.places]
        days, tickers = self._axes
        return pd.DataFrame(values.astype(np.float64), index=days, columns=tickers, copy=False)

    @cached_property
    def memo(self) -> dict[str, Any]:
        """What several features need of these bars and compute once."""
        return {}

    @cached_property
    def _axes(self) -> tuple[pd.DatetimeIndex, pd.Index]:
        """Shared by all frames, so that pandas need not align them."""
        return pd.DatetimeIndex(self.dates), pd.Index(self.tickers)
