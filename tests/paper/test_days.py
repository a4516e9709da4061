"""Days that are no session, are missing, or cannot be right are not taken in; a stop holds for what is not yet sent."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from data.features.nine import CLOSE, PRICES
from data.market import Market
from tests.paper.cases import MARKET, START, Walk, agent_of, keeper, multiplied
from training.paper.account import Account, Suspended
from training.paper.journal import STOP
from training.paper.sessions import Sessions
from training.paper.venue import NoAnswer
from utils.errors import DataError

DATES = MARKET.dates.astype("datetime64[D]")
NEW_YORK = Sessions.of("XNYS", DATES[0], DATES[-1])
PRESIDENTS_DAY = int(np.searchsorted(DATES, np.datetime64("2010-02-15")))
AGENT = keeper()


def without(market: Market, *days: int) -> Market:
    return dataclasses.replace(
        market, data_array=np.delete(market.data_array, days, axis=0), dates=np.delete(market.dates, days)
    )


def test_a_holiday_in_the_data_and_a_missing_day_are_held(tmp_path: Path) -> None:
    walk = Walk(tmp_path, AGENT, calendar=NEW_YORK)
    walk.step(*range(START, PRESIDENTS_DAY))
    with pytest.raises(Suspended, match="a session of XNYS, got bars of 2010-02-15"):
        walk.step(PRESIDENTS_DAY)
    assert [row[1] for row in walk.rows() if row[0] == "hold"] == ["2010-02-15 session"]
    # The 16th without the 15th is right; the 18th without the 17th is not.
    right = dataclasses.replace(walk, market=without(MARKET, PRESIDENTS_DAY))
    assert right.step(PRESIDENTS_DAY)
    gap = dataclasses.replace(walk, market=without(MARKET, PRESIDENTS_DAY, PRESIDENTS_DAY + 2))
    with pytest.raises(Suspended, match="bars of 2010-02-17, got none"):
        gap.step(PRESIDENTS_DAY + 1)


def test_the_clock(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    walk = Walk(tmp_path, AGENT, calendar=NEW_YORK)
    walk.step(START)
    rows = walk.rows()
    with pytest.raises(DataError, match="expected a clock after 2010-02-01, the newest bars, got 2010-01-29; set it"):
        walk.step(START, now=datetime(2010, 1, 29, tzinfo=UTC))
    caplog.set_level("INFO")
    walk.step(START, now=datetime(2010, 2, 3, 12, tzinfo=UTC))
    assert "stale data: they end on 2010-02-01, and 2010-02-02 has opened" in caplog.text
    assert walk.rows() == rows
    # An unfinished session is not taken in, and orders are late once the next one has opened, 14:30 UTC.
    with pytest.raises(DataError, match="expected bars of closed sessions, got those of 2010-02-02"):
        walk.step(START + 1, now=datetime(2010, 2, 2, 15, tzinfo=UTC))
    assert walk.rows() == rows
    late = Walk(tmp_path / "late", AGENT, calendar=NEW_YORK)
    late.step(START, now=datetime(2010, 2, 2, 15, tzinfo=UTC))
    assert "intent" not in [row[0] for row in late.rows()]


def test_stale_data_send_nothing(tmp_path: Path) -> None:
    """The step of the next morning takes the session in; its close is missed once the next bars are there."""
    walk = Walk(tmp_path, AGENT, calendar=NEW_YORK)
    walk.step(START, now=datetime(2010, 2, 2, 23, tzinfo=UTC))
    assert [row[0] for row in walk.rows()] == ["open", "session"]
    walk.step(START + 1, now=datetime(2010, 2, 2, 23, 30, tzinfo=UTC))
    assert [row[:2] for row in walk.rows()][2:4] == [("missed", "2010-02-01"), ("session", "2010-02-02")]
    assert walk.rows()[4][0] == "intent" and walk.rows()[4][2]["orders"]


def test_an_order_that_was_not_sent_in_time_lapses(tmp_path: Path) -> None:
    walk = Walk(tmp_path, AGENT, calendar=NEW_YORK)
    with mock.patch.object(Account, "_send", side_effect=NoAnswer("silence")), pytest.raises(NoAnswer):
        walk.step(START, now=datetime(2010, 2, 1, 23, tzinfo=UTC))
    walk.step(START, now=datetime(2010, 2, 2, 23, tzinfo=UTC))
    assert {one["status"] for one in walk.of("answer")} == {"lapsed"}


def test_bars_of_yesterday_under_the_date_of_today_are_held(tmp_path: Path) -> None:
    walk, bars = Walk(tmp_path, AGENT), MARKET.data_array.copy()
    walk.step(START)
    bars[START + 1] = bars[START]
    with pytest.raises(Suspended, match="got those of the day before for"):
        dataclasses.replace(walk, market=dataclasses.replace(MARKET, data_array=bars)).step(START + 1)
    assert walk.step(START + 1)


@pytest.mark.parametrize("ratio", [1 / 25, 1 / 150, 0.5, 0.8, 1.2, 1.5, 4.0])
def test_a_round_move_beyond_what_the_stock_has_shown_is_held(tmp_path: Path, ratio: float) -> None:
    """Splits, reverse ones and odd ratios, which a person calls a split, by adjusted bars, or news, by `paper go`."""
    walk, bars = Walk(tmp_path, AGENT), MARKET.data_array.copy()
    walk.step(*range(START, START + 3))
    ticker = next(iter(walk.of("session")[-1]["positions"]))
    column = MARKET.tickers.index(ticker)
    bars[START + 3 :, column, list(PRICES)] = bars[START + 2, column, CLOSE] * ratio
    bars[START + 3 :, column, CLOSE] *= 1.01
    walk.market = dataclasses.replace(MARKET, data_array=bars)
    kind = "reverse split" if ratio > 1 else "split"
    with pytest.raises(Suspended, match=f"{ticker}, got what looks like a {kind} by"):
        walk.step(START + 3)
    walk.go()
    assert walk.step(START + 3)


def test_a_stock_without_bars_is_sold_at_its_last_price_and_its_loss_counts_when_it_trades_again(
    tmp_path: Path,
) -> None:
    """The account got its last price; the certificate gets what the stock is worth."""
    walk = Walk(tmp_path, AGENT)
    walk.step(*range(START, START + 3))
    ticker = next(iter(walk.of("session")[-1]["positions"]))
    halted = multiplied(MARKET, ticker, slice(START + 3, START + 8), np.nan)
    walk.market = multiplied(halted, ticker, slice(START + 8, None), 0.4)
    walk.step(*range(START + 3, START + 9))
    *_, before, last = sessions = walk.of("session")
    assert "no_bar" in {fill["reason"] for one in sessions for fill in one["fills"] if fill["ticker"] == ticker}
    assert ticker not in before["positions"] and last["result"] < -0.01


def test_the_file_stop_ends_purchases_and_nothing_else(tmp_path: Path) -> None:
    """What was ordered before is filled, and agents go on selling what they hold."""
    filled, after = list[bool](), set[str]()
    for seed in range(3):
        walk = Walk(tmp_path / str(seed), agent_of(seed))
        for day in range(START, START + 7):
            if day == START + 2:
                (walk.folder / STOP).touch()
            walk.step(day)
        intents, sessions = walk.of("intent"), walk.of("session")
        assert [STOP in intent.get("stopped", "") for intent in intents] == 2 * [False] + 5 * [True]
        after |= {order["side"] for intent in intents[2:] for order in intent["orders"]}
        bought = [any(fill["side"] == "buy" for fill in session["fills"]) for session in sessions]
        assert bought[1] and not any(bought[3:])
        filled.append(bought[2])
    assert any(filled) and after == {"sell"}


def by_file(walk: Walk) -> None:
    (walk.folder / STOP).touch()


def by_dangling_link(walk: Walk) -> None:
    (walk.folder / STOP).symlink_to(walk.folder / "nothing")


def by_command(walk: Walk) -> None:
    with walk.journal() as journal:
        journal.append("stop", "1", {"text": "`paper stop one`"})


@pytest.mark.parametrize("stop", [by_file, by_dangling_link, by_command])
def test_an_intent_without_an_answer_is_cancelled_under_a_stop(
    tmp_path: Path, stop: Callable[[Walk], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Killed between intent and venue, and stopped before the next step: nothing is bought, ever."""
    walk = Walk(tmp_path, AGENT)
    with mock.patch.object(Account, "_send", side_effect=NoAnswer("silence")), pytest.raises(NoAnswer):
        walk.step(START)
    stop(walk)
    walk.step(START)
    answers = [one["status"] for one in walk.of("answer")]
    assert answers and set(answers) == {"cancelled"} and "is cancelled" in caplog.text
    walk.step(START + 1)
    assert not any(row[2]["fills"] or row[2]["positions"] for row in walk.rows() if row[0] == "session")


def test_sales_go_on_under_a_stop(tmp_path: Path) -> None:
    """An intended sale is sent: a stop is of purchases."""
    statuses = set[tuple[str, str]]()
    for seed, last in product(range(3), (START + 2, START + 5)):
        walk = Walk(tmp_path / f"{seed} {last}", agent_of(seed))
        walk.step(*range(START, last))
        with mock.patch.object(Account, "_send", side_effect=NoAnswer("silence")), pytest.raises(NoAnswer):
            walk.step(last)
        by_file(walk)
        walk.step(last)
        answers = {row[1]: row[2]["status"] for row in walk.rows() if row[0] == "answer"}
        orders = [one["orders"] for one in walk.of("intent")][-1]
        statuses |= {(order["side"], answers[order["id"]]) for order in orders}
    assert statuses == {("sell", "accepted"), ("buy", "cancelled")}
