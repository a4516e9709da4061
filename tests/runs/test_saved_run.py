"""A run's market stays what it was, however its data file grows, and a run opens as it was saved."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from data.events import events_file
from data.loader import StockDataLoader
from data.market import Market, build_market
from data.record import MarketRecord, past_ratios, pin_market, read_record, record_market, sealed
from main import main
from tests.market_cases import random_panel
from tests.small_market import TINY_DATA, TINY_RULES, market_of, panel_frame
from tests.tiny_run import assert_like, frame, tiny_in
from tests.tiny_run import run as train
from training.evaluation.baselines import BEST_AGENT
from training.run.market import read_market_record
from training.run.saved import open_saved_run
from utils.arrays import Float32Array
from utils.errors import ConfigError, DataError
from utils.runs.checkpoint import load_latest

pytestmark = pytest.mark.usefixtures("judge_nothing")

DAYS, COLUMNS = 160, 5
seeds = st.integers(0, 2**32 - 1)


def panel(seed: int, days: int = DAYS + 3, columns: int = COLUMNS + 1) -> Float32Array:
    return random_panel(np.random.default_rng(seed), days, columns)


def market(bars: Float32Array) -> Market:
    return market_of(bars, investable=[0, 2])


def as_read(market: Market) -> MarketRecord:
    """The record of a market as it comes back from its file."""
    return read_record(json.loads(json.dumps(sealed(record_market(market)))), "here")


@settings(max_examples=15)
@given(seeds, st.integers(0, 3), st.integers(0, 1))
@example(131013, 0, 1)  # a day on which only the new ticker trades
def test_a_file_that_grew_changes_nothing_that_the_run_knew(seed: int, more_days: int, more_columns: int) -> None:
    bars = panel(seed)
    before = market(bars[:DAYS, :COLUMNS])
    record = as_read(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("data.record._BLOCK", 2)
        assert record_market(before) == record, "whatever is copied at once"
    after = pin_market(market(bars[: DAYS + more_days, : COLUMNS + more_columns]), record)
    assert after.splits == before.splits and after.tickers == before.tickers
    assert (after.investable_columns == before.investable_columns).all()
    np.testing.assert_array_equal(after.data_array[:DAYS], before.data_array)
    assert (after.dates[:DAYS] == before.dates).all()


@settings(max_examples=15)
@given(seeds, st.integers(0, COLUMNS - 1), st.sampled_from([0.995, 0.9999, 0.5, 2 / 3, 25.0]), st.data())
def test_a_past_that_was_adjusted_again_is_known(seed: int, column: int, ratio: float, data: st.DataObject) -> None:
    """All prices of a ticker times a constant, even in a vendor's decimals; one bar more is a revision."""
    bars = panel(seed)[:DAYS, :COLUMNS]
    before = market(bars)
    record, last = as_read(before), before.splits.validation.last
    traded = np.flatnonzero(np.isfinite(before.data_array[: last + 1, column, 0]))
    assume(len(traded) > 20)
    changed, decimals = bars.copy(), data.draw(st.sampled_from([2, 4, 9]))
    assume(decimals > 2 or ratio != 0.9999)  # less than the vendor's rounding
    first_new = data.draw(st.integers(last + 1, DAYS))
    changed[:first_new, column] = np.round(changed[:first_new, column].astype(float) * ratio, decimals)
    found = past_ratios(market(changed), record)
    assert list(found) == [f"T{column:02d}"] and found[f"T{column:02d}"] == pytest.approx(ratio, rel=1e-3)
    assert pin_market(market(changed), record).splits == before.splits
    changed[data.draw(st.sampled_from(traded.tolist())), column] *= 1.01 if decimals > 2 else 1.5
    with pytest.raises(DataError, match=rf"1 of {COLUMNS} tickers \(T0{column}\), not only adjusted again"):
        pin_market(market(changed), record)


def test_a_split_of_a_recorded_day_is_known_where_it_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Prices before it were mended after the training, those from it on are the same; another day explains nothing."""
    caplog.set_level("INFO")
    bars = panel(1)[:DAYS, :COLUMNS].copy()
    bars[:, 0] = random_panel(np.random.default_rng(0), DAYS, 1, missing=0, delist=0, late_start=0, halt=0)[:, 0]
    record, dates, mended = record_market(market(bars)), market(bars).dates.astype("M8[D]").astype(str), bars.copy()
    mended[:40, 0] *= 0.25
    after = dataclasses.replace(market(mended), source=tmp_path / "bars.parquet")
    for day, size in ((None, 0), (41, 4), (40, 3), (40, 4)):
        rows = [] if day is None else [f"T00,{dates[day]},{size},", f"T00,{dates[20]},2,"]
        events_file(tmp_path / "bars.parquet").write_text("\n".join(["ticker,date,split,dividend", *rows]) + "\n")
        if (day, size) != (40, 4):
            with pytest.raises(DataError, match=rf"1 of {COLUMNS} tickers \(T00\), not only adjusted again"):
                pin_market(after, record)
    pinned = pin_market(after, record)
    assert pinned.splits == market(bars).splits
    told = [one.getMessage() for one in caplog.records if one.name == "data.record"]
    assert told == [f"1 ticker was adjusted again since the run began: T00 (split 4:1 of {dates[40]})"]


def test_volume_stays_with_its_ticker_and_may_not_change() -> None:
    """New tickers before and after those of the run, a new day, and a day on which only a new ticker trades."""
    rng = np.random.default_rng(4)
    bars = random_panel(rng, DAYS + 1, COLUMNS + 2, missing=0)
    bars[70, 1:-1] = np.nan
    shares = rng.uniform(1, 1e6, bars.shape[:2]).astype(np.float32)

    def traded(volume: Float32Array, days: int, tickers: slice) -> Market:
        data = panel_frame(bars[:days], volume[:days])
        data = data[data["ticker"].isin([f"T{column:02d}" for column in range(7)][tickers])].dropna()
        loader = StockDataLoader.from_frame(data, config=TINY_DATA, requires_volume=True)
        loader.load_and_prepare()
        return build_market(loader, TINY_DATA, TINY_RULES)

    before = traded(shares, DAYS, slice(1, -1))
    record, last = record_market(before), before.splits.validation.last
    after = pin_market(traded(shares, DAYS + 1, slice(None)), record)
    assert before.volume is not None and after.volume is not None
    np.testing.assert_array_equal(after.volume[: len(before.dates)], before.volume)
    assert len(after.dates) == len(before.dates) + 1 and after.tickers == before.tickers
    later, earlier = shares.copy(), shares.copy()
    later[last + 3 :] *= 2
    pin_market(traded(later, DAYS, slice(1, -1)), record)
    earlier[last, 2] *= 2
    with pytest.raises(DataError, match=r"expected the prices, volume up to .*1 of 5 tickers \(T02\)"):
        pin_market(traded(earlier, DAYS, slice(1, -1)), record)


def test_a_lost_ticker_and_lost_days_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    bars = panel(0)[:DAYS, :COLUMNS]
    record = record_market(market(bars))
    with pytest.raises(DataError, match="data without T04"):
        pin_market(market(bars[:, :4]), record)
    with pytest.raises(DataError, match="which the run knew, got data from"):
        pin_market(market(bars[: DAYS - 3]), record)
    with pytest.raises(DataError, match="do not fit their sha256"):
        read_record({"tickers": []}, "here")
    pin_market(market(panel(0)[:DAYS]), record)
    assert "left out: 1 ticker that the run does not know: T05" in caplog.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data file and a finished run on it."""
    path = tmp_path_factory.mktemp("runs")
    tiny = tiny_in(path)
    frame(343, 6).to_parquet(path / "all.parquet")
    frame(343, 6).head(340 * 6).to_parquet(path / "data.parquet")
    (path / "listed.txt").write_text("T1\nT3\nT4\nT5\n")
    flags = ("--data", str(path / "data.parquet"), "--investable", str(path / "listed.txt"))
    assert train(tiny, "--run", "one", *flags) == 0
    return path


def test_a_run_opens_as_it_was_saved(folder: Path) -> None:
    saved = open_saved_run(folder / "runs")
    checkpoint = load_latest(folder / "runs" / "one" / "checkpoints")
    assert checkpoint is not None and saved.generation == checkpoint.generation == 2
    for which in ("champion", "best_agent"):
        for part, values in getattr(saved, which).state_dict().items():
            for name, value in values.items() if isinstance(values, dict) else enumerate(values):
                stored = checkpoint.state[which][part][name]
                assert torch.equal(value, stored) if isinstance(value, torch.Tensor) else value == stored, (part, name)
    elites, genes = (checkpoint.state["population"][name] for name in ("elites", "genes"))
    assert torch.equal(saved.champion.genes, 2.0 ** genes[elites])
    assert torch.equal(saved.best_agent.genes, 2.0 ** genes[elites[:1]])
    assert saved.beside.keys() == {BEST_AGENT}
    assert [saved.market.tickers[column] for column in saved.market.investable_columns] == ["T1", "T3", "T4", "T5"]
    assert saved.planted_scores is None and len(saved.market.dates) == 340


def test_what_cannot_be_opened_is_told_in_one_line(folder: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    def refusal(name: str | None, **options: Any) -> str:
        with pytest.raises((ConfigError, DataError), match=r"^expected [^\n]*$") as caught:
            open_saved_run(runs, name, **options)
        return str(caught.value)

    assert "got none" in refusal(None)
    shutil.copytree(folder / "runs", runs)
    assert "the nearest is 'one'" in refusal("on")
    (runs / "one" / "market.json").write_text("{")
    assert "JSON" in refusal("one")
    (runs / "one" / "market.json").unlink()
    assert "--resume one" in refusal("one")
    shutil.rmtree(runs / "one" / "checkpoints")
    assert "a complete generation" in refusal("one")
    assert train(tiny_in(tmp_path), "--run", "built-in", "--generations", "1") == 0
    assert open_saved_run(runs, "built-in").planted_scores is not None
    assert "built-in market" in refusal("built-in", data=folder / "data.parquet")


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_of_a_market_is_refused_or_changes_nothing(
    folder: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """Its days, above all: validation days that become training days would be learned from."""
    file = folder / "runs" / "one" / "market.json"
    content, recorded = bytearray(file.read_bytes()), read_market_record(file.parent)
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (tmp_path / "market.json").write_bytes(content)
    try:
        assert read_market_record(tmp_path) == recorded
    except DataError as error:
        assert "\n" not in str(error)


def test_resuming_holds_the_run_to_its_market(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    tiny, data, listed = (tmp_path / name for name in ("tiny.toml", "data.parquet", "listed.txt"))
    flags = ("--data", str(data), "--investable", str(listed))
    assert train(tiny, "--run", "parts", "--generations", "1", *flags) == 0
    resume = ["--runs-dir", str(tmp_path / "runs"), "--resume", "parts", "--generations", "2"]
    spoilt = pd.read_parquet(folder / "all.parquet")
    spoilt.loc[50:60, ["open", "high", "low", "close"]] *= 1.5
    spoilt.to_parquet(data)
    assert main(resume) == 2
    shown = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ERROR ")]
    assert len(shown) == 1 and "expected the prices up to" in shown[0]
    shutil.copy(folder / "all.parquet", data)
    assert main(resume) == 0
    assert_like(tiny, "parts", "one", 2)
    (tmp_path / "runs" / "parts" / "market.json").unlink()
    assert main([*resume[:-1], "3"]) == 0 and "market.json is gone, by which the data" in capsys.readouterr().err
