"""Dates and numbers in the notations that vendors use."""

import re
from collections.abc import Sequence
from datetime import date

import numpy as np
import numpy.typing as npt
import pandas as pd

Int32Array = npt.NDArray[np.int32]
Float64Array = npt.NDArray[np.float64]

EPOCH = date(1970, 1, 1).toordinal()
NO_DAY = np.iinfo(np.int32).min
"""Marks a date that could not be read."""

_DATE = r"^(\d{8}|\w{1,9}[-/. ]+\w{1,9}[-/., ]+\d{1,4})(?:\.0|,?[ T].*)?$"
_SETTLED = ("%Y-%m-%d", "%Y%m%d", "%d-%b-%Y", "%d-%b-%y", "%b-%d-%Y")
_MONTH_FIRST, _DAY_FIRST = ("%m-%d-%Y", "%m-%d-%y"), ("%d-%m-%Y", "%d-%m-%y")
_UNIX = r"^(\d{9,10}|\d{12,13})(?:\.0)?$"
_UTC = r"^\d{4}-\d{2}-\d{2}[ T](\d{2}):\d{2}(?::\d{2}(?:\.\d+)?)? ?(?:Z|UTC|[+-]00:?00)$"
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")


def resolve_days(texts: Sequence[str]) -> tuple[Int32Array, str | None]:
    """Return days since 1970-01-01 (texts,) of one file's dates, `NO_DAY` for any other text.

    Accepts 2014-11-30, 20141130, 30-Nov-2014, Nov 30, 2014, 11/30/2014 and 30/11/2014, each with or without a time of
    day, and Unix time in seconds or milliseconds. Whether day or month comes first is decided once per file; where no
    date settles it the month comes first, and one such date is returned as well.
    """
    text = pd.Series(texts, dtype=object)
    text = text.str.replace(r"^(\d+)年(\d+)月(\d+)日$", r"\1-\2-\3", regex=True)
    plain = text.str.extract(_DATE, expand=False, flags=re.ASCII).str.replace(r"[-/., ]+", "-", regex=True)
    plain = plain.str.replace(r"([A-Za-z]{3})[A-Za-z]*", r"\1", regex=True)  # 30-November-2014 becomes 30-Nov-2014
    numeric = plain.str.extract(r"^(\d\d?)-(\d\d?)-\d+$").astype(np.float64)
    first, second = (numeric > 12).sum()
    days = pd.Series(np.nan, index=text.index)
    for form in _SETTLED + (_DAY_FIRST if first > second else _MONTH_FIRST):
        found = pd.to_datetime(plain, format=form, errors="coerce")
        number = pd.Series(found.to_numpy().astype("datetime64[D]").astype(np.float64))
        days = days.fillna(number.where(found.notna()))
    unix, hours = (text.str.extract(form, expand=False, flags=re.ASCII).astype(np.float64) for form in (_UNIX, _UTC))
    hours = (unix.where(unix < 1e11, unix // 1000) // 3600).fillna(24 * days + hours)
    # A stamp of an American exchange, its midnight or its close, has the exchange's date in UTC as well; midnight east
    # of Greenwich falls late on the day before. Stamps are read so where late ones fall on Sundays, none on a Friday.
    is_late = hours % 24 >= 12
    weekdays = (hours[is_late] // 24 + 3) % 7  # Monday is 0; 1970-01-01 was a Thursday
    is_east = (weekdays == 6).any() and not (weekdays == 4).any()
    days = (hours // 24 + (is_late & is_east)).fillna(days)
    is_numeric = numeric[0].notna()
    unsettled = str(text[is_numeric].iloc[0]) if is_numeric.any() and first == second else None
    return days.fillna(NO_DAY).to_numpy(np.int32), unsettled


def date_of(day: float) -> date:
    """Return the date of a number of days since 1970-01-01."""
    return date.fromordinal(EPOCH + int(day))


def is_day(text: str) -> bool:
    """Return whether the text is a date."""
    return bool(resolve_days([text])[0][0] != NO_DAY)


def numbers(texts: Sequence[str], separator: str, is_volume: bool = False) -> Float64Array:
    """Return the values (texts,) of a column in a file with this field separator, NaN for any other text.

    Volume may be written as 1.5M (thousands K, millions M, billions B).
    """
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        return np.array([_number(text, separator, is_volume) for text in texts])


def is_number(text: str, separator: str) -> bool:
    """Return whether the text is a number; dollar signs and commas are allowed."""
    return not np.isnan(_number(text, separator))


def _number(text: str, separator: str, is_volume: bool = False) -> float:
    """Return the value of a number; digits and separator decide whether a comma is decimal or groups thousands."""
    text = text.strip().lstrip("$")
    unit = _UNITS.get(text[-1:].upper(), 1.0) if is_volume else 1.0
    text = text[:-1] if unit > 1 else text
    if "," in text:
        thousands = _THOUSANDS.fullmatch(text) and ("." in text or separator != ";")
        text = text.replace(",", "") if thousands else text.replace(".", "").replace(",", ".")
    try:
        return unit * float(text)
    except ValueError:
        return float("nan")
