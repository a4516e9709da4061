"""The command `prepare`: files of daily bars into the data file, and a page about its contents."""

import logging
from pathlib import Path

from data.prepare.prepare import prepare
from data.prepare.survey import PrepareSummary
from training.commands.table import PrepareArguments
from training.evaluation.pages import document, write_document
from utils.charts import Chart, number
from utils.errors import ConfigError
from utils.tables import table

logger = logging.getLogger(__name__)
LISTED = 30
"""Rows of a list on the page; longer lists state their length."""
_NOTES = 20
"""Notes that are told."""


def run_prepare(arguments: PrepareArguments) -> None:
    """Write the data file and the page, and log both in short.

    Raises `DataError` where nothing can be used or written, and ConfigError for a target that is no parquet file.
    """
    target = arguments.target
    if target.suffix not in (".parquet", ".pq"):
        raise ConfigError(f"expected a parquet file as TARGET, got {str(target)!r}; name one, as prices.parquet")
    page = target.with_suffix(".html")
    if target.exists() and not target.is_file():
        raise ConfigError(f"expected a parquet file as TARGET, got {target}, which is no file; name a new one")
    there = [str(path) for path in (target, page) if path.exists()]
    if there and not (arguments.overwrite or arguments.append):
        raise ConfigError(f"expected a new file as TARGET, got {there[0]}, which exists; give --overwrite or --append")
    summary = prepare(arguments.source, target, arguments.benchmark, append=arguments.append, choices=arguments.reading)
    survey = summary.survey
    for text in (*summary.lines(), table(survey.years), *survey.lines()):
        logger.info("%s", text)
    write_document(render(summary, arguments.source), page)
    logger.info("Wrote %s: all of this with dates and tickers", page)


def render(summary: PrepareSummary, source: Path) -> str:
    """Return the page about prepared data as HTML text: what was read, adjusted and dropped, and what looks wrong."""
    survey = summary.survey
    facts = {
        "From": source.name or str(source),
        "Days": f"{summary.first_date} to {summary.last_date}",
        "Files": f"{number(summary.files_read, 0)} read, {number(len(summary.skipped), 0)} skipped",
    }
    traded = {"tickers": survey.traded.astype(float)}
    coverage = Chart("Tickers that trade, by session", survey.dates, traded, "{:,.0f}")
    notes = summary.notes[:_NOTES]
    if more := len(summary.notes) - len(notes):
        notes.append(f"and {more} notes more")
    return document(
        "data.html",
        f"Data: {summary.target.name}",
        facts=facts if summary.benchmark is None else facts | {"Benchmark": summary.benchmark.name},
        summary=summary,
        survey=survey,
        notes=notes,
        chart=coverage,
        listed=LISTED,
    )
