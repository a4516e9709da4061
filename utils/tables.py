"""Rows as aligned text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as aligned text under a header, numbers to the right; see `cell`."""
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    to_right = [any(_is_number(row.get(column)) for row in rows) for column in columns]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(_aligned(line, widths, to_right) for line in lines)


def _aligned(line: Sequence[str], widths: Sequence[int], to_right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if right else cell.ljust(width)
        for cell, width, right in zip(line, widths, to_right, strict=True)
    )
    return "  ".join(padded).rstrip()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def cell(value: Any) -> str:
    """Return a value as text: numbers with separators, floats with two decimals, what is missing as -."""
    if value is None or (isinstance(value, float | np.floating) and not math.isfinite(value)):
        return "-"
    if isinstance(value, float | np.floating):
        return f"{value:,.2f}"
    return f"{value:,}" if _is_number(value) else str(value)
