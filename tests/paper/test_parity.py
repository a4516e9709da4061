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

from data.market import Market
from environment.basket import Basket
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts
from tests.paper.cases import DATES, MARKET, START, Walk, agent_of, keeper, traded_market
from tests.small_market import TINY_RULES
from training.evaluation.play import EvaluationSetup, account_of_agent
from training.paper.backtest import backtest
from training.paper.report import parity_sentence


@pytest.mark.parametrize("exits", ["daily", "target"])
@settings(max_examples=4)
@given(st.integers(0, 9), st.sampled_from([0.0, 0.4, 1.0]), st.integers(1, 3), st.sampled_from([0.0, 0.02]), st.data())
def test_an_account_equals_its_backtest(
    exits: Any, seed: int, share: float, orders: int, volume_cap: float, data: st.DataObject
) -> None:
    """Also far beyond an episode, with several orders a day, a basket, aversion to risk, missing bars; as evaluated."""
    limits: dict[str, Any] = {"exits": exits, "max_new_positions_per_day": orders, "volume_cap": volume_cap}
    rules = dataclasses.replace(TINY_RULES, exposure=0.8, **limits)
    if seed > 5:
        rules = dataclasses.replace(rules, stop_percent=3.0, drawdown_lock=5.0)
    agent = agent_of(seed, rules).with_share(share)
    if data.draw(st.booleans(), "averse to risk"):
        agent.risk = torch.tensor([0.05, 0.1, 0.02, 0.02, 0.02], dtype=torch.float64)
    last = START + data.draw(st.integers(1, 2 * rules.episode_steps + 3))
    volume = np.random.default_rng(seed).integers(1, 10**6, MARKET.data_array.shape[:2]).astype(np.float32)
    market = dataclasses.replace(MARKET, volume=volume if volume_cap else None)
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder), agent, rules, market)
        assert walk.step(*range(START, last + 1))
        account = walk.at(last)
        played = backtest(account)
        assert played.first_difference(account, 0.0) == ""
        assert "equal bit for bit" in parity_sentence(account, played)
        book = account.book
        every = Basket.of(market, "", 0)
        held = every.hold(dataclasses.replace(rules, initial_capital=12_345.67), torch.tensor([START]), last - START)
        for day in range(START, last):
            values, basket = book.session(day), held.equity[0, day - START].item()
            assert values["basket"] == basket
            parts = share * values["equity"] + (1 - share) * basket
            assert values["whole"] == pytest.approx(0.8 * parts + 0.2 * 12_345.67, rel=1e-12)
        # It is the account that `evaluate --continuous` plays.
        env = dataclasses.replace(rules, initial_capital=12_345.67, trading_days=last - START, settlement_days=0)
        setup = EvaluationSetup(market, Portfolio.on(market, env, is_continuing=True), torch.tensor([START]))
        played = account_of_agent(setup, walk.agent)
        own = [book.equity(day) for day in range(START, last + 1)]
        assert own == pytest.approx(played.curves.equity[0, 0].tolist(), rel=1e-5)
        assert len(played.trades) == sum(
            fill.side == "buy" for day in range(START, last + 1) for fill in book.fills(day)
        )


class Remembering(DDPGAgent):
    """An agent that looks up what it forecasts of a day, which takes most of a step's time."""

    known: Forecasts

    def forecasts(self, market: Market, days: slice = slice(None), *, by_day: bool = False) -> Forecasts:
        """Return the known forecasts of the days of a market; those of a backtest are computed."""
        if by_day:
            return super().forecasts(market, days, by_day=by_day)
        return Forecasts(self.known.score[:, : len(market.dates)])


def test_an_account_goes_on_for_years(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """350 sessions, 19 episodes: equal to the backtest to the bit, and nothing is sold because an episode would end."""
    market, sessions = traded_market(5, 400), 350
    days = range(START, START + sessions)
    agent = Remembering(**vars(agent_of(1, market=market).with_share(0.4)))
    agent.known = DDPGAgent.forecasts(agent, market, slice(START, None), by_day=True)
    walk = Walk(tmp_path, agent, market=market)
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # random prices may look split
    walk.replay(days)
    account = walk.at(days[-1])
    assert backtest(account).first_difference(account, 0.0) == ""
    fills = [fill for day in days for fill in account.book.fills(day)]
    assert len(fills) > 100 and "episode_end" not in {fill.reason for fill in fills}
    ends = range(START + TINY_RULES.episode_steps, days[-1], TINY_RULES.episode_steps)
    assert sum(bool(account.book.session(day)["positions"]) for day in ends) > len(ends) / 2
    # Sizes follow the equity: an order of the largest coefficient is half of it, whatever the capital was.
    ordered = [(day, order) for day in days for order in account.book.orders(day) if order.side == "buy"]
    uncut = [(day, order) for day, order in ordered if order.value < account.book.session(day)["cash"] * 0.99]
    for day, order in uncut:
        assert order.value == pytest.approx(0.05 * order.coefficient * account.book.equity(day))
    assert len(uncut) > 20 and abs(account.book.equity(days[-1]) / 12_345.67 - 1) > 0.05


def test_a_lock_ends_when_a_person_says_so(tmp_path: Path) -> None:
    """After `paper go` the account orders again, and its drawdown counts from there."""
    rules = dataclasses.replace(TINY_RULES, drawdown_lock=3.0, stake_percent=10.0)
    walk, day = Walk(tmp_path, keeper(), rules), START
    while walk.step(day) and not walk.at(day).book.is_locked(day):
        day += 1
    for later in range(day + 1, day + 9):
        walk.step(later)
        book = walk.at(later).book
        assert book.is_locked(later) and not [one for one in book.intended(later) if one.side == "buy"]
    walk.go()
    walk.step(day + 9, day + 10)
    book = walk.at(day + 10).book
    assert [one for one in book.intended(day + 9) if one.side == "buy"]
    assert [fill for fill in book.fills(day + 10) if fill.side == "buy"]


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("equity", 1e-12, "equal but for last digits"),
        ("equity", 1e-6, f"differ, first on {DATES[START + 3]}: equity "),
        ("basket", 1e-6, f"differ, first on {DATES[START + 3]}: basket "),
    ],
)
def test_last_digits_that_another_version_rounds_are_no_difference(
    tmp_path: Path, part: str, change: float, words: str
) -> None:
    walk = Walk(tmp_path, agent_of(3).with_share(0.5))
    walk.step(*range(START, START + 6))
    account = walk.at(START + 5)
    played = backtest(account)
    assert "equal bit for bit" in parity_sentence(account, played)
    curve = getattr(played, part) * np.where(np.arange(6) == 3, 1 + change, 1.0)
    assert words in parity_sentence(account, dataclasses.replace(played, **{part: curve}))
