"""Dates and numbers as people write them in files."""

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
_FORMS = [
    re.compile(form + _TIME)
    for form in (
        r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})",
        r"(?P<year>\d{4})(?P<month>\d{2})(?P<day>\d{2})",
        r"(?P<day>\d{1,2})[-/. ]+(?P<month>[A-Za-z]{3,9})[-/., ]+(?P<year>\d{4}|\d{2})",
        r"(?P<month>[A-Za-z]{3,9})[-/. ]+(?P<day>\d{1,2})[-/., ]+(?P<year>\d{4})",
    )
]
_NUMERIC = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4}|\d{2})" + _TIME)
_UNIX = re.compile(r"(\d{9,10}|\d{12,13})(?:\.0)?")
_UTC = re.compile(r"\d{4}-\d{2}-\d{2}[ T](\d{2}):\d{2}(?::\d{2}(?:\.\d+)?)? ?(?:Z|UTC|[+-]00:?00)")
_DAY_SECONDS = 86_400
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")


def resolve_days(texts: Sequence[str]) -> tuple[Int32Array, str | None]:
    """Return days since 1970-01-01 (texts,) of one file's dates, `NO_DAY` for what is no date.

    Day or month first is decided once for all of them. Where none of them settles it, the month is taken first, and one
    such date is returned too.
    """
    numeric = [match for text in texts if (match := _NUMERIC.fullmatch(text))]
    first_beyond = sum(int(match[1]) > 12 for match in numeric)
    second_beyond = sum(int(match[2]) > 12 for match in numeric)
    days = [parse_day(text, day_first=first_beyond > second_beyond) for text in texts]
    unsettled = numeric[0][0] if numeric and first_beyond == second_beyond else None
    result = np.array([NO_DAY if day is None else day for day in days], dtype=np.int32)
    instants = {
        place: seconds
        for place, (text, day) in enumerate(zip(texts, days, strict=True))
        if day is not None and (seconds := _utc_seconds(text, day)) is not None
    }
    if instants:
        result[list(instants)] = days_of_seconds(np.array(list(instants.values()), dtype=np.int64))
    return result, unsettled


def _utc_seconds(text: str, day: int) -> int | None:
    """Return the Unix time, to the hour, of a text that is an instant in UTC; None for a day or another zone's time."""
    if match := _UNIX.fullmatch(text):
        return int(match[1]) // (1 if len(match[1]) <= 10 else 1000)
    match = _UTC.fullmatch(text)
    return day * _DAY_SECONDS + 3600 * int(match[1]) if match else None


def days_of_seconds(seconds: npt.NDArray[np.int64]) -> Int32Array:
    """Return the exchange's days since 1970-01-01 of daily bars (bars,) that are stamped with Unix times.

    A stamp of an American exchange, its midnight or its close, has the exchange's date in UTC too. Midnight east of
    Greenwich is late on the day before: so it is read where late stamps fall on Sundays and none on a Friday.
    """
    days = seconds // _DAY_SECONDS
    is_late = seconds % _DAY_SECONDS >= _DAY_SECONDS // 2
    weekdays = (days[is_late] + 3) % 7  # Monday is 0; 1970-01-01 was a Thursday
    if (weekdays == 6).any() and not (weekdays == 4).any():
        days = days + is_late
    return days.astype(np.int32)


def parse_day(text: str, *, day_first: bool = False, either_order: bool = False) -> int | None:
    """Return days since 1970-01-01, or None if the text is no date; `either_order` takes day and month both ways.

    Understood are 2014-11-30, 20141130, 11/30/2014 (30/11/2014 with `day_first`), 30-Nov-2014, Nov 30, 2014, all with
    or without a time of day, and Unix time in seconds or milliseconds (UTC).
    """
    if match := _UNIX.fullmatch(text):
        return int(match[1]) // (86_400 if len(match[1]) <= 10 else 86_400_000)
    for form in _FORMS:
        if match := form.fullmatch(text):
            return _day_number(**match.groupdict())
    if match := _NUMERIC.fullmatch(text):
        first, second, year = match.groups()
        month, day = (second, first) if day_first else (first, second)
        number = _day_number(year, month, day)
        return _day_number(year, day, month) if number is None and either_order else number
    return None


def _day_number(year: str, month: str, day: str) -> int | None:
    century = 0 if len(year) == 4 else (1900 if int(year) >= 70 else 2000)
    try:
        number = int(month) if month.isdigit() else 1 + _MONTHS.index(month[:3].lower())
        return date(century + int(year), number, int(day)).toordinal() - EPOCH
    except ValueError:
        return None


def numbers(texts: Sequence[str], separator: str) -> Float64Array:
    """Return values (texts,) of a column whose file has fields set apart by `separator`, NaN for what is no number."""
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        return np.array([_number(text, separator) for text in texts])


def is_number(text: str, separator: str) -> bool:
    """Return whether the text is a number, dollar signs and commas allowed."""
    return not np.isnan(_number(text, separator))


def _number(text: str, separator: str) -> float:
    """Return the value of a number: a comma sets thousands apart or is decimal, as digits and separator tell."""
    text = text.strip().lstrip("$")
    if "," in text:
        thousands = _THOUSANDS.fullmatch(text) and ("." in text or separator != ";")
        text = text.replace(",", "") if thousands else text.replace(".", "").replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return float("nan")
