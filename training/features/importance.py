"""Which inputs decide: what a champion's ranking loses when the values of one are shuffled."""

import numpy as np
import torch

from data.market import Market
from models.ddpg_agent import DDPGAgent
from models.policy import score_of
from training.forecasts.skill import Array, information_coefficients

_DAYS = 100
"""Most days that are looked at, evenly spaced."""


@torch.no_grad()
def importance(agent: DDPGAgent, market: Market, first: int, results: Array) -> dict[str, float]:
    """Return what each input is worth to an agent on days that it did not learn from, the largest first: the mean rank
    correlation over stocks of its scores with the (days, n) results of trades from the `first` day on, less the same
    with the input's values shuffled over all stocks and days (Breiman 2001, "Random forests"). Capital has the price of
    an account half of which is invested.
    """
    known = np.flatnonzero(np.isfinite(results).sum(axis=1) > 2)
    chosen = known[:: 1 + len(known) // _DAYS]
    if not chosen.size:
        return {}
    rows = agent.inputs.rows_of(market, slice(first, first + len(results)))
    x = torch.cat([rows.x(slice(first + day, first + day + 1)) for day in chosen.tolist()]).to(agent.device)
    bars, draws = rows.has_bar[torch.from_numpy(chosen)], np.random.default_rng(0)
    seen = agent.inputs.for_networks(x)

    def ranking(seen: torch.Tensor) -> float:
        gain, time = agent.mean_outputs(seen).double().cpu()
        score = torch.full(bars.shape, torch.nan, dtype=torch.float64)
        score[bars] = score_of(gain, time.clamp(min=0.0), 0.5 * agent.rate.double().cpu())
        return float(np.nanmean(information_coefficients(score.numpy(), results[chosen])[1]))

    whole, losses = ranking(seen), {}
    for name, places in agent.inputs.named_places().items():
        shuffled = seen.clone()
        shuffled[:, places] = seen[draws.permutation(len(seen))][:, places]
        losses[name] = whole - ranking(shuffled)
    return dict(sorted(losses.items(), key=lambda one: -one[1]))
