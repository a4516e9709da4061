"""The account against an independent twin, and against cases that are known by hand."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environment import account as account_module
from environment.account import Account
from environment.quotes import Quotes
from tests.environment.account_twin import Twin
from utils.arrays import Float64Array
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError

RULES = EnvironmentConfig()
FREE = replace(RULES, cost_bps=0.0, slippage_bps=0.0)


def panel(rng: np.random.Generator, days: int, stocks: int, gaps: float = 0.0) -> tuple[Float64Array, Float64Array]:
    """Open and close, some without a bar: single days, whole weeks, and the end of a stock."""
    moves = rng.normal(0.0, 0.03, (2, days, stocks))
    close = 50.0 * np.exp(np.cumsum(moves.sum(0), axis=0))
    open_ = close * np.exp(-moves[1])
    gone = rng.random((days, stocks)) < gaps / 2
    for stock in np.flatnonzero(rng.random(stocks) < gaps):
        first = int(rng.integers(days))
        gone[first : first + int(rng.integers(1, 9))] |= np.arange(stocks) == stock
        gone[days - int(rng.integers(1, days)) :, stock] |= rng.random() < gaps
    return np.where(gone, np.nan, open_), np.where(gone, np.nan, close)


def tensors(**arrays: Any) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(value)) for name, value in arrays.items() if value is not None}


def targets_of(rng: np.random.Generator, steps: int, stocks: int, is_signed: bool) -> Float64Array:
    """Target weights that change little or much, add up to anything, and are missing here and there."""
    weights = rng.dirichlet(np.full(stocks, 0.5), steps) * rng.uniform(0.3, 1.5, (steps, 1))
    weights[rng.random(steps) < 0.3] = np.nan
    weights[rng.random(weights.shape) < 0.15] = 0.0
    weights[rng.random(weights.shape) < 0.1] = np.nan
    return weights * rng.choice([-1.0, 1.0], weights.shape) if is_signed else weights


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    gaps=st.sampled_from([0.0, 0.3, 0.8]),
    rules=st.fixed_dictionaries(
        {
            "fill": st.sampled_from(["next_open", "same_close"]),
            "cost_bps": st.sampled_from([0.0, 5.0, 200.0]),
            "volume_cap": st.sampled_from([0.0, 1.0, 100.0]),
            "drawdown_lock": st.sampled_from([0.0, 5.0]),
            "delisting_loss": st.sampled_from([0.0, 30.0]),
            "max_days_without_bar": st.sampled_from([1, 3]),
            "initial_capital": st.sampled_from([1000.0, 1e6]),
        }
    ),
    is_signed=st.booleans(),
    is_flat=st.booleans(),
    has_events=st.booleans(),
    has_members=st.booleans(),
    many=st.sampled_from([1, 512]),
)
def test_the_account_is_its_twin(
    seed: int,
    gaps: float,
    rules: dict[str, Any],
    is_signed: bool,
    is_flat: bool,
    has_events: bool,
    has_members: bool,
    many: int,
) -> None:
    """Equity, positions and costs of each lane, and cash + positions = equity, whatever happens, and though only stocks
    that trade are booked."""
    with patch.object(account_module, "_MANY", many):
        account_is_its_twin(seed, gaps, rules, is_signed, is_flat, has_events, has_members)


def account_is_its_twin(
    seed: int, gaps: float, rules: dict[str, Any], is_signed: bool, is_flat: bool, has_events: bool, has_members: bool
) -> None:
    rng, days, stocks, lanes, steps = np.random.default_rng(seed), 24, 4, 3, 18
    open_, close = panel(rng, days, stocks, gaps)
    volume = np.exp(rng.normal(7.0, 2.0, close.shape)).round()
    member = rng.random(close.shape) < 0.7 if has_members else None
    split = dividend = None
    if has_events:
        split = np.where(rng.random(close.shape) < 0.1, rng.choice([0.5, 2.0, 3.0], close.shape), 1.0)
        dividend = np.where(rng.random(close.shape) < 0.1, 1.0, 0.0)
        raw = np.cumprod(split, axis=0)
        open_, close = open_ / raw, close / raw
    config = replace(RULES, slippage_bps=0.0, **rules)
    fees = {"is_signed": is_signed, "borrow_bps": 300.0 * is_signed, "financing_bps": 500.0 * is_signed}
    start, trading = rng.integers(0, days - steps, lanes), int(rng.integers(1, steps + 1))
    targets = np.stack([targets_of(rng, steps, stocks, is_signed) for _ in range(lanes)])
    others = tensors(volume=volume, is_member=member, split=split, dividend=dividend)
    account = Account(Quotes.of(**tensors(open_=open_, close=close), **others), config, **fees)
    account.reset(
        torch.from_numpy(start), steps=steps, trading_steps=trading, is_flat_at_end=is_flat, keeps_trades=True
    )
    rewards = []
    for step in range(steps):
        rewards.append(account.step(torch.from_numpy(targets[:, step])))
        held = (account.shares * account.last.nan_to_num()).sum(1)
        torch.testing.assert_close(account.cash + held, account.equity, rtol=1e-9, atol=1e-9)
        assert is_signed or (account.cash > -1e-9 * account.equity - 1e-9).all()
        assert is_signed or (account.shares >= 0).all()
    summary, trades = account.summary(), account.trades()
    for lane in range(lanes):
        twin = Twin(open_, close, config, volume, member, split, dividend, **fees)
        curve = twin.play(int(start[lane]), targets[lane], trading, is_flat)
        scale = np.abs(curve).max()
        np.testing.assert_allclose(account.equity_curve[:, lane].numpy(), curve, rtol=1e-9, atol=1e-9 * scale)
        shares = [position.shares for position in twin.positions]
        np.testing.assert_allclose(account.shares[lane].numpy(), shares, rtol=1e-7, atol=1e-7 * scale / 50)
        np.testing.assert_allclose(float(summary.costs[lane]), twin.costs, rtol=1e-9, atol=1e-6)
        np.testing.assert_allclose(
            sum(float(one[lane]) for one in rewards), 100 * (curve[-1] / curve[0] - 1), atol=1e-7
        )
        clear = [result for result in twin.results if abs(result) > 1e-7 * scale]
        assert int(summary.trades[lane]) == len(twin.results) and int(summary.positions_opened[lane]) == twin.opened
        assert sum(one > 0 for one in clear) <= int(summary.wins[lane]) <= len(twin.results) - sum(o < 0 for o in clear)
        assert int(summary.days_with_positions[lane]) == twin.busy_days
        ages = [position.age for position in twin.positions]
        assert account.age[lane].tolist() == ages
    if split is None:
        torch.testing.assert_close((trades.filled + trades.closed).sum(0), account.shares, rtol=1e-7, atol=1e-7)


def test_what_is_bought_is_cut_to_the_cash_and_sales_pay_for_purchases() -> None:
    """All in one stock, which opens 10 % dearer; then all in the other, in one session."""
    open_, close = (
        np.array([[10.0, 10.0], [11.0, 10.0], [12.0, 8.0]]),
        np.array([[10.0, 10.0], [12.0, 10.0], [12.0, 8.0]]),
    )
    account = Account(Quotes.of(**tensors(open_=open_, close=close)), replace(FREE, initial_capital=1100.0))
    account.reset(torch.tensor([0]), steps=2)
    reward = account.step(torch.tensor([[1.0, 0.0]]).double())
    assert account.shares.tolist() == [[100.0, 0.0]] and account.cash.tolist() == [0.0]
    assert reward.item() == pytest.approx(100 * 100 / 1100) and account.unrealised[0, 0] == pytest.approx(1 / 11)
    account.step(torch.tensor([[0.0, 1.0]]).double())
    assert account.shares.tolist() == [[0.0, 120.0]] and account.cash.item() == pytest.approx(240.0)
    summary = account.summary()
    assert (int(summary.trades), int(summary.wins), int(summary.positions_opened)) == (1, 1, 2)


def test_what_cannot_be_played_is_refused() -> None:
    quotes = Quotes.of(**tensors(open_=np.ones((10, 2)), close=np.ones((10, 2))))
    with pytest.raises(ConfigError, match="expected bars with volume"):
        Account(quotes, replace(RULES, volume_cap=1.0))
    account = Account(quotes, RULES)
    with pytest.raises(ValueError, match=r"windows within days 0\.\.9"):
        account.reset(torch.tensor([5]), steps=5)
    account.reset(torch.tensor([0]), steps=1)
    account.step(torch.zeros(1, 2, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="has ended"):
        account.step(torch.zeros(1, 2, dtype=torch.float64))
    with pytest.raises(ValueError, match="keep their trades"):
        account.trades()
