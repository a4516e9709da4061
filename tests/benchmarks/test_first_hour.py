"""The first hour on a card: what it finds, what it leaves out without one, and what makes it fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import first_hour
from benchmarks.first_hour import (
    NEEDS_CARD,
    Setup,
    choices,
    compare_devices,
    generation_seconds,
    run_step,
    runs_of,
    steps,
    wide_updates,
)
from benchmarks.gpu_budget.__main__ import BUDGET
from benchmarks.gpu_budget.costs import ALL_CARDS, CARDS
from benchmarks.gpu_budget.finding import MOST_RATIO, Finding, line, predicted
from benchmarks.gpu_budget.goals import GOAL_LIST, GOALS, UPDATES_OF, table

ROOT = Path(__file__).resolve().parents[2]
CPU, CARD = Setup(torch.device("cpu"), True), Setup(torch.device("cuda"), True)


def test_the_command_measures_prints_and_writes(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    words = ["--small", "--device", "cpu", "--only", "machine", "generation-4-1", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_hour", *words], cwd=ROOT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["device"] == "cpu" and [*tmp_path.iterdir()] == [out]
    values = {finding["name"]: finding["value"] for finding in found["findings"]}
    measured = [name for name in values if name.startswith("generation")]
    assert len(measured) == 6 and all(values[name] > 0 for name in measured)
    assert all(any(shown.startswith(name) for shown in done.stdout.splitlines()) for name in values)


def test_without_a_card_what_needs_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_hour, "trace", lambda *_: {"trace/metrics.jsonl": [{"fitness": 1.0}]})
    names = ("machine", "tests", "launch", "trace")
    found = [finding for name in names for finding in steps(CPU)[name](CPU)]
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
    assert slow.fault and "FAULT" in line(slow) and f"ratio {1.01 * MOST_RATIO:.2f}" in line(slow)


def test_the_prediction_is_the_slower_of_card_and_host_and_the_copies() -> None:
    us = f"{CARDS[0].name} us"
    host = {"operations": 125_000, us: 2, "copied": 12_000_000_000}
    card = {"operations": 1, us: 3_000_000, "copied": 0}
    figures = {"set up": card, "evaluate, days": host, "train": card, "train, updates": host, "generation": card}
    assert generation_seconds(figures, CARDS[0], is_replayed=False) == pytest.approx(2 * (1.0 + 1.0) + 3.0)
    assert generation_seconds(figures, CARDS[0], is_replayed=True) == pytest.approx(2 * 1.0 + 3.0, abs=1e-4)
    budget = json.loads(BUDGET.read_text())
    of_16, of_64 = (generation_seconds(budget[f"full {n}"], CARDS[0], is_replayed=False) for n in (16, 64))
    assert 0 < of_16 < of_64


def test_updates_of_both_ways_are_the_same_bits_and_are_timed() -> None:
    """On the CPU both are eager; without a prediction there is no fault."""
    same, graphs, eager = wide_updates(CPU, 256)
    assert same.value == 0 and not any(finding.fault for finding in (same, graphs, eager))
    assert all(isinstance(one.value, float) and one.value > 0 and "goal 1 ms" in one.note for one in (graphs, eager))


def test_every_goal_is_predicted_for_every_card_and_measured_in_the_first_hour() -> None:
    predictions = json.loads(GOALS.read_text())
    keys = {f"{card.name}, {way}" for card in ALL_CARDS for way in ("eager", "graphs")}
    assert predictions.keys() == {goal.name for goal in GOAL_LIST}
    assert all(row.keys() == keys and min(row.values()) > 0 for row in predictions.values())
    shown = table(predictions)
    cells = [cell for row in shown.splitlines()[2:] for cell in row.split("|")[3:-1]]
    assert len(cells) == len(keys) * len(GOAL_LIST) and all(" predicted" in cell for cell in cells)
    steps_of = steps(Setup(torch.device("cuda"), False))
    assert {f"updates-{batch}" for batch in UPDATES_OF} | {"wide"} <= steps_of.keys()


def test_the_choices_follow_the_figures() -> None:
    same = [run for run in runs_of(CARD) if run.agents == 4]
    assert [run.is_eager for run in same][-1] and not same[0].is_eager
    findings = [Finding(str(run), seconds, "s") for run, seconds in zip(same, (1.0, 3.0, 2.0), strict=False)]
    told = choices(CARD, findings)
    assert len(told) == len(same) - 1
    assert all(f"times the seconds of {same[0]}" in line for line in told) and "3.00" in told[0]
    assert choices(CARD, findings[:1]) == choices(CARD, []) == []
