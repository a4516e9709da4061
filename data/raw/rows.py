"""Values of bars by role, made into rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from data.raw.layout import PRICES
from data.raw.text import Float64Array, Int32Array


def with_all_prices(values: dict[str, Float64Array]) -> dict[str, Float64Array]:
    """Return values by role with all prices, the close where there is no other, and a volume, NaN if unknown."""
    unknown = np.full_like(values["close"], np.nan)
    return {role: values["close"] for role in PRICES} | {"volume": unknown} | values


def joined(parts: Sequence[tuple[int, Int32Array, dict[str, Float64Array]]]) -> pd.DataFrame:
    """Return one table of the code, days and values by role of each ticker; a role that one lacks is NaN there."""
    roles = dict.fromkeys(role for _, _, values in parts for role in values)
    codes = np.repeat(np.array([code for code, _, _ in parts], dtype=np.int32), [len(day) for _, day, _ in parts])
    columns = {
        role: np.concatenate([values.get(role, np.full(len(day), np.nan)) for _, day, values in parts])
        for role in roles
    }
    return pd.DataFrame({"day": np.concatenate([day for _, day, _ in parts]), "ticker": codes} | columns)
