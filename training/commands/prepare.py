"""The command `prepare`: CSV files into the data file."""

from __future__ import annotations

import logging

from data.csv.prepare import prepare
from training.commands.arguments import PrepareArguments

logger = logging.getLogger(__name__)


def run_prepare(arguments: PrepareArguments) -> None:
    """Write the data file and log what was kept and dropped. Raises DataError where nothing can be used or written."""
    for line in prepare(arguments.source, arguments.target).lines():
        logger.info("%s", line)
