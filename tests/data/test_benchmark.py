"""A benchmark of the user's own: alignment with the market's days, and malformed files."""

from pathlib import Path

import numpy as np
import pytest

from data.universe import read_index
from tests.data.files import refused, written

DATES = np.arange("2020-01-01", "2020-01-11", dtype="datetime64[D]")
NONE = np.nan


@pytest.mark.parametrize(
    ("text", "closes"),
    [
        (
            "Date, Close\n2020-01-06,31\n2020-01-03, 10.5\n2020-01-05,20\n2019-12-02,5\n2020-01-06,31\n",
            [5, 5, 10.5, 10.5, 20, 31, *[NONE] * 4],
        ),
        ("date,close\n2019-12-02,5\n2020-02-01,6\n", [5, 5, *[NONE] * 8]),
        ("Date,Close,Adj Close\n2020-01-02,10,5\n2020-01-03,10,10\n", [NONE, 5, 10, *[NONE] * 7]),
        ("Datum;Schlusskurs\n02.01.2020;1.234,5\n03.01.2020;1.234,5\n", [NONE, 1234.5, 1234.5, *[NONE] * 7]),
        ("Date,^SPX\n2020-01-02,10\n2020-01-03,11\n", [NONE, 10, 11, *[NONE] * 7]),
    ],
)
def test_closes_are_the_last_known_ones_and_none_is_made_up(text: str, closes: list[float], tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_index(written(tmp_path / "index.csv", text), DATES), closes)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("date,open\n2020-01-01,1\n", "no column for close in the header 'date,open'"),
        ("date,close\n", "at least one row"),
        ("date,close\n2020-01-01,1\nsoon,2\n", "'soon' on line 3"),
        ("date,close\n2020-01-01,0\n", "'2020-01-01' on line 2"),
        ("date,close\n2020-01-01,1\n2020-01-02,\n", "'2020-01-02' on line 3"),
        ("\x00\x01\xff", "columns date, close"),
        ("date,close\n2020-01-01,1\n2020-01-01,2\n", "closes 1 and 2 .* on 2020-01-01; write one row a day"),
        ("date,close\n03/04/2020,1\n", "dates like '03/04/2020' may be read in several ways; write .* 2020-12-31"),
        ("date,close\n1970-01-01,1\n2020-01-02,2\n", "'1970-01-01' on line 2"),
        ("date,close\n2020-01-02,2\n2120-01-02,1\n", "'2120-01-02' on line 3"),
    ],
)
def test_a_malformed_file_is_told_in_one_line(tmp_path: Path, text: str, named: str) -> None:
    with refused(named):
        read_index(written(tmp_path / "index.csv", text), DATES)
