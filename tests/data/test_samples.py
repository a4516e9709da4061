"""Files as vendors and tools write them: each is read as it is meant, or refused in one line that says what to do."""

import bz2
import gzip
import io
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from data.loader import StockDataLoader
from data.prepare.prepare import prepare
from main import main
from tests.data.files import PRICES, bars, refused, run, written
from utils.config.prepare import Choices

HEAD = "date,open,high,low,close"
OHLC = f"{HEAD}\n"
BAR = "2020-01-02,10,11,9,10\n"
OTHER = "2020-01-02,20,21,19,20\n"


def days(count: int, form: str, start: str = "2020-01-02", step: str = "B") -> list[str]:
    return [f"{day:{form}}" for day in pd.date_range(start, periods=count, freq=step)]


def table(dates: list[str], row: str = "10,11,9,10", header: str = OHLC) -> str:
    return header + "".join(f"{day},{row}\n" for day in dates)


DAYS = pd.bdate_range("2020-01-02", periods=24)
CLOSE = np.round(100 * np.exp(np.cumsum(0.02 * np.random.default_rng(0).standard_normal(24))), 2)
VOLUME = np.random.default_rng(1).integers(1_000, 900_000, 24)


def made(header: str = HEAD, *columns: Sequence[Any], days: Sequence[Any] = DAYS.strftime("%Y-%m-%d")) -> str:
    """Bars at one price and further columns, as CSV."""
    rows = zip(days, *[CLOSE] * 4, *columns, strict=True)
    return f"{header}\n" + "".join(",".join(map(str, row)) + "\n" for row in rows)


def each(*values: str) -> list[str]:
    return [values[row % len(values)] for row in range(24)]


def unix(factor: int) -> list[str]:
    return [str(int(day.timestamp()) * factor) for day in DAYS]


def flat(ticker: str, close: float, volume: float = np.nan) -> tuple[Any, ...]:
    """A bar at one price."""
    return ticker, close, close, close, close, volume


TURKISH = '"Tarih","\u015eimdi","A\u00e7\u0131l\u0131\u015f","Y\u00fcksek","D\u00fc\u015f\u00fck","Hac."\n'
QUOTED = '"02.01.2020","50,09","49,78","50,59","49,28","1,23M"\n'
READ = {
    "Turkish": (TURKISH + QUOTED, [("X", 49.78, 50.59, 49.28, 50.09, 1.23e6)]),
    "tickers of quantmod": (
        "Index,BRK.B.Open,BRK.B.High,BRK.B.Low,BRK.B.Close,BRK.B.Adjusted\n2020-01-02,10,11,9,10,5\n",
        [("BRK.B", 5, 5.5, 4.5, 5, np.nan)],
    ),
    "CRSP": (
        "PERMNO,date,BIDLO,ASKHI,PRC,VOL,OPENPRC,CFACPR\n10107,20200102,9,11,10,5,10,2\n10107,20200103,9,11,-10,0,,2\n",
        [("10107", 10, 11, 9, 10, 5)],
    ),
    "names": (f"Name,{OHLC}B,{BAR}A,{OTHER}", [("A", 20, 21, 19, 20, np.nan), ("B", 10, 11, 9, 10, np.nan)]),
    "closeadj": (f"{HEAD},closeunadj,closeadj\n2020-01-02,10,11,9,10,3,5\n", [("X", 5, 5.5, 4.5, 5, np.nan)]),
    "Yahoo in German": (
        "Datum;Er\u00f6ffnen;Er\u00f6ffnung;Hoch;Tief;Schlusskurs*;Adj. Schlusskurs**\n02.01.2020;1;10;11;9;10;5\n",
        [("X", 5, 5.5, 4.5, 5, np.nan)],
    ),
    "funds without volume": (f"{HEAD},volume\n2020-01-02,9,9,9,9,0\n", [("X", 9, 9, 9, 9, 0)]),
    "splits as ratios": (
        f"{HEAD},stock splits\n2020-01-02,10,11,9,10,\n2020-01-03,5,5.5,4.5,5,2:1\n2020-01-06,5,5.5,4.5,5,\n",
        [("X", 5, 5.5, 4.5, 5, np.nan)] * 3,
    ),
    "a split on a day without a bar": (
        f"{HEAD},stock splits\n2020-01-02,10,11,9,10,\n2020-01-03,,,,,4.000000/2.000000\n"
        "2020-01-06,5,5.5,4.5,5,\n2020-01-07,5,5.5,4.5,5,\n",
        [("X", 5, 5.5, 4.5, 5, np.nan)] * 3,
    ),
    "days without a known volume": (
        "Date,Close_A,Volume_A,Close_B\n2020-01-02,10,,20\n2020-01-03,10,5,20\n",
        [flat("A", 10), flat("A", 10, 5), flat("B", 20), flat("B", 20)],
    ),
    "open all days": (table(days(20, "%Y-%m-%d", step="D")), [("X", 10, 11, 9, 10, np.nan)] * 20),
}


@pytest.mark.parametrize(("text", "expected"), READ.values(), ids=READ)
def test_samples_are_read_as_they_are_meant(text: str, expected: list[tuple[Any, ...]], tmp_path: Path) -> None:
    _, rows = run(tmp_path, {"X.csv": text})
    assert rows["ticker"].tolist() == [row[0] for row in expected]
    np.testing.assert_array_equal(rows[[*PRICES, "volume"]], [row[1:] for row in expected])
    assert rows["date"].iloc[0].isoformat() in ("2020-01-02", "2020-01-01")


SETTLED = {
    "microseconds": made(days=unix(10**6)),
    "seconds": made(days=unix(1)),
    "no prices": made() + "2020-02-10,#N/A,--,.,n.a.\n",
    "a halt": made(f"{HEAD},volume", [*VOLUME]) + "2020-02-05,9,9,9,9,\n2020-02-06,0,0,0,9,\n",
    "volume twice": made(f"{HEAD},volume,unadjustedVolume", VOLUME, VOLUME),
    "money": made(f"{HEAD},volume,amount", VOLUME, CLOSE * VOLUME),
}


@pytest.mark.parametrize("text", SETTLED.values(), ids=SETTLED)
def test_what_a_file_shows_settles_it(text: str, tmp_path: Path) -> None:
    _, rows = run(tmp_path, {"X.csv": text})
    assert rows["date"].tolist() == [day.date() for day in DAYS] and rows["ticker"].eq("X").all()
    np.testing.assert_array_equal(rows[PRICES], np.tile(CLOSE, (4, 1)).T)


SHIFTED = [f"{day + pd.Timedelta(days=1):%Y-%m-%d}" for day in pd.bdate_range("2020-01-02", periods=30)]
UNKNOWN = TURKISH.replace("imdi", "ilk").replace("Hac", "Lot") + QUOTED
NSE = "SYMBOL,SERIES,OPEN,HIGH,LOW,CLOSE,TIMESTAMP\nABC,EQ,10,11,9,10,02-JAN-2020\nABC,N1,90,91,89,90,02-JAN-2020\n"
WEEKS = days(7, "%Y-%m-%d", step="7D")
REFUSED = {
    "unknown title": (UNKNOWN, r"no column for close .*--columns close=TITLE"),
    "unknown titles above other lines": ("Foo,Bar,Baz,Qux,Quux\n#\n" + BAR, "no column|unknown titles"),
    "seven fields": ("2020-01-02,8,12,8,10,2.5,5\n", "a row and no header above it, '2020-01-02,8.* --columns date=1"),
    "bars in capitals": ("DATE,AA,BB,CC,DD,EE\n2020-01-02,10,11,9,10,12345\n", r"no column for open, .*'close=\*'"),
    "letters": ("t,o,h,l,c,v\n2020-01-02,10,11,9,10,5.5\n", "no column for open, high, low, close in the header 't,o"),
    "digits of another script": (made().translate({ord(one): ord(one) + 0xFEE0 for one in "0123456789"}), "; write "),
    "a quote that is not closed": (f'{HEAD},name\n2020-01-02,10,11,9,10,"A\n', "no readable file .*inside string"),
    "a quote over rows": (f'{HEAD},name\n{BAR[:-1]},"A\n{OTHER[:-1]},B"\n', "a quote that is not closed; mend it"),
    "decimal commas without quotes": (f"{HEAD}\n2020-01-02,10,5,11,5,9,5,10,5\n", "more fields than titles; quote"),
    "other places": ("2020-01-02,10,9,11,10\n", "a row and no header"),
    "tickers under an unknown title": (f"Foo,{OHLC}AB,{BAR}CD,{OTHER}", "'Foo' with 'AB' and 'CD'; .*ticker=Foo"),
    "codes under an unknown title": (f"Foo,{OHLC}1,{BAR}2,{OTHER}", "closes 10 and 20 .* on 2020-01-02; .*one of Foo"),
    "series": (NSE, "'EQ' and 'N1' under 'SERIES' for one ticker ABC; .*ticker=SERIES"),
    "minutes": (
        "date,time,open,high,low,close\n" + "".join(f"2020-01-02,09:{m},10,11,9,{m / 3}\n" for m in range(30, 33)),
        "closes 10 and 10.3333 of 'X' on 2020-01-02; make days of bars within days",
    ),
    "weeks": (table(WEEKS), "weekly bars"),
    "weeks of one ticker": (
        table([f"A,{day}" for day in days(40, "%Y-%m-%d")] + [f"B,{day}" for day in WEEKS], header=f"ticker,{OHLC}"),
        "expected daily bars, got weekly ones of B",
    ),
    "three decimals": (table(["2020-01-02"], "1.234,1.235,1.233,1.234"), "--decimal . or --decimal ,"),
    "decimals by both signs": (table(["2020-01-02"], '1.234,"1,235",1.233,"1,234"'), "--decimal . or --decimal ,"),
    "volume of three decimals": (f"{HEAD},v,volume\n2020-01-02,1.5,1.6,1.4,1.5,1,1.234\n", "volumes like .*--dec"),
    "volume in other units": (f"{HEAD},volume\n{BAR[:-1]},12.3 lots\n", "volume '12.3 lots'; .*--columns ignore="),
    "day or month first": (table(["03/04/2020"]), "--dates mdy or --dates dmy"),
    "Saturdays": (table(SHIFTED), "bars on weekends in X.csv, as on 2020-01-04"),
    "lost rows": (table([*days(60, "%Y-%m-%d"), "x1"]), r"got 1 of 61 \(1 date not understood, as 'X x1 10 11"),
    "titles twice": (made(f"{HEAD},close", CLOSE / 2), "'close' twice in the header; .*--columns ignore=6"),
    "exchanges": (made(f"{HEAD},ticker,exchange", each("A"), each("XETRA", "NYSE")), "'XETRA' and 'NYSE' .*ignore=ex"),
    "pence from some day on": (
        made(f"{HEAD},currency,ticker", ["GBP"] * 9 + ["GBX"] * 15, each("A")),
        "'GBP' and 'GBX' under 'currency' for one ticker A; .*ticker=currency",
    ),
    "signs of currencies": (made().replace(f",{CLOSE[0]}", f",${CLOSE[0]}").replace(",9", ",€9"), "one currency"),
    "volume in thousands": (made(f"{HEAD},Volume (000)", VOLUME), r"under 'Volume \(000\)'; .*'volume=Volume \(0"),
    "lots": (made(f"{HEAD},volume,amount", VOLUME, 100 * CLOSE * VOLUME), "not the money traded, as 'amount' shows"),
    "money": (made(f"{HEAD},volume,umsatz", CLOSE * VOLUME, VOLUME), "not the money traded, as 'umsatz' shows"),
    "volume of two kinds": (made(f"{HEAD},Volume BTC", VOLUME), "no column of volume, but 'Volume BTC'; .*'ignore=Vol"),
    "high and low": ("date,open,high,low,close\n" + "2020-01-02,5,4,6,5\n" * 5, "a row has 5, 4, 6, 5; say which"),
    "figures": ("Date,PE,EPS\n2020-01-02,20,5\n2020-01-03,20,5\n", r"no column for open.*'close=\*'"),
    "bid and ask": ("Date,Bid Close,Ask Close\n2020-01-02,20,21\n2020-01-03,20,21\n", "no column for open"),
    "a split in words": (made(f"{HEAD},split", each("", "two for one")), "split 'two for one'; "),
    "Lean": ("20200102 00:00,1000000,1100000,900000,1000000,5\n", "a row and no header above it"),
    "a day that stands for none": (made() + "1970-01-01,1,1,1,1\n", "1 date that stands for none, as 'X 1970-01-01 1"),
    "serial days": (made(days=[str(43832 + row) for row in range(24)]), "as 'X 43832 .*; write dates as 2"),
    "fractions": (made().replace(",1", ",1 1/4 "), "open '1 1/4 00.25'; write numbers"),
    "no open of a ticker": ("Price,Close,Open\nTicker,A,A\n2020-01-02,1,1\n", "open, high, low and close of A"),
    "half a parquet file": (b"PAR1 and no more", "no readable file"),
    "cities": (pd.DataFrame({"date": ["2020-01-02"], "city": ["Bonn"]}).to_parquet(), "no columns .* among date, city"),
    "closes alone": (pd.DataFrame({"date": ["2020-01-02"], "close": [1.0]}).to_parquet(), "no column for open, high"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED)
def test_what_nobody_can_know_is_refused(text: str | bytes, words: str, tmp_path: Path) -> None:
    with refused(words):
        run(tmp_path, {"X.parquet" if isinstance(text, bytes) else "X.csv": text})


@pytest.mark.parametrize(
    ("sample", "choices", "expected"),
    [
        ("unknown title", {"columns": ("close=\u015eilk",)}, [49.78, 50.59, 49.28, 50.09]),
        ("other places", {"columns": ("date=1", "open=2", "low=3", "high=4", "close=5")}, [10, 11, 9, 10]),
        ("series", {"columns": ("ticker=SERIES",)}, [10, 11, 9, 10]),
        ("three decimals", {"decimal": "."}, [1.234, 1.235, 1.233, 1.234]),
        ("day or month first", {"dates": "dmy"}, [10, 11, 9, 10]),
        ("Saturdays", {"dates": "ymd"}, [10, 11, 9, 10]),
        ("lost rows", {"max_bad_row_share": 0.02}, [10, 11, 9, 10]),
        ("bars in capitals", {"columns": ("close=*",)}, [10] * 4),
        ("titles twice", {"columns": ("ignore=6",)}, [CLOSE[0]] * 4),
        ("volume in thousands", {"columns": ("volume=Volume (000)",)}, [CLOSE[0]] * 4),
        ("volume of two kinds", {"columns": ("ignore=Volume BTC",)}, [CLOSE[0]] * 4),
    ],
)
def test_what_a_person_says_settles_it(
    sample: str, choices: dict[str, Any], expected: list[float], tmp_path: Path
) -> None:
    _, rows = run(tmp_path, {"X.csv": REFUSED[sample][0]}, choices=Choices(**choices))
    assert rows[PRICES].iloc[0].tolist() == expected


def test_closes_of_tickers_that_a_person_says(tmp_path: Path) -> None:
    """Tickers may be called like columns; a title that comes twice is refused."""
    said = Choices(columns=("close=*",))
    text = "Date,LOW,OPEN,T,C\n2020-01-02,1,2,3,4\n2020-01-03,5,,7,8\n"
    _, rows = run(tmp_path, {"X.csv": text}, choices=said)
    assert list(zip(rows["ticker"], rows["close"], strict=True)) == [
        ("C", 4), ("C", 8), ("LOW", 1), ("LOW", 5), ("OPEN", 2), ("T", 3), ("T", 7),
    ]  # fmt: skip
    with refused("'T' twice in the header"):
        run(tmp_path / "twice", {"X.csv": text.replace(",C", ",T")}, choices=said)


@pytest.mark.parametrize(
    ("names", "tickers"),
    [
        (("ticker=AAPL/part-0.csv", "ticker=MSFT/part-0.csv"), ["AAPL", "MSFT"]),
        (("AAPL/prices.csv", "MSFT/prices.csv"), ["AAPL", "MSFT"]),
        (("AAPL_2020.csv", "MSFT-2020.csv"), ["AAPL", "MSFT"]),
        (("7203.csv", "BRK-A_2021.csv"), ["7203", "BRK-A"]),
        (("TSLA Historical Data (2).csv", "HistoricalData_GOOG.csv"), ["GOOG", "TSLA"]),
        (("daily_adjusted_IBM.csv", "msft_us_d (1).csv"), ["IBM", "MSFT"]),
        (("BRK-B.csv.txt", "MAX.csv"), ["BRK-B", "MAX"]),
        (("aapl_price-history-11-27-2026.csv", "BATS_IBM, 1D.csv"), ["AAPL", "BATS_IBM"]),
        (("AAPL_2020-01-01_2024-12-31.csv", "MAX-USD max.csv"), ["AAPL", "MAX-USD"]),
    ],
)
def test_tickers_in_names_of_files_and_folders(names: tuple[str, str], tickers: list[str], tmp_path: Path) -> None:
    _, rows = run(tmp_path, dict.fromkeys(names, OHLC + BAR))
    assert rows["ticker"].tolist() == tickers


def archive_of(name: str) -> bytes:
    content = io.BytesIO()
    with ZipFile(content, "w") as archive:
        archive.writestr(name, made())
    return content.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("2020.csv", OHLC + BAR, "2020.csv: no ticker in its name; name it TICKER.csv, or its folder"),
        ("HistoricalData_1700000000000.csv", made(), "no ticker in its name; .* a column of tickers"),
        ("export of my stocks.csv", made(), "no ticker in its name"),
        ("X.dat", made(), "no ticker in its name; name it TICKER.csv"),
        ("2021.csv", made(), "no ticker in its name"),
        ("MSFT.zip", archive_of("export of my stocks.csv"), "no ticker in its name"),
    ],
)
def test_names_that_tell_no_ticker(name: str, content: str | bytes, words: str, tmp_path: Path) -> None:
    with refused(words):
        run(tmp_path, {name: content}, only=name)


def test_what_a_person_says_leaves_what_is_settled(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"A.csv": table(["03/04/2020"]), "B.csv": table(days(60, "%d/%m/%Y"))}
    with refused("--dates mdy or --dates dmy"):
        run(tmp_path / "auto", files)
    _, rows = run(tmp_path, files, choices=Choices(dates="mdy"))
    assert [bar[:2] for bar in bars(rows)[:3]] == [("A", "2020-03-04"), ("B", "2020-01-02"), ("B", "2020-01-03")]
    three = table(["2020-01-02"], '"1,234","1,235","1,233","1,234"')
    other = table(["2020-01-02"], '"1,5","1,6","1,4","1,5"')
    _, rows = run(tmp_path / "numbers", {"A.csv": three, "B.csv": other}, choices=Choices(decimal="."))
    assert rows["close"].tolist() == [1234, 1.5]


def test_all_that_can_be_read_in_a_folder_is_read_and_the_rest_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, source = table(days(12, "%Y-%m-%d")), tmp_path / "source"
    files: dict[str, str | bytes] = {
        "source/A.csv.gz": gzip.compress(text.encode()),
        "source/B.csv.bz2": bz2.compress(text.encode()),
        "source/C.csv.zst": pa.compress(text.encode(), "zstd", asbytes=True),
        "linked/E.csv": text,
        **dict.fromkeys([f"source/{name}" for name in ("F.xlsx", "G.json", "H.zip", "I.csv.gz")], b"PK junk"),
    }
    for name, content in files.items():
        written(tmp_path / name, content)
    pd.read_csv(io.StringIO(text)).to_feather(source / "D.feather")
    (source / "link").symlink_to(tmp_path / "linked")
    (source / "circle").symlink_to(source)
    Path(os.fsdecode(os.fsencode(source) + b"/\xc9.csv")).write_text(text)
    for name, members in (("J.csv.zip", ["J.csv"]), ("K.zip", ["K.csv"]), ("L.zip", ["1.csv", "2.csv"])):
        with ZipFile(source / name, "w") as archive:
            for member in members:
                archive.writestr(member, text)
    words = ["prepare", str(source), str(tmp_path / "bars.parquet")]
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert "at most 1.00% of the files to be left out, got 4 of 12 (F.xlsx: no readable file" in shown
    assert "H.zip: no readable" in shown and "I.csv.gz: no readable" in shown
    assert not (tmp_path / "bars.parquet").exists()
    assert main([*words, "--max-bad-row-share", "0.4"]) == 0
    assert pd.read_parquet(tmp_path / "bars.parquet")["ticker"].unique().tolist() == [*"ABCDEJK", "\u00c9"]
    page = (tmp_path / "bars.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("F.xlsx", "G.json", "H.zip", "I.csv.gz"))
    assert "L.zip" in page and "an archive of 2 files; unpack it" in page


def test_a_spreadsheet_is_read_where_its_reader_is_installed(tmp_path: Path) -> None:
    """And named with the package that it takes where not."""
    source, target = tmp_path / "A.xlsx", tmp_path / "bars.parquet"
    if find_spec("openpyxl"):
        frame = pd.DataFrame({"Date": days(12, "%Y-%m-%d"), "Open": 1.0, "High": 1.0, "Low": 1.0, "Close": 1.0})
        frame.to_excel(source, index=False)
        prepare(source, target)
        assert pd.read_parquet(target)["close"].tolist() == [1.0] * 12
        frame.assign(Ticker="NA").to_excel(source, index=False)
        prepare(source, target)
        assert pd.read_parquet(target)["ticker"].unique().tolist() == ["NA"]
        with pd.ExcelWriter(source) as book:
            for name in ("A", "B"):
                frame.to_excel(book, sheet_name=name, index=False)
        with refused(r"2 sheets \(A, B\); save the one of bars as a file"):
            prepare(source, target)
        return
    with ZipFile(source, "w") as archive:
        archive.writestr("xl/workbook.xml", "")
    with refused(r"A\.xlsx: no readable file \(.*openpyxl"):
        prepare(source, target)


def test_weekly_bars_are_not_loaded(tmp_path: Path) -> None:
    dates = pd.date_range("2010-01-04", periods=60, freq="7D")
    frame = pd.DataFrame({"date": dates, "ticker": "A", **dict.fromkeys(PRICES, 1.0)})
    frame.to_parquet(tmp_path / "bars.parquet")
    with refused(r"expected daily bars in .*, got weekly ones"):
        StockDataLoader(tmp_path / "bars.parquet").load_and_prepare()


def test_settings_may_begin_with_a_mark_of_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.toml").write_text("\ufeffgenerations = 0\n", encoding="utf-8")
    assert main(["--config", str(tmp_path / "settings.toml")]) == 2
    assert "generations" in capsys.readouterr().err
