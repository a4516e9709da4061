"""Evolutionary reinforcement learning of stock-trading agents: `python main.py --help`."""

from __future__ import annotations

import logging
import sys

import torch

from data.errors import DataError
from data.prepare import prepare
from training.checkpoint import CheckpointError
from training.runner import run_training
from utils.cli import PrepareArguments, parse_command
from utils.config import ConfigError
from utils.run_log import setup_logging
from utils.stopping import MemoryLimitReached, StopRequested

logger = logging.getLogger("main")
FAILED, USER_ERROR, OUT_OF_MEMORY = 1, 2, 3
RESUME_HINT = "the last complete generation is saved: continue with python main.py --resume"


def main(argv: list[str]) -> int:
    """Run one command; returns the exit code.

    0, or 1 if no checkpoint can be kept, 2 for a user's mistake, 3 at the memory limit, 130 after Ctrl-C, 143 after
    SIGTERM.
    """
    setup_logging()
    try:
        command = parse_command(argv, cuda_available=torch.cuda.is_available())
        if isinstance(command.arguments, PrepareArguments):
            for line in prepare(command.arguments.source, command.arguments.target).lines():
                logger.info("%s", line)
        else:
            run_training(command.config, command.explicit)
    except (ConfigError, DataError) as error:
        logger.error("%s", error)
        return USER_ERROR
    except CheckpointError as error:
        logger.error("%s", error)
        return FAILED
    except MemoryLimitReached as error:
        logger.error("%s; %s", error, RESUME_HINT)
        return OUT_OF_MEMORY
    except StopRequested as error:
        logger.warning("%s; %s", error, RESUME_HINT)
        return error.exit_code
    except KeyboardInterrupt:
        logger.warning("interrupted; %s", RESUME_HINT)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
