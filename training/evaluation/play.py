"""Policies on the judged days: one account each, which begins with cash and goes on to the last day.

Whatever can be judged is a policy of `environment.portfolio`; what its account did is read from the account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from data.market import Market
from environment import portfolio as portfolios
from environment.account import Account, Trades
from environment.benchmark import Benchmark
from environment.portfolio import Policy, Portfolio
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts
from training.evaluation.baselines import (
    EQUAL,
    EQUAL_RISK,
    HOLD,
    LAST_DAYS,
    SURVIVORS,
    BandRule,
    Scores,
    Tuning,
    inverse_volatility,
    numbers_of,
)
from training.evaluation.measures import EquityCurves
from training.forecasts.skill import agent_scores
from training.rollout import TABLE_BYTES, follow, roll_out
from utils.arrays import BoolArray, Float64Array, Int64Array
from utils.metrics import TRADING_DAYS_PER_YEAR
from utils.tables import many

APART, _TIMES, _NEAR = 0.05, 0.05, 0.001
"""Share of the equity, or of the turnover, by which another portfolio was held than was asked for; and the
least turnover, times the equity a year, and the least share of the equity of which that is said."""
_CASH, _ENDED = "cash, after costs and the night's moves", "sold unasked, as prices or equity had ended"
"""A reason that is asked anew on each day for the same money: the share of the equity tells it."""
_LEAST, _SHOWN = 1e-7, 0.005
"""Share of the equity below which nothing was left undone, and turnover a year below which it is not worth a word."""
_NEUTRAL = 0.1
"""Mean net weight, of either sign, below which a portfolio with shorts is dollar-neutral, and held against cash."""


@dataclass(frozen=True)
class EvaluationSetup:
    """A market, its judged days, and rules and benchmark under which policies are compared."""

    market: Market
    portfolio: Portfolio
    tuning: Tuning
    first: int
    """Day of the first decision."""
    steps: int
    columns: Sequence[int]
    """Of the market, which the portfolio holds, the investable ones first."""
    benchmark: str = EQUAL
    """Name of the portfolio's benchmark."""
    index: Float64Array | None = None
    """(steps + 1,) closes of the user's index."""
    borrow_bps: float = 50.0
    """Fee a year on what a signed account is short, and on the cash that it owes."""

    @property
    def judged(self) -> slice:
        """Days of decisions."""
        return slice(self.first, self.first + self.steps)

    @property
    def days(self) -> Int64Array:
        """(steps + 1,) days, the last one included."""
        return np.arange(self.first, self.first + self.steps + 1)

    @property
    def can_be_bought(self) -> BoolArray:
        """(days, m) of the market's investable stocks: they have a bar, and are members of the day."""
        has_bar, members = np.isfinite(self.market.close), self.market.members
        return has_bar if members is None else has_bar & members[:, self.market.investable_columns]

    @property
    def start(self) -> Tensor:
        """(1,) day of the first decision."""
        return torch.tensor([self.first], device=self.portfolio.device)

    @property
    def signed(self) -> Portfolio:
        """Accounts that may be short and owe cash, beside the same benchmark; baselines are never played in them."""
        portfolio = self.portfolio
        fees = {"borrow_bps": self.borrow_bps, "financing_bps": self.borrow_bps}
        return Portfolio(portfolio.quotes, portfolio.rules, portfolio.parts, is_signed=True, **fees)

    def on(self, market: Market) -> EvaluationSetup:
        """Return the same days, rules and benchmark on other prices, without an index."""
        benchmark = Benchmark(np.array(self.columns), self.portfolio.parts)
        portfolio = Portfolio.on(market, self.portfolio.rules, self.portfolio.device, benchmark)
        tuning = Tuning.of(market, portfolio.under())
        return replace(self, market=market, portfolio=portfolio, tuning=tuning, index=None)

    def prices(self, values: Tensor) -> Float64Array:
        """Return (days, n) prices on the judged days and the last one."""
        return values[self.first : self.first + self.steps + 1].cpu().numpy()


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
    """Half the distance of the weights after the fills, cash among them, from those asked for; it stands until others
    are, mean over days."""
    lapses: Sequence[Lapse] = ()
    """The largest first."""
    how: str = ""
    """How scores became weights."""
    notes: Sequence[str] = ()
    """What of the policy was left out before it was played."""
    refused: pd.DataFrame | None = field(default=None, compare=False)
    """Rows of trades that were left out, each with its reason."""

    @classmethod
    def of(
        cls,
        target: Float64Array,
        before: Float64Array,
        held: Float64Array,
        worth: Float64Array,
        account: Account,
        first: int,
    ) -> Self:
        """Compare (D, m) target weights, NaN keeps, with the (D, n) weights of the only account around its fills.

        Args:
            worth: (D, n) of a share at the last close, as a share of the equity.
            first: day of the first decision.
        """

        def part(values: Tensor) -> Float64Array:
            return values[:, 0].cpu().numpy()

        quotes, days = account.quotes, slice(first, first + len(target))
        given = np.pad(target, ((0, 0), (0, before.shape[1] - target.shape[1])))
        wanted = np.where(np.isnan(given), before, given)
        has_bar = quotes.close[days].isfinite().cpu().numpy()
        member = np.ones_like(has_bar) if quotes.is_member is None else quotes.is_member[days].cpu().numpy()
        trades = account.trades()
        ordered, filled, closed = (part(shares) * worth for shares in (trades.asked, trades.filled, trades.closed))
        unordered, unfilled, rules = wanted - before - ordered, ordered - filled, account.rules
        has_fill, is_locked = np.isfinite(part(trades.price)), rules.drawdown_lock > 0
        most = np.full(has_fill.shape, np.inf)
        if rules.volume_cap > 0 and quotes.volume is not None:
            day = first + (rules.fill == "next_open")
            most = rules.volume_cap / 100 * quotes.volume[day : day + len(target)].cpu().numpy()
        is_capped = np.abs(part(trades.asked)) > most
        beyond = "no equity was left" if account.is_signed else "weights below 0, or above 1 in sum"
        why = {
            "no bar at the close": (unordered, ~has_bar),
            "not in the universe on the day": (unordered, has_bar & ~member),
            "drawdown lock": (unordered, has_bar & member & is_locked),
            beyond: (unordered, has_bar & member & (not is_locked)),
            "no bar at the fill": (unfilled, ~has_fill),
            "volume cap": (unfilled, has_fill & is_capped),
            _CASH: (unfilled, has_fill & ~is_capped),
            _ENDED: (closed, np.full_like(has_bar, True)),
        }
        years, lapses = len(target) / TRADING_DAYS_PER_YEAR, list[Lapse]()
        for reason, (value, applies) in why.items():
            missed = np.abs(value[applies])
            if count := int((missed > _LEAST).sum()):
                lapses.append(Lapse(reason, count, float(0.5 * missed.sum() / years)))
        turnover, done = (float(0.5 * np.abs(value).sum() / years) for value in (wanted - before, filled + closed))
        away = held - given
        away[1:][np.isnan(away[1:]) & (closed[:-1] != 0)] = 0.0  # of what was sold as prices ended nothing is open
        away = pd.DataFrame(away).ffill().fillna(0.0).to_numpy()
        gap = float(0.5 * (np.abs(away).sum(axis=1) + np.abs(away.sum(axis=1))).mean())
        return cls(turnover, done, gap, sorted(lapses, key=lambda one: -one.turnover))

    @property
    def undone(self) -> list[tuple[str, int, float | None]]:
        """Return the lapses, and the rows that were left out by their reasons, whose turnover nobody knows."""
        return [*self.lapses, *((reason, count, None) for reason, count in self.refused_for.items())]

    @property
    def refused_for(self) -> dict[str, int]:
        """Return the rows of trades that were left out, counted by reason, the most first."""
        return {} if self.refused is None else self.refused["reason"].value_counts().to_dict()

    @property
    def is_apart(self) -> bool:
        """Tell whether another portfolio was held than was asked for."""
        missed = sum(one.turnover for one in self.lapses if one.reason not in (_CASH, _ENDED))
        return self.gap > APART or (self.gap > _NEAR and missed > max(APART * self.turnover, _TIMES))

    @property
    def sentence(self) -> str:
        """Say both in words, with the reasons."""
        told = (
            f"Turnover asked {self.turnover:.1f} a year, done {self.done:.1f}; on the mean day {self.gap:.1%} of the "
            "equity was elsewhere than asked."
        )
        large = [one for one in self.lapses if one.turnover >= _SHOWN]
        why = "; ".join(f"{one.reason} ({many(one.orders, 'order')}, {one.turnover:.2f} a year)" for one in large)
        small = [f"{one.reason} ({many(one.orders, 'order')})" for one in self.lapses if one.turnover < _SHOWN]
        why += f"; with less turnover {', '.join(small)}" if large and small else ""
        return f"{told} Why, counted anew each day: {why}." if why else told

    @property
    def warning(self) -> str:
        """Return what the verdict begins with: that another portfolio was judged, or what was left out of it."""
        apart = f"Another portfolio was judged than the policy asked for. {self.sentence}" if self.is_apart else ""
        return " ".join((*self.notes, apart)).strip()


@dataclass(frozen=True)
class Played:
    """What P accounts did on the judged days."""

    curves: EquityCurves
    before: Float64Array
    """(D, P, n) weights at each close on which something is decided."""
    held: Float64Array
    """(D, P, n) weights after the fills, at the prices of these closes."""
    trades: Trades | None
    scores: Float64Array | None = None
    """(D, n) by which the only account is held, NaN: none; None where it has no scores."""
    asked: Asked | None = None
    """What was asked of the only account, beside what was done."""
    is_signed: bool = False
    """Whether the account may be short, and owe cash."""

    @classmethod
    def of(cls, setup: EvaluationSetup, portfolio: Portfolio, target: Float64Array | None = None) -> Played:
        """Read the accounts of a portfolio at the end of the judged days.

        Args:
            target: (D, m) weights that the only account was asked to hold, NaN keeps; without them trades are left out.
        """
        account = portfolio.account
        trades = account.trades()
        after = (trades.filled + trades.closed).cpu().cumsum(0).to(trades.filled.device)  # on a card in no fixed order
        shares = torch.cat((torch.zeros_like(after[:1]), after[:-1]))
        close = pd.DataFrame(portfolio.quotes.close[: setup.judged.stop].cpu().numpy()).ffill().fillna(0.0)
        value = torch.tensor(close.to_numpy()[setup.judged]).to(after.device)[:, None]
        value = value / account.equity_curve[:-1, :, None]
        parts = shares, shares + trades.filled, trades.filled + trades.closed
        before, held, traded = (np.asarray((part * value).cpu()) for part in parts)
        curves = EquityCurves.of(account, held, np.abs(traded).sum(axis=(0, 2)))
        if target is None:
            return cls(curves, before, held, None)
        worth = value[:, 0].cpu().numpy()
        asked = Asked.of(target, before[:, 0], held[:, 0], worth, account, setup.first)
        return cls(curves, before, held, trades, asked=asked, is_signed=account.is_signed)

    @property
    def is_neutral(self) -> bool:
        """Tell whether the only account is short of about as much as it holds, so that cash is its benchmark."""
        shorts, net = self.held.clip(max=0.0).sum(axis=2), self.held.sum(axis=2).mean()
        return self.is_signed and bool((shorts < -_NEUTRAL).any()) and abs(float(net)) < _NEUTRAL

    def one(self, place: int) -> Played:
        """Return one of the accounts, without its trades."""
        cells = np.s_[:, place : place + 1]
        return Played(self.curves.one(place), self.before[cells], self.held[cells], None)


def best_of(scores: Scores, count: float | Float64Array, can_be_bought: BoolArray) -> Float64Array:
    """Return (days, n) equal weights of the best stocks by their scores of the day, NaN on days without any.

    Args:
        can_be_bought: (days, n), the others are left out.
    """
    known = np.where(can_be_bought & np.isfinite(scores), scores, -np.inf)
    rank = (-known).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    is_held = (rank < count) & np.isfinite(known)
    held = is_held.sum(axis=1, keepdims=True)
    return np.where(held > 0, is_held / np.maximum(held, 1), np.nan)


class GivenWeights:
    """The policy that holds (days, n) target weights as they are given, NaN keeps."""

    def __init__(self, weights: Float64Array) -> None:
        self.weights = torch.tensor(weights)

    def __call__(self, portfolio: Portfolio) -> Tensor:
        """Return the weights of today."""
        account = portfolio.account
        return self.weights[account.day.cpu()].to(account.device)


def play_policy(setup: EvaluationSetup, policy: Policy, portfolio: Portfolio | None = None) -> Played:
    """Play a policy's account, in another portfolio than the setup's if one is given."""
    portfolio, targets = portfolio or setup.portfolio, list[Tensor]()

    def noted(now: Portfolio) -> Tensor:
        targets.append(policy(now))
        return targets[-1]

    portfolios.play(portfolio, noted, setup.start, steps=setup.steps)
    return Played.of(setup, portfolio, torch.cat(targets).double().cpu().numpy())


def account_of_agent(setup: EvaluationSetup, agent: DDPGAgent) -> Played:
    """Play an agent's account by its forecasts of the judged days."""
    forecasts = agent.forecasts(setup.market, setup.judged)
    return replace(play_policy(setup, follow(agent, forecasts)), scores=agent_scores(forecasts, setup.judged))


def play_rules(setup: EvaluationSetup, rules: Mapping[str, BandRule]) -> dict[str, Played]:
    """Play rules, side by side."""
    risk, named, played = setup.tuning.risk, [*rules.items()], dict[str, Played]()
    size = max(1, TABLE_BYTES // (64 * setup.steps * setup.portfolio.quotes.stocks))
    for some in (named[first : first + size] for first in range(0, len(named), size)):
        forecasts = Forecasts.joined([rule.forecasts(risk) for _, rule in some])
        numbers = numbers_of([rule for _, rule in some], risk.device)
        windows: dict[str, Any] = {"starts": setup.start, "steps": setup.steps}
        roll_out(setup.portfolio, forecasts, **numbers, **windows, label="Playing rules", keeps_trades=True)
        together = Played.of(setup, setup.portfolio)
        played |= {name: together.one(place) for place, (name, _) in enumerate(some)}
    return played


def play_held(setup: EvaluationSetup) -> dict[str, Played]:
    """Hold the benchmark, equal weight where that is another one, buy and hold, equal risk, and of a universe that
    changes the members that have a bar at the end of the judged days, which nobody knew before.

    Buy and hold is equal weight that is never trimmed; equal risk is in proportion to one over the volatility at the
    first close.
    """
    portfolio, market = setup.portfolio, setup.market
    parts = equal = portfolio.parts
    if setup.benchmark != EQUAL:
        equal = torch.zeros_like(parts)
        equal[: len(market.investable_columns)] = 1.0
    risk = torch.zeros_like(parts, dtype=torch.float64)
    inverse = inverse_volatility(market.close[: setup.first + 1])[-1]
    risk[: len(inverse)] = torch.from_numpy(np.nan_to_num(inverse)).to(risk.device)
    held = {setup.benchmark: parts, EQUAL: equal, HOLD: equal, EQUAL_RISK: risk}
    if market.members is not None:
        last = portfolio.quotes.close[setup.judged.stop - LAST_DAYS : setup.judged.stop + 1]
        held[SURVIVORS] = torch.where(last.isfinite().any(0), equal, 0.0)
    return {name: _hold(setup, parts, is_trimmed=name != HOLD) for name, parts in held.items()}


def _hold(setup: EvaluationSetup, parts: Tensor, *, is_trimmed: bool) -> Played:
    portfolio = Portfolio(setup.portfolio.quotes, setup.portfolio.rules, parts)
    portfolio.rebalanced = None if is_trimmed else (0,)
    portfolios.play(portfolio, lambda now: now.wanted, setup.start, steps=setup.steps)
    return Played.of(setup, portfolio)
