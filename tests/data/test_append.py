"""`prepare --append`: bars follow those of an earlier file, which stay as they are, or nothing is written."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.benchmark import read_benchmark
from data.events import read_events
from data.raw.prepare import prepare
from main import main
from tests.data.files import PRICES, written
from tests.data.test_adjustment import market, oracle
from tests.data.test_vendors import truth

Frame = pd.DataFrame


@given(seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=2)
def test_days_appended_in_steps_make_the_file_of_all_days(
    seed: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files overlap within rounding, one ticker is new, the bars of another one come late."""
    folder, bars = tmp_path_factory.mktemp("append"), truth(seed, days=8)
    day = bars["date"].rank(method="dense").astype(int)
    arrives = day.mask((bars["ticker"] == "AAPL") & (day < 5), 5)
    target = folder / "bars.parquet"
    prepare(written(folder / "first.csv", bars[arrives <= 3]), target)
    for last in range(4, 9):
        is_in = arrives.between(last - data.draw(st.integers(0, 3)), last)
        before = pq.read_metadata(target).num_rows
        again = bars[is_in].assign(close=bars["close"].where(arrives == last, bars["close"] * (1 + 1e-8)))
        summary = prepare(written(folder / "days.csv", again), target, append=True)
        assert summary.appended == summary.rows_kept - before == (arrives == last).sum()
    prepare(written(folder / "all.csv", bars), folder / "all.parquet")
    assert target.read_bytes() == (folder / "all.parquet").read_bytes()


def changed(column: str, factor: float) -> Callable[[Frame], Frame]:
    def change(bars: Frame) -> Frame:
        hit = bars["ticker"].eq("BRK-B") & bars["date"].isin(bars["date"].unique()[5:7])
        return bars.assign(**{column: bars[column].mask(hit, bars[column] * factor)})

    return change


def filled(bars: Frame) -> Frame:
    return pd.concat([bars, bars[bars["ticker"] == "AAPL"].assign(ticker="T")]).drop_duplicates(["date", "ticker"])


def test_one_close_that_is_another_is_no_dividend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of closes, of which only the last old one is given again."""
    bars, target = truth(closes_only=True), tmp_path / "bars.parquet"
    days = bars["date"].unique()
    prepare(written(tmp_path / "old.csv", bars[bars["date"] < days[-1]]), target)
    is_other = (bars["ticker"] == "BRK-B") & (bars["date"] == days[-2])
    close = bars["close"].mask(is_other, 1.01 * bars["close"])
    again = bars.assign(open=close, high=close, low=close, close=close)[bars["date"] >= days[-2]]
    assert main(["prepare", str(written(tmp_path / "new.csv", again)), str(target), "--append"]) == 2
    assert "to stay as they are, got BRK-B" in capsys.readouterr().err


@pytest.mark.parametrize("factor", [0.995, 0.5, 25.0])
@pytest.mark.parametrize("repeated", [21, 5, 1])
def test_a_past_that_was_adjusted_again_is_taken(
    factor: float, repeated: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a vendor of adjusted prices gives it after a dividend or a split: the file is what all files would make."""
    bars, target = truth(), tmp_path / "bars.parquet"
    days = bars["date"].unique()
    prepare(written(tmp_path / "old.csv", bars[bars["date"] < days[-1]]), target)
    is_past = (bars["ticker"] == "AAPL") & (bars["date"] < days[-1])
    bars.loc[is_past, PRICES] *= factor
    bars["volume"] = bars["volume"].astype(float).mask(is_past, bars["volume"] / factor)
    new = written(tmp_path / "new.csv", bars[bars["date"].isin(days[-1 - repeated :])])
    assert main(["prepare", str(new), str(target), "--append"]) == 0
    assert f"AAPL: prices of the past times {factor:g}, for a dividend or a split" in capsys.readouterr().out
    prepare(written(tmp_path / "all.csv", bars), tmp_path / "all.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(target), pd.read_parquet(tmp_path / "all.parquet"), rtol=1e-6)


def test_columns_of_whole_numbers_stay(tmp_path: Path) -> None:
    """Of a file that something else wrote."""
    bars, target = truth(), tmp_path / "bars.parquet"
    last = bars["date"].max()
    prepare(written(tmp_path / "old.csv", bars.assign(analysts=3.0)[bars["date"] < last]), target)
    pd.read_parquet(target).astype({"analysts": np.int64}).to_parquet(target)
    prepare(written(tmp_path / "new.csv", bars.assign(analysts=4.0)[bars["date"] == last]), target, append=True)
    found = pd.read_parquet(target)
    assert (found["analysts"] == np.where(pd.to_datetime(found["date"]) == pd.Timestamp(last), 4.0, 3.0)).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("open", 1.00001), r"got BRK-B on 2020-10-12 with open 50.2805\d+, where the file has 50.28;"),
        (changed("volume", 2.0), "got BRK-B on 2020-10-12 with volume 17344.0, where the file has 8672.0"),
        (filled, "got T on .* with open .*, where the file has no bar, though it has later ones"),
    ],
    ids=["price", "volume", "bars inside a history"],
)
def test_a_bar_that_would_change_is_refused_and_nothing_written(
    change: Callable[[Frame], Frame], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bars, target = truth(), tmp_path / "bars.parquet"
    last = bars["date"].max()
    prepare(written(tmp_path / "old.csv", bars[bars["date"] < last]), target)
    before = target.read_bytes()
    written(tmp_path / "new.csv", change(bars))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert main(["prepare", "new.csv", "bars.parquet", "--append"]) == 2
    shown = capsys.readouterr().err.strip()
    assert "\n" not in shown
    assert re.search(words, shown), shown
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bars.parquet", "new.csv", "old.csv"]


def test_an_index_is_appended_to_its_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bars = truth().replace({"ticker": {"T": "^SPX"}})
    target = tmp_path / "bars.parquet"
    middle = bars["date"].unique()[15]
    words = ["prepare", str(tmp_path / "bars.csv"), str(target), "--benchmark", "^SPX"]
    written(tmp_path / "bars.csv", bars[bars["date"] < middle])
    assert main(words) == 0
    written(tmp_path / "bars.csv", bars[bars["date"] >= middle])
    assert main([*words, "--append"]) == 0
    own = bars[bars["ticker"] == "^SPX"]
    closes = read_benchmark(tmp_path / "bars.benchmark.csv", own["date"].to_numpy())
    np.testing.assert_array_equal(closes, own["close"])
    assert len(pd.read_parquet(target)) == len(bars) - len(own)
    assert f"Appended: {(bars['date'] >= middle).sum()} bars" in capsys.readouterr().out
    written(tmp_path / "index.csv", own.assign(close=own["close"] * 1.1, ticker="^SPX"))
    others = bars[(bars["ticker"] != "^SPX") & (bars["date"] > bars["date"].unique()[-5])]
    written(tmp_path / "bars.csv", pd.concat([own.assign(close=own["high"]), others]))
    assert main([*words, "--append"]) == 2
    assert "bars.parquet to stay as they are, got ^SPX on " in capsys.readouterr().err


@pytest.mark.parametrize(("content", "words"), [(None, "no such file"), (b"PAR1", "expected a readable parquet")])
def test_there_must_be_a_file_to_append_to(
    content: bytes | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = written(tmp_path / "bars.csv", truth()), tmp_path / "bars.parquet"
    if content is not None:
        target.write_bytes(content)
    assert main(["prepare", str(source), str(target), "--append"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("has_adjusted_close", [True, False])
def test_events_of_appended_days_adjust_the_days_before(tmp_path: Path, has_adjusted_close: bool) -> None:
    """A file a day that repeats no old bar: what it names tells by what earlier prices are multiplied, once."""
    raw, target = market(1, days=30, dividends=5, splits=3), tmp_path / "bars.parquet"
    known = 20
    assert (raw["Stock Splits"][1:known] > 0).any() and (raw["Dividends"][known:] > 0).any()
    for last in range(known, 31):
        file = raw[:last] if last == known else raw[last - 1 : last]
        if has_adjusted_close:
            file = file.assign(**{"Adj Close": oracle(raw[:last])[-len(file) :]})
        for _ in range(2):  # the same file again changes nothing
            prepare(written(tmp_path / "A.csv", file), target, append=last > known)
            bars = pd.read_parquet(target)
            np.testing.assert_allclose(bars["close"], oracle(raw[:last]), rtol=1e-6)
    turnover = (raw["Close"] * raw["Volume"]).to_numpy()
    np.testing.assert_allclose(bars["close"] * bars["volume"], turnover, rtol=1e-6)
    assert len(read_events(target)) == (raw["Dividends"] > 0).sum() + (raw["Stock Splits"] > 0).sum()


@pytest.mark.parametrize("form", ["raw", "adjusted"])
@pytest.mark.parametrize("overlap", [0, 3])
def test_an_event_among_new_days_adjusts_the_old_ones(form: str, overlap: int, tmp_path: Path) -> None:
    """Whether new files repeat old bars or not, and whether their prices are adjusted for it or raw."""
    count, event = np.arange(40), 33
    days, plain = pd.bdate_range("2011-06-01", periods=40), 20.0 * np.exp(0.01 * np.sin(count))
    names = ("Open", "High", "Low", "Close")

    def file(raw: bool, rows: slice) -> Frame:
        price = np.where(raw & (count < event), plain, plain / 2)
        bars = pd.DataFrame({"Date": days, "Ticker": "AAA", **dict.fromkeys(names, price), "Volume": 100.0})
        return bars.assign(**{"Stock Splits": np.where(count == event, 2.0, 0.0)})[rows]

    target = tmp_path / "bars.parquet"
    prepare(written(tmp_path / "first.csv", file(True, slice(0, 30))), target)
    week = file(form == "raw", slice(30 - overlap, None))
    summary = prepare(written(tmp_path / "week.csv", week), target, append=True)
    assert "but for 1 tickers" in "\n".join(summary.lines())
    assert pd.read_parquet(target)["close"].to_numpy() == pytest.approx(plain / 2)
