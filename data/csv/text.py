"""Dates and numbers as people write them in CSV files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Float64Array = npt.NDArray[np.float64]

EPOCH = date(1970, 1, 1).toordinal()
NO_DAY = np.iinfo(np.int32).min
"""Stands for a date that could not be read."""

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = r"(?:\.0|,?[ T].*)?"
_YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})" + _TIME)
_COMPACT = re.compile(r"(\d{4})(\d{2})(\d{2})" + _TIME)
_NUMERIC = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4}|\d{2})" + _TIME)
_DAY_MONTH_NAME = re.compile(r"(\d{1,2})[-/. ]+([A-Za-z]{3,9})[-/., ]+(\d{4}|\d{2})" + _TIME)
_MONTH_NAME_DAY = re.compile(r"([A-Za-z]{3,9})[-/. ]+(\d{1,2})[-/., ]+(\d{4})" + _TIME)
_UNIX_SECONDS = re.compile(r"(\d{9,10})(?:\.0)?")
_UNIX_MILLISECONDS = re.compile(r"(\d{12,13})(?:\.0)?")
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")


def resolve_days(texts: Sequence[str]) -> tuple[Int32Array, str | None]:
    """Days since 1970-01-01 (texts,) of one file's dates, `NO_DAY` for what is no date.

    Whether day or month comes first is decided once for all of them. Where none of them settles it, the month is taken
    first, and one such date is returned too.
    """
    numeric = [match for text in texts if (match := _NUMERIC.fullmatch(text))]
    first_beyond = sum(int(match[1]) > 12 for match in numeric)
    second_beyond = sum(int(match[2]) > 12 for match in numeric)
    days = [parse_day(text, day_first=first_beyond > second_beyond) for text in texts]
    unsettled = numeric[0][0] if numeric and first_beyond == second_beyond else None
    return np.array([NO_DAY if day is None else day for day in days], dtype=np.int32), unsettled


def parse_day(text: str, *, day_first: bool = False, either_order: bool = False) -> int | None:
    """Days since 1970-01-01, or None if the text is no date; `either_order` also takes day and month the other way.

    Understood are 2014-11-30, 20141130, 11/30/2014 (30/11/2014 with `day_first`), 30-Nov-2014, Nov 30, 2014, all with
    or without a time of day, and Unix time in seconds or milliseconds (UTC).
    """
    if match := _UNIX_MILLISECONDS.fullmatch(text):
        return int(match[1]) // 86_400_000
    if match := _UNIX_SECONDS.fullmatch(text):
        return int(match[1]) // 86_400
    if match := _YEAR_FIRST.fullmatch(text) or _COMPACT.fullmatch(text):
        return _day_number(match[1], match[2], match[3])
    if match := _DAY_MONTH_NAME.fullmatch(text):
        return _day_number(match[3], match[2], match[1])
    if match := _MONTH_NAME_DAY.fullmatch(text):
        return _day_number(match[3], match[1], match[2])
    if match := _NUMERIC.fullmatch(text):
        month, day = (match[2], match[1]) if day_first else (match[1], match[2])
        number = _day_number(match[3], month, day)
        return _day_number(match[3], day, month) if number is None and either_order else number
    return None


def _day_number(year: str, month: str, day: str) -> int | None:
    century = 0 if len(year) == 4 else (1900 if int(year) >= 70 else 2000)
    try:
        number = int(month) if month.isdigit() else 1 + _MONTHS.index(month[:3].lower())
        return date(century + int(year), number, int(day)).toordinal() - EPOCH
    except ValueError:
        return None


def numbers(texts: Sequence[str], separator: str) -> Float64Array:
    """Values (texts,) of a column in a file whose fields are set apart by `separator`, NaN for what is no number."""
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        return np.array([_number(text, separator) for text in texts])


def is_number(text: str, separator: str) -> bool:
    """Whether the text is a number, dollar signs and commas allowed."""
    return not np.isnan(_number(text, separator))


def _number(text: str, separator: str) -> float:
    """Value of one number: a comma sets thousands apart or is decimal, as the digits and the separator tell."""
    text = text.strip().lstrip("$")
    if "," in text:
        thousands = _THOUSANDS.fullmatch(text) and ("." in text or separator != ";")
        text = text.replace(",", "") if thousands else text.replace(".", "").replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return float("nan")
