"""Progress of long work: bars on a terminal; elsewhere a line every half minute that says what is being done."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from typing import Any, Self, TypeVar

from tqdm import tqdm

logger = logging.getLogger(__name__)
Item = TypeVar("Item")
LINE_SECONDS = 30.0
"""Longest silence in a pipe while work is under way."""
DELAY_SECONDS = 1.0
"""Work that is over sooner shows no bar."""
PART = "part"
"""Unit of work whose parts are counted where they are done, see `in_parts`."""


class _Bar(tqdm):  # type: ignore[type-arg]
    """A bar whose counts have thousands separators."""

    @property
    def format_dict(self) -> Any:
        known = super().format_dict
        total = "?" if self.total is None else f"{self.total:,}"
        return {**known, "count": f"{self.n:,} / {total}"}


class Progress:
    """Work with a count of the units that are done; use it in a `with` block."""

    def __init__(self, label: str, unit: str, total: int | None = None, *, done: int = 0) -> None:
        """Begin with `done` units of the `total`, None if it is not known."""
        self.label, self.unit, self.total, self.done, self._before = label, unit, total, done, done

    def __enter__(self) -> Self:
        _under_way.append(self)
        self._begun = self._updated = REPORTER.clock()
        self.bar = _Bar(
            desc=self.label,
            unit=self.unit,
            total=self.total,
            initial=self.done,
            leave=False,
            disable=None,
            delay=DELAY_SECONDS,
            bar_format="{l_bar}{bar}| {count} [{elapsed}<{remaining}]",
        )
        if self.bar.disable:  # no terminal
            REPORTER.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.clear()  # closing one leaves what was drawn before the delay
        self.bar.close()
        REPORTER.end(self)
        _under_way.remove(self)

    def update(self, units: int = 1, total: int | None = None) -> None:
        """Count finished units; a `total` replaces the one before."""
        self.done, self._updated = self.done + units, REPORTER.clock()
        self.bar.total = self.total = self.total if total is None else total
        self.bar.update(units)

    def describe(self, label: str) -> None:
        """Say anew what is being done."""
        self.label = label
        self.bar.set_description(label)

    def __str__(self) -> str:
        """Return the work, the units done and an estimate of the time left."""
        if self.total is None:
            return f"{self.label}: {self.done:,} {self.unit}s"
        text = f"{self.label}: {self.done:,} / {self.total:,} {self.unit}s"
        if self._before < self.done < self.total:
            seconds = (self._updated - self._begun) / (self.done - self._before) * (self.total - self.done)
            text += f", {tqdm.format_interval(max(0.0, seconds - (REPORTER.clock() - self._updated)))} left"
        return text


_under_way: list[Progress] = []


def in_parts(items: Collection[Item], parts: int) -> Iterator[Item]:
    """Yield items, and advance the innermost progress bar by `parts` in all if its unit is a part."""
    for done, item in enumerate(items):
        yield item
        if _under_way and _under_way[-1].unit == PART:
            _under_way[-1].update(parts * (done + 1) // len(items) - parts * done // len(items))


def progress(items: Iterable[Item], label: str, unit: str) -> Iterator[Item]:
    """Yield the items and show how many of them are done, of all that a collection has."""
    with Progress(label, unit, len(items) if isinstance(items, Sized) else None) as shown:
        for item in items:
            yield item
            shown.update()


class Reporter:
    """Logs what is being done if nothing was logged for half a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, poll_seconds: float = 1.0) -> None:
        self.clock, self._poll_seconds = clock, poll_seconds
        self._open: list[Progress] = []
        """The work under way that has no bar, each part of the one before."""
        self._last = clock()
        self._thread: threading.Thread | None = None

    def begin(self, work: Progress) -> None:
        """Report on this work until it ends."""
        self._open.append(work)
        if self._thread is None:
            # A thread, since a single step may take minutes; a daemon, since it must not keep the program from ending.
            self._thread = threading.Thread(target=self._watch, name="progress", daemon=True)
            self._thread.start()

    def end(self, work: Progress) -> None:
        """Report on it no longer."""
        self._open = [one for one in self._open if one is not work]

    def quiet(self) -> None:
        """Note that something was logged."""
        self._last = self.clock()

    def check(self) -> None:
        """Log the work under way, if it is time to."""
        if self._open and self.clock() - self._last >= LINE_SECONDS:
            self.quiet()
            logger.info("%s", "; ".join(map(str, self._open)))

    def _watch(self) -> None:
        while True:
            time.sleep(self._poll_seconds)
            self.check()


REPORTER = Reporter()
