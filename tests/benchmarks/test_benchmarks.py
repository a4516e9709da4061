"""The README's picture is of this version, and what a first hour on a card measures."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import first_hour, readme_picture
from benchmarks.faults.harness import SMALL_RUN
from benchmarks.first_hour import MOST_RATIO, NEEDS_CARD, Setup, compare_devices, predicted, run_step, steps
from benchmarks.readme_picture import PICTURE, RECORD, ROOT, draw, record

torch.set_num_threads(1)


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
