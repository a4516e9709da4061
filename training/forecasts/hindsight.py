"""Counterfactual outcomes of every possible order.

Prices do not react to orders: once they are known, so is the result of every order, not only of those that were
placed (Sinclair et al. 2023, "Hindsight learning for MDPs with exogenous inputs"). Forecasts learn from all of them,
with far less noise than from the few orders of one account. The environment itself computes the results, on training
days only.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from environment.ledger import Bars
from environment.portfolio import Portfolio
from environment.trading_rules import Orders
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, TARGET_PERCENTS

_DAYS_AT_ONCE, _STOCKS_AT_ONCE = 256, 512
_STAKE_PERCENT = 0.001
"""Small enough that no order is ever cut to the available cash or to a share of the day's volume."""


def order_results(
    bars: Bars,
    rules: EnvironmentConfig,
    first_day: int,
    last_day: int,
    target_percents: Sequence[float] = TARGET_PERCENTS,
) -> Tensor:
    """Place every possible order of days first_day..last_day in an account that can pay for all of them.

    A result is known where the longest possible trade ends by `last_day`. Orders for stocks without a bar that day
    cannot be given; one that finds no price to be filled at earns nothing, nor does one without any volume under a
    volume cap. No cap cuts these orders: results are proportional to size, and so hold for any size.

    Returns:
        (targets, days, stocks) float32 results of the largest orders at each target, percent of the initial capital;
        NaN where not known.
    """
    targets = torch.tensor(target_percents, device=bars.quotes.device)
    affordable = replace(
        rules,
        exits="target",
        max_holding_days=rules.trade_sessions,
        stake_percent=_STAKE_PERCENT,
        max_new_positions_per_day=1,
        inaction_penalty=0.0,
        loss_multiplier=rules.loss_multiplier if rules.exits == "target" else 1.0,  # with daily exits money counts
        drawdown_lock=0.0,
        initial_capital=1.0,
    )
    portfolio = Portfolio(bars, affordable)
    portfolio.has_fixed_shapes = True  # all orders that are young enough are open
    longest, days = portfolio.slots, last_day - first_day + 1
    rewards = torch.full((len(targets), days, bars.stocks), torch.nan, device=bars.quotes.device)
    for first in range(0, days - longest, _DAYS_AT_ONCE):
        count = min(_DAYS_AT_ONCE, days - longest - first)
        here, begin = slice(first, first + count), first_day + first
        listed = bars.tradable[begin : begin + count].any(0).nonzero()[:, 0]
        for stocks in listed.split(_STOCKS_AT_ONCE):
            credited = _credited(portfolio, stocks, begin, count, count + longest - 1, targets)
            rewards[:, here, stocks] = credited * (rules.stake_percent / _STAKE_PERCENT)
    rewards.masked_fill_(~bars.tradable[first_day : last_day + 1], torch.nan)
    return rewards


def _credited(portfolio: Portfolio, stocks: Tensor, first_day: int, days: int, steps: int, targets: Tensor) -> Tensor:
    """Place the largest orders every day, one lane per stock and target: (targets, days, stocks) rewards."""
    lanes = len(stocks) * len(targets)
    portfolio.reset(torch.full((lanes,), first_day), steps=steps, trading_steps=days)
    stock, target = stocks.repeat(len(targets)), targets.double().repeat_interleave(len(stocks))
    orders = Orders(stock[None], torch.full_like(target, MAX_COEFFICIENT)[None], target[None])
    for step in range(steps):
        portfolio.step_orders(orders if step < days else None)
    rewards = portfolio.entry_credited_rewards()[:days]
    return rewards.float().view(days, len(targets), len(stocks)).transpose(0, 1)
