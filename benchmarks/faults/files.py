"""Malformed files, hand-made and fuzzed: each must give one clear error and exit code 2, never a traceback."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from benchmarks.faults.harness import Ended, Row, flags, folder, run_here
from data.synthetic.built_in import bars_frame, synthetic_market
from utils.config.trader import SyntheticConfig

FUZZED = 6
FRAMES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "missing column": lambda good: good.drop(columns="close"),
    "text as a price": lambda good: good.assign(close="dear"),
    "a day twice": lambda good: pd.concat([good, good.head(1)]),
    "no rows": lambda good: good.head(0),
    "too few days": lambda good: good.groupby("ticker").head(30),
    "negative prices": lambda good: good.assign(close=-1.0),
    "infinite prices": lambda good: good.assign(open=float("inf")),
    "constant prices": lambda good: good.assign(open=9.0, high=9.0, low=9.0, close=9.0),
    "too few results to learn from": lambda good: good[good["ticker"] == "S000"],
    "numbers as dates": lambda good: good.assign(date=1.5),
}
SETTINGS = (
    "generations = 0",
    "generations = 'ten'",
    "nonsense = 1",
    "generations = ",
    "[env",
    "[env]\ncost_bps = nan",
    "[learning]\nreplay_capacity = 0",
    "[evolution]\npopulation_size = 0",
    "run = '../escape'",
    "env = 3",
    "\0",
)
RECORDS = (b"", b"{", b"[1]", b"\xff\xfe", b'{"generations": 0}')
"""Contents in place of the settings of a run that is to be resumed."""


def malformed_files() -> Row:
    """Start with spoilt parquet files, settings files and records of a run."""
    with folder() as root:
        ended = [*_parquet(root), *_settings(root), *_records(root)]
    clear = sum(item.code == 2 and item.is_clear for item in ended)
    tracebacks = sum("Traceback" in item.shown for item in ended)
    measured = f"{clear} clear errors with exit code 2, {tracebacks} tracebacks"
    test, must_be = "malformed parquet and config files", "clear errors, 0 tracebacks, exit code 2"
    return Row(test, len(ended), must_be, measured, clear == len(ended) and not tracebacks)


def _parquet(root: Path) -> list[Ended]:
    words, path = [*flags(root), "--data", str(root / "spoilt.parquet")], root / "spoilt.parquet"
    good = bars_frame(synthetic_market(SyntheticConfig(kind="momentum", days=300, stocks=6), seed=1))
    ended = []
    for spoil in FRAMES.values():
        spoil(good).to_parquet(path)
        ended.append(run_here(*words))
    good.to_parquet(path)
    whole, rng = path.read_bytes(), random.Random(3)
    for number in range(FUZZED):
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] if number % 2 else whole[:-8] + rng.randbytes(8))
        ended.append(run_here(*words))
    return ended


def _settings(root: Path) -> list[Ended]:
    ended = []
    for text in SETTINGS:
        words = flags(root, text)
        ended.append(run_here(*words))
    return ended


def _records(root: Path) -> list[Ended]:
    words = [*flags(root), "--generations", "1"]
    run_here(*words, "--run", "good")
    ended = []
    for number, data in enumerate(RECORDS):
        name = f"spoilt{number}"
        shutil.copytree(root / "good", root / name)
        (root / name / "config.json").write_bytes(data)
        ended.append(run_here(*words, "--resume", name))
    return ended
