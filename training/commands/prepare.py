"""The command `prepare`: files of daily bars into the data file, and a page about them."""

from __future__ import annotations

import logging

from data.raw.prepare import prepare
from training.commands.arguments import PrepareArguments
from training.evaluation.page.data import write_data_page
from utils.errors import ConfigError
from utils.tables import table

logger = logging.getLogger(__name__)


def run_prepare(arguments: PrepareArguments) -> None:
    """Write the data file and the page, and log both in short.

    Raises `DataError` where nothing can be used or written, and ConfigError for a target that is a page.
    """
    page = arguments.target.with_suffix(".html")
    if page == arguments.target:
        raise ConfigError(f"expected a parquet file as TARGET, got {page}; the page about it would take its name")
    summary = prepare(arguments.source, arguments.target, arguments.benchmark)
    for line in summary.lines():
        logger.info("%s", line)
    survey = summary.survey
    logger.info("%s", table(survey.years, list(survey.years[0])))
    for line in survey.lines():
        logger.info("%s", line)
    write_data_page(summary, arguments.source, page)
    logger.info("Wrote %s: all of this with dates and tickers", page)
