"""What the survey finds in markets with known faults."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from data.prepare.survey import Survey, survey_of

DAYS = 40


def flat(ticker: str, days: Sequence[int] = range(DAYS), factors: dict[int, float] | None = None) -> pd.DataFrame:
    """Bars of a stock that wavers a little; `factors` multiply all its prices from a day on."""
    places = np.array(days)
    close = 20 + 0.1 * (places % 2)
    for first, factor in (factors or {}).items():
        close[places >= first] *= factor
    calendar = np.busday_offset("2019-12-09", places).astype("datetime64[D]").astype(np.int32)
    bars = {"open": close, "high": close + 1, "low": close - 1, "close": close}
    return pd.DataFrame({"day": calendar, "ticker": ticker, **bars})


def found(*stocks: pd.DataFrame) -> Survey:
    rows = pd.concat(stocks, ignore_index=True).astype({"ticker": "category"})
    return survey_of(rows.sort_values(["ticker", "day"]).reset_index(drop=True))


def day(place: int) -> np.datetime64:
    return np.busday_offset("2019-12-09", place)


def test_gaps_and_tickers_that_end_early() -> None:
    holes = [place for place in range(DAYS) if place not in (5, 10, 11, 12)]
    survey = found(flat("A"), flat("B", holes), flat("C", range(8, 30)), flat("D", range(3, DAYS)))
    assert [(one.ticker, one.first, one.last, one.sessions) for one in survey.gaps] == [
        ("B", day(9), day(13), 3),
        ("B", day(4), day(6), 1),
    ]
    assert [(one.ticker, one.first, one.last, one.sessions) for one in survey.early] == [("C", day(8), day(29), 22)]
    assert survey.survivor_line == "Survivors: 3 of 4 tickers trade on the last day"
    assert survey.years[0]["traded %"] == pytest.approx(100 * (17 + 13 + 9 + 14) / (4 * 17))


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        *(({day: factor}, [(day, False)]) for day, factor in ((21, 0.5), (20, 2 / 3), (20, 10.0))),
        ({20: 0.1, 21: 10.0}, [(20, True), (21, False)]),
        ({20: 1.3, 21: 1 / 1.3}, [(20, True)]),
        *(({20: factor}, []) for factor in (0.8, 1.4)),
    ],
)
def test_suspicious_moves(factors: dict[int, float], expected: list[tuple[int, bool]]) -> None:
    survey = found(flat("A"), flat("B", factors=factors), flat("C", factors={0: 50.0}))
    moves = sorted(survey.moves, key=lambda move: move.date)
    assert [(move.ticker, move.date, move.undone) for move in moves] == [
        ("B", day(place), undone) for place, undone in expected
    ]
