"""What is said about work under way: a line every half minute in a pipe, bars on a terminal, nothing in between."""

import io
import logging
import sys
import time
from types import SimpleNamespace

import pytest

from tests.screen import screen
from utils import progress as module
from utils.progress import LINE_SECONDS, PART, Progress, Reporter, in_parts, progress
from utils.runs.console import ConsoleHandler


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of a reporter that only this test asks."""
    found = SimpleNamespace(now=1000.0)
    reporter = Reporter(lambda: found.now)
    monkeypatch.setattr(Reporter, "_watch", lambda _: None)
    monkeypatch.setattr(module, "REPORTER", reporter)
    monkeypatch.setattr("utils.runs.console.REPORTER", reporter)
    return found


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    module.REPORTER.check()
    lines = list(caplog.messages)
    caplog.clear()
    return lines


def test_in_a_pipe_a_line_every_half_minute_says_what_is_being_done(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "utils.progress")
    for generation in progress(range(3), "training", "generation"):
        assert said(caplog) == []
        with Progress("evaluate", "agent", 1000) as shown:
            clock.now += 20
            shown.update(250)
            assert said(caplog) == []
            clock.now += 10
            left = ("", ", 00:30 left", ", 00:00 left")[generation]
            assert said(caplog) == [
                f"training: {generation} / 3 generations{left}; evaluate: 250 / 1,000 agents, 00:50 left"
            ]
            assert said(caplog) == []
    clock.now += 100
    assert said(caplog) == [], "nothing is under way"


def test_what_was_logged_meanwhile_counts_and_a_total_may_become_known(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "utils.progress")
    with Progress("prepare", "fold") as shown:
        clock.now += 29
        ConsoleHandler(verbose=False, results=True).handle(
            logging.LogRecord("main", logging.INFO, "", 0, "Generation 1", (), None)
        )
        clock.now += 29
        assert said(caplog) == []
        clock.now += 1
        assert said(caplog) == ["prepare: 0 folds"]
        shown.update(4, total=9)
        clock.now += 30
        assert said(caplog) == ["prepare: 4 / 9 folds, 00:43 left"]


def test_items_are_parts_of_work_that_is_counted_in_parts_alone() -> None:
    """However many there are; not of other work, within it or around it."""
    for count in (1, 7, 40):
        with Progress("preparing", PART, 30) as shown:
            assert [*in_parts(range(count), 20)] == [*range(count)] and shown.done == 20
            with Progress("other", "day", 5) as other:
                assert [*in_parts("ab", 10)] == ["a", "b"] and other.done == 0
            half = in_parts([1, 2], 10)
            assert (next(half), next(half), shown.done) == (1, 2, 25)
    assert [*in_parts("ab", 10)] == ["a", "b"], "nothing is under way"


def test_a_single_long_step_is_reported_too(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "REPORTER", Reporter(lambda: clock.now, poll_seconds=0.01))
    caplog.set_level(logging.INFO, "utils.progress")
    with Progress("fit LightGBM", "round", 400):
        clock.now += LINE_SECONDS
        deadline = time.monotonic() + 60
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    assert caplog.messages == ["fit LightGBM: 0 / 400 rounds"]


@pytest.mark.parametrize(("delay", "is_shown"), [(0.0, True), (60.0, False)])
def test_a_terminal_gets_a_bar_for_what_takes_a_while(
    clock: SimpleNamespace,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    delay: float,
    is_shown: bool,
) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "DELAY_SECONDS", delay)
    for _ in progress([1, 2], "train", "update"):
        clock.now += 100
        assert said(caplog) == [], "a bar says it"
    assert ("train" in terminal.getvalue() and " / 2" in terminal.getvalue()) == is_shown


def test_nothing_of_a_bar_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one that was drawn before its time, to say what is being done."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("training", "generation", 3) as shown, Progress("train", "update", 9) as inner:
        for one in (shown, inner):
            one.describe("at work")
        assert len(screen(terminal.getvalue())) == 2
    assert screen(terminal.getvalue()) == []
