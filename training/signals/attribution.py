"""Attribution of an order to its inputs: exact, since what an agent expects is linear in them.

Inputs are standardised, so that an input's product with its weight is what the expected result would lose if the input
were at its mean. A share is the sum over a group of inputs, relative to the sum of the absolute values of all groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.inputs import GROUP_OF_INPUT, GROUPS

METHOD = (
    "input times weight, summed by group of inputs; shares of the absolute sum, + raises and - lowers what is expected"
)


@dataclass(frozen=True)
class Share:
    """The share of what is expected of an order that comes from one group of inputs."""

    name: str
    percent: float
    raises: bool
    """The group raised what is expected."""

    def __str__(self) -> str:
        return f"{self.name} {'+' if self.raises else '-'}{self.percent:.0f}%"


def attribution(weights: NDArray[np.float32], x: NDArray[np.float32], most: int = 3) -> list[Share]:
    """Find the `most` important groups of (inputs,) inputs, the first the most."""
    total = np.bincount(GROUP_OF_INPUT[1:], (weights * x)[1:].astype(np.float64), minlength=len(GROUPS))
    percent = 100 * np.abs(total) / max(np.abs(total).sum(), np.finfo(np.float64).tiny)
    best = [place for place in np.argsort(-percent, kind="stable")[:most].tolist() if percent[place] > 0]
    return [Share(GROUPS[place], float(percent[place]), bool(total[place] >= 0)) for place in best]
