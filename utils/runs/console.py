"""Log messages: lines on the terminal, all of them in the run's log."""

import io
import logging
import os
import shutil
import sys
import textwrap
from pathlib import Path

from tqdm import tqdm

from utils.errors import PACKAGES
from utils.progress import REPORTER, Progress

LOG = "run.log"
PROGRESS = Progress.__module__  # name of the logger of progress
FILE_ONLY = {"terminal": ""}
"""`extra` of a message that is not for a person at a terminal; with a text there, a person reads this in its place.
Files, pipes and --verbose have all messages whole."""
OWN_HANDLER = "erl"  # name of the handlers that this module sets up; it leaves others alone


def setup_logging(run_path: Path | None = None, *, verbose: bool = False, results: bool = True) -> None:
    """Log to the console, debug messages only if `verbose`, and all to a run's folder; replaces earlier handlers.

    Args:
        results: messages are results, for standard output; else all go to standard error.
    """
    root = logging.getLogger()
    root.setLevel(logging.WARNING)  # of libraries
    for earlier in [handler for handler in root.handlers if handler.name == OWN_HANDLER]:
        root.removeHandler(earlier)
        earlier.close()
    for package in PACKAGES:  # their debug messages go to the run's log, those of libraries do not
        logging.getLogger(package).setLevel(logging.DEBUG)
    handlers: list[logging.Handler] = [ConsoleHandler(verbose, results)]
    if run_path is not None:
        file = logging.FileHandler(run_path / LOG, encoding="utf-8", errors="replace")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        handlers.append(file)
    for handler in handlers:
        handler.name = OWN_HANDLER
        root.addHandler(handler)


class ConsoleHandler(logging.Handler):
    """Writes results to standard output; progress, warnings and errors to standard error, where bars are drawn."""

    def __init__(self, verbose: bool, results: bool) -> None:
        super().__init__(logging.DEBUG if verbose else logging.INFO)
        self._has_results, self._is_brief = results, not verbose
        for stream in (sys.stdout, sys.stderr):  # letters that a console does not have must not cost the line
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message through tqdm, which redraws its bars below it."""
        is_result = self._has_results and record.levelno < logging.WARNING and record.name != PROGRESS
        stream = sys.stdout if is_result else sys.stderr
        text = self.format(record)
        if self._is_brief and stream.isatty():
            text = "\n".join(map(_at_words, record.terminal.splitlines())) if hasattr(record, "terminal") else text
        if not text:
            return
        try:
            tqdm.write(text, file=stream)
            stream.flush()  # whoever follows a file or a pipe sees a message at once
            REPORTER.quiet()
        except BrokenPipeError:  # whoever read the pipe has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except Exception:  # logging must not stop a run; logging's own handlers do the same
            self.handleError(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the message, after the level of warnings and errors."""
        level = f"{record.levelname} " if record.levelno >= logging.WARNING else ""
        return f"{level}{record.getMessage()}"


def _at_words(line: str) -> str:
    """Return a line that is wider than the terminal broken at words; what is indented is laid out already."""
    width = shutil.get_terminal_size().columns
    if len(line) <= width or line.startswith(" "):
        return line
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
