"""Files of open positions: read in any notation, held against the prices of their days, and moved by events since."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from data.events import Event, events_file
from data.features.nine import CLOSE
from data.market import Market
from tests.data.files import refused
from tests.market_cases import random_panel
from tests.small_market import market_of, small_market
from training.signals.holdings import COLUMNS, Holding, read_holdings
from utils.arrays import Float32Array

MARKET, DAY = small_market(3), 60
ENTRY = int(np.flatnonzero(np.isfinite(MARKET.data_array[:DAY, 0, CLOSE]))[-3])
PRICE, DATE = float(MARKET.data_array[ENTRY, 0, CLOSE]), MARKET.dates[ENTRY].astype("datetime64[D]").item()


def written(folder: Path, row: str, separator: str = ",", columns: tuple[str, ...] = COLUMNS) -> Path:
    (folder / "held.csv").write_text(f"\ufeff{separator.join(columns)}\n{row}\n", encoding="utf-8")
    return folder / "held.csv"


@pytest.mark.parametrize("form", ["1100.5,{:%Y-%m-%d},{}", "1.100,5;{:%d.%m.%Y};{}", "1,100.5\t{:%b %d %Y}\t{}"])
def test_positions_in_any_notation(form: str, tmp_path: Path) -> None:
    separator = next(one for one in ";\t," if one in form)
    price = f"{PRICE:.2f}".replace(".", "," if separator == ";" else ".")
    (held,) = read_holdings(written(tmp_path, f"T00{separator}{form.format(DATE, price)}", separator), MARKET, DAY)
    assert (held.ticker, held.column, held.shares) == ("T00", 0, 1100.5)
    assert held.entry_price == pytest.approx(PRICE, abs=0.01)
    assert held.unrealised(2 * PRICE) == pytest.approx(100, abs=0.1)


@pytest.mark.parametrize(
    ("rows", "columns"),
    [("T00,5\nT02,7.5", COLUMNS[:2]), ("T00,5,,\nT02,7.5,,", COLUMNS), ("T00,5,\nT02,7.5,x", (*COLUMNS[:2], "note"))],
)
def test_shares_are_enough(tmp_path: Path, rows: str, columns: tuple[str, ...]) -> None:
    """Nothing is adjusted then, and no return is known."""
    first, second = read_holdings(written(tmp_path, rows, columns=columns), MARKET, DAY)
    assert (first.shares, second.shares) == (5, 7.5) and first.entry_price is first.unrealised(10.0) is None


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("t00,5,{},{}", 0),
        ("T00,5,{},{}\n,,,\n\n", 0),
        ("T00,5,{},{}\nTotal,,,1234.5", 1),
        ('Cash,,,"$1,234.50"\nT00,5,{},"$ {}"\nTotal,,,"$1,234.50"', 2),
        ('T00,"5",{},£{}\nSum of all positions', 1),
    ],
)
def test_rows_that_are_no_position_are_left_out_and_signs_are_read(
    form: str, told: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (held,) = read_holdings(written(tmp_path, form.format(DATE, f"{PRICE:.2f}")), MARKET, DAY)
    assert (held.ticker, held.shares) == ("T00", 5) and held.entry_price == pytest.approx(PRICE, abs=0.01)
    assert len(caplog.messages) == told and all("left out: row" in one for one in caplog.messages)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (f"T00,5,{DATE},{PRICE:.2f}\nt00,5,{DATE},{PRICE:.2f}", "row 2 of .*T00 a second time"),
        (f"Total,5,{DATE},{PRICE:.2f}", "row 1 of .*'Total', which the data do not have"),
        (f"T00,5,,{PRICE:.2f}", "an entry of T00 without its date, which go together"),
        (f"T00,5,{DATE},", "an entry of T00 without its price, which go together"),
        (f"T00,5,{DATE},{2 * PRICE:.4f}", "an entry of T00 at .* whose prices are .* that day; after a split give"),
        (f"T00,5,{DATE},{int(PRICE)},5", "more fields than titles in its first row; quote"),
        (f"T00;1.234;{DATE};1.234", "which may have decimals or be in thousands"),
        ("T00;5;02/03/10;1,5", "whose day and month nothing tells apart"),
        ("T99,5,2010-02-01,10", "row 1 of .*'T99'"),
        ("T00,5,2010-01-31,10", "expected a session from"),
        ("T00,5,2010-02-01,-1", "in place of numbers above 0"),
        ("T00,-5,,", "got -5 shares in place of numbers above 0"),
        ("T00,1e19,,", "got 1e.19 shares in place of numbers above 0, up to 1e.12"),
        ("T00,,2010-02-01,10", "nan shares at 10 in place of numbers above 0"),
        ("T00,5,2010-06-01,10", "an entry after"),
    ],
)
def test_positions_that_cannot_be_are_refused(rows: str, words: str, tmp_path: Path) -> None:
    with refused(words):
        read_holdings(written(tmp_path, rows, ";" if ";" in rows else ","), MARKET, DAY)


@pytest.mark.parametrize(
    ("titles", "row", "words"),
    [
        (("Symbol", "Quantity", "Side"), "T00,5,SHORT", "a side of 'short', where all positions are long"),
        (("Symbol", "Quantity", "Shares"), "T00,5,6", "no ticker in its header, or two columns of a kind"),
    ],
)
def test_columns_that_would_change_what_is_held_are_refused(
    titles: tuple[str, ...], row: str, words: str, tmp_path: Path
) -> None:
    with refused(words):
        read_holdings(written(tmp_path, row, columns=titles), MARKET, DAY)
    (held,) = read_holdings(written(tmp_path, "T00,5,Long", columns=("Symbol", "Quantity", "Side")), MARKET, DAY)
    assert held.shares == 5


def test_an_empty_file_is_no_account_without_positions(tmp_path: Path) -> None:
    """It may have been cut."""
    (tmp_path / "held.csv").touch()
    with refused("expected a CSV or parquet file of positions"):
        read_holdings(tmp_path / "held.csv", MARKET, DAY)


ADJUSTED = random_panel(np.random.default_rng(8), 160, 2, missing=0, delist=0, late_start=0, halt=0).astype(np.float64)
DATES = market_of(ADJUSTED).dates.astype("datetime64[D]").astype(str).tolist()
BOUGHT, LAST = 100, len(DATES) - 1


@dataclasses.dataclass
class Story:
    """A stock's raw prices, and the events by which its adjusted ones differ from them."""

    events: list[Event]
    ratios: list[float]

    @classmethod
    def of(cls, parts: dict[int, float], delay: int = 3) -> "Story":
        """By day, new shares for one, or, below 0, a dividend as a share of the close before."""
        days, sizes = sorted(parts), [parts[day] for day in sorted(parts)]
        story = cls([], [1 / size if size > 0 else 1 + size for size in sizes])
        for place, (day, size) in enumerate(zip(days, sizes, strict=True)):
            close = ADJUSTED[day - 1, 0, 3] / math.prod(story.ratios[place:])
            pay = DATES[min(day + delay, LAST)]
            one = ("split", size, DATES[day]) if size > 0 else ("dividend", -size * close, pay)
            story.events.append(Event("T00", DATES[day], *one))
        return story

    def raw(self, day: int) -> Float32Array:
        later = [ratio for event, ratio in zip(self.events, self.ratios, strict=True) if event.date > DATES[day]]
        return ADJUSTED[day, 0] / math.prod(later)

    def shares(self, day: int, shares: float) -> float:
        """Shares of a position at the close of a day."""
        splits = (one for one in self.events if one.kind == "split" and DATES[BOUGHT] < one.date <= DATES[day])
        return shares * math.prod(one.size for one in splits)

    def market(self, folder: Path) -> Market:
        """The adjusted prices, with the events beside their file in a wrong order, and two that change nothing."""
        others = [
            Event("T01", DATES[110], "split", 4.0, DATES[110]),
            Event("T00", "2030-01-02", "split", 4.0, "2030-01-02"),
        ]
        rows = [
            f"{one.ticker},{one.date},{one.size if one.kind == 'split' else ''},"
            f"{'' if one.kind == 'split' else repr(float(one.size))},{one.pay_date}"
            for one in reversed([*self.events, *others])
        ]
        events_file(folder / "bars.parquet").write_text("ticker,date,split,dividend,pay_date\n" + "\n".join(rows))
        return dataclasses.replace(market_of(ADJUSTED), source=folder / "bars.parquet")


def read(folder: Path, market: Market, price: float, shares: float, day: int = LAST) -> Holding:
    (held,) = read_holdings(written(folder, f"T00,{shares!r},{DATES[BOUGHT]},{price!r}"), market, day)
    return held


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.dictionaries(
        st.integers(BOUGHT - 3, LAST),
        st.one_of(st.sampled_from([4.0, 3.0, 1.5, 0.1]), st.floats(-0.2, -0.01)),
        max_size=4,
    ),
    day=st.integers(BOUGHT, LAST),
    known=st.integers(0, 4),
)
@example(parts={110: -0.05, 120: 4.0, 130: -0.03}, day=115, known=0)
@example(parts={110: 4.0, 120: -0.05, 130: -0.03}, day=LAST, known=1)
@example(parts={110: -0.012}, day=LAST, known=0)  # by which a price stays within the range of the entry's day
def test_a_position_is_worth_what_it_was_whenever_it_was_written(
    tmp_path: Path, parts: dict[int, float], day: int, known: int
) -> None:
    """Shares at raw prices; its file may know the first of the events, and never of others.

    Those up to the day of its entry change nothing, and a dividend never changes shares. What is read is told in its
    file, once, and is the same then.
    """
    story = Story.of(parts)
    market, bought, price = story.market(tmp_path), 20.0, float(story.raw(BOUGHT)[0])
    pairs = zip(story.events, story.ratios, strict=True)
    since = [(event, ratio) for event, ratio in pairs if event.date > DATES[BOUGHT]]
    shares = bought * math.prod(event.size for event, _ in since[:known] if event.kind == "split")
    held = read(tmp_path, market, price * math.prod(ratio for _, ratio in since[:known]), shares, day)
    assert held.entry_price == pytest.approx(float(ADJUSTED[BOUGHT, 0, 0]), rel=1e-5)
    assert held.moved.count("T00: ") == bool(since[known:])
    assert all(str(event) in held.moved for event, _ in since[known:])
    again = read(tmp_path, market, held.entry_price or 0.0, held.shares, day)
    assert (again.moved, again.shares, again.entry_price) == ("", held.shares, held.entry_price)
    first, now = read(tmp_path, market, price, bought, day), float(ADJUSTED[day, 0, 3])
    assert first.shares == pytest.approx(story.shares(LAST, bought))
    to_come = [ratio for event, ratio in since if event.kind == "dividend" and event.date > DATES[day]]
    was = story.shares(day, bought) * float(story.raw(day)[3])
    assert first.shares * now == pytest.approx(was * math.prod(to_come), abs=0.005, rel=1e-5)
    assert first.unrealised(now) == pytest.approx(100 * (now / float(ADJUSTED[BOUGHT, 0, 0]) - 1), abs=0.01)


def test_a_split_and_a_dividend_are_told_in_a_line(tmp_path: Path) -> None:
    """But not those of the day of the entry, whose prices are those since."""
    story = Story.of({BOUGHT: 3.0, 110: 4.0, 120: -0.05})
    market, price = story.market(tmp_path), float(story.raw(BOUGHT)[0])
    _, split, dividend = story.events
    after, cash = float(ADJUSTED[BOUGHT, 0, 0]), 80 * dividend.size
    assert read(tmp_path, market, price, 20.0).moved == (
        f"T00: split 4:1 of {DATES[110]}, dividend of {dividend.size:g} of {DATES[120]} applied to the position: "
        f"20 shares at {price:.2f} are 80 at {after:.2f}, and {cash:,.2f} in cash on {DATES[123]}"
    )
    unpaid, to_come = (read(tmp_path, market, price, 20.0, day) for day in (121, 119))
    assert unpaid.shares == to_come.shares == 80.0
    assert DATES[123] in unpaid.moved and "in cash" not in to_come.moved
    with refused(f"got an entry of T00 at .*, .* before the split 4:1 of {split.date}, .* before the dividend of"):
        read(tmp_path, market, 3 * price, 20.0)


def test_a_price_that_may_be_of_both_units_is_of_todays(tmp_path: Path) -> None:
    """Of a day whose range is wider than a dividend, or a rounding beyond its high; its open of before is of then."""
    (size, *_), (opened, high, *_) = Story.of({110: -0.008}).events, ADJUSTED[BOUGHT, 0]
    market, prices = Story.of({110: -0.008}).market(tmp_path), (1.003 * opened, 1.0005 * high)
    assert size.kind == "dividend" and high > 1.01 * opened
    assert [read(tmp_path, market, float(price), 20.0).moved for price in prices] == ["", ""]
    assert read(tmp_path, market, float(opened) / 0.992, 20.0).moved != ""
