"""Log messages: wrapped and coloured lines on the terminal, all of them in the run's log."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

from tqdm import tqdm

from utils.progress import REPORTER

LOG = "run.log"
PACKAGES = ("data", "environment", "models", "training", "utils", "main")
"""Loggers whose debug messages go to the run's log; those of libraries do not."""
OWN_HANDLER = "erl"  # name of the handlers that this module sets up; it leaves others alone
_COLOURS = {logging.WARNING: "33", logging.ERROR: "31"}
_BOLD = "1"
_LABEL = re.compile(r"\s+\S+\s{2,}")


def setup_logging(run_path: Path | None = None, *, verbose: bool = False) -> None:
    """Log to the console, debug messages only if `verbose`, and all to a run's folder; replaces earlier handlers."""
    root = logging.getLogger()
    root.setLevel(logging.WARNING)  # of libraries
    for earlier in [handler for handler in root.handlers if handler.name == OWN_HANDLER]:
        root.removeHandler(earlier)
        earlier.close()
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.DEBUG)
    handlers: list[logging.Handler] = [ConsoleHandler(logging.DEBUG if verbose else logging.INFO)]
    if run_path is not None:
        file = logging.FileHandler(run_path / LOG, encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        handlers.append(file)
    for handler in handlers:
        handler.name = OWN_HANDLER
        root.addHandler(handler)


class ConsoleHandler(logging.Handler):
    """Writes messages to standard error through tqdm, which redraws its bars below them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message."""
        try:
            tqdm.write(self.format(record), file=sys.stderr)
            REPORTER.quiet()
        except Exception:  # logging must not stop a run; logging's own handlers do the same
            self.handleError(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, after the level of warnings and errors; wrapped and coloured on a terminal."""
        text = record.getMessage() if record.levelno < logging.WARNING else f"{record.levelname} {record.getMessage()}"
        if not sys.stderr.isatty():
            return text
        width = shutil.get_terminal_size().columns
        first, *others = [wrapped(line, width) for line in text.split("\n")]
        code = _COLOURS.get(record.levelno, _BOLD if others else "")
        if code and "NO_COLOR" not in os.environ:
            first = f"\033[{code}m{first}\033[0m"
        return "\n".join([first, *others])


def wrapped(line: str, width: int) -> str:
    """Wrap a line of text, indented after a label; table rows stay whole."""
    if len(line) <= width or len(re.findall(r"\S\s{2,}", line)) > 1:
        return line
    label = _LABEL.match(line)
    return textwrap.fill(line, width, subsequent_indent=" " * (label.end() if label else 0), break_long_words=False)
