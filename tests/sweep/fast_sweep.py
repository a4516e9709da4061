"""The program with a formula in the place of training, so that a run takes milliseconds; `python -m` starts it."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import training.commands.sweep as command
from main import main
from utils.config.settings import to_dict
from utils.config.trader import Config
from utils.errors import CheckpointError, ConfigError
from utils.runs.find import CONFIG, METRICS, SUMMARY
from utils.runs.run_lock import RunLock
from utils.runs.run_log import RunLog, write_atomically, write_json

DAYS = 64
STARTS = "starts.log"
"""A line for each time that a run was begun or gone on with, in the sweep's folder."""
SPACE = """
evolution.mutation_strength = {low = 0.0, high = 1.0}
learning.exploration_noise = {low = 0.5, high = 2.5}
learning.gradient_accumulation = {choices = [1, 2, 4]}
"""
HELD, DAMAGED = "FAST_SWEEP_HELD", "FAST_SWEEP_DAMAGED"
"""Variables: number of the start from which runs wait to be killed, and the run that cannot write its checkpoint."""


def profit_of(config: Config) -> float:
    """Percent: best at a strength of 0.3; seeds differ by more than most trials do, alike for all of them."""
    return (
        10
        - 20 * abs(config.evolution.mutation_strength - 0.3)
        + 3 * (config.seed % 3)
        + config.learning.exploration_noise
    )


def learn(config: Config, explicit: frozenset[str], **_: Any) -> None:
    """Leave what a run leaves that a sweep reads; one that explores more than 2.3 is refused."""
    name = config.run or config.resume
    assert name is not None
    folder = config.runs_dir / name
    with (config.runs_dir / STARTS).open("a") as file:
        file.write(f"{name}\n")
    if config.learning.exploration_noise > 2.3:
        raise ConfigError(f"expected less exploration, got {config.learning.exploration_noise}")
    if name == os.environ.get(DAMAGED):
        raise CheckpointError("expected a disk with room, got a full one")
    if not (folder / CONFIG).is_file():
        RunLog.create(config.runs_dir, name, to_dict(config))
    with RunLock(folder):
        while HELD in os.environ and starts(config.runs_dir) >= int(os.environ[HELD]):
            time.sleep(1.0)
        (folder / METRICS).touch()
        write_results(folder, profit_of(config), config.seed)


def starts(folder: Path) -> int:
    """The number of times that a run of a sweep was begun or gone on with."""
    return len((folder / STARTS).read_text().split()) if (folder / STARTS).is_file() else 0


def write_results(folder: Path, percent: float, seed: int) -> None:
    noise = 0.01 * np.random.default_rng(seed).standard_normal(DAYS)
    log_returns = noise - noise.mean() + np.log1p(percent / 100) / DAYS
    champion = 100 * np.exp(np.concatenate(([0.0], np.cumsum(log_returns))))
    dates = np.datetime64("2020-01-01") + np.arange(DAYS + 1)
    frame = pd.DataFrame({"date": dates, "champion": champion, "equal weight": np.linspace(100, 101, DAYS + 1)})
    write_atomically(folder / "equity.csv", frame.to_csv(index=False))
    found = {
        "benchmark": "equal weight",
        "policies": {"champion": {"return": {"value": percent}}},
        "verdict": {"sentence": f"Seed {seed}."},
    }
    write_json(folder / "results.json", found)
    write_json(folder / SUMMARY, {})


command.train_of_study = learn  # type: ignore[assignment]
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
