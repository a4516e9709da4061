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

logger = logging.getLogger("main")
FAILED, USER_ERROR, INTERRUPTED = 1, 2, 130


def main(argv: list[str]) -> int:
    """Run one command; returns the exit code.

    0, or 1 if no checkpoint can be kept, 2 for a user's mistake, 130 after Ctrl-C.
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
    except KeyboardInterrupt:
        logger.warning("interrupted; the last complete generation is saved: continue with python main.py --resume")
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
