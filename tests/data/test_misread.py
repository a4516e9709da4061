"""Files that are easily misread: other languages, disguised columns, hostile tickers, impossible days and moves."""

import logging
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.loader import StockDataLoader
from data.market import build_market
from data.raw.prepare import prepare
from tests.data.files import LENIENT, refused, run, written
from tests.data.test_loader import TOLERANT, bars_frame, load
from utils.config.prepare import Choices
from utils.config.trader import DataConfig, EnvironmentConfig
from utils.errors import DataError


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("Datum;Erster;Hoch;Tief;Schlusskurs;Stuecke", "utf-8"),
        ("Datum;Eröffnung;Höchst;Tiefst;Schlußkurs;Stück", "cp1252"),
        ("Datum;Eröffn.;Hoch;Tief;Zuletzt;Vol.", "utf-8"),
        ("Date;Ouv.;Plus Haut;Plus Bas;Dernier;Vol.", "utf-8"),
        ("Fecha;Apertura;Máximo;Mínimo;Último;Vol.", "cp1252"),
        ("Data;Abertura;Máxima;Mínima;Fechamento;Volume", "utf-8"),
        ("Data;Apertura;Massimo;Minimo;Chiusura;Volume", "utf-8"),
        ("Дата;Откр.;Макс.;Мин.;Цена;Объём", "utf-8"),
        ("日期;开盘;最高;最低;收盘;成交量", "utf-16"),
        ("日付け;始値;高値;安値;終値;出来高", "utf-8"),
        ("तारीख;खुला;उच्च;निम्न;बंद;वॉल्यूम", "utf-8"),
        ("التاريخ;الفتح;الأعلى;الأدنى;الإغلاق;الحجم", "utf-8"),
        ("তারিখ;খোলা;সর্বোচ্চ;সর্বনিম্ন;বন্ধ;ভলিউম", "utf-8"),
        ("Tanggal;Pembukaan;Tertinggi;Terendah;Terakhir;Vol.", "utf-8"),
    ],
)
def test_bars_of_one_ticker_in_many_languages(header: str, encoding: str, tmp_path: Path) -> None:
    rows = "\n2024-01-02;10,5;12;9;11;1000\n2024-01-03;11;13;10;12,25;2000\n"
    summary, bars = run(tmp_path, {"SAP.csv": (header + rows).encode(encoding)})
    assert bars["ticker"].tolist() == ["SAP", "SAP"] and summary.closes_only == 0
    values = bars[["open", "high", "low", "close", "volume"]].to_numpy().tolist()
    assert values == [[10.5, 12, 9, 11, 1000], [11, 13, 10, 12.25, 2000]]


@pytest.mark.parametrize(
    ("name", "ticker"),
    [
        ("AAPL (1)", "AAPL"), ("TSLA Historical Data", "TSLA"), ("HistoricalData_GOOG", "GOOG"),
        ("daily_adjusted_IBM", "IBM"), ("TSLA Historical Data (2)", "TSLA"), ("msft_us_d (1)", "MSFT"),
        ("BRK-B", "BRK-B"), ("daily_", "daily_"),
    ],
)  # fmt: skip
def test_what_downloads_add_to_a_name_is_no_part_of_the_ticker(name: str, ticker: str, tmp_path: Path) -> None:
    text = '"Date","Price","Open","High","Low","Vol.","Change %"\n"01/16/2024","12","11","13","10","1.5M","0.1%"\n'
    _, bars = run(tmp_path, {f"{name}.csv": text})
    assert (bars["ticker"].tolist(), bars["volume"].tolist()) == ([ticker], [1.5e6])


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
    folder, frame = tmp_path_factory.mktemp("hostile"), bars_frame(tickers=("AAA", ticker))
    with pytest.raises(DataError, match="expected no ticker that is not printable") as caught:
        load(frame)
    assert str(caught.value).isprintable()
    frame.to_parquet(folder / "bars.parquet")
    summary = prepare(folder / "bars.parquet", folder / "made.parquet", choices=LENIENT)
    found = pd.read_parquet(folder / "made.parquet")["ticker"].unique().tolist()
    assert {"AAA"} <= set(found) <= {"AAA", ticker.strip()} and all(text.isprintable() for text in found)
    assert all(line.isprintable() for line in summary.lines())


def test_impossible_days_and_prices_are_dropped_and_said(tmp_path: Path) -> None:
    today = date.today()
    days = [date(1899, 12, 31), today, today + timedelta(1), today + timedelta(3), date(2024, 1, 2)]
    prices = [1.0, 1.0, 1.0, 1.0, 1e-31]
    text = "\n".join(f"{day},{price},{price},{price},{price}" for day, price in zip(days, prices, strict=True))
    summary, bars = run(tmp_path, {"A.csv": text}, choices=Choices(max_bad_row_share=0.99, dates="ymd"))
    assert bars["date"].tolist() == days[1:3]
    assert summary.dropped == {"date before 1900": 1, "date after tomorrow": 1, "price infinite or not positive": 1}
    frame = bars_frame()
    for wrong in (days[0], days[3]):
        frame.assign(date=frame["date"].where(frame.index > 0, pd.Timestamp(wrong))).to_parquet(tmp_path / "b.parquet")
        with refused(f"expected days from 1900 to tomorrow, got .*{wrong}"):
            StockDataLoader(tmp_path / "b.parquet").load_and_prepare()


def test_repairs_and_absurd_moves_are_told(caplog: pytest.LogCaptureFixture) -> None:
    frame = bars_frame(days=400)
    split, rules = DataConfig(context_window_days=20), EnvironmentConfig(trading_days=5, settlement_days=5)
    prices = ["open", "high", "low", "close"]
    with caplog.at_level(logging.INFO):
        assert build_market(load(frame), split, rules).repairs == "" and not caplog.messages
        frame.loc[5, "close"] = 0.0
        spoilt = load(frame, TOLERANT)
        assert build_market(spoilt, split, rules).repairs == spoilt.quality.line() == caplog.messages[-1]
        assert "1 masked" in caplog.messages[-1]
        volume = np.random.default_rng(0).lognormal(10, 1, (len(frame), 1))
        frame[prices] = frame[prices].where(frame["ticker"] != "BBB", volume * np.ones((1, 4)))
        load(frame)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "Moves beyond 50%: BBB on " in warnings[0] and "is this a price?" in warnings[0]


def test_data_beyond_free_memory_are_refused_before_they_are_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("data.bars.free_memory_mb", lambda: 0.006)
    loader = StockDataLoader.from_frame(bars_frame())
    with refused("fit into 0 MiB of free memory, got 60 days x 3 tickers x 36 bytes = 0 MiB"):
        loader.load_and_prepare()
    assert loader.data_array.size == 0
