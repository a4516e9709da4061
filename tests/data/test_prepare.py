"""CSV files in the forms that people have them, prepared and read back."""

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.events import events_file, note_events, read_events
from data.loader import StockDataLoader
from data.prepare.layout import STANDARD
from data.prepare.prepare import prepare
from data.prepare.text import NO_DAY, bare_numbers, decimal_sign, lines_of, numbers, possible_orders, resolve_days
from tests.data.files import LENIENT, bars, refused, run
from tests.data.test_adjustment import market, oracle
from tests.data.test_loader import bars_frame
from tests.tiny_run import frame
from utils.config.prepare import Choices

HEADER = "Date,Open,High,Low,Close,Volume\n"

PLAIN = [("AAPL", "2014-01-02", 10.0, 12.0, 9.0, 11.0), ("AAPL", "2014-01-13", 11.0, 13.0, 10.0, 12.0)]


@pytest.mark.parametrize(
    "text",
    [
        "date,close,open,low,high\n2014-01-13,12,11,10,13\n2014-01-02,11,10,9,12\n",
        "Datetime\tOpen\tHigh\tLow\tClose\tVol\n20140102\t10\t12\t9\t11\t5\n20140113\t11\t13\t10\t12\t6\n",
        "\ufeffDate,Open,High,Low,Close\n01/02/2014,10,12,9,11\n01/13/2014,11,13,10,12\n",
        '"Date","Price","Open","High","Low","Vol.","Change %"\n"01/13/2014","12","11","13","10","1.5M","0.1%"\n'
        '"01/02/2014","11","10","12","9","1.2K","-0.2%"\n',
        '"Date","Close/Last","Volume","Open","High","Low"\n"01/13/2014","$12.00","1,000","$11","$13","$10"\n'
        '"01/02/2014","$11.00","1,000","$10","$12","$9"\n',
        ",open,high,low,close\n2014-01-02 00:00:00-05:00,10,12,9,11\n2014-01-13 00:00:00-05:00,11,13,10,12\n",
        "Date,Open,High,Low,Close\n2-Jan-14,10,12,9,11\n13-Jan-14,11,13,10,12\n",
        "# made by hand\n\nDate,Open,High,Low,Close,\n2014-01-02,10,12,9,11,\n\n2014-01-13,11,13,10,12\n",
    ],
)
def test_usual_forms_of_a_file_give_the_same_bars(text: str, tmp_path: Path) -> None:
    _, rows = run(tmp_path, {"AAPL.csv": text})
    assert bars(rows) == PLAIN


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_opens_that_repeat_the_close_before_are_told(share: float, tmp_path: Path) -> None:
    rows = frame(81, 2)
    before = rows.groupby("ticker")["close"].shift()
    is_stale = rows.groupby("ticker").cumcount().between(1, 81 * share)
    rows["open"] = before.where(is_stale, 1.001 * rows["close"])
    rows["high"], rows["low"] = 1.2 * rows["close"], 0.8 * rows["close"]
    rows.to_csv(tmp_path / "bars.csv", index=False)
    notes = prepare(tmp_path / "bars.csv", tmp_path / "made.parquet").notes
    told = [note for note in notes if "equal the close before" in note]
    assert [note.split()[0] for note in told] == (["25%"] if share else [])


def test_what_is_dropped_is_counted_by_reason(tmp_path: Path) -> None:
    text = (
        f"downloaded from somewhere\n{HEADER}"
        "2014-01-02,10,12,9,11,5\n"
        "2014-01-03,10,12,9,11,5\n"
        "2014-01-03,10,12,9,11,5\n"  # identical
        "2014-01-02,20,22,19,21,5\n"  # later row for a date
        "2014-01-06,10,12,9,0,5\n"
        "2014-01-07,10,12,-9,11,5\n"
        "2014-01-08,10,null,9,11,5\n"
        "2014-01-09,10,,9,11,5\n"
        "2014-02-30,10,12,9,11,5\n"
        "Date,Open,High,Low,Close,Volume\n"
        "2014-01-10,10\n"
        "2014-01-13,10,12,9,11,5,more\n"
        'oops "half a quote\n'
        "2014-01-14,10,12,9,11\n"  # volume may be missing
        "2014-01-15,10,12,0.9,11,5\n"
        "\n   \n"
        "Total of 02-06-2020\n"
    )
    files = {"A.csv": text, "sub/EMPTY.csv": "", "BLANK.txt": "\n \n", "note.md": "not data"}
    strict = {"A.csv": text.replace("2014-01-02,20", "2014-01-01,20"), "note.txt": "not data", "note.md": "no data"}
    with refused(r"at most 1.00% of the rows to be left out, got 8 of 13 \(3 price missing"):
        run(tmp_path / "strict", strict)
    summary, rows = run(tmp_path, files, choices=LENIENT)
    assert bars(rows) == [
        ("A", "2014-01-02", 20.0, 22.0, 19.0, 21.0),
        ("A", "2014-01-03", 10.0, 12.0, 9.0, 11.0),
        ("A", "2014-01-14", 10.0, 12.0, 9.0, 11.0),
    ]
    assert summary.dropped == {
        "line before the first bar": 1,
        "line that is no bar": 3,
        "more fields than titles": 1,
        "date not understood": 1,
        "price missing or not a number": 3,
        "price infinite or not positive": 2,
        "price 5 times another one of its bar": 1,
        "duplicate date with the same prices": 1,
        "duplicate date, the last row was kept": 1,
    }
    assert summary.files_read == 1
    empty = {"BLANK.txt": "empty file", str(Path("sub/EMPTY.csv")): "empty file"}
    assert dict(summary.skipped) == {**empty, "note.md": summary.skipped[0][1]}
    assert "no kind of file that is read" in summary.skipped[0][1]
    assert "Rows: 3 kept, 14 dropped" in summary.lines()
    assert "  skipped BLANK.txt: empty file" in summary.lines()
    assert np.isnan(rows["volume"].iloc[-1])


GOOD = f"{HEADER}2014-01-02,10,12,9,11,5\n2014-01-13,11,13,10,12,6\n"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("hello\nworld\n", "no header and no bar in the first 50 lines, which begin 'hello'"),
        (HEADER, "no rows"),
        ("", "empty file"),
    ],
)
def test_files_without_bars_are_refused_or_skipped_with_a_reason(content: str, reason: str, tmp_path: Path) -> None:
    files = {"AAPL.csv": GOOD, "BAD.csv": content}
    with refused(rf"of the files to be left out, got 1 of 2 \(BAD.csv: {reason}"):
        run(tmp_path / "strict", files)
    summary, rows = run(tmp_path, files, choices=LENIENT)
    assert bars(rows) == PLAIN
    assert [name for name, _ in summary.skipped] == ["BAD.csv"]
    assert reason in summary.skipped[0][1]
    with refused(f"expected files with daily bars .*{reason}"):
        run(tmp_path / "alone", {"BAD.csv": content}, choices=LENIENT)
    assert not (tmp_path / "alone" / "made" / "bars.parquet").exists()


def test_long_lists_are_shortened(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {f"E{number:02}.csv": "" for number in range(30)}
    summary, _ = run(tmp_path, files | {"A.csv": f"{HEADER}2014-01-02,1,1,1,1,1\n"}, choices=LENIENT)
    assert len(summary.skipped) == 30
    assert "  and 10 lines more, on the page" in summary.lines()
    assert len(summary.lines()) < 30


def test_the_same_ticker_in_two_files_is_merged(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "a/X.csv": f"{HEADER}2014-01-02,1,1,1,1,1\n2014-01-03,1,1,1,1,1\n",
        "b/X.csv": f"{HEADER}2014-01-03,2,2,2,2,2\n2014-01-06,2,2,2,2,2\n",
    }
    with refused("expected one series of X, got closes 1 and 2 on 2014-01-03 in two files or"):
        run(tmp_path / "strict", files)
    summary, rows = run(tmp_path, files, choices=LENIENT)
    assert [row[1:3] for row in bars(rows)] == [("2014-01-02", 1.0), ("2014-01-03", 2.0), ("2014-01-06", 2.0)]
    assert summary.dropped == {"duplicate date, the last row was kept": 1}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "A.csv", tmp_path / "bars.parquet"
    source.write_text(f"{HEADER}2014-01-02,1,1,1,1,1\n")
    target.write_bytes(b"old")
    monkeypatch.setattr(pq, "write_table", Mock(side_effect=OSError(28, "No space left on device")))
    with refused("No space left"):
        prepare(source, target)
    assert target.read_bytes() == b"old"
    assert len(list(tmp_path.iterdir())) == 2


@given(text=st.text(max_size=20))
@settings(max_examples=20)
def test_any_text_is_a_date_or_none(text: str) -> None:
    text = " ".join(text.split("\n"))
    for order in possible_orders(text):
        days = resolve_days("\n".join([text, "2014-13-01", "99999999", "32/01/2014", ""]), order)
        assert list(days[1:]) == [NO_DAY] * 4
        assert days.dtype == np.int32


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ("1,234 12,345,678", [1234.0, 12345678.0]),
        ("12,34,567", [1234567.0]),
        ("12,5 12,345", [12.5, 12.345]),
        ("1.200 1.201,50", [1200.0, 1201.5]),
        ("123.456 1.234.567", [123456.0, 1234567.0]),
        ("12.345 12345", [12.345, 12345.0]),
        ("0,123", [0.123]),
        ("1\u00a0234,5 12\u00a0345\u00a0678,9", [1234.5, 12345678.9]),
        ("$7.25 €8.5", [7.25, 8.5]),
        ("-1 1e-3", [-1.0, 0.001]),
    ],
)
def test_numbers_as_people_write_them(texts: str, values: list[float]) -> None:
    bare = bare_numbers(lines_of(texts.split(" ")))
    decimal = decimal_sign(bare) or "."
    np.testing.assert_array_equal(numbers(bare, decimal), values)
    assert np.isnan(numbers("x\n1,2,3\n\nnull", ".")).all()


def test_numbers_that_stay_open() -> None:
    assert [decimal_sign(text) for text in ("12,345", "12.345\n985", "1.234\n1,234", "1")] == ["?,", "?.", "?", ""]


def test_levels_that_know_later_events_are_no_columns(tmp_path: Path) -> None:
    """Of Tiingo's download; a title of a built-in feature gets a prefix."""
    titles = "date,ticker,open,high,low,close,volume,adjOpen,adjHigh,adjLow,adjClose,adjVolume,rsi"
    files: dict[str, str | bytes] = {"tiingo.csv": f"{titles},low_beta_adj\n2020-01-02,A{',1' * 12}\n"}
    _, rows = run(tmp_path, files)
    assert {*rows} - {*STANDARD, "date"} == {"other_rsi", "low_beta_adj"}
    _, rows = run(tmp_path / "kept", files, choices=Choices(keep=("adjopen", "rsi", "low_beta_adj")))
    assert {*rows} - {*STANDARD, "date"} == {"adjopen", "rsi", "low_beta_adj"}


def test_events_that_are_written_are_read_again(tmp_path: Path) -> None:
    """A pay date before the ex-date is left out; a date may be written without hyphens."""
    events = pd.DataFrame({"ticker": ["A"], "day": [14753], "pay": [14669], "split": [np.nan], "dividend": [0.5]})
    note_events(tmp_path / "bars.parquet", events)
    (event,) = read_events(tmp_path / "bars.parquet")
    assert event.date == event.pay_date == "2010-05-24"
    events_file(tmp_path / "bars.parquet").write_text("ticker,date,split,dividend\nA,20200831,4,\n")
    assert read_events(tmp_path / "bars.parquet")[0].date == "2020-08-31"


def test_one_days_events_are_of_all_rows(tmp_path: Path) -> None:
    """The split of one row beside the dividend of another; different ones of a kind are refused."""
    raw = market(4, days=40, dividends=0, splits=1)
    row = raw[raw["Stock Splits"] > 0]
    paid = row.assign(**{"Stock Splits": 0.0, "Dividends": 5.0})
    _, rows = run(tmp_path / "both", {"A.csv": pd.concat([raw, paid]).to_csv(index=False)})
    expected = oracle(raw.assign(Dividends=np.where(raw["Stock Splits"] > 0, 5.0, 0.0)))
    np.testing.assert_allclose(rows["close"], expected, rtol=1e-12)
    assert [event.kind for event in read_events(tmp_path / "both" / "made" / "bars.parquet")] == ["split", "dividend"]
    with refused(f"one dividend of A on {row['Date'].item()}, got 5 and 6; "):
        run(tmp_path, {"A.csv": pd.concat([raw, paid, paid.assign(Dividends=6.0)]).to_csv(index=False)})


def test_events_are_those_of_the_last_call(tmp_path: Path) -> None:
    """But for tickers of which it names none; a file of events that cannot be read leaves all as it is."""
    raw = market(6, days=30, dividends=1, splits=0)
    run(tmp_path, {"A.csv": raw.to_csv(index=False)})
    target = tmp_path / "made" / "bars.parquet"
    events_file(target).open("a").write("B,2010-01-05,2,,\n")
    run(tmp_path, {"A.csv": raw.assign(Dividends=raw["Dividends"].shift(fill_value=0)).to_csv(index=False)})
    (day,) = np.flatnonzero(raw["Dividends"])
    assert [(event.ticker, event.date) for event in read_events(target)] == [
        ("B", "2010-01-05"),
        ("A", raw["Date"][day + 1]),
    ]
    before = target.read_bytes()
    events_file(target).write_text("no events")
    with refused("mend the header"):
        run(tmp_path, {"A.csv": raw[:-1].to_csv(index=False)})
    assert target.read_bytes() == before


@pytest.mark.parametrize("volume", [-100.0, np.inf])
def test_bars_of_impossible_volumes_are_counted(volume: float, tmp_path: Path) -> None:
    raw = market(7, days=30, dividends=0, splits=0)
    raw.loc[3, "Volume"] = volume
    summary, rows = run(tmp_path, {"A.csv": raw.to_csv(index=False)}, choices=Choices(max_bad_row_share=0.1))
    assert summary.dropped == {"volume infinite or negative": 1} and len(rows) == 29


def test_an_adjusted_close_that_is_none_is_refused(tmp_path: Path) -> None:
    raw = market(8, dividends=0, splits=2)
    with refused("an adjusted close that still moves by splits or dividends of its file; "):
        run(tmp_path, {"A.csv": raw.assign(**{"Adj Close": raw["Close"]}).to_csv(index=False)})


def test_the_index_of_a_frame_is_no_feature(tmp_path: Path) -> None:
    bars_frame().drop(index=5).to_parquet(tmp_path / "bars.parquet")
    loader = StockDataLoader(tmp_path / "bars.parquet")
    loader.load_and_prepare()
    assert not loader.columns
