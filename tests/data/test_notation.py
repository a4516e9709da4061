"""Files in drawn notations are read back exactly or refused in one line: never misread."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.raw.prepare import prepare
from utils.errors import DataError

FIELDS = ["open", "high", "low", "close", "volume"]
HEADERS = {
    "English": "Date Open High Low Close Volume",
    "LSEG": "Date|Price Open|Price High|Price Low|Price Close|Volume",
    "Bloomberg": "Date PX_OPEN PX_HIGH PX_LOW PX_LAST PX_VOLUME",
    "German": "Datum Eröffnung Hoch Tief Schlusskurs Stück",
    "French": "Date|Ouv.|Plus Haut|Plus Bas|Dernier|Vol.",
    "Turkish": "Tarih A\u00e7\u0131l\u0131\u015f Yüksek Düşük Şimdi Hac.",
    "Polish": "Data Otwarcie Najwyższy Najniższy Zamknięcie Wolumen",
    "Swedish": "Datum Öppning Högsta Lägsta Stängning Volym",
    "Russian": "Дата Откр. Макс. Мин. Цена Объём",
    "Chinese": "日期 开盘 最高 最低 收盘 成交量",
    "Thai": "วันที่ เปิด สูงสุด ต่ำสุด ปิด ปริมาณ",
    "unknown": "Dat Abre Alza Baja Fin Nombre",
    "tickers": "DATE ABA ALZ BAJ FIN NUM",
    "none": "",
}
DATES = [
    "%Y-%m-%d",
    "%Y%m%d",
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d/%m/%y",
    "%m/%d/%y",
    "%y/%m/%d",
    "%d-%b-%Y",
    "%b %d, %Y",
]


def written(value: float, places: int, decimal: str, group: str) -> str:
    return f"{value:,.{places}f}".replace(",", "\0").replace(".", decimal).replace("\0", group)


def style(rng: np.random.Generator) -> dict[str, Any]:
    """Draw how numbers are written; half of all vendors do not group thousands."""
    decimal = str(rng.choice([".", ","]))
    group = str(rng.choice(["", "", "", {".": ",", ",": "."}[decimal], " ", "\u00a0", "'"]))
    return {"places": int(rng.integers(0, 6)), "decimal": decimal, "group": group}


def drawn_files(seed: int, folder: Path) -> pd.DataFrame:
    """Write files in one drawn notation and return their bars."""
    rng = np.random.default_rng(seed)
    language, form = str(rng.choice([*HEADERS])), str(rng.choice(DATES))
    separator, price = str(rng.choice([",", ";", "\t", "|"])), style(rng)
    volume = {**style(rng), "decimal": price["decimal"]} if rng.random() < 0.2 else {**style(rng), "places": 0}
    volume = volume if rng.random() < 0.5 else {**price, "places": 0}
    if volume["places"] and volume["group"] == volume["decimal"]:
        volume["group"] = ""
    order = [0, *(rng.permutation(5) + 1)] if HEADERS[language] else [*range(6)]
    titles = HEADERS[language].split("|" if "|" in HEADERS[language] else " ")
    parts = []
    for ticker in ("AAA", "BBB")[: rng.integers(1, 3)]:
        days = int(rng.choice([1, 2, 3, 8, 30]))
        start = pd.Timestamp("1999-01-04") + pd.Timedelta(days=int(rng.integers(0, 9000)))
        close = 10 ** rng.uniform(-1, 5) * np.exp(np.cumsum(0.02 * rng.standard_normal(days)))
        bars = pd.DataFrame({"ticker": ticker, "date": pd.bdate_range(start, periods=days)})
        bars["open"] = close * np.exp(0.01 * rng.standard_normal(days))
        bars["close"] = close
        bars["high"] = bars[["open", "close"]].max(axis=1) * 1.01
        bars["low"] = bars[["open", "close"]].min(axis=1) * 0.99
        bars["volume"] = 10 ** rng.uniform(2, 7, days)
        places = {name: volume["places"] if name == "volume" else price["places"] for name in FIELDS}
        for name in FIELDS:
            bars[name] = [float(f"{value:.{places[name]}f}") for value in bars[name]]
        lines = [titles] if HEADERS[language] else []
        for row in bars.itertuples(index=False):
            cells = [written(getattr(row, name), **(volume if name == "volume" else price)) for name in FIELDS]
            lines.append([row.date.strftime(form), *cells])
        quoted = [
            [f'"{cell}"' if separator in cell else cell for cell in (line[place] for place in order)] for line in lines
        ]
        (folder / f"{ticker}.csv").write_text("\n".join(map(separator.join, quoted)) + "\n", encoding="utf-8")
        parts.append(bars)
    return pd.concat(parts, ignore_index=True)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=130)  # some 200 files
def test_drawn_notations_are_read_back_or_refused(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("notation")
    (folder / "source").mkdir()
    bars = drawn_files(seed, folder / "source")
    try:
        summary = prepare(folder / "source", folder / "bars.parquet")
    except DataError as error:
        assert "\n" not in str(error) and "expected" in str(error)
        return
    made = pd.read_parquet(summary.target)
    assert made["ticker"].tolist() == bars["ticker"].tolist()
    assert made["date"].tolist() == bars["date"].dt.date.tolist()
    np.testing.assert_array_equal(made[FIELDS[:4]], bars[FIELDS[:4]])
    known = made["volume"].notna()
    np.testing.assert_array_equal(made["volume"][known], bars["volume"][known])
