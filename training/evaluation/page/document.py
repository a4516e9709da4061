"""Self-contained pages from templates, for evaluations and for all else.

A page loads nothing, runs one short script of its own and stores nothing; a content security policy with the hashes of
that script and of the style sheet forbids everything else. The same values give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from utils.charts import number
from utils.config.settings import flatten, to_dict
from utils.runs.run_log import write_atomically

if TYPE_CHECKING:  # a command that reads or writes files should not wait for torch
    from training.evaluation.measures import Estimate
    from utils.statistics import MeanTest

_HERE = Path(__file__).parent
_MAX_HEAT = 4


class Scale:
    """A horizontal scale that intervals one below the other share; it includes zero."""

    def __init__(self, tests: Iterable[MeanTest]) -> None:
        edges = [0.0, *(edge for test in tests for edge in (test.mean, *test.interval))]
        room = 0.02 * (max(edges) - min(edges)) or 1.0
        self.low, self.high = min(edges) - room, max(edges) + room

    @property
    def ticks(self) -> list[float]:
        """Return about five round values."""
        from matplotlib.ticker import MaxNLocator

        ticks = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(self.low, self.high)
        return [float(tick) for tick in ticks if self.low <= tick <= self.high]

    def place(self, value: float) -> str:
        """Return where a value is, in percent of the width."""
        return f"{100 * (value - self.low) / (self.high - self.low):.2f}%"


def write_document(text: str, path: Path) -> None:
    """Write a page in one step. OSError where that fails."""
    # A name from a foreign file system may hold bytes that are no text.
    write_atomically(path, text.encode("utf-8", errors="replace").decode())


def document(template: str, title: str, *, folder: Path = _HERE, **values: Any) -> str:
    """Return a self-contained page from a folder's template that extends `base.html`, with the values that it shows."""
    style, script = ((_HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    known = {"title": title, "style": Markup(style), "script": Markup(script), "policy": policy}
    return _template(folder, template).render(known | values)


@cache
def _template(folder: Path, name: str) -> Template:
    from utils.pictures import draw_svg  # imported late: a command that is refused should not wait for matplotlib

    environment = Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "signed": lambda value, decimals: number(value, decimals, is_signed=True),
        "interval": interval_text,
        "p_value": lambda value: "< 0.001" if value is not None and value < 0.001 else number(value, 3),
        "heat": heat_level,
        "svg": lambda chart: Markup(draw_svg(chart)),
        "share": lambda value: number(None if value is None else 100 * value, 1),
    }
    return environment.get_template(name)


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


def shown_settings(config: object) -> dict[str, str]:
    """Return the settings of a configuration as text, by dotted names."""
    return {name: str(value) for name, value in flatten(to_dict(config)).items()}
