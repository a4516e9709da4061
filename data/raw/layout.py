"""Layout of a file of bars, recognised by column titles (`headers.toml`) and the first row, for every vendor."""

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
_CORNERS = frozenset({"", "ticker", "tickers", "symbol", "symbols", "price", "attributes", "date"})


def plain(title: str) -> str:
    """Return a title in lower case, letters and digits only, without accents."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKD", title.casefold())))


_TITLES = tomllib.loads(Path(__file__).with_name("headers.toml").read_text(encoding="utf-8"))
_NAMES = {role: tuple(map(plain, titles)) for role, titles in _TITLES.items()}
_ROLES = {name: role for role, names in reversed(_NAMES.items()) for name in names}
_CLOSES = frozenset({*_NAMES["close"], *_NAMES["adjusted"]} - {"last", "price"})
"""Names that are no ticker; `last` and `price` may be one."""


class UnusableFileError(Exception):
    """A file without usable rows; the message is the reason."""


@dataclass(frozen=True)
class Layout:
    """How a file is read: its columns by role, or by role of each ticker."""

    headers: int
    """Lines before the first row."""
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
        return not set().union(*self.panel.values(), self.fields) & {"open", "high", "low"}


def layout_of(rows: Sequence[Sequence[str]], separator: str = ",") -> Layout | None:
    """Return the layout of a file that begins with these rows, None for others.

    Raises `UnusableFileError` where the header lacks a price.
    """
    first, second = [*rows, [""]][:2]
    return (
        _panel_layout(first, second, separator) or _titled_layout(first, second, separator) or _bare(first, separator)
    )


def _panel_layout(first: Sequence[str], second: Sequence[str], separator: str) -> Layout | None:
    """Return the layout of two header rows, of roles and of tickers in either order, or None for other rows."""
    for titles, tickers in ((first, second), (second, first)):
        names = [ticker.strip() for ticker in tickers[1:]]
        if plain(tickers[0]) not in _CORNERS or len(names) != len(titles) - 1 or not all(names):
            continue
        panel: dict[str, dict[str, int]] = {}
        for place, (title, ticker) in enumerate(zip(titles[1:], names, strict=True), start=1):
            if role := _ROLES.get(plain(title)):
                panel.setdefault(ticker, {}).setdefault(role, place)
        if not any("close" in group for group in panel.values()) or any(is_number(name, separator) for name in names):
            continue
        for ticker, group in panel.items():
            has = [role for role in PRICES if role in group]
            if has not in (PRICES, ["close"]):
                got = ", ".join(has) or "none"
                raise UnusableFileError(f"expected open, high, low and close of {ticker}, or close alone, got {got}")
        return Layout(2, {"date": 0}, len(titles), separator, panel)
    return None


def _titled_layout(titles: Sequence[str], first_row: Sequence[str], separator: str) -> Layout | None:
    """Return the layout of a header with a column per role, or of tickers whose closes follow; None for another line.

    Raises `UnusableFileError` where a price is missing.
    """
    names, cells = [plain(title) for title in titles], [text.strip() for text in first_row]
    fields = {
        role: names.index(name)
        for role, known in _NAMES.items()
        if (name := next((name for name in known if name in names), None)) is not None
    }
    missing = [role for role in PRICES if role not in fields]
    is_wide = missing and not _CLOSES & set(names) and set(names[1:]) - _ROLES.keys() and is_day(cells[0])
    are_numbers = all(is_number(text, separator) for text in cells[1:] if text.casefold() not in BLANKS)
    if is_wide and are_numbers and not any(is_number(title, separator) for title in titles):
        panel = {title.strip(): {"close": place} for place, title in enumerate(titles) if place and title.strip()}
        return Layout(1, {"date": 0}, len(titles), separator, panel)
    if len(missing) == len(PRICES) or ("date" not in fields and missing):
        return None
    if 0 not in fields.values():
        fields.setdefault("date", 0)  # an index column, whatever its title
    if missing := [role for role in ("date", *PRICES) if role not in fields]:
        raise UnusableFileError(f"no column for {', '.join(missing)} in the header '{separator.join(titles)[:80]}'")
    return Layout(1, fields, len(titles), separator)


def _bare(texts: Sequence[str], separator: str) -> Layout | None:
    """Return the layout by position of a line that holds a bar, or None for another line.

    Raises `UnusableFileError` where it has further fields.
    """
    for lead in (("date",), ("date", "ticker"), ("ticker", "date")):
        fields = {role: place for place, role in enumerate((*lead, *VALUES)[: len(texts)])}
        is_bar = "close" in fields and all(is_number(texts[fields[role]], separator) for role in PRICES)
        if not is_bar or not is_day(texts[fields["date"]]):
            continue
        if any(texts[len(fields) :]):
            raise UnusableFileError(f"{len(texts)} fields a line and no header; name them in a first line")
        return Layout(0, fields, len(texts), separator)
    return None
