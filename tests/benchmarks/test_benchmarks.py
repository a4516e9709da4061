"""The benchmarks measure what they say: fits know their slope, phases add up, what is missing is told."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speed import __main__ as speed
from benchmarks.speed.environment import account_rate, portfolio_of
from benchmarks.speed.growth import Workload, exponent, measure_workload
from benchmarks.speed.harness import CPU, Row
from tests.benchmarks.study_cases import tiny_config

torch.set_num_threads(1)


@given(st.floats(-2, 2), st.floats(0.01, 100), st.integers(1, 1000))
def test_exponent_of_a_power_law(power: float, scale: float, first: int) -> None:
    sizes = [first * 2**step for step in range(4)]
    assert exponent(sizes, [scale * size**power for size in sizes]) == pytest.approx(power, abs=1e-6)


def test_workload_is_measured() -> None:
    work = Workload(days=800, columns=4, population=2, windows=1, buffer=64, investable=2)
    prepare, generation, _ = measure_workload(work, CPU)
    assert prepare > 0 and generation > 0


def test_environment_is_played_to_the_end() -> None:
    config = tiny_config()
    portfolio, first_days = portfolio_of(config, 3, CPU)
    assert account_rate(portfolio, first_days[:2], 0.0) > 0
    assert portfolio.is_done
    assert int(portfolio.summary().positions_opened.min()) > 0


def test_the_table_and_the_file_hold_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = [Row("fast", 2.5, "s", "exponent 1"), Row("big", 1e6, "MiB")]
    monkeypatch.setattr(speed, "SECTIONS", {"growth": lambda _: measured})
    monkeypatch.setattr("sys.argv", ["speed", "--json", str(tmp_path / "speed.json"), "--only", "growth"])
    speed.main()
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert rows[:2] == [{"section": "growth", "device": "cpu", **asdict(row)} for row in measured]
    shown = capsys.readouterr().out
    assert "2.500 s exponent 1" in shown and "1,000,000 MiB" in shown
