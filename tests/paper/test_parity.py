"""An account that steps day by day is the backtest of its decider, bit for bit."""

import dataclasses
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features.nine import CLOSE, OPEN
from environment.benchmark import Benchmark
from environment.portfolio import Portfolio, play
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts
from tests.paper.cases import DATES, MARKET, START, Walk, agent_of, traded_market
from tests.small_market import TINY_RULES
from training.paper.report import backtest, parity_sentence, profits
from training.rollout import follow

CAPITAL = 12_345.67


@settings(max_examples=6)
@given(st.integers(0, 9), st.sampled_from([0.0, 0.4, 1.0]), st.sampled_from([0.0, 0.02]), st.integers(1, 24))
def test_an_account_equals_its_backtest(seed: int, shrink: float, volume_cap: float, sessions: int) -> None:
    """With missing bars, locks and caps; it is what anybody plays by `environment.portfolio.play`."""
    rules = dataclasses.replace(TINY_RULES, volume_cap=volume_cap, drawdown_lock=4.0 * (seed > 5))
    agent, last = agent_of(seed, rules).shrunk(shrink), START + sessions
    volume = np.random.default_rng(seed).integers(1, 10**6, MARKET.data_array.shape[:2]).astype(np.float32)
    market = dataclasses.replace(MARKET, volume=volume if volume_cap else None)
    with tempfile.TemporaryDirectory() as folder:
        walk = Walk(Path(folder), agent, rules, market)
        assert walk.step(*range(START, last + 1))
        account = walk.at(last)
        played = backtest(account)
        assert played.first_difference(account, 0.0) == ""
        assert "equal bit for bit" in parity_sentence(account, played)
        said = [account.book.session(day) for day in range(START, last + 1)]
        gained, closed = profits(account)
    assert gained.keys() == said[-1]["positions"].keys()
    total = sum(gained.values()) + said[-1]["equity"] - said[-1]["cash"] + sum(one["profit"] for one in closed)
    costs = rules.cost_rate * sum(fill["value"] for one in said for fill in one["fills"])
    assert total - costs == pytest.approx(said[-1]["equity"] - CAPITAL, abs=1e-6)
    env = dataclasses.replace(rules, initial_capital=CAPITAL)
    portfolio = Portfolio.on(market, env, benchmark=Benchmark.of(market))
    forecasts = agent.forecasts(market, slice(START, None), by_day=True)
    play(portfolio, follow(agent, forecasts), torch.tensor([START]), steps=sessions)
    assert [one["equity"] for one in said] == portfolio.account.equity_curve[:, 0].tolist()
    assert [one["benchmark"] for one in said] == portfolio.benchmark.equity_curve[:, 0].tolist()


def test_the_books_of_an_account_add_up(tmp_path: Path) -> None:
    """By hand: cash follows from fills and costs, shares from fills, equity from both; nobody forecasts: the benchmark
    is held."""
    for shrink in (1.0, 0.0):
        walk = Walk(tmp_path / str(shrink), agent_of(3).shrunk(shrink))
        walk.replay(range(START, START + 30))
        cash, shares, last = CAPITAL, dict[str, float](), dict[str, float]()
        for day, said in zip(range(START, START + 30), walk.of("session"), strict=True):
            for fill in said["fills"]:
                sign, column = (1 if fill["side"] == "buy" else -1), MARKET.tickers.index(fill["ticker"])
                if not fill["reason"]:
                    assert fill["price"] == MARKET.data_array[day, column, OPEN]
                cash -= sign * fill["value"] + TINY_RULES.cost_rate * fill["value"]
                shares[fill["ticker"]] = shares.get(fill["ticker"], 0.0) + sign * fill["shares"]
            closes = zip(MARKET.tickers, MARKET.data_array[day, :, CLOSE].tolist(), strict=True)
            last |= {ticker: close for ticker, close in closes if np.isfinite(close)}
            assert said["cash"] == pytest.approx(cash, abs=1e-6)
            assert said["positions"] == pytest.approx({k: v for k, v in shares.items() if v > 1e-9})
            assert said["equity"] == pytest.approx(cash + sum(n * last[one] for one, n in said["positions"].items()))
            if not shrink:
                assert said["equity"] == pytest.approx(said["benchmark"], rel=1e-5)
        assert shrink or max(abs(one["result"]) for one in walk.of("session")) == 0.0


class Remembering(DDPGAgent):
    """An agent that forecasts all days at once: here that takes most of a step, and others test that it is the same."""

    known: Forecasts

    def forecasts(self, *_: object, **__: object) -> Forecasts:
        return self.known


def test_many_sessions_are_one_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark is rebalanced in it, nothing is sold because a window ends, and no session is unlike the others."""
    monkeypatch.setattr("environment.benchmark.REBALANCING_SESSIONS", 30)
    market, days = traded_market(5), range(START, START + 100)
    agent = Remembering(**vars(agent_of(1, market=market)))
    agent.known = DDPGAgent.forecasts(agent, market, slice(START, None), by_day=True)
    walk = Walk(tmp_path, agent, market=market)
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # random prices may look split
    walk.replay(days)
    account = walk.at(days[-1])
    assert backtest(account).first_difference(account, 0.0) == ""
    fills = [fill for day in days for fill in account.book.fills(day)]
    assert len(fills) > 40 and {fill.reason for fill in fills} <= {"", "no_bar"}
    assert all(account.book.session(day)["positions"] for day in days[1:])


def test_a_lock_ends_when_a_person_says_so(tmp_path: Path) -> None:
    """After `paper go` the account buys again, and its drawdown counts from there; its backtest does alike."""
    walk, day = Walk(tmp_path, rules=dataclasses.replace(TINY_RULES, drawdown_lock=3.0)), START

    def is_locked(day: int) -> bool:
        return bool(walk.at(day).at(day).account.is_locked)

    while walk.step(day) and not is_locked(day):
        day += 1
    for later in range(day + 1, day + 5):
        walk.step(later)
        assert is_locked(later) and "buy" not in {one.side for one in walk.at(later).book.intended(later)}
    walk.go()
    walk.step(day + 5, day + 6, day + 7)
    book = walk.at(day + 7).book
    assert "buy" in {fill.side for today in (day + 6, day + 7) for fill in book.fills(today)}
    assert "equal bit for bit" in parity_sentence(walk.at(day + 7), backtest(walk.at(day + 7)))


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("equity", 1e-12, "equal but for last digits"),
        ("equity", 1e-6, f"differ, first on {DATES[START + 3]}: equity "),
        ("benchmark", 1e-6, f"differ, first on {DATES[START + 3]}: benchmark "),
        ("shares", 1e-6, f"differ, first on {DATES[START + 3]}: "),
    ],
)
def test_last_digits_that_another_version_rounds_are_no_difference(
    tmp_path: Path, part: str, change: float, words: str
) -> None:
    walk = Walk(tmp_path)
    walk.step(*range(START, START + 6))
    account = walk.at(START + 5)
    played = backtest(account)
    factor = np.where(np.arange(6) == 3, 1 + change, 1.0)
    curve = (getattr(played, part).T * factor).T
    assert words in parity_sentence(account, dataclasses.replace(played, **{part: curve}))
