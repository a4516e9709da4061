"""What a person at a terminal reads of a run, and what a file, a pipe and `run.log` have instead."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from utils import VERSION

PROGRAM = Path(__file__).parents[2] / "main.py"
WATCHED = (
    "Initializing persistent evaluation environment...",
    "Generation 1 / 2",
    "Evaluate...",
    "Training range: days",
)
"""Lines that watchers of a log look for."""


def on_terminal(columns: int, *words: str) -> str:
    """What the program writes to a terminal of this width, without what bars wrote over."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, str(PROGRAM), *words]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(its)
        shown = b""
        while True:
            try:
                part = os.read(mine, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(mine)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_a_table_and_the_answer(tiny: Path, columns: int) -> None:
    words = "--config", str(tiny), "--runs-dir", str(tiny.parent / "runs"), "--run", "one", "--rivals", "none"
    shown = on_terminal(columns, *words)
    log = (tiny.parent / "runs" / "one" / "run.log").read_text()
    for text in WATCHED:
        assert text in log and text not in shown, text
    assert shown.lstrip().startswith(f"ERL trader {VERSION.rpartition('.')[0]}, run ")
    for text in ("SYNTHETIC", "profit per episode", "agents add", "RESULT  validation", "random picks", "closed form"):
        assert text in shown and (text == "closed form" or text not in log), text
    rows = [line.split() for line in shown.splitlines() if line[:5].strip() in ("1", "2")]
    assert [row[0] for row in rows] == ["1", "2"] and all("p" in row for row in rows)
    for line in shown.split("RESULT")[1].splitlines():
        assert len(line) <= columns or line.split()[0] in ("page", "next"), line


def test_verbose_shows_a_terminal_everything(tiny: Path) -> None:
    words = "--config", str(tiny), "--runs-dir", str(tiny.parent / "runs"), "--rivals", "none", "--verbose"
    shown = on_terminal(80, *words)
    for text in (*WATCHED, "Result of the champion"):
        assert text in shown
    assert "RESULT" not in shown
