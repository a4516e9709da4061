"""Vendors' files of daily bars, turned into one parquet file for the loader."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from data.bars import (
    BAD_TICKER,
    EARLIEST,
    LARGEST_RATIO,
    SMALLEST_PRICE,
    has_price_outlier,
    is_bad_ticker,
    latest_day,
    misread_weekdays,
    spacing,
)
from data.events import events_file, note_events
from data.prepare.adjustment import (
    adjust_for_events,
    checked_events,
    one_a_day,
    require_adjusted,
    require_no_factors,
    scale_to_adjusted,
    with_factors,
)
from data.prepare.append import benchmark_file, read_prepared, with_new_events, with_old_bars
from data.prepare.files import NO_BAR, NO_TABLE, NOT_READ, Table, found_files, read_table, shown, ticker_of
from data.prepare.join import with_joined
from data.prepare.layout import EVENTS, PRICES, STANDARD, VALUES, UnclearFileError, UnusableFileError
from data.prepare.rows import SAME, flatten, require_one_bar_a_day, rows_of, settle
from data.prepare.survey import PrepareSummary, survey_of
from data.prepare.text import NO_DAY, date_of
from utils.arrays import Float64Array, Int32Array
from utils.config.prepare import Choices
from utils.config.settings import hint
from utils.errors import ConfigError, DataError
from utils.progress import progress
from utils.runs.durable import make_directory, new_file
from utils.tables import many

_STALE = 0.02
"""Share of opens that repeat the close before, above which that is told."""
_FEW_BARS = 5
"""Bars of a ticker up to which their spacing may be chance."""
_SCALED = "prices are scaled to the adjusted close where there is one, volume the other way"
_NO_PRICE = "no price"
_REPEATED, _OTHER = "duplicate date with the same prices", "duplicate date, the last row was kept"
_IDLE = "no trade: volume 0 at a single price"
_NO_LOSS = frozenset({NO_BAR, _NO_PRICE, _REPEATED, _IDLE, "line before the first bar"})
"""Reasons for dropping rows by which nothing is lost: they were no bars, or another row has them."""
_STOOQ_TICKER = re.compile(r"([A-Z0-9_-]+)\.US")


def prepare(
    source: Path | str,
    target: Path | str,
    benchmark: str | None = None,
    *,
    append: bool = False,
    choices: Choices | None = None,
) -> PrepareSummary:
    """Turn a file of daily bars, or a folder of them, into the parquet `target`, replaced in one step.

    Tickers are in a column, one per file or folder, or side by side (`data/prepare/layout.py`). Prices are adjusted
    (`data/prepare/adjustment.py`), and volume inversely. Of several rows for one date the last is kept. Rows without a
    date or with a price that is missing, infinite, not positive or five times another one of its bar are dropped, and
    so are bars on which nothing was traded. A `benchmark`, a ticker of the data, goes to TARGET.benchmark.csv (`date,
    close`) instead. With `append` the bars of an earlier `target` are kept, and those of the files follow each ticker's
    last.

    Raises `DataError`, and writes nothing, if nothing usable is found, too many rows or files are left out, neither the
    files nor `choices` settle how they are to be read, bars are not daily, the benchmark is missing, a bar of the
    earlier file would change, or a file cannot be written.
    """
    source, target = Path(source), Path(target)
    summary, choices = PrepareSummary(target), choices or Choices()
    old = read_prepared(target, benchmark) if append else None
    read, events = _read_files(source, target, summary, choices, None if old is None else np.unique(old["day"]))
    spelled = _spellings(read["ticker"].unique(), () if old is None else old["ticker"].unique(), summary)
    frames = [pd.DataFrame() if old is None else old[STANDARD], read.assign(is_new=True)]
    rows = _merged(pd.concat(frames, ignore_index=True), spelled, summary.dropped, choices.max_bad_row_share)
    scale = rows.pop("scale").fillna(1.0).to_numpy() if "scale" in rows else np.ones(len(rows))
    _require_few_dropped(summary, len(read), choices.max_bad_row_share)
    names = rows["ticker"].cat.categories
    events = one_a_day(events.assign(ticker=events["ticker"].map(spelled)))
    first_days = read.assign(ticker=read["ticker"].map(spelled)).groupby("ticker")["day"].min()
    rows, events = _adjusted(rows, events, first_days, scale, old, choices, summary)
    if benchmark is not None and (benchmark not in names or len(names) == 1):
        raise DataError(
            f"expected --benchmark to be one of several tickers of the data, got {benchmark!r}"
            f"{hint(benchmark, names)}; check its name, and add the stocks to trade"
        )
    is_index = rows["ticker"].isin([benchmark])
    flatten(rows, is_index, volume=np.nan)
    if old is not None:
        rows, notes = with_old_bars(old, rows, target)
        summary.notes, summary.readjusted = [*summary.notes, *notes], len(notes)
        summary.appended = len(rows) - len(old)
    stocks = rows[~is_index].assign(ticker=lambda rows: rows["ticker"].cat.remove_unused_categories())
    names = stocks["ticker"].cat.categories
    summary.rows_kept, summary.tickers = len(stocks), len(names)
    summary.first_date, summary.last_date = date_of(stocks["day"].min()), date_of(stocks["day"].max())
    summary.dropped = +summary.dropped  # without reasons that apply to no row
    _require_days(stocks)
    summary.survey = survey_of(stocks)
    further = sorted({*stocks} - {*STANDARD})
    summary.notes += _notes(stocks, further)
    if len(events := events[events["ticker"].isin(names)]):
        noted = many(note_events(target, events, added=append), "day")
        summary.notes.append(f"splits and dividends of {noted} are in {events_file(target).name}")
    _write(stocks, ["ticker", *VALUES, *further], target)
    if benchmark is not None:
        summary.benchmark = benchmark_file(target)
        _write(rows[is_index], ["close"], summary.benchmark)
    return summary


def _notes(stocks: pd.DataFrame, further: Sequence[str]) -> list[str]:
    """Return what a person should know of bars: indices among them, stale opens, coverage of further columns."""
    indices = [name for name in stocks["ticker"].cat.categories if name.startswith("^")]
    notes = [f"{one} looks like an index: --benchmark '{one}' takes it out of the tickers" for one in indices]
    before = stocks.groupby("ticker", observed=True)["close"].shift()
    if (stale := float((stocks["open"] == before).mean())) > _STALE:
        notes.append(
            f"{stale:.0%} of opens equal the close before exactly: an order is then filled at the price that decided it"
        )
    if further:
        shares = (f"{name} {share:.1%}" for name, share in stocks[[*further]].notna().mean().items())
        notes.append(f"further columns, with their coverage: {', '.join(shares)}")
    return notes


def _adjusted(
    rows: pd.DataFrame,
    events: pd.DataFrame,
    first_days: pd.Series,
    scale: Float64Array,
    old: pd.DataFrame | None,
    choices: Choices,
    summary: PrepareSummary,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows adjusted by the factors and events that prices bear out, with joined columns, and these events.

    Args:
        first_days: first day of each ticker in the files.
        scale: (rows,) by which prices were multiplied to their adjusted close.
    """
    names = rows["ticker"].cat.categories
    last = pd.Series() if old is None else old.groupby("ticker")["day"].max()
    first, last = (rows["ticker"].map(days).to_numpy(np.float64) for days in (first_days, last))
    joint = (rows["day"] == first) * (1 + (first > last))
    mended, mends = checked_events(rows, events[events["is_due"]], joint.to_numpy(np.int64))
    own = {*choices.keep, *(() if old is None else old)}
    if not choices.keep:
        require_no_factors(rows, own)
    rows, notes, adjusted = with_factors(rows, own)
    own |= {*STANDARD} if choices.keep else {*rows}
    rows = with_joined(rows, choices)
    is_old = rows["day"] < np.fmin(first, last + 1)  # those of the earlier file, which are adjusted
    require_no_factors(rows, own, is_old)
    rows, of_joined, others = with_factors(rows, own, is_old)
    summary.notes += [*mends, *notes, *of_joined]
    events = pd.concat([mended, events[~events["is_due"]]])
    live = events[~events["ticker"].isin(adjusted | others)]
    if old is not None:
        rows, live = with_new_events(old, rows, live, first_days, scale, summary.target)
    due = live.assign(ticker=names.get_indexer(live["ticker"]))[live["is_due"] & live["ticker"].isin(names)]
    rows, adjustments = adjust_for_events(rows, due) if len(due) else (rows, [])
    summary.notes += adjustments
    return rows, events


def _read_files(
    source: Path, target: Path, summary: PrepareSummary, choices: Choices, known: Int32Array | None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of all usable files, and their events, `is_due` where they are still to be applied."""
    titles, read = set[str](), dict[Path, tuple[pd.DataFrame, pd.DataFrame]]()
    written = (target, benchmark_file(target), events_file(target), target.with_suffix(".html"))
    files = found_files(source, written, summary.skipped)
    for path in progress(files, "Reading files", "file"):
        try:
            table = read_table(path, choices, summary.dropped)
            titles.update(title.strip().casefold() for title in table.layout.titles)
            settle(table, choices)
            read[path] = _bars(table, source, summary, choices)
            summary.files_read += 1
        except UnusableFileError as reason:
            summary.skipped.append((shown(path, source), str(reason)))
        except UnclearFileError as reason:
            raise DataError(
                f"expected files of daily bars whose meaning is clear, got {shown(path, source)}: {reason}"
            ) from None
    _require_files(source, summary, len(files), choices.max_bad_row_share)
    for title in () if choices.join else (title for title in choices.roles if title != "*" and not title.isdecimal()):
        if title.casefold() not in titles:
            raise ConfigError(f"--columns: expected a title, got {title!r}{hint(title, titles)}, which no file has")
    if choices.dates == "auto":
        _require_weekdays({path: np.unique(rows["day"]) for path, (rows, _) in read.items()}, known, source)
    if summary.closes_only:
        summary.notes.append(
            f"{summary.closes_only} files have closes only: orders fill at closes, a sale target is reached at a close "
            "only, and results are not those of real fills"
        )
    rows, events = (pd.concat(parts, ignore_index=True) for parts in zip(*read.values(), strict=True))
    return rows, events


def _require_files(source: Path, summary: PrepareSummary, files: int, max_share: float) -> None:
    """Raise `DataError` where no file was read, or more than this share was left out."""
    lost = [
        f"{name}: {reason}"
        for name, reason in summary.skipped
        if reason != NOT_READ and not (reason.startswith(NO_TABLE) and name.endswith(".txt"))  # a note beside the files
    ]
    if not summary.files_read:
        raise DataError(
            f"expected files with daily bars in {source}, got none that can be used "
            f"({'; '.join(lost[:3] or map(': '.join, summary.skipped[:3]))})"
        )
    _require_few("files", len(lost), files, lost, max_share)


def _bars(table: Table, source: Path, summary: PrepareSummary, choices: Choices) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a file's usable rows, one a day of each ticker, and its events, `is_due` if still to be applied."""
    rows = rows_of(table, choices)
    if not table.layout.panel and "ticker" not in table.layout.fields:
        rows["ticker"] = ticker_of(table.path, source)
    events = rows.reindex(columns=["ticker", "day", *EVENTS, "pay"]).assign(is_due="adjusted" not in rows)
    events[EVENTS] = events[EVENTS].where(lambda sizes: (sizes > 0) & (sizes < np.inf))
    events["split"] = events["split"].mask(events["split"] == 1)
    events = events[events["day"].between(EARLIEST, latest_day())].dropna(subset=EVENTS, how="all")
    is_empty = rows[PRICES].isna().all(axis=1)
    summary.dropped[_NO_PRICE] += 0 if table.layout.panel else int(is_empty.sum())
    rows = rows[~is_empty]
    if rows.empty:
        raise UnusableFileError("no row has a price")
    if "adjusted" in rows:
        raw = rows[rows["close"] > 0].sort_values(["ticker", "day"], kind="stable").astype({"ticker": "category"})
        if not choices.keep:
            require_no_factors(raw, ["adjusted", "pay", *EVENTS])
        events, notes = checked_events(raw, events.reset_index(drop=True))
        if len(events):
            require_adjusted(scale_to_adjusted(raw), events)
        rows = scale_to_adjusted(rows)
        summary.notes += [note for note in (_SCALED, *notes) if note not in summary.notes]
    rows = _usable(rows.drop(columns=[*EVENTS, "pay"], errors="ignore"), table, summary)
    require_one_bar_a_day(rows, table, choices)
    if apart := spacing(np.unique(rows["day"])):
        raise UnclearFileError(f"{apart} bars; give daily ones")
    summary.closes_only += table.layout.has_closes_only
    return rows, events


def _require_weekdays(files: dict[Path, Int32Array], known: Int32Array | None, source: Path) -> None:
    """Raise `DataError` where bars on weekends, on which others and `known` days are not, prove misread dates."""
    misread = {path for path, days in files.items() if misread_weekdays(days)}
    right = [days for path, days in files.items() if path not in misread] + ([] if known is None else [known])
    weekdays = (np.concatenate([*right, np.empty(0, np.int32)]).astype(np.int64) + 3) % 7
    regular = [weekday for weekday in (5, 6) if (weekdays == weekday).mean() > 0.08] if right else []
    for path in (path for path in misread if misread_weekdays(files[path], regular)):
        first = next(day for day in files[path].tolist() if (day + 3) % 7 > 4)
        raise DataError(
            f"expected sessions, got bars on weekends in {shown(path, source)}, as on {date_of(first)} (dates in wrong "
            "order, or of another time zone?); mend them, or say --dates ymd, mdy or dmy, which takes them as they are"
        )


def _usable(rows: pd.DataFrame, table: Table, summary: PrepareSummary) -> pd.DataFrame:
    """Return the rows of a file that the loader can use; the others are counted by their first fault."""
    with np.errstate(over="ignore"):  # as in the loader: beyond float32 is infinite, or zero
        prices = rows[PRICES].to_numpy().astype(np.float32).T
    faults = {
        "date not understood": rows["day"] == NO_DAY,
        "date before 1900": rows["day"] < EARLIEST,
        "date that stands for none": rows["day"].isin([0, EARLIEST]),  # zero of Unix and of Excel, always a holiday
        "date after tomorrow": rows["day"] > latest_day(),
        "no ticker": rows["ticker"] == "",
        f"ticker {BAD_TICKER}": rows["ticker"].isin([*filter(is_bad_ticker, rows["ticker"].unique())]),
        "price missing or not a number": np.isnan(prices).any(axis=0),
        "volume infinite or negative": (rows["volume"] < 0) | np.isinf(rows["volume"]),
        "price infinite or not positive": ~((prices >= SMALLEST_PRICE) & (prices < np.inf)).all(axis=0),
        f"price {LARGEST_RATIO:g} times another one of its bar": has_price_outlier(prices),
    }
    first = np.select(list(faults.values()), range(len(faults)), default=len(faults))
    summary.dropped.update(dict(zip(faults, np.bincount(first).tolist(), strict=False)))
    roles = [role for role in ("date", *PRICES) if role in table.layout.fields]
    for reason, place in ((reason, int(np.argmax(is_such))) for reason, is_such in faults.items() if is_such.any()):
        texts = [rows["ticker"].iloc[place], *(table.text(role).split("\n")[rows.index[place]] for role in roles)]
        summary.examples.setdefault(reason, f", as {' '.join(texts)[:60]!r}")
    rows = rows[first == len(faults)]
    if rows.empty:
        most = max(faults, key=lambda reason: faults[reason].sum())
        raise UnusableFileError(
            f"all rows are left out: {most}{summary.examples[most]}; write dates as 2020-12-31, prices as 1234.5"
        )
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


def _merged(rows: pd.DataFrame, spelled: dict[str, str], dropped: Counter[str], max_share: float) -> pd.DataFrame:
    """Return rows of all files sorted by ticker, as a category, and day, the last of each kept.

    Raises `DataError` where prices of one ticker and day differ on more than this share of its rows.
    """
    rows["ticker"] = rows["ticker"].map(spelled).astype("category")
    rows = rows.sort_values(["ticker", "day"], kind="stable")  # rows of one date stay in the order read
    is_new = rows.pop("is_new").notna()
    traded = rows["volume"] > 0
    is_flat = (rows[PRICES].max(axis=1) == rows[PRICES].min(axis=1)) & (rows["volume"] == 0)
    is_idle = is_new & is_flat & traded.groupby(rows["ticker"], observed=True).transform("any")
    rows, is_new = rows[~is_idle], is_new[~is_idle]
    is_repeated = rows.duplicated(["ticker", "day"], keep="last")
    later = rows[PRICES].shift(-1)
    is_other = is_repeated & is_new & ~np.isclose(rows[PRICES], later, rtol=SAME).all(axis=1)
    counts = {_IDLE: is_idle, _REPEATED: is_repeated & ~is_other, _OTHER: is_other}
    dropped.update({reason: int(is_such.sum()) for reason, is_such in counts.items()})
    shares = is_other[is_new].groupby(rows["ticker"][is_new], observed=True).mean()
    if len(shares) and shares.max() > max_share:
        first = rows[is_other & (rows["ticker"] == shares.idxmax())].iloc[0]
        close = later.loc[first.name, "close"]
        raise DataError(
            f"expected one series of {first['ticker']}, got closes {first['close']:g} and {close:g} on "
            f"{date_of(first['day'])} in two files or rows; rename or remove one of them, or raise --max-bad-row-share"
        )
    return rows[~is_repeated].reset_index(drop=True)


def _require_days(stocks: pd.DataFrame) -> None:
    """Raise `DataError` where the bars of a ticker are weeks or months apart."""
    for ticker, bar_days in stocks.groupby("ticker", observed=True)["day"]:
        if len(bar_days) > _FEW_BARS and (apart := spacing(bar_days.to_numpy())):
            raise DataError(f"expected daily bars, got {apart} ones of {ticker}; give daily ones, or leave it out")


def _require_few_dropped(summary: PrepareSummary, kept: int, max_share: float) -> None:
    """Raise `DataError` where more than this share of rows was lost; `kept` counts those replaced by later ones."""
    lost = Counter({reason: count for reason, count in summary.dropped.items() if count and reason not in _NO_LOSS})
    reasons = [f"{count} {reason}{summary.examples.get(reason, '')}" for reason, count in lost.most_common()]
    _require_few("rows", lost.total(), kept - lost[_OTHER] + lost.total(), reasons, max_share)


def _require_few(what: str, lost: int, total: int, reasons: Sequence[str], max_share: float) -> None:
    """Raise `DataError` where more than this share of files or rows was left out."""
    if lost > max_share * total:
        raise DataError(
            f"expected at most {max_share:.2%} of the {what} to be left out, got {lost} of {total} "
            f"({'; '.join(reasons[:3])}); mend them, or allow it: --max-bad-row-share"
        )


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
