"""The basket against plain arithmetic: what it holds, what it costs, and what it does not depend on."""

import dataclasses
import math
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.market import Market
from environment import basket as module
from environment.basket import BAND, Basket, BasketAccount
from environment.ledger import Bars
from tests.market_cases import random_panel
from tests.tiny import FIRST_DAY, random_world, tiny_rules, trending_panel, world_of
from utils.arrays import Float32Array
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError


class Plain:
    """One account in plain numbers, stock by stock."""

    def __init__(self, rules: EnvironmentConfig, stocks: int) -> None:
        self.rate = (rules.cost_bps + rules.slippage_bps) / 10_000
        self.rules, self.cash = rules, rules.initial_capital
        self.shares, self.marks, self.silent = [0.0] * stocks, [0.0] * stocks, [0] * stocks
        self.traded = 0.0

    @property
    def worth(self) -> float:
        return sum(held * mark for held, mark in zip(self.shares, self.marks, strict=True))

    def trade(self, stock: int, amount: float, price: float) -> None:
        self.shares[stock] += amount / price
        self.cash -= amount + self.rate * abs(amount)
        self.traded += abs(amount)

    def rebalance(self, prices: list[float], parts: list[float]) -> None:
        known = [stock for stock, price in enumerate(prices) if not math.isnan(price) and parts[stock] > 0]
        value = {stock: self.shares[stock] * prices[stock] for stock in known}
        whole = sum(parts[stock] for stock in known)
        goal = {stock: (self.cash + sum(value.values())) * parts[stock] / whole for stock in known}
        for stock in known:
            if value[stock] > BAND * goal[stock]:
                self.trade(stock, BAND * goal[stock] - value[stock], prices[stock])
        lacking = {stock: goal[stock] - value[stock] for stock in known if value[stock] < goal[stock]}
        money, wanted = max(0.0, self.cash) / (1 + self.rate), sum(lacking.values())
        for stock, amount in lacking.items():
            self.trade(stock, amount * min(1.0, money / wanted), prices[stock])

    def live(self, close: list[float]) -> None:
        for stock, price in enumerate(close):
            self.silent[stock] = self.silent[stock] + 1 if math.isnan(price) else 0
            self.marks[stock] = self.marks[stock] if math.isnan(price) else price
            if self.shares[stock] > 0 and self.silent[stock] >= self.rules.max_days_without_bar:
                mark = self.marks[stock] * (1 - self.rules.delisting_loss / 100)
                self.trade(stock, -self.shares[stock] * mark, mark) if mark > 0 else None
                self.shares[stock] = 0.0


def plainly(
    panel: Float32Array, start: int, sessions: int, rules: EnvironmentConfig, every: int
) -> tuple[Plain, list[float]]:
    """An account, and its equity at each close."""
    open_, close = panel[..., 0].astype(float).tolist(), panel[..., 3].astype(float).tolist()
    account, equity = Plain(rules, panel.shape[1]), [rules.initial_capital]
    for session in range(sessions):
        day = start + session + 1
        if session % every == 0 or account.worth < 1e-6 * account.cash:
            account.rebalance(open_[day], [1.0] * panel.shape[1])
        account.live(close[day])
        equity.append(account.cash + account.worth)
    return account, equity


def basket_of(panel: Float32Array) -> Basket:
    bars = Bars.from_prices(*(torch.from_numpy(panel[..., place].copy()) for place in (0, 1, 3)))
    return Basket(bars, np.arange(panel.shape[1]))


def held(panel: Float32Array, start: int, sessions: int, rules: EnvironmentConfig, **how: bool) -> BasketAccount:
    return basket_of(panel).hold(rules, torch.tensor([start]), sessions, **how)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 25),
    st.integers(1, 5),
    st.integers(0, 4),
    st.sampled_from([0.0, 7.0, 200.0]),
    st.sampled_from([0.0, 0.3, 0.9]),
    st.sampled_from([0.0, 30.0, 100.0]),
    st.sampled_from([3, 8, 252]),
)
def test_it_is_its_plain_arithmetic(
    seed: int, sessions: int, stocks: int, start: int, cost: float, missing: float, loss: float, every: int
) -> None:
    panel = random_panel(np.random.default_rng(seed), start + sessions + 2, stocks, missing=missing)
    rules = tiny_rules(cost_bps=cost, slippage_bps=3.0, delisting_loss=loss)
    with mock.patch.object(module, "REBALANCING_SESSIONS", every):
        found = held(panel, start, sessions, rules, is_sold=False)
        sold = held(panel, start, sessions, rules)
    account, equity = plainly(panel, start, sessions, rules, every)
    assert found.equity[0].tolist() == pytest.approx(equity, rel=1e-9, abs=1e-6)
    assert found.traded[0].item() == pytest.approx(account.traded, rel=1e-9, abs=1e-6)
    assert found.shares[0].tolist() == pytest.approx(account.shares, rel=1e-9, abs=1e-6)
    assert found.invested[0, -1].item() == pytest.approx(account.worth, rel=1e-9, abs=1e-6)
    assert sold.equity[0, :-1].tolist() == found.equity[0, :-1].tolist()
    assert sold.equity[0, -1].item() == pytest.approx(equity[-1] - account.rate * account.worth, rel=1e-9, abs=1e-6)


@given(st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_nothing_depends_on_the_order_of_stocks_or_on_other_accounts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    panel, rules = random_panel(rng, 40, 7), tiny_rules()
    starts = torch.tensor([3, 8, 15])
    found = basket_of(panel).hold(rules, starts, 20)
    other = basket_of(panel[:, rng.permutation(7)]).hold(rules, starts, 20)
    torch.testing.assert_close(found.equity, other.equity, rtol=1e-12, atol=0.0)
    for lane, start in enumerate(starts.tolist()):
        assert torch.equal(held(panel, start, 20, rules).equity[0], found.equity[lane])


def test_the_ticker_the_sample_and_who_is_refused() -> None:
    world = random_world()
    market = world.market
    assert Basket.of(market, "", 0).columns.tolist() == market.investable_columns.tolist()
    assert Basket.of(market, "S1", 0).columns.tolist() == [1], "also one that agents do not buy"
    with pytest.raises(ConfigError, match=r"--evaluation.basket to be a ticker of the data, as S0, got 'SPY'"):
        Basket.of(market, "SPY", 0)
    large = world_of(random_panel(np.random.default_rng(0), 12, 420)).market
    order = np.random.default_rng(1).permutation(420)
    moved = dataclasses.replace(
        large, data_array=large.data_array[:, order], tickers=[large.tickers[place] for place in order]
    )

    def sample(drawn_from: Market, seed: int) -> list[str]:
        return sorted(drawn_from.tickers[column] for column in Basket.of(drawn_from, "", seed).columns)

    assert 100 <= len(sample(large, 5)) == len(set(sample(large, 5))) < 300
    assert sample(large, 5) == sample(moved, 5) != sample(large, 6), "whatever the order of the columns"


def test_a_locked_basket_keeps_what_it_holds_and_trades_no_more_until_it_is_released() -> None:
    """Half of the value is lost on day 5, while the first stock has grown out of its band."""
    panel = trending_panel([0.0, 0.0], 30, noise=0.0)
    panel[FIRST_DAY + 5 :] *= 0.5
    panel[FIRST_DAY + 5 :, 0] *= 5.0
    panel[FIRST_DAY + 7 :] *= 0.3
    free, locked = (tiny_rules(drawdown_lock=lock, cost_bps=0.0, slippage_bps=0.0) for lock in (0.0, 40.0))
    with mock.patch.object(module, "REBALANCING_SESSIONS", 10):
        start, traded = torch.tensor([FIRST_DAY]), dict[str, float]()
        for name, rules, released in (("free", free, ()), ("locked", locked, ()), ("released", locked, (9,))):
            account = basket_of(panel).hold(rules, start, 15, is_sold=False, released=released)
            traded[name] = account.traded.item()
    assert traded["locked"] == pytest.approx(free.initial_capital)
    assert traded["free"] == traded["released"] > 1.05 * free.initial_capital
