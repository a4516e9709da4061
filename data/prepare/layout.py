"""Layout of a file of bars: by column titles (`headers.toml`), the first row, and what a person says."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from data.prepare.text import HEADERS, are_days, are_numbers
from utils.config.prepare import Choices

PRICES = ["open", "high", "low", "close"]
VALUES = [*PRICES, "volume"]
STANDARD = ["day", "ticker", *VALUES]
"""Columns of prepared rows; others are further ones."""
EVENTS = ["split", "dividend"]
NUMBERS = [*VALUES, "adjusted", "factor", *EVENTS, "gain"]
_TICKERS = frozenset({"ticker", "tickers", "symbol", "symbols"})
_CORNERS = _TICKERS | {"", "price", "attributes", "date"}
UNIT = re.compile(r"(?<=.)[(\[]([^)\]]*)[)\]]")
"""What is in brackets."""


def plain(title: str) -> str:
    """Return a title in lower case, letters and digits only, without accents and what is in brackets."""
    title = unicodedata.normalize("NFKD", title.casefold())
    return "".join(filter(str.isalnum, title if "adj" in title else UNIT.sub("", title)))


WORDS = {name: frozenset(words) for name, words in HEADERS["words"].items()}
"""Words by what they say of a column, as `headers.toml` explains them."""
BLANKS = WORDS["blanks"]
NAMES = {role: tuple(map(plain, titles)) for role, titles in HEADERS.items() if isinstance(titles, list)}
_RANKS = {name: (role, rank) for role, names in reversed(NAMES.items()) for rank, name in enumerate(names)}
_AFFIX = "prices?|prc|px|kurs|preis|prix|precio|preço|prezzo|fiyat|cena|цена"
_PRICED = re.compile(rf"(?:{_AFFIX})?(.+?)(?:{_AFFIX})?")
_ADJUSTED = re.compile(
    "(?<!un)adj|bereinig|ajust|aggiust|rettific|скорр|조정|수정|調整|调整|复权|復權|justera|duzeltil|skoryg"
)
_FACTOR = re.compile(r"factor|divisor|cfac|ajex|因子|復權|复权|(adj|cum|split)\w*(fac|ratio|coef|mult)")


class UnusableFileError(Exception):
    """A file without usable rows, which is left out; the message is the reason."""


class UnclearFileError(Exception):
    """A file whose meaning is not settled; the message says what to do."""


@dataclass(frozen=True)
class Layout:
    """How a file is read: its columns by role, or by role of each ticker."""

    headers: int
    """Lines before the first row."""
    fields: dict[str, int]
    """Column by role; `date` alone in a panel. Columns that a person leaves out are here too."""
    titles: tuple[str, ...]
    separator: str
    """Of a CSV file's fields."""
    panel: dict[str, dict[str, int]] = field(default_factory=dict)
    """Column by role by ticker, in a file with columns for each ticker."""

    @cached_property
    def groups(self) -> dict[str, dict[str, int]]:
        """Columns of numbers by role by ticker, which is "" where columns are not those of tickers."""
        groups = (self.panel or {"": self.fields}).items()
        return {ticker: {role: roles[role] for role in NUMBERS if role in roles} for ticker, roles in groups}

    @property
    def is_taiwan(self) -> bool:
        """Titles are in the Chinese of Taiwan, as 收盤價 is."""
        return any("盤" in title for title in self.titles)

    @property
    def has_closes_only(self) -> bool:
        """There is no open, high or low."""
        return not set().union(*self.panel.values(), self.fields) & {"open", "high", "low"}


def role_of(title: str) -> str:
    """Return what a title names, "" for an unknown one."""
    return ranked_role(title)[0]


def ranked_role(title: str) -> tuple[str, int]:
    """Return the same, and its place among the titles of the same meaning."""
    name = plain(title)
    if role := _RANKS.get(name):
        return role
    if _ADJUSTED.search(name) and any(len(one) > 3 and one in name for one in NAMES["close"]):
        return ("close" if re.search("forsplits(?!and)", name) else "adjusted", 99)
    if _FACTOR.search(name):
        return "factor", 99
    inner = _PRICED.fullmatch(name)
    role = _RANKS.get(inner[1]) if inner else None
    return (role[0], 100 + role[1]) if role and role[0] in VALUES else ("", 0)


def is_adjusted_bar(title: str) -> bool:
    """Tell whether a title names an adjusted price or volume, whose level knows later splits and dividends."""
    name = plain(title)
    words = [word for word in ("adjustment", "adjusted", "adj") if word in name and f"un{word}" not in name]
    return any(_RANKS.get(name.replace(word, "", 1), ("", 0))[0] in VALUES for word in words)


def layout_of(rows: Sequence[Sequence[str]], separator: str, choices: Choices, needed: Sequence[str]) -> Layout | None:
    """Return the layout of a file that begins with these rows, None for others.

    Raises `UnclearFileError` where the header lacks one of the `needed` prices, or there is none.
    """
    first, second = rows[0], rows[1] if len(rows) > 1 else [""]
    is_day = are_days(first)
    if any(is_day) and sum(are_numbers(first)) >= len(needed):
        titles = tuple(map(str, range(1, len(first) + 1)))
        said = choices.places(titles)
        if {"date", *needed} <= said.keys() and is_day[said["date"]]:
            return Layout(0, said, titles, separator)
        raise UnclearFileError(
            f"a row and no header above it, {separator.join(first)[:80]!r}; say which field is which by its place: "
            "--columns date=1 open=2 high=3 low=4 close=5"
        )
    if any(is_day):
        return None
    return _panel_layout(first, second, separator) or _titled_layout(first, second, separator, choices, needed)


def _panel_layout(first: Sequence[str], second: Sequence[str], separator: str) -> Layout | None:
    """Return the layout of two header rows, of roles and of tickers in either order, or None for other rows."""
    for titles, tickers in ((first, second), (second, first)):
        names = [ticker.strip() for ticker in tickers[1:]]
        if plain(tickers[0]) not in _CORNERS or len(names) != len(titles) - 1 or not all(names):
            continue
        panel = _panel({place: (title, names[place - 1]) for place, title in enumerate(titles) if place})
        are_names = plain(tickers[0]) in _TICKERS or not any(are_numbers(names))
        if any("close" in group for group in panel.values()) and are_names:
            return Layout(2, {"date": 0}, tuple(titles), separator, panel)
    return None


def _panel(columns: Mapping[int, tuple[str, str]]) -> dict[str, dict[str, int]]:
    """Return the columns by role by ticker of titles with their tickers, by place.

    Raises `UnclearFileError` where a ticker has some prices but neither all nor the close alone.
    """
    panel: dict[str, dict[str, int]] = {}
    for place, (title, ticker) in columns.items():
        if role := role_of(title):
            panel.setdefault(ticker, {}).setdefault(role, place)
    for ticker, group in panel.items():
        has = [role for role in PRICES if role in group]
        if has not in (PRICES, ["close"]) and any("close" in roles for roles in panel.values()):
            got = ", ".join(has) or "none"
            raise UnclearFileError(f"expected open, high, low and close of {ticker}, or close alone, got {got}")
    return panel


def _panel_of(titles: Sequence[str], choices: Choices) -> dict[str, dict[str, int]]:
    """Return the columns by role by ticker of titles such as Close_AAPL and AAPL.Close, or of those said to be tickers.

    There are none where titles are others.
    """
    columns = dict[int, tuple[str, str]]()
    for place, title in enumerate(titles[1:], start=1):
        text = re.sub("[()'\"]", "", title)
        cuts = [(text[: cut.start()], text[cut.end() :]) for cut in re.finditer(r"[_.:|/, ]+", text)]
        pairs = [cut if role_of(cut[0]) else (cut[1], cut[0]) for cut in cuts if all(cut) and any(map(role_of, cut))]
        columns.update(zip([place], pairs, strict=False))
    are_pairs = len(columns) == len(titles) - 1
    if are_pairs and not {ticker.casefold() for _, ticker in columns.values()} <= WORDS["sides"]:
        return _panel(columns)
    places = enumerate(titles) if "*" in choices.roles else ()
    return {title.strip(): {"close": place} for place, title in places if place and title.strip()}


def _fields(titles: Sequence[str], said: dict[str, int]) -> dict[str, int]:
    """Return the column by role, as a person says or else as titles do; a time of day beside a date has its own."""
    kinds = [(*ranked_role(title), place) for place, title in enumerate(titles)]
    fields = dict(said)
    for role, _, place in sorted(kinds):
        if role not in ("", "factor") and place not in said.values():
            fields.setdefault(role, place)
    for place, title in enumerate(titles):
        if plain(title) in NAMES["time"] and place not in fields.values():
            fields["time"] = place
    return fields


def _titled_layout(
    titles: Sequence[str], first_row: Sequence[str], separator: str, choices: Choices, needed: Sequence[str]
) -> Layout | None:
    """Return the layout of a header with a column per role, or of tickers whose closes follow; None for another line.

    Raises `UnclearFileError` where a price is missing.
    """
    is_day, is_number = are_days(first_row), are_numbers(first_row)
    fields = _fields(titles, choices.places(titles))
    if "adjusted" in fields and list(needed) == ["close"]:
        fields.setdefault("close", fields["adjusted"])
    if 0 not in fields.values() and (is_day[0] or not "".join(first_row).strip()):
        fields.setdefault("date", 0)  # an index column, whatever its title
    missing = [role for role in ("date", *needed) if role not in fields]
    if not missing:
        return Layout(1, fields, tuple(titles), separator)
    is_header = any(is_day) and is_number != is_day and any(is_number)
    if is_header and fields.get("date") == 0 and (panel := _panel_of(titles, choices)):
        return Layout(1, {"date": 0}, tuple(titles), separator, panel)
    if not is_header and ("date" not in fields or len(missing) == len(needed)):
        return None
    raise UnclearFileError(
        f"no column for {', '.join(missing)} in the header '{separator.join(titles)[:80]}'; say which it is: --columns "
        f"{'=TITLE '.join(missing)}=TITLE (or a place, as in date=1), or --columns 'close=*' if they are tickers"
    )
