"""Splits and dividends that vendors name are kept beside the data, and explain by what prices were multiplied."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.events import Event, events_file, ratios_of, read_events
from data.raw.prepare import prepare
from utils.errors import DataError

BARS = {"02": "10,10,10,10,9", "03": "10,10,10,10,9", "06": "5,5,5,5,9", "07": "4.9,4.9,4.9,4.9,9"}
OHLCV = "Date,Open,High,Low,Close,Volume"
FOUND = [Event("A", "2020-01-06", "split", 2.0, "2020-01-06"), Event("A", "2020-01-07", "dividend", 0.1, "2020-02-03")]


@pytest.mark.parametrize(
    ("titles", "values"),
    [
        ("Dividends,Stock Splits,Pay Date", {"06": "0,2,", "07": "0.1,0,2020-02-03"}),
        ("divCash,splitFactor,paymentDate", {"06": "0.0,2.0,", "07": "0.1,1.0,2020-02-03"}),
        ("dividend,split_ratio,payable_date", {"06": ",2:1,", "07": "0.1,,2020-02-03"}),
        ("Adj Close,dividend_amount,split_coefficient,paydate", {"06": "4.9,0,2,", "07": "4.9,0.1,1,2020-02-03"}),
    ],
    ids=["yfinance", "Tiingo", "EODHD", "adjusted"],
)
def test_what_a_vendor_names_is_kept(tmp_path: Path, titles: str, values: dict[str, str]) -> None:
    """In raw prices and in adjusted ones; a later call adds to it, and no event becomes a column of the data."""
    none = {"02": "4.9,,,"} if "Adj" in titles else {}
    cells = {day: values.get(day, none.get("02", ",,")) for day in BARS}
    for days in (["02", "03", "06"], [*BARS]):
        lines = [f"2020-01-{day},{BARS[day]},{cells[day]}\n" for day in days]
        (tmp_path / "A.csv").write_text(f"{OHLCV},{titles}\n{''.join(lines)}")
        summary = prepare(tmp_path / "A.csv", tmp_path / "bars.parquet")
    assert read_events(tmp_path / "bars.parquet") == FOUND
    assert "2 splits and dividends are in bars.events.csv" in summary.notes
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


@pytest.mark.parametrize(
    ("kind", "size", "date", "words"),
    [
        ("split", 4.0, "2020-08-31", "split 4:1 of 2020-08-31"),
        ("split", 0.1, "2020-08-31", "split 1:10 of 2020-08-31"),
        ("split", 1.333333333, "2020-08-31", "split 4:3 of 2020-08-31"),
        ("split", 1.0237123, "2020-08-31", "split 1.02371:1 of 2020-08-31"),
        ("split", 1e-5, "2020-08-31", "split 1e-05:1 of 2020-08-31"),
        ("dividend", 0.815, "2020-08-07", "dividend of 0.815 of 2020-08-07"),
        ("split", 0.01, "2020-08-31", "split 1:100 of 2020-08-31"),
        ("split", 4.00001, "", "split that no file names"),
    ],
)
def test_an_event_in_words(kind: str, size: float, date: str, words: str) -> None:
    assert str(Event("A", date, kind, size, date)) == words


@given(st.integers(1, 1000), st.sampled_from([(2, 1), (3, 2), (4, 3), (1, 3), (1, 49), (11, 10)]))
def test_whole_shares_stay_whole(shares: int, split: tuple[int, int]) -> None:
    """Of sizes that are rounded, as in a file, or measured."""
    for digits in (10, 6):
        parts = Event("A", "2020-08-31", "split", float(f"{split[0] / split[1]:.{digits}g}"), "2020-08-31").parts
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
