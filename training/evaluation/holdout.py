"""The ledger of looks at days that chose nothing: one line a look, never rewritten, each look uses some of them up.

It lies in the folder of all runs and goes by the data's contents: another run, seed or split of the same data looks at
the same days.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from data.market import Market
from data.record import data_fingerprint, is_recorded_market, read_record
from utils.errors import ConfigError, DataError

LEDGER = "holdout.jsonl"
"""Of a folder of runs; versions before this one kept it in each run's own folder."""


@dataclass(frozen=True)
class Look:
    """One look at days that chose nothing."""

    time: str
    """UTC, ISO 8601."""
    command: str
    champion_generation: int | None
    """None for a walk-forward test, which has a champion for each fold."""
    first_day: str
    last_day: str
    return_percent: float | None
    result: str
    """The verdict."""
    run: str = ""
    """Name of the run or of the walk-forward test."""
    data: tuple[str, ...] = ()
    """The data's fingerprint, see `data_fingerprint`."""
    extends: str = ""
    """Name of the run that this one began with, if any."""

    @property
    def champion(self) -> tuple[str, int | None]:
        """Return the run and generation of what was judged."""
        return self.run, self.champion_generation

    def is_beside(self, other: Look) -> bool:
        """Tell whether this look is one at the same data, as far as is known, on days that overlap."""
        is_of_data = self.run == other.run or not set(self.data).isdisjoint(other.data)
        return is_of_data and self.first_day <= other.last_day and other.first_day <= self.last_day


@contextlib.contextmanager
def locked_ledger(runs: Path) -> Iterator[Path]:
    """Hold the ledger of a folder of runs, so that nobody else reads or adds meanwhile; gives its path."""
    path = runs / LEDGER
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def read_looks(runs: Path, market: Market, first_day: str, last_day: str) -> list[Look]:
    """Return the looks at days of these data within these dates, by any run in the folder, the oldest first.

    Looks in a run's own ledger are counted where its record of the market is that of these data.

    Raises:
        ConfigError: a line is no look.
    """
    fingerprint = set(data_fingerprint(market))
    looks = [look for look in _read(runs / LEDGER) if fingerprint & set(look.data)]
    for path in sorted(runs.glob(f"*/{LEDGER}")):
        if _is_of(path.parent, market):
            looks += _read(path, run=path.parent.name)
    return sorted(
        (look for look in looks if look.first_day <= last_day and first_day <= look.last_day),
        key=lambda look: look.time,
    )


def looks_beside(runs: Path, run: str) -> list[Look]:
    """Return the looks of all runs at the days and data at which this run was looked at, if it was, the oldest first.

    Raises:
        ConfigError: a line is no look.
    """
    looks = _read(runs / LEDGER)
    for path in sorted(runs.glob(f"*/{LEDGER}")):
        looks += _read(path, run=path.parent.name)
    own = [look for look in looks if look.run == run]
    return sorted((look for look in looks if any(map(look.is_beside, own))), key=lambda look: look.time)


def add_look(ledger: Path, look: Look) -> None:
    """Append a look in one write, and make sure that it is on the disk."""
    line = json.dumps(asdict(look), allow_nan=False) + "\n"
    descriptor = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def champions_looked_at(looks: Sequence[Look], champion: tuple[str, int | None]) -> int:
    """Count the champions, by run and generation, that these looks have judged, `champion` included.

    Looking at the same champion again tells nothing new; looking at another one gives a choice.
    """
    return len({look.champion for look in looks} | {champion})


def _read(path: Path, **missing: Any) -> list[Look]:
    if not path.is_file():
        return []
    looks, names = [], {field.name for field in fields(Look)}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            values = json.loads(line)
            if not names >= set(values):
                raise TypeError
            looks.append(Look(**{**missing, **values, "data": tuple(values.get("data", ()))}))
        except (ValueError, TypeError):
            raise ConfigError(f"expected a look on line {number} of {path}, got {line[:60]!r}; mend it") from None
    return looks


def _is_of(run: Path, market: Market) -> bool:
    """Tell whether a run's record of its market is one of these data."""
    try:
        record = read_record(json.loads((run / "market.json").read_text(encoding="utf-8")), str(run))
    except (OSError, ValueError, DataError):
        return False
    return is_recorded_market(market, record)
