"""What a policy asked of its account, beside what was done, and why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
from torch import Tensor

from environment.account import Account
from utils.arrays import Float64Array
from utils.metrics import TRADING_DAYS_PER_YEAR

APART, _TIMES = 0.05, 0.5
"""Share of the equity, or of the turnover, by which another portfolio was held than was asked for; and the
least turnover, times the equity a year, of which that is said: small orders that are repeated daily do not reach it."""
_LEAST = 1e-7
"""Share of the equity below which nothing was left undone."""


class Lapse(NamedTuple):
    """Trades that were not done as asked, or done unasked, for one reason."""

    reason: str
    orders: int
    turnover: float
    """Half of their value, as a share of the equity a year."""


@dataclass(frozen=True)
class Asked:
    """The account of a policy against the weights that it asked for; turnovers are times the equity a year."""

    turnover: float
    done: float
    gap: float
    """Half the distance of the weights after the fills from those asked for, mean over days."""
    lapses: Sequence[Lapse] = ()
    """The largest first."""
    how: str = ""
    """How scores became weights."""
    notes: Sequence[str] = ()
    """What of the policy was left out before it was played."""
    refused: pd.DataFrame | None = field(default=None, compare=False)
    """Rows of trades that were left out, each with its reason."""

    @classmethod
    def of(cls, target: Float64Array, before: Float64Array, held: Float64Array, account: Account, first: int) -> Self:
        """Compare (D, m) target weights, NaN keeps, with the (D, n) weights of the only account around its fills.

        Args:
            first: day of the first decision.
        """

        def part(values: Tensor) -> Float64Array:
            return np.asarray(values[:, 0].cpu().numpy())

        quotes, days = account.quotes, slice(first, first + len(target))
        wanted = np.pad(target, ((0, 0), (0, before.shape[1] - target.shape[1])))
        wanted = np.where(np.isnan(wanted), before, wanted)
        has_bar = quotes.close[days].isfinite().cpu().numpy()
        member = np.ones_like(has_bar) if quotes.is_member is None else quotes.is_member[days].cpu().numpy()
        trades, equity = account.trades(), account.equity_curve[:-1].cpu().numpy()
        worth = pd.DataFrame(quotes.close[: days.stop].cpu().numpy()).ffill().fillna(0.0).to_numpy()[days] / equity
        ordered, filled, closed = (part(shares) * worth for shares in (trades.asked, trades.filled, trades.closed))
        unordered, unfilled, rules = wanted - before - ordered, ordered - filled, account.rules
        has_fill, is_locked = np.isfinite(part(trades.price)), rules.drawdown_lock > 0
        most = np.full(has_fill.shape, np.inf)
        if rules.volume_cap > 0 and quotes.volume is not None:
            day = first + (rules.fill == "next_open")
            most = rules.volume_cap / 100 * quotes.volume[day : day + len(target)].cpu().numpy()
        is_capped = np.abs(part(trades.asked)) > most
        why = {
            "no bar at the close": (unordered, ~has_bar),
            "not in the universe on the day": (unordered, has_bar & ~member),
            "drawdown lock": (unordered, has_bar & member & is_locked),
            "weights below 0, or above 1 in sum": (unordered, has_bar & member & (not is_locked)),
            "no bar at the fill": (unfilled, ~has_fill),
            "volume cap": (unfilled, has_fill & is_capped),
            "cash, after costs and the night's moves": (unfilled, has_fill & ~is_capped),
            "sold unasked, as prices or equity had ended": (closed, np.full_like(has_bar, True)),
        }
        years, lapses = len(target) / TRADING_DAYS_PER_YEAR, list[Lapse]()
        for reason, (value, applies) in why.items():
            missed = np.abs(value[applies])
            if count := int((missed > _LEAST).sum()):
                lapses.append(Lapse(reason, count, float(0.5 * missed.sum() / years)))
        turnover, done = (float(0.5 * np.abs(value).sum() / years) for value in (wanted - before, filled + closed))
        gap = float(0.5 * np.abs(held - wanted).sum(axis=1).mean())
        return cls(turnover, done, gap, sorted(lapses, key=lambda one: -one.turnover))

    @property
    def is_apart(self) -> bool:
        """Tell whether another portfolio was held than was asked for."""
        return self.gap > APART or abs(self.turnover - self.done) > max(APART * self.turnover, _TIMES)

    @property
    def sentence(self) -> str:
        """Say both in words, with the reasons."""
        told = (
            f"Turnover asked {self.turnover:.1f} a year, done {self.done:.1f}; on the mean day {self.gap:.1%} of the "
            "equity was elsewhere than asked."
        )
        why = "; ".join(f"{reason} (orders: {orders:,}, {times:.2f} a year)" for reason, orders, times in self.lapses)
        return f"{told} Why: {why}." if why else told

    @property
    def warning(self) -> str:
        """Return what the verdict begins with: that another portfolio was judged, or what was left out of it."""
        apart = f"Another portfolio was judged than the policy asked for. {self.sentence}" if self.is_apart else ""
        return " ".join((*self.notes, apart)).strip()
