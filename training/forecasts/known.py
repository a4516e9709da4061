"""Forecasts that hold for another generation: those of elites, who are tested after training and played before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch

from models.trader import Blend, Forecasts

Stacked = TypeVar("Stacked", Forecasts, Blend)


@dataclass(frozen=True)
class KnownForecasts:
    """Out-of-fold forecasts of agents of which nothing has changed since."""

    agents: list[int]
    """Rows of the population."""
    forecasts: Forecasts
    """Of the best stocks of a day."""
    blend: Blend

    def rows(self, rows: slice) -> Self:
        """Return those of a group of the population, on the CPU."""
        here = [place for place, agent in enumerate(self.agents) if rows.start <= agent < rows.stop]
        agents = [self.agents[place] - rows.start for place in here]
        return type(self)(agents, _merged([self.forecasts], here, "cpu"), _merged([self.blend], here, "cpu"))

    def among(
        self, others: Sequence[int], found: Sequence[tuple[Forecasts, Blend]], device: torch.device
    ) -> tuple[Forecasts, Blend]:
        """Return them with what was found of the other agents, in the order of the population."""
        order = sorted(range(len(self.agents) + len(others)), key=[*self.agents, *others].__getitem__)
        forecasts, blends = zip((self.forecasts, self.blend), *found, strict=True)
        return _merged(forecasts, order, device), _merged(blends, order, device)


def _merged(parts: Sequence[Stacked], order: Sequence[int], device: torch.device | str) -> Stacked:
    """Concatenate stacks of agents, and put them in an order."""
    rows = torch.tensor(order, dtype=torch.int64, device=device)
    tensors = {name: [getattr(part, name).to(device) for part in parts] for name in vars(parts[0])}
    return replace(parts[0], **{name: torch.cat(stacks).index_select(0, rows) for name, stacks in tensors.items()})
