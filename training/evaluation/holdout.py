"""The ledger of looks at the holdout: one line a look, never rewritten, since each look uses some of it up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from utils.errors import ConfigError

LEDGER = "holdout.jsonl"


@dataclass(frozen=True)
class Look:
    """One look at the holdout of a run."""

    time: str
    """UTC, ISO 8601."""
    command: str
    champion_generation: int
    first_day: str
    last_day: str
    return_percent: float | None
    result: str
    """The verdict."""


def read_looks(run: Path) -> list[Look]:
    """Return the looks so far, the oldest first. Raises ConfigError for a line that is no look."""
    path = run / LEDGER
    if not path.is_file():
        return []
    looks = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            looks.append(Look(**json.loads(line)))
        except (ValueError, TypeError):
            raise ConfigError(f"expected a look on line {number} of {path}, got {line[:60]!r}; mend it") from None
    return looks


def add_look(run: Path, look: Look) -> None:
    """Append a look."""
    with (run / LEDGER).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(look), allow_nan=False) + "\n")


def champions_looked_at(looks: Sequence[Look], champion_generation: int) -> int:
    """Count the champions that the holdout has judged, the one of `champion_generation` included.

    Looking at the same champion again tells nothing new; looking at another one gives a choice.
    """
    return len({look.champion_generation for look in looks} | {champion_generation})
