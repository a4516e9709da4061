"""Classes for tests of memory."""

from utils.memory.living import counted


class Thing:
    """An object of no interest but its number."""

    def __init__(self, value: object = None) -> None:
        self.value = value


@counted("environments")
class Environment(Thing):
    """What is counted as an environment."""
