"""A measured figure beside its prediction."""

from __future__ import annotations

from dataclasses import dataclass

MOST_RATIO = 1.5
"""Of what is measured to what is predicted."""


@dataclass(frozen=True)
class Finding:
    """One figure."""

    name: str
    value: float | str | None
    unit: str = ""
    expected: float | None = None
    """What was predicted, in the same unit."""
    note: str = ""
    fault: str = ""
    """What is wrong; empty: nothing."""


def predicted(name: str, value: float, unit: str, expected: float | None, note: str = "") -> Finding:
    """Return a figure with its prediction; it is a fault to be far above."""
    is_over = expected is not None and value > MOST_RATIO * expected
    fault = f"{value:.3g} {unit}, predicted {expected:.3g}, at most {MOST_RATIO} times that" if is_over else ""
    notes = [note] * bool(note) + ["no prediction"] * (expected is None)
    return Finding(name, value, unit, expected, ", ".join(notes), fault)


def line(finding: Finding) -> str:
    """Format a figure beside its prediction."""
    value = finding.value
    text = "-" if value is None else value if isinstance(value, str) else f"{value:,.4g} {finding.unit}".rstrip()
    ratio = ""
    if finding.expected is not None and isinstance(value, float | int):
        ratio = f"predicted {finding.expected:,.4g}, ratio {value / finding.expected:.2f}"
    rest = "; ".join(part for part in (ratio, finding.note, finding.fault and f"FAULT {finding.fault}") if part)
    return f"{finding.name:<64} {text:>18}  {rest}".rstrip()
