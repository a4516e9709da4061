"""Studies print their tables to standard output; what earlier tests left of the program's console is not among them."""

import pytest

from utils.runs.console import setup_logging


@pytest.fixture(autouse=True)
def messages_are_no_results() -> None:
    setup_logging(results=False)
