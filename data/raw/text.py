"""Dates and numbers in the notations that vendors use: what a column shows of its own, and its values."""

import re
from collections.abc import Sequence
from datetime import date

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.bars import latest_day, misread_weekdays, spacing

Int32Array = npt.NDArray[np.int32]
Float64Array = npt.NDArray[np.float64]

EPOCH = date(1970, 1, 1).toordinal()
NO_DAY = np.iinfo(np.int32).min
"""Marks a date that could not be read."""
OTHER = {".": ",", ",": "."}
"""The sign that groups thousands, by the decimal one."""

_ZEROS = "\u0660\u06f0\u0966\u09e6\uff10"  # of the digits of Arabic, Persian, Hindi, Bengali and full width
_ASCII = {ord(zero) + digit: str(digit) for zero in _ZEROS for digit in range(10)} | {
    0x66B: ".",
    0x66C: ",",
    0x2212: "-",
}
_DATE = r"^(\d{8}|\w{1,9}[-/. ]+\w{1,9}[-/., ]+\d{1,4})\.?(?:\.0|,?[ T].*)?$"
_SETTLED = ("%Y-%m-%d", "%Y%m%d", "%d-%b-%Y", "%d-%b-%y", "%b-%d-%Y")
ORDERS = {"mdy": ("%m-%d-%Y", "%m-%d-%y"), "dmy": ("%d-%m-%Y", "%d-%m-%y"), "ymd": ("%y-%m-%d",)}
"""Forms of dates in digits by the order of day, month and year."""
_UNIX = r"^(\d{9,10}|\d{12,13})(?:\.0)?$"
_UTC = r"^\d{4}-\d{2}-\d{2}[ T](\d{2}):\d{2}(?::\d{2}(?:\.\d+)?)? ?(?:Z|UTC|[+-]00:?00)$"
_CLOCK = r"(?:^|[ T])(\d{1,2}):?(\d{2}):?(\d{2})?(?:\.\d+)? ?([AaPp][Mm])?(?: ?Z| ?UTC|[+-]\d\d:?\d\d)?$"
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}
_SPACE = "[ \u00a0\u202f'\u2019]"


def ascii_digits(texts: pd.Series) -> pd.Series:
    """Return texts with the digits of other scripts as those of ASCII, and without spaces around them."""
    is_other = texts.str.contains(f"[{_ZEROS[0]}-{chr(ord(_ZEROS[-1]) + 9)}\u2212]")
    return (texts.map(lambda text: text.translate(_ASCII)) if is_other.any() else texts).str.strip()


def resolve_days(texts: Sequence[str], order: str = "mdy") -> Int32Array:
    """Return days since 1970-01-01 (texts,) of one file's dates, `NO_DAY` for any other text.

    Accepts 2014-11-30, 20141130, 30-Nov-2014, Nov 30, 2014, 11/30/2014 and 30/11/2014, each with or without a time of
    day, and Unix time in seconds or milliseconds. Dates in digits that do not begin with a year of four have the
    `order`, one of `ORDERS`.
    """
    text = ascii_digits(pd.Series(texts, dtype="str"))
    plain = _plain(text)
    days = pd.Series(np.nan, index=text.index)
    for form in (*_SETTLED, *ORDERS[order]):
        if (left := plain[days.isna()].dropna()).empty:
            break
        found = pd.to_datetime(left, format=form, errors="coerce").dropna()
        days[found.index] = found.to_numpy().astype("datetime64[D]").astype(np.float64)
    unix, hours = (text.str.extract(form, expand=False).astype(np.float64) for form in (_UNIX, _UTC))
    hours = (unix.where(unix < 1e11, unix // 1000) // 3600).fillna(24 * days + hours)
    # A stamp of an American exchange, its midnight or its close, has the exchange's date in UTC as well; midnight east
    # of Greenwich falls late on the day before. Stamps are read so where late ones fall on Sundays, none on a Friday.
    is_late = hours % 24 >= 12
    weekdays = (hours[is_late] // 24 + 3) % 7  # Monday is 0; 1970-01-01 was a Thursday
    is_east = (weekdays == 6).any() and not (weekdays == 4).any()
    days = (hours // 24 + (is_late & is_east)).fillna(days)
    return np.asarray(days.fillna(NO_DAY), dtype=np.int32)


def _plain(text: pd.Series) -> pd.Series:
    """Return the dates with hyphens between their parts, without a time of day, NaN for any other text."""
    text = text.str.replace(r"^(\d+)年(\d+)月(\d+)日$", r"\1-\2-\3", regex=True)
    plain = text.str.extract(_DATE, expand=False, flags=re.ASCII).str.replace(r"[-/., ]+", "-", regex=True)
    return plain.str.replace(r"([A-Za-z]{3})[A-Za-z]*", r"\1", regex=True)  # 30-November-2014 becomes 30-Nov-2014


def possible_orders(texts: Sequence[str], known: Int32Array | None = None, *, is_daily: bool = True) -> list[str]:
    """Return the orders of `ORDERS` in which one file's dates can be read, one where nothing depends on it.

    An order is possible if it reads as many of the texts as any, and, where this leaves several, if its days do not
    fall on weekends, in the future, a week or month apart (of daily bars), or beside those of `known` bars.
    """
    plain = _plain(ascii_digits(pd.Series(texts, dtype="str")))
    plain = plain[plain.str.fullmatch(r"\d\d?-\d\d?-(?:\d\d|\d{4})").fillna(False).astype(bool)]
    if plain.empty:
        return ["mdy"]
    read = {order: resolve_days(plain.tolist(), order) for order in ORDERS}
    counts = {order: (days != NO_DAY).sum() for order, days in read.items()}
    tied = [order for order in read if counts[order] == max(counts.values())]
    tied = [order for place, order in enumerate(tied) if not any((read[order] == read[o]).all() for o in tied[:place])]
    if len(tied) == 1:
        return tied
    unique = {order: np.unique(read[order][read[order] != NO_DAY]) for order in tied}
    likely = [order for order in tied if unique[order].size and unique[order][-1] <= latest_day()]
    likely = [order for order in likely if not (is_daily and spacing(unique[order]))] or likely
    likely = [order for order in likely if not misread_weekdays(unique[order])] or likely
    if any("." in text for text in texts):  # nobody writes the month first between points
        likely = [order for order in likely if order != "mdy"] or likely
    if known is not None and known.size:
        likely = [order for order in likely if _follows(unique[order], known)] or likely
    return likely or tied


def _follows(days: Int32Array, known: Int32Array) -> bool:
    """Return whether days are those of known bars, and go on soon after the last of them."""
    new = days[days > known[-1]]
    return bool(np.isin(days[days <= known[-1]], known).all() and (not new.size or new[0] - known[-1] <= 7))


def clocks(texts: pd.Series) -> Float64Array:
    """Return the seconds since midnight (texts,) of times of a day, alone or in a date; NaN for any other text."""
    texts = ascii_digits(texts)
    parts, unix = texts.str.extract(_CLOCK), texts.str.extract(_UNIX, expand=False).astype(np.float64)
    hour, minute, second = (parts[place].astype(np.float64) for place in range(3))
    hour = hour.where(parts[3].isna(), hour % 12 + 12 * parts[3].str.upper().eq("PM"))
    since = 3600 * hour + 60 * minute + second.fillna(0)
    return np.asarray(since.fillna(unix.where(unix < 1e11, unix / 1000) % 86400), dtype=np.float64)


def date_of(day: float) -> date:
    """Return the date of a number of days since 1970-01-01."""
    return date.fromordinal(EPOCH + int(day))


def are_days(texts: Sequence[str]) -> list[bool]:
    """Return whether each text is a date, in any order."""
    found, left = set[str](), [text for text in texts if any(map(str.isdigit, text))]
    for order in ORDERS:
        found |= {text for text, day in zip(left, resolve_days(left, order), strict=True) if day != NO_DAY}
        if not (left := [text for text in left if text not in found and re.search(r"\d\D+\d+\D+\d", text)]):
            break
    return [text in found for text in texts]


def are_numbers(texts: Sequence[str]) -> list[bool]:
    """Return whether each text is a number, in any notation."""
    bare = bare_numbers(pd.Series(texts, dtype="str"))
    return [bool(found) for found in np.any([np.isfinite(numbers(bare, decimal)) for decimal in OTHER], axis=0)]


def bare_numbers(texts: pd.Series) -> pd.Series:
    """Return numbers without signs of a currency, and without spaces or apostrophes between thousands."""
    if texts.str.fullmatch(r"[-+0-9.,]*").all():
        return texts
    bare = ascii_digits(texts).str.replace(r"^([-+]?) ?[$€£¥₹₩₽₺฿] ?|[ \u00a0\u202f]?[$€£¥₹₩₽₺฿]$", r"\1", regex=True)
    for _ in range(3 if bare.str.contains(rf"\d{_SPACE}\d").any() else 0):
        bare = bare.str.replace(rf"^([-+]?\d{{1,3}}(?:\d{{3}})*){_SPACE}(\d{{3}})(?!\d)", r"\1\2", regex=True)
    return bare


def decimal_sign(texts: pd.Series, is_volume: bool = False) -> str:
    """Return the decimal sign that bare numbers show: one of `OTHER`, nothing where they have no sign at all.

    A number with both signs, or with one of them twice, settles it, as do other digits than three behind a sign,
    thousands that are not grouped, and 1.050 beside 985. Where nothing does, as in 12,345 alone, a question mark and
    the sign are returned.
    """
    texts = texts.str.replace("[KMBkmb]$", "", regex=True) if is_volume else texts
    is_signed = texts.str.contains("[.,]", regex=True)
    signed, whole = texts[is_signed], texts[~is_signed]
    if signed.empty:
        return ""
    signs, is_open = signed.str.replace("[^.,]", "", regex=True), signed.str.fullmatch(r"[-+]?[1-9]\d{0,2}[.,]\d{3}")
    settled = signs[~is_open].map(lambda own: OTHER[own[-1]] if own[-1] in own[:-1] else own[-1])
    if len(settled):
        return str(settled.mode()[0])
    if signs.nunique() > 1:
        return "?"
    sign = str(signs.iloc[0])
    if whole.str.fullmatch(r"[-+]?[1-9]\d{3,}").any():
        return sign
    is_grouped = whole.str.fullmatch(r"[-+]?[1-9]\d{0,2}").any() and signed.str.endswith("0").any()
    return OTHER[sign] if is_grouped else f"?{sign}"


def numbers(texts: pd.Series, decimal: str = ".", is_volume: bool = False) -> Float64Array:
    """Return the values (texts,) of bare numbers with this decimal sign, NaN for any other text.

    Thousands may be grouped by the other sign, in India by two digits. Volume may be written as 1.5M (thousands K,
    millions M, billions B).
    """
    unit: Float64Array | float = 1.0
    if is_volume and texts.str.contains("[KMBkmb]$", regex=True).any():
        unit = texts.str[-1:].str.upper().map(_UNITS).fillna(1.0).to_numpy(np.float64)
        texts = texts.str.replace("[KMBkmb]$", "", regex=True)
    group, point = re.escape(OTHER[decimal]), re.escape(decimal)
    whole = rf"(?:\d*|\d{{1,3}}(?:{group}\d{{2,3}})*{group}\d{{3}})"
    is_number = texts.str.fullmatch(rf"[-+]?{whole}(?:{point}\d*)?(?:[eE][-+]?\d+)?")
    plain = texts.where(is_number, "").str.replace(OTHER[decimal], "", regex=False)
    values = pd.to_numeric(plain.str.replace(decimal, ".", regex=False), errors="coerce")
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan) * unit)
