"""Pages in frames of a headless Chromium, where an expression is evaluated."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
EXECUTABLE = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_chromium = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --allow-file-access-from-files"
)


def probe(pages: Sequence[Path], widths: Sequence[int], expression: str, *, is_dark: bool = False) -> list[Any]:
    """The JSON value of a JavaScript expression in each page at each width, with `window` and `document` the page's.

    The console has to stay silent.
    """
    assert EXECUTABLE is not None
    frames = [
        f'<iframe src="{page.resolve().as_uri()}" style="border:0;width:{width}px;height:900px"></iframe>'
        for page in pages
        for width in widths
    ]
    script = f"""addEventListener("load", async () => {{
      const evaluate = async (window, document) => {expression}, found = [];
      for (const frame of document.querySelectorAll("iframe"))
        found.push(await evaluate(frame.contentWindow, frame.contentDocument));
      document.body.textContent = JSON.stringify(found);
    }});"""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        outer = Path(folder, "frames.html")
        outer.write_text(f"<!doctype html><body>{''.join(frames)}<script>{script}</script></body>")
        flags = [
            *_FLAGS.split(),
            f"--blink-settings=preferredColorScheme={1 - is_dark}",
            f"--user-data-dir={folder}/profile",
        ]
        options = ["--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", outer.as_uri()]
        done = subprocess.run([EXECUTABLE, *flags, *options], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, re.findall(".*CONSOLE.*", done.stderr)
    shown = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert shown is not None
    return list(json.loads(html.unescape(shown[1])))
