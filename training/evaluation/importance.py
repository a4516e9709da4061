"""Which inputs decide: what a champion's ranking loses when the values of one are shuffled; what moved an order."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from data.market import Market
from models.ddpg_agent import DDPGAgent
from training.forecasts.skill import rank_correlation
from utils.arrays import Float64Array

_DAYS = 100
"""Most days that are looked at, evenly spaced."""
_REASONS, _TRADES = 3, 10
"""Inputs that are named with an order, and positions that are explained."""


@torch.no_grad()
def importance(agent: DDPGAgent, market: Market, first: int, returns: Float64Array) -> dict[str, float]:
    """Return what each input is worth to an agent on days that it did not learn from, the largest first: the mean rank
    correlation over stocks of its scores with the (days, n) returns after the days from the `first` on, less the same
    with the input's values shuffled over all stocks and days (Breiman 2001, "Random forests").
    """
    known = np.flatnonzero(np.isfinite(returns).sum(axis=1) > 2)
    chosen = known[:: 1 + len(known) // _DAYS]
    if not chosen.size:
        return {}
    rows = agent.inputs.rows_of(market, slice(first, first + len(returns)))
    x = torch.cat([rows.x(slice(first + day, first + day + 1)) for day in chosen.tolist()]).to(agent.device)
    bars, draws = rows.has_bar[torch.from_numpy(chosen)], np.random.default_rng(0)
    seen = agent.inputs.for_networks(x)

    def ranking(seen: torch.Tensor) -> float:
        score = torch.full(bars.shape, torch.nan, dtype=torch.float64)
        score[bars] = agent.mean_scores(seen).double().cpu()
        return float(np.nanmean(rank_correlation(score.numpy(), returns[chosen])))

    whole, losses = ranking(seen), {}
    for name, places in agent.inputs.named_places().items():
        shuffled = seen.clone()
        shuffled[:, places] = seen[draws.permutation(len(seen))][:, places]
        losses[name] = whole - ranking(shuffled)
    return dict(sorted(losses.items(), key=lambda one: -one[1]))


def moved_by(agent: DDPGAgent, market: Market, places: Sequence[tuple[int, int]]) -> list[str]:
    """Return for days and columns of the market the inputs that moved the forecast most, and by how much, percent."""
    reasons = ([*one.items()][:_REASONS] for one in agent.contributions(market, places))
    return [", ".join(f"{name} {percent:+.2f}" for name, percent in one) for one in reasons]


def explain_positions(agent: DDPGAgent, market: Market, positions: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the places of the positions in investable stocks that gained or lost most, the largest first, and what
    moved the forecasts on which they were first bought."""
    columns = market.investable_columns.tolist()
    own = [place for place, one in enumerate(positions) if one["stock"] < len(columns)]
    largest = sorted(own, key=lambda place: -abs(positions[place]["profit"] - positions[place]["costs"]))[:_TRADES]
    late = int(agent.rules.fill == "next_open")
    bought = [(positions[place]["first_day"] - late, columns[positions[place]["stock"]]) for place in largest]
    return dict(zip(largest, moved_by(agent, market, bought), strict=True))
