"""One self-contained page about an evaluation: text and tables from a template, charts as inline SVG.

The page loads nothing, runs one short script of its own and stores nothing; a content security policy with the hashes
of that script and of the style sheet forbids everything else. The same evaluation gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from training.evaluation import charts
from training.evaluation.baselines import CHAMPION
from training.evaluation.judge import HOLDING_INSTEAD, METRICS, Estimate, Evaluation
from training.evaluation.page import svg
from training.evaluation.verdict import TAIL
from utils.charts import Dates, FloatArray, memory_chart, number, scale_of, tick_labels
from utils.config.settings import flatten, to_dict
from utils.metrics import daily_returns
from utils.runs.run_log import write_atomically

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
NOT_SHOWN = "(not shown)"
_HERE = Path(__file__).parent
_MAX_HEAT = 4
_SECRET_NAME = re.compile(r"secret|token|passw|credential|private|api_?key|access_?key|account_?key", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"-----BEGIN.*|(?<=://)[^/\s@]+:[^/\s@]+(?=@)|(?<=[?&])[\w-]*(?:sig|signature|token|key)=[^&\s]+"
    r"|--[\w.-]*(?:token|password|secret|key)[= ]\S+",
    re.IGNORECASE | re.DOTALL,
)


def write_page(evaluation: Evaluation, path: Path) -> None:
    """Write the page in one step: `path` holds the old page or the whole new one. OSError where that fails."""
    write_document(render(evaluation), path)


def render(evaluation: Evaluation) -> str:
    """Return the page as HTML text."""
    records, limit = evaluation.records, evaluation.config.memory_limit_mb or None
    rows = evaluation.verdict.rows
    monthly = monthly_returns(evaluation.dates, evaluation.equity[CHAMPION])
    scale = scale_of([np.array([(0.0, test.mean, *test.interval) for _, test, _ in rows])])
    return document(
        "page.html",
        evaluation.title,
        limit=TAIL,
        report=evaluation,
        holding_instead=HOLDING_INSTEAD,
        facts=_facts(evaluation),
        forest=[
            (name, Estimate(test.mean, *test.interval), p_value, svg.interval_bar(test, scale))
            for name, test, p_value in rows
        ],
        scale=scale,
        champion=evaluation.policies[CHAMPION],
        equity=charts.equity_chart(evaluation),
        drawdown=charts.drawdown_chart(evaluation),
        monthly=monthly,
        largest_month=float(np.nanmax(np.abs([percent for _, percent, _ in monthly]), initial=0.0)),
        months=MONTHS,
        traded=charts.traded_stocks(evaluation),
        exit_words=charts.EXIT_WORDS,
        costs=charts.cost_chart(evaluation),
        fitness=charts.fitness_chart(records) if records else None,
        memory=memory_chart(charts.memory_points(records), limit, moment="generation") if records else None,
        settings=shown_settings(to_dict(evaluation.config)),
        command=_SECRET_VALUE.sub(NOT_SHOWN, evaluation.command),
    )


def write_document(text: str, path: Path) -> None:
    """Write a page in one step. OSError where that fails."""
    # A name from a foreign file system may hold bytes that are no text.
    write_atomically(path, text.encode("utf-8", errors="replace").decode())


def document(template: str, title: str, *, folder: Path = _HERE, **values: Any) -> str:
    """Return a self-contained page from a folder's template that extends `base.html`, with the values that it shows."""
    style, script = ((_HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    known = {"title": title, "metrics": METRICS, "style": Markup(style), "script": Markup(script), "policy": policy}
    return _template(folder, template).render(known | values)


@cache
def _template(folder: Path, name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"svg": svg, "tick_labels": tick_labels}
    environment.filters |= {
        "fixed": lambda value, decimals: f"{value:.{decimals}f}",
        "number": number,
        "signed": lambda value, decimals: number(value, decimals, is_signed=True),
        "interval": interval_text,
        "p_value": lambda value: "< 0.001" if value is not None and value < 0.001 else number(value, 3),
        "heat": heat_level,
        "redacted": lambda text: _SECRET_VALUE.sub(NOT_SHOWN, text),
        "share": lambda value: number(None if value is None else 100 * value, 1),
    }
    return environment.get_template(name)


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    """Say what was judged, and on what."""
    config, market, played = evaluation.config, evaluation.market, evaluation.played
    facts = {
        "Run": evaluation.name,
        "Split": evaluation.split,
        "Days": f"{evaluation.dates[0]} to {evaluation.dates[-1]}",
        "Champion": evaluation.champion_generation and f"of generation {evaluation.champion_generation}",
        "Data": "built-in market" if config.data is None else config.data.name,
        "Windows": f"{len(played.days)} of {played.days.shape[1] - 1} sessions, one after the other",
        "Stocks": f"{len(market.investable_columns):,} of {len(market.tickers):,}",
        "Generations": evaluation.records[-1]["generation"] if evaluation.records else None,
    }
    for fold in evaluation.folds:
        tested, champion = " to ".join(fold.dates["holdout"]), f"champion of generation {fold.champion_generation}"
        facts[fold.name] = f"tested {tested}, {champion}, {fold.return_percent:+.2f}%"
    facts |= {"Seed": config.seed, "Device": evaluation.device}
    return {name: value for name, value in facts.items() if value is not None}


def monthly_returns(dates: Dates, equity: FloatArray) -> list[tuple[int, FloatArray, float]]:
    """Return each year with its returns in percent by month, from month's end to month's end, and compounded.

    `dates` and `equity` are (T,); the first value is the equity before the first return. A month without days is NaN.
    """
    growth = pd.Series(1.0 + daily_returns(equity), pd.DatetimeIndex(dates[1:]))
    years = growth.index.year
    months = growth.groupby([years, growth.index.month]).prod().unstack().reindex(columns=range(1, 13))
    rows = zip(months.index, months.to_numpy(), growth.groupby(years).prod(), strict=True)
    return [(year, 100.0 * (row - 1.0), 100.0 * (whole - 1.0)) for year, row, whole in rows]


def _hash(text: str) -> str:
    # The parser of HTML turns every line ending into a line feed before the browser takes the hash.
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def interval_text(estimate: Estimate, decimals: int, is_signed: bool = False) -> str:
    """Return "low to high", or nothing where the interval is not known."""
    if estimate.low is None or estimate.high is None:
        return ""
    low, high = (number(bound, decimals, is_signed=is_signed) for bound in estimate[1:3])
    # Broken, if at all, before the "to".
    return f"{low} to\N{NO-BREAK SPACE}{high}"


def heat_level(percent: float, largest: float) -> str:
    """Return the CSS classes of a cell: `gain` or `loss` and a heat of 1 to 4 by its size beside the largest."""
    if not math.isfinite(percent) or not percent or not largest:
        return ""
    level = math.ceil(_MAX_HEAT * min(abs(percent) / largest, 1.0))
    return f"{'gain' if percent > 0 else 'loss'} heat{level}"


def shown_settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return flat names and values, without what looks like a credential."""
    return [
        (name, NOT_SHOWN if _SECRET_NAME.search(name) else _SECRET_VALUE.sub(NOT_SHOWN, str(value)))
        for name, value in flatten(settings).items()
    ]
