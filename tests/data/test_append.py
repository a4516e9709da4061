"""`prepare --append`: bars follow those of an earlier file, which stay as they are, or nothing is written."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.events import Event, read_events
from data.prepare.prepare import prepare
from data.universe import read_index
from main import main
from tests.data.files import PRICES, refused, written
from tests.data.test_adjustment import market, oracle, scaled, split_market
from tests.data.test_vendors import truth

Frame = pd.DataFrame


@given(data=st.data())
@settings(max_examples=2)
def test_appended_days_make_the_file_of_all_days(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Files overlap within rounding, one ticker is new, the bars of another one come late."""
    folder, bars = tmp_path_factory.mktemp("append"), truth(data.draw(st.integers(0, 1000)), days=8)
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


def without_last_day(folder: Path, bars: Frame) -> Path:
    """A prepared file of all bars but those of the last day."""
    prepare(written(folder / "old.csv", bars[bars["date"] < bars["date"].max()]), folder / "bars.parquet")
    return folder / "bars.parquet"


@pytest.mark.parametrize(("factor", "repeated"), [(0.995, 21), (0.995, 1), (0.5, 5), (25.0, 1)])
def test_a_past_that_was_adjusted_again_is_taken(
    factor: float, repeated: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a vendor of adjusted prices gives it after a dividend or a split: the file is what all files would make."""
    bars = truth()
    target, days = without_last_day(tmp_path, bars), bars["date"].unique()
    is_past = (bars["ticker"] == "AAPL") & (bars["date"] < days[-1])
    bars.loc[is_past, PRICES] *= factor
    bars["volume"] = bars["volume"].astype(float).mask(is_past, bars["volume"] / factor)
    new = written(tmp_path / "new.csv", bars[bars["date"].isin(days[-1 - repeated :])])
    assert main(["prepare", str(new), str(target), "--append"]) == 0
    assert f"AAPL: prices of the past times {factor:g}, for a dividend or a split" in capsys.readouterr().out
    prepare(written(tmp_path / "all.csv", bars), tmp_path / "all.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(target), pd.read_parquet(tmp_path / "all.parquet"), rtol=1e-6)


def changed(columns: Sequence[str], factor: float, days: slice = slice(5, 7), **kind: bool) -> tuple[Frame, Frame]:
    """Bars, and the same but for those of one ticker on some days."""
    bars = truth(**kind)
    hit = bars["ticker"].eq("BRK-B") & bars["date"].isin(bars["date"].unique()[days])
    return bars, bars.assign(**{column: bars[column].mask(hit, bars[column] * factor) for column in columns})


def filled() -> tuple[Frame, Frame]:
    bars = truth()
    more = bars[bars["ticker"] == "AAPL"].assign(ticker="T")
    return bars, pd.concat([bars, more]).drop_duplicates(["date", "ticker"])


@pytest.mark.parametrize(
    ("bars", "again", "words"),
    [
        (*changed(["open"], 1.00001), r"got BRK-B on 2020-10-12 with open 50.2805\d+, where the file has 50.28;"),
        (*changed(["volume"], 2.0), "got BRK-B on 2020-10-12 with volume 17344.0, where the file has 8672.0"),
        (*filled(), "got T on .* with open .*, where the file has no bar, though it has later ones"),
        (*changed(PRICES, 1.01, slice(-2, -1), closes_only=True), "to stay as they are, got BRK-B on 2020-11-12 with"),
    ],
    ids=["price", "volume", "bars inside a history", "one close is no dividend"],
)
def test_a_bar_that_would_change_is_refused_and_nothing_written(
    bars: Frame, again: Frame, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = without_last_day(tmp_path, bars)
    before, new = target.read_bytes(), written(tmp_path / "new.csv", again)
    assert main(["prepare", str(new), str(target), "--append"]) == 2
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
    closes = read_index(tmp_path / "bars.benchmark.csv", own["date"].to_numpy())
    np.testing.assert_array_equal(closes, own["close"])
    assert len(pd.read_parquet(target)) == len(bars) - len(own)
    assert f"Appended: {(bars['date'] >= middle).sum()} bars" in capsys.readouterr().out
    others = bars[(bars["ticker"] != "^SPX") & (bars["date"] > bars["date"].unique()[-5])]
    written(tmp_path / "bars.csv", pd.concat([own.assign(close=own["high"]), others]))
    assert main([*words, "--append"]) == 2
    assert "bars.parquet to stay as they are, got ^SPX on " in capsys.readouterr().err


def test_there_must_be_a_file_to_append_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = written(tmp_path / "bars.csv", truth())
    assert main(["prepare", str(source), str(tmp_path / "bars.parquet"), "--append"]) == 2
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("has_adjusted_close", [True, False])
def test_events_of_appended_days_adjust_the_days_before(tmp_path: Path, has_adjusted_close: bool) -> None:
    """A file a day that repeats no old bar: what it names tells by what earlier prices are multiplied, once."""
    raw, target = market(1, days=30, dividends=5, splits=3)[:24], tmp_path / "bars.parquet"
    known = 20
    assert (raw["Stock Splits"][1:known] > 0).any() and (raw["Dividends"][known:] > 0).any()
    for last in range(known, len(raw) + 1):
        file = raw[:last] if last == known else raw[last - 1 : last]
        if has_adjusted_close:
            file = file.assign(**{"Adj Close": oracle(raw[:last])[-len(file) :]})
        has_event = last == known or bool((raw[["Dividends", "Stock Splits"]][last - 1 : last] > 0).any(axis=None))
        for _ in range(1 + has_event):  # the same file again changes nothing
            prepare(written(tmp_path / "A.csv", file), target, append=last > known)
            bars = pd.read_parquet(target)
            np.testing.assert_allclose(bars["close"], oracle(raw[:last]), rtol=1e-6)
    turnover = (raw["Close"] * raw["Volume"]).to_numpy()
    np.testing.assert_allclose(bars["close"] * bars["volume"], turnover, rtol=1e-6)
    assert len(read_events(target)) == (raw["Dividends"] > 0).sum() + (raw["Stock Splits"] > 0).sum()


@given(
    seed=st.integers(0, 1000),
    form=st.sampled_from(["raw", "adjusted", "adjusted for splits", "adjusted close"]),
    known=st.integers(20, 55),
    overlap=st.integers(1, 15),
)
@settings(max_examples=15)
def test_repeated_bars_tell_what_new_prices_hold(
    seed: int, form: str, known: int, overlap: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Events before, among and after the repeated bars, too small to be told by moves."""
    raw, folder = market(seed, days=60, dividends=6, splits=2).round(4), tmp_path_factory.mktemp("events")
    target, expected = folder / "bars.parquet", np.array(oracle(raw))
    prepare(written(folder / "A.csv", raw[:known].assign(**{"Adj Close": oracle(raw[:known])})), target)
    new = raw.assign(**{"Adj Close": expected}) if form == "adjusted close" else raw
    if form == "adjusted":
        later = expected / raw["Close"]
        new = scaled(raw, later).assign(Volume=raw["Volume"] / later)
    elif form == "adjusted for splits":  # dividends are those of a share of today, too
        later = 1 / raw["Stock Splits"].replace(0, 1)[::-1].cumprod()[::-1].shift(-1, fill_value=1)
        new = scaled(raw, later).assign(Volume=raw["Volume"] / later, Dividends=raw["Dividends"] * later)
    prepare(written(folder / "A.csv", new[known - overlap :]), target, append=True)
    np.testing.assert_allclose(pd.read_parquet(target)["close"], expected, rtol=1e-6)


@pytest.mark.parametrize("form", ["raw", "adjusted", "adjusted close", "adjusted close alone"])
def test_without_a_repeated_bar_later_events_are_refused(form: str, tmp_path: Path) -> None:
    raw = market(1, days=30, dividends=0, splits=1)
    expected, target, known = oracle(raw), tmp_path / "bars.parquet", int(raw["Stock Splits"].argmax()) - 3
    prepare(written(tmp_path / "A.csv", raw[:known]), target)
    before, new = target.read_bytes(), raw.assign(**{"Adj Close": expected}) if "close" in form else raw
    new = scaled(raw, expected / raw["Close"]) if form == "adjusted" else new
    new = new.drop(columns=["Stock Splits", "Dividends"]) if "alone" in form else new
    with refused(f"expected a bar of A that .* give files from {raw['Date'][known - 1]} on"):
        prepare(written(tmp_path / "A.csv", new[known:]), target, append=True)
    assert target.read_bytes() == before


def test_a_bar_that_a_multiplied_past_leaves_out_is_named(tmp_path: Path) -> None:
    raw, target = market(2, days=30, dividends=0, splits=0), tmp_path / "bars.parquet"
    prepare(written(tmp_path / "A.csv", raw[:28]), target)
    halved = scaled(raw, pd.Series(0.5, raw.index)).drop(index=25)
    with refused(f"to stay as they are, got A on {raw['Date'][25]} with open"):
        prepare(written(tmp_path / "A.csv", halved[20:]), target, append=True)


def test_a_split_the_other_way_round_is_seen_at_the_first_new_bar(tmp_path: Path) -> None:
    raw, target = split_market("0.90909", 1.1), tmp_path / "bars.parquet"
    prepare(written(tmp_path / "A.csv", raw[:40]), target)
    with refused(r"split 0\.90909:1 of A on 2010-03-01 that prices allow, got a move of -9"):
        prepare(written(tmp_path / "A.csv", raw[40:42]), target, append=True)


@pytest.mark.parametrize(
    ("text", "late", "known", "words"),
    [
        ("1:2", 0, 40, ""),
        ("1:2", 0, 38, "expected a bar of A that .* give files from 2010-02-24 on"),
        ("2", 1, 38, "split 2:1 of A on 2010-03-02 that prices allow, got a move of"),
        ("2", -1, 39, "split 2:1 of A on 2010-02-26 that prices allow, got a move of"),
        ("2", 1, 41, "split 2:1 of A on 2010-03-02 that prices allow, got a move of"),
    ],
)
def test_appended_splits_are_those_of_prices(text: str, late: int, known: int, words: str, tmp_path: Path) -> None:
    """One that prices do not show yet, or that is of a day that the file has, is refused."""
    raw, target = split_market(text, 2.0, late), tmp_path / "bars.parquet"
    prepare(written(tmp_path / "A.csv", raw[:known]), target)
    new = written(tmp_path / "A.csv", raw[known : known + (1 if known >= 39 else 9)])
    with refused(words) if words else nullcontext():
        prepare(new, target, append=True)
        closes = pd.read_parquet(target)["close"]
        assert closes.pct_change().abs().max() < 0.1 and len(closes) > known
        assert read_events(target) == [Event("A", raw["Date"][40], "split", 2.0, raw["Date"][40])]
