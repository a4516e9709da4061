"""Transitions of every stock on every training day.

Prices do not react to orders: what a position would have earned until the next decision is known, whether it was held
or not (Sinclair et al. 2023, "Hindsight learning for MDPs with exogenous inputs").
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from environment.ledger import Bars
from environment.trading_rules import is_delisted, salvage
from models.ddpg import Batch
from models.inputs import InputRows, TradeInputs
from models.policy import invested_share
from models.replay_buffer import AccountTransitions
from training.forecasts.samples import Samples
from utils.config.trader import EnvironmentConfig

_STOCKS = 64
"""Most stocks of a day in a batch."""
_ROWS_AT_ONCE = 2**20


@dataclass(frozen=True)
class StockTransitions:
    """Results of positions in the stocks of each day until the next decision on them, row by row of the inputs."""

    x: InputRows
    inputs: TradeInputs
    reward: Tensor
    """(rows, targets) float32 percent, net of the cost of a sale where the rules end the position; that of a sale that
    is decided is charged in `models.ddpg.td_targets`."""
    following: Tensor
    """(rows,) int32 row of the stock at the next decision."""
    terminated: Tensor
    """(rows,) bool: the position is closed by then, or what follows is not known."""
    cost: float
    """Of a purchase or a sale, percent of its value."""
    allowed: Tensor
    """(folds, days) bool of the market's days: those that may be learned from without each fold."""

    @classmethod
    def of(cls, samples: Samples, inputs: TradeInputs, bars: Bars, rules: EnvironmentConfig) -> Self:
        """Look them up in the prices of the training days."""
        x = samples.x
        place = (x.days.start + torch.arange(len(x.first) - 1, device=x.separate.device)).repeat_interleave(x.counts)
        stock = x.stock.long()
        if rules.exits == "daily":
            arrays = _daily(x, bars, rules, place, stock)
        else:
            results = torch.from_numpy(samples.results[:, x.days]).to(x.separate.device)
            percent = results[:, place - x.days.start, stock].T / rules.largest_order + 100 * rules.cost_rate
            done = torch.ones_like(place, dtype=torch.bool)
            arrays = percent.nan_to_num(0.0), torch.arange(len(place), device=place.device), done
        reward, following, terminated = arrays
        has_orders = torch.from_numpy(samples.is_known.any(axis=1))
        allowed = torch.stack([torch.from_numpy(fitted) & has_orders for fitted, _ in samples.folds]).to(place.device)
        cost = 100 * rules.cost_rate
        return cls(x, inputs, reward, following.int(), terminated, cost, allowed)

    @property
    def reward_scale(self) -> float:
        """Return the standard deviation of the rewards, percent."""
        return max(float(self.reward[:, -1].std()), 1e-3) if len(self.reward) > 1 else 1.0

    @property
    def stocks_per_day(self) -> int:
        """Return the number of stocks that are drawn of a day."""
        return min(_STOCKS, self.x.has_bar.shape[1])

    def draw(self, days: Tensor, generator: torch.Generator) -> Tensor:
        """Draw stocks of (..., D) days: (..., D, S) rows, S in a row from a random one on; where fewer than S have a
        bar, some are drawn again."""
        start = torch.rand(days.shape, generator=generator, dtype=torch.float64).to(days.device)[..., None]
        here = days.long() - self.x.days.start
        count = self.x.counts[here][..., None]
        place = (start * count).long() + torch.arange(self.stocks_per_day, device=days.device)
        return self.x.first_rows[here][..., None] + place % count

    def batch(self, rows: Tensor, replayed: AccountTransitions) -> Batch:
        """Return the transitions of (folds, D, S) rows, in the replayed accounts of their (folds, D) days."""
        following = self.following[rows].long()
        return Batch(
            x=self.inputs.for_networks(self.x.take(rows)[0]),
            next_x=self.inputs.for_networks(self.x.take(following)[0]),
            reward=self.reward[rows],
            terminated=self.terminated[rows],
            invested=invested_share(replayed.cash, replayed.left),
            next_invested=invested_share(replayed.next_cash, replayed.next_left),
        )


def _daily(
    x: InputRows, bars: Bars, rules: EnvironmentConfig, day: Tensor, stock: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return reward, next row and end of positions in (rows,) stocks on days, decided on at each close.

    A position is bought or kept at the next bar, and closed at its last traded price, less a delisting loss, once its
    stock had no bar for `max_days_without_bar` sessions. Where no such bar comes an order for the next open lapses, and
    earns nothing.
    """
    last, lost, cost = x.days.stop - 1, rules.max_days_without_bar, 100 * rules.cost_rate
    open_, close = bars.quotes.view(bars.days, bars.stocks, 3)[: last + 1, :, [0, 2]].unbind(-1)
    index = torch.arange(last + 1, dtype=torch.int32, device=day.device)[:, None]
    later = torch.where(bars.tradable[: last + 1], index, last + 1).flip(0).cummin(0).values.flip(0)
    after = torch.cat((later, torch.full_like(later[:1], last + 1)))  # first bar from a day on
    row = torch.zeros((last + 2, bars.stocks), dtype=torch.int32, device=day.device)
    row[day, stock] = torch.arange(len(day), dtype=torch.int32, device=day.device)

    def results(day: Tensor, stock: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first = after[day + 1, stock].long()
        second = after[(first + 1).clamp(max=last + 1), stock]
        fill = first.clamp(max=last)
        bought, marked = open_[fill, stock].double(), close[fill, stock].double()
        has_ended, ends_later = (is_delisted(sessions - 1, rules) for sessions in (first - day, second - first))
        if rules.fill == "next_open":
            sold = open_[second.clamp(max=last), stock].double()
            growth = torch.where(has_ended, 1.0, torch.where(ends_later, salvage(marked, rules), sold) / bought)
            is_sold = ends_later & ~has_ended
            is_known = (first <= last) & ((second <= last) | (ends_later & (first + lost <= last)))
        else:
            growth = torch.where(has_ended, salvage(1.0, rules), marked / close[day, stock].double())
            is_sold, is_known = has_ended, first <= last
        is_known |= has_ended & (day + lost <= last)
        terminated = has_ended | is_sold | ~is_known
        reward = torch.where(is_known, 100 * growth - 100 - cost * is_sold, 0.0).nan_to_num(0.0).float()
        return reward[:, None], torch.where(terminated, 0, row[first, stock]), terminated

    parts = [results(*some) for some in zip(day.split(_ROWS_AT_ONCE), stock.split(_ROWS_AT_ONCE), strict=True)]
    reward, following, terminated = (torch.cat(part) for part in zip(*parts, strict=True))
    return reward, following, terminated
