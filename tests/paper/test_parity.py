"""An account that steps day by day is the backtest of its champion, bit for bit."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features.nine import OPEN
from environment.basket import Basket
from environment.portfolio import Portfolio
from tests.paper.cases import MARKET, START, Walk, agent_of, keeper
from tests.small_market import TINY_RULES
from training.evaluation.play import EvaluationSetup, play_agent
from training.paper.backtest import backtest
from training.paper.report import parity_sentence


@pytest.mark.parametrize("exits", ["daily", "target"])
@settings(max_examples=4)
@given(st.integers(0, 9), st.sampled_from([0.0, 0.4, 1.0]), st.integers(1, 3), st.sampled_from([0.0, 0.02]), st.data())
def test_an_account_equals_its_backtest(
    exits: Any, seed: int, share: float, orders: int, volume_cap: float, data: st.DataObject
) -> None:
    """Also over windows, with several orders a day, a basket, aversion to risk, missing bars; as evaluated."""
    limits: dict[str, Any] = {"exits": exits, "max_new_positions_per_day": orders, "volume_cap": volume_cap}
    rules = dataclasses.replace(TINY_RULES, exposure=0.8, **limits)
    if seed > 5:
        rules = dataclasses.replace(rules, stop_percent=3.0, drawdown_lock=5.0)
    agent = agent_of(seed, rules).betting(share)
    if data.draw(st.booleans(), "averse to risk"):
        agent.risk = torch.tensor([0.05, 0.1, 0.02, 0.02, 0.02], dtype=torch.float64)
    last = START + data.draw(st.integers(1, 2 * rules.episode_steps + 3))
    volume = np.random.default_rng(seed).integers(1, 10**6, MARKET.data_array.shape[:2]).astype(np.float32)
    market = dataclasses.replace(MARKET, volume=volume if volume_cap else None)
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder), agent, rules, market)
        for day in range(START, last + 1):
            assert walk.step(day)
        with walk.journal() as journal:
            account = walk.account(journal, last)
            played = backtest(account)
            assert played.first_difference(account) == ""
            assert "equal bit for bit" in parity_sentence(account, played)
            book = account.book
            every = Basket.of(market, "", 0)
            held = every.hold(
                dataclasses.replace(rules, initial_capital=12_345.67), torch.tensor([START]), last - START
            )
            for day in range(START, last):
                values, basket = book.session(day), held.equity[0, day - START].item()
                assert values["basket"] == basket
                parts = share * values["equity"] + (1 - share) * basket
                assert values["whole"] == pytest.approx(0.8 * parts + 0.2 * 12_345.67, rel=1e-12)
            if last < START + rules.episode_steps:
                return
            # The first window is an episode as `evaluate` plays it.
            env = dataclasses.replace(rules, initial_capital=12_345.67)
            setup = EvaluationSetup(market, Portfolio.on(market, env), torch.tensor([START]))
            curves, trades, _ = play_agent(setup, walk.agent)
            own = [book.equity(day) for day in range(START, START + rules.episode_steps + 1)]
            assert own == pytest.approx(curves.equity[0, 0].tolist(), rel=1e-5)
            assert len(trades) == sum(
                fill.side == "buy" for day in range(START, START + rules.episode_steps + 1) for fill in book.fills(day)
            )


@pytest.mark.parametrize("exits", ["daily", "target"])
def test_positions_are_sold_at_the_open_where_the_agents_say_so(tmp_path: Path, exits: Any) -> None:
    """All whose stock has a bar, as the intent of the close before says; with daily exits only."""
    rules = dataclasses.replace(TINY_RULES, exits=exits, stake_percent=2.0)
    sold, intended, days = set(), set(), range(START + 1, START + rules.episode_steps)
    for seed in range(6):
        walk = Walk(tmp_path / str(seed), agent_of(seed, rules), rules)
        for day in (START, *days):
            walk.step(day)
        with walk.journal() as journal:
            book = walk.account(journal, days[-1]).book
            for day in days:
                sales = [order.ticker for order in book.orders(day - 1) if order.side == "sell"]
                open_ = dict(zip(MARKET.tickers, MARKET.data_array[day, :, OPEN].tolist(), strict=True))
                intended |= {(seed, day, ticker, open_[ticker]) for ticker in sales if open_[ticker] > 0}
                fills = [fill for fill in book.fills(day) if fill.reason == "sold"]
                sold |= {(seed, day, fill.ticker, fill.price) for fill in fills}
    assert sold == intended and (len(sold) > 5) == (exits == "daily")


def test_the_page_names_the_first_day_of_a_difference(tmp_path: Path) -> None:
    """An order that nobody gave, at the close of a session that no step saw in time."""
    walk = Walk(tmp_path, keeper())
    for day in (START, START + 2, START + 3):
        walk.step(day)
    with walk.journal() as journal:
        account = walk.account(journal, START + 3)
        assert backtest(account).first_difference(account).startswith(f"{account.book.date(START + 2)}: buy")


def test_a_basket_that_is_not_the_accounts_is_named(tmp_path: Path) -> None:
    walk = Walk(tmp_path, agent_of(3).betting(0.5))
    for day in range(START, START + 6):
        walk.step(day)
    with walk.journal() as journal:
        account = walk.account(journal, START + 5)
        played = backtest(account)
        held = played.basket.copy()
        held[3] += 0.01
        other = dataclasses.replace(played, basket=held)
        assert played.first_difference(account) == ""
        assert other.first_difference(account).startswith(f"{account.book.date(START + 3)}: basket ")
