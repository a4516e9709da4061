"""What a person may say about files of bars that do not tell it themselves."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Literal

from utils.config import kinds
from utils.config.settings import checked_dataclass
from utils.errors import ConfigError

ROLES = ["date", "time", "ticker", "open", "high", "low", "close", "adjusted", "volume", "split", "dividend", "ignore"]


@checked_dataclass
class Choices:
    """How files are read where they do not settle it themselves."""

    columns: Annotated[str | None, kinds.Mark.SHORT] = None
    """Columns under unknown titles, as in `close=Kurs,ticker=Kode`; a number is a place, `ignore=TITLE` leaves a column
    out, and `close=*` says that columns are closes of tickers."""
    only: Annotated[str | None, kinds.Mark.SHORT] = None
    """Rows to read, as in `SERIES=EQ`; rows with another value of that column are left out."""
    decimal: Annotated[Literal["auto", ".", ","], kinds.Mark.SHORT] = "auto"
    """Decimal sign of numbers that may be read in two ways."""
    dates: Annotated[Literal["auto", "ymd", "mdy", "dmy"], kinds.Mark.SHORT] = "auto"
    """Order of year, month and day in dates that may be read in two ways."""
    resample: Annotated[Literal["no", "day"], kinds.Mark.SHORT] = "no"
    """`day` makes days of bars within days."""
    weekend_sessions: Annotated[bool, kinds.Mark.SHORT] = False
    """Take bars on Saturdays and Sundays as they are."""
    max_bad_row_share: Annotated[kinds.Share, kinds.Mark.SHORT] = 0.01
    """Share of rows that may be dropped."""

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """Role and title of each of `columns`. Raises ConfigError for another text."""
        pairs = [tuple(map(str.strip, one.split("=", 1))) for one in (self.columns or "").split(",") if one.strip()]
        for pair in pairs:
            if len(pair) < 2 or pair[0] not in ROLES or not pair[1]:
                raise ConfigError(
                    f"--columns: expected {', '.join(ROLES)} with a title, as in close=Kurs, got {'='.join(pair)!r}"
                )
        return [(pair[0], pair[1]) for pair in pairs]

    @property
    def are_tickers(self) -> bool:
        """Columns are said to be closes of tickers."""
        return ("close", "*") in self.pairs

    @property
    def kept(self) -> tuple[str, str] | None:
        """Title and value of the rows to read. Raises ConfigError for another text."""
        title, _, value = (self.only or "").partition("=")
        if self.only is not None and not (title.strip() and value.strip()):
            raise ConfigError(f"--only: expected a title and a value, as in SERIES=EQ, got {self.only!r}")
        return None if self.only is None else (title.strip(), value.strip())

    def places(self, titles: Sequence[str]) -> list[tuple[str, int]]:
        """Return role and place of the columns that a person named, among these titles."""
        names = [title.strip().casefold() for title in titles]
        found = [(role, title.casefold()) for role, title in self.pairs if title != "*"]
        return [(role, names.index(title)) for role, title in found if title in names] + [
            (role, int(title) - 1)
            for role, title in found
            if title.isdecimal() and title not in names and 0 < int(title) <= len(names)
        ]
