"""The next session's orders of one agent, decided at a close and filled by the environment's own rules.

Each order comes with an exact attribution. Without networks the expected result is linear in the inputs. With them it
is the day's mean of the ridge regression, plus what the stock is expected to earn beyond the others of its day: its
inputs times the committee's ridge weights, and the networks' output. So it is the sum of a part for each group of
inputs, a constant, and one part for the networks. Inputs are standardised: a group at its means contributes nothing.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.market import Market
from environment.portfolio import Portfolio
from environment.trading_env import trade_ledger
from models.ddpg_agent import DDPGAgent, Judgement
from models.inputs import GROUP_OF_INPUT, GROUPS
from models.trader import day_mean
from training.signals.decision import decide
from training.signals.holdings import Holding
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError, DataError

NETWORKS = "networks"
METHOD = (
    "input times weight, summed by group of inputs, and the networks' output; shares of the absolute sum, + raises and "
    "- lowers the forecast"
)


@dataclass(frozen=True)
class SessionDate:
    """A session's date; beyond the end of the data an estimate in business days, without holidays."""

    date: str
    is_estimate: bool

    def __str__(self) -> str:
        return self.date + (" (estimate)" if self.is_estimate else "")


@dataclass(frozen=True)
class Share:
    """The share of an order's forecast that comes from one group of inputs, or from the networks."""

    name: str
    percent: float
    raises: bool
    """The group raised the forecast."""

    def __str__(self) -> str:
        return f"{self.name} {'+' if self.raises else '-'}{self.percent:.0f}%"


@dataclass(frozen=True)
class Order:
    """A purchase for the next session; amounts in currency units."""

    ticker: str
    coefficient: float
    """Size in stakes, as the agent wants it."""
    value: float
    """Amount to spend before costs, cut to the available cash but not to the session's volume, which is unknown."""
    percent_of_capital: float
    expected_percent: float
    """Expected result after costs, percent of its value."""
    networks_percent: float | None
    """What the networks add to it, relative to the mean of the day's stocks; None where there are none."""
    close: float
    """Reference: the close at which it was decided."""
    target_percent: float
    """Sale target above the price at which the order is filled."""
    target_price: float
    """Sale target if it were filled at the reference close."""
    latest_exit: SessionDate
    looks_at: list[Share]


@dataclass(frozen=True)
class OpenPosition:
    """A position that is held already."""

    ticker: str
    shares: float
    entry_date: str
    entry_price: float
    close: float
    unrealised_percent: float
    sessions_held: int
    target_price: float
    stop_price: float | None
    """None where the rules have no stop."""
    latest_exit: SessionDate
    status: str


@dataclass(frozen=True)
class Signals:
    """The state of an account at a close, and the agent's orders."""

    date: str
    next_session: SessionDate
    capital: float
    cash: float
    equity: float
    orders: list[Order]
    positions: list[OpenPosition]
    best_candidate: str | None
    """Ticker with the highest score among those that may be ordered."""
    best_expected_percent: float | None
    """Its forecast after costs, percent of an order's value."""
    is_forecast: bool
    """The agent decides on this day; on the others the orders hold the market round robin."""
    is_locked: bool = False
    """Equity has fallen as far as the rules allow: there are no orders until a person says so."""


@dataclass(frozen=True)
class Parts:
    """The parts of the forecasts of a day's orders, percent of the initial capital."""

    groups: NDArray[np.float64]
    """(n, groups) of the inputs."""
    constant: NDArray[np.float64] | float
    """(n,), or of all stocks."""
    networks: NDArray[np.float64] | None
    """(n,) of the networks, relative to their mean over the day's stocks; None where there are none."""

    @property
    def expected(self) -> NDArray[np.float64]:
        total: NDArray[np.float64] = self.groups.sum(axis=1) + self.constant
        return total if self.networks is None else np.add(total, self.networks)


def parts_of(agent: DDPGAgent, x: Tensor, tradable: Tensor) -> Parts:
    """Split an agent's forecasts of a day's orders: (n, inputs), on its device, and (n,) with a bar."""
    weights, numbers, shares = agent.traders.weights[0].double(), x.double(), None
    if agent.risk is not None:
        shares = agent.risks(agent.numbers_of_day(x, tradable))[1]
        numbers = numbers * shares[:, None].double()
    own, mean, added = weights, day_mean(numbers.T, tradable).T, None
    if agent.members is not None:
        own, judged = (agent.members.ridge[:, None] * agent.members.weights).mean(0).double(), agent.judge(x, shares)
        assert isinstance(judged, Judgement)
        added = (judged.reward - day_mean(judged.at_start, tradable)).double().cpu().numpy()
    level = weights + agent.trust.shift
    parts, constant = numbers * own + mean * (level - own), float(level[0])
    return Parts(_by_group(parts), constant if shares is None else parts[:, 0].cpu().numpy(), added)


def _by_group(products: Tensor) -> NDArray[np.float64]:
    """Sum (n, inputs) products over the groups of inputs; the constant, which is the first input, is left out."""
    groups = torch.from_numpy(GROUP_OF_INPUT[1:]).to(products.device)
    total = products.new_zeros(len(products), len(GROUPS))
    return np.asarray(total.index_add(1, groups, products[:, 1:]).cpu().numpy())


def attribution(parts: Parts, stock: int, most: int = 3) -> list[Share]:
    """Return the `most` important parts of a stock's forecast, the largest first."""
    names, total = GROUPS, parts.groups[stock]
    if parts.networks is not None:
        names, total = (*GROUPS, NETWORKS), np.append(total, parts.networks[stock])
    percent = 100 * np.abs(total) / max(np.abs(total).sum(), np.finfo(np.float64).tiny)
    best = [place for place in np.argsort(-percent, kind="stable")[:most].tolist() if percent[place] > 0]
    return [Share(names[place], float(percent[place]), bool(total[place] >= 0)) for place in best]


def cash_left(holdings: list[Holding], rules: EnvironmentConfig) -> float:
    """Return the rest of the initial capital after buying these positions.

    Raises:
        ConfigError: they cost more than the capital.
    """
    left = rules.initial_capital - sum(holding.value for holding in holdings) * rules.purchase_factor
    if left < 0:
        raise ConfigError(
            f"expected positions that cost at most the capital of {rules.initial_capital:,.0f}, got {-left:,.0f} more; "
            "give --capital, or --cash"
        )
    return left


def make_signals(
    agent: DDPGAgent,
    market: Market,
    day: int,
    rules: EnvironmentConfig,
    cash: float,
    holdings: list[Holding],
    peak: float = 0.0,
) -> Signals:
    """Return the orders of `agent` at the close of `day`, as on the first day of an episode.

    Sizes refer to the initial capital of the rules; `cash` and `holdings` are the account at that close, `peak` is its
    highest equity so far, at least the initial capital. A drawdown lock applies to them.

    Raises:
        DataError: the day precedes the training days.
    """
    if day < market.splits.train.first:
        raise DataError(
            f"expected a day from {market.dates[market.splits.train.first]} on, the first training day, got "
            f"{market.dates[day]}"
        )
    shown = [_position(holding, market, rules) for holding in holdings]
    decision = decide(agent, market, day, rules, cash, holdings)
    portfolio, forecasts, action = decision.portfolio, decision.forecasts, decision.action
    is_forecast, stocks = agent.decides_on(day), portfolio.bars.stocks
    tradable = portfolio.bars.tradable[0].to(agent.device)
    nothing = Parts(np.zeros((stocks, len(GROUPS))), 0.0, None)
    parts = parts_of(agent, decision.x, tradable) if is_forecast else nothing
    is_free, equity = decision.candidates, float(portfolio.equity)
    highest = max(peak, rules.initial_capital, equity)
    is_locked = rules.drawdown_lock > 0 and equity <= highest * (1 - rules.drawdown_lock / 100)
    expected = forecasts.expected[0, day].cpu() / rules.largest_order
    best = int(torch.where(is_free, forecasts.score[0, day].cpu(), -torch.inf).argmax())
    has_candidate = bool(is_free[best] & expected[best].isfinite())
    portfolio.step(torch.zeros_like(action[None]) if is_locked else action[None])
    return Signals(
        date=str(market.dates[day]),
        next_session=session_date(market, day + 1),
        capital=rules.initial_capital,
        cash=cash,
        equity=equity,
        orders=_orders(parts, market, day, action, portfolio),
        positions=shown,
        best_candidate=market.tickers[market.investable_columns[best]] if has_candidate else None,
        best_expected_percent=float(expected[best]) if has_candidate else None,
        is_forecast=is_forecast,
        is_locked=is_locked,
    )


def session_date(market: Market, day: int) -> SessionDate:
    """Return the date of a session, which may lie after the end of the data."""
    beyond = day - (len(market.dates) - 1)
    if beyond <= 0:
        return SessionDate(str(market.dates[day]), False)
    return SessionDate(str(np.busday_offset(market.dates[-1], beyond, roll="backward")), True)


def _orders(parts: Parts, market: Market, day: int, action: Tensor, portfolio: Portfolio) -> list[Order]:
    """List the orders that the environment has filled, with their forecasts and attributions."""
    rules, orders = portfolio.rules, []
    expected = parts.expected / rules.largest_order
    for trade in trade_ledger(portfolio, 0):
        stock = trade["stock"]
        orders.append(
            Order(
                ticker=market.tickers[market.investable_columns[stock]],
                coefficient=float(action[stock, 0]),
                value=trade["value"],
                percent_of_capital=100 * trade["value"] / rules.initial_capital,
                expected_percent=float(expected[stock]),
                networks_percent=None if parts.networks is None else float(parts.networks[stock] / rules.largest_order),
                close=trade["entry_price"],
                target_percent=float(action[stock, 1]),
                target_price=trade["target_price"],
                latest_exit=session_date(market, day + trade["entry_day"] + rules.max_holding_days - 1),
                looks_at=attribution(parts, stock),
            )
        )
    return orders


def _position(holding: Holding, market: Market, rules: EnvironmentConfig) -> OpenPosition:
    left, stopped, reached = rules.max_holding_days - holding.sessions_held, holding.stop_day(rules), holding.target_day
    if stopped is not None and (reached is None or stopped <= reached):
        status = f"stop reached on {market.dates[stopped]}, to be closed"
    elif reached is not None:
        status = f"target reached on {market.dates[reached]}"
    elif holding.days_without_bar >= rules.max_days_without_bar:
        status = f"no bar for {holding.days_without_bar} sessions, to be closed"
    elif left <= 0:
        status = "holding period over, to be closed"
    else:
        status = "exit due at the next close" if left == 1 else f"open, {left} sessions left"
    return OpenPosition(
        ticker=holding.ticker,
        shares=holding.shares,
        entry_date=str(market.dates[holding.entry_day]),
        entry_price=holding.entry_price,
        close=holding.last_price,
        unrealised_percent=100 * (holding.last_price / holding.entry_price - 1),
        sessions_held=holding.sessions_held,
        target_price=holding.target_price,
        stop_price=holding.stop_price(rules),
        latest_exit=session_date(market, holding.entry_day + rules.max_holding_days - 1),
        status=status,
    )
