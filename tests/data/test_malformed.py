"""Files that are rotten, made up or easily misread: read exactly or refused in one clear line, never misread."""

import logging
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.notations import FIELDS, HEADERS, outcome
from data.loader import StockDataLoader
from data.market import build_market
from data.prepare.layout import role_of
from data.prepare.prepare import prepare
from tests.data.files import LENIENT, PRICES, read_or_refused, refused, run, written
from tests.data.test_loader import TOLERANT, bars_frame, load
from tests.tiny_run import TINY, frame
from training.commands.table import COMMANDS
from utils.config.cli import parse_command
from utils.config.prepare import Choices
from utils.config.trader import DataConfig, EnvironmentConfig
from utils.errors import DataError

SHARED = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
PARQUET = frame(40, 3).to_parquet(compression="none")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> StockDataLoader:
    """A price file as `prepare` writes it, loaded."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare(written(folder / "bars.csv", frame(40, 3)), folder / "bars.parquet")
    return loaded(folder / "bars.parquet")


def loaded(path: Path) -> StockDataLoader:
    loader = StockDataLoader(path)
    loader.load_and_prepare()
    return loader


@settings(SHARED, max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_of_a_prepared_file_is_refused_or_changes_nothing(
    prepared: StockDataLoader, tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(prepared.path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with read_or_refused():
        loader = loaded(written(tmp_path / "flipped.parquet", bytes(content)))
        np.testing.assert_array_equal(loader.data_array, prepared.data_array)
        np.testing.assert_array_equal(loader.dates, prepared.dates)
        assert loader.tickers == prepared.tickers


@SHARED
@given(start=st.integers(0, len(PARQUET) - 1), junk=st.binary(min_size=1, max_size=64))
@example(576, b"\x01\x05")  # gave an index that no ticker has
def test_overwritten_bytes_are_refused_or_read_and_cut_files_refused(tmp_path: Path, start: int, junk: bytes) -> None:
    with read_or_refused():
        loaded(written(tmp_path / "spoilt.parquet", PARQUET[:start] + junk + PARQUET[start + len(junk) :]))
    with refused("expected"):
        loaded(written(tmp_path / "cut.parquet", PARQUET[:start]))


def test_tickers_that_are_no_text(tmp_path: Path) -> None:
    content = PARQUET.replace(b"T1\x02\x00\x00\x00T2", b"\x80\x81\x02\x00\x00\x00T2")
    with refused("expected tickers as text in UTF-8"):
        loaded(written(tmp_path / "spoilt.parquet", content))


@SHARED
@given(data=st.data())
def test_spoilt_settings(tmp_path: Path, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(TINY)))
    junk = data.draw(st.text(max_size=8))
    path = tmp_path / "spoilt.toml"
    path.write_text(TINY[:start] + junk + TINY[start + len(junk) :], encoding="utf-8", errors="replace")
    with read_or_refused():
        parse_command(["--config", str(path), "--profile", "quick"], COMMANDS)


def test_most_drawn_notations_are_read_back_and_the_others_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """`python -m benchmarks.notations` draws 2,000. A reader that refuses everything misreads nothing."""
    found = [outcome(seed, tmp_path_factory.mktemp("notation")) for seed in range(32)]
    assert found.count("read") == 14, "the others lack known titles, or can be read in several ways"
    assert all(one == "read" or (one.startswith("expected") and "\n" not in one) for one in found)


@pytest.mark.parametrize("language", sorted({*HEADERS} - {"unknown", "tickers", "none"}))
def test_titles_are_known_in_many_languages(language: str) -> None:
    titles = HEADERS[language].split("|" if "|" in HEADERS[language] else " ")
    assert [role_of(title) for title in titles] == ["date", *FIELDS]


def test_spellings_of_a_ticker_are_one_ticker(tmp_path: Path) -> None:
    rows = [f"{name},2024-01-0{day},1,1,1,{day}" for name, day in (("t00", 2), ("T00 ", 3), ("T00", 4))]
    summary, bars = run(tmp_path, {"all.csv": "\n".join(["ticker,date,open,high,low,close", *rows])})
    assert bars["ticker"].tolist() == ["T00"] * 3 and summary.notes == ["t00 and T00 are one ticker, T00"]
    new = written(tmp_path / "t00.csv", "date,open,high,low,close\n2024-01-05,1,1,1,5\n")
    prepare(new, summary.target, append=True)
    assert pd.read_parquet(summary.target)["ticker"].tolist() == ["T00"] * 4
    twins = bars_frame(tickers=("T00", "t00"))
    with refused(r"expected one spelling of each ticker, got '[Tt]00' and '[tT]00'"):
        load(twins)


BAD = st.tuples(st.sampled_from([*',";\n\x1b\t\r\u2028', "=", "+", "@", " "]), st.text("ABC=", max_size=5)).map("".join)


@given(ticker=st.one_of(BAD, BAD.map(lambda text: f"A{text[0]}B").filter(lambda text: text[1] not in "=+@ ")))
@settings(max_examples=8)
def test_tickers_that_could_act_elsewhere_are_refused(ticker: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, bars = tmp_path_factory.mktemp("hostile"), bars_frame(tickers=("AAA", ticker))
    with pytest.raises(DataError, match="expected no ticker that is not printable") as caught:
        load(bars)
    assert str(caught.value).isprintable()
    bars.to_parquet(folder / "bars.parquet")
    summary = prepare(folder / "bars.parquet", folder / "made.parquet", choices=LENIENT)
    found = pd.read_parquet(folder / "made.parquet")["ticker"].unique().tolist()
    assert {"AAA"} <= set(found) <= {"AAA", ticker.strip()} and all(text.isprintable() for text in found)
    assert all(line.isprintable() for line in summary.lines())


def test_impossible_days_and_prices_are_dropped_and_said(tmp_path: Path) -> None:
    today = date.today()
    days = [date(1899, 12, 31), today, today + timedelta(1), today + timedelta(3), date(2024, 1, 2)]
    prices = [1.0, 1.0, 1.0, 1.0, 1e-31]
    text = "\n".join(f"{day},{price},{price},{price},{price}" for day, price in zip(days, prices, strict=True))
    text = f"date,open,high,low,close\n{text}"
    summary, bars = run(tmp_path, {"A.csv": text}, choices=Choices(max_bad_row_share=0.99, dates="ymd"))
    assert bars["date"].tolist() == days[1:3]
    assert summary.dropped == {"date before 1900": 1, "date after tomorrow": 1, "price infinite or not positive": 1}
    whole = bars_frame()
    for wrong in (days[0], days[3]):
        whole.assign(date=whole["date"].where(whole.index > 0, pd.Timestamp(wrong))).to_parquet(tmp_path / "b.parquet")
        with refused(f"expected days from 1900 to tomorrow, got .*{wrong}"):
            loaded(tmp_path / "b.parquet")


def test_repairs_and_absurd_moves_are_told(caplog: pytest.LogCaptureFixture) -> None:
    bars = bars_frame(days=400)
    split, rules = DataConfig(context_window_days=20), EnvironmentConfig(trading_days=5, settlement_days=5)
    with caplog.at_level(logging.INFO):
        assert build_market(load(bars), split, rules).repairs == "" and not caplog.messages
        bars.loc[5, "close"] = 0.0
        spoilt = load(bars, TOLERANT)
        assert build_market(spoilt, split, rules).repairs == spoilt.quality.line() == caplog.messages[-1]
        assert "1 masked" in caplog.messages[-1]
        is_volume = bars["ticker"] == "BBB"
        bars.loc[is_volume, PRICES] = np.tile(np.random.default_rng(0).lognormal(10, 1, (is_volume.sum(), 1)), 4)
        load(bars)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "Moves beyond 50%: BBB on " in warnings[0] and "is this a price?" in warnings[0]


def test_data_beyond_free_memory_are_refused_before_they_are_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.memory_guard.free_memory_mb", lambda: 0.006)
    loader = StockDataLoader.from_frame(bars_frame())
    with refused("data to fit into 0 MiB of free memory, got 60 days x 3 tickers x 36 bytes = 0 MiB; reduce days"):
        loader.load_and_prepare()
    assert not hasattr(loader, "data_array")
