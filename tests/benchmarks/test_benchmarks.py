"""The benchmarks measure what they say, the README's picture is of this version, and the first hour on a card."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import first_hour, readme_picture
from benchmarks.faults.harness import SMALL_RUN
from benchmarks.first_hour import MOST_RATIO, NEEDS_CARD, Setup, compare_devices, predicted, run_step, steps
from benchmarks.readme_picture import PICTURE, RECORD, ROOT, draw, record
from benchmarks.speed import __main__ as speed
from benchmarks.speed.environment import account_rate, portfolio_of
from benchmarks.speed.growth import Workload, exponent, measure_workload
from benchmarks.speed.harness import CPU, Row, full_scale
from tests.benchmarks.study_cases import tiny_config

torch.set_num_threads(1)


@given(st.floats(-2, 2), st.floats(0.01, 100), st.integers(1, 1000))
def test_exponent_of_a_power_law(power: float, scale: float, first: int) -> None:
    sizes = [first * 2**step for step in range(4)]
    assert exponent(sizes, [scale * size**power for size in sizes]) == pytest.approx(power, abs=1e-6)


def test_workload_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = full_scale()
    small = replace(whole, learning=replace(whole.learning, gradient_steps=2, hidden=4))
    monkeypatch.setattr("benchmarks.speed.growth.full_scale", lambda: small)
    work = Workload(days=800, columns=4, population=2, windows=1, buffer=64, investable=2)
    prepare, generation, _ = measure_workload(work, CPU)
    assert prepare > 0 and generation > 0


def test_environment_is_played_to_the_end() -> None:
    config = tiny_config()
    portfolio, first_days = portfolio_of(config, 3, CPU)
    assert account_rate(portfolio, first_days[:2], 0.0) > 0
    assert portfolio.account.is_done
    assert int(portfolio.account.summary().positions_opened.min()) > 0


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


def test_the_picture_is_of_this_version() -> None:
    """Where this fails, run `python -m benchmarks.readme_picture`."""
    recorded = json.loads((ROOT / "docs" / RECORD).read_text(encoding="utf-8"))
    assert recorded == record((ROOT / "docs" / PICTURE).read_bytes())


@pytest.mark.usefixtures("small_heap")
def test_the_command_writes_picture_and_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.toml").write_text(f"generations = 1{SMALL_RUN}")
    monkeypatch.setattr(readme_picture, "draw", lambda: draw(["--config", str(tmp_path / "small.toml")]))
    readme_picture.main(["--out", str(tmp_path)])
    picture = (tmp_path / PICTURE).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert json.loads((tmp_path / RECORD).read_text()) == record(picture)


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], small_heap: None
) -> None:
    out = tmp_path / "found.json"
    words = ["--small", "--device", "cpu", "--here", "--only", "generation-4", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["first_hour", *words])
    assert first_hour.main() == 0
    found, shown = json.loads(out.read_text()), capsys.readouterr().out
    assert found["device"] == "cpu" and [*tmp_path.iterdir()] == [out]
    values = {finding["name"]: finding["value"] for finding in found["findings"]}
    assert values and all(value > 0 for value in values.values())
    assert all(name in shown for name in values)


def test_without_a_card_what_needs_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_hour, "trace", lambda *_: {"trace/metrics.jsonl": [{"fitness": 1.0}]})
    here = Setup(torch.device("cpu"), True)
    found = [finding for name in ("machine", "tests", "trace") for finding in steps(here)[name](here)]
    left_out = {finding.name for finding in found if finding.note == NEEDS_CARD}
    assert left_out == {"card", "tests on the card", "CPU against card"}
    assert not any(finding.fault for finding in found)


def test_a_step_that_fails_is_a_fault_and_says_why() -> None:
    (finding,) = run_step("nothing", ["--device", "cpu"])
    assert finding.value is None and "expected --only of machine, tests" in finding.fault


@pytest.mark.parametrize(
    ("cpu", "card", "again", "fault"),
    [
        (1.0, 1.000001, 1.000001, ""),
        (1.0, 1.1, 1.1, "first difference: fitness: expected 1.0, got 1.1"),
        (1.0, 1.0, 1.0 + 1e-12, "not repeatable, first difference: trace/metrics.jsonl.0.fitness"),
    ],
)
def test_rounding_passes_and_other_numbers_do_not(
    monkeypatch: pytest.MonkeyPatch, cpu: float, card: float, again: float, fault: str
) -> None:
    runs = [{"trace/metrics.jsonl": [{"fitness": number}, {"fitness": 5.0}]} for number in (again, card, cpu)]
    monkeypatch.setattr(first_hour, "trace", lambda *_: runs.pop())
    faults = [finding.fault for finding in compare_devices(Setup(torch.device("cuda"), True)) if finding.fault]
    assert len(faults) == bool(fault) and "".join(faults).startswith(fault)


def test_far_above_its_prediction_is_a_fault() -> None:
    assert not predicted("a", 1.0, "s", None).fault and not predicted("a", MOST_RATIO, "s", 1.0).fault
    slow = predicted("a", 1.01 * MOST_RATIO, "s", 1.0)
    assert slow.fault and "FAULT" in str(slow) and f"ratio {1.01 * MOST_RATIO:.2f}" in str(slow)
