"""The benchmark of faults at small counts: every row that does not measure time must hold."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.faults import __main__ as faults
from benchmarks.faults.cloud import (
    RECOVERED,
    closed_doors,
    empty_disk,
    endless_503,
    recovered,
    sigterm_while_stalled,
)
from benchmarks.faults.disk import ROT, full_disk, kill_while_saving, order_of_calls, pickle_bomb, rot
from benchmarks.faults.files import malformed_files
from benchmarks.faults.harness import SMALL_RUN, Row
from benchmarks.faults.overhead import added_time
from benchmarks.faults.paper import KINDS, disturbed, kill_at_writes
from benchmarks.faults.whole_run import kill_and_resume, leak, sigterm

pytestmark = pytest.mark.usefixtures("restore_process")
SHOWN = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
GENERATIONS = 4
"""So few that the uninterrupted run, which the rows share, is short, and so many that a fault lies within."""
CASES: dict[str, Callable[[], list[Row]]] = {
    "kill -9 while saving": lambda: [kill_while_saving(1)],
    "order of calls": lambda: [order_of_calls()],
    "rot": lambda: [rot(kind, 5) for kind in ROT],
    "full disk": lambda: [full_disk(GENERATIONS)],
    "kill and resume": lambda: [kill_and_resume(1, GENERATIONS)],
    "pickle bomb": lambda: [pickle_bomb()],
    "SIGTERM": lambda: [sigterm(GENERATIONS, ("train",), SMALL_RUN)],
    "paper account": lambda: [kill_at_writes(10), *(disturbed(kind, 2) for kind in KINDS)],
    "leak": lambda: [leak(GENERATIONS)],
    "malformed": lambda: [malformed_files()],
}
CLOUD_CASES: dict[str, Callable[[], Row]] = {
    "endless 503": lambda: endless_503(1),
    "closed doors": closed_doors,
    "empty disk": lambda: empty_disk(GENERATIONS),
    "SIGTERM while stalled": sigterm_while_stalled,
}


@pytest.fixture(autouse=True)
def a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast a run stops is for the benchmark to say; here it only has to stop, whatever it waits for."""
    for module in ("whole_run", "cloud"):
        monkeypatch.setattr(f"benchmarks.faults.{module}.STOP_SECONDS", 120.0)


def assert_holds(rows: list[Row]) -> None:
    for row in rows:
        assert row.is_ok is not False, faults.line(row)
    if any(row.is_ok is None for row in rows):
        pytest.skip(rows[0].measured)


@pytest.mark.parametrize("case", CASES)
def test_a_fault(case: str) -> None:
    assert_holds(CASES[case]())


@pytest.mark.parametrize("case", CLOUD_CASES)
def test_a_fault_of_the_cloud(case: str) -> None:
    pytest.importorskip("gcp_storage_emulator", reason="the storage emulator is not installed")
    assert_holds([CLOUD_CASES[case]()])


@pytest.mark.parametrize("fault", RECOVERED, ids=lambda fault: fault.test)
def test_a_fault_that_passes(fault: object) -> None:
    pytest.importorskip("gcp_storage_emulator", reason="the storage emulator is not installed")
    assert_holds([recovered(fault)])  # type: ignore[arg-type]


def test_the_share_of_time_is_measured() -> None:
    """Of a run of milliseconds the share itself means nothing."""
    row = added_time(5, SMALL_RUN, warm_up=2)
    assert re.match(r"-?[\d.]+%: \d\.\d{3} s between generations", row.measured)


def test_the_command_of_the_docs_prints_the_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = re.findall(r"`(python -m benchmarks\.faults[^`]*)`", SHOWN)
    rows = [Row("one", 1, "so", "so", True), Row("two", 2, "so", "no", False), Row("three", 3, "so", "-", None)]
    monkeypatch.setattr(faults, "rows", lambda share: rows if share == 1 else [])
    monkeypatch.chdir(tmp_path)
    assert faults.main(shlex.split(command)[3:]) == 1
    shown = capsys.readouterr().out
    assert all(f"| {verdict} " in shown for verdict in faults.VERDICTS.values())
    (report,) = tmp_path.glob("*.json")
    assert [row["test"] for row in json.loads(report.read_text())] == ["one", "two", "three"]
    rows[1] = rows[0]
    assert faults.main([]) == 0
