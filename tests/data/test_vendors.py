"""One true market written in the form of every vendor; prepared, it is the same each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data.raw.prepare import PrepareSummary, prepare
from data.raw.text import resolve_days
from utils.errors import DataError

TICKERS = ("AAPL", "BRK-B", "LOW", "T")
FIELDS = ("open", "high", "low", "close", "volume")
Writer = Callable[[pd.DataFrame, Path], Path]


def truth(seed: int = 0, days: int = 30, *, closes_only: bool = False) -> pd.DataFrame:
    """Bars of four tickers, of which two miss some sessions: date, ticker, open, high, low, close, volume."""
    rng = np.random.default_rng(seed)
    dates = np.busday_offset("2020-10-05", np.arange(days))  # the clocks change within
    parts = []
    for number, ticker in enumerate(TICKERS):
        close = np.round(50 * np.exp(np.cumsum(0.02 * rng.standard_normal(days))), 2)
        opened = np.round(close * np.exp(0.01 * rng.standard_normal(days)), 2)
        prices = (opened, np.maximum(opened, close) + 0.5, np.minimum(opened, close) - 0.5, close)
        prices = (close,) * 4 if closes_only else prices
        volume = rng.integers(1000, 9000, days).astype(float)
        bars = pd.DataFrame({"date": dates, "ticker": ticker, **dict(zip(FIELDS, (*prices, volume), strict=True))})
        parts.append(bars[rng.random(days) < 0.8] if number >= 2 else bars)
    frame = pd.concat(parts, ignore_index=True)
    return frame.assign(volume=np.nan) if closes_only else frame


def titled(bars: pd.DataFrame) -> pd.DataFrame:
    return bars.rename(columns=str.capitalize)


def folder_of_csv(bars: pd.DataFrame, path: Path, **columns: object) -> Path:
    path.mkdir()
    for ticker, own in bars.groupby("ticker"):
        titled(own.drop(columns="ticker")).assign(**columns).to_csv(path / f"{ticker}.csv", index=False)
    return path


def long_csv(bars: pd.DataFrame, path: Path) -> Path:
    bars.to_csv(path, index=False)
    return path


def long_parquet(bars: pd.DataFrame, path: Path) -> Path:
    bars.assign(date=pd.to_datetime(bars["date"])).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def indexed_parquet(bars: pd.DataFrame, path: Path) -> Path:
    """Index of date and ticker, as a stacked download has; dates as text, tickers as a category, no suffix."""
    bars.astype({"date": str, "ticker": "category"}).set_index(["date", "ticker"]).to_parquet(path)
    return path


def folder_of_parquet(bars: pd.DataFrame, path: Path) -> Path:
    path.mkdir()
    for ticker, own in bars.groupby("ticker"):
        titled(own.drop(columns="ticker")).set_index("Date").to_parquet(path / f"{ticker}.parquet")
    return path


def yfinance_single(bars: pd.DataFrame, path: Path) -> Path:
    """`Ticker.history(auto_adjust=False)`: half of each price is Adj Close."""
    half = {"Adj Close": lambda own: own["Close"], "Dividends": 0.0, "Stock Splits": 0.0}
    path.mkdir()
    for ticker, own in bars.groupby("ticker"):
        doubled = own.assign(**{name: own[name] * 2 for name in FIELDS[:4]}, volume=own["volume"] / 2)
        frame = titled(doubled.drop(columns="ticker")).assign(**half).assign(**{"Adj Close": own["close"]})
        frame["Date"] = frame["Date"].dt.tz_localize("America/New_York").astype(str)
        frame.to_csv(path / f"{ticker}.csv", index=False)
    return path


def panel(bars: pd.DataFrame, *, by_ticker: bool = False, index: str | None = "Date") -> pd.DataFrame:
    wide = titled(bars).pivot(index="Date", columns="Ticker")
    wide.columns.names = ["Price", "Ticker"]
    wide.index.name = index
    return wide.swaplevel(axis=1).sort_index(axis=1) if by_ticker else wide


def yfinance_three_rows(bars: pd.DataFrame, path: Path) -> Path:
    panel(bars).to_csv(path)
    assert path.read_text().splitlines()[2] == "Date" + "," * 20
    return path


def yfinance_two_rows(bars: pd.DataFrame, path: Path) -> Path:
    panel(bars, index=None).to_csv(path)
    return path


def yfinance_by_ticker(bars: pd.DataFrame, path: Path) -> Path:
    panel(bars, by_ticker=True).to_csv(path)
    return path


def yfinance_old(bars: pd.DataFrame, path: Path) -> Path:
    """Header rows without names."""
    frame = panel(bars)
    frame.columns.names = [None, None]
    frame.to_csv(path)
    return path


def yfinance_parquet(bars: pd.DataFrame, path: Path) -> Path:
    frame = panel(bars)
    frame.index = frame.index.tz_localize("America/New_York")
    frame.to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def yfinance_parquet_reset(bars: pd.DataFrame, path: Path) -> Path:
    panel(bars, by_ticker=False).reset_index().to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def stooq_bulk(bars: pd.DataFrame, path: Path) -> Path:
    path.mkdir()
    for ticker, own in bars.groupby("ticker"):
        lines = ["<TICKER>,<PER>,<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>,<OPENINT>"]
        for row in own.itertuples(index=False):
            values = ",".join(str(getattr(row, name)) for name in FIELDS)
            lines.append(f"{ticker}.US,D,{row.date:%Y%m%d},000000,{values},0")
        (path / f"{str(ticker).lower()}.us.txt").write_text("\n".join(lines) + "\n")
    return path


def stooq_plain(bars: pd.DataFrame, path: Path) -> Path:
    path.mkdir()
    for ticker, own in bars.groupby("ticker"):
        titled(own.drop(columns="ticker")).to_csv(path / f"{str(ticker).lower()}_us_d.csv", index=False)
    return path


def new_york(bars: pd.DataFrame) -> pd.Series:
    """Midnight in New York as an instant: 4 or 5 o'clock in UTC."""
    return pd.to_datetime(bars["date"]).dt.tz_localize("America/New_York").dt.tz_convert("UTC")


def alpaca(bars: pd.DataFrame, path: Path) -> Path:
    frame = bars.rename(columns={"ticker": "symbol"}).assign(timestamp=new_york(bars), trade_count=7, vwap=1.5)
    columns = ["symbol", "timestamp", *FIELDS, "trade_count", "vwap"]
    frame[columns].to_csv(path, index=False)
    return path


def alpaca_parquet(bars: pd.DataFrame, path: Path) -> Path:
    frame = bars.rename(columns={"ticker": "symbol"}).assign(timestamp=new_york(bars)).drop(columns="date")
    frame.set_index(["symbol", "timestamp"]).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def alpaca_short(bars: pd.DataFrame, path: Path) -> Path:
    path.mkdir()
    stamps = new_york(bars).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    for ticker, own in bars.assign(date=stamps).groupby("ticker"):
        short = own.drop(columns="ticker").rename(columns={"date": "t", **{name: name[0] for name in FIELDS}})
        short.assign(n=3, vw=1.5).to_csv(path / f"{ticker}.csv", index=False)
    return path


def unix_tokyo(bars: pd.DataFrame, path: Path) -> Path:
    """Midnight in Tokyo as Unix time: 15 o'clock in UTC on the day before."""
    seconds = (
        pd.to_datetime(bars["date"]).dt.tz_localize("Asia/Tokyo").dt.tz_convert("UTC").dt.as_unit("s").astype("int64")
    )
    bars.assign(date=seconds).rename(columns={"date": "time"}).to_csv(path, index=False)
    return path


def utc_berlin(bars: pd.DataFrame, path: Path) -> Path:
    stamps = pd.to_datetime(bars["date"]).dt.tz_localize("Europe/Berlin").dt.tz_convert("UTC")
    bars.assign(date=stamps).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def read_back(source: Path, folder: Path) -> tuple[PrepareSummary, pd.DataFrame]:
    summary = prepare(source, folder / "out" / "bars.parquet")
    return summary, pd.read_parquet(folder / "out" / "bars.parquet").astype({"ticker": str})


def assert_equal(made: pd.DataFrame, bars: pd.DataFrame) -> None:
    expected = bars.assign(date=bars["date"].dt.date)[["date", "ticker", *FIELDS]]
    pd.testing.assert_frame_equal(made, expected, check_dtype=False, check_exact=True)


WRITERS = [
    folder_of_csv, long_csv, long_parquet, indexed_parquet, folder_of_parquet, yfinance_single, yfinance_three_rows,
    yfinance_two_rows, yfinance_by_ticker, yfinance_old, yfinance_parquet, yfinance_parquet_reset, stooq_bulk,
    stooq_plain, alpaca, alpaca_parquet, alpaca_short, unix_tokyo, utc_berlin,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_every_form_gives_the_same_parquet(write: Writer, tmp_path: Path) -> None:
    bars = truth()
    summary, made = read_back(write(bars, tmp_path / "source"), tmp_path)
    assert_equal(made, bars)
    assert (summary.dropped.total(), summary.skipped, summary.closes_only) == (0, [], [])


def wide_csv(bars: pd.DataFrame, path: Path) -> Path:
    bars.pivot(index="date", columns="ticker", values="close").to_csv(path)
    return path


def wide_csv_german(bars: pd.DataFrame, path: Path) -> Path:
    wide = bars.assign(date=bars["date"].dt.strftime("%d.%m.%Y")).pivot(index="date", columns="ticker", values="close")
    wide.rename_axis(None).to_csv(path, sep=";", decimal=",", na_rep="NaN")
    return path


def wide_parquet(bars: pd.DataFrame, path: Path) -> Path:
    bars.pivot(index="date", columns="ticker", values="close").to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def wide_parquet_unnamed(bars: pd.DataFrame, path: Path) -> Path:
    wide = bars.pivot(index="date", columns="ticker", values="close")
    wide.rename_axis(None).rename_axis(None, axis=1).to_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def yfinance_closes(bars: pd.DataFrame, path: Path) -> Path:
    panel(bars)[["Close"]].to_csv(path)
    return path


@pytest.mark.parametrize(
    "write", [wide_csv, wide_csv_german, wide_parquet, wide_parquet_unnamed, yfinance_closes], ids=lambda w: w.__name__
)
def test_closes_side_by_side(write: Writer, tmp_path: Path) -> None:
    bars = truth(closes_only=True)
    summary, made = read_back(write(bars, tmp_path / "source"), tmp_path)
    assert_equal(made, bars)
    assert len(summary.closes_only) == 1
    assert any("orders fill at closes" in line for line in summary.lines())


def test_tickers_that_are_called_like_columns(tmp_path: Path) -> None:
    (tmp_path / "wide.csv").write_text("Date,LOW,OPEN,T,C\n2020-01-02,1,2,3,4\n2020-01-03,5,,7,eight\n")
    summary, made = read_back(tmp_path / "wide.csv", tmp_path)
    assert list(zip(made["ticker"], made["close"], strict=True)) == [
        ("C", 4.0), ("LOW", 1.0), ("LOW", 5.0), ("OPEN", 2.0), ("T", 3.0), ("T", 7.0)
    ]  # fmt: skip
    assert summary.dropped == {"price missing or not a number": 1}


def test_a_folder_of_all_kinds(tmp_path: Path) -> None:
    """An index of Stooq, stocks of its own and other vendors' files, and a file that is none, in one folder."""
    bars = truth()
    folder = tmp_path / "source"
    folder.mkdir()
    own = {ticker: rows for ticker, rows in bars.groupby("ticker")}
    titled(own["AAPL"].drop(columns="ticker")).to_csv(folder / "aapl_us_d.csv", index=False)
    titled(own["LOW"].drop(columns="ticker")).to_csv(folder / "^spx_d.csv", index=False)
    own["BRK-B"].to_parquet(folder / "one.parquet")
    panel(own["T"]).to_csv(folder / "download.csv")
    (folder / "notes.txt").write_text("nothing here")
    summary, made = read_back(folder, tmp_path)
    expected = bars.assign(ticker=bars["ticker"].replace("LOW", "^SPX")).sort_values(["ticker", "date"])
    assert_equal(made, expected.reset_index(drop=True))
    assert [name for name, _ in summary.skipped] == ["notes.txt"]
    assert summary.notes == ["^SPX looks like an index: --benchmark '^SPX' takes it out of the tickers"]


def test_stamps_of_the_close_in_new_york_keep_their_date() -> None:
    days = pd.bdate_range("2020-10-05", periods=20)
    closes = (days + pd.Timedelta(hours=16)).tz_localize("America/New_York").tz_convert("UTC")
    found, _ = resolve_days([stamp.isoformat() for stamp in closes])
    assert (found.astype("datetime64[D]") == days.to_numpy()).all()


def test_an_index_goes_into_its_own_file(tmp_path: Path) -> None:
    bars = truth()
    source = long_csv(bars.replace({"ticker": {"T": "^SPX"}}), tmp_path / "all.csv")
    target = tmp_path / "out" / "bars.parquet"
    summary = prepare(source, target, "^SPX")
    assert summary.benchmark == tmp_path / "out" / "bars.benchmark.csv"
    found = pd.read_csv(summary.benchmark)
    own = bars[bars["ticker"] == "T"]
    assert (
        found["date"].tolist() == own["date"].astype(str).tolist() and found["close"].tolist() == own["close"].tolist()
    )
    assert sorted(pd.read_parquet(target)["ticker"].unique()) == ["AAPL", "BRK-B", "LOW"]
    assert summary.tickers == 3
    with pytest.raises(DataError, match="got none"):  # what was written is no source
        prepare(target.parent, target)


INTRADAY = "symbol,timestamp,open,high,low,close\n" + "".join(
    f"A,2020-01-02 10:{m}:00,1,1,1,1\n" for m in range(10, 40)
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("PAR1 and no more", "no readable parquet"),
        ({"date": ["2020-01-02"], "city": ["Bonn"]}, "no columns of prices"),
        ({"open": [1.0], "close": [1.0]}, "column of dates"),
        ({"date": ["2020-01-02"], "close": [1.0], "ticker": ["A"]}, "no column for open, high, low"),
        ("Price,Close,Open\nTicker,A,A\n2020-01-02,1,1\n", "expected open, high, low and close of A"),
        (INTRADAY, "many rows for one date: expected daily bars"),
    ],
)
def test_bad_files_are_refused_in_one_line(content: str | dict[str, list[object]], words: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    if isinstance(content, str):
        source.write_text(content)
    else:
        pd.DataFrame(content).to_parquet(source)
    with pytest.raises(DataError, match=words) as caught:
        prepare(source, tmp_path / "out" / "bars.parquet", None)
    assert "\n" not in str(caught.value) and "expected" in str(caught.value)
    assert not (tmp_path / "out").exists()
