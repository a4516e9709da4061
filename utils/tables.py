"""Rows as aligned text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as aligned text under a header, with numbers to the right."""
    padded = []
    for column in columns:
        values = [row.get(column) for row in rows]
        texts = [printable(column), *map(cell, values)]
        width, side = max(map(len, texts)), ">" if any(map(_is_number, values)) else "<"
        padded.append([f"{text:{side}{width}}" for text in (texts[0], "-" * width, *texts[1:])])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def cell(value: Any) -> str:
    """Return a value as text: thousands separators, two decimals, - for None and NaN."""
    if value is None or (isinstance(value, float | np.floating) and not math.isfinite(value)):
        return "-"
    if isinstance(value, float | np.floating):
        return f"{value:,.2f}"
    return f"{value:,}" if _is_number(value) else printable(str(value))


def printable(text: str) -> str:
    """Return a text from a file for the terminal: no character of it moves the cursor or begins a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def spreadsheet_text(text: str) -> str:
    """Return a text from a file for a cell that a spreadsheet does not take for a formula."""
    return ("'" if text.startswith(("=", "+", "-", "@")) else "") + printable(text)
