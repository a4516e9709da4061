"""Accounts of the version before, of agents and a basket, become one account of shares and cash by one row."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.features.nine import CLOSE, OPEN
from tests.paper.cases import AGENT, DATES, MARKET, START, Walk
from tests.small_market import TINY_RULES
from training.paper.backtest import backtest
from training.paper.conversion import conversion, known_settings
from training.paper.decider import Champion, load_decider
from training.paper.journal import CONVERSION
from training.paper.known import packed
from training.paper.report import parity_sentence, write_report
from utils.config.settings import from_dict, to_dict
from utils.config.trader import Config

CAPITAL, EXPOSED, SHARE, DAYS = 12_345.67, 0.8, 0.3, 4
GONE = {"exposure": EXPOSED, "stake_percent": 5.0, "exits": "daily", "max_holding_days": 5}


def bar(ticker: str, day: int, feature: int = CLOSE) -> float:
    """The last known price."""
    prices = MARKET.data_array[: day + 1, MARKET.tickers.index(ticker), feature]
    return float(prices[np.isfinite(prices)][-1])


def old_settings() -> dict[str, Any]:
    values = to_dict(dataclasses.replace(Config(), env=TINY_RULES))
    del values["evaluation"]["benchmark_weights"]
    return values | {
        "env": values["env"] | GONE,
        "learning": values["learning"] | {"gamma": 0.8},
        "evaluation": values["evaluation"] | {"basket": ""},
    }


def old_account(folder: Path, venue: str) -> tuple[Walk, dict[str, float], float]:
    """A journal as that version wrote it, of sessions in which agents bought 5 shares of T02 and the basket its parts;
    what the account has by hand: shares and worth."""
    folder.mkdir(parents=True)
    (folder / Champion.file).write_bytes(b"of another kind")
    opening = {
        "layout": 2,
        "venue": venue,
        "settings": old_settings(),
        "champion": hashlib.sha256(b"of another kind").hexdigest(),
        "certificate": {"null": "another"},
    }
    walk = Walk(folder, Champion(None), opening=opening)
    names, rate = (
        [one for one, price in zip(MARKET.tickers, MARKET.data_array[START, :, CLOSE], strict=True) if price > 0],
        TINY_RULES.cost_rate,
    )
    unit = CAPITAL if venue == "paper" else (1 - SHARE) * EXPOSED * CAPITAL
    parts = {one: unit / len(names) / bar(one, START + 1, OPEN) / (1 + rate) for one in names}
    first, agents = bar("T02", START + 1, OPEN), CAPITAL if venue == "paper" else SHARE * EXPOSED * CAPITAL
    held, cash, whole = {"T02": 5.0}, agents - 5 * first * (1 + rate), CAPITAL
    with walk.journal() as journal:
        for day in range(START, START + DAYS):
            own = agents if day == START else cash + 5 * bar("T02", day)
            basket = unit if day == START else sum(size * bar(one, day) for one, size in parts.items())
            weights = (SHARE * EXPOSED, (1 - SHARE) * EXPOSED) if venue == "paper" else (1.0, 1.0)
            whole = weights[0] * own + weights[1] * basket + (1 - EXPOSED) * CAPITAL
            body: dict[str, Any] = {
                "fills": [],
                "cash": agents if day == START else cash,
                "equity": own,
                "positions": {} if day == START else held,
                "basket": basket,
                "whole": whole,
                "basket_positions": {} if day == START or venue == "paper" else parts,
                "venue_cash": None if venue == "paper" else cash + (1 - EXPOSED) * CAPITAL,
                "hand_trades": [],
                "result": 0.01,
                "bars": packed(MARKET, day),
            }
            journal.append("session", DATES[day], body)
            order = {"id": f"one-{DATES[day]}-T02-buy", "ticker": "T02", "side": "buy", "value": 9.0}
            values = order | {"coefficient": 1.0, "target_percent": 20.0, "is_own": True, "is_of_basket": False}
            journal.append("intent", DATES[day], {"orders": [values]})
            journal.append("answer", order["id"], {"status": "accepted"})
    factor = weights[1]
    shares = {one: factor * size for one, size in parts.items()}
    shares["T02"] += weights[0] * 5.0
    return walk, shares, whole


def convert(walk: Walk) -> None:
    with walk.journal() as journal:
        config = from_dict(known_settings(journal.opening["settings"]), Config)
        journal.append(CONVERSION, "", conversion(journal, MARKET, config))


@pytest.mark.parametrize("venue", ["paper", "alpaca"])
def test_one_row_states_the_shares_and_the_cash_of_both_parts(tmp_path: Path, venue: str) -> None:
    """By hand; nothing else in the journal changes, and the old champion, which nobody can ask, decides no more."""
    walk, shares, whole = old_account(tmp_path / "one", venue)
    before, day = walk.rows(), START + DAYS - 1
    convert(walk)
    after = walk.rows()
    assert after[:-1] == before and after[-1][0] == CONVERSION
    said = walk.of(CONVERSION)[0]
    # At the embedded venue parts are those of the benchmark, which orders them by closes, not at opens.
    assert said["converted"]["positions"] == pytest.approx(shares, rel=0.05 if venue == "paper" else 1e-6)
    worth = sum(size * bar(one, day) for one, size in said["converted"]["positions"].items())
    assert said["converted"]["cash"] + worth == pytest.approx(whole) == pytest.approx(said["converted"]["equity"])
    assert "exposure" not in said["settings"]["env"] and said["settings"]["evaluation"]["benchmark_weights"] == ""
    assert f"at the close of {DATES[day]} are one account of {whole:,.2f} now" in said["text"]
    with walk.journal() as journal:
        decider = load_decider(walk.folder, journal.opening)
        assert isinstance(decider, Champion) and decider.agent is None and "benchmark is held" in said["text"]


def test_the_account_goes_on_from_there(tmp_path: Path) -> None:
    """It equals its backtest bit for bit, the orders of before are none of it, and the certificate begins anew."""
    walk, _, whole = old_account(tmp_path / "one", "paper")
    day = START + DAYS - 1
    convert(walk)
    walk.agent = AGENT
    assert not walk.step(day), "orders were given at this close, by the version before"
    walk.step(*range(day + 1, day + 12))
    account = walk.at(day + 11)
    sessions = account.journal.sessions
    assert [*sessions] == DATES[day : day + 12]
    assert sessions[DATES[day + 1]]["fills"] == [] and any(one["fills"] for one in sessions.values())
    played = backtest(account)
    assert f"first on {DATES[day + 1]}" in parity_sentence(account, played), "which gave orders at the conversion"
    assert "Nothing is shown yet" in (page := write_report(account, played).read_text()) and "conversion" in page
    assert sessions[DATES[day]]["equity"] == pytest.approx(whole) == pytest.approx(sessions[DATES[day]]["benchmark"])
    walk, _, _ = old_account(tmp_path / "two", "paper")
    convert(walk)
    walk.step(*range(day, day + 12))  # the benchmark is held, by an account that has other weights than it
    apart = [abs(one["equity"] / one["benchmark"] - 1) for one in walk.of("session")[-5:]]
    assert np.ptp(apart) < 0.01


def test_an_account_before_its_first_session_is_converted_too(tmp_path: Path) -> None:
    walk, *_ = old_account(tmp_path / "one", "paper")
    with walk.journal() as journal:
        opening = journal.opening
    empty = Walk(tmp_path / "two", AGENT, opening=opening)
    (empty.folder / Champion.file).write_bytes((walk.folder / Champion.file).read_bytes())
    convert(empty)
    empty.step(START, START + 1)
    assert "nothing is held yet" in empty.of(CONVERSION)[0]["text"] and len(empty.of("session")[1]["fills"]) > 2
