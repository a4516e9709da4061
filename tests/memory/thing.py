"""A class for tests of memory."""

from __future__ import annotations


class Thing:
    """An object of no interest but its number."""

    def __init__(self, value: object = None) -> None:
        self.value = value
