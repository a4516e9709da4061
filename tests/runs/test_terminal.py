"""What a person at a terminal reads of a run, and what a file, a pipe and `run.log` have instead."""

import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from main import main
from utils import VERSION

WATCHED = (
    "Initializing persistent evaluation environment...",
    "Generation 1 / 2",
    "Evaluate...",
    "Training range: days",
)
"""Lines that watchers of a log look for."""


@contextlib.contextmanager
def terminal(columns: int) -> Iterator[list[str]]:
    """Make standard output a terminal of this width; what was written to it is in the list once it is closed."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    parts, shown = list[bytes](), list[str]()

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(mine, 65536):
                parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(its, "w") as screen:
        patch.delenv("COLUMNS", raising=False)
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "__stdout__", screen)
        yield shown
    reader.join()
    os.close(mine)
    shown.append(b"".join(parts).decode().replace("\r\n", "\n"))


def on_terminal(columns: int, tiny: Path, *words: str) -> str:
    with terminal(columns) as shown:
        assert main(["--config", str(tiny), "--runs-dir", str(tiny.parent / "runs"), "--rivals", "none", *words]) == 0
    return shown[0]


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_a_table_and_the_answer(tiny: Path, columns: int) -> None:
    shown = on_terminal(columns, tiny, "--run", "one")
    log = (tiny.parent / "runs" / "one" / "run.log").read_text()
    for text in WATCHED:
        assert text in log and text not in shown, text
    assert shown.lstrip().startswith(f"ERL trader {VERSION.rpartition('.')[0]}, run ")
    for text in ("SYNTHETIC", "profit per episode", "agents add", "RESULT  validation", "no difference", "closed form"):
        assert text in shown and (text == "closed form" or text not in log), text
    rows = [line.split() for line in shown.splitlines() if line[:5].strip() in ("1", "2")]
    assert [row[0] for row in rows] == ["1", "2"] and all("p" in row for row in rows)
    for line in shown.split("RESULT")[1].splitlines():
        assert len(line) <= columns or line.split()[0] in ("page", "next"), line


def test_verbose_shows_a_terminal_everything(tiny: Path) -> None:
    shown = on_terminal(80, tiny, "--verbose")
    for text in (*WATCHED, "Result of the champion"):
        assert text in shown
    assert "RESULT" not in shown
