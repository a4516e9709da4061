"""Files in drawn notations are read back exactly or refused in one line: never misread."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.notations import outcome


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25)  # `python -m benchmarks.notations` draws 2,000
def test_drawn_notations_are_read_back_or_refused(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = outcome(seed, tmp_path_factory.mktemp("notation"))
    assert found == "read" or (found.startswith("expected") and "\n" not in found)


def test_most_notations_are_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A reader that refuses everything misreads nothing."""
    found = [outcome(seed, tmp_path_factory.mktemp("notation")) for seed in range(24)]
    assert found.count("read") > 12
