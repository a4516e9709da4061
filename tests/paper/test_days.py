"""Days that are no session, are missing, or cannot be right are not taken in; a stop holds for what is not yet sent."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import exchange_calendars  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import pytest

from data.features.nine import CLOSE, PRICES
from data.market import Market
from tests.paper.cases import MARKET, START, Walk, agent_of, keeper, multiplied, price
from training.paper.account import Account, Suspended
from training.paper.journal import STOP
from training.paper.sessions import Sessions
from training.paper.venue import NoAnswer
from utils.errors import ConfigError, DataError

DATES = MARKET.dates.astype("datetime64[D]")
NEW_YORK = Sessions.of("XNYS", DATES[0], DATES[-1])
PRESIDENTS_DAY = int(np.searchsorted(DATES, np.datetime64("2010-02-15")))
AGENT = keeper()


def without(market: Market, *days: int) -> Market:
    return dataclasses.replace(
        market, data_array=np.delete(market.data_array, days, axis=0), dates=np.delete(market.dates, days)
    )


def cut_off(walk: Walk, day: int, **options: Any) -> None:
    """Step to where orders are intended, and the venue never answers."""
    with mock.patch.object(Account, "_send", side_effect=NoAnswer("silence")), pytest.raises(NoAnswer):
        walk.step(day, **options)


def day(text: str) -> np.datetime64:
    return np.datetime64(text, "D")


class Bounded:
    """A calendar of `exchange_calendars` that is known until the end of a year, or fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def bound_min(self) -> None:
        return None

    def bound_max(self) -> pd.Timestamp:
        return pd.Timestamp("2010-12-31")

    def __call__(self, **asked: Any) -> Any:
        if self.error is not None:
            raise self.error
        assert pd.Timestamp(asked["end"]) <= self.bound_max()
        return exchange_calendars.calendar_utils._default_calendar_factories["XNYS"](**asked)


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    factories: dict[str, Any] = exchange_calendars.calendar_utils.global_calendar_dispatcher._calendar_factories
    monkeypatch.setitem(factories, "SHRT", Bounded())
    monkeypatch.setitem(factories, "FAIL", Bounded(NotImplementedError("implemented by subclasses")))
    return factories


@pytest.mark.parametrize(
    ("first", "last", "is_told", "opened"),
    [
        ("2010-12-01", "2010-12-23", False, "2010-12-23"),
        ("2010-12-01", "2010-12-31", False, "2010-12-31"),
        ("2010-12-01", "2011-06-01", True, None),
        ("2011-05-01", "2011-06-01", True, None),
    ],
)
def test_a_calendar_that_ends_is_asked_until_then_and_no_further(
    bounded: dict[str, Any], caplog: pytest.LogCaptureFixture, first: str, last: str, is_told: bool, opened: str | None
) -> None:
    sessions = Sessions.of("SHRT", day(first), day(last))
    said = "knows the sessions of SHRT until 2010-12-31: each later day of the data is taken as one; install a newer"
    assert [said in one for one in caplog.messages] == [True] * is_told
    known = sessions.last_until(datetime.fromisoformat(f"{last}T23:00"))
    assert known == (None if opened is None else (day(opened), day(opened)))
    assert sessions.is_session(day("2011-05-28")) and sessions.is_session(day("2010-11-01"))
    assert sessions.is_session(day("2010-12-24")) == (first > "2011")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "XNYX",
            "expected the name of an exchange's calendar such as XNYS, or none, .* got 'XNYX'; the nearest is 'XNYS'",
        ),
        (
            "FAIL",
            "of FAIL from 2010-11-20 to 2010-12-02 of exchange_calendars .*, got NotImplementedError: .*; install",
        ),
    ],
)
def test_a_calendar_that_there_is_not_is_told(bounded: dict[str, Any], name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Sessions.of(name, day("2010-11-30"), day("2010-12-01"))


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
    # An unfinished session is not taken in.
    with pytest.raises(DataError, match="expected bars of closed sessions, got those of 2010-02-02"):
        walk.step(START + 1, now=datetime(2010, 2, 2, 15, tzinfo=UTC))
    assert walk.rows() == rows


def test_stale_data_send_nothing(tmp_path: Path) -> None:
    """The step of the next morning takes the session in; its close is missed once the next bars are there."""
    walk = Walk(tmp_path, AGENT, calendar=NEW_YORK)
    walk.step(START, now=datetime(2010, 2, 2, 15, tzinfo=UTC))  # the next session has opened at 14:30 UTC
    assert [row[0] for row in walk.rows()] == ["open", "session"]
    walk.step(START + 1, now=datetime(2010, 2, 2, 23, 30, tzinfo=UTC))
    assert [row[:2] for row in walk.rows()][2:4] == [("missed", "2010-02-01"), ("session", "2010-02-02")]
    assert walk.rows()[4][0] == "intent" and walk.rows()[4][2]["orders"]


def test_an_order_that_was_not_sent_in_time_lapses(tmp_path: Path) -> None:
    walk = Walk(tmp_path, AGENT, calendar=NEW_YORK)
    cut_off(walk, START, now=datetime(2010, 2, 1, 23, tzinfo=UTC))
    walk.step(START, now=datetime(2010, 2, 2, 23, tzinfo=UTC))
    assert {one["status"] for one in walk.of("answer")} == {"lapsed"}


@pytest.mark.parametrize(("fault", "got"), [("few", "got 1"), ("repeated", "got those of the day before for 3")])
def test_bars_that_cannot_be_a_days_are_held_until_they_are_accepted(tmp_path: Path, fault: str, got: str) -> None:
    walk, bars = Walk(tmp_path, AGENT), MARKET.data_array.copy()
    walk.step(START)
    bars[START + 1, :-1] = np.nan if fault == "few" else bars[START, :-1]
    walk.market = dataclasses.replace(MARKET, data_array=bars)
    for _ in range(2):
        with pytest.raises(Suspended, match=f"bars on 2010-02-02.*, {got}"):
            walk.step(START + 1)
    assert len(walk.of("hold")) == 1
    walk.go()
    assert walk.step(START + 1)


@pytest.mark.parametrize(
    ("ratio", "is_ordered"), [*((ratio, True) for ratio in (1 / 150, 0.5, 0.8, 1.2, 1.5, 4.0)), (0.25, False)]
)
def test_a_round_move_beyond_what_the_stock_has_shown_is_held(tmp_path: Path, ratio: float, is_ordered: bool) -> None:
    """Splits, reverse ones and odd ratios, which a person calls a split, by adjusted bars, or news, by `paper go`; also
    of a stock that the basket alone holds."""
    walk, day = Walk(tmp_path, AGENT if is_ordered else AGENT.with_share(0.4)), START + 3
    walk.step(*range(START, day))
    asked = {*walk.of("session")[-1]["positions"], *(order["ticker"] for order in walk.of("intent")[-1]["orders"])}
    others = (one for one in MARKET.tickers if one not in asked and np.isfinite(price(one, day - 1)))
    ticker = walk.one_held() if is_ordered else next(others)
    bars, column = MARKET.data_array.copy(), MARKET.tickers.index(ticker)
    bars[day:, column, list(PRICES)] = bars[day - 1, column, CLOSE] * ratio
    bars[day:, column, CLOSE] *= 1.01
    walk.market = dataclasses.replace(MARKET, data_array=bars)
    kind = "reverse split" if ratio > 1 else "split"
    with pytest.raises(Suspended, match=f"{ticker}, got what looks like a {kind} by"):
        walk.step(day)
    walk.go()
    assert walk.step(day)


def test_a_stock_without_bars_is_sold_at_its_last_price_and_its_loss_counts_when_it_trades_again(
    tmp_path: Path,
) -> None:
    """The account got its last price; the certificate gets what the stock is worth."""
    walk = Walk(tmp_path, AGENT)
    walk.step(*range(START, START + 3))
    ticker = walk.one_held()
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


STOPS: dict[str, Callable[[Walk], object]] = {
    "file": lambda walk: (walk.folder / STOP).touch(),
    "dangling link": lambda walk: (walk.folder / STOP).symlink_to(walk.folder / "nothing"),
    "command": lambda walk: walk.append("stop", {"text": "`paper stop one`"}),
}


@pytest.mark.parametrize("stop", STOPS)
def test_an_intent_without_an_answer_is_cancelled_under_a_stop(
    tmp_path: Path, stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed between intent and venue, and stopped before the next step: nothing is bought, ever."""
    walk = Walk(tmp_path, AGENT)
    cut_off(walk, START)
    STOPS[stop](walk)
    walk.step(START)
    assert {one["status"] for one in walk.of("answer")} == {"cancelled"} and "is cancelled" in caplog.text
    walk.step(START + 1)
    assert not any(session["fills"] or session["positions"] for session in walk.of("session"))


def test_sales_go_on_under_a_stop(tmp_path: Path) -> None:
    """An intended sale is sent: a stop is of purchases."""
    statuses = set[tuple[str, str]]()
    for seed, last in product(range(3), (START + 2, START + 5)):
        walk = Walk(tmp_path / f"{seed} {last}", agent_of(seed))
        walk.step(*range(START, last))
        cut_off(walk, last)
        STOPS["file"](walk)
        walk.step(last)
        answers = {row[1]: row[2]["status"] for row in walk.rows() if row[0] == "answer"}
        statuses |= {(order["side"], answers[order["id"]]) for order in walk.of("intent")[-1]["orders"]}
    assert statuses == {("sell", "accepted"), ("buy", "cancelled")}
