"""Rows as aligned text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]
"""Rows of a table: cells by the titles of their columns."""


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None, digits: int = 2) -> str:
    """Return rows as aligned text under a header, with numbers to the right, rounded to a number of digits.

    Args:
        columns: default: those of the first row.
    """
    padded = []
    for column in columns or rows[0]:
        values = [row.get(column) for row in rows]
        texts = [printable(column), *(cell(value, digits) for value in values)]
        width, side = max(map(len, texts)), ">" if any(map(_is_number, values)) else "<"
        padded.append([f"{text:{side}{width}}" for text in (texts[0], "-" * width, *texts[1:])])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def cell(value: Any, digits: int = 2) -> str:
    """Return a value as text: thousands separators, decimals, - for None and NaN."""
    if value is None:
        return "-"
    if isinstance(value, float | np.floating):
        return f"{value:,.{digits}f}" if math.isfinite(value) else "-"
    return f"{value:,}" if _is_number(value) else printable(str(value))


def many(count: int, word: str) -> str:
    """Return a number of things in words, as `1 stock` and `2 stocks`."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def listed(texts: Sequence[str], most: int = 5) -> str:
    """Return the first texts, separated by commas, and how many others there are."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def written_p(p_value: float | None) -> str:
    """Return a p-value as text, rounded up, so that it is at most a threshold of whole thousandths if the value is."""
    if p_value is None:
        return "-"
    return "< 0.001" if p_value < 0.001 else f"{math.ceil(1000 * p_value - 1e-9) / 1000:.3f}"


def p_words(p_value: float) -> str:
    """Return "p < 0.001" or "p = 0.012"."""
    text = written_p(p_value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def printable(text: str) -> str:
    """Return a text from a file for the terminal: no character of it moves the cursor or begins a line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def spreadsheet_text(text: str) -> str:
    """Return a text from a file for a cell that a spreadsheet does not take for a formula."""
    return ("'" if text.startswith(("=", "+", "-", "@")) else "") + printable(text)
