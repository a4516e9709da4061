"""What every page has: templates, the style sheet and the script, and a policy that forbids all but these."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from training.evaluation.page import svg
from utils.charts import number, tick_labels

_HERE = Path(__file__).parent


def page_environment(*folders: Path) -> Environment:
    """Return an environment that finds templates in these folders and here, and knows charts and numbers."""
    environment = Environment(
        loader=FileSystemLoader([*folders, _HERE]),
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
    }
    return environment


def look() -> dict[str, str]:
    """Return `style`, `script` and the content security `policy` that allows these and nothing else."""
    style, script = ((_HERE / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    return {"style": Markup(style), "script": Markup(script), "policy": policy}


def _hash(text: str) -> str:
    # The parser of HTML turns every line ending into a line feed before the browser takes the hash.
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
