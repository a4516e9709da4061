"""Dates and numbers in the notations that vendors use: what a column shows of its own, and its values.

A column of texts is one string, a line for each row.
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pandas as pd

from data.bars import EPOCH, latest_day, misread_weekdays, spacing
from utils.arrays import BoolArray, Float64Array, Int32Array

NO_DAY = np.iinfo(np.int32).min
"""Marks a date that could not be read."""
ORDERS = {"mdy": ("%m-%d-%Y", "%m-%d-%y"), "dmy": ("%d-%m-%Y", "%d-%m-%y"), "ymd": ("%y-%m-%d",), "roc": ()}
"""Forms of dates in digits by the order of day, month and year; `roc` has years of the Republic of China first."""
OTHER = {".": ",", ",": "."}
"""The sign that groups thousands, by the decimal one."""

_EDGES = re.compile(r"^[^\S\n]+|[^\S\n]+$", re.MULTILINE)
_NO_ISO = re.compile(r"^(?!\d{4}-\d\d-\d\d$)", re.MULTILINE | re.ASCII)
_DATE = r"^(\d{8}|\w{1,12}[-/. ]+\w{1,12}[-/., ]+\d{1,4})\.?(?:\.0|,?[ T].*)?$"
_SETTLED = ("%Y-%m-%d", "%Y%m%d", "%d-M%m-%Y", "%d-M%m-%y", "M%m-%d-%Y", "%Y-M%m-%d")
_UNSETTLED = re.compile(r"^\d{1,3}[-/. 年]+\d\d?[-/. 月]+\d\d?", re.MULTILINE)
_UNIX = r"^(\d{9,10}|\d{12,13}|\d{15,16}|\d{18,19})(?:\.0)?$"
_FOUNDED, _TAIPEI = 1911, date(1962, 2, 9)
"""The year before the first one of the Republic of China, and when its exchange opened."""
_LIKE_DATE = re.compile(rf"{_DATE}|{_UNIX}|^\d+年")
_ZONE = r":.*(?:([+-])(\d\d):?(\d\d)|(Z|UTC))$"
_EAST = 13
"""Hours from UTC to the easternmost exchange."""
_CLOCK = r"(?:^|[ T])(\d{1,2}):?(\d\d)(?::?\d\d)?(?:\.\d+)? ?([AaPp][Mm])?(?: ?Z| ?UTC|[+-]\d\d:?\d\d)?$"
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "万": 1e4, "亿": 1e8}
_STRANGE = re.compile(r"[^-+0-9.,\n]")
CURRENCY = "[$€£¥₹₩₽₺฿]"
_CURRENCIES = re.compile(rf"^([-+]?) ?{CURRENCY}[ \u00a0]?|[ \u00a0\u202f]?{CURRENCY}$", re.MULTILINE)
_SPACES = re.compile("(?<=[0-9])[ \u00a0\u2009\u202f'\u2019](?=[0-9]{3}(?![0-9]))")
_LONG = re.compile(r"^[-+]?\d{4}", re.MULTILINE)
"""Thousands that are not grouped."""
_NOT_GROUPED = {
    decimal: re.compile(
        rf"^(?![-+]?[1-9]\d{{0,2}}(?:[{group}]\d{{2,3}})*[{group}]\d{{3}}(?:[{decimal}]\d*)? ?[KMBkmb万亿]?$)"
        rf".*[{group}].*$",
        re.MULTILINE,
    )
    for decimal, group in OTHER.items()
}
"""Lines where the other sign than the decimal one does not group thousands."""
_MANY = 10
"""Times as many sessions on one weekday as on another one, where a special session may be on this."""


def lines_of(texts: Iterable[str]) -> str:
    """Return texts as lines, without spaces around them."""
    return _EDGES.sub("", "\n".join(texts))


def _letters(word: str) -> str:
    """Return the letters of a word in lower case, without accents."""
    return "".join(filter(str.isalpha, normalize("NFKD", word.casefold())))


HEADERS = tomllib.loads(Path(__file__).with_name("headers.toml").read_text(encoding="utf-8"))
_STEMS = {
    _letters(stem): f"M{month:02}" for month, stems in enumerate(HEADERS["months"].values(), start=1) for stem in stems
}


def _month(word: re.Match[str]) -> str:
    """Return M03 for March in any of the languages, by its longest stem that is known, and any other word as it is."""
    known = [stem for stem in _STEMS if _letters(word[0]).startswith(stem)]
    return _STEMS[max(known, key=len)] if known else word[0]


def resolve_days(text: str, order: str = "mdy") -> Int32Array:
    """Return days since 1970-01-01 (lines,) of one file's dates, `NO_DAY` for any other text.

    Accepts 2014-11-30, 20141130, 30-Nov-2014, Nov 30, 2014, 11/30/2014 and 30/11/2014, months in some twenty languages,
    each with or without a time of day, and Unix time in seconds, or thousandths of them to nanoseconds. The day is that
    of the zone in which a time is written. Dates in digits that do not begin with a year of four have the `order`, one
    of `ORDERS`.
    """
    lines = text.split("\n")
    if not _NO_ISO.search(text):
        try:
            return np.array(lines, dtype="datetime64[D]").astype(np.int32)
        except ValueError:  # a 30th of February
            pass
    place, unique = pd.factorize(np.array(lines, dtype=object))
    dates = pd.Series(unique, dtype="str")
    plain = dates.str.replace(r"^(\d+)年(\d+)月(\d+)日$", r"\1-\2-\3", regex=True)
    plain = plain.str.replace(r"[^\W\d_]{3,}", _month, regex=True)
    plain = plain.str.extract(_DATE, expand=False, flags=re.ASCII).str.replace(r"[-/., ]+", "-", regex=True)
    if order == "roc":
        plain = plain.str.replace(r"^(\d{2,3})(?=-\d\d?-\d\d?$)", lambda year: str(_FOUNDED + int(year[1])), regex=True)
    days = _unix_seconds(dates) // 86400
    for form in (*_SETTLED, *ORDERS[order]):
        if not (left := plain[days.isna()].dropna()).empty:
            parsed = pd.to_datetime(left, format=form, errors="coerce").dropna()
            days[parsed.index] = parsed.to_numpy().astype("datetime64[D]").astype(np.float64)
    resolved: Int32Array = days.fillna(NO_DAY).to_numpy(np.int32)[place]
    return resolved


def _unix_seconds(texts: "pd.Series[str]") -> "pd.Series[float]":
    """Return Unix time, of seconds or thousandths of them to nanoseconds, as seconds; NaN for any other text."""
    digits = texts.str.extract(_UNIX, expand=False, flags=re.ASCII)
    return digits.astype(np.float64) / 1000.0 ** (digits.str.len() // 3 - 3)


def possible_orders(
    text: str,
    known: Int32Array | None = None,
    *,
    is_daily: bool = True,
    are_bars: bool = True,
    is_taiwan: bool = False,
) -> list[str]:
    """Return the orders of `ORDERS` in which one file's dates can be read, one where nothing depends on it.

    An order is possible if it reads as many of the dates as any, and, where this leaves several, if its days do not
    fall in the future, on weekends (of bars), a week or month apart (of daily bars), or on others than `known`
    sessions. Years of the Republic of China have three digits, or two where titles are those of Taiwan.
    """
    if not _UNSETTLED.search(text):
        return ["mdy"]
    text = "\n".join(dict.fromkeys(text.split("\n")))
    read = {order: np.unique(days[days != NO_DAY]) for order in ORDERS if (days := resolve_days(text, order)).size}
    most = max(map(len, read.values()))
    tied = {days.tobytes(): order for order, days in reversed(read.items()) if len(days) == most}
    left = [order for order in read if order in tied.values()]
    if len(left) == 1 or not most:
        return left[:1]

    def likelihood(order: str) -> tuple[bool, ...]:
        """Return what speaks for an order, the strongest first."""
        days = read[order]
        return (
            order != "roc" or bool(is_taiwan and days[0] >= _TAIPEI.toordinal() - EPOCH),
            bool(days[-1] <= latest_day()),
            not (is_daily and spacing(days)),
            not (are_bars and misread_weekdays(days)),
            order != "mdy" or "." not in text,  # nobody writes the month first between points
            known is None or bool(np.isin(days, known).all()),
        )

    ranks = {order: likelihood(order) for order in left}
    return [order for order in left if ranks[order] == max(ranks.values())]


def late_stamps(text: str, days: Int32Array) -> tuple[BoolArray, list[int]]:
    """Return which times (lines,) may be midnights of the next day elsewhere, and by how many days, 0 or 1, they are.

    Such are all times at which it is midnight in a zone of an exchange further east than the one they are written in;
    without a zone this may be UTC. Sessions are on Fridays and hardly on Sundays: that settles it, but for times at
    which a market of the Gulf, open from Sunday to Thursday, is open. A few days from Monday to Thursday do not.
    """
    if not _NO_ISO.search(text):
        return np.zeros(len(days), dtype=np.bool_), [0]
    texts = pd.Series(text.split("\n"), dtype="str")
    clock = texts.str.extract(_CLOCK)
    hour = clock[0].astype(np.float64) + clock[1].astype(np.float64) / 60
    hour = hour.where(clock[2].isna(), hour % 12 + 12 * clock[2].str.upper().eq("PM"))
    zone = texts.str.extract(_ZONE)
    offset = (zone[1].astype(np.float64) + zone[2].astype(np.float64) / 60) * (1 - 2 * zone[0].eq("-"))
    offset = offset.mask(zone[3].notna() | texts.str.match(_UNIX), 0.0)
    hour = hour.fillna(_unix_seconds(texts) % 86400 / 3600)
    is_late = np.asarray((hour > 0) & (24 - hour + offset.fillna(0) <= _EAST) & (days != NO_DAY))
    weekdays = (np.unique(days[is_late]).astype(np.int64) + 3) % 7  # Monday is 0
    fridays, sundays = (weekdays == 4).sum(), (weekdays == 6).sum()
    is_zoned = offset.notna()
    if fridays > _MANY * sundays or not (sundays or (is_late & ((hour >= 18) | is_zoned)).any()):
        return is_late, [0]
    is_gulf = ((hour - offset + 3) % 24).between(10, 18, inclusive="left").where(is_zoned, hour < 18)
    return is_late, [1] if sundays > _MANY * fridays and not is_gulf[is_late].all() else [0, 1]


def date_of(day: float) -> date:
    """Return the date of a number of days since 1970-01-01."""
    return date.fromordinal(EPOCH + int(day))


def are_days(texts: Sequence[str]) -> list[bool]:
    """Return whether each text is a date, in any order."""
    return [
        _LIKE_DATE.search(text) is not None and any(resolve_days(text, order)[0] != NO_DAY for order in ORDERS)
        for text in (lines_of([one]) for one in texts)
    ]


def are_numbers(texts: Sequence[str]) -> list[bool]:
    """Return whether each text is a number, in any notation."""
    bare = [bare_numbers(lines_of([text])) for text in texts]
    return [any(np.isfinite(numbers(text, decimal)[0]) for decimal in OTHER) for text in bare]


def bare_numbers(text: str) -> str:
    """Return numbers without signs of a currency, and without spaces or apostrophes between thousands."""
    return _SPACES.sub("", _CURRENCIES.sub(r"\1", text)) if _STRANGE.search(text) else text


def decimal_sign(text: str) -> str:
    """Return the decimal sign, one of `OTHER`, by which most bare numbers can be read; "" where nothing depends on it.

    Thousands are grouped everywhere or nowhere. Where nothing settles it, as in 12,345 alone, a question mark and the
    sign are returned, and the mark alone for both signs.
    """
    if not (signs := [sign for sign in OTHER if sign in text]):
        return ""
    for sign in OTHER:
        is_only = OTHER[sign] not in text and _NOT_GROUPED[OTHER[sign]].search(text)
        if is_only and np.isfinite(numbers(text, sign)).all():
            return sign
    values = {sign: numbers(text, sign) for sign in OTHER}
    counts = {sign: np.isfinite(parsed).sum() for sign, parsed in values.items()}
    for sign in signs:
        counts[OTHER[sign]] -= len(_LONG.findall(text))
    if counts["."] != counts[","]:
        return max(counts, key=counts.__getitem__)
    return (
        "" if np.array_equal(values["."], values[","], equal_nan=True) else "?" + (signs[0] if len(signs) == 1 else "")
    )


def numbers(text: str, decimal: str) -> Float64Array:
    """Return the values (lines,) of bare numbers with this decimal sign, NaN for any other text.

    Thousands may be grouped by the other sign, in India by two digits. 1.5M is 1,500,000.
    """
    if (group := OTHER[decimal]) in text:
        text = _NOT_GROUPED[decimal].sub("", text).replace(group, "")
    lines = text.replace(decimal, ".").split("\n")
    try:
        return np.array([*map(float, lines)])
    except ValueError:
        return np.array([*map(_number, lines)])


def _number(text: str) -> float:
    unit = _UNITS.get(text[-1:].upper(), 1.0)
    try:
        return unit * float(text[:-1] if unit > 1 else text)
    except ValueError:
        return float("nan")
