"""Rotten and made-up files, and drawn notations: read exactly or refused in one clear line, never misread."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from benchmarks.notations import outcome
from data.loader import StockDataLoader
from data.raw.prepare import prepare
from tests.data.files import read_or_refused, refused, written
from tests.tiny_run import TINY, frame
from training.commands.table import COMMANDS
from utils.config.cli import parse_command

SHARED = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def parquet(tmp_path: Path) -> bytes:
    frame(40, 3).to_parquet(tmp_path / "good.parquet", compression="none")
    return (tmp_path / "good.parquet").read_bytes()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A price file as `prepare` writes it."""
    folder = tmp_path_factory.mktemp("prepared")
    frame(40, 3).to_csv(folder / "bars.csv", index=False)
    prepare(folder / "bars.csv", folder / "bars.parquet")
    return folder / "bars.parquet"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_bit_of_a_prepared_file_is_refused_or_changes_nothing(
    prepared: Path, tmp_path: Path, data: st.DataObject
) -> None:
    content, whole = bytearray(prepared.read_bytes()), StockDataLoader(prepared)
    whole.load_and_prepare()
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.parquet"
    path.write_bytes(content)
    loader = StockDataLoader(path)
    with read_or_refused():
        loader.load_and_prepare()
        np.testing.assert_array_equal(loader.data_array, whole.data_array)
        np.testing.assert_array_equal(loader.dates, whole.dates)
        assert loader.tickers == whole.tickers


@SHARED
@given(start=st.integers(0, 10**6), junk=st.binary(min_size=1, max_size=64))
@example(576, b"\x01\x05")  # gave an index that no ticker has
def test_overwritten_bytes(tmp_path: Path, parquet: bytes, start: int, junk: bytes) -> None:
    start %= len(parquet)
    spoilt = written(tmp_path / "spoilt.parquet", parquet[:start] + junk + parquet[start + len(junk) :])
    with read_or_refused():
        StockDataLoader(spoilt).load_and_prepare()


def test_tickers_that_are_no_text(tmp_path: Path, parquet: bytes) -> None:
    content = parquet.replace(b"T1\x02\x00\x00\x00T2", b"\x80\x81\x02\x00\x00\x00T2")
    with refused("expected tickers as text in UTF-8"):
        StockDataLoader(written(tmp_path / "spoilt.parquet", content)).load_and_prepare()


@SHARED
@given(end=st.integers(0, 10**6))
def test_cut_files(tmp_path: Path, parquet: bytes, end: int) -> None:
    with refused("expected"):
        StockDataLoader(written(tmp_path / "cut.parquet", parquet[: end % len(parquet)])).load_and_prepare()


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
    assert found.count("read") > 16
    assert all(one == "read" or (one.startswith("expected") and "\n" not in one) for one in found)
