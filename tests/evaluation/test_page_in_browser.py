"""The page in a headless Chromium: silent console, nothing fetched or cut off, pictures shown, in both schemes."""

import html
import json
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.evaluation.page_case import DRIFTS, case
from tests.evaluation.test_page import HOSTILE, named
from training.evaluation.baselines import NEXT_CLOSE, SURVIVORS
from training.evaluation.export import render
from training.evaluation.pages import write_document

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars --allow-file-access-from-files"
LONG = dict.fromkeys((SURVIVORS, NEXT_CLOSE), 0.0004)
WIDTHS, HEIGHT = (1280, 390), 900
# Everything that is shown, but for what lies in a box that scrolls.
LAYOUT = """({
  width: [window.innerWidth, document.documentElement.scrollWidth],
  outside: [...document.querySelectorAll('body *')].filter(element => {
    if (element.closest('.scroll *') || !element.getClientRects().length) return false;
    const box = element.getBoundingClientRect();
    return box.left < -1 || box.right > window.innerWidth + 1;
  }).map(element => element.outerHTML.slice(0, 120)),
  cut: [...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)
    .map(box => `${box.getAttribute('aria-label')}: ${box.scrollWidth} of ${box.clientWidth}`),
  verdict: document.querySelector('.verdict').getBoundingClientRect().bottom,
  pictures: [...document.querySelectorAll('img')].map(image => image.naturalWidth),
  paper: window.getComputedStyle(document.body).backgroundColor,
  requests: window.performance.getEntriesByType('resource').length,
})"""


@pytest.fixture(scope="module")
def pages(real_charts: None, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pages")
    for name, evaluation in (("plain", case(drifts=DRIFTS | LONG)), ("hostile", named(" ".join(HOSTILE)))):
        write_document(render(evaluation), folder / f"{name}.html")
    return sorted(folder.iterdir())


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_and_is_silent(pages: list[Path], tmp_path: Path, is_dark: bool) -> None:
    frames = "".join(
        f'<iframe src="{page.resolve().as_uri()}" style="border:0;width:{width}px;height:{HEIGHT}px"></iframe>'
        for page in pages
        for width in WIDTHS
    )
    script = f"""addEventListener("load", () => {{
      const evaluate = (window, document) => {LAYOUT}, frames = [...document.querySelectorAll("iframe")];
      document.body.textContent = JSON.stringify(frames.map(f => evaluate(f.contentWindow, f.contentDocument)));
    }});"""
    outer = tmp_path / "frames.html"
    outer.write_text(f"<!doctype html><body>{frames}<script>{script}</script></body>")
    flags = [*FLAGS.split(), f"--blink-settings=preferredColorScheme={1 - is_dark}", f"--user-data-dir={tmp_path}/user"]
    options = ["--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", outer.as_uri()]
    done = subprocess.run([str(CHROMIUM), *flags, *options], capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, re.findall(".*CONSOLE.*", done.stderr)
    shown = re.search(r"<body>(.*)</body>", done.stdout, re.DOTALL)
    assert shown is not None
    for (page, width), one in zip(product(pages, WIDTHS), json.loads(html.unescape(shown[1])), strict=True):
        assert one["width"] == [width, width] and one["requests"] == 0 and one["outside"] == []
        assert one["verdict"] < HEIGHT or width < HEIGHT or page.stem == "hostile", "verdict, charts and tiles"
        assert one["cut"] == [] or width < HEIGHT or page.stem == "hostile"
        assert one["pictures"] and min(one["pictures"]) > 100
        assert (max(int(part) for part in re.findall(r"\d+", one["paper"])) < 64) == is_dark
