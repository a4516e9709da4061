"""Time that checkpoints and uploads add to a generation, measured within one run."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.faults.harness import QUICK_RUN, Row, flags, folder, run_here
from utils.runs.checkpoint import CheckpointWriter

LARGEST_SECONDS = 0.3
"""Of a generation; to sync files to the disk takes as long however short the generation is."""
WARM_UP = 4
"""Generations before the replay buffer has its full size and the machine has settled."""


@contextmanager
def every_other() -> Iterator[None]:
    """Write checkpoints after even generations only; their background work falls into the generation after."""
    submit = CheckpointWriter.submit

    def submit_even(self: CheckpointWriter, generation: int, state: Mapping[str, Any]) -> None:
        self.wait()
        if generation % 2 == 0:
            submit(self, generation, state)

    with mock.patch.object(CheckpointWriter, "submit", submit_even):
        yield


def added_time(generations: int, settings: str = QUICK_RUN, warm_up: int = WARM_UP) -> Row:
    """Run with a checkpoint, uploaded to a folder, after every other generation, and compare neighbours.

    The time added is what the copy of the state takes between generations, and by how much a generation is slower while
    the copy is written, verified and uploaded beside it: the median over pairs of neighbours.
    """
    with folder() as runs:
        (runs / "volume").mkdir()
        words = [*flags(runs, settings), "--run", "one", "--generations", str(generations)]
        with (
            mock.patch.dict(os.environ, {"CLOUD_PROVIDER": "local", "CLOUD_BUCKET": str(runs / "volume")}),
            every_other(),
        ):
            ended = run_here(*words)
        assert ended.code == 0, ended.shown
        copied, slowed, error, alone = _seconds(runs / "one", range(warm_up, generations, 2))
    added = copied + slowed
    measured = (
        f"{added / alone:.1%}: {copied:.3f} s between generations, {slowed:+.3f} +- {error:.3f} s beside the next, "
        f"of {alone:.2f} s"
    )
    must_be = f"under {LARGEST_SECONDS} s a generation"
    return Row("time added by checkpoints and uploads", generations, must_be, measured, added < LARGEST_SECONDS)


def _seconds(run: Path, undisturbed: range) -> tuple[float, float, float, float]:
    """Return seconds of a generation: the copy of the state, the time that writing adds to the next, its standard
    error, and those of the `undisturbed` generations, beside which nothing is written.
    """
    lines = (run / "metrics.jsonl").read_text().splitlines()
    totals = {record["generation"]: record["seconds"]["total"] for record in map(json.loads, lines)}
    copies = json.loads((run / "summary.json").read_text())["seconds"]["checkpoint"]
    pairs = [(number + 1, number) for number in undisturbed if number + 1 in totals]
    copied = statistics.median(copies[number - 1] for _, number in pairs)
    added = [totals[beside] - totals[alone] for beside, alone in pairs]
    # Of a median of normal errors: 1.25 times that of their mean.
    error = 1.25 * statistics.stdev(added) / len(added) ** 0.5
    return copied, statistics.median(added), error, statistics.median(totals[alone] for _, alone in pairs)
