"""The exits of a session: which positions are closed, at what price, and by which rules."""

from typing import NamedTuple

import torch
from torch import Tensor

from environment.ledger import RULE_BITS
from environment.open_positions import OpenPositions
from environment.trading_rules import is_delisted, salvage, stop_price
from utils.config.trader import EnvironmentConfig


class Exits(NamedTuple):
    """What a session makes of N open positions."""

    price: Tensor
    """(N,) float64 at which a position is closed, or marked where it stays open."""
    passed: Tensor
    """(N,) uint8 bits of the rules that close it, see `RULE_BITS`; 0: none does."""
    days_without_bar: Tensor
    """(N,) sessions in a row without a bar of the stock, this one included."""


def apply_exit_rules(
    positions: OpenPositions,
    quotes: tuple[Tensor, Tensor, Tensor],
    low: Tensor | None,
    sold: Tensor | None,
    rules: EnvironmentConfig,
    *,
    after_entry_day: Tensor,
    is_due: Tensor,
) -> Exits:
    """Apply the exit rules to a session's bars, the earliest price of the day first.

    A sale target is met at the open of a later day than the entry's, or else at the target once the high reaches it. A
    position is sold at the open where it was decided, at the close where it is due, and at its last price, less a
    delisting loss, where its stock had no bar for too many sessions. Nobody knows in which order a day touched stop and
    target: the stop counts.

    Args:
        quotes: (N,) open, high and close, NaN without a bar.
        low: (N,) of the session, where there are stops.
        sold: (N,) bool, as decided at the close before; None: nothing was decided.
        after_entry_day: (N,) bool: it was bought before this session.
        is_due: (N,) bool: this is the last session that it may be held.
    """
    open_, high, close = quotes
    target = positions["target_price"]
    # Comparisons with NaN are false: a stock without a bar passes none of these.
    has_bar = close > 0
    target_at_open = (open_ >= target) & after_entry_day
    at_target = high >= target
    days_without_bar = (positions["days_without_bar"] + 1).masked_fill_(has_bar, 0)
    is_lost = is_delisted(days_without_bar, rules)
    price = torch.where(has_bar, close, positions["last_price"])
    if rules.delisting_loss > 0:
        price = torch.where(is_lost, salvage(price, rules), price)
    price = torch.where(at_target, target, price)
    applies = {"target_open": target_at_open, "target": at_target, "holding": has_bar & is_due, "no_bar": is_lost}
    at_open = target_at_open
    if low is not None:
        stop = stop_price(positions["entry_price"], rules.stop_percent)
        applies |= {"stop": low <= stop, "stop_open": (open_ <= stop) & after_entry_day}
        price = torch.where(applies["stop"], stop, price)
        at_open = target_at_open | applies["stop_open"]
    if sold is not None:
        applies["sold"] = sold & has_bar & after_entry_day
        at_open = at_open | applies["sold"]
    price = torch.where(at_open, open_, price)
    passed = torch.zeros_like(at_open, dtype=torch.uint8)
    for name, is_so in applies.items():
        passed = torch.add(passed, is_so.view(torch.uint8), alpha=RULE_BITS[name])
    return Exits(price, passed, days_without_bar)
