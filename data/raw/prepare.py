"""Vendors' files of daily bars, turned into one parquet file for the loader."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from data.bars import BAD_TICKER, EARLIEST, LARGEST_RATIO, SMALLEST_PRICE, has_wrong_digit, is_bad_ticker, latest_day
from data.raw.adjustment import adjust_for_events, scale_to_adjusted
from data.raw.append import benchmark_file, read_prepared, with_old_bars
from data.raw.files import PARQUET_SUFFIXES, read_file
from data.raw.layout import EVENTS, PRICES, VALUES, UnusableFileError
from data.raw.survey import Survey, survey_of
from data.raw.text import NO_DAY, date_of
from utils.config.settings import hint
from utils.errors import DataError
from utils.progress import progress
from utils.runs.durable import make_directory, new_file

SUFFIXES = (".csv", ".txt", ".tsv", *PARQUET_SUFFIXES)
_LISTED = 20
_FILE = re.compile(
    r"(?:historicaldata_|daily_(?:adjusted_)?)?(?:(\^.+)_d|(.+)_us_d|(.+)\.us|(.+?))"
    r"(?: (?:stock )?(?:historical data|price history))?(?: ?\(\d+\))?",
    re.IGNORECASE,
)
"""What Nasdaq, Alpha Vantage, Stooq, Investing.com and browsers add to a ticker in a file's name."""
_STOOQ_TICKER = re.compile(r"([A-Z0-9_-]+)\.US")


@dataclass
class PrepareSummary:
    """Counts of what was read, kept and dropped, and why; filled in by `prepare`."""

    target: Path
    files_read: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(file, reason) of each file without usable rows."""
    rows_kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows dropped, by reason."""
    tickers: int = 0
    first_date: date = date.min
    last_date: date = date.min
    notes: list[str] = field(default_factory=list)
    """What was adjusted, and assumptions made where a file is ambiguous."""
    closes_only: int = 0
    """Files without open, high and low."""
    benchmark: Path | None = None
    """CSV file of the index removed from the data."""
    appended: int | None = None
    """Bars that were appended to those of an earlier file; None where there was none."""
    survey: Survey = field(init=False)

    def lines(self) -> list[str]:
        """Return the summary as lines to print."""
        details = [
            *(f"  dropped {rows}: {reason}" for reason, rows in sorted(self.dropped.items())),
            *(f"  skipped {name}: {reason}" for name, reason in self.skipped),
            *(f"Note: {note}" for note in self.notes),
        ]
        return [
            f"Wrote {self.target}: {self.tickers} tickers, {self.first_date} to {self.last_date}",
            *([] if self.appended is None else [f"Appended: {self.appended} bars; all earlier ones are as they were"]),
            *([f"Wrote {self.benchmark}, for --benchmark; not among the tickers"] if self.benchmark else []),
            f"Files: {self.files_read} read, {len(self.skipped)} skipped",
            f"Rows: {self.rows_kept} kept, {self.dropped.total()} dropped",
            *details[:_LISTED],
            *([f"  and {len(details) - _LISTED} lines more, on the page"] if len(details) > _LISTED else []),
        ]


def prepare(source: Path, target: Path, benchmark: str | None = None, *, append: bool = False) -> PrepareSummary:
    """Turn a file of daily bars, or a folder of them, into the parquet `target`, replaced in one step.

    Files are CSV or parquet, with tickers in a column, one per file, or side by side (`data/raw/layout.py`). Columns
    are recognised by name; a CSV file without a header has date, open, high, low, close and perhaps volume in this
    order. Without a ticker column the file's name is the ticker. Prices are adjusted (`data/raw/adjustment.py`), and
    volume inversely. Of several rows for one date the last is kept. Rows without a date or with a price that is
    missing, infinite, not positive or five times another one of its bar are dropped. A `benchmark`, a ticker of the
    data, goes to TARGET.benchmark.csv (`date, close`) instead. With `append` the bars of an earlier `target` are kept,
    and those of the files follow each ticker's last one. Raises `DataError`, and writes nothing, if nothing usable is
    found, the benchmark is missing, a bar of the earlier file would change, or a file cannot be written.
    """
    summary = PrepareSummary(target)
    old = read_prepared(target, benchmark) if append else None
    parts, events = _read_files(source, target, summary)
    read = pd.concat(parts, ignore_index=True)
    spelled = _spellings(read["ticker"].unique(), () if old is None else old["ticker"].unique(), summary)
    rows = _merged(pd.concat([old, read], ignore_index=True), spelled, summary.dropped)
    names = rows["ticker"].cat.categories
    codes = names.get_indexer(events["ticker"].map(spelled))
    events = events.assign(ticker=codes)[codes >= 0].drop_duplicates(["ticker", "day"], keep="last")
    if len(events):
        rows, adjustments = adjust_for_events(rows, events)
        summary.notes += adjustments
    if benchmark is not None and (benchmark not in names or len(names) == 1):
        raise DataError(
            f"expected --benchmark to be one of several tickers of the data, got {benchmark!r}"
            f"{hint(benchmark, names)}; check its name, and add the stocks to trade"
        )
    is_index = rows["ticker"].isin([benchmark])
    rows.loc[is_index, VALUES] = rows.loc[is_index, ["close"] * 4].assign(volume=np.nan).to_numpy()
    if old is not None:
        rows, notes = with_old_bars(old, rows, target)
        summary.notes += notes
        summary.appended = len(rows) - len(old)
    stocks = rows[~is_index].assign(ticker=lambda own: own["ticker"].cat.remove_unused_categories())
    names = stocks["ticker"].cat.categories
    summary.rows_kept, summary.tickers = len(stocks), len(names)
    summary.first_date, summary.last_date = date_of(stocks["day"].min()), date_of(stocks["day"].max())
    summary.dropped = +summary.dropped  # without reasons that apply to no row
    summary.notes += [
        f"{name} looks like an index: --benchmark '{name}' takes it out of the tickers"
        for name in names
        if name.startswith("^")
    ]
    summary.survey = survey_of(stocks)
    _write(stocks, ["ticker", *VALUES], target)
    if benchmark is not None:
        summary.benchmark = benchmark_file(target)
        _write(rows[is_index], ["close"], summary.benchmark)
    return summary


def _read_files(source: Path, target: Path, summary: PrepareSummary) -> tuple[list[pd.DataFrame], pd.DataFrame]:
    """Return the rows of each usable file, and the events of all that are still to be applied."""
    parts, events, is_scaled = [], [], False
    for path in progress(_found(source, target), "read", "file"):
        try:
            rows, has_closes_only = read_file(path, _ticker_of(path), summary.dropped, summary.notes)
            own = rows.reindex(columns=["ticker", "day", *EVENTS])
            has_event = (own["split"] > 0) & (own["split"] != 1) | (own["dividend"] > 0)
            if "adjusted" in rows:
                rows, has_event, is_scaled = scale_to_adjusted(rows), has_event & False, True
            parts.append(_usable(rows.drop(columns=EVENTS, errors="ignore"), summary.dropped))
        except (UnusableFileError, OSError) as reason:
            summary.skipped.append((str(path.relative_to(source)) if source.is_dir() else path.name, str(reason)))
            continue
        events.append(own[has_event & (own["day"] != NO_DAY)])
        summary.closes_only += has_closes_only
    if not parts:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in summary.skipped[:3])
        raise DataError(f"expected files with daily bars in {source}, got none that can be used ({reasons})")
    summary.files_read = len(parts)
    if is_scaled:
        summary.notes.append("prices are scaled to the adjusted close where there is one, volume the other way")
    if summary.closes_only:
        summary.notes.append(
            f"{summary.closes_only} files have closes only: orders fill at closes, a sale target is reached at a close "
            "only, and results are not those of real fills"
        )
    return parts, pd.concat(events, ignore_index=True)


def _found(source: Path, target: Path) -> list[Path]:
    """Return the files to read, without those written by an earlier call."""
    written = {target.resolve(), benchmark_file(target).resolve()}
    if not source.exists() or source.resolve() in written:
        raise DataError(
            f"expected a CSV or parquet file, or a folder, other than the file to write, got {source}, which "
            f"{'does not exist' if not source.exists() else 'is that file'}"
        )
    if not source.is_dir():
        return [source]
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not (files := [path for path in files if path.resolve() not in written]):
        raise DataError(f"expected files that end in {', '.join(SUFFIXES)} in the folder {source}, got none")
    return files


def _ticker_of(path: Path) -> str:
    """Return the ticker that a file's name tells; Stooq's ^spx_d, aapl_us_d and aapl.us are ^SPX and AAPL."""
    named = _FILE.fullmatch(path.stem)
    *stooq, plain = named.groups() if named else (path.stem,)
    return plain.strip() if plain else next(filter(None, stooq)).upper()


def _usable(rows: pd.DataFrame, dropped: Counter[str]) -> pd.DataFrame:
    """Return the rows of a file that the loader can use; the others are counted by their first fault."""
    with np.errstate(over="ignore"):  # as in the loader: beyond float32 is infinite, or zero
        prices = rows[PRICES].to_numpy().astype(np.float32).T
    faults = {
        "date not understood": rows["day"] == NO_DAY,
        "date before 1900": rows["day"] < EARLIEST,
        "date after tomorrow": rows["day"] > latest_day(),
        "no ticker": rows["ticker"] == "",
        f"ticker {BAD_TICKER}": rows["ticker"].isin([*filter(is_bad_ticker, rows["ticker"].unique())]),
        "price missing or not a number": np.isnan(prices).any(axis=0),
        "price infinite or not positive": ~((prices >= SMALLEST_PRICE) & (prices < np.inf)).all(axis=0),
        f"price {LARGEST_RATIO:g} times another one of its bar": has_wrong_digit(prices),
    }
    first = np.select(list(faults.values()), range(len(faults)), default=len(faults))
    dropped.update(dict(zip(faults, np.bincount(first).tolist(), strict=False)))
    rows = rows[first == len(faults)]
    if rows.empty:
        raise UnusableFileError("no row with a date and four positive prices that go together")
    if 3 * len(rows[["ticker", "day"]].drop_duplicates()) < len(rows):
        raise UnusableFileError("many rows for one date: expected daily bars, or a column of tickers")
    return rows


def _spellings(names: Iterable[str], earlier: Iterable[str], summary: PrepareSummary) -> dict[str, str]:
    """Return the ticker by each name in the files and in an earlier file; names that differ in case only are one.

    Stooq's `.US` is left out if all stocks of the files have it.
    """
    plain = {name: name for name in names}
    stocks = [name for name in plain if not name.startswith("^")]
    if stocks and all(map(_STOOQ_TICKER.fullmatch, stocks)):
        summary.notes.append(f"tickers like {stocks[0]} written without .US")
        plain = {name: name.removesuffix(".US") for name in plain}
    # That of the earlier file counts, else the one with most capitals.
    spelled = {name.casefold(): name for name in [*sorted(plain.values(), reverse=True), *earlier]}
    twins = sorted({(name, one) for name in plain.values() if name != (one := spelled[name.casefold()])})
    summary.notes += [f"{name} and {one} are one ticker, {one}" for name, one in twins]
    return {name: spelled[short.casefold()] for name, short in [*plain.items(), *((one, one) for one in earlier)]}


def _merged(rows: pd.DataFrame, spelled: dict[str, str], dropped: Counter[str]) -> pd.DataFrame:
    """Return rows of all files sorted by ticker, as a category, and day, the last of each kept."""
    rows["ticker"] = rows["ticker"].map(spelled).astype("category")
    rows = rows.sort_values(["ticker", "day"], kind="stable")  # rows of one date stay in the order read
    is_repeated = rows.duplicated(["ticker", "day"], keep="last")
    dropped["duplicate date, the last row was kept"] = int(is_repeated.sum())
    return rows[~is_repeated].reset_index(drop=True)


def _write(rows: pd.DataFrame, columns: Sequence[str], target: Path) -> None:
    """Write dates and columns as CSV or parquet, in one step: readers never see half a file."""
    days = pa.array(rows["day"].to_numpy()).cast(pa.date32())
    table = pa.table({"date": days, **{name: pa.array(rows[name]) for name in columns}})
    try:
        make_directory(target.parent)
        with new_file(target) as file:
            if "ticker" in columns:
                pq.write_table(table, file, compression="zstd", write_page_checksum=True)
            else:
                pa_csv.write_csv(table, file)
    except OSError as error:
        raise DataError(f"expected to write {target}, got '{error}'; name a file in a folder you may write") from error
