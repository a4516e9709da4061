"""Fills of others: whatever cannot have happened is named, row by row, and the rest is done."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from tests.policies.test_trades import COLUMNS, FIRST, MARKET, RATE, STEPS, account_of_rows
from training.evaluation.play import Asked
from utils.errors import DataError

DATES = MARKET.dates.astype("datetime64[D]")
HALTED = 40
"""A session on which the last stock repeats the close before; the day after it has no bar."""


def halting() -> Market:
    data = MARKET.data_array.copy()
    data[HALTED, COLUMNS[-1], :4] = data[HALTED - 1, COLUMNS[-1], CLOSE]
    data[HALTED + 1, COLUMNS[-1]] = np.nan
    return replace(MARKET, data_array=data, investable_columns=MARKET.investable_columns)


MARKET_OF_FILLS = halting()
REASONS = {
    "high": "outside of the day's range",
    "low": "outside of the day's range",
    "split": "on another scale than the day's prices, as before or after a split",
    "frozen": "on a frozen bar, which repeats the close before",
    "future": "after the last day of the data",
    "weekend": "on a day without session",
    "unknown": "of an unknown ticker",
    "empty": "on a day without a bar",
    "late": "after the judged days",
    "both": "with both value and shares",
    "nothing": "sale of what is not held",
    "free": "without a finite price above 0",
    "dividend": "neither a purchase nor a sale",
    "no amount": "without an amount other than 0",
    "contrary": "a purchase of a negative amount",
}


def impossible(kind: str, rng: np.random.Generator) -> dict[str, object]:
    """A fill of one kind that cannot have been, in the second stock on; the first one is traded as it can be."""
    day, column = int(rng.integers(FIRST + 1, FIRST + STEPS)), COLUMNS[int(rng.integers(1, len(COLUMNS) - 1))]
    if kind in ("frozen", "empty"):
        day, column = HALTED + (kind == "empty"), COLUMNS[-1]
    day = FIRST + STEPS + 5 if kind == "late" else day
    bar = MARKET_OF_FILLS.data_array[day, column].astype(float)
    price = rng.uniform(bar[LOW], bar[HIGH]) if kind != "empty" else 50.0
    price = {"high": 1.2 * bar[HIGH], "low": bar[LOW] / 1.2, "split": 4 * bar[CLOSE], "free": 0.0}.get(kind, price)
    price = bar[CLOSE] if kind == "frozen" else price
    date = DATES[day]
    if kind == "future":
        date = DATES[-1] + int(rng.integers(1, 400))
    if kind == "weekend":
        date += (5 - (date.astype(int) - 4) % 7) % 7 + int(rng.integers(2))  # Saturday or Sunday
    row = {"date": date, "ticker": MARKET.tickers[column], "side": "buy", "shares": float(rng.integers(1, 90))}
    row |= {"value": np.nan, "price": price}
    if kind == "unknown":
        row["ticker"] = f"X{rng.integers(99)}"
    other = {
        "both": {"value": 100.0},
        "nothing": {"side": "sell"},
        "dividend": {"side": "div"},
        "no amount": {"shares": 0},
        "contrary": {"shares": -5.0},
    }
    return row | other.get(kind, {})


def possible(day: int, shares: float, part: float) -> dict[str, object]:
    """A fill of the first stock within its day's range, a part above the low."""
    bar = MARKET_OF_FILLS.data_array[day, COLUMNS[0]].astype(float)
    price = bar[LOW] + part * (bar[HIGH] - bar[LOW])
    side = "buy" if shares > 0 else "sell"
    amounts = {"side": side, "shares": abs(shares), "value": np.nan, "price": price}
    return {"date": DATES[day], "ticker": MARKET.tickers[COLUMNS[0]], **amounts}


GOOD = [possible(FIRST + 2, 900.0, 0.3), possible(FIRST + 8, -400.0, 0.9), possible(FIRST + 20, -900.0, 0.5)]


def asked_of(rows: list[dict[str, object]]) -> tuple[Asked, np.ndarray]:
    own = account_of_rows(pd.DataFrame(rows), MARKET_OF_FILLS)
    assert own.asked is not None and own.asked.refused is not None
    return own.asked, own.curves.equity[0]


def test_two_hundred_impossible_fills_are_named_and_change_nothing() -> None:
    """Each by its row and reason; the account is that of the rows which are left."""
    rng = np.random.default_rng(0)
    kinds = [*REASONS, *rng.choice([*REASONS], 200 - len(REASONS))]
    rows = [(kind, impossible(str(kind), rng)) for kind in kinds] + [("", row) for row in GOOD]
    rows = [rows[place] for place in rng.permutation(len(rows))]
    asked, equity = asked_of([row for _, row in rows])
    refused = asked.refused
    assert refused is not None
    named = dict(zip(refused["row"] - 1, refused["reason"], strict=True))
    for place, (kind, row) in enumerate(rows):
        if kind:
            assert named[place] == REASONS[kind], row
    assert len(named) == 201, "and a sale of more than is held"
    counts, late = refused["reason"].value_counts(), int((refused["reason"] == REASONS["late"]).sum())
    most, done = counts.drop(REASONS["late"]).max(), 201 - late
    assert f"{late} of 203 rows lie after the judged days, and are left out." in asked.how
    assert f"{done} of 203 rows were not done as claimed, see refused.csv: {most} " in asked.warning
    assert f", and {done - most} for other reasons." in asked.warning
    assert [count for _, count, turnover in asked.undone if turnover is None] == [*asked.refused_for.values()]
    assert asked.refused_for == counts.to_dict()
    np.testing.assert_array_equal(equity, asked_of(GOOD)[1])


def test_what_is_filled_after_a_day_without_a_bar_is_done_a_session_later_and_told() -> None:
    """But before the judged days, where fills are added up as they are."""
    day, column, data = HALTED + 2, COLUMNS[-1], MARKET_OF_FILLS.data_array.copy()
    data[FIRST - 4, column] = np.nan
    days = [day, day + 2, FIRST - 3]
    rows = pd.DataFrame({"date": DATES[days], "ticker": MARKET.tickers[column], "shares": 50.0, "side": "buy"})
    rows["price"] = data[days, column][:, [LOW, HIGH]].mean(axis=1)
    own = account_of_rows(rows, replace(MARKET_OF_FILLS, data_array=data))
    assert own.asked is not None and own.asked.refused is not None and own.trades is not None
    assert own.asked.refused["reason"].tolist() == ["on the day after one without a bar, done a session later"]
    assert own.asked.refused["row"].tolist() == [1]
    filled = own.trades.filled[:, 0, len(COLUMNS) - 1].nonzero()[:, 0] + FIRST + 1
    assert filled.tolist() == [FIRST + 1, day + 1, day + 2]


def test_prices_of_cents_have_ranges_too() -> None:
    """Half a cent is much of a price of three cents: 13% below the low is refused, half a percent is not."""
    data = MARKET_OF_FILLS.data_array.copy()
    data[:, COLUMNS[0], :4] *= 0.03 / data[FIRST + 2, COLUMNS[0], LOW]
    market = replace(MARKET_OF_FILLS, data_array=data)
    row = possible(FIRST + 2, 900.0, 0.5)
    for part, count in ((0.87, 1), (0.996, 0)):
        low = float(data[FIRST + 2, COLUMNS[0], LOW])
        own = account_of_rows(pd.DataFrame([row | {"price": part * low}, row | {"price": low}]), market)
        assert own.asked is not None and own.asked.refused is not None and len(own.asked.refused) == count


def test_a_fill_that_cash_does_not_pay_for_is_named() -> None:
    asked, equity = asked_of([GOOD[0], possible(FIRST + 4, 1e6, 0.5), *GOOD[1:]])
    assert asked.refused is not None
    reasons = asked.refused.set_index("row")["reason"]
    assert reasons[2] == "purchase that the cash does not pay for"
    np.testing.assert_array_equal(equity, asked_of(GOOD)[1])


def test_partial_sales_are_partial_and_the_claim_is_held_against_the_fills_here() -> None:
    """900 bought, 400 sold, then 500 of the 900 that are sold; filled at opens of the days, by a plain ledger."""
    asked, equity = asked_of(GOOD)
    cash, claimed = 1e6, 1e6
    for row, shares in zip(GOOD, (900.0, -400.0, -500.0), strict=True):
        open_ = float(MARKET_OF_FILLS.data_array[DATES.tolist().index(row["date"].astype(object)), COLUMNS[0], OPEN])  # type: ignore[attr-defined]
        cash -= shares * open_ + RATE * abs(shares) * open_
        claimed -= shares * float(row["price"]) + RATE * abs(shares) * open_  # type: ignore[arg-type]
    assert equity[-1] == pytest.approx(cash, rel=1e-9)
    better = claimed - cash
    told = f"The prices given are {abs(better):,.0f} {'better' if better > 0 else 'worse'} than fills here"
    assert told in asked.warning and "sale of more than is held, done in part" in asked.warning
    if claimed > 1e6:
        assert f"{100 * abs(better) / (claimed - 1e6):.0f}% of the profit" in asked.warning


def test_what_was_held_before_the_judged_days_is_held_on_them() -> None:
    """900 bought and 400 sold before, then 100 sold: from the first open on, as the share of the equity that it was."""
    rows = [possible(FIRST - 12, 900.0, 0.3), possible(FIRST - 6, -400.0, 0.9), possible(FIRST + 8, -100.0, 0.5)]
    asked, equity = asked_of(rows)
    bars = MARKET_OF_FILLS.data_array[:, COLUMNS[0]].astype(float)
    bought, sold = (float(row["price"]) for row in rows[:2])  # type: ignore[arg-type]
    scale = 1e6 / (1e6 - 900 * bought + 400 * sold + 500 * bars[FIRST, CLOSE])
    cash, shares, expected = 1e6, 0.0, [1e6]
    for day in range(FIRST + 1, FIRST + STEPS + 1):
        change = scale * {FIRST + 1: 500.0, FIRST + 8: -100.0}.get(day, 0.0)
        cash, shares = cash - change * bars[day, OPEN] - RATE * abs(change) * bars[day, OPEN], shares + change
        expected.append(cash + shares * bars[day, CLOSE])
    np.testing.assert_allclose(equity, expected, rtol=1e-9)
    told = (
        f"2 of 3 rows lie before the judged days: the account begins with what they leave held, scaled by {scale:.3g}"
    )
    assert told in asked.how and asked.refused is not None and asked.refused.empty


def test_rows_of_a_brokers_export_are_read_or_named() -> None:
    """Other titles and words for sides; a deposit has no ticker, and stays in the table of what was left out."""
    rows = [GOOD[0] | {"side": "BOT"}, GOOD[1] | {"side": "SLD"}, GOOD[2]]
    deposit = GOOD[0] | {"ticker": np.nan, "side": "deposit", "shares": np.nan}
    named = pd.DataFrame([*rows, deposit]).rename(columns={"ticker": "Symbol", "shares": "Quantity"})
    own = account_of_rows(named, MARKET_OF_FILLS)
    np.testing.assert_array_equal(own.curves.equity[0], asked_of(GOOD)[1])
    assert own.asked is not None and own.asked.refused is not None
    last = own.asked.refused.iloc[-1]
    assert (last["row"], last["reason"]) == (4, "neither a purchase nor a sale") and pd.isna(last["ticker"])


def test_an_account_that_was_lost_before_the_judged_days_is_refused() -> None:
    """Bought a little on credit, which is let pass for dividends that are not known of; the price falls by 95%."""
    data = MARKET_OF_FILLS.data_array.copy()
    data[FIRST - 8 :, COLUMNS[0], :4] *= 0.05
    purchase = possible(FIRST - 12, 1.0, 0.5)
    rows = pd.DataFrame([purchase | {"shares": 1.15e6 / float(purchase["price"])}])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"worth something on \S+, where the judged days begin, got -7\d,\d+"):
        account_of_rows(rows, replace(MARKET_OF_FILLS, data_array=data))


def test_of_rows_that_are_all_impossible_the_error_says_why() -> None:
    rng = np.random.default_rng(1)
    with pytest.raises(DataError, match="got none: 2 outside of the day's range, 1 on a day without session"):
        asked_of([impossible(kind, rng) for kind in ("high", "low", "weekend")])
