"""Settings of `prepare`: what a person may say about files of bars that do not tell it themselves."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal

from utils.config import kinds
from utils.config.settings import checked_dataclass, hint
from utils.errors import ConfigError

ROLES = [
    "date", "time", "ticker", "open", "high", "low", "close", "adjusted", "volume", "split", "dividend", "gain",
    "pay", "ignore",
]  # fmt: skip


@checked_dataclass
class Choices:
    """How files are read where they do not settle it themselves."""

    columns: Annotated[tuple[str, ...], kinds.Mark.SHORT] = ()
    """Columns under unknown titles, as in `close=Kurs ticker=Kode`; a number is a place, `ignore=TITLE` leaves a column
    out, and `close=*` says that titles are tickers, with closes below (default: by their titles)."""
    decimal: Annotated[Literal["auto", ".", ","], kinds.Mark.SHORT] = "auto"
    """Decimal sign of numbers that may be read in two ways."""
    dates: Annotated[Literal["auto", "ymd", "mdy", "dmy", "roc"], kinds.Mark.SHORT] = "auto"
    """Order of year, month and day in dates that may be read in two ways; `roc` has years of the Republic of China.
    Dates on weekends are taken as they are."""
    keep: Annotated[tuple[str, ...], kinds.Mark.SHORT] = ()
    """Further columns of numbers that are kept, or `none` (default: all)."""
    join: Annotated[tuple[str, ...], kinds.Mark.SHORT] = ()
    """Files whose columns are joined by date and ticker, or date alone, once they are known: on the date in a column
    `known`, with FILE:45 that many days after their own, else on their own if the file is daily (default: none)."""
    max_bad_row_share: Annotated[kinds.Share, kinds.Mark.SHORT] = 0.01
    """Share of rows, and of files, that may be left out."""

    @cached_property
    def roles(self) -> dict[str, str]:
        """Role by title or place, of `columns`. Raises ConfigError for another text."""
        roles = dict[str, str]()
        for text in self.columns:
            role, _, title = text.partition("=")
            role, title = role.strip(), title.strip()
            if role not in ROLES or not title:
                raise ConfigError(
                    f"--columns: expected {', '.join(ROLES)} with a title, as in close=Kurs, got {role!r}"
                    f"{hint(role, ROLES)}"
                )
            roles[title] = role
        return roles

    def places(self, titles: Sequence[str]) -> dict[str, int]:
        """Return the places of named columns among these titles, by role; those to ignore under names of their own."""
        names, places = [title.strip().casefold() for title in titles], dict[str, int]()
        for title, role in self.roles.items():
            name = title.casefold()
            if name in names:
                place = names.index(name)
            elif title.isdecimal():
                place = int(title) - 1
            else:
                continue
            if 0 <= place < len(names):
                places[f"ignore {title}" if role == "ignore" else role] = place
        return places
