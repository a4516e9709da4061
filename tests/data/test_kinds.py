"""Kinds of files that are easily misread: times of other zones, years, months, numbers as tickers, pipes."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.notations import MONTHS
from data.prepare.prepare import prepare
from data.prepare.text import NO_DAY, resolve_days
from tests.data.files import prepared, refused, run, written
from utils.config.prepare import Choices

SESSIONS = pd.bdate_range("2020-01-02", periods=24)
WEEK = pd.DatetimeIndex(["2020-01-07", "2020-01-08", "2020-01-09"])
"""Tuesday to Thursday, of which none tells the zone."""
GULF = pd.DatetimeIndex([day for day in pd.date_range("2020-01-05", periods=36) if day.weekday() not in (4, 5)])


def table(days: list[str], header: str = "date,open,high,low,close") -> str:
    return f"{header}\n" + "".join(f"{day},10,11,9,10\n" for day in days)


def stamps(sessions: pd.DatetimeIndex, zone: str, written_in: str | None, hour: int = 0) -> list[str]:
    """Times of a session's hour at its exchange, as they are in another zone, or in UTC but without the word."""
    local = sessions.tz_localize(zone) + pd.Timedelta(hours=hour)
    return [str(one) for one in (local.tz_convert(written_in) if written_in else local.tz_convert(None))]


@pytest.mark.parametrize(
    ("zone", "written_in", "hour"),
    [
        ("America/Chicago", "America/Denver", 0),
        ("Asia/Tokyo", "UTC", 0),
        ("Asia/Tokyo", "America/Denver", 0),
        ("Asia/Riyadh", "Asia/Riyadh", 0),
        ("Asia/Kolkata", "UTC", 0),
        ("Europe/Berlin", "UTC", 0),
        ("America/New_York", "UTC", 16),
        ("America/New_York", "UTC", 0),
        ("America/New_York", "America/New_York", 20),
        ("America/New_York", None, 16),
    ],
)
def test_weekdays_settle_of_which_session_a_time_is(zone: str, written_in: str, hour: int, tmp_path: Path) -> None:
    _, rows = run(tmp_path, {"A.csv": table(stamps(SESSIONS, zone, written_in, hour))})
    assert pd.DatetimeIndex(rows["date"]).equals(SESSIONS)


@pytest.mark.parametrize(
    ("sessions", "zone", "written_in", "hour"),
    [
        (WEEK, "America/Chicago", "America/Denver", 0),
        (WEEK, "Asia/Tokyo", "UTC", 0),
        (WEEK, "America/New_York", "UTC", 16),
        (SESSIONS, "Asia/Tokyo", None, 0),
        (SESSIONS, "Pacific/Auckland", "UTC", 0),
        (GULF, "Asia/Riyadh", "UTC", 15),
        (GULF, "Asia/Riyadh", None, 15),
        (GULF, "Asia/Riyadh", "Asia/Riyadh", 15),
        (WEEK, "Asia/Tokyo", "America/Denver", 0),
        (pd.date_range("2020-01-02", periods=24), "America/New_York", "UTC", 17),
    ],
)
def test_times_that_may_be_of_two_sessions_are_refused(
    sessions: pd.DatetimeIndex, zone: str, written_in: str | None, hour: int, tmp_path: Path
) -> None:
    """Unless a person says that their days are as they are written."""
    source = {"A.csv": table(texts := stamps(sessions, zone, written_in, hour))}
    with refused("times like '2020-01-0.*of the next one; write dates of sessions, or say --dates ymd"):
        run(tmp_path / "auto", {**source})
    _, rows = run(tmp_path, {**source}, choices=Choices(dates="ymd"))
    assert [str(day) for day in rows["date"]] == [text[:10] for text in texts]


def test_days_without_late_times_do_not_settle_those_with_them(tmp_path: Path) -> None:
    """Midnight in London is late on the day before in summer only."""
    summer, winter = (table(stamps(WEEK + pd.Timedelta(weeks=weeks), "Europe/London", "UTC")) for weeks in (26, 0))
    with refused("times like '2020-07-06 23:00:00"):
        run(tmp_path, {"A.csv": winter, "B.csv": summer})


@pytest.mark.parametrize(("hour", "written_in"), [(0, "Asia/Riyadh"), (10, "Asia/Riyadh"), (13, "UTC")])
def test_a_market_of_the_gulf_keeps_its_days(hour: int, written_in: str, tmp_path: Path) -> None:
    """At times at which it is midnight nowhere further east."""
    _, rows = run(tmp_path, {"A.csv": table(stamps(GULF, "Asia/Riyadh", written_in, hour))})
    assert pd.DatetimeIndex(rows["date"]).equals(GULF)


TAIWAN = "日期,開盤價,最高價,最低價,收盤價"


@pytest.mark.parametrize(
    ("years", "header", "first"),
    [
        ("98/03/{:02}", TAIWAN, "2009-03-02"),
        ("98年03月{:02}日", TAIWAN, "2009-03-02"),
        ("115/03/{:02}", "date,open,high,low,close", "2026-03-02"),
        ("98/03/{:02}", "date,open,high,low,close", "1998-03-02"),
        ("20/03/{:02}", TAIWAN, "2020-03-02"),
        ("2020/03/{:02}", TAIWAN, "2020-03-02"),
    ],
)
def test_years_of_the_republic_of_china(years: str, header: str, first: str, tmp_path: Path) -> None:
    """Of two digits where titles are those of Taiwan, whose exchange opened in its year 51."""
    text = table([years.format(day) for day in (2, 3, 4, 5, 6)], header)
    _, rows = run(tmp_path, {"2330.csv": text})
    assert rows["date"].iloc[0].isoformat() == first
    if "2009" in first and header == TAIWAN:
        _, rows = run(tmp_path / "said", {"2330.csv": text}, choices=Choices(dates="ymd"))
        assert rows["date"].iloc[0].year == 1998


LANGUAGES = MONTHS | {
    "German, long": "Jan. Februar März April Mai Juni Juli August Sept. Okt. Nov. Dez.",
    "Spanish, long": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "Italian": "gen feb mar apr mag giu lug ago set ott nov dic",
    "Portuguese": "jan fev mar abr mai jun jul ago set out nov dez",
    "Dutch": "jan feb mrt apr mei jun jul aug sep okt nov dec",
    "Finnish": "tammi helmi maalis huhti touko kesä heinä elo syys loka marras joulu",
    "English": "January February March April May June July August September October November December",
}


@pytest.mark.parametrize("names", LANGUAGES.values(), ids=LANGUAGES)
def test_months_in_many_languages(names: str) -> None:
    for form in ("{day}. {name} 2021", "{day:02}-{name}-21", "{name} {day}, 2021", "2021-{name}-{day:02}"):
        text = "\n".join(form.format(day=7, name=name) for name in names.split())
        days = resolve_days(text)
        months = [f"2021-{month:02}-07" for month in range(1, 13)]
        assert days.astype("datetime64[D]").astype(str).tolist() == months, form
    assert resolve_days("7. Foo 2021").tolist() == [NO_DAY]


CLOSES = pd.DataFrame(
    np.round(np.exp(np.cumsum(0.02 * np.random.default_rng(0).standard_normal((24, 4)), 0)) * [1, 2, 4, 8] * 1000, 2),
    SESSIONS,
    ["7203", "005930", "600000", "8306"],
)
TWO_ROWS = pd.concat({"Close": CLOSES, "Volume": CLOSES.round()}, axis=1, names=["Price", "Ticker"])
PANELS: dict[str, Callable[[Path], object]] = {
    "no corner": CLOSES.to_csv,
    "one day": CLOSES[:1].to_csv,
    "three": CLOSES.iloc[:, :3].to_csv,
    "two rows": TWO_ROWS.rename_axis("Date").to_csv,
    "ticker first": TWO_ROWS.swaplevel(axis=1).rename_axis("Date").to_csv,
    "joined": CLOSES.add_prefix("Close_").to_csv,
}


@pytest.mark.parametrize("write", PANELS.values(), ids=PANELS)
def test_tickers_side_by_side_may_be_numbers(write: Callable[[Path], object], tmp_path: Path) -> None:
    write(tmp_path / "all.csv")
    said = Choices(columns=("close=*",))
    _, rows = prepared(tmp_path / "all.csv", tmp_path / "made" / "bars.parquet", said)
    closes = rows.pivot(index="date", columns="ticker", values="close")
    assert set(closes) in ({*CLOSES}, {*CLOSES.columns[:3]})
    np.testing.assert_array_equal(closes, CLOSES[[*closes]][: len(closes)])


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "AAPL.csv")
    with refused("a pipe; write what it gives to a file"):
        prepare(tmp_path / "AAPL.csv", tmp_path / "bars.parquet")


def test_sessions_on_a_weekday_that_a_file_has_are_appended(tmp_path: Path) -> None:
    """As those on Sundays of a market of the Gulf; a Saturday in New York takes a person's word."""
    target = tmp_path / "bars.parquet"
    for sessions, new in ((GULF[:-1], GULF[-1:]), (SESSIONS, pd.DatetimeIndex(["2020-05-02"]))):
        prepare(written(tmp_path / "A.csv", table([f"{day:%Y-%m-%d}" for day in sessions])), target)
        source = written(tmp_path / "A.csv", table([f"{day:%Y-%m-%d}" for day in new]))
        if sessions is SESSIONS:
            with refused("bars on weekends in A.csv"):
                prepare(source, target, append=True)
        prepare(source, target, append=True, choices=Choices(dates="ymd" if sessions is SESSIONS else "auto"))
        assert pd.Timestamp(pd.read_parquet(target)["date"].iloc[-1]) == new[-1]
