"""Self-contained pages from templates, for evaluations and for all else.

A page loads nothing, runs nothing and stores nothing: a content security policy forbids it. The same values give the
same bytes.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from utils.charts import DASH, MINUS, described, number
from utils.config.settings import named_values
from utils.runs.run_log import write_atomically

_HERE = Path(__file__).parent / "page"
_NUMBER = re.compile(rf"(< |[-+{MINUS}{DASH}])?(\d(?!\d?-)|$)|[-{DASH}]$")
"""How cells begin that stand to the right of their column; a name like 60-day momentum does not."""
_HYPHEN = re.compile(r"(?<![\w.-])-(?=\d)")
"""A minus sign, and not a hyphen of a date or a name."""


def write_document(text: str, path: Path) -> None:
    """Write a page in one step. OSError where that fails."""
    # A name from a foreign file system may hold bytes that are no text.
    write_atomically(path, text.encode("utf-8", errors="replace").decode())


def document(template: str, title: str, *, folder: Path = _HERE, **values: Any) -> str:
    """Return a self-contained page from a folder's template that extends `base.html`, with the values that it shows."""
    style = Markup((_HERE / "page.css").read_text(encoding="utf-8"))
    return _template(folder, template).render({"title": title, "style": style} | values)


@cache
def _template(folder: Path, name: str) -> Template:
    from utils.pictures import svg_data_uri  # imported late: a command that is refused should not wait for matplotlib

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
        "typeset": lambda text: DASH if text == "-" else _HYPHEN.sub(MINUS, str(text)).replace("+-", "±"),
        "svg": svg_data_uri,
        "described": described,
    }
    environment.tests["right"] = lambda cell: not isinstance(cell, str) or _NUMBER.match(cell) is not None
    return environment.get_template(name)


def shown_settings(config: object) -> dict[str, str]:
    """Return the settings of a configuration as text, by dotted names."""
    return {name: str(value) for name, value in named_values(config).items()}
