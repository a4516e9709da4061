"""Evolutionary reinforcement learning of stock-trading agents: `python main.py --help`.

Without a command a population is trained, by `train` in `training/train.py`.
"""

import logging
import os
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
    """Run one command, by default that of the command line; return the exit code.

    0: done; 1: a file, checkpoint, upload or broker failed, or `audit` found a leak; 2: a user's mistake; 3: the memory
    limit; 128 + N: signal N (130 Ctrl-C, 143 SIGTERM). A study returns the highest code of its jobs.
    """
    setup_logging()
    if argv is None:
        argv = sys.argv[1:]
        os.environ["MPLBACKEND"] = "agg"  # a notebook hands its own backend, which may not be installed here, down
    command = None
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
