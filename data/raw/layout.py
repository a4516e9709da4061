"""Layout of a file of bars, recognised by column names and the first row, for every vendor."""

import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from data.raw.text import is_day, is_number

PRICES = ["open", "high", "low", "close"]
VALUES = [*PRICES, "volume"]
EVENTS = ["split", "dividend"]
BLANKS = frozenset({"", "nan", "null", "none", "n/a", "na", "-"})

_ALSO_IN_PANELS = frozenset({"capitalgains", "repaired"})
_CORNERS = frozenset({"", "ticker", "tickers", "symbol", "symbols", "price", "attributes", "date"})


def plain(title: str) -> str:
    """Return a title in lower case, letters and digits only, without accents."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", title.casefold())))


_TITLES = tomllib.loads(Path(__file__).with_name("headers.toml").read_text(encoding="utf-8"))
_NAMES = {role: tuple(map(plain, titles)) for role, titles in _TITLES.items()}
_CLOSES = frozenset({*_NAMES["close"], *_NAMES["adjusted"]} - {"last", "price"})
"""Names that are no ticker; `last` and `price` may be one."""


class UnusableFileError(Exception):
    """A file without usable rows; the message is the reason."""


@dataclass(frozen=True)
class Layout:
    """How a file is read: its columns by role, or by role of each ticker."""

    fields: dict[str, int]
    """Column by role; `date` alone in a panel."""
    width: int
    separator: str
    """Of a CSV file's fields."""
    panel: dict[str, dict[str, int]] = field(default_factory=dict)
    """Column by role by ticker, in a file with columns for each ticker."""

    @property
    def has_closes_only(self) -> bool:
        """There is no open, high or low."""
        roles = set().union(*self.panel.values(), self.fields)
        return "close" in roles and not roles & {"open", "high", "low"}


def layout_of(rows: Sequence[Sequence[str]], separator: str = ",") -> tuple[Layout, int] | None:
    """Return the layout of a file that begins with these rows, and how many of them are its header; None for others.

    Raises `UnusableFileError` where the header lacks a price.
    """
    first, second, third = [*rows, [""], [""]][:3]
    if panel := _panel_layout(first, second, separator):
        has_third = bool(third[0]) and not any(third[1:])  # only the index's name
        return panel, 2 + has_third
    if layout := _wide_layout(first, second, separator) or _long_layout(first, separator):
        return layout, 1
    layout = _bar_layout(first, separator)
    return None if layout is None else (layout, 0)


def _long_layout(titles: Sequence[str], separator: str) -> Layout | None:
    """Return the layout of a header with one column per role, or None for another line.

    Raises `UnusableFileError` where a price is missing.
    """
    fields = _roles(titles)
    prices = sum(role in fields for role in PRICES)
    if prices == 0 or ("date" not in fields and prices < len(PRICES)):
        return None
    if 0 not in fields.values():
        fields.setdefault("date", 0)  # an index column, whatever its title
    missing = [role for role in ("date", *PRICES) if role not in fields]
    if missing:
        raise UnusableFileError(f"no column for {', '.join(missing)} in the header '{separator.join(titles)[:80]}'")
    return Layout(fields, len(titles), separator)


def _roles(titles: Sequence[str]) -> dict[str, int]:
    """Return the column of each role found in the titles."""
    names = [plain(title) for title in titles]
    found = {role: next((name for name in known if name in names), None) for role, known in _NAMES.items()}
    return {role: names.index(name) for role, name in found.items() if name is not None}


def _wide_layout(titles: Sequence[str], first_row: Sequence[str], separator: str) -> Layout | None:
    """Return the layout of a file of closes, dates first and then one column per ticker, or None for another file."""
    names = [plain(title) for title in titles]
    known = {name for names in _NAMES.values() for name in names}
    if len(titles) < 2 or _CLOSES & set(names) or not set(names[1:]) - known or set(PRICES) <= set(_roles(titles)):
        return None
    cells = [text.strip() for text in first_row]
    if len(cells) < 2 or not is_day(cells[0]):
        return None
    if is_number(titles[0], separator) or any(is_number(title, separator) for title in titles[1:]):
        return None
    if not all(is_number(text, separator) for text in cells[1:] if text.casefold() not in BLANKS):
        return None
    panel = {title.strip(): {"close": place} for place, title in enumerate(titles) if place and title.strip()}
    return Layout({"date": 0}, len(titles), separator, panel)


def _panel_layout(first: Sequence[str], second: Sequence[str], separator: str) -> Layout | None:
    """Return the layout of two header rows, of roles and of tickers in either order, or None for other rows.

    Raises `UnusableFileError` where a ticker lacks some prices.
    """
    for titles, tickers in ((first, second), (second, first)):
        names, found = [plain(title) for title in titles[1:]], [ticker.strip() for ticker in tickers[1:]]
        roles = [next((role for role, known in _NAMES.items() if name in known), None) for name in names]
        is_header = plain(tickers[0]) in _CORNERS and all(found) and len(found) == len(roles) > 0
        if not is_header or any(is_number(text, separator) for text in found):
            continue
        if (
            "close" not in roles
            or {name for name, role in zip(names, roles, strict=True) if not role} - _ALSO_IN_PANELS
        ):
            continue
        panel: dict[str, dict[str, int]] = {}
        for place, (role, ticker) in enumerate(zip(roles, found, strict=True), start=1):
            if role is not None:
                panel.setdefault(ticker, {}).setdefault(role, place)
        for ticker, group in panel.items():
            has = [role for role in PRICES if role in group]
            if has not in (PRICES, ["close"]):
                got = ", ".join(has) or "none"
                raise UnusableFileError(f"expected open, high, low and close of {ticker}, or close alone, got {got}")
        return Layout({"date": 0}, len(titles), separator, panel)
    return None


def _bar_layout(texts: Sequence[str], separator: str) -> Layout | None:
    """Return the layout by position of a line that holds a bar, or None for another line.

    Raises `UnusableFileError` where it has further fields.
    """
    leads: list[tuple[str, ...]] = [("date",)]
    if len(texts) > 1 and not is_number(texts[1], separator):
        leads = [("date", "ticker"), ("ticker", "date")]
    for lead in leads:
        fields = {role: place for place, role in enumerate((*lead, *VALUES)[: len(texts)])}
        is_bar = "close" in fields and all(is_number(texts[fields[role]], separator) for role in PRICES)
        if not is_bar or not is_day(texts[fields["date"]]):
            continue
        if any(texts[len(fields) :]):
            raise UnusableFileError(f"{len(texts)} fields a line and no header; name them in a first line")
        return Layout(fields, len(texts), separator)
    return None
