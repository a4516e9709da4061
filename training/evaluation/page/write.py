"""One self-contained page about an evaluation: text and tables from a template, charts as inline SVG.

The page loads nothing, runs one short script of its own and stores nothing; a content security policy with the hashes
of that script and of the style sheet forbids everything else. The same contents give the same bytes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from training.evaluation.page.axes import number
from training.evaluation.page.charts import EXIT_WORDS, charts_of, forest_of
from training.evaluation.page.contents import METRICS, Estimate, ReportContents
from utils.config.settings import flatten
from utils.runs.durable import fsync_directory, write_file

NOT_SHOWN = "(not shown)"
_HERE = Path(__file__).parent
_MAX_HEAT = 4
_SECRET_NAME = re.compile(r"secret|token|passw|credential|private|api_?key|access_?key|account_?key", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"-----BEGIN.*|(?<=://)[^/\s@]+:[^/\s@]+(?=@)|(?<=[?&])[\w-]*(?:sig|signature|token|key)=[^&\s]+"
    r"|--[\w.-]*(?:token|password|secret|key)[= ]\S+",
    re.IGNORECASE | re.DOTALL,
)


def write_report(contents: ReportContents, path: Path) -> None:
    """Write the page in one step: `path` holds the old page or the whole new one. OSError where that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        # A name from a foreign file system may hold bytes that are no text.
        write_file(temporary, render(contents).encode("utf-8", errors="replace"))
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    fsync_directory(path.parent)


def render(contents: ReportContents) -> str:
    """The page as HTML text."""
    style, script = ((_HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return _template().render(
        report=contents,
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}",
        metrics=METRICS,
        shown_metrics=[key for key in METRICS if any(key in policy.metrics for policy in contents.policies)],
        exit_words=EXIT_WORDS,
        settings=_shown_settings(contents.settings),
        command=_SECRET_VALUE.sub(NOT_SHOWN, contents.command),
        charts=charts_of(contents),
        forest=forest_of(contents),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "signed": lambda value, decimals: number(value, decimals, is_signed=True),
        "interval": interval_text,
        "heat": heat_level,
        "largest": lambda values: float(np.abs(values[np.isfinite(values)]).max(initial=0.0)),
        "redacted": lambda text: _SECRET_VALUE.sub(NOT_SHOWN, text),
        "share": lambda value: number(None if value is None else 100 * value, 1),
    }
    return environment.get_template("page.html")


def _hash(text: str) -> str:
    # The parser of HTML turns every line ending into a line feed before the browser takes the hash.
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def interval_text(estimate: Estimate, decimals: int, is_signed: bool = False) -> str:
    """ "low to high", or nothing where the interval is not known."""
    bounds = [bound for bound in (estimate.low, estimate.high) if bound is not None and math.isfinite(bound)]
    if len(bounds) < 2:
        return ""
    low, high = (number(bound, decimals, is_signed=is_signed) for bound in bounds)
    return f"{low} to {high}"


def heat_level(percent: float, largest: float) -> str:
    """The CSS class of a cell: `gain` or `loss` and 1 to 4 by its size beside the largest."""
    if not math.isfinite(percent) or not percent or not largest:
        return ""
    level = math.ceil(_MAX_HEAT * min(abs(percent) / largest, 1.0))
    return f"{'gain' if percent > 0 else 'loss'} heat{level}"


def _shown_settings(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Flat names and values, without what looks like a credential."""
    return [
        (name, NOT_SHOWN if _SECRET_NAME.search(name) else _SECRET_VALUE.sub(NOT_SHOWN, str(value)))
        for name, value in flatten(settings).items()
    ]
