"""What an account traded, told as positions: from the first purchase of a stock to its last sale."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from environment.account import Trades
from utils.arrays import Float64Array


@dataclass
class Position:
    """One position of a lane; days are indices of the market, amounts are in currency units."""

    stock: int
    first_day: int
    """Of its first fill."""
    last_day: int | None = None
    """Of its last one; None while it is open."""
    shares: float = 0.0
    """Held now; negative: short."""
    largest: float = 0.0
    """Most shares held."""
    bought: float = 0.0
    sold: float = 0.0
    """Value bought and sold so far."""
    received: float = 0.0
    """Dividends."""
    costs: float = 0.0
    fills: int = 0
    reason: str | None = None
    """Of its end: `order`, `no_bar` or `end`."""


def positions(
    trades: Trades, lane: int, first_day: int, cost_rate: float, *, fills_at_close: bool, is_flat_at_end: bool
) -> list[dict[str, Any]]:
    """Return the positions of a lane in the order of their first fills: the fields of `Position`, and `profit`, the
    value sold and received less what was bought, before costs, of a closed position.

    Splits and dividends between fills are not told: prices are those of adjusted bars.

    Args:
        first_day: day of the first decision.
    """
    of_lane = (
        part[:, lane].cpu().numpy() for part in (trades.filled, trades.price, trades.closed, trades.closed_price)
    )
    filled, fill_price, closed, closed_price = of_lane
    found, open_ = list[Position](), dict[int, Position]()
    last_step = len(filled) - 1
    for step, stock in np.argwhere((filled != 0) | (closed != 0)).tolist():
        for shares, price, is_order in (
            (filled[step, stock], fill_price[step, stock], True),
            (closed[step, stock], closed_price[step, stock], False),
        ):
            if not shares:
                continue
            day = first_day + step + int(not (fills_at_close and is_order))
            reason = "order" if is_order else "end" if is_flat_at_end and step == last_step else "no_bar"
            for part in _parts(open_.get(stock), shares):
                position = open_.get(stock)
                if position is None:
                    position = open_[stock] = Position(stock, day)
                    found.append(position)
                _fill(position, part, price, cost_rate)
                if position.shares == 0.0:  # a sale of everything takes off what was added, to the bit
                    position.last_day, position.reason = day, reason
                    del open_[stock]
    return [{**asdict(one), "profit": one.sold + one.received - one.bought} for one in found]


def _parts(position: Position | None, shares: float) -> Iterator[float]:
    """Split a fill that turns a long position short, or the other way round, into what closes it and what opens one."""
    held = 0.0 if position is None else position.shares
    if held * shares < 0 and abs(shares) > abs(held) * (1 + 1e-12):
        yield -held
        yield shares + held
    else:
        yield shares


def _fill(position: Position, shares: float, price: float, cost_rate: float) -> None:
    value = abs(shares) * price
    position.shares += shares
    position.largest = max(position.largest, abs(position.shares))
    position.costs += cost_rate * value
    position.fills += 1
    if shares > 0:
        position.bought += value
    else:
        position.sold += value


def daily_table(trades: Trades, lane: int) -> Float64Array:
    """Return what one lane traded, (sessions, n) value bought, negative: sold."""
    value = trades.filled * trades.price.nan_to_num() + trades.closed * trades.closed_price
    return np.asarray(value[:, lane].cpu())
