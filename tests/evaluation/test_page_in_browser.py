"""The page in a real browser: silent console, nothing fetched, nothing cut off at three widths and in both schemes."""

import re
from pathlib import Path

import pytest

from tests.evaluation.chromium import needs_chromium, probe
from tests.evaluation.page_case import case
from tests.evaluation.test_page import HOSTILE, named
from training.evaluation.export import render
from training.evaluation.page.document import write_document

pytestmark = needs_chromium

# Everything that is shown, but for what lies in a box that scrolls, in an image's own space or for screen readers only.
LAYOUT = """({
  width: [window.innerWidth, document.documentElement.scrollWidth],
  outside: [...document.querySelectorAll('body *')].filter(element => {
    if (element.closest('.scroll *, .skip, defs') || !element.getClientRects().length) return false;
    const box = element.getBoundingClientRect();
    return box.left < -1 || box.right > window.innerWidth + 1;
  }).map(element => element.outerHTML.slice(0, 120)),
  paper: window.getComputedStyle(document.body).backgroundColor,
  sizes: [...document.querySelectorAll('td, p, li')].map(e => window.getComputedStyle(e).fontSize),
  boxes: [...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth > e.clientWidth, e.tabIndex]),
  requests: window.performance.getEntriesByType('resource').length,
})"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    cases = {"plain": case(), "hostile": named(" ".join(HOSTILE))}
    for name, evaluation in cases.items():
        write_document(render(evaluation), folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in cases}


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_and_is_silent(pages: dict[str, Path], is_dark: bool) -> None:
    widths = (1280, 390)
    for width, shown in zip(widths * 2, probe([*pages.values()], widths, LAYOUT, is_dark=is_dark), strict=True):
        assert shown["width"] == [width, width] and shown["requests"] == 0
        assert shown["outside"] == []
        assert (max(int(part) for part in re.findall(r"\d+", shown["paper"])) < 64) == is_dark
        assert min(float(size.removesuffix("px")) for size in shown["sizes"]) >= 11
        assert all(index == 0 for _, index in shown["boxes"])
    assert any(scrolls for scrolls, _ in shown["boxes"]), "on a phone"
