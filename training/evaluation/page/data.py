"""One self-contained page about prepared data: what was read, adjusted and dropped, and what looks wrong in it."""

from __future__ import annotations

from pathlib import Path

from data.raw.prepare import PrepareSummary
from data.raw.survey import Survey
from training.evaluation.page.write import document, write_document
from utils.charts import Chart, date_ticks, even_shares, lines_of, number

LISTED = 30
"""Rows of a list; the longer ones say how many there are."""


def write_data_page(summary: PrepareSummary, source: Path, path: Path) -> None:
    """Write the page in one step: `path` holds the old page or the whole new one. OSError where that fails."""
    write_document(render(summary, source), path)


def render(summary: PrepareSummary, source: Path) -> str:
    """Return the page as HTML text."""
    facts = {
        "From": source.name or str(source),
        "Days": f"{summary.first_date} to {summary.last_date}",
        "Files": f"{number(summary.files_read, 0)} read, {number(len(summary.skipped), 0)} skipped",
    }
    return document(
        "data.html",
        f"Data: {summary.target.name}",
        facts=facts if summary.benchmark is None else facts | {"Benchmark": summary.benchmark.name},
        summary=summary,
        survey=summary.survey,
        chart=coverage_chart(summary.survey),
        listed=LISTED,
    )


def coverage_chart(survey: Survey) -> Chart:
    """Draw how many tickers trade in each session."""
    most, last = int(survey.traded.max()), int(survey.traded[-1])
    return Chart(
        title="Tickers that trade, by session",
        description=f"Tickers that trade in each session: at most {most:,}, in the last one {last:,}.",
        shares=even_shares(len(survey.dates)),
        ticks=date_ticks(survey.dates),
        labels=survey.dates.astype(str).tolist(),
        lines=lines_of({"tickers": survey.traded.astype(float)}, lambda values: number(values[-1], 0)),
        decimals=0,
    )
