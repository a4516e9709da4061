"""One true market written in the form of every vendor; prepared, it is the same each time."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.data.files import prepared, run
from utils.config.prepare import Choices

TICKERS = ("AAPL", "BRK-B", "LOW", "T")
FIELDS = ("open", "high", "low", "close", "volume")
Writer = Callable[[pd.DataFrame, Path], None]


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


def folder_of(bars: pd.DataFrame, path: Path, name: str = "{}.csv") -> None:
    path.mkdir()
    for ticker, own in bars.groupby("Ticker"):
        own, file = own.drop(columns="Ticker"), path / name.format(ticker)
        own.set_index("Date").to_parquet(file) if file.suffix == ".parquet" else own.to_csv(file, index=False)


def with_adjusted_close(bars: pd.DataFrame) -> pd.DataFrame:
    """`Ticker.history(auto_adjust=False)` of yfinance: half of each price is Adj Close."""
    doubled = bars.assign(**{name: bars[name] * 2 for name in FIELDS[:4]}, volume=bars["volume"] / 2)
    extra = {"Adj Close": bars["close"], "Dividends": 0.0, "Stock Splits": 0.0}
    dates = doubled["date"].dt.tz_localize("America/New_York").astype(str)
    return titled(doubled.assign(date=dates)).assign(**extra)


def panel(bars: pd.DataFrame, *, by_ticker: bool = False) -> pd.DataFrame:
    wide = titled(bars).pivot(index="Date", columns="Ticker")
    wide.columns.names = "Price", "Ticker"
    return wide.swaplevel(axis=1).sort_index(axis=1) if by_ticker else wide


def stooq(bars: pd.DataFrame) -> pd.DataFrame:
    columns = ["<TICKER>", "<PER>", "<DATE>", "<TIME>", "<OPEN>", "<HIGH>", "<LOW>", "<CLOSE>", "<VOL>", "<OPENINT>"]
    lead = {"ticker": bars["ticker"] + ".US", "per": "D", "date": bars["date"].dt.strftime("%Y%m%d"), "time": "000000"}
    return pd.DataFrame({**lead, **bars[list(FIELDS)], "openint": 0}).set_axis(columns, axis=1)


def alpaca(bars: pd.DataFrame) -> pd.DataFrame:
    midnight = pd.to_datetime(bars["date"]).dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    frame = bars.assign(symbol=bars["ticker"], timestamp=midnight)
    return frame[["symbol", "timestamp", *FIELDS]].assign(trade_count=7, vwap=1.5)


def assert_equal(made: pd.DataFrame, bars: pd.DataFrame) -> None:
    expected = bars.assign(date=bars["date"].dt.date)[["date", "ticker", *FIELDS]]
    pd.testing.assert_frame_equal(made[expected.columns], expected, check_dtype=False, check_exact=True)


FORMS: dict[str, Writer] = {
    "long CSV": lambda bars, path: bars.to_csv(path, index=False),
    "parquet files": lambda bars, path: folder_of(titled(bars), path, "{}.parquet"),
    "yfinance, single": lambda bars, path: folder_of(with_adjusted_close(bars), path),
    "yfinance, three rows": lambda bars, path: panel(bars).to_csv(path),
    "yfinance, by ticker": lambda bars, path: panel(bars, by_ticker=True).to_csv(path),
    "yfinance, parquet": lambda bars, path: panel(bars).tz_localize("America/New_York").to_parquet(path),
    "Stooq": lambda bars, path: stooq(bars).to_csv(path, index=False),
    "Alpaca": lambda bars, path: alpaca(bars).set_index(["symbol", "timestamp"]).to_parquet(path),
}


def wide(bars: pd.DataFrame) -> pd.DataFrame:
    return bars.pivot(index="date", columns="ticker", values="close")


CLOSES: dict[str, Writer] = {
    "German CSV": lambda bars, path: (
        wide(bars).rename_axis(None).to_csv(path, sep=";", decimal=",", na_rep="NaN", date_format="%d.%m.%Y")
    ),
    "parquet without names": lambda bars, path: wide(bars).rename_axis(None).rename_axis(None, axis=1).to_parquet(path),
    "yfinance": lambda bars, path: panel(bars)[["Close"]].to_csv(path),
}


PARQUET = (FORMS["yfinance, parquet"], FORMS["Alpaca"], CLOSES["parquet without names"])


@pytest.mark.parametrize(
    ("write", "closes_only"),
    [*((write, False) for write in FORMS.values()), *((write, True) for write in CLOSES.values())],
    ids=[*FORMS, *(f"closes, {name}" for name in CLOSES)],
)
def test_every_form_gives_the_same_parquet(write: Writer, closes_only: bool, tmp_path: Path) -> None:
    bars = truth(closes_only=closes_only)
    source = tmp_path / ("source.parquet" if write in PARQUET else "source")
    write(bars, source)
    said = Choices(columns=("close=*",) if closes_only else ())
    summary, made = prepared(source, tmp_path / "out" / "bars.parquet", said)
    assert_equal(made, bars)
    assert (summary.dropped.total(), summary.skipped, summary.closes_only) == (0, [], closes_only)
    assert any("orders fill at closes" in line for line in summary.lines()) == closes_only


def test_an_index_among_the_stocks_is_told(tmp_path: Path) -> None:
    bars = "Date,Open,High,Low,Close\n2020-01-02,10,11,9,10\n"
    summary, made = run(tmp_path, {"^spx_d.csv": bars, "aapl_us_d.csv": bars})
    assert made["ticker"].tolist() == ["AAPL", "^SPX"]
    assert summary.notes == ["^SPX looks like an index: --benchmark '^SPX' takes it out of the tickers"]
