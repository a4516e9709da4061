"""Splits and dividends: prices are adjusted for them, as in Yahoo's example and by an oracle, and they are kept."""

import math
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.events import Event, events_file, ratios_of, read_events
from data.prepare.prepare import prepare
from tests.data.files import prepared, refused, run
from utils.config.prepare import Choices
from utils.errors import DataError

HEADER = "Date,Open,High,Low,Close,Volume,Dividends,Stock Splits\n"


def test_the_example_of_yahoo(tmp_path: Path) -> None:
    """https://help.yahoo.com/kb/SLN28256.html: a split of 2:1 and a dividend of 0.08 after a close of 24.96."""
    closes = {
        "2003-02-13": (46.99, 0, 0), "2003-02-14": (48.30, 0, 0), "2003-02-18": (24.96, 0, 2),
        "2003-02-19": (24.53, 0.08, 0), "2003-02-20": (24.54, 0, 0),
    }  # fmt: skip
    rows = [f"{day},{close},{close},{close},{close},100,{paid},{split}" for day, (close, paid, split) in closes.items()]
    summary, bars = run(tmp_path, {"A.csv": HEADER + "\n".join(rows)})
    assert bars["close"].round(2).tolist() == [23.42, 24.07, 24.88, 24.53, 24.54]
    assert (bars["close"] * bars["volume"]).tolist() == pytest.approx([4699, 4830, 2496, 2453, 2454])
    done = "1 of 1 tickers: not in the prices, which move by them; prices adjusted, volume the other way"
    assert summary.notes == [
        f"Splits: {done}",
        f"Dividends: {done}",
        "splits and dividends of 2 days are in bars.events.csv",
    ]


def market(seed: int, *, days: int = 150, dividends: int = 3, splits: int = 2) -> pd.DataFrame:
    """Raw prices of one stock with its events: columns open, high, low, close, volume, dividend, split."""
    rng = np.random.default_rng(seed)
    steps = 0.01 * rng.standard_normal((days, 2))
    events = rng.choice(np.arange(1, days), dividends + splits, replace=False)
    dividend, split = np.zeros(days), np.ones(days)
    dividend[events[:dividends]] = rng.uniform(0.2, 2.0, dividends)
    split[events[dividends:]] = rng.choice([2.0, 3.0, 1.5, 0.2], splits)
    opens, closes = np.empty(days), np.empty(days)
    close = 100.0
    for day in range(days):
        opens[day] = (close / split[day] - dividend[day]) * np.exp(0.3 * steps[day, 0])
        close = closes[day] = opens[day] * np.exp(steps[day, 1])
    high, low = np.maximum(opens, closes) * 1.01, np.minimum(opens, closes) * 0.99
    dates = np.busday_offset("2010-01-04", np.arange(days)).astype(str)
    bars = {"Date": dates, "Open": opens, "High": high, "Low": low, "Close": closes}
    bars["Volume"] = rng.integers(1000, 9000, days).astype(float)
    return pd.DataFrame(bars | {"Dividends": dividend, "Stock Splits": np.where(split == 1, 0.0, split)})


def oracle(raw: pd.DataFrame) -> list[float]:
    """Adjusted closes, day by day and event by event in plain Python."""
    closes = raw["Close"].tolist()
    adjusted = list(closes)
    for day in range(1, len(closes)):
        split = raw["Stock Splits"][day] or 1.0
        factor = (1 / split) * (1 - raw["Dividends"][day] / (closes[day - 1] / split))
        for earlier in range(day):
            adjusted[earlier] *= factor
    return adjusted


def scaled(raw: pd.DataFrame, factor: pd.Series) -> pd.DataFrame:
    return raw.assign(**{name: raw[name] * factor for name in ("Open", "High", "Low", "Close")})


@given(seed=st.integers(0, 10_000))
@settings(max_examples=5)
def test_events_give_what_oracle_and_adjusted_close_give(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, raw = tmp_path_factory.mktemp("market"), market(seed)
    expected = oracle(raw)
    _, by_events = run(folder, {"A.csv": raw.to_csv(index=False)})
    summary, by_close = run(folder, {"A.csv": raw.assign(**{"Adj Close": expected}).to_csv(index=False)})
    np.testing.assert_allclose(by_events["close"], expected, rtol=1e-12)
    for role in ("open", "high", "low", "close", "volume"):
        np.testing.assert_allclose(by_events[role], by_close[role], rtol=1e-9)
    np.testing.assert_allclose(by_events["close"] * by_events["volume"], raw["Close"] * raw["Volume"], rtol=1e-9)
    assert by_events["close"].iloc[-1] == raw["Close"].iloc[-1]
    assert "prices are scaled to the adjusted close where there is one, volume the other way" in summary.notes


@pytest.mark.parametrize("form", ["long.csv", "wide.csv", "wide.parquet"])
def test_tickers_of_all_kinds_are_told_apart(form: str, tmp_path: Path) -> None:
    """Two of raw prices, one of adjusted ones, and one whose dividends are too small to tell; also side by side."""
    raw = {name: market(seed, splits=int(seed < 3)) for seed, name in enumerate("ABCD")}
    adjusted = {name: np.array(oracle(own)) for name, own in raw.items()}
    done = scaled(raw["C"], adjusted["C"] / raw["C"]["Close"])
    given = raw | {"C": done, "D": raw["D"].assign(Dividends=raw["D"]["Dividends"] / 20)}
    parts = {name: own.assign(Date=pd.to_datetime(own["Date"])).set_index("Date") for name, own in given.items()}
    wide = pd.concat(parts, axis=1, names=["Ticker", "Price"]).swaplevel(axis=1)
    frame = wide.stack("Ticker", future_stack=True).reset_index("Ticker") if form == "long.csv" else wide
    frame.to_parquet(tmp_path / form) if form == "wide.parquet" else frame.to_csv(tmp_path / form)
    summary, bars = prepared(tmp_path / form, tmp_path / "made" / "bars.parquet")
    assert summary.dropped.total() == 0
    made = {str(name): own["close"].to_numpy() for name, own in bars.groupby("ticker", observed=True)}
    for name in "AB":
        np.testing.assert_allclose(made[name], adjusted[name], rtol=1e-12)
    for name in "CD":
        np.testing.assert_array_equal(made[name], given[name]["Close"])
    raw_ones, adjusted_one, *_, unclear_one, _ = summary.notes
    assert raw_ones.startswith("Splits: 2 of 2 tickers: not in the prices, ")
    assert adjusted_one.startswith("Splits: 1 of 1 tickers: in the prices already, ")
    assert unclear_one.startswith("Dividends: 3 of 1 tickers: prices do not tell whether they are in them already; ")


def test_dividends_alone_are_told_from_the_moves_of_many(tmp_path: Path) -> None:
    """Splits are in the prices, dividends are not, as in a close of Yahoo's whose adjusted close was dropped."""
    raw = market(3, days=2000, dividends=60, splits=0)
    expected = oracle(raw)
    for own, state in ((raw, "not in the prices"), (scaled(raw, expected / raw["Close"]), "in the prices already")):
        summary, bars = run(tmp_path, {"A.csv": own.to_csv(index=False)})
        np.testing.assert_allclose(bars["close"], expected, rtol=1e-12)
        assert f": {state}, " in summary.notes[0]


def test_events_that_change_nothing(tmp_path: Path) -> None:
    rows = "2014-01-02,10,10,10,10,1,3,4\n2014-01-03,10,10,10,10,1,0,1\n2014-01-06,10,10,10,10,1,-1,nan\n"
    files: dict[str, str | bytes] = {"A.csv": f"{HEADER}{rows}2014-01-07,0,0,0,0,1,1,2\n"}
    summary, bars = run(tmp_path, files, choices=Choices(max_bad_row_share=0.3))
    assert bars["close"].tolist() == [10.0, 10.0, 10.0]
    assert not any("prices" in note for note in summary.notes)


EVENTS: dict[str, tuple[str, float, int, str]] = {
    "inverse": ("0.5", 2.0, 0, "1 ratios were taken the other way round, as prices move, such as of A"),
    "old for new": ("1:2", 2.0, 0, "1 ratios were taken the other way round"),
    "words": ("2-for-1", 2.0, 0, "not in the prices"),
    "words with spaces": ("1 For 2", 2.0, 0, "1 ratios were taken the other way round"),
    "a fraction": ("3/2", 1.5, 0, "not in the prices"),
    "a reverse split": ("10:1", 0.1, 0, "1 ratios were taken the other way round"),
    "beside an adjusted close": ("0.5", 2.0, 1, "1 ratios were taken the other way round"),
}


def split_market(text: str, size: float, late: int = 0, *, day: int = 40) -> pd.DataFrame:
    """60 raw bars with a split, and what a vendor writes of it."""
    raw = market(5, days=60, dividends=0, splits=0)
    raw = scaled(raw, pd.Series(np.where(raw.index < day, size, 1.0)))
    return raw.drop(columns="Dividends").assign(**{"Stock Splits": np.where(raw.index == day + late, text, "")})


@pytest.mark.parametrize(("text", "size", "is_adjusted", "words"), EVENTS.values(), ids=EVENTS)
def test_prices_settle_the_ratio_of_a_split(
    text: str, size: float, is_adjusted: int, words: str, tmp_path: Path
) -> None:
    raw = split_market(text, size)
    expected = raw["Close"] / np.where(raw.index < 40, size, 1.0)
    summary, bars = run(
        tmp_path, {"A.csv": (raw.assign(adjclose=expected) if is_adjusted else raw).to_csv(index=False)}
    )
    np.testing.assert_allclose(bars["close"], expected, rtol=1e-9)
    date = raw["Date"][40]
    assert read_events(tmp_path / "made" / "bars.parquet") == [Event("A", date, "split", size, date)]
    assert words in "\n".join(summary.notes)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ({"Stock Splits": {35: 2}}, "split 2:1 of A on 2010-02-22 that prices allow, got a move of -50% on 2010-03-01"),
        ({"Stock Splits": {41: 2}}, "split 2:1 of A on 2010-03-02 that prices allow, got a move of -50% on 2010-03-01"),
        ({"Stock Splits": {37: 0.5}, "adjclose": {}}, "split 0.5:1 of A on 2010-02-24 that prices allow, got a move"),
        ({"Stock Splits": {40: 8}}, "split 8:1 of A on 2010-03-01 that prices allow, got a move of -50% on 2010-03-01"),
        ({"Dividends": {30: 2500.0}}, "dividend of 2500 of A on 2010-02-15 that prices allow, got a close of"),
        ({"Dividends": {59: 2500.0}}, "dividend of 2500 of A"),
        ({"Dividends": {30: 2500.0}, "adjclose": {}}, "dividend of 2500 of A"),
        ({"Capital Gains": {30: 2500.0}}, "dividend of 2500 of A"),
    ],
)
def test_events_that_contradict_prices_are_refused(
    events: dict[str, dict[int, float]], words: str, tmp_path: Path
) -> None:
    raw = split_market("", 2.0).drop(columns="Stock Splits")
    columns = {name: raw["Close"] if not cells else raw.index.map(cells) for name, cells in events.items()}
    with refused(re.escape(words)):
        run(tmp_path, {"A.csv": raw.assign(**columns).to_csv(index=False)})


def test_one_vendor_has_one_notation(tmp_path: Path) -> None:
    """Moves by a small split are lost among others; its ratio is as that of the large one."""
    files: dict[str, str | bytes] = {
        "A.csv": split_market("0.5", 2.0).to_csv(index=False), "B.csv": split_market("20:21", 1.05).to_csv(index=False)
    }  # fmt: skip
    run(tmp_path, files)
    assert [event.size for event in read_events(tmp_path / "made" / "bars.parquet")] == pytest.approx([2, 1.05])


def test_a_split_may_be_in_the_prices_and_a_later_one_not(tmp_path: Path) -> None:
    raw = split_market("2", 2.0)
    raw.loc[20, "Stock Splits"] = "10"
    _, bars = run(tmp_path, {"A.csv": raw.to_csv(index=False)})
    np.testing.assert_allclose(bars["close"], raw["Close"] / np.where(raw.index < 40, 2.0, 1.0), rtol=1e-9)


@pytest.mark.parametrize(("ticker", "is_refused"), [("A", True), ("Z", False)])
def test_a_dividend_that_is_yet_to_come(ticker: str, is_refused: bool, tmp_path: Path) -> None:
    """After the last bar it must be below the close; a ticker without bars has none."""
    raw = market(0, days=30, dividends=0, splits=0).assign(Ticker="A").drop(columns="Stock Splits")
    later = pd.DataFrame({"Date": ["2010-02-16"], "Dividends": [9999.0], "Ticker": [ticker]})
    with refused("dividend of 9999 of A on 2010-02-16") if is_refused else nullcontext():
        run(tmp_path, {"all.csv": pd.concat([raw, later]).to_csv(index=False)})


def test_a_dividend_may_be_more_than_its_adjusted_price(tmp_path: Path) -> None:
    """Of eight ones of a third, the first is more than twice as much as the price that all of them left of 150."""
    paid = pd.Series(50.0, range(1, 9)).reindex(range(10), fill_value=0.0)
    closes = [150 * (2 / 3) ** max(0, 8 - day) for day in range(10)]
    bars = pd.DataFrame({"Date": market(0, days=10)["Date"], **dict.fromkeys(("Open", "High", "Low", "Close"), closes)})
    run(tmp_path, {"A.csv": bars.assign(Dividends=paid).to_csv(index=False)})
    assert len(read_events(tmp_path / "made" / "bars.parquet")) == 8 and closes[0] < 50 / 2


def test_capital_gains_are_paid_as_dividends_are(tmp_path: Path) -> None:
    raw = market(0, days=60, dividends=2, splits=0).drop(columns="Stock Splits")
    is_gain = raw.index == raw["Dividends"].to_numpy().nonzero()[0][0]
    parts = {"Dividends": raw["Dividends"].where(~is_gain), "Capital Gains": raw["Dividends"].where(is_gain)}
    _, bars = run(tmp_path, {"A.csv": raw.assign(**parts).to_csv(index=False)})
    both = read_events(tmp_path / "made" / "bars.parquet")
    _, whole = run(tmp_path, {"A.csv": raw.to_csv(index=False)})
    pd.testing.assert_frame_equal(bars, whole)
    assert both == read_events(tmp_path / "made" / "bars.parquet") and len(both) == 2


BARS = {"02": "10,10,10,10,9", "03": "10,10,10,10,9", "06": "5,5,5,5,9", "07": "4.9,4.9,4.9,4.9,9"}
OHLCV = "Date,Open,High,Low,Close,Volume"
FOUND = [Event("A", "2020-01-06", "split", 2.0, "2020-01-06"), Event("A", "2020-01-07", "dividend", 0.1, "2020-02-03")]


@pytest.mark.parametrize(
    ("titles", "none", "split", "dividend"),
    [
        ("Dividends,Stock Splits,Pay Date", ",,", "0,2,", "0.1,0,2020-02-03"),
        ("divCash,splitFactor,paymentDate", ",,", "0.0,2.0,", "0.1,1.0,2020-02-03"),
        ("dividend,split_ratio,payable_date", ",,", ",2:1,", "0.1,,2020-02-03"),
        ("Adj Close,dividend_amount,split_coefficient,paydate", "4.9,,,", "4.9,0,2,", "4.9,0.1,1,2020-02-03"),
    ],
    ids=["yfinance", "Tiingo", "EODHD", "adjusted"],
)
def test_what_a_vendor_names_is_kept(tmp_path: Path, titles: str, none: str, split: str, dividend: str) -> None:
    """In raw prices and in adjusted ones; a later call adds to it, and no event becomes a column of the data."""
    cells = zip(BARS.items(), (none, none, split, dividend), strict=True)
    lines = [f"2020-01-{day},{bar},{named}\n" for (day, bar), named in cells]
    for days in (3, 4):
        (tmp_path / "A.csv").write_text(f"{OHLCV},{titles}\n{''.join(lines[:days])}")
        summary = prepare(tmp_path / "A.csv", tmp_path / "bars.parquet")
    assert read_events(tmp_path / "bars.parquet") == FOUND
    assert "splits and dividends of 2 days are in bars.events.csv" in summary.notes
    assert [*pd.read_parquet(tmp_path / "bars.parquet")] == ["date", "ticker", *OHLCV.lower().split(",")[1:]]


def test_a_factor_adjusts_to_the_last_bar(tmp_path: Path) -> None:
    lines = [f"2020-01-{day},{cells},{1 if day < '06' else 2}\n" for day, cells in reversed(BARS.items())]
    (tmp_path / "A.csv").write_text(f"{OHLCV},adj_factor\n{''.join(lines)}")
    prepare(tmp_path / "A.csv", tmp_path / "bars.parquet")
    assert pd.read_parquet(tmp_path / "bars.parquet")["close"].tolist() == [5, 5, 5, 4.9]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ticker,date,split\nA,2020-01-02,2\n", "got no dividend"),
        ("ticker,date,split,dividend\nA,02.01.2020,2,\n", "on line 2"),
        ("ticker,date,split,dividend\nA,2020-01-02,2,\nA,2020-01-03,,-1\n", "on line 3"),
        ("ticker,date,split,dividend,pay_date\nA,2020-01-02,,1,2019-01-02\n", "a pay date that is not before"),
    ],
)
def test_a_row_that_is_no_event_is_told(tmp_path: Path, text: str, words: str) -> None:
    events_file(tmp_path / "bars.parquet").write_text(text)
    with pytest.raises(DataError, match=words):
        read_events(tmp_path / "bars.parquet")


@pytest.mark.parametrize(("size", "ratio"), [(0.01, "1:100"), (1.333333333, "4:3"), (1.0237123, "1.02371:1")])
def test_a_split_in_words(size: float, ratio: str) -> None:
    assert str(Event("A", "2020-08-31", "split", size, "2020-08-31")) == f"split {ratio} of 2020-08-31"


@given(st.integers(1, 1000), st.sampled_from([(2, 1), (3, 2), (4, 3), (1, 3), (1, 49), (11, 10)]))
def test_whole_shares_stay_whole(shares: int, split: tuple[int, int]) -> None:
    """Of sizes that are rounded, as in a file, or measured."""
    for digits in (10, 6):
        parts = Event("A", "2020-08-31", "split", float(f"{split[0] / split[1]:.{digits}g}"), "2020-08-31").fraction
        assert parts.as_integer_ratio() == split and shares * split[1] * parts.numerator % parts.denominator == 0


@given(st.lists(st.one_of(st.sampled_from([2.0, 0.1, 1.5]), st.floats(-0.3, -0.001)), min_size=1, max_size=4))
def test_events_explain_their_ratio_and_no_other_one(parts: list[float]) -> None:
    """A negative part is a dividend, as a share of the close before it; the file's own ratio is given back exactly."""
    close, events = 80.0, list[Event]()
    for part in parts:
        size = part if part > 0 else -part * close
        close *= 1 / size if part > 0 else 1 + part
        events.append(Event("A", "2020-01-02", "split" if part > 0 else "dividend", size, "2020-01-02"))
    ratio = close / 80.0
    found = ratios_of(events, ratio, 80.0)
    assert math.prod(found) == pytest.approx(ratio, rel=1e-9)
    np.testing.assert_allclose(found, [1 / part if part > 0 else 1 + part for part in parts], rtol=1e-9)
    # The last close may be some sessions old.
    assert not found or math.prod(ratios_of(events, ratio, 84.0) or [ratio]) == pytest.approx(ratio, rel=1e-9)
    assert ratios_of(events, ratio * 3, 80.0) == [] and ratios_of(events, ratio, 0.001) in ([], found)
