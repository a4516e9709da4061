"""Files of open positions: read in any notation, and held against the prices of their days."""

from pathlib import Path

import numpy as np
import pytest

from data.features.nine import CLOSE
from tests.data.files import refused
from tests.small_market import small_market
from training.signals.holdings import COLUMNS, read_holdings

MARKET, DAY = small_market(3), 60
ENTRY = int(np.flatnonzero(np.isfinite(MARKET.data_array[:DAY, 0, CLOSE]))[-3])
PRICE, DATE = float(MARKET.data_array[ENTRY, 0, CLOSE]), MARKET.dates[ENTRY].astype("datetime64[D]").item()


def written(folder: Path, row: str, separator: str = ",") -> Path:
    (folder / "held.csv").write_text(f"\ufeff{separator.join(COLUMNS)}\n{row}\n", encoding="utf-8")
    return folder / "held.csv"


@pytest.mark.parametrize(
    "form", ["{:%Y-%m-%d},{},20,1100.5", "{:%d.%m.%Y};{};20;1.100,5", "{:%b %d %Y}\t{}\t20\t1,100.5"]
)
def test_positions_in_any_notation(form: str, tmp_path: Path) -> None:
    separator = next(one for one in ";\t," if one in form)
    price = f"{PRICE:.2f}".replace(".", "," if separator == ";" else ".")
    (held,) = read_holdings(written(tmp_path, f"T00{separator}{form.format(DATE, price)}", separator), MARKET, DAY)
    assert (held.ticker, held.entry_day, held.target_percent, held.shares) == ("T00", ENTRY, 20, 1100.5)
    assert held.entry_price == pytest.approx(PRICE, abs=0.01)


@pytest.mark.parametrize(
    ("factor", "target", "words"),
    [
        (0.01, 20, "after a split give its price and shares"),
        (2.0, 20, "an entry of T00 at .* whose prices are .* that day"),
        (1.0, 0.2, "a target of 0.2 in place of 10 to 50 percent"),
        (1.0, 500, "a target of 500 in place of 10 to 50 percent"),
    ],
)
def test_positions_that_cannot_be_are_refused(factor: float, target: float, words: str, tmp_path: Path) -> None:
    with refused(words):
        read_holdings(written(tmp_path, f"T00,{DATE},{factor * PRICE:.4f},{target},5"), MARKET, DAY)


@pytest.mark.parametrize(
    ("row", "words"), [("T00;{};1.234;20;5", "two ways; write 1234.5"), ("T00;02/03/10;1,5;20;5", "two ways; write")]
)
def test_what_may_be_read_in_two_ways_is_asked_for(row: str, words: str, tmp_path: Path) -> None:
    with refused(words):
        read_holdings(written(tmp_path, row.format(DATE), ";"), MARKET, DAY)
