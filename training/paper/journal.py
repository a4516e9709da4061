"""The journal of a paper account: an append-only SQLite file whose rows are chained by their hashes."""

import contextlib
import hashlib
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

from utils.config.cli import command_line
from utils.config.kinds import RUNS
from utils.errors import DataError, FileError

JOURNAL = "journal.sqlite"
STOP = "STOP"
"""A file of this name beside the journal stops new orders."""
_SCHEMA = """
CREATE TABLE rows (
    number INTEGER PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, hash TEXT NOT NULL,
    UNIQUE (kind, key)
) STRICT;
CREATE TRIGGER no_update BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""


class Row(NamedTuple):
    """A row of the journal."""

    number: int
    kind: str
    key: str
    """At most one row of a kind has it, so that what was written once is never written again."""
    body: dict[str, Any]
    hash: str


class Journal:
    """Rows that were written, in their order; each is durable when `append` returns."""

    last: Row

    def __init__(self, path: Path, copied: Path | None = None) -> None:
        """Open and verify a journal, or what was `copied` of it to where SQLite may write.

        Raises:
            DataError: a row was changed.
        """
        self.path = path
        self._of: dict[str, dict[str, Row]] = {}
        with _errors(path):
            self._connection = _connect(copied or path)
            rows = self._connection.execute("SELECT * FROM rows ORDER BY number").fetchall()
        before = ""
        for expected, (number, kind, key, text, stored) in enumerate(rows, start=1):
            if number != expected or stored != _hash(before, number, kind, key, text):
                raise DataError(
                    f"expected the journal {path} as it was written, got row {number} ({kind} {key}), which does not "
                    "follow from the rows before it; restore the file from a copy"
                )
            before = stored
            self._keep(Row(number, kind, key, json.loads(text), stored))

    @classmethod
    def create(cls, path: Path, body: dict[str, Any]) -> None:
        """Create a journal with its first row, of kind `open`."""
        with _errors(path):
            connection = _connect(path)
            connection.executescript(_SCHEMA)
            connection.close()
        with cls(path) as journal:
            journal.append("open", "", body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def hashes(self) -> set[str]:
        """The hashes of all rows."""
        return {row.hash for rows in self._of.values() for row in rows.values()}

    @property
    def opening(self) -> dict[str, Any]:
        """The first row's contents."""
        return self.of("open")[""].body

    @property
    def sessions(self) -> dict[str, dict[str, Any]]:
        """Sessions by their dates, from the first one on."""
        return {date: row.body for date, row in self.of("session").items()}

    @property
    def renamed(self) -> dict[str, str]:
        """The newest names of the tickers that were renamed, by those that the account opened with."""
        renamed = dict[str, str]()
        for row in self.of("rename").values():
            first = next((ticker for ticker, name in renamed.items() if name == row.body["old"]), row.body["old"])
            renamed[first] = row.body["new"]
        return renamed

    @property
    def accepted_until(self) -> int:
        """The number of the last row by which a person let the account go on; 0 where there is none."""
        return max((row.number for row in self.of("go").values()), default=0)

    def units(self, until: str = "9999", *, splits_until: str = "") -> defaultdict[str, float]:
        """Return by ticker the factor from the account's prices to those of a day, by its events; 1 for all others.

        Args:
            splits_until: day up to which splits count, if it is later.
        """
        factors = defaultdict[str, float](lambda: 1.0)
        for event in self.of("event").values():
            if event.body["since"] <= (max(until, splits_until) if event.body["kind"] == "split" else until):
                factors[event.body["ticker"]] *= event.body["ratio"]
        return factors

    @property
    def in_hindsight(self) -> set[str]:
        """The sessions at whose close orders were decided when later ones were known."""
        return {date for date, row in self.of("intent").items() if "text" in row.body}

    def stop_reason(self) -> str:
        """Return why the account buys nothing; empty where it does."""
        if os.path.lexists(self.path.parent / STOP):
            return f"there is a file {STOP} in {self.path.parent}"
        since = self.accepted_until
        rows = [row for kind in ("stop", "doubt") for row in self.of(kind).values() if row.number > since]
        if rows:
            return str(rows[0].body["text"])
        last = [row.body for row in [*self.of("intent").values()][-1:] if row.number > since]
        return "the account has fallen beyond its drawdown lock" if last and last[0].get("is_locked") else ""

    def of(self, kind: str) -> dict[str, Row]:
        """Return the rows of a kind by their keys, in their order."""
        return self._of.get(kind, {})

    def append(self, kind: str, key: str, body: dict[str, Any] | None = None) -> Row:
        """Write a row durably, and return it; where there is one with this key already, write nothing and return that.

        Raises:
            FileError: it cannot be written.
        """
        if key in self.of(kind):
            return self.of(kind)[key]
        text = json.dumps(body or {}, sort_keys=True, separators=(",", ":"), allow_nan=False)
        number, before = (self.last.number + 1, self.last.hash) if self._of else (1, "")
        row = Row(number, kind, key, json.loads(text), _hash(before, number, kind, key, text))
        with _errors(self.path):
            self._connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (number, kind, key, text, row.hash))
        self._keep(row)
        return row

    def _keep(self, row: Row) -> None:
        self._of.setdefault(row.kind, {})[row.key] = self.last = row


def paper_command(command: str, account: Path) -> str:
    """Return a command `paper ...` about the account of a folder."""
    runs = [] if account.parent == RUNS else ["--runs-dir", str(account.parent)]
    return command_line("paper", command, account.name, *runs)


def _connect(path: Path) -> sqlite3.Connection:
    # Without a transaction around it each statement is committed, and so on disk, when it returns.
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _hash(before: str, number: int, kind: str, key: str, text: str) -> str:
    return hashlib.sha256(json.dumps([before, number, kind, key, text]).encode()).hexdigest()


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Convert errors of SQLite: what cannot be written, and what is no journal."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            raise DataError(f"expected a journal in {path}, got an empty file; restore it from a copy") from None
        raise FileError(f"expected a journal that can be read and written in {path}, got: {error}") from None
    except sqlite3.DatabaseError as error:
        raise DataError(f"expected a journal in {path}, got: {error}; restore the file from a copy") from None
