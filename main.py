"""Evolutionary reinforcement learning of stock-trading agents: `python main.py --help`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import torch

from training.fuel_breaks.arguments import (
    FuelBreakEvaluateArguments,
    FuelBreakShowArguments,
    FuelBreakTrainArguments,
)
from utils.config.cli import (
    Command,
    EvaluateArguments,
    PrepareArguments,
    SignalsArguments,
    WalkForwardArguments,
    parse_command,
)
from utils.errors import (
    CheckpointError,
    CloudError,
    ConfigError,
    DataError,
    MemoryLimitReached,
    NonFiniteError,
    StopRequested,
)
from utils.runs.run_log import setup_logging

logger = logging.getLogger("main")
FAILED, USER_ERROR, OUT_OF_MEMORY = 1, 2, 3
RESUME_HINT = "the last complete generation is saved: continue with python main.py --resume"


# What a command alone needs is imported when it runs: so the others, and --help, start quickly.
def _train(command: Command) -> None:
    from training.commands.train import run_training
    from utils.cloud.settings import open_cloud

    run_training(command.config, command.explicit, store=open_cloud())


def _prepare(command: Command) -> None:
    from data.csv.prepare import prepare

    assert isinstance(command.arguments, PrepareArguments)
    for line in prepare(command.arguments.source, command.arguments.target).lines():
        logger.info("%s", line)


def _evaluate(command: Command) -> None:
    from training.commands.evaluate import run_evaluation

    assert isinstance(command.arguments, EvaluateArguments)
    run_evaluation(command.arguments)


def _signals(command: Command) -> None:
    from training.commands.signals import run_signals

    assert isinstance(command.arguments, SignalsArguments)
    run_signals(command.arguments)


def _walk_forward(command: Command) -> None:
    from training.commands.walk_forward import run_walk_forward

    assert isinstance(command.arguments, WalkForwardArguments)
    run_walk_forward(command.arguments, command.explicit)


def _train_fuel_breaks(command: Command) -> None:
    from training.fuel_breaks.train_command import run_training

    assert isinstance(command.arguments, FuelBreakTrainArguments)
    run_training(command.arguments.settings, command.explicit)


def _evaluate_fuel_breaks(command: Command) -> None:
    from training.fuel_breaks.evaluate_command import run_evaluation

    assert isinstance(command.arguments, FuelBreakEvaluateArguments)
    run_evaluation(command.arguments)


def _show_fuel_breaks(command: Command) -> None:
    from training.fuel_breaks.show_command import run_show

    assert isinstance(command.arguments, FuelBreakShowArguments)
    run_show(command.arguments)


RUN: dict[str, Callable[[Command], None]] = {
    "train": _train,
    "prepare": _prepare,
    "evaluate": _evaluate,
    "signals": _signals,
    "walk-forward": _walk_forward,
    "fuel-breaks train": _train_fuel_breaks,
    "fuel-breaks evaluate": _evaluate_fuel_breaks,
    "fuel-breaks show": _show_fuel_breaks,
}
"""What each command does."""


def main(argv: list[str]) -> int:
    """Run one command; returns the exit code.

    0; 1 if a file cannot be written, the cloud lacks some, or numbers are not finite and the run is to stop there; 2
    for a user's mistake, 3 at the memory limit, 130 after Ctrl-C, 143 after SIGTERM.
    """
    setup_logging()
    own = {"walk-forward": "walk-forward", "fuel-breaks": "fuel-breaks train"}.get("".join(argv[:1]))
    hint = RESUME_HINT.replace("main.py", f"main.py {own}") if own else RESUME_HINT
    try:
        command = parse_command(argv, cuda_available=torch.cuda.is_available())
        RUN[command.name](command)
    except (ConfigError, DataError) as error:
        logger.error("%s", error)
        return USER_ERROR
    except (CheckpointError, CloudError, NonFiniteError) as error:
        logger.error("%s", error)
        return FAILED
    except OSError as error:
        logger.error("expected files that can be read and written, got: %s; %s", error, hint)
        return FAILED
    except MemoryLimitReached as error:
        logger.error("%s; %s", error, hint)
        return OUT_OF_MEMORY
    except StopRequested as error:
        logger.warning("%s; %s", error, hint)
        return error.exit_code
    except KeyboardInterrupt:
        logger.warning("interrupted; %s", hint)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
