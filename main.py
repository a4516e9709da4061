"""Evolutionary reinforcement learning of stock-trading agents: `python main.py --help`."""

from __future__ import annotations

import logging
import sys

from training.commands.table import COMMANDS
from utils.config.cli import parse_command
from utils.errors import ProgramError, StopRequested, as_program_error
from utils.runs.console import setup_logging

logger = logging.getLogger("main")


def main(argv: list[str]) -> int:
    """Run one command; returns the exit code.

    0; 1 if a file cannot be written, the cloud lacks some, or numbers are not finite and the run is to stop there; 2
    for a user's mistake, 3 at the memory limit, 130 after Ctrl-C, 143 after SIGTERM.
    """
    setup_logging()
    resume = None
    try:
        command = parse_command(argv, COMMANDS)
        resume = command.resume
        command.run()
    except ProgramError as error:
        return _fail(error, resume)
    except (OSError, KeyboardInterrupt) as error:
        return _fail(as_program_error(error), resume)
    return 0


def _fail(error: ProgramError, resume: str | None) -> int:
    """Log the error and, where a run goes on from its last generation, the command that continues it."""
    hint = f"; the last complete generation is saved: continue with {resume}" if resume and error.is_resumable else ""
    logger.log(logging.WARNING if isinstance(error, StopRequested) else logging.ERROR, "%s%s", error, hint)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
