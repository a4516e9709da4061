"""Orders of another backtester against accounts that are known: computed by hand, in plain Python."""

import gzip
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features.nine import CLOSE, OPEN
from data.market import Market
from environment.portfolio import Portfolio
from tests.market_cases import random_panel
from tests.policies.test_judge import evaluate, judged, results
from tests.small_market import TINY_RULES, market_of
from training.api import Trades, load_market
from training.evaluation.baselines import Tuning
from training.evaluation.play import EvaluationSetup, Played
from training.policies.accounts import account_of
from training.policies.read import read_rows
from utils.errors import DataError

pytestmark = pytest.mark.usefixtures("small_heap")
GAPS = {"missing": 0.0, "delist": 0.0, "late_start": 0.0, "halt": 0.0}
MARKET = market_of(random_panel(np.random.default_rng(0), 160, 5, **GAPS))
FIRST, STEPS, RATE, COLUMNS = 30, 50, 0.001, MARKET.investable_columns.tolist()


def account_of_rows(rows: pd.DataFrame, market: Market = MARKET) -> Played:
    portfolio = Portfolio.on(market, TINY_RULES)
    tuning, columns = Tuning.of(market, portfolio.under()), market.investable_columns.tolist()
    return account_of("own", Trades(rows), EvaluationSetup(market, portfolio, tuning, FIRST, STEPS, columns))


def drawn_orders(seed: int) -> pd.DataFrame:
    """An order a day or two, in shares: purchases that cash suffices for, and sales of what is held."""
    rng, held, rows = np.random.default_rng(seed), dict.fromkeys(COLUMNS, 0.0), []
    for step in sorted(rng.integers(0, STEPS, 40).tolist()):
        column = COLUMNS[int(rng.integers(len(COLUMNS)))]
        worth = float(MARKET.data_array[FIRST + step, column, CLOSE])
        shares = max(float(rng.uniform(-3e4, 3e4)) / worth, -held[column])
        if shares:
            held[column] += shares
            rows.append((MARKET.dates[FIRST + step], MARKET.tickers[column], shares))
    return pd.DataFrame(rows, columns=["date", "ticker", "shares"])


def equity_of(rows: pd.DataFrame) -> list[float]:
    """What a plain ledger says: filled at the next open, at costs on both legs."""
    cash, held, equity = 1e6, dict.fromkeys(COLUMNS, 0.0), [1e6]
    ordered = rows.groupby(["date", "ticker"])["shares"].sum().to_dict()
    for day in range(FIRST, FIRST + STEPS):
        for column in COLUMNS:
            shares = ordered.get((pd.Timestamp(MARKET.dates[day]), MARKET.tickers[column]), 0.0)
            value = shares * float(MARKET.data_array[day + 1, column, OPEN])
            cash, held[column] = cash - value - RATE * abs(value), held[column] + shares
        equity.append(cash + sum(n * float(MARKET.data_array[day + 1, c, CLOSE]) for c, n in held.items()))
    return equity


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000))
def test_what_was_ordered_is_traded(seed: int) -> None:
    rows = drawn_orders(seed)
    own = account_of_rows(rows)
    np.testing.assert_allclose(own.curves.equity[0], equity_of(rows), rtol=1e-9)
    assert own.asked is not None and own.asked.gap < 1e-9 and not own.asked.lapses and not own.asked.notes


def quiet_market(prices: dict[int, float]) -> Market:
    """A copy of the market in which the first stock trades at 100, or at the given opens and closes by day."""
    data = MARKET.data_array.copy()
    data[:, COLUMNS[0], :4] = 100.0
    for day, price in prices.items():
        data[day, COLUMNS[0], :4] = price
    return replace(MARKET, data_array=data)


def rows_of(*rows: tuple[int, str, float], unit: str = "value") -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["day", "side", unit])
    dates = MARKET.dates[frame["day"].to_numpy()]
    return frame.assign(ticker=MARKET.tickers[COLUMNS[0]], date=dates).drop(columns="day")


@pytest.mark.parametrize("unit", ["value", "shares"])
def test_an_account_computed_by_hand(unit: str) -> None:
    """Ordered at the close of day 31, bought at 102 on day 32, sold at 107 on day 34: not at the closes before."""
    market = quiet_market({31: 101.0, 32: 102.0, 33: 105.0, 34: 107.0})
    amounts = {"value": (200_000.0, 9e5), "shares": (200_000.0 / 101.0, 9e5 / 105.0)}[unit]
    own = account_of_rows(rows_of((31, "buy", amounts[0]), (33, "sell", amounts[1]), unit=unit), market)
    shares = 200_000.0 / 101.0
    cash = 1e6 - shares * 102.0 * (1 + RATE)
    expected = [1e6, 1e6, cash + 102 * shares, cash + 105 * shares, cash + 107 * shares * (1 - RATE)]
    np.testing.assert_allclose(own.curves.equity[0, :5], expected, rtol=1e-7)
    assert (own.curves.equity[0, 4:] == own.curves.equity[0, 4]).all(), "who sells more than is held is not short"


def test_what_cash_does_not_suffice_for_is_told() -> None:
    none_to_sell, large, sale = (30, "sell", 5e5), (31, "buy", 2e6), (45, "sell", 9e8)
    own = account_of_rows(rows_of(none_to_sell, large, sale), quiet_market({}))
    assert own.curves.positions == 1 and own.curves.exposure.max() == pytest.approx(1, abs=2e-3)
    # Twice the equity was asked for on 14 of 50 days; no order was left for those after.
    assert own.asked is not None and own.asked.gap == pytest.approx(14 / 50, abs=1e-3)
    (lapse,) = own.asked.lapses
    assert lapse.reason.startswith("cash") and lapse.orders == 14 and own.asked.is_apart
    assert own.asked.refused is not None and own.asked.refused["row"].tolist() == [1, 3]


@pytest.mark.parametrize("title", ["side", "action", "direction", "type"])
def test_a_direction_under_another_title_is_one(title: str) -> None:
    """A sale is no purchase; types of orders are none, beside it or alone."""
    rows, market = rows_of((31, "buy", 2e5), (33, "sell", 9e5)), quiet_market({})
    expected = account_of_rows(rows, market).curves.equity
    other = rows.rename(columns={"side": title})
    np.testing.assert_array_equal(account_of_rows(other, market).curves.equity, expected)
    if title == "type":
        other = rows.assign(type="limit")
        np.testing.assert_array_equal(account_of_rows(other, market).curves.equity, expected)


def test_who_holds_a_stock_to_its_end_asks_for_nothing_after_it() -> None:
    """Sold unasked once, as the only reason: orders have days on which the stock trades."""
    market = quiet_market({})
    market.data_array[45:, COLUMNS[0]] = np.nan
    own = account_of_rows(rows_of((31, "buy", 2e5)), market)
    assert own.asked is not None
    assert [(one.reason, one.orders) for one in own.asked.lapses] == [
        ("sold unasked, as prices or equity had ended", 1)
    ]
    assert not own.asked.is_apart and not own.asked.warning


def test_one_account_may_be_written_in_many_ways() -> None:
    """Unsorted, in parts, with what is bought and sold at one close; and with sides in place of negative amounts."""
    rows = drawn_orders(0)
    part = rows.assign(shares=rows["shares"] / 4, date=rows["date"].astype("datetime64[s]") + np.timedelta64(10, "h"))
    wash = rows.iloc[:1].assign(shares=70.0)
    side = np.where(rows["shares"] > 0, "buy", "SELL ")
    one = account_of_rows(rows)
    for written in (
        pd.concat([wash, *[part] * 4, wash.assign(shares=-70.0)]).sample(frac=1.0, random_state=1),
        rows.assign(side=side, shares=rows["shares"].abs()),
    ):
        np.testing.assert_allclose(one.curves.equity, account_of_rows(written).curves.equity, rtol=1e-6)


@given(
    st.sampled_from(("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y%m%d", "%d-%b-%Y", "%Y-%m-%dT22:00:00-05:00")),
    st.sampled_from((",.", ";.", ";,", "\t,", "|.")),
    st.sampled_from(("utf-8", "utf-8-sig", "utf-16")),
    st.sampled_from(("csv", "txt.gz")),
    st.booleans(),
    st.sampled_from(("", "Trades of my account\n\n")),
)
@settings(max_examples=25)
def test_a_file_in_any_notation_is_the_same_one(
    form: str, signs: str, encoding: str, kind: str, grouped: bool, notes: str
) -> None:
    rows = drawn_orders(1).assign(price=lambda rows: 1000.0 + rows["shares"].abs() / 7)
    separator, decimal = signs
    group = {".": ",", ",": "."}[decimal] * (grouped and separator != ",")
    text = rows.assign(
        date=[f"{day:{form}}" for day in pd.to_datetime(rows["date"])], note=["", "Käse"] * (len(rows) // 2)
    )
    for name in ("shares", "price"):
        written = [f"{value:,.4f}".replace(",", "g").replace(".", decimal).replace("g", group) for value in rows[name]]
        text[name] = written
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"orders.{kind}"
        written = (notes + text.to_csv(sep=separator, index=False)).encode(encoding)
        path.write_bytes(gzip.compress(written) if kind.endswith("gz") else written)
        found = Trades(read_rows(path, "trades")).table
    assert found["date"].tolist() == pd.to_datetime(rows["date"]).tolist()
    np.testing.assert_allclose(found[["shares", "price"]], rows[["shares", "price"]], atol=1e-4)


@pytest.mark.parametrize("form", ["%m/%d/%Y", "%d/%m/%Y", "%d/%m/%y"])
def test_firsts_of_months_alone_may_be_any_days_of_one(form: str) -> None:
    rows = pd.DataFrame({"date": [f"{day:{form}}" for day in pd.date_range("2011-01-01", periods=12, freq="MS")]})
    with pytest.raises(DataError, match="whose day and month nothing tells apart"):
        Trades(rows.assign(ticker=MARKET.tickers[COLUMNS[0]], value=100.0))


def test_a_file_of_trades_is_judged(tmp_path: Path, tiny: Path) -> None:
    market, path = load_market(settings=tiny).market, tmp_path / "orders.csv"
    first = market.splits.validation.first
    days = market.dates[first : first + 4].astype("datetime64[D]").astype(str).tolist()
    path.write_text(f"date,Symbol,side,value\n{days[0]},S000,buy,50000\n{days[2]},S000,sell,90000\n{days[2]},,div,1\n")
    assert evaluate(tmp_path, "--trades", str(path), "--config", str(tiny)) == 0
    folder = judged(tmp_path, "orders")
    trades, (held,) = pd.read_csv(folder / "trades.csv"), pd.read_csv(folder / "positions.csv").to_dict("records")
    assert trades[["ticker", "date"]].to_numpy().tolist() == [["S000", days[1]], ["S000", days[3]]]
    assert (held["first_date"], held["last_date"], held["reason"]) == (days[1], days[3], "order")
    assert results(folder)["verdict"]["sentence"].startswith("2 of 3 rows were not")
    assert "Orders of a file cannot be audited" in (folder / "report.html").read_text()
    assert pd.read_csv(folder / "refused.csv")["reason"].tolist() == [
        "sale of more than is held, done in part",
        "neither a purchase nor a sale",
    ]
