"""The benchmark of faults at small counts: every row that does not measure time must hold."""

import json
import re
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks.faults import __main__ as faults
from benchmarks.faults import cloud, disk, paper, whole_run
from benchmarks.faults.harness import SMALL_RUN, Row

pytestmark = pytest.mark.usefixtures("small_heap")
SHOWN = (Path(__file__).parents[2] / "docs" / "runs.md").read_text(encoding="utf-8")
GENERATIONS = 3
"""A short run, which the rows share, in which a fault still finds its place."""
CASES: dict[str, Callable[[], list[Row]]] = {
    "kill -9 while saving": lambda: [disk.kill_while_saving(1)],
    "order of calls": lambda: [disk.order_of_calls()],
    "rot": lambda: [disk.rot(kind, 5) for kind in disk.ROT],
    "full disk": lambda: [disk.full_disk(GENERATIONS)],
    "kill and resume": lambda: [whole_run.kill_and_resume(1, GENERATIONS)],
    "SIGTERM": lambda: [whole_run.sigterm(GENERATIONS, ("train",), SMALL_RUN)],
    "paper account": lambda: list(paper.rows(10, 2)),
    "leak": lambda: [whole_run.leak(GENERATIONS)],
}
"""Rows that tests of runs cover by themselves, such as a lost disk, are left to the benchmark."""
CLOUD_CASES: dict[str, Callable[[], Row]] = {
    "closed doors": cloud.closed_doors,
    "SIGTERM while stalled": cloud.sigterm_while_stalled,
    **{fault.test: partial(cloud.recovered, fault) for fault in cloud.RECOVERED},
}


@pytest.fixture(autouse=True)
def a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast a run stops is for the benchmark to say; here it only has to stop, whatever it waits for."""
    for module in ("whole_run", "cloud"):
        monkeypatch.setattr(f"benchmarks.faults.{module}.STOP_SECONDS", 120.0)


@pytest.mark.parametrize("case", [*CASES, *CLOUD_CASES])
def test_a_fault(case: str) -> None:
    if case in CLOUD_CASES:
        pytest.importorskip("gcp_storage_emulator", reason="the storage emulator is not installed")
    rows = CASES[case]() if case in CASES else [CLOUD_CASES[case]()]
    for row in rows:
        assert row.is_ok is not False, faults.line(row)
    if any(row.is_ok is None for row in rows):
        pytest.skip(rows[0].measured)


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
