"""What tests of memory count, and the tables in which they read it."""

from utils.memory_census import counted


class Thing:
    """An object of no interest but its number."""

    def __init__(self, value: object = None) -> None:
        self.value = value


@counted("environments")
class Environment(Thing):
    """What is counted as an environment."""


def row_of(measure: str, text: str) -> list[str]:
    """The numbers beside a measure in a table."""
    return next(line.split()[1:] for line in text.splitlines() if line.startswith(measure))
