"""A whole training run that takes a second: its settings, its data, and what it leaves to compare."""

import html
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from benchmarks.faults import harness as fault_harness
from benchmarks.faults.child import unjudged as unjudged
from benchmarks.faults.harness import SMALL_RUN
from main import main

TINY = f"generations = 2{SMALL_RUN}"


def run(tiny: Path, *flags: str) -> int:
    """Run the program with a settings file, its runs beside that file; returns the exit code."""
    return main(["--config", str(tiny), "--runs-dir", str(tiny.parent / "runs"), "--profile", "quick", *flags])


def tiny_in(folder: Path) -> Path:
    path = folder / "tiny.toml"
    path.write_text(TINY)
    return path


def to_reproduce(page: Path) -> list[str]:
    """The arguments of the command with which a page is reproduced, as it says."""
    (command,) = re.findall(r"This command reproduces the page[^<]*</p>\s*<pre><code>([^<]*)</code>", page.read_text())
    python, program, *words = shlex.split(html.unescape(command))
    assert (python, program) == ("python", "main.py")
    return words


def keep_in(volume: Path, patch: pytest.MonkeyPatch) -> Path:
    """Keep runs in a folder, which is made, as in a bucket."""
    volume.mkdir(exist_ok=True)
    patch.setenv("CLOUD_PROVIDER", "local")
    patch.setenv("CLOUD_BUCKET", str(volume))
    return volume


def records(tiny: Path, name: str) -> list[dict[str, Any]]:
    """The metrics of a run without what may differ between equal runs."""
    return fault_harness.records(tiny.parent / "runs" / name)


def parameters(tiny: Path, name: str, generation: int) -> bytes:
    return fault_harness.tensors(tiny.parent / "runs" / name / "checkpoints" / f"generation-{generation:06d}")


def assert_like(tiny: Path, name: str, whole: str, generation: int) -> None:
    """Both runs have come to this generation alike, but for how many there were to be when a record was written."""
    found, expected = ([one | {"generations": generation} for one in records(tiny, run)] for run in (name, whole))
    assert found == expected
    assert parameters(tiny, name, generation) == parameters(tiny, whole, generation)


def frame(days: int, tickers: int) -> pd.DataFrame:
    """Long frame of a random market without gaps."""
    rng = np.random.default_rng(0)
    dates = np.busday_offset("2010-01-04", np.arange(days))
    close = 20 * np.exp(np.cumsum(0.01 * rng.standard_normal((days, tickers)), axis=0))
    return pd.DataFrame(
        {
            "date": np.repeat(dates, tickers).astype("datetime64[s]"),
            "ticker": np.tile([f"T{i}" for i in range(tickers)], days),
            "open": close.ravel(),
            "high": close.ravel() * 1.01,
            "low": close.ravel() * 0.99,
            "close": close.ravel(),
        }
    )
