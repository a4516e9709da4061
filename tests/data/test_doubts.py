"""Files whose columns contradict a guess: read by what they show, or refused in one line that says what to do."""

import io
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pytest

from tests.data.files import PRICES, refused, run
from utils.config.prepare import Choices

DAYS = pd.bdate_range("2020-01-02", periods=24)
CLOSE = np.round(100 * np.exp(np.cumsum(0.02 * np.random.default_rng(0).standard_normal(24))), 2)
VOLUME = np.random.default_rng(1).integers(1_000, 900_000, 24)
BAR = "date,open,high,low,close"


def bars(header: str = BAR, *columns: Sequence[Any], days: Sequence[Any] = DAYS.strftime("%Y-%m-%d")) -> str:
    """Bars at one price and further columns, as CSV."""
    rows = zip(days, *[CLOSE] * 4, *columns, strict=True)
    return f"{header}\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


def each(*values: str) -> list[str]:
    """Give values in turn to all rows."""
    return [values[row % len(values)] for row in range(24)]


def since(form: str, **shift: int) -> list[str]:
    return [(day + timedelta(**shift)).strftime(form) for day in DAYS]


def unix(factor: int) -> list[str]:
    return [str(int(day.timestamp()) * factor) for day in DAYS]


BDH = ",A,,,,B,,,\nDates," + ",".join(["PX_OPEN", "PX_HIGH", "PX_LOW", "PX_LAST"] * 2)
READ = {
    "microseconds": bars(days=unix(10**6)),
    "nanoseconds": bars(days=unix(10**9)),
    "midnight in New Zealand": bars(days=since("%Y-%m-%dT%H:00:00Z", hours=-13)),
    "a note below": bars() + "Downloaded on 02-06-2020\n",
    "no prices": bars() + "2020-02-10,#N/A,--,.,n.a.\n",
    "a halt": bars(f"{BAR},volume", [*VOLUME]) + "2020-02-05,9,9,9,9,\n2020-02-06,0,0,0,9,\n",
    "full width": bars().translate({ord(one): ord(one) + 0xFEE0 for one in "0123456789."}),
    "volume twice": bars(f"{BAR},volume,unadjustedVolume", VOLUME, VOLUME),
    "money": bars(f"{BAR},volume,amount", VOLUME, CLOSE * VOLUME),
    "other ending": bars(),
}


@pytest.mark.parametrize("name", READ)
def test_what_a_file_shows_settles_it(name: str, tmp_path: Path) -> None:
    _, rows = run(tmp_path, {"X.csv.txt" if name == "other ending" else "X.csv": READ[name]})
    assert rows["date"].tolist() == [day.date() for day in DAYS] and rows["ticker"].eq("X").all()
    np.testing.assert_array_equal(rows[PRICES], np.tile(CLOSE, (4, 1)).T)


def test_a_cell_spans_the_columns_of_its_ticker(tmp_path: Path) -> None:
    _, rows = run(tmp_path, {"X.csv": f"{BDH}\n2020-01-02,1,2,1,2,5,6,5,6\n2020-01-03,1,2,1,2,5,6,5,6\n"})
    assert rows["ticker"].tolist() == ["A", "A", "B", "B"] and rows["close"].tolist() == [2, 2, 6, 6]


def test_sessions_from_sunday_on_end_on_their_own_day(tmp_path: Path) -> None:
    days = [day for day in pd.date_range("2020-01-05", periods=40) if day.weekday() not in (4, 5)][:24]
    _, rows = run(tmp_path, {"X.csv": bars(days=[f"{day:%Y-%m-%d}T12:20:00Z" for day in days])})
    assert rows["date"].iloc[0].isoformat() == "2020-01-05"


RETURNS = 1 + 0.01 * np.random.default_rng(2).standard_normal((24, 2))
REFUSED = {
    "titles twice": (bars(f"{BAR},close", CLOSE / 2), "'close' twice in the header; .*--columns ignore=6"),
    "tickers twice": ("Date,AA,AA\n2020-01-02,1,2\n2020-01-03,1,2\n", "'AA' twice in the header"),
    "exchanges": (
        bars(f"{BAR},ticker,exchange", each("A"), each("XETRA", "NYSE")),
        "'XETRA' and 'NYSE' under 'exchange' .*ignore=exchange",
    ),
    "a currency that changes": (
        bars(f"{BAR},currency,ticker", ["GBP"] * 9 + ["GBX"] * 15, ["A"] * 24),
        "'GBP' and 'GBX' under 'currency' for one ticker A; .*ticker=currency",
    ),
    "a ticker of two stocks": (bars(f"{BAR},ticker,permno", each("A"), [1] * 9 + [2] * 15), "'1' and '2' under 'per"),
    "signs of currencies": (bars().replace(f",{CLOSE[0]}", f",${CLOSE[0]}").replace(",9", ",€9"), "one currency"),
    "volume in thousands": (bars(f"{BAR},Volume (000)", VOLUME), r"under 'Volume \(000\)'; .*'volume=Volume \(0"),
    "volume in lots": (bars(f"{BAR},成交量(手)", VOLUME), r"volume under '成交量\(手\)'; "),
    "lots": (bars(f"{BAR},volume,amount", VOLUME, 100 * CLOSE * VOLUME), "not the money traded, as 'amount' shows"),
    "pence": (bars(f"{BAR},volume,value", VOLUME, CLOSE * VOLUME / 100), "not the money traded, as 'value' shows"),
    "money": (bars(f"{BAR},volume,umsatz", CLOSE * VOLUME, VOLUME), "not the money traded, as 'umsatz' shows"),
    "volume of two kinds": (bars(f"{BAR},Volume BTC", VOLUME), "no column of volume, but 'Volume BTC'; .*'ignore=Vol"),
    "high and low": ("date,open,high,low,close\n" + "2020-01-02,5,4,6,5\n" * 5, "a row has 5, 4, 6, 5; say which"),
    "returns": (pd.DataFrame(RETURNS, DAYS, ["AA", "BB"]).to_csv(), "columns AA, BB that .* returns do.*'close=\\*'"),
    "figures": ("Date,PE,EPS\n2020-01-02,20,5\n2020-01-03,20,5\n", r"no column for open.*'close=\*'"),
    "bid and ask": ("Date,Bid Close,Ask Close\n2020-01-02,20,21\n2020-01-03,20,21\n", "no column for open"),
    "a split in words": (bars(f"{BAR},split", each("", "2 for 1")), "split '2 for 1'; "),
    "a dividend in words": (bars(f"{BAR},dividend", each("", "0.5 USD")), "dividend '0.5 USD'; "),
    "Lean": ("20200102 00:00,1000000,1100000,900000,1000000,5\n", "prices of Lean, which are times 10,000"),
    "fortnights": (bars(days=pd.date_range("2018-01-05", periods=24, freq="14D").strftime("%Y-%m-%d")), "fortnightly"),
    "a day that stands for none": (bars() + "1970-01-01,1,1,1,1\n", "1 date that stands for none, as 'X 1970-01-01 1"),
    "months in Finnish": (bars(days=since("%d marraskuu 2020")), "not understood, as 'X 02 marraskuu 2020"),
    "years of Thailand": (bars(days=[f"{day.year + 543}{day:-%m-%d}" for day in DAYS]), "after tomorrow, as 'X 2563"),
    "serial days": (bars(days=[str(43832 + row) for row in range(24)]), "as 'X 43832 .*; write dates as 2"),
    "fractions": (bars().replace(",1", ",1 1/4 "), "price missing or not a number, as 'X 2020-01-02 1 1/4"),
    "JSON": ('{"bars": []}', "no header and no bar .* begin '{\"bars\": \\[\\]}'; give text"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_contradicts_a_guess_is_refused(text: str, words: str, tmp_path: Path) -> None:
    with refused(words):
        run(tmp_path, {"X.csv": text})


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("titles twice", "ignore=6"), ("exchanges", "ignore=exchange"), ("lots", "ignore=amount"),
        ("volume in thousands", "volume=Volume (000)"), ("volume of two kinds", "volume=Volume BTC"),
        ("volume of two kinds", "ignore=Volume BTC"), ("returns", "close=*"), ("figures", "close=*"),
    ],
)  # fmt: skip
def test_what_a_person_says_of_it_is_taken(name: str, columns: str, tmp_path: Path) -> None:
    run(tmp_path, {"X.csv": REFUSED[name][0]}, choices=Choices(columns=(columns,)))


def packed(name: str) -> bytes:
    """Return an archive of one file of bars."""
    content = io.BytesIO()
    with ZipFile(content, "w") as archive:
        archive.writestr(name, bars())
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("X.dat", bars(), "no ticker; name it TICKER.csv"),
        ("download.zip", packed("MSFT.csv"), "an archive of 'MSFT' under another name"),
        ("X.csv", packed("X.csv"), "a packed file under the name of another kind"),
        ("X.txt", "nothing", r"X.txt: no header and no bar in the first 50 lines, which begin 'nothing'"),
    ],
)
def test_names_that_tell_something_else(name: str, content: str | bytes, words: str, tmp_path: Path) -> None:
    with refused(words):
        run(tmp_path, {name: content}, only=name)
