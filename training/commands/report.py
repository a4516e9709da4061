"""The command `report`: several runs side by side, read from their files."""

from __future__ import annotations

import logging

from training.commands.table import ReportArguments
from training.evaluation.page.document import write_document
from training.evaluation.report import cautions, read_run, render, short_table
from utils.errors import ConfigError
from utils.runs.run_log import REPORT, RunLog

logger = logging.getLogger(__name__)


def run_report(arguments: ReportArguments) -> None:
    """Show a table of the runs and write the page, without playing anything or looking at a holdout.

    Raises:
        ConfigError, DataError: a name is no run, a file of a run is damaged, or the page cannot be written.
    """
    folder = arguments.runs_dir
    runs = [read_run(folder, RunLog.open(folder, name).name) for name in arguments.names]
    logger.info("%s", short_table(runs))
    for text in cautions(runs):
        logger.info("note: %s", text)
    path = arguments.output or folder / REPORT
    try:
        write_document(render(runs), path)
    except OSError as error:
        raise ConfigError(f"expected a file to write to for --output, got {str(path)!r} ({error.strerror})") from None
    logger.info("written to %s", path)
