"""Transitions of every stock on every training day.

Prices do not react to orders: what a position would have earned until the next decision is known, whether it was held
or not (Sinclair et al. 2023, "Hindsight learning for MDPs with exogenous inputs").
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from data.features.inputs import TradeInputs
from data.features.rows import InputRows
from environment.quotes import Quotes
from models.ddpg import Batch
from models.replay_buffer import AccountTransitions
from training.forecasts.outcomes import fills
from training.forecasts.samples import Samples
from utils.config.trader import EnvironmentConfig

_STOCKS = 64
"""Most stocks of a day in a batch."""


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
    def of(cls, samples: Samples, inputs: TradeInputs, quotes: Quotes, rules: EnvironmentConfig) -> Self:
        """Look them up in the prices of the training days."""
        x = samples.x
        place = (x.days.start + torch.arange(len(x.first) - 1, device=x.separate.device)).repeat_interleave(x.counts)
        stock = x.stock.long()
        reward, following, terminated = _daily(x, quotes, rules, place, stock)
        has_orders = torch.from_numpy(samples.is_known.any(axis=1))
        allowed = torch.stack([torch.from_numpy(fitted) & has_orders for fitted, _ in samples.folds]).to(place.device)
        cost = 100 * rules.cost_rate
        return cls(x, inputs, reward, following.int(), terminated, cost, allowed)

    @property
    def reward_scale(self) -> float:
        """Return the standard deviation of the rewards, percent."""
        return max(float(self.reward.std()), 1e-3) if len(self.reward) > 1 else 1.0

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
            x=self.inputs.for_networks(self.x.take(rows)),
            next_x=self.inputs.for_networks(self.x.take(following)),
            reward=self.reward[rows],
            terminated=self.terminated[rows],
            price=replayed.price,
            next_price=replayed.next_price,
        )


def _daily(
    x: InputRows, quotes: Quotes, rules: EnvironmentConfig, day: Tensor, stock: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return reward, next row and end of positions in (rows,) stocks on days, decided on at each close.

    A position is bought or kept at the next bar, and closed at its last traded price, less a delisting loss, once its
    stock had no bar for `max_days_without_bar` sessions. Where no such bar comes an order for the next open lapses, and
    earns nothing.
    """
    last, cost = x.days.stop - 1, 100 * rules.cost_rate
    price, has_ended, _, following = fills(quotes, rules, last)
    row = torch.zeros(price.shape, dtype=torch.int32, device=day.device)
    row[day, stock] = torch.arange(len(day), dtype=torch.int32, device=day.device)
    later = following[day, stock].clamp(max=last)
    ends, growth = has_ended[day, stock], price[later, stock] / price[day, stock]
    if rules.fill == "next_open":
        is_sold = has_ended[later, stock] & ~ends
        growth = torch.where(ends, 1.0, growth)
    else:
        is_sold = ends
        growth = torch.where(ends, 1 - rules.delisting_loss / 100, growth)
    is_known = growth.isfinite() & (ends | (following[day, stock] <= last))
    terminated = ends | is_sold | ~is_known
    reward = torch.where(is_known, 100 * growth - 100 - cost * is_sold, 0.0).nan_to_num(0.0).float()
    return reward, torch.where(terminated, 0, row[later, stock]), terminated
