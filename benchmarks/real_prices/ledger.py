"""The ledger of the study: every run over the test days is written down, and all are held to the first one's plan."""

import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.learning.study import append_result, read_results
from benchmarks.real_prices.plan import Plan
from utils.errors import ConfigError

LEDGER = "runs.jsonl"
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Look:
    """A run over the test days."""

    time: str
    plan: str
    """SHA-256 (hex) of the plan's contents."""
    data: str
    """SHA-256 (hex) of the data and the list of stocks."""
    code: str
    """Git commit, with a + where files differ from it; "unknown" without one."""
    parts_left: int
    """Parts that had no result when it began."""


def enter(folder: Path, plan: Plan, data: str, parts_left: int) -> list[Look]:
    """Write a run into the ledger of a folder before anything is played; return all runs, the oldest first.

    Raises:
        ConfigError: the folder was begun under another plan, or on other data.
    """
    looks = require_same(folder, plan, data)
    looks.append(Look(datetime.now(UTC).isoformat(timespec="seconds"), plan.digest, data, code_version(), parts_left))
    append_result(folder / LEDGER, asdict(looks[-1]))
    return looks


def require_same(folder: Path, plan: Plan, data: str) -> list[Look]:
    """Return the runs of a folder. Raises ConfigError where one had another plan or other data."""
    looks = [Look(**record) for record in read_results(folder / LEDGER)]
    for name, now in (("plan", plan.digest), ("data", data)):
        before = next((getattr(look, name) for look in looks if getattr(look, name) != now), None)
        if before is not None:
            raise ConfigError(
                f"expected the {name} {before[:12]} with which {folder} was begun, got {now[:12]}: results of both "
                "would be mixed; restore it, or name a new folder with --out"
            )
    return looks


def code_version() -> str:
    """Return the commit of the code, with a + where files differ from it; "unknown" without Git."""
    try:
        commit, changes = (
            subprocess.run(["git", *words], cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()
            for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changes else "")
