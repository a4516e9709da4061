"""What a stretch of a generation does on a card: operations launched, waits of the host, bytes copied and in use."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Phase:
    """What one stretch of a generation did."""

    lines: Counter[str] = field(default_factory=Counter)
    """Operations launched, by line of code."""
    waits: Counter[str] = field(default_factory=Counter)
    """Of the host for the device, by cause and line of code."""
    copied: int = 0
    """Bytes between host and device."""
    peak: int = 0
    """Largest memory of tensors on the device, bytes."""

    def figures(self) -> dict[str, int]:
        """Return what a budget holds; all but the peak add up over phases."""
        counts = {"operations": self.lines.total(), "waits": self.waits.total()}
        return {**counts, "copied": self.copied, "peak": self.peak}


def joined(phases: Sequence[Phase]) -> Phase:
    """Add up phases."""
    whole = Phase()
    for phase in phases:
        whole.lines.update(phase.lines)
        whole.waits.update(phase.waits)
        whole.copied += phase.copied
        whole.peak = max(whole.peak, phase.peak)
    return whole


def over_budget(figures: Mapping[str, int], budget: Mapping[str, int], slack: float = 0.02) -> list[str]:
    """List what is more than its budget by more than a share of it."""
    return [
        f"{name}: {figures[name]:,}, budget {most:,}"
        for name, most in budget.items()
        if figures[name] > most * (1 + slack)
    ]
