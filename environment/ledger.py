"""Parts of an account: bars, positions, the ledger of trades and its totals."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features.nine import CLOSE, HIGH, LOW, OPEN
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError

EXIT_REASONS = ("", "sold", "target_open", "stop_open", "stop", "target", "holding", "no_bar", "episode_end")
"""In order of precedence."""
RULE_BITS = {reason: 1 << rule for rule, reason in enumerate(EXIT_REASONS[1:-1])}
"""Exit rules, one bit each; a position that none applies to is closed at the end of the episode."""
MONEY = ("target_percent", "value", "shares", "entry_price", "target_price", "last_price")
"""Columns of a ledger in float64."""


@dataclass(frozen=True)
class Bars:
    """Prices of the investable stocks, on the device of the accounts."""

    quotes: Tensor
    """(days * stocks, 3): open, high, close; NaN where the stock has no bar."""
    tradable: Tensor
    """(days, stocks) bool: the stock has a bar."""
    volume: Tensor | None = None
    """(days * stocks,) float32: shares traded, infinite where unknown, so that no order is cut there."""
    low: Tensor | None = None
    """(days * stocks,): read where positions have a stop."""

    @classmethod
    def from_prices(
        cls,
        open_: Tensor,
        high: Tensor,
        close: Tensor,
        volume: Tensor | None = None,
        low: Tensor | None = None,
    ) -> Bars:
        """Build from (days, stocks) tensors; a bar counts only if open, high and close are finite and positive.

        A volume that is NaN or negative counts as unknown.
        """
        quotes = torch.stack((open_, high, close), dim=-1)
        tradable = (torch.isfinite(quotes) & (quotes > 0)).all(-1)
        quotes[~tradable] = torch.nan
        if volume is not None:
            volume = torch.where(volume >= 0, volume, torch.inf).float().flatten()
        if low is not None:
            low = torch.where(tradable, low, torch.nan).flatten()
        return cls(quotes.reshape(-1, 3).contiguous(), tradable, volume, low)

    @classmethod
    def of(
        cls,
        data_array: NDArray[np.float32],
        columns: NDArray[np.int64],
        device: torch.device | str = "cpu",
        volume: NDArray[np.float32] | None = None,
        rules: EnvironmentConfig | None = None,
    ) -> Bars:
        """Build from the given columns of (days, columns, 9) data and (days, columns) volume; with lows only for rules
        that have a stop."""

        def of(values: NDArray[np.float32]) -> Tensor:
            return torch.from_numpy(values[:, columns]).to(device)

        open_, high, close = (of(data_array[..., feature]) for feature in (OPEN, HIGH, CLOSE))
        low = None if rules is None or rules.stop_percent == 0 else of(data_array[..., LOW])
        return cls.from_prices(open_, high, close, None if volume is None else of(volume), low)

    def require_for(self, rules: EnvironmentConfig) -> None:
        """Raise ConfigError if the rules need a volume that is missing, ValueError if they need lows."""
        if rules.volume_cap > 0 and self.volume is None:
            raise ConfigError(
                f"expected bars with volume for a volume cap of {rules.volume_cap:g}%, got none; give the volume, or "
                "leave the cap out"
            )
        if rules.stop_percent > 0 and self.low is None:
            raise ValueError(f"expected bars with lows for a stop of {rules.stop_percent:g}%, got none; give `low`")

    @property
    def days(self) -> int:
        """Number of days."""
        return self.tradable.shape[0]

    @property
    def stocks(self) -> int:
        """Number of stocks."""
        return self.tradable.shape[1]


@dataclass
class Ledger:
    """Every order of the running episodes, (rows, lanes) each; prices and amounts are float64."""

    stock: Tensor
    target_percent: Tensor
    value: Tensor
    """Amount paid at the fill, before costs; 0 where nothing was bought."""
    shares: Tensor
    entry_price: Tensor
    target_price: Tensor
    last_price: Tensor
    """The mark while open, the exit price once closed."""
    days_without_bar: Tensor
    is_open: Tensor
    exit_step: Tensor
    """Steps finished when it was closed, -1 while it was not."""
    reason: Tensor
    """Index into EXIT_REASONS; while an episode runs, the bits of the rules that closed it."""

    @classmethod
    def over(cls, money: Tensor) -> Ledger:
        """Allocate a ledger on top of a (MONEY, rows, lanes) float64 block, which is written in one piece."""
        zeros = partial(torch.zeros, *money.shape[1:], device=money.device)
        return cls(
            **dict(zip(MONEY, money.unbind(), strict=True)),
            stock=zeros(dtype=torch.int64),
            days_without_bar=zeros(dtype=torch.int64),
            exit_step=zeros(dtype=torch.int64),
            is_open=zeros(dtype=torch.bool),
            reason=zeros(dtype=torch.uint8),
        )

    def clear(self) -> None:
        """Forget all rows, in place."""
        for f in fields(self):
            getattr(self, f.name).zero_()
        self.exit_step.fill_(-1)
        # Dividing by the entry price of an empty row must give a finite number.
        self.entry_price.fill_(1.0)
        self.target_price.fill_(torch.inf)
        self.last_price.fill_(1.0)


@dataclass(frozen=True)
class EpisodeSummary:
    """Results of finished episodes, (lanes,) each; amounts in currency units."""

    trades: Tensor
    wins: Tensor
    losses: Tensor
    positions_opened: Tensor
    days_with_positions: Tensor
    days_without_positions: Tensor
    penalties: Tensor
    """Percent of the initial capital deducted from rewards and fitness, not from cash."""
    costs: Tensor
    final_equity: Tensor
    fitness: Tensor
    profit_percent: Tensor
    """Change of equity in percent of the initial capital, without penalties."""

    @classmethod
    def of(cls, ledger: Ledger, rules: EnvironmentConfig, had_position: Tensor, equity: Tensor) -> EpisodeSummary:
        """Sum up a ledger by the (steps, lanes) days with a position and the (lanes,) equity at the end."""
        capital, steps = rules.initial_capital, len(had_position)
        worth, closed = ledger.shares * ledger.last_price, ledger.exit_step > 0
        trades, wins = closed.sum(0), (closed & (_net(ledger.value, worth, rules) > 0)).sum(0)
        opened, busy = (ledger.value > 0).sum(0), had_position.sum(0)
        profit = 100 * (equity - capital) / capital
        losses = sum_rows(realised_losses(ledger.value, worth, closed, rules))
        penalties = rules.inaction_penalty * (steps - busy) + rules.zero_trades_penalty * (opened == 0)
        penalties = penalties + (rules.loss_multiplier - 1) * 100 * losses / capital
        return cls(
            trades=trades,
            wins=wins,
            losses=trades - wins,
            positions_opened=opened,
            days_with_positions=busy,
            days_without_positions=steps - busy,
            penalties=penalties,
            costs=rules.cost_rate * sum_rows(ledger.value + worth * closed),
            final_equity=equity.clone(),
            fitness=profit - penalties,
            profit_percent=profit,
        )


def reason_by_bits(device: torch.device) -> Tensor:
    """Return the (bits,) index into EXIT_REASONS of the first exit rule whose bit is set."""
    rules = len(RULE_BITS)
    first = [next((rule for rule in range(rules) if bits >> rule & 1), rules) + 1 for bits in range(2**rules)]
    return torch.tensor(first, dtype=torch.uint8, device=device)


def entry_credited(ledger: Ledger, rules: EnvironmentConfig, had_position: Tensor) -> Tensor:
    """Credit each trade's whole result to the step that ordered it: (steps, lanes), as `had_position` is."""
    worth, closed = ledger.shares * ledger.last_price, ledger.exit_step > 0
    net = _net(ledger.value, worth, rules) * closed
    net -= (rules.loss_multiplier - 1) * realised_losses(ledger.value, worth, closed, rules)
    credited = 100 / rules.initial_capital * sum_rows(net.view(len(had_position), -1, net.shape[1]))
    return credited - rules.inaction_penalty * ~had_position


def realised_losses(value: Tensor, worth: Tensor, closed: Tensor, rules: EnvironmentConfig) -> Tensor:
    """Return each trade's realised loss, net of both legs' costs; 0 for gains and for rows not closed."""
    return (-_net(value, worth, rules)).clamp(min=0) * closed


def _net(value: Tensor, worth: Tensor, rules: EnvironmentConfig) -> Tensor:
    """Return each trade's profit after both legs' costs."""
    return worth - value - rules.cost_rate * (worth + value)


def sum_rows(money: Tensor) -> Tensor:
    """Sum up (..., rows, lanes) over rows, in an order that does not depend on how many lanes there are."""
    return money.transpose(-1, -2).contiguous().sum(-1)
