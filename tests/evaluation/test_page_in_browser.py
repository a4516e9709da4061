"""The page in a real browser: silent console, nothing fetched, nothing cut off at three widths and in both schemes."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.evaluation.chromium import Browser, chromium, find_chromium
from tests.evaluation.page_case import case
from tests.evaluation.test_page import HOSTILE, named
from training.evaluation.page.write import write_page

EXECUTABLE = find_chromium()
pytestmark = pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed")

# Everything that is shown, but for what lies in a box that scrolls, in an image's own space or for screen readers only.
OUTSIDE = """[...document.querySelectorAll('body *')].filter(element => {
  if (element.closest('.scroll *, .skip, defs') || !element.getClientRects().length) return false;
  const box = element.getBoundingClientRect();
  return box.left < -1 || box.right > innerWidth + 1;
}).map(element => element.outerHTML.slice(0, 120))"""
OVERLAPS = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('text')].map(text => text.getBoundingClientRect()).filter(box => box.width);
  return boxes.flatMap((a, i) => boxes.slice(i + 1).filter(b =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3
  ).map(b => [a.left, a.top, b.left, b.top].join(' ')));
})"""
POLICIES = "document.querySelector('.policies')"
FADES = f"""(box => [box.classList.contains('before'), box.classList.contains('after'),
  getComputedStyle(box).maskImage])({POLICIES})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert EXECUTABLE is not None
    # Its helpers may still write while they end.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        chromium(EXECUTABLE, Path(profile)) as started,
    ):
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    cases = {"plain": case(), "hostile": named(" ".join(HOSTILE))}
    for name, evaluation in cases.items():
        write_page(evaluation, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in cases}


@pytest.mark.parametrize("name", ["plain", "hostile"])
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1920, 1280, 390])
def test_the_page_fits_and_is_silent(
    browser: Browser, pages: dict[str, Path], width: int, is_dark: bool, name: str
) -> None:
    browser.open(pages[name], width, is_dark=is_dark)
    assert browser.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [width, width]
    assert browser.evaluate(OUTSIDE) == []
    assert browser.evaluate(OVERLAPS) == []
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(int(part) for part in re.findall(r"\d+", paper)) < 64) == is_dark
    sizes = browser.evaluate(
        "[...document.querySelectorAll('svg text, td, p, li')].map(e => getComputedStyle(e).fontSize)"
    )
    assert min(float(size.removesuffix("px")) for size in sizes) >= 11
    assert browser.complaints() == []
    assert {address for address in browser.requests() if address != "data:,"} == {pages[name].resolve().as_uri()}


def test_nothing_wide_hides_beyond_its_box(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["plain"], 390)
    boxes = browser.evaluate(
        "[...document.querySelectorAll('.scroll')].map(e => [e.scrollWidth > e.clientWidth, e.tabIndex, e.clientWidth])"
    )
    assert any(scrolls for scrolls, _, _ in boxes)
    assert all(index == 0 and width <= 390 for _, index, width in boxes)


def test_the_table_of_policies_fits_a_laptop_and_shows_below_that_it_scrolls(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["plain"], 1280)
    widest = "-161.12 to\N{NO-BREAK SPACE}273.12"
    browser.evaluate(
        f"document.querySelectorAll('.policies td .interval').forEach(e => {{ e.textContent = '{widest}'; }})"
    )
    assert browser.evaluate(f"{POLICIES}.scrollWidth <= {POLICIES}.clientWidth")
    assert browser.evaluate(FADES) == [False, False, "none"]
    browser.open(pages["plain"], 800)
    frames = "new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame))"
    before, after, mask = browser.evaluate(f"{frames}.then(() => {FADES})")
    assert (before, after) == (False, True) and "gradient" in mask
    assert browser.evaluate(f"{POLICIES}.scrollLeft = 1e6; new Promise(requestAnimationFrame).then(() => {FADES})")[
        :2
    ] == [
        True,
        False,
    ]
