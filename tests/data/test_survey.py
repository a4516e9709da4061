"""What the survey finds in markets with known faults."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.loader import StockDataLoader
from data.raw.prepare import prepare
from data.raw.survey import BACK, BEYOND, LIKE_SPLIT, UNDONE, Survey, survey_of

DAYS = 40


def flat(ticker: str, days: list[int] | None = None, **changes: dict[int, float]) -> pd.DataFrame:
    """Bars of a stock that wavers a little; `changes` multiply all its prices from a day on."""
    places = np.arange(DAYS) if days is None else np.array(days)
    close = 20 + 0.1 * (places % 2)
    for factors in changes.values():
        for day, factor in factors.items():
            close = np.where(places >= day, close * factor, close)
    calendar = np.busday_offset("2019-12-09", places).astype("datetime64[D]").astype(np.int32)
    bars = {"open": close, "high": close + 1, "low": close - 1, "close": close}
    return pd.DataFrame({"day": calendar, "ticker": ticker, **bars})


def found(*stocks: pd.DataFrame) -> Survey:
    rows = pd.concat(stocks, ignore_index=True).astype({"ticker": "category"})
    return survey_of(rows.sort_values(["ticker", "day"]).reset_index(drop=True))


def day(place: int) -> np.datetime64:
    return np.busday_offset("2019-12-09", place)


def test_a_clean_market_has_no_findings() -> None:
    survey = found(flat("A"), flat("B"))
    assert not (survey.gaps or survey.moves or survey.stale or survey.widened or survey.late or survey.early)
    assert survey.years == [
        {"year": "2019", "sessions": 17, "tickers": 2, "rows": 34, "traded %": 100.0},
        {"year": "2020", "sessions": 23, "tickers": 2, "rows": 46, "traded %": 100.0},
    ]
    assert survey.traded.tolist() == [2] * DAYS
    assert survey.survivor_line.startswith("Survivors only: 2 of 2")


def test_gaps_late_and_early_tickers() -> None:
    holes = [place for place in range(DAYS) if place not in (5, 10, 11, 12)]
    survey = found(flat("A"), flat("B", holes), flat("C", list(range(8, 30))), flat("D", list(range(3, DAYS))))
    assert [(one.ticker, one.first, one.last, one.sessions) for one in survey.gaps] == [
        ("B", day(9), day(13), 3),
        ("B", day(4), day(6), 1),
    ]
    assert [(one.ticker, one.first) for one in survey.late] == [("C", day(8)), ("D", day(3))]
    assert [(one.ticker, one.last) for one in survey.early] == [("C", day(29))]
    assert survey.survivor_line == "Survivors: 3 of 4 tickers trade on the last day"
    assert survey.years[0]["traded %"] == pytest.approx(100 * (17 + 13 + 9 + 14) / (4 * 17))


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({21: 0.5}, [(21, (LIKE_SPLIT,), "2:1")]),
        ({20: 1 / 3}, [(20, (BEYOND, LIKE_SPLIT), "3:1")]),
        ({20: 2.0}, [(20, (BEYOND, LIKE_SPLIT), "1:2")]),
        ({20: 2 / 3}, [(20, (LIKE_SPLIT,), "3:2")]),
        ({20: 10.0}, [(20, (BEYOND, LIKE_SPLIT), "1:10")]),
        ({20: 0.1, 21: 10.0}, [(20, (BEYOND, UNDONE), ""), (21, (BEYOND, BACK), "")]),
        ({20: 1.3, 21: 1 / 1.3}, [(20, (UNDONE,), "")]),
        ({20: 1.7}, [(20, (BEYOND,), "")]),
        ({20: 1.4}, []),
        ({20: 0.8}, []),
    ],
)
def test_suspicious_moves(factors: dict[int, float], expected: list[tuple[int, tuple[str, ...], str]]) -> None:
    survey = found(flat("A"), flat("B", factors=factors), flat("C", factors={0: 50.0}))
    moves = sorted(survey.moves, key=lambda move: move.date)
    assert [(move.ticker, move.date, move.marks, move.split) for move in moves] == [
        ("B", day(place), marks, split) for place, marks, split in expected
    ]


def test_a_fall_during_the_day_is_no_split() -> None:
    bars = flat("A", factors={20: 2 / 3})
    assert [move.split for move in found(bars).moves] == ["3:2"]
    bars.loc[20, "open"] = 20.0
    assert found(bars).moves == []


def test_stale_prices_and_widened_rows() -> None:
    bars = flat("A")
    bars.loc[10:14, ["open", "high", "low", "close"]] = 20.0  # five bars, of which four repeat the one before
    bars.loc[20:25, ["open", "high", "low", "close"]] = 20.0
    bars.loc[30, "high"] = bars.loc[30, "close"] / 1.1
    bars.loc[31, "low"] = bars.loc[31, "open"] * 1.5
    survey = found(bars)
    assert [(one.first, one.last, one.sessions) for one in survey.stale] == [
        (day(20), day(25), 6),
        (day(10), day(14), 5),
    ]
    assert [(one.date, round(one.percent, 6)) for one in survey.widened] == [(day(31), 50.0), (day(30), 10.0)]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=25)
def test_the_survey_says_what_the_loader_does(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Bars with digits in wrong places, of one price or of all: those that nobody trades are out of both."""
    folder = tmp_path_factory.mktemp("survey")
    rng = np.random.default_rng(seed)
    rows = pd.concat([flat("A"), flat("B")], ignore_index=True)
    prices = ["open", "high", "low", "close"]
    rows.loc[rng.random(len(rows)) < 0.1, prices] *= 10
    for price in prices:
        rows.loc[rng.random(len(rows)) < 0.1, price] *= rng.choice([0.1, 0.5, 2.0, 6.0])
    rows.insert(0, "date", rows.pop("day").to_numpy().astype("datetime64[D]"))
    rows.to_csv(folder / "bars.csv", index=False)
    summary = prepare(folder / "bars.csv", folder / "bars.parquet")
    spread = [max(bar) / min(bar) for bar in rows[prices].itertuples(index=False)]
    assert summary.dropped.total() == sum(ratio > 5 for ratio in spread)
    loader, survey = StockDataLoader(folder / "bars.parquet"), summary.survey
    loader.load_and_prepare()
    assert loader.quality.masked == 0
    assert loader.quality.widened == len(survey.widened)
    assert loader.quality.large_moves == sum(BEYOND in move.marks for move in survey.moves)
    assert loader.quality.gaps == sum(gap.sessions for gap in survey.gaps)
