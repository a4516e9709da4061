"""The page in a real browser: silent console, nothing fetched, nothing cut off at three widths and in both schemes."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.evaluation.chromium import Browser, chromium, find_chromium
from tests.evaluation.page_case import MOMENTUM, case
from tests.evaluation.test_page import HOSTILE, named
from training.evaluation.judge import Evaluation
from training.evaluation.page.write import write_page
from utils.pictures import STYLES

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
STROKES = """[...document.querySelectorAll('figure')].map(figure => [
  [...figure.querySelectorAll('.legend .swatch path')].map(
    path => [path.closest('li').textContent, getComputedStyle(path).stroke]),
  [...figure.querySelectorAll('.chart path[clip-path]')].map(path => getComputedStyle(path).stroke)])"""
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
    cases = {"plain": with_many_rules(case()), "hostile": named(" ".join(HOSTILE))}
    for name, evaluation in cases.items():
        write_page(evaluation, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in cases}


def with_many_rules(one: Evaluation) -> Evaluation:
    """The evaluation with as many policies under other costs as there are styles."""
    rules = [f"rule {number}" for number in range(len(STYLES) - len(one.cost_returns))]
    at_cost = {bps: {**curves, **dict.fromkeys(rules, curves[MOMENTUM])} for bps, curves in one.played.at_cost.items()}
    return dataclasses.replace(one, played=dataclasses.replace(one.played, at_cost=at_cost))


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


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_every_policy_has_its_mark_and_no_two_lines_a_colour(
    browser: Browser, pages: dict[str, Path], is_dark: bool
) -> None:
    browser.open(pages["plain"], 1280, is_dark=is_dark)
    plots = browser.evaluate(STROKES)
    assert len(plots) > 5
    for legend, drawn in plots:
        colours = [colour for _, colour in legend]
        assert "none" not in colours and len(set(colours)) == len(colours), legend
        assert set(colours) <= set(drawn), "the lines have the colours of the legend"
    policies = browser.evaluate(
        "[...document.querySelectorAll('[aria-label=\"Return by cost\"] tbody th')].map(e => e.innerText)"
    )
    assert len(policies) == len(STYLES)
    assert any([name.rpartition(" ")[0].rpartition(" ")[0] for name, _ in legend] == policies for legend, _ in plots)


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


@pytest.mark.parametrize("width", [1280, 420])
def test_intervals_are_drawn_whole(browser: Browser, pages: dict[str, Path], width: int) -> None:
    browser.open(pages["plain"], width)
    box, *spans = browser.evaluate(
        "[document.querySelector('.verdict .scroll'), ...document.querySelectorAll('.forest .span, .forest text')]"
        ".filter(e => e.getClientRects().length).map(e => e.getBoundingClientRect()).map(b => [b.left, b.right])"
    )
    assert len(spans) > 5
    assert all(box[0] <= left and right <= box[1] for left, right in spans)


def test_names_do_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["hostile"], 1280)
    assert browser.evaluate("[document.scripts.length, document.images.length]") == [1, 0]
    shown = browser.evaluate("document.querySelector('h1').textContent")
    assert "<script>alert(1)</script>" in shown


def test_the_page_prints_light(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["plain"], 1280, is_dark=True)
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    browser.call("Emulation.setEmulatedMedia", media="")
