"""Files in drawn notations: `python -m benchmarks.notations` writes 2,000 and reads them back with `prepare`.

Styles of numbers x orders of dates, or zones of times x separators x languages of headers x encodings, each drawn at
random, with one or two files to a folder. A file must be read as it was meant, or refused; the command counts both, and
shows any that is misread.
"""

import argparse
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from data.prepare.prepare import prepare
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
    "Arabic": "التاريخ الفتح مرتفع منخفض الإغلاق الحجم",
    "Taiwanese": "日期 開盤價 最高價 最低價 收盤價 成交股數",
    "Japanese": "日付け 始値 高値 安値 終値 出来高",
    "Hindi": "तारीख खुला उच्च निम्न बंद वॉल्यूम",
    "Bengali": "তারিখ খোলা সর্বোচ্চ সর্বনিম্ন বন্ধ ভলিউম",
    "Spanish": "Fecha Apertura Máximo Mínimo Último Vol.",
    "Thai": "วันที่ เปิด สูงสุด ต่ำสุด ปิด ปริมาณ",
    "unknown": "Dat Abre Alza Baja Fin Nombre",
    "tickers": "DATE ABA ALZ BAJ FIN NUM",
    "none": "",
}
DATES = [
    "%Y-%m-%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y", "%y/%m/%d", "%d-%b-%Y",
    "%b %d, %Y", "America/Denver", "UTC", "UTC", "UTC",
]  # fmt: skip
"""Forms of dates, or the zone in which the midnight of an exchange is written."""
EXCHANGES = ["America/Chicago", "America/New_York", "Europe/London", "Europe/Berlin", "Asia/Kolkata", "Asia/Tokyo"]
MONTHS = {
    "German": "Jan Feb Mrz Apr Mai Jun Jul Aug Sep Okt Nov Dez",
    "French": "janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.",
    "Spanish": "ene feb mar abr may jun jul ago sep oct nov dic",
    "Polish": "sty lut mar kwi maj cze lip sie wrz paź lis gru",
    "Swedish": "januari februari mars april maj juni juli augusti september oktober november december",
    "Russian": "янв фев мар апр мая июн июл авг сен окт ноя дек",
    "Turkish": "Oca Şub Mar Nis May Haz Tem Ağu Eyl Eki Kas Ara",
}
_ARABIC = {ord(digit): chr(0x660 + place) for place, digit in enumerate("0123456789")}


@dataclass(frozen=True)
class Style:
    """How numbers are written."""

    places: int
    decimal: str
    group: str

    def written(self, value: float) -> str:
        """Return a number as text."""
        plain = f"{value:,.{self.places}f}".replace(",", "\0")
        return plain.replace(".", self.decimal).replace("\0", self.group)


def drawn_style(rng: np.random.Generator, most_places: int = 5) -> Style:
    """Draw how numbers are written; half of all vendors do not group thousands."""
    decimal = str(rng.choice([".", ","]))
    group = str(rng.choice(["", "", "", {".": ",", ",": "."}[decimal], " ", "\u00a0", "'"]))
    return Style(int(rng.integers(0, most_places + 1)), decimal, group)


def drawn_bars(rng: np.random.Generator, ticker: str) -> pd.DataFrame:
    """Draw the bars of a ticker on 1 to 30 sessions."""
    days = int(rng.choice([1, 2, 3, 8, 30]))
    start = pd.Timestamp("1999-01-04") + pd.Timedelta(days=int(rng.integers(0, 9000)))
    close = 10 ** rng.uniform(-1, 5) * np.exp(np.cumsum(0.02 * rng.standard_normal(days)))
    bars = pd.DataFrame({"ticker": ticker, "date": pd.bdate_range(start, periods=days)})
    bars["open"], bars["close"] = close * np.exp(0.01 * rng.standard_normal(days)), close
    bars["high"] = bars[["open", "close"]].max(axis=1) * 1.01
    bars["low"] = bars[["open", "close"]].min(axis=1) * 0.99
    return bars.assign(volume=10 ** rng.uniform(2, 7, days))


def written_date(day: pd.Timestamp, form: str, exchange: str, language: str) -> str:
    """Return a session as text: in Taiwan by the years of its republic, months in the language of the header."""
    if language == "Taiwanese" and "%" in form:
        return f"{day.year - 1911}/{day:%m/%d}"
    if "%" not in form:
        return str(day.tz_localize(exchange).tz_convert(form))
    month = MONTHS[language].split()[day.month - 1] if language in MONTHS else "%b"
    return str(day.strftime(form.replace("%b", month)))


def drawn_files(seed: int, folder: Path) -> pd.DataFrame:
    """Write one or two files in one drawn notation and return their bars.

    Volume has the style of prices, or another one: with their decimal sign, or any with at most two decimals.
    """
    rng = np.random.default_rng(seed)
    language, form, separator = (str(rng.choice(choice)) for choice in ([*HEADERS], DATES, [",", ";", "\t", "|"]))
    exchange, encoding = str(rng.choice(EXCHANGES)), str(rng.choice(["utf-8", "utf-16", "cp1252"]))
    price = drawn_style(rng)
    other = drawn_style(rng, most_places=2)
    volumes = [price, other, Style(other.places, price.decimal, ""), Style(0, price.decimal, price.group)]
    volume = volumes[rng.integers(4)]
    styles = {name: volume if name == "volume" else price for name in FIELDS}
    order = [0, *(rng.permutation(5) + 1)] if HEADERS[language] else [*range(6)]
    titles = HEADERS[language].split("|" if "|" in HEADERS[language] else " ")
    parts = []
    for ticker in ("AAA", "BBB")[: rng.integers(1, 3)]:
        bars = drawn_bars(rng, ticker)
        for name, style in styles.items():
            bars[name] = [float(f"{value:.{style.places}f}") for value in bars[name]]
        lines = [titles] if HEADERS[language] else []
        for row in bars.itertuples(index=False):
            date = written_date(row.date, form, exchange, language)
            cells = [date, *(styles[name].written(getattr(row, name)) for name in FIELDS)]
            lines.append([cell.translate(_ARABIC) for cell in cells] if language == "Arabic" and seed % 2 else cells)
        quoted = [
            [f'"{line[place]}"' if separator in line[place] else line[place] for place in order] for line in lines
        ]
        text = "\n".join(map(separator.join, quoted))
        is_plain = encoding != "cp1252" or text.encode(encoding, "replace").decode(encoding) == text
        (folder / f"{ticker}.csv").write_text(f"{text}\n", encoding=encoding if is_plain else "utf-8")
        parts.append(bars)
    return pd.concat(parts, ignore_index=True)


def outcome(seed: int, folder: Path) -> str:
    """Draw files, prepare them, and return "read", "misread: WHAT", or the refusal."""
    source = folder / "source"
    source.mkdir()
    bars = drawn_files(seed, source)
    try:
        prepare(source, folder / "bars.parquet")
    except DataError as error:
        return str(error)
    made = pd.read_parquet(folder / "bars.parquet")
    for name in ["ticker", "date", *FIELDS]:
        meant = (bars["date"].dt.date if name == "date" else bars[name]).tolist()
        actual = made[name].tolist()
        if len(actual) != len(meant) or any(one != two and one == one for one, two in zip(actual, meant, strict=True)):
            return f"misread: {name} {actual[:3]} in place of {meant[:3]}"
    return "read"


def main() -> None:
    """Draw files and print how many were read, refused and misread."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000, help="files to write, at least (default: 2000)")
    parser.add_argument("--first-seed", type=int, default=0)
    arguments = parser.parse_args()
    files, seed, kinds, misread = 0, arguments.first_seed, Counter[str](), list[str]()
    while files < arguments.files:
        with tempfile.TemporaryDirectory() as folder:
            actual, number = outcome(seed, Path(folder)), len(list(Path(folder, "source").iterdir()))
        kind = "read" if actual == "read" else "misread" if actual.startswith("misread") else "refused"
        kinds[kind] += number
        misread += [f"seed {seed}: {actual}"] * (kind == "misread")
        files, seed = files + number, seed + 1
    print(f"{files} files: {', '.join(f'{kinds[kind]} {kind}' for kind in ('read', 'refused', 'misread'))}")
    print("\n".join(misread))


if __name__ == "__main__":
    main()
