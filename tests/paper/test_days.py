"""Days that are no session, are missing, or cannot be right are not taken in; a stop holds for what is not yet sent."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import exchange_calendars  # type: ignore[import-untyped]
import numpy as np
import pandas as pd
import pytest

from data.features.nine import CLOSE, PRICES
from data.market import Market
from tests.paper.cases import AGENT, MARKET, START, Walk, agent_of, multiplied, price
from tests.small_market import TINY_RULES
from training.paper.account import Suspended
from training.paper.journal import STOP
from training.paper.report import backtest, write_report
from training.paper.sessions import Sessions
from utils.errors import ConfigError, DataError

DATES = MARKET.dates.astype("datetime64[D]")
NEW_YORK = Sessions.of("XNYS", DATES[0], DATES[-1])
PRESIDENTS_DAY = int(np.searchsorted(DATES, np.datetime64("2010-02-15")))


def without(market: Market, *days: int) -> Market:
    return dataclasses.replace(
        market, data_array=np.delete(market.data_array, days, axis=0), dates=np.delete(market.dates, days)
    )


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
    ("ratio", "is_small", "is_told"),
    [*((ratio, False, True) for ratio in (1 / 150, 0.5, 0.8, 1.2, 1.5, 4.0)), (0.25, True, True), (0.8, True, False)],
)
def test_a_round_move_beyond_what_the_stock_has_shown_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, is_small: bool, is_told: bool
) -> None:
    """Splits, reverse ones and odd ratios, which a person calls a split, by adjusted bars, or news, by `paper go`; of
    small positions that nothing is ordered of the large moves alone."""
    monkeypatch.setattr("training.paper.sessions._LARGE", 2.0 if is_small else 0.05)
    walk, day = Walk(tmp_path, AGENT.shrunk(0.0) if is_small else AGENT), START + 3
    walk.step(*range(START, day))
    ticker, bars = walk.one_held(), MARKET.data_array.copy()
    assert not is_small or ticker not in {order["ticker"] for order in walk.of("intent")[-1]["orders"]}
    column = MARKET.tickers.index(ticker)
    bars[day:, column, list(PRICES)] = bars[day - 1, column, CLOSE] * ratio
    bars[day:, column, CLOSE] *= 1.01
    walk.market = dataclasses.replace(MARKET, data_array=bars)
    if is_told:
        kind = "reverse split" if ratio > 1 else "split"
        with pytest.raises(Suspended, match=f"{ticker}, got what looks like a {kind} by"):
            walk.step(day)
        walk.go()
    assert walk.step(day)


@pytest.mark.parametrize(("ratio", "is_told"), [(1 / 1.2, False), (1.2, False), (1.5, True)])
def test_a_halted_stock_is_compared_with_its_moves_over_as_many_sessions(
    tmp_path: Path, ratio: float, is_told: bool
) -> None:
    """It has moved by a tenth in a session and by a fifth in two, and has no bar on one."""
    day, bars = START + 3, MARKET.data_array.copy()
    level = 10 * 1.1 ** np.resize([0, 1, 2, 1], len(bars))
    level[day], level[day + 1 :] = np.nan, level[day - 1] * ratio
    bars[:, 0, list(PRICES)] = level[:, None]
    walk = Walk(tmp_path, AGENT.shrunk(0.0), market=dataclasses.replace(MARKET, data_array=bars))
    walk.step(*range(START, day + 1))
    assert MARKET.tickers[0] in walk.of("session")[-1]["positions"]
    if is_told:
        with pytest.raises(Suspended, match=f"{MARKET.tickers[0]}, got what looks like a reverse split by 1.5"):
            walk.step(day + 1)
    else:
        assert walk.step(day + 1)


def test_a_stock_without_bars_is_sold_at_its_last_price_less_a_loss(tmp_path: Path) -> None:
    rules = dataclasses.replace(TINY_RULES, delisting_loss=30.0)
    walk = Walk(tmp_path, rules=rules)
    walk.step(*range(START, START + 3))
    ticker = walk.one_held()
    walk.market = multiplied(MARKET, ticker, slice(START + 3, None), np.nan)
    walk.step(*range(START + 3, START + 6))
    (sold,) = (fill for one in walk.of("session")[3:] for fill in one["fills"] if fill["ticker"] == ticker)
    assert (sold["side"], sold["reason"]) == ("sell", "no_bar")
    assert sold["price"] == pytest.approx(0.7 * price(ticker, START + 2))
    assert ticker not in walk.of("session")[-1]["positions"]


@pytest.mark.parametrize("stop", ["file", "dangling link", "command"])
def test_a_stop_ends_purchases_and_nothing_else(tmp_path: Path, stop: str) -> None:
    """What was ordered before is filled, and what is held is sold as before."""
    walk = Walk(tmp_path, agent_of(1))
    for day in range(START, START + 9):
        if day == START + 2 and stop == "command":
            walk.append("stop", {"text": "`paper stop one`"})
        elif day == START + 2:
            (walk.folder / STOP).touch() if stop == "file" else (walk.folder / STOP).symlink_to(walk.folder / "nothing")
        walk.step(day)
    intents, sessions = walk.of("intent"), walk.of("session")
    assert ["stopped" in intent for intent in intents] == 2 * [False] + 7 * [True]
    assert {order["side"] for intent in intents[2:] for order in intent["orders"]} == {"sell"}
    bought = [any(fill["side"] == "buy" for fill in session["fills"]) for session in sessions]
    assert bought[1] and not any(bought[3:])


def test_a_lock_is_told_until_a_person_ends_it(tmp_path: Path) -> None:
    walk = Walk(tmp_path, AGENT, dataclasses.replace(TINY_RULES, drawdown_lock=1.0))
    today = next(day for day in range(START, START + 100) if walk.step(day) and walk.at(day).journal.stop_reason())
    assert not any(row[2].get("is_locked") for row in walk.rows()[:-1])
    account = walk.at(today)
    assert "beyond its drawdown lock" in write_report(account, backtest(account)).read_text(encoding="utf-8")
    walk.go()
    assert not walk.at(today).journal.stop_reason()
    walk.step(today + 1)
    assert not walk.at(today + 1).journal.stop_reason()


def test_what_is_decided_in_hindsight_is_told_and_shows_no_skill(tmp_path: Path) -> None:
    """Of a session after which the data go on; its orders are those of an account that knew no more."""
    walk, plain = Walk(tmp_path / "late", AGENT), Walk(tmp_path / "plain", AGENT)
    plain.step(START, START + 1, START + 2, START + 3)
    walk.step(START)
    walk.step(START + 1, until=str(DATES[START + 3]))
    walk.step(START + 2, START + 3)
    assert walk.at(START + 3).journal.in_hindsight == {str(DATES[START + 1])}
    late, undisturbed = ([one["result"] for one in each.of("session")] for each in (walk, plain))
    assert late[2] == 0 != undisturbed[2] and late[:2] + late[3:] == undisturbed[:2] + undisturbed[3:]
    orders = [[one["orders"] for one in each.of("intent")] for each in (walk, plain)]
    assert orders[0] == orders[1]
    account = walk.at(START + 3)
    page = write_report(account, backtest(account)).read_text(encoding="utf-8")
    assert f"decided in hindsight, from data until {DATES[START + 3]}" in page
