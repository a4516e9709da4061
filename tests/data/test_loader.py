"""The loader: what it accepts, repairs, masks, counts and refuses."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features import nine as f
from data.loader import StockDataLoader
from tests.data.files import PRICES, refused, written
from tests.data.test_features import compute_features, random_bars
from utils.config.trader import DataConfig

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "us_daily_1999_2014.parquet"
TOLERANT = DataConfig(max_bad_row_share=0.9)


def bars_frame(days: int = 60, tickers: tuple[str, ...] = ("AAA", "BBB", "CCC")) -> pd.DataFrame:
    """Long frame of random walks; every tenth bar of all tickers but the first is missing."""
    dates = pd.bdate_range("2010-01-04", periods=days)
    parts = []
    for place, ticker in enumerate(tickers):
        part = pd.DataFrame({"date": dates, "ticker": ticker, **random_bars(place, days), "volume": 1e6})
        parts.append(part[(np.arange(days) % 10 != place) | (place == 0)])
    return pd.concat(parts, ignore_index=True)


def load(frame: pd.DataFrame, config: DataConfig = TOLERANT, **wanted: Any) -> StockDataLoader:
    loader = StockDataLoader.from_frame(frame, config=config, **wanted)
    loader.load_and_prepare()
    return loader


def load_file(frame: pd.DataFrame, folder: Path, listed: Path | None = None, **columns: pa.Array) -> StockDataLoader:
    """Load a file of the frame with some columns in another form."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    for name, column in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    pq.write_table(table, folder / "bars.parquet")
    loader = StockDataLoader(folder / "bars.parquet", investable=listed)
    loader.load_and_prepare()
    return loader


FRAME = bars_frame(tickers=("CCC", "AAA", "BBB")).round(dict.fromkeys(PRICES, 0))
FRAME["date"] -= pd.Timedelta(weeks=2095)  # some are before 1970
DAYS, TICKERS = FRAME["date"], FRAME["ticker"].tolist()
DATES = [
    pa.array(DAYS.dt.date.tolist(), pa.date32()),
    pa.array(DAYS.dt.date.tolist(), pa.date64()),
    pa.array(DAYS + pd.Timedelta(hours=16), pa.timestamp("ms")),
    pa.array(DAYS.dt.tz_localize("Asia/Tokyo"), pa.timestamp("us", "Asia/Tokyo")),
    pa.array(DAYS.dt.strftime("%Y-%m-%d").tolist(), pa.string()),
    pa.array(DAYS.dt.strftime("%Y-%m-%dT09:30:00").tolist(), pa.large_string()),
    pa.array(DAYS.dt.strftime("%Y-%m-%d 00:00:00+02:00").tolist()).dictionary_encode(),
]
TEXTS = [pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
NUMBERS = [pa.float32(), pa.int64(), pa.decimal128(20, 6)]


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
    loader, expected = load_file(FRAME, tmp_path, **columns), load(FRAME)
    assert str(loader.dates[0]) == "1969-11-10"
    np.testing.assert_array_equal(loader.dates, expected.dates)
    assert loader.data_array.tobytes() == expected.data_array.tobytes()


def test_further_columns_are_read_or_told(caplog: pytest.LogCaptureFixture) -> None:
    """True and false are 1 and 0; text, and numbers of which none fits, are named."""
    frame = bars_frame()
    is_event = np.arange(len(frame)) % 3 == 0
    loader = load(frame.assign(event=is_event, name="x", huge=1e300, endless=np.inf))
    expected = frame.assign(event=is_event.astype(float)).pivot(index="date", columns="ticker", values="event")
    np.testing.assert_array_equal(loader.columns["event"], expected.to_numpy(np.float32))
    assert "that are no numbers, and are not read: name" in caplog.text
    assert "without a usable number: endless, huge" in caplog.text


def test_volume_is_read_where_it_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    """What is missing, infinite or negative is not known; 0 is."""
    frame = bars_frame().sort_values(["ticker", "date"], ignore_index=True)
    frame["volume"] = np.arange(len(frame), dtype=float)
    frame.loc[[1, 2, 3, 4], "volume"] = [np.nan, np.inf, -1.0, -np.inf]
    frame.loc[5, "close"] = np.nan
    loader = load(frame, investable_tickers=["AAA", "BBB"], requires_volume=True)
    expected = frame.pivot(index="date", columns="ticker", values="volume").to_numpy(np.float32).copy()
    expected[1:6, 0] = np.nan
    assert loader.volume is not None and loader.volume.dtype == np.float32
    np.testing.assert_array_equal(loader.volume, expected)
    rows = int(np.isfinite(loader.data_array[:, :2, f.CLOSE]).sum())
    assert f"volume that is missing, infinite or negative in 4 of {rows} investable rows" in caplog.text
    assert load(frame.assign(volume="many")).volume is None, "it was not asked for"


def test_a_volume_cap_needs_volume() -> None:
    missing = r"one column 'volume' in frame.*--env\.volume-cap$"
    unknown = r"expected volume for --env\.volume-cap, got .* 114 of 114"
    frame = bars_frame()
    for bars, says in ((frame.drop(columns="volume"), missing), (frame.assign(volume=-1), unknown)):
        with refused(says):
            load(bars, investable_tickers=["AAA", "BBB"], requires_volume=True)


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
@settings(max_examples=10)
def test_parts_of_a_messy_file_make_what_a_pivot_makes(
    seed: int, part: int, group: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    frame, path = messy_frame(np.random.default_rng(seed)), tmp_path_factory.mktemp("messy") / "bars.parquet"
    frame.to_parquet(path, index=False, row_group_size=group)
    loader = StockDataLoader(path, config=TOLERANT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.bars.PART_ROWS", part)
        patch.setattr("data.loader._BLOCK", 2)
        loader.load_and_prepare()

    with np.errstate(over="ignore"):
        single = frame[PRICES].astype(np.float32)
    wrong = single.max(axis=1, skipna=False) > 5 * single.min(axis=1, skipna=False)
    usable = np.isfinite(single).all(axis=1) & (single > 0).all(axis=1) & ~wrong
    high, low = frame[["open", "high", "close"]].max(axis=1), frame[["open", "low", "close"]].min(axis=1)
    clean = frame.assign(high=high, low=low)
    clean.loc[~usable, PRICES] = np.nan
    wide = clean.pivot(index="date", columns="ticker", values=PRICES)
    assert loader.tickers == ["AAA", "BBB", "CCC"] and loader.investable_columns.tolist() == [0, 1, 2]
    assert loader.dates.dtype == np.dtype("datetime64[D]") and loader.data_array.dtype == np.float32
    np.testing.assert_array_equal(loader.dates, wide.index.to_numpy().astype("datetime64[D]"))
    for place, name in enumerate(f.FEATURES[:4]):
        np.testing.assert_array_equal(loader.data_array[:, :, place], wide[name].to_numpy().astype(np.float32))
    for column, ticker in enumerate(loader.tickers):
        own = wide.xs(ticker, axis=1, level="ticker").dropna()
        features = compute_features(*(own[name].to_numpy() for name in PRICES)).astype(np.float32)
        traded = np.isfinite(loader.data_array[:, column, f.CLOSE])
        np.testing.assert_array_equal(loader.data_array[traded, column], features)
    found, empty = loader.quality, frame[PRICES].isna().all(axis=1)
    widened = (clean[["high", "low"]] != frame[["high", "low"]]).any(axis=1) & usable
    assert (found.rows, found.masked, found.empty) == (len(frame), (~usable & ~empty).sum(), empty.sum())
    assert found.widened == widened.sum()


def test_too_many_bad_prices_are_refused_at_the_stated_share() -> None:
    frame = bars_frame(days=100, tickers=("AAA",))
    frame.loc[:9, "close"] = 0.0
    assert load(frame, DataConfig(max_bad_row_share=0.10)).quality.masked == 10
    with refused(r"all but 9\.00% of the rows, got 10 bad rows and 0 empty ones of 100"):
        load(frame, DataConfig(max_bad_row_share=0.09))


GOOD = bars_frame()
BAD_FRAMES = {
    "missing": (GOOD.drop(columns="low"), r"'low' in \w+(.parquet)?, got date, ticker"),
    "renamed": (GOOD.rename(columns={"close": "Closed"}), "nearest is 'Closed'"),
    "string prices": (GOOD.assign(low=GOOD["low"].astype(str)), "numbers in column 'low'"),
    "numeric dates": (GOOD.assign(date=20100104), "dates.*in column 'date'.*int64"),
    "local dates": (GOOD.assign(date=GOOD["date"].dt.strftime("%d/%m/%Y")), "2014-11-10, got .*/2010'"),
    "numeric tickers": (GOOD.assign(ticker=7), "strings in column 'ticker'"),
    "null ticker": (GOOD.assign(ticker=GOOD["ticker"].where(GOOD.index != 4)), "rows without one"),
    "null date": (GOOD.assign(date=GOOD["date"].where(GOOD.index != 4)), "rows without one"),
    "no rows": (GOOD[:0], "got no rows"),
    "duplicates": (pd.concat([GOOD, GOOD[5:7]]), "2 duplicate rows"),
    "no prices at all": (GOOD.assign(**dict.fromkeys(PRICES, np.nan)), "168 empty ones of 168"),
}


@pytest.mark.parametrize(("frame", "expected"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_bad_data_is_one_clear_line(frame: pd.DataFrame, expected: str, tmp_path: Path) -> None:
    with refused(expected):
        load(frame, DataConfig())
    with refused(expected):
        load_file(frame, tmp_path)


@pytest.mark.parametrize("copies", [255, 256, 65_535])
def test_any_number_of_rows_of_one_bar_is_told_with_its_date_and_ticker(copies: int) -> None:
    bar = GOOD.iloc[100]
    with refused(f"got {copies} duplicate rows, as of {bar['ticker']} on {bar['date']:%Y-%m-%d}"):
        load(pd.concat([GOOD, GOOD.loc[[100] * copies]]))


def test_a_frame_with_mixed_types_is_one_clear_line() -> None:
    with refused(r"columns of one type each.*open"):
        load(GOOD.assign(open=pd.Series([1.5, "x"] * (len(GOOD) // 2), dtype=object)))


def test_files_that_are_no_parquet_are_refused(tmp_path: Path) -> None:
    bars_frame().to_parquet(tmp_path / "bars.parquet")
    spoilt = (tmp_path / "bars.parquet").read_bytes().replace(b"close", b"\x80lose")
    text = written(tmp_path / "bars.csv", "date,ticker,open,high,low,close\n")
    for path in (tmp_path / "none.parquet", tmp_path, text, written(tmp_path / "spoilt.parquet", spoilt)):
        with refused("expected a readable parquet file"):
            StockDataLoader(path).load_and_prepare()


def test_investable_file_names_columns(tmp_path: Path) -> None:
    listed = written(tmp_path / "investable.txt", "\ufeffCCC\n\n# a remark\nAAA  # another\r\nCCC\n")
    columns = load_file(GOOD, tmp_path, listed).investable_columns
    assert columns.tolist() == [0, 2] and columns.dtype == np.int64


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        (b"# nothing\n\n", "in .*investable.txt, got none"),
        (b"AAA\nBB\n", "got 'BB'; the nearest is 'BBB'"),
        (b"\xff\xfe\x00\x80", "text file of tickers"),
    ],
)
def test_bad_investable_file_is_one_clear_line(content: bytes | None, expected: str, tmp_path: Path) -> None:
    listed = tmp_path / "investable.txt"
    if content is not None:
        listed.write_bytes(content)
    with refused(expected):
        load_file(GOOD, tmp_path, listed)


MEASURE = """
from pathlib import Path
from data.loader import StockDataLoader
from utils.memory_guard import peak_rss_mb
loader = StockDataLoader({path!r}, investable=Path({listed!r}))
loader.load_and_prepare()
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
