"""The first hour on a card: what it finds, what it leaves out without one, and what makes it fail."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import first_hour
from benchmarks.first_hour import (
    MOST_RATIO,
    NEEDS_CARD,
    Setup,
    compare_devices,
    predicted,
    run_step,
    steps,
)

CPU, CARD = Setup(torch.device("cpu"), True), Setup(torch.device("cuda"), True)


def test_the_command_measures_prints_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], restore_process: None
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
    found = [finding for name in ("machine", "tests", "trace") for finding in steps(CPU)[name](CPU)]
    left_out = {finding.name for finding in found if finding.note == NEEDS_CARD}
    assert left_out == {"card", "tests on the card", "CPU against card"}
    assert not any(finding.fault for finding in found)


def test_a_step_that_fails_is_a_fault_and_says_why() -> None:
    (finding,) = run_step("nothing", ["--device", "cpu"])
    assert finding.value is None and "expected --only of machine, tests" in finding.fault


def faults_of(monkeypatch: pytest.MonkeyPatch, *numbers: float) -> list[str]:
    """The faults where three runs gave these numbers: on the CPU, on the card, and again."""
    left = iter(numbers)

    def trace(*_: Any) -> dict[str, Any]:
        number = next(left)
        return {"trace/metrics.jsonl": [{"fitness": number}, {"fitness": 5.0}]}

    monkeypatch.setattr(first_hour, "trace", trace)
    return [finding.fault for finding in compare_devices(CARD) if finding.fault]


def test_rounding_passes_and_other_numbers_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults_of(monkeypatch, 1.0, 1.000001, 1.000001) == []
    assert faults_of(monkeypatch, 1.0, 1.1, 1.1) == ["first difference: fitness: expected 1.0, got 1.1"]
    (fault,) = faults_of(monkeypatch, 1.0, 1.0, 1.0 + 1e-12)
    assert fault.startswith("not repeatable, first difference: trace/metrics.jsonl.0.fitness")


def test_far_above_its_prediction_is_a_fault() -> None:
    assert not predicted("a", 1.0, "s", None).fault and not predicted("a", MOST_RATIO, "s", 1.0).fault
    slow = predicted("a", 1.01 * MOST_RATIO, "s", 1.0)
    assert slow.fault and "FAULT" in str(slow) and f"ratio {1.01 * MOST_RATIO:.2f}" in str(slow)
