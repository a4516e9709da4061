"""The loader: what it accepts, repairs, masks, counts and refuses."""

import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import bars
from data.features import nine as f
from data.loader import StockDataLoader
from tests.data.files import PRICES, refused, written
from tests.data.test_features import compute_features
from utils.config.trader import DataConfig

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "us_daily_1999_2014.parquet"
TOLERANT = DataConfig(max_bad_row_share=0.9)


def bars_frame(days: int = 60, tickers: tuple[str, ...] = ("AAA", "BBB", "CCC"), seed: int = 0) -> pd.DataFrame:
    """Long frame of random walks; every tenth bar of all tickers but the first is missing."""
    rng = np.random.default_rng(seed)
    dates = pd.bdate_range("2010-01-04", periods=days)
    parts = []
    for place, ticker in enumerate(tickers):
        close = 20.0 * (place + 1) * np.exp(np.cumsum(0.02 * rng.standard_normal(days)))
        open_ = close * np.exp(0.01 * rng.standard_normal(days))
        high, low = np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99
        part = pd.DataFrame(
            {"date": dates, "ticker": ticker, "open": open_, "high": high, "low": low, "close": close, "volume": 1e6}
        )
        parts.append(part[(np.arange(days) % 10 != place) | (place == 0)])
    return pd.concat(parts, ignore_index=True)


def load(frame: pd.DataFrame, config: DataConfig = TOLERANT) -> StockDataLoader:
    loader = StockDataLoader.from_frame(frame, config=config)
    loader.load_and_prepare()
    return loader


def load_table(table: pa.Table, folder: Path) -> StockDataLoader:
    pq.write_table(table, folder / "bars.parquet")
    loader = StockDataLoader(folder / "bars.parquet")
    loader.load_and_prepare()
    return loader


def arrow(frame: pd.DataFrame, **columns: pa.Array) -> pa.Table:
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


FRAME = bars_frame(tickers=("CCC", "AAA", "BBB")).round(dict.fromkeys(PRICES, 0))
DAYS, TICKERS = FRAME["date"], FRAME["ticker"].tolist()
DATES = [
    pa.array(DAYS.dt.date.tolist(), pa.date32()),
    pa.array(DAYS.dt.date.tolist(), pa.date64()),
    pa.array(DAYS, pa.timestamp("ns")),
    pa.array(DAYS, pa.timestamp("us")),
    pa.array(DAYS + pd.Timedelta(hours=16), pa.timestamp("ms")),
    pa.array(DAYS.dt.tz_localize("America/New_York"), pa.timestamp("ns", "America/New_York")),
    pa.array(DAYS.dt.tz_localize("Asia/Tokyo"), pa.timestamp("us", "Asia/Tokyo")),
    pa.array(DAYS.dt.strftime("%Y-%m-%d").tolist(), pa.string()),
    pa.array(DAYS.dt.strftime("%Y-%m-%dT09:30:00").tolist(), pa.large_string()),
    pa.array(DAYS.dt.strftime("%Y-%m-%d 00:00:00+02:00").tolist()).dictionary_encode(),
]
TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
NUMBERS = [pa.float32(), pa.float64(), pa.int64(), pa.decimal128(20, 6)]


@pytest.mark.parametrize(
    "columns",
    [
        *({"date": dates} for dates in DATES),
        *({"ticker": pa.array(TICKERS).cast(kind)} for kind in TEXTS),
        *({name: pa.array(FRAME[name].tolist()).cast(kind) for name in PRICES} for kind in NUMBERS),
    ],
    ids=lambda columns: ", ".join(f"{name} {column.type}" for name, column in columns.items()),
)
def test_every_form_of_a_column_gives_the_same_arrays(columns: dict[str, pa.Array], tmp_path: Path) -> None:
    loader, expected = load_table(arrow(FRAME, **columns), tmp_path), load(FRAME)
    np.testing.assert_array_equal(loader.dates, expected.dates)
    assert loader.data_array.tobytes() == expected.data_array.tobytes()


def test_volume_is_read_where_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """What is missing, infinite or negative is not known; 0 is."""
    frame = bars_frame().sort_values(["ticker", "date"], ignore_index=True)
    frame["volume"] = np.arange(len(frame), dtype=float)
    frame.loc[[1, 2, 3, 4], "volume"] = [np.nan, np.inf, -1.0, -np.inf]
    frame.loc[5, "close"] = np.nan
    loader = StockDataLoader.from_frame(frame, config=TOLERANT, investable_tickers=["AAA", "BBB"], requires_volume=True)
    loader.load_and_prepare()
    expected = frame.pivot(index="date", columns="ticker", values="volume").to_numpy(np.float32).copy()
    expected[1:6, 0] = np.nan
    assert loader.volume is not None and loader.volume.dtype == np.float32
    np.testing.assert_array_equal(loader.volume, expected)
    rows = int(np.isfinite(loader.data_array[:, :2, f.CLOSE]).sum())
    assert f"volume that is missing, infinite or negative in 4 of {rows} investable rows" in caplog.text
    assert load(frame.assign(volume="many")).volume is None, "it was not asked for"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda frame: frame.drop(columns="volume"), r"one column 'volume' in frame.*--env\.volume-cap$"),
        (lambda frame: frame.rename(columns={"volume": "Volume"}), r"the nearest is 'Volume'"),
        (lambda frame: frame.assign(volume="many"), r"numbers in column 'volume'"),
        (lambda frame: frame.assign(volume=-1), r"expected volume for --env\.volume-cap, got .* 114 of 114"),
    ],
)
def test_volume_that_is_not_there_is_one_clear_error(change: Callable[[pd.DataFrame], pd.DataFrame], says: str) -> None:
    frame = change(bars_frame())
    loader = StockDataLoader.from_frame(frame, config=TOLERANT, investable_tickers=["AAA", "BBB"], requires_volume=True)
    with refused(says):
        loader.load_and_prepare()


def messy_frame(rng: np.random.Generator) -> pd.DataFrame:
    """Bars in any order, with gaps, and one in ten of them spoilt."""
    frame = bars_frame(days=40).sample(frac=rng.uniform(0.3, 1.0), random_state=int(rng.integers(1000)))
    spoilt = rng.random(len(frame)) < 0.1
    values = rng.choice([np.nan, 0.0, -1.0, np.inf, 1e39, 1e-50, 7.0], (int(spoilt.sum()), 4))
    hit = rng.random(values.shape) < 0.5
    frame.loc[spoilt, PRICES] = np.where(hit, values, frame.loc[spoilt, PRICES])
    frame.loc[rng.random(len(frame)) < 0.05, PRICES] = np.nan
    return frame


@given(seed=st.integers(0, 10_000), part=st.integers(1, 40), group=st.integers(1, 40))
@settings(max_examples=10, deadline=None)
def test_parts_of_a_messy_file_make_what_a_pivot_makes(
    seed: int, part: int, group: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    frame, path = messy_frame(np.random.default_rng(seed)), tmp_path_factory.mktemp("messy") / "bars.parquet"
    pq.write_table(arrow(frame), path, row_group_size=group)
    loader = StockDataLoader(path, config=TOLERANT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bars, "PART_ROWS", part)
        patch.setattr("data.loader._BLOCK", 2)
        loader.load_and_prepare()

    with np.errstate(over="ignore"):
        single = frame[PRICES].astype(np.float32)
    wrong = single.max(axis=1, skipna=False) > 5 * single.min(axis=1, skipna=False)
    usable = np.isfinite(single).all(axis=1) & (single > 0).all(axis=1) & ~wrong
    clean = frame.assign(
        high=frame[["open", "high", "close"]].max(axis=1), low=frame[["open", "low", "close"]].min(axis=1)
    ).where(usable)
    index = {"index": frame["date"], "columns": frame["ticker"]}
    assert loader.tickers == ["AAA", "BBB", "CCC"] and loader.investable_columns.tolist() == [0, 1, 2]
    assert loader.dates.dtype == np.dtype("datetime64[D]") and loader.data_array.dtype == np.float32
    np.testing.assert_array_equal(loader.dates, np.unique(frame["date"]).astype("datetime64[D]"))
    for place, name in enumerate(f.FEATURES[:4]):
        wide = pd.crosstab(**index, values=clean[name], aggfunc="first", dropna=False).to_numpy()
        np.testing.assert_array_equal(loader.data_array[:, :, place], wide.astype(np.float32))
    for column, ticker in enumerate(loader.tickers):
        own = clean[(frame["ticker"] == ticker) & usable].sort_values("date")
        features = compute_features(*(own[name].to_numpy() for name in PRICES)).astype(np.float32)
        traded = np.isfinite(loader.data_array[:, column, f.CLOSE])
        np.testing.assert_array_equal(loader.data_array[traded, column], features)
    empty = frame[PRICES].isna().all(axis=1)
    changed = (clean[["high", "low"]] != frame[["high", "low"]]).any(axis=1) & usable
    found = loader.quality
    assert (found.rows, found.masked, found.empty) == (len(frame), int((~usable & ~empty).sum()), int(empty.sum()))
    assert found.widened == int(changed.sum())


def test_too_many_bad_prices_are_refused_at_the_stated_share() -> None:
    frame = bars_frame(days=100, tickers=("AAA",))
    frame.loc[:9, "close"] = 0.0
    assert load(frame, DataConfig(max_bad_row_share=0.10)).quality.masked == 10
    with refused(r"all but 9\.00% of the rows, got 10 bad rows and 0 empty ones of 100"):
        load(frame, DataConfig(max_bad_row_share=0.09))


BAD_FRAMES: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "missing": (lambda frame: frame.drop(columns="low"), r"'low' in \w+(.parquet)?, got date, ticker"),
    "renamed": (lambda frame: frame.rename(columns={"close": "Closed"}), "nearest is 'Closed'"),
    "unlike": (lambda frame: frame.rename(columns={"ticker": "security"}), "'ticker'.*got date, security, open"),
    "string prices": (lambda frame: frame.assign(low=frame["low"].astype(str)), "numbers in column 'low'"),
    "boolean prices": (lambda frame: frame.assign(open=True), "numbers in column 'open'.*bool"),
    "numeric dates": (lambda frame: frame.assign(date=20100104), "dates.*in column 'date'.*int64"),
    "local dates": (lambda frame: frame.assign(date=frame["date"].dt.strftime("%d/%m/%Y")), "2014-11-10, got .*/2010'"),
    "impossible date": (lambda frame: frame.assign(date="2014-02-30"), "got .*'2014-02-30'"),
    "numeric tickers": (lambda frame: frame.assign(ticker=7), "strings in column 'ticker'"),
    "null ticker": (lambda frame: frame.assign(ticker=frame["ticker"].where(frame.index != 4)), "rows without one"),
    "empty ticker": (lambda frame: frame.assign(ticker=frame["ticker"].replace("BBB", "")), "rows without one"),
    "null date": (lambda frame: frame.assign(date=frame["date"].where(frame.index != 4)), "rows without one"),
    "no rows": (lambda frame: frame[:0], "got no rows"),
    "duplicates": (lambda frame: pd.concat([frame, frame[5:7]]), "2 duplicate rows"),
    "all prices missing": (lambda frame: frame.assign(open=np.nan), "finite, positive prices"),
    "no prices at all": (lambda frame: frame.assign(**dict.fromkeys(PRICES, np.nan)), "168 empty ones of 168"),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
@pytest.mark.parametrize("as_file", [False, True], ids=["frame", "file"])
def test_bad_data_is_one_clear_line(name: str, as_file: bool, tmp_path: Path) -> None:
    change, expected = BAD_FRAMES[name]
    frame = change(bars_frame())
    with refused(expected):
        if as_file:
            load_table(arrow(frame), tmp_path)
        else:
            load(frame, DataConfig())


def test_a_frame_with_mixed_types_is_one_clear_line() -> None:
    with refused(r"columns of one type each.*open"):
        load(FRAME.assign(open=pd.Series([1.5, "x"] * (len(FRAME) // 2), dtype=object)))


def test_files_that_are_no_parquet_are_refused(tmp_path: Path) -> None:
    bars_frame().to_parquet(tmp_path / "bars.parquet")
    whole = (tmp_path / "bars.parquet").read_bytes()
    contents = (b"date,ticker,open,high,low,close\n", whole[:-40], b"", whole.replace(b"close", b"\x80lose"))
    paths = [written(tmp_path / str(place), content) for place, content in enumerate(contents)]
    for path in (tmp_path / "none.parquet", tmp_path, *paths):
        with refused("expected a readable parquet file"):
            StockDataLoader(path).load_and_prepare()


def test_investable_file_names_columns(tmp_path: Path) -> None:
    path = tmp_path / "bars.parquet"
    pq.write_table(arrow(bars_frame()), path)
    listed = written(tmp_path / "investable.txt", "\ufeffCCC\n\n# a remark\nAAA  # another\r\nCCC\n")
    loader = StockDataLoader(path, investable=listed)
    loader.load_and_prepare()
    np.testing.assert_array_equal(loader.investable_columns, [0, 2])
    assert loader.investable_columns.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        (b"# nothing\n\n", "in .*investable.txt, got none"),
        (b"AAA\nBB\n", "got 'BB'; the nearest is 'BBB'"),
        (b"# Notes\n\nBuy low, sell high.\n", "got 'Buy low, sell high.'"),
        (b"\xff\xfe\x00\x80", "text file of tickers"),
    ],
)
def test_bad_investable_file_is_one_clear_line(content: bytes | None, expected: str, tmp_path: Path) -> None:
    path, listed = tmp_path / "bars.parquet", tmp_path / "investable.txt"
    pq.write_table(arrow(bars_frame()), path)
    if content is not None:
        listed.write_bytes(content)
    with refused(expected):
        StockDataLoader(path, investable=listed).load_and_prepare()


MEASURE = """
import logging
from pathlib import Path
from data.loader import StockDataLoader
from utils.memory.guard import peak_rss_mb
logging.basicConfig(level=logging.DEBUG)
loader = StockDataLoader({path!r}, investable=Path({listed!r}))
loader.load_and_prepare()
stats = loader.compute_normalization_stats()
print(loader.data_array.shape, loader.data_array.dtype, len(loader.investable_columns), loader.quality)
print(peak_rss_mb())
"""


@pytest.mark.skipif(not REAL.exists(), reason="the real data file is not beside the project")
def test_real_data_loads_within_its_memory() -> None:
    code = MEASURE.format(path=str(REAL), listed=str(REAL.with_name("investable_108.txt")))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    found, peak_mb = done.stdout.splitlines()
    assert found.startswith("(3781, 669, 9) float32 108 DataQuality(rows=2053548, masked=52, empty=0, widened=0, ")
    assert float(peak_mb) < 1.5e9 / 2**20
    assert "Loaded: 3781 days, 669 stocks, 9 features" in done.stderr


def test_dates_before_1970_are_dates(tmp_path: Path) -> None:
    frame = bars_frame()
    dates = [datetime.date(1960, 1, 1) + (day - datetime.date(2010, 1, 4)) for day in frame["date"].dt.date]
    loader = load_table(arrow(frame, date=pa.array(dates)), tmp_path)
    assert str(loader.dates[0]) == "1960-01-01"
