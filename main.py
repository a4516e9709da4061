"""Evolutionary reinforcement learning of stock-trading agents: `python main.py --help`."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

try:
    from training.commands.table import COMMANDS, help_lists, refuse_early
    from utils import VERSION
    from utils.config.cli import parse_command
    from utils.errors import StopRequested, as_program_error
    from utils.runs.console import setup_logging
except KeyboardInterrupt:  # while modules load
    sys.exit(130)
except ModuleNotFoundError as absent:
    from utils.errors import as_program_error

    if (refused := as_program_error(absent)) is None:
        raise
    sys.stderr.write(f"ERROR {refused}\n")
    sys.exit(refused.exit_code)

logger = logging.getLogger("main")
PROGRAM = Path(__file__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the command line; returns the exit code.

    0; 1 if a file cannot be written, the cloud lacks some, or numbers are not finite and the run is to stop there; 2
    for a user's mistake, 3 at the memory limit or out of memory, 130 after Ctrl-C, 143 after SIGTERM.
    """
    setup_logging()
    argv, command = sys.argv[1:] if argv is None else argv, None
    try:
        if argv == ["--version"]:
            logger.info("erl-trader %s", VERSION)
            return 0
        command = parse_command(argv, COMMANDS, help_lists)
        refuse_early(command.arguments)
        command.run()
    except (Exception, KeyboardInterrupt) as raised:
        if (error := as_program_error(raised)) is None:
            raise
        hint = ""
        if command is not None and error.remains is not None:  # what is saved, and the command that continues the run
            program = PROGRAM.name if PROGRAM.parent == Path.cwd() else str(PROGRAM)
            hint = f"; {error.remains.saved}: continue with {command.with_flags(program, error.remains.flags)}"
        logger.log(logging.WARNING if isinstance(error, StopRequested) else logging.ERROR, "%s%s", error, hint)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
