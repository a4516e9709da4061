"""Counterfactual outcomes of every position.

Prices do not react to orders: once they are known, so is what a position in every stock would have earned, held or not
(Sinclair et al. 2023, "Hindsight learning for MDPs with exogenous inputs"). Forecasts learn from all of them, with far
less noise than from the few positions of one account.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from environment.quotes import Quotes
from utils.config.trader import OUTCOME_SESSIONS, EnvironmentConfig

_STOCKS = 1000
"""Of which outcomes are looked up at a time: for all of a large market they take gigabytes."""


class Fills(NamedTuple):
    """What becomes of a position that is decided on at each close, (days, n) each."""

    price: Tensor
    """float64 at which it is bought, kept or sold, or what is left of a stock that has ended; NaN: not known."""
    has_ended: Tensor
    """The stock has no bar for as many sessions as accounts wait: positions are closed, and orders lapse."""
    is_closed: Tensor
    """They are by this price."""
    following: Tensor
    """int64 day of the next bar; the number of days: none."""


def fills(quotes: Quotes, rules: EnvironmentConfig, last: int) -> Fills:
    """Look them up in the bars up to a day."""
    opened, close = quotes.open[: last + 1], quotes.close[: last + 1]
    index = torch.arange(last + 1, device=close.device)[:, None]
    has_bar = close > 0
    later = torch.where(has_bar, index, last + 1).flip(0).cummin(0).values.flip(0)
    following = torch.cat((later[1:], torch.full_like(later[:1], last + 1)))
    before = torch.where(has_bar, index, -1).cummax(0).values
    marked = torch.where(before >= 0, close.gather(0, before.clamp(min=0)), torch.nan)
    has_ended = following - before > rules.max_days_without_bar
    price, left = marked, marked * (1 - rules.delisting_loss / 100)
    if rules.fill == "next_open":
        price = torch.where(following <= last, opened.gather(0, following.clamp(max=last)), torch.nan)
        is_closed = has_ended
    else:
        is_closed = has_ended & (index - before >= rules.max_days_without_bar)
    return Fills(torch.where(is_closed, left, price), has_ended, is_closed, following)


def discounted_returns(quotes: Quotes, rules: EnvironmentConfig, first: int, last: int, gamma: float) -> Tensor:
    """Return what a unit of each stock gains over the next sessions from each of the days first..last on, each session
    discounted once more: (days, n) float32 percent, without costs.

    NaN where the stock has no bar, or where a gain is not known by `last`.
    """
    if quotes.stocks > _STOCKS:
        blocks = range(0, quotes.stocks, _STOCKS)
        parts = (quotes.among(slice(block, block + _STOCKS)) for block in blocks)
        return torch.cat([discounted_returns(part, rules, first, last, gamma) for part in parts], dim=1)
    price, _, is_closed, _ = (part[first:] for part in fills(quotes, rules, last))
    gain = 100 * (price[1:] / price[:-1] - 1)
    result = torch.full_like(price, torch.nan)
    if (count := len(price) - OUTCOME_SESSIONS) > 0:
        total, is_open = torch.zeros_like(price[:count]), torch.ones_like(is_closed[:count])
        for session in range(OUTCOME_SESSIONS):
            total += torch.where(is_open, gamma**session * gain[session : session + count], 0.0)
            is_open &= ~is_closed[session + 1 : session + 1 + count]
        result[:count] = total
    return torch.where(quotes.close[first : last + 1] > 0, result, torch.nan).float()
