"""All that is known of a judged policy and of those that are compared with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from training.evaluation.asked import Asked
from training.evaluation.measures import EquityCurves
from utils.arrays import Float64Array


@dataclass(frozen=True)
class PlayedPolicies:
    """The accounts of all policies that are compared."""

    curves: Mapping[str, EquityCurves]
    """By policy, the judged one first. Only those of the random pickers hold many accounts: the judged one's weights
    in other stocks, see `nulls`."""
    benchmark: str
    """Policy that the judged one is compared with first: the setup's benchmark, or cash."""
    market: str
    """Policy to whose returns betas refer: the setup's benchmark."""
    days: NDArray[np.int64]
    """(D + 1,) days of the market."""
    tickers: Sequence[str]
    """(n,) of the stocks that accounts hold."""
    traded: Float64Array
    """(D, n) value that the judged account bought on each day after the first, negative: sold."""
    positions: Sequence[dict[str, Any]]
    """Of the judged account, see `environment.positions`, with the `value` of what is left, which is part of the
    profit."""
    selection: Float64Array
    """(D,) daily returns of the judged account less the mean of its weights in other stocks, percent."""
    at_cost: Mapping[float, Mapping[str, EquityCurves]]
    """The same weights again under other costs, by basis points per leg."""
    scores: Mapping[str, Float64Array]
    """(D, n) of the policies that hold by scores, on each day but the last; NaN: none."""
    ahead: Mapping[int, Float64Array]
    """(D, n) log returns from the next open on, by sessions, see `HORIZONS`; NaN where not known on these days."""
    weights: Float64Array
    """(D, n) of the judged account after the fills, at the prices of the closes before."""
    asked: Asked | None = None
    """What was asked of the judged account; None of accounts that follow one another."""
    active_share: Mapping[str, float] = field(default_factory=dict)
    """Half the distance of its weights from those of each baseline, mean over days; empty where `asked` is None."""

    @classmethod
    def joined(cls, parts: Sequence[PlayedPolicies]) -> PlayedPolicies:
        """Join what policies did on days that follow one another, perhaps by another champion each.

        Left out is a policy that is not in all parts, such as a baseline that could not be fitted in one.
        """
        common = [name for name in parts[0].curves if all(name in part.curves for part in parts)]

        def curves(levels: Sequence[Mapping[str, EquityCurves]]) -> dict[str, EquityCurves]:
            return {n: EquityCurves.joined([one[n] for one in levels]) for n in levels[0] if n in common}

        def days(name: str) -> Any:
            return np.concatenate([getattr(part, name) for part in parts])

        def each(name: str, keys: Sequence[Any]) -> dict[Any, Float64Array]:
            return {key: np.concatenate([getattr(part, name)[key] for part in parts]) for key in keys}

        return cls(
            curves=curves([part.curves for part in parts]),
            benchmark=parts[0].benchmark,
            market=parts[0].market,
            weights=days("weights"),
            days=np.concatenate((parts[0].days[:1], *(part.days[1:] for part in parts))),
            tickers=parts[0].tickers,
            traded=days("traded"),
            positions=[one for part in parts for one in part.positions],
            selection=days("selection"),
            at_cost={bps: curves([part.at_cost[bps] for part in parts]) for bps in parts[0].at_cost},
            scores=each("scores", [name for name in parts[0].scores if name in common]),
            ahead=each("ahead", [*parts[0].ahead]),
        )
