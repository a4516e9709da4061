"""Settings of studies so small that a training takes a moment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.learning.study import study_config
from utils.config.trader import Config

TINY = [
    *("--synthetic.days", "400", "--synthetic.stocks", "8", "--split.context-window-days", "12"),
    *("--env.trading-days", "12", "--env.settlement-days", "4"),
    *("--population-size", "4", "--learning.replay-capacity", "512"),
    *("--evaluation.fitness-windows", "2", "--evaluation.exploration-windows", "1"),
    *("--evaluation.validation-windows", "2", "--evaluation.random-pickers", "20", "--memory-report", "off"),
]
SMALL_STUDY = ["--seeds", "2", "--generations", "1", "--paths", "1"]
Studied = Callable[..., tuple[list[str], list[dict[str, Any]]]]
"""Does the study of some words, and returns the lines that it printed and the results that it keeps."""


def tiny_config(*words: str) -> Config:
    return study_config([*TINY, *words])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
