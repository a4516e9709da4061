"""Which run or study is meant: by its name, the newest one, or the one to resume, on this disk or in the cloud."""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from utils.config.settings import LATEST, hint
from utils.errors import ConfigError

if TYPE_CHECKING:
    from utils.cloud.store import ObjectStore

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
PLAN = "walk_forward.json"
"""With which a walk-forward test begins."""


@dataclass(frozen=True)
class RunFiles:
    """A kind of run, told by the files of its folder."""

    noun: str = "run"
    begin: str = CONFIG
    """The file with which one begins."""
    end: str = SUMMARY
    """The file that ends it."""


@dataclass(frozen=True, order=True)
class Standing:
    """How far a run or study came; the greatest is the one to resume."""

    is_unfinished: bool
    is_accepted: bool
    """It has more than its settings, whose data may never have been accepted."""
    progressed: float
    """When it began or recorded its last generation."""
    name: str


def newest_run(runs_dir: Path, name: str | None = None) -> Path:
    """Return the folder of the named run, or of the one that recorded a generation last; ConfigError without one."""
    if name is None or name == LATEST:
        trained = [one for one in standings(files_of_runs(runs_dir)) if (runs_dir / one.name / METRICS).is_file()]
        if not trained:
            message = f"expected a run that has trained in {runs_dir}, got none"
            raise ConfigError(f"{message}; start one, or name another --runs-dir")
        return runs_dir / max(trained, key=lambda one: (one.progressed, one.name)).name
    if (runs_dir / name / PLAN).is_file():
        raise ConfigError(f"expected a run, got {name!r}, a walk-forward test; go on with walk-forward --resume {name}")
    if not (runs_dir / name / CONFIG).is_file():
        runs = sorted(config.parent.name for config in runs_dir.glob(f"*/{CONFIG}"))
        newest = f"; the last names there: {', '.join(runs[-5:]) or 'none'}"
        raise ConfigError(f"expected a run in {runs_dir}, got {name!r}{hint(name, runs, newest)}")
    return runs_dir / name


def name_to_resume(asked: str, runs_dir: Path, store: ObjectStore | None, kind: RunFiles = RunFiles()) -> str:
    """Return the name asked for, or what --resume without one means: the greatest `Standing` here, else in the store.

    Raises ConfigError where there is none.
    """
    if asked != LATEST:
        return asked
    runs = standings(files_of_runs(runs_dir), kind)
    if not runs and store is not None:
        runs = standings(store.list(""), kind)
    if not runs:
        where = f"{runs_dir}{'' if store is None else ' or in the cloud'}"
        message = f"expected a {kind.noun} to resume in {where}, got none"
        raise ConfigError(f"{message}; start one without --resume, or name another --runs-dir")
    return max(runs).name


def standings(files: Mapping[str, float], kind: RunFiles = RunFiles()) -> list[Standing]:
    """Return the runs of a kind, given times by path below the folder of runs."""
    by_run: dict[str, dict[str, float]] = defaultdict(dict)
    for path, when in files.items():
        run, _, name = path.partition("/")
        by_run[run][name] = when
    runs = []
    for run, times in by_run.items():
        if kind.begin in times:
            recorded = [when for name, when in times.items() if name.endswith(METRICS)]
            progressed = max([times[kind.begin], *recorded])
            # Settings are the last file that is fetched, and so may be later than the end.
            last = max(recorded, default=progressed)
            is_accepted = any(name != kind.begin and name.endswith((".json", METRICS)) for name in times)
            runs.append(Standing(times.get(kind.end, -math.inf) < last, is_accepted, progressed, run))
    return runs


def files_of_runs(runs: Path) -> dict[str, float]:
    """Return the settings, metrics and results below a folder of runs, with their times."""
    paths = [path for depth in ("*/", "*/*/") for end in ("json*", "html") for path in runs.glob(f"{depth}*.{end}")]
    times = dict[str, float]()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # replaced by its writer
            if not path.name.startswith("."):
                times[path.relative_to(runs).as_posix()] = path.stat().st_mtime
    return times
