"""The ledger of looks at the holdout and other untouched days: one line per look, append-only.

It lies in the folder of all runs and identifies data by their contents: another run, seed or split of the same data
looks at the same days.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from data.market import Market
from data.record import data_fingerprint
from utils.errors import ConfigError

LEDGER = "holdout.jsonl"
"""Of a folder of runs."""


@dataclass(frozen=True)
class Look:
    """One recorded evaluation on untouched days."""

    time: str
    """UTC, ISO 8601."""
    command: str
    champion_generation: int | None
    """None for a walk-forward test, which has a champion for each fold, and for policies of the user."""
    first_day: str
    last_day: str
    return_percent: float | None
    result: str
    """The verdict's sentence."""
    run: str = ""
    """Name of the run or of the walk-forward test."""
    data: tuple[str, ...] = ()
    """The data's fingerprint, see `data_fingerprint`."""
    extends: str = ""
    """Name of the run that this one extends, if any."""
    digest: str = ""
    """Of what the champion decides by; empty in looks of earlier versions, and of walk-forward tests."""

    @property
    def champion(self) -> tuple[str, int | None, str]:
        return self.run, self.champion_generation, self.digest


@contextlib.contextmanager
def locked_ledger(runs: Path) -> Iterator[Path]:
    """Lock the ledger of a folder of runs against other readers and writers; yield its path."""
    path = runs / LEDGER
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


def read_looks(runs: Path, market: Market, first_day: str, last_day: str) -> list[Look]:
    """Return the looks at days of these data within these dates, by any run in the folder, the oldest first.

    Raises ConfigError if a line is no look.
    """
    path, fingerprint, looks = runs / LEDGER, set(data_fingerprint(market)), list[Look]()
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            look = Look(**{**values, "data": tuple(values["data"])})
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"expected a look on line {number} of {path}, got {line[:60]!r}; mend it") from None
        if fingerprint & set(look.data) and look.first_day <= last_day and first_day <= look.last_day:
            looks.append(look)
    return sorted(looks, key=lambda look: look.time)


def add_look(ledger: Path, look: Look) -> None:
    """Append a look in one write, and sync it to the disk."""
    line = json.dumps(asdict(look), allow_nan=False) + "\n"
    with ledger.open("ab", buffering=0) as file:
        file.write(line.encode())
        os.fsync(file.fileno())


def champions_looked_at(looks: Sequence[Look], champion: tuple[str, int | None, str]) -> int:
    """Count the distinct champions, by run, generation and digest, of these looks and `champion`.

    Repeated looks at one champion are one trial; each further champion adds one, that of a run which took the name of
    another, too. A look without a digest is at the champion of its run and generation, whichever that is.
    """
    champions = {look.champion for look in looks} | {champion}
    known = {one[:2] for one in champions if one[2]}
    return sum(bool(one[2]) or one[:2] not in known for one in champions)
