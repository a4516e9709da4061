"""A benchmark of the user's own: alignment with the market's days, and malformed files."""

from pathlib import Path

import numpy as np
import pytest

from data.benchmark import read_benchmark
from utils.errors import DataError

DATES = np.arange("2020-01-01", "2020-01-11", dtype="datetime64[D]")


def written(path: Path, text: str) -> Path:
    (path / "index.csv").write_text(text)
    return path / "index.csv"


def test_closes_are_the_last_known_ones_and_none_is_made_up(tmp_path: Path) -> None:
    file = written(
        tmp_path, "Date, Close\n2020-01-06,30\n2020-01-03, 10.5\n2020-01-05,20\n2019-12-02,5\n2020-01-06,31\n"
    )
    expected = [5, 5, 10.5, 10.5, 20, 31, *[np.nan] * 4]
    np.testing.assert_array_equal(read_benchmark(file, DATES), expected)
    gap = written(tmp_path, "date,close\n2019-12-02,5\n2020-02-01,6\n")
    np.testing.assert_array_equal(read_benchmark(gap, DATES), [5, 5, *[np.nan] * 8])
    later = written(tmp_path, "date,close\n2020-01-09,1\n2020-02-01,2\n")
    np.testing.assert_array_equal(read_benchmark(later, DATES), [*[np.nan] * 8, 1, 1])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "columns date, close"),
        ("date,open\n2020-01-01,1\n", "no column for close in the header 'date,open'"),
        ("date,close\n", "at least one row"),
        ("date,close\n2020-01-01,1\nsoon,2\n", "'soon' on line 3"),
        ("date,close\n2020-01-01,0\n", "'2020-01-01' on line 2"),
        ("date,close\n2020-01-01,1\n2020-01-02,\n", "'2020-01-02' on line 3"),
        ("\x00\x01\xff", "columns date, close"),
    ],
)
def test_a_malformed_file_is_told_in_one_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(DataError, match="expected") as error:
        read_benchmark(written(tmp_path, text), DATES)
    assert named in str(error.value) and "\n" not in str(error.value)
