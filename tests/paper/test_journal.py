"""The journal forgets nothing, and nothing in it can be changed unnoticed."""

import json
import sqlite3
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from training.paper.journal import JOURNAL, Journal
from utils.errors import DataError, FileError


def journal_of(folder: Path, rows: int = 5) -> Path:
    path = folder / JOURNAL
    path.unlink(missing_ok=True)
    Journal.create(path, {"account": "one"})
    with Journal(path) as journal:
        for number in range(rows):
            journal.append("session", f"day {number}", {"equity": 0.1 + number / 3})
    return path


def test_rows_are_read_as_they_were_written_and_written_once(tmp_path: Path) -> None:
    with Journal(journal_of(tmp_path)) as journal:
        assert [row.body["equity"] for row in journal.of("session").values()] == [0.1 + n / 3 for n in range(5)]
        before = journal.last
        assert journal.append("session", "day 2", {"equity": 9.0}).body == {"equity": 0.1 + 2 / 3}
        assert journal.last == before


@pytest.mark.parametrize("statement", ["UPDATE rows SET body = '{}' WHERE number = 2", "DELETE FROM rows"])
def test_nothing_is_changed_through_the_database(tmp_path: Path, statement: str) -> None:
    with sqlite3.connect(journal_of(tmp_path)) as connection, pytest.raises(sqlite3.IntegrityError, match="append"):
        connection.execute(statement)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 6), st.sampled_from(["kind", "key", "body", "hash", "number", "gone"]))
def test_a_row_changed_behind_its_back_is_found(tmp_path: Path, number: int, what: str) -> None:
    path = journal_of(tmp_path)
    with sqlite3.connect(path) as connection:
        for trigger in ("no_update", "no_delete"):
            connection.execute(f"DROP TRIGGER {trigger}")
        if what == "gone":
            # The last row alone can be missing unnoticed: what the venue knows tells that.
            connection.execute("DELETE FROM rows WHERE number = ?", (min(number, 5),))
        elif what == "number":
            connection.execute("UPDATE rows SET number = number + 10 WHERE number = ?", (number,))
        else:
            other = json.dumps({"equity": 1}) if what == "body" else "other"
            connection.execute(f"UPDATE rows SET {what} = ? WHERE number = ?", (other, number))
    connection.close()
    with pytest.raises(DataError, match="as it was written"):
        Journal(path)


def test_damage_and_a_missing_disk_are_one_line(tmp_path: Path) -> None:
    path = journal_of(tmp_path)
    with Journal(path) as journal:
        journal._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(FileError, match="full"):
            for number in range(1000):
                journal.append("hold", str(number), {"text": "x" * 1000})
        written = journal.last
    assert Journal(path).last == written  # no row is kept that was not written
    path.write_bytes(b"no database" * 100)
    (empty := tmp_path / "empty.sqlite").touch()
    for damaged in (path, empty):
        with pytest.raises(DataError, match="restore"):
            Journal(damaged)
