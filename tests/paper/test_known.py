"""An account in a world that changes: dividends and splits change nothing, revised bars are asked about once."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.faults import changing
from data.events import Event, price_step, readjustment
from data.features.nine import CLOSE, MACD, MACD_SIGNAL, OPEN, PRICES
from data.market import Market
from tests.paper.cases import AGENT, DATES, MARKET, START, Walk, multiplied, price
from training.paper.account import Suspended
from training.paper.known import under_known_names
from training.paper.report import backtest, parity_sentence

LAST = START + 12


def scaled(market: Market, ticker: str, until: int, ratio: float) -> Market:
    """The file after a vendor has multiplied all of a ticker's prices before a day."""
    return multiplied(market, ticker, slice(until), ratio, [*PRICES, MACD, MACD_SIGNAL])


def walked(
    folder: Path,
    file: Callable[[int], Market] = lambda _: MARKET,
    days: Sequence[int] = range(START, LAST + 1),
    named: Sequence[Event] = (),
) -> Walk:
    """An account whose file of each day is what a vendor gives on that day."""
    walk = Walk(folder, AGENT, market=file(START), named=named)
    for day in days:
        walk.market = file(day)
        walk.step(day)
    return walk


def equities(walk: Walk) -> list[float]:
    return [one["equity"] for one in walk.of("session")]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return walked(tmp_path_factory.mktemp("plain"))


def held_on(plain: Walk, day: int) -> str:
    """A ticker that an undisturbed account holds over the night before a day, with bars around it."""
    rows = plain.of("session")
    names = sorted(rows[day - START - 1]["positions"].keys() & rows[day - START]["positions"].keys())
    return next(one for one in names if np.isfinite([price(one, near) for near in range(day - 2, day + 2)]).all())


@pytest.mark.parametrize("ratio", [0.995, 0.5, 2 / 3, 25.0])
def test_an_adjusted_history_changes_nothing(tmp_path: Path, plain: Walk, ratio: float) -> None:
    """No question, and the equity of an account in the last units from the start."""
    day = START + 4
    ticker = held_on(plain, day)
    # The vendor's last file is MARKET; those before the event are in the units before it.
    before = scaled(MARKET, ticker, len(DATES), 1 / ratio)
    walk = walked(tmp_path / "event", lambda today: MARKET if today >= day else before)
    np.testing.assert_allclose(equities(walk), equities(plain), rtol=0, atol=0.005)
    (event,) = walk.of("event")
    kind = "dividend" if ratio == 0.995 else "split"
    assert [row[1] for row in walk.rows() if row[0] == "event"] == [f"{ticker} {DATES[day]} {event['ratio']!r}"]
    assert (event["ratio"], event["kind"]) == (pytest.approx(ratio, rel=1e-6), kind)
    assert f"{kind} of {ticker}" in event["text"] and "shares are" in event["held"]
    assert not any(row[0] in ("hold", "doubt") for row in walk.rows())
    account = walk.at(LAST)
    assert "equal to 0.001% of the equity" in parity_sentence(account, backtest(account))
    assert account.journal.units()[ticker] == pytest.approx(ratio, rel=1e-6)
    for today in range(START + 1, LAST + 1):  # what a session traded is told at its own prices
        for fill in account.book.as_traded(today):
            quoted = price(fill.ticker, today, OPEN) / (ratio if fill.ticker == ticker and today < day else 1)
            assert fill.price == pytest.approx(quoted, rel=1e-5)
            assert fill.shares * fill.price == pytest.approx(fill.value)
    # What is shown is in the units of today.
    shares, now = (one.of("session")[-1]["positions"].get(ticker, 0.0) for one in (walk, plain))
    assert shares / account.journal.units()[ticker] == pytest.approx(now, rel=1e-3)


@pytest.mark.parametrize("is_named", [True, False])
def test_events_that_a_vendor_names_are_told_apart(tmp_path: Path, plain: Walk, is_named: bool) -> None:
    """Two in sessions that no step saw, a special dividend among them: each by its day and kind, and once."""
    first, second, newest = START + 4, START + 5, START + 6
    ticker, other = held_on(plain, first), next(one for one in MARKET.tickers if one != held_on(plain, first))
    close = price(ticker, first - 1) / (0.85 * 0.5)  # as it was quoted that day
    named = [
        Event(ticker, DATES[first], "dividend", 0.15 * close, DATES[first + 4]),
        Event(ticker, DATES[second], "split", 2.0, DATES[second]),
        Event(other, DATES[second], "split", 3.0, DATES[second]),  # the file does not show it yet
        Event(ticker, DATES[START - 3], "split", 4.0, DATES[START - 3]),  # it was known at the opening
    ]
    before = scaled(MARKET, ticker, len(DATES), 1 / (0.85 * 0.5))
    days = (*range(START, first), newest, newest, *range(newest + 1, LAST + 1))
    walk = walked(tmp_path, lambda today: before if today < first else MARKET, days, named if is_named else ())
    events = [row for row in walk.rows() if row[0] == "event"]
    kinds = [(row[2]["since"], row[2]["kind"], row[2]["ratio"]) for row in events]
    if is_named:
        found = [(DATES[first], "dividend", 0.85), (DATES[second], "split", 0.5)]
        assert [row[1] for row in events] == [f"{ticker} {since} {kind}" for since, kind, _ in found]
        assert events[0][2]["pay"] == DATES[first + 4] and "a share, paid on" in events[0][2]["text"]
    else:
        found = [(DATES[first], "split", 0.425)]
    assert kinds == [(since, kind, pytest.approx(ratio, rel=1e-5)) for since, kind, ratio in found]
    assert walk.at(LAST).journal.units()[ticker] == pytest.approx(0.425, rel=1e-6)
    # The account that missed two sessions, with nothing that disturbs it.
    calm = Walk(tmp_path / "calm", AGENT)
    calm.step(*range(START, first), *range(newest, LAST + 1))
    np.testing.assert_allclose(equities(walk), equities(calm), rtol=0, atol=0.005)


def test_the_close_before_an_event_is_one_that_it_multiplied(
    tmp_path: Path, plain: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stock that was halted before a dividend, which the vendor names late, and which fell by half on its day."""
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which would ask about the fall
    day, ticker = START + 4, held_on(plain, START + 4)
    market = multiplied(MARKET, ticker, slice(START + 1, day - 1), np.nan)
    market = multiplied(market, ticker, slice(day, None), 0.4, list(PRICES))
    raw, before = (scaled(market, ticker, until, 1 / 0.85) for until in (day, len(DATES)))
    cash = 0.15 * float(before.data_array[day - 1, MARKET.tickers.index(ticker), CLOSE])
    named = [Event(ticker, DATES[day], "dividend", cash, DATES[day])]

    def file(today: int) -> Market:
        return before if today < day else raw if today < day + 2 else market

    walk = walked(tmp_path, file, range(START, day + 3), named)
    assert [row[1] for row in walk.rows() if row[0] == "event"] == [f"{ticker} {DATES[day]} dividend"]


@pytest.mark.parametrize(("shrink", "night", "error"), [(0.0, 4, 1e-6), (1.0, 3, 0.03), (1.0, 7, 0.03)])
def test_a_split_that_the_vendor_adjusts_late_is_made_good(
    tmp_path: Path, plain: Walk, shrink: float, night: int, error: float
) -> None:
    """The raw bars of two days are accepted as news; when the history is adjusted the loss is none, and orders by raw
    bars are of that many shares of today."""
    day = START + night
    ticker = held_on(plain, day)
    raw, before = (scaled(MARKET, ticker, until, 1 / 0.5) for until in (day, len(DATES)))
    calm = Walk(tmp_path / "calm", AGENT.shrunk(shrink))
    calm.step(*range(START, LAST + 1))
    walk = Walk(tmp_path / "late", calm.agent, market=before)
    for today in range(START, LAST + 1):
        walk.market = before if today < day else raw if today < day + 2 else MARKET
        if today == day:
            with pytest.raises(Suspended, match=f"{ticker}, got what looks like a split"):
                walk.step(today)
            walk.go()
        walk.step(today)
    undisturbed = equities(calm)
    assert equities(walk)[-1] == pytest.approx(undisturbed[-1], rel=error)
    assert equities(walk)[day - START] < undisturbed[day - START] * 0.98
    assert [event["since"] for event in walk.of("event")] == [DATES[day]]
    book = walk.at(day).book
    bodies = {one["id"]: one["shares"] for one in walk.of("intent")[night]["orders"]}
    for order in book.intended(day):  # of the close after the split, before anybody told of it
        assert order.shares == bodies[order.id] * (0.5 if order.ticker == ticker else 1.0)


@pytest.mark.parametrize("days", [[START - 5], [START], [START + 2], [START - 5, START + 4]])
def test_a_revised_bar_is_asked_about_once(tmp_path: Path, days: list[int]) -> None:
    """Of any ticker and of days before and after the opening; what it had done stays as it was, and a dividend of the
    revised history is no question."""
    ticker = next(one for one in MARKET.tickers if np.isfinite([price(one, day) for day in (*days, START + 8)]).all())
    walk = walked(tmp_path)
    before = equities(walk)
    walk.market = revised = multiplied(MARKET, ticker, days, 1.01, CLOSE)
    for _ in range(2):
        with pytest.raises(Suspended, match=f"the bars of {ticker} as the account knew them"):
            walk.step(LAST + 1)
    walk.go()
    walk.step(LAST + 1, LAST + 2)
    walk.market = scaled(revised, ticker, LAST + 3, 0.99)
    walk.step(LAST + 3)
    assert [one["ratio"] for one in walk.of("event")] == [pytest.approx(0.99, rel=1e-6)]
    assert len(walk.of("hold")) == 1 and equities(walk)[: len(before)] == before
    # The bar as it was is no question either, and another one is.
    walk.market = scaled(MARKET, ticker, LAST + 3, 0.99)
    walk.step(LAST + 4)
    walk.market = multiplied(walk.market, ticker, START + 8, 1.02, CLOSE)
    with pytest.raises(Suspended, match=ticker):
        walk.step(LAST + 5)


@pytest.mark.slow
def test_one_world_leaves_an_account_as_an_undisturbed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fourteen sessions; `python -m benchmarks.faults.changing` walks through many worlds of sixty."""
    monkeypatch.setattr(changing, "SESSIONS", 14)
    found = changing.row(1, seed=12)  # its vendor names its events
    assert found.is_ok, found


def test_a_file_with_both_names_has_one_ticker() -> None:
    """The old name with bars up to a day, the new one with those from then on."""
    array, first = np.concatenate((MARKET.data_array, MARKET.data_array[:, :1]), axis=1), 30
    array[first:, 0], array[:first, -1] = np.nan, np.nan
    both = dataclasses.replace(MARKET, data_array=array, tickers=[*MARKET.tickers, "NEW"])
    known = under_known_names(both, {MARKET.tickers[0]: "NEW"})
    np.testing.assert_array_equal(known.data_array[:, 0], MARKET.data_array[:, 0])
    alone = dataclasses.replace(MARKET, tickers=["NEW", *MARKET.tickers[1:]])
    assert under_known_names(alone, {MARKET.tickers[0]: "NEW"}).tickers == MARKET.tickers


@settings(max_examples=50)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 40),
    st.sampled_from([0.5, 0.8, 0.95, 0.995, 0.9990, 3.0]),
    st.sampled_from([None, 4, 2]),
    st.data(),
)
def test_a_constant_ratio_up_to_a_day_is_told_from_a_revision(
    seed: int, bars: int, ratio: float, decimals: int | None, data: st.DataObject
) -> None:
    prices = np.round(np.exp(np.random.default_rng(seed).normal(4, 0.5, (bars, 4))), 2)
    until = data.draw(st.integers(1, bars))
    now = prices.copy()
    now[:until] *= ratio
    now = now if decimals is None else np.round(now, decimals)
    found = readjustment(prices, now)
    assert (found.bars, found.revised.any()) == (until, False)
    assert found.ratio == pytest.approx(ratio, rel=1e-3 if decimals == 2 else 1e-5)
    if until > 5 and decimals != 2:
        bar = data.draw(st.integers(0, until - 1))
        now[bar, data.draw(st.integers(0, 3))] *= 1.05
        assert np.flatnonzero(readjustment(prices, now).revised).tolist() == [bar]
    assert price_step(prices) == 0.01 and price_step(np.array([[np.pi, np.e]])) == 0.0
