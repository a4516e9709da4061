"""Adjustment factors: prices tell them from a user's columns, and which way they work; none becomes a feature."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data.prepare.prepare import prepare
from tests.data.files import PRICES, refused, run, written
from tests.data.test_adjustment import market
from utils.config.prepare import Choices

DAYS, SPLIT = 60, {"A": 30, "B": 40}
BEFORE = {name: np.arange(DAYS) < day for name, day in SPLIT.items()}
SCORE = np.random.default_rng(0)
COLUMNS = {
    "divisor": {name: np.where(is_before, 2.0, 1.0) for name, is_before in BEFORE.items()},
    "divisor of Qlib": {name: np.where(is_before, 3.4, 1.7) for name, is_before in BEFORE.items()},
    "multiplier": {name: np.where(is_before, 0.5, 1.0) for name, is_before in BEFORE.items()},
    "multiplier from the first bar": {name: np.where(is_before, 1.0, 2.0) for name, is_before in BEFORE.items()},
    "of a day": {name: np.where(np.arange(DAYS) == day, 0.5, 1.0) for name, day in SPLIT.items()},
    "of a day, inverse": {name: np.where(np.arange(DAYS) == day, 2.0, 1.0) for name, day in SPLIT.items()},
    "of a day, mostly empty": {name: np.where(np.arange(DAYS) == day, 0.5, np.nan) for name, day in SPLIT.items()},
    "cumulative, mostly empty": {
        name: np.where(np.arange(DAYS) == day, 4.0, np.where(np.arange(DAYS) == 0, 2.0, np.nan))
        for name, day in SPLIT.items()
    },
    "ones": {name: np.ones(DAYS) for name in SPLIT},
    "constant": {name: np.full(DAYS, 2.0) for name in SPLIT},
    "score": {name: SCORE.normal(1, 0.02, DAYS).round(3) for name in SPLIT},
    "score of weeks": {name: SCORE.normal(1, 0.3, 5).round(2).repeat(12) for name in SPLIT},
    "a day late": {name: np.where(np.arange(DAYS) < day + 1, 2.0, 1.0) for name, day in SPLIT.items()},
    "negative": {name: np.where(is_before, -2.0, -1.0) for name, is_before in BEFORE.items()},
}
FACTORS = [*COLUMNS][:8]


def files(kind: str, title: str, *, is_raw: bool = True) -> dict[str, pd.DataFrame]:
    """Bars of two tickers, raw ones of twice the price before their split, with a column."""
    bars = {name: market(seed, days=DAYS, dividends=0, splits=0) for seed, name in enumerate(SPLIT)}
    for name, own in bars.items():
        own[[price.title() for price in PRICES]] *= np.where(BEFORE[name] & is_raw, 2.0, 1.0)[:, None]
        own[title] = COLUMNS[kind][name]
    return {name: own.drop(columns=["Dividends", "Stock Splits"]) for name, own in bars.items()}


def texts(frames: dict[str, pd.DataFrame], *, is_long: bool = False) -> dict[str, str | bytes]:
    if is_long:
        return {"all.csv": pd.concat(own.assign(Ticker=name) for name, own in frames.items()).to_csv(index=False)}
    return {f"{name}.csv": own.to_csv(index=False) for name, own in frames.items()}


TITLES = ["CFACPR", "factor", "AdjustmentFactor", "Cum_Adj_Fac"]
CASES = [(kind, TITLES[place % 4]) for place, kind in enumerate(FACTORS)]
CASES += [("multiplier", title) for title in TITLES]


@pytest.mark.parametrize(("kind", "title"), CASES)
def test_prices_are_adjusted_by_a_factor_in_any_form(kind: str, title: str, tmp_path: Path) -> None:
    """Its title may say the contrary."""
    raw, adjusted = (files(kind, title, is_raw=is_raw) for is_raw in (True, False))
    summary, bars = run(tmp_path, texts(raw, is_long=title == "CFACPR"))
    for price in PRICES:
        np.testing.assert_allclose(bars[price], pd.concat([*adjusted.values()])[price.title()], rtol=1e-9)
    money = pd.concat(own["Close"] * own["Volume"] for own in raw.values())
    np.testing.assert_allclose(bars["close"] * bars["volume"], money, rtol=1e-9)
    assert [*bars][2:] == [*PRICES, "volume"]
    assert summary.notes == [f"prices adjusted by {title.lower()!r}, as they move"]


LEFT = {
    **{f"in the prices, {kind}": (kind, False, "no price moves with it") for kind in FACTORS},
    **{kind: (kind, True, "it never changes") for kind in ("ones", "constant")},
    "score of weeks": ("score of weeks", False, "no price moves with it"),
}


@pytest.mark.parametrize(("kind", "is_raw", "words"), LEFT.values(), ids=LEFT)
def test_a_factor_that_adjusts_nothing_is_left_out(kind: str, is_raw: bool, words: str, tmp_path: Path) -> None:
    summary, bars = run(tmp_path, texts(files(kind, "factor", is_raw=is_raw)))
    assert [*bars][2:] == [*PRICES, "volume"]
    np.testing.assert_array_equal(bars["close"][:DAYS], files(kind, "factor", is_raw=is_raw)["A"]["Close"])
    told = f"'factor' is left out: it seems to be an adjustment factor, and {words}; --keep factor keeps it"
    assert summary.notes == [told]


def test_a_factor_that_a_person_keeps_is_a_column(tmp_path: Path) -> None:
    kind = "divisor of Qlib"
    _, bars = run(tmp_path, texts(files(kind, "factor", is_raw=False)), choices=Choices(keep=("factor",)))
    np.testing.assert_array_equal(bars["factor"], np.concatenate([*COLUMNS[kind].values()]))


@pytest.mark.parametrize("kind", FACTORS)
def test_a_factor_under_any_title_is_no_silent_column(kind: str, tmp_path: Path) -> None:
    words = "got 'x7', which moves as prices do in splits; title it adj_factor to adjust by it, or say --keep x7 if"
    with refused(words):
        run(tmp_path, texts(files(kind, "x7")))


def test_nor_is_one_beside_what_adjusts_prices_but_shares_outstanding_are(tmp_path: Path) -> None:
    raw, adjusted = files("divisor", "x7"), files("ones", "x7", is_raw=False)
    for title, own in (("cfacpr", COLUMNS["divisor"]), ("adjclose", {name: adjusted[name]["Close"] for name in raw})):
        with refused("got 'x7', which moves as prices do in splits"):
            run(tmp_path, texts({name: one.assign(**{title: own[name]}) for name, one in raw.items()}))
    _, bars = run(tmp_path, texts(raw), choices=Choices(keep=("x7",)))
    np.testing.assert_array_equal(bars["x7"], np.concatenate([*COLUMNS["divisor"].values()]))
    shares = {name: (1 + own.index // 20 / 50) / own["x7"] for name, own in raw.items()}
    assert "x7" in run(tmp_path, texts({name: one.assign(x7=7e5 * shares[name]) for name, one in raw.items()}))[1]


def test_the_second_of_two_factors_and_adjusted_bars_are_no_features(tmp_path: Path) -> None:
    """CFACSHR beside CFACPR, and what J-Quants gives beside its factor."""
    frames = {name: own.assign(CFACSHR=own["CFACPR"]) for name, own in files("divisor", "CFACPR").items()}
    summary, bars = run(tmp_path, texts(frames))
    assert [*bars][2:] == [*PRICES, "volume"]
    assert summary.notes[1].startswith("'cfacshr' is left out: it seems to be an adjustment factor, and no price moves")
    frames = {name: own.assign(AdjustmentOpen=1.0, AdjustmentVolume=1.0) for name, own in frames.items()}
    assert [*run(tmp_path, texts(frames))[1]][2:] == [*PRICES, "volume"]


def test_a_step_that_prices_do_not_tell_adjusts_nothing(tmp_path: Path) -> None:
    """By a hundredth, within what prices move in a night."""
    own = files("ones", "adj_factor", is_raw=False)["A"].assign(adj_factor=np.where(BEFORE["A"], 1.0, 1.01))
    summary, bars = run(tmp_path, texts({"A": own}))
    assert "adj_factor" not in bars and "prices do not tell whether they move with it" in summary.notes[0]
    np.testing.assert_allclose(bars["close"], own["Close"])


def test_prices_that_move_by_half_of_a_factor_are_refused(tmp_path: Path) -> None:
    frames = files("divisor", "factor")
    own = {name: one.assign(factor=np.where(BEFORE[name], 4.0, 1.0)) for name, one in frames.items()}
    with refused(r"\(--keep factor if it is none\) on 2010-02-15 that prices allow, got a move of -50% on 2010-02-15"):
        run(tmp_path, texts(own))
    with refused(r"is none\) on 2010-02-16 that prices allow, got a move of -50% on 2010-02-15"):
        run(tmp_path, texts(files("a day late", "factor")))


def test_a_factor_of_a_day_adjusts_the_bars_that_it_is_appended_to(tmp_path: Path) -> None:
    """Once, though the split is named too; a score that the file has stays one."""
    own, target = files("of a day", "AdjustmentFactor")["A"], tmp_path / "bars.parquet"
    own = own.assign(split=1 / own["AdjustmentFactor"], factor=COLUMNS["score"]["A"])
    for first, last in ((0, 30), (30, 31), (31, DAYS)):
        summary = prepare(written(tmp_path / "A.csv", own[first:last]), target, append=first > 0)
    expected = files("of a day", "AdjustmentFactor", is_raw=False)["A"]["Close"]
    np.testing.assert_allclose(pd.read_parquet(target)["close"], expected, rtol=1e-6)
    assert "and it never changes; --keep adjustmentfactor keeps it" in summary.notes[0]
    np.testing.assert_allclose(pd.read_parquet(target)["factor"], COLUMNS["score"]["A"], rtol=1e-6)


def joined(
    folder: Path, frames: dict[str, pd.DataFrame], title: str, days: slice = slice(None), **said: Any
) -> tuple[list[str], pd.DataFrame]:
    """Notes, and bars to which a file with the column is joined; after the first days they are appended."""
    for name, own in frames.items():
        written(folder / "source" / f"{name}.csv", own.drop(columns=title)[days])
    column = pd.concat(own[["Date", title]].assign(Ticker=name) for name, own in frames.items())
    path, target = written(folder / "column.csv", column), folder / "bars.parquet"
    summary = prepare(folder / "source", target, append=bool(days.start), choices=Choices(join=(str(path),), **said))
    return summary.notes, pd.read_parquet(target)


@pytest.mark.parametrize("kind", [kind for kind in FACTORS if "empty" not in kind])
def test_a_joined_factor_is_one(kind: str, tmp_path: Path) -> None:
    """It adjusts prices that move by it, is left out where none do, and is a column where a person says so."""
    adjusted = files(kind, "adj_factor", is_raw=False)
    for place, frames in enumerate((files(kind, "adj_factor"), adjusted)):
        notes, bars = joined(tmp_path / str(place), frames, "adj_factor")
        np.testing.assert_allclose(bars["close"], pd.concat([*adjusted.values()])["Close"], rtol=1e-9)
        assert [*bars][2:] == [*PRICES, "volume"] and notes[0].startswith(
            ("prices adjusted by 'adj_factor'", "'adj_factor' is left out")[place]
        )
    _, bars = joined(tmp_path, files(kind, "adj_factor"), "adj_factor", keep=("adj_factor",))
    np.testing.assert_array_equal(bars["adj_factor"], np.concatenate([*COLUMNS[kind].values()]))


@pytest.mark.parametrize(
    ("kind", "title", "power", "words"),
    [
        ("divisor", "adj_factor", 2, r"on 2010-02-15 that prices allow, got a move of -50% on 2010-02-15; mend it"),
        ("a day late", "adj_factor", 1, r"on 2010-02-16 that prices allow, got a move of -50% on 2010-02-15"),
        ("divisor", "x7", 1, "got 'x7', which moves as prices do in splits; title it adj_factor to adjust by it"),
    ],
)
def test_a_joined_factor_that_bars_contradict_is_refused(
    kind: str, title: str, power: int, words: str, tmp_path: Path
) -> None:
    frames = {name: own.assign(**{title: own[title] ** power}) for name, own in files(kind, title).items()}
    with refused(words):
        joined(tmp_path, frames, title)
    assert title in joined(tmp_path, frames, title, keep=(title,))[1]


@pytest.mark.parametrize("kind", ["score", "negative"])
def test_a_score_called_factor_stays_a_column(kind: str, tmp_path: Path) -> None:
    """In a file of bars, and joined to them."""
    frames = files(kind, "factor")
    summary, own = run(tmp_path / "bars", texts(frames))
    for notes, bars in ((summary.notes, own), joined(tmp_path / "joined", frames, "factor")):
        np.testing.assert_array_equal(bars["factor"], np.concatenate([*COLUMNS[kind].values()]))
        np.testing.assert_array_equal(bars["close"][:DAYS], frames["A"]["Close"])
        assert "'factor' is no adjustment factor, by its values: a further column" in notes


@pytest.mark.parametrize("kind", ["divisor", "multiplier", "of a day"])
def test_a_joined_factor_adjusts_the_bars_that_new_ones_are_appended_to(kind: str, tmp_path: Path) -> None:
    """Once, on the day of a split and none before or after."""
    for first, last in ((0, 25), (25, 30), (30, 31), (31, 50), (50, DAYS)):
        _, bars = joined(tmp_path, files(kind, "adj_factor"), "adj_factor", slice(first, last))
    expected = pd.concat([*files(kind, "adj_factor", is_raw=False).values()])["Close"]
    np.testing.assert_allclose(bars["close"], expected, rtol=1e-6)


def test_columns_of_a_user_under_names_of_parts_stay_columns(tmp_path: Path) -> None:
    own = files("ones", "pay", is_raw=False)["A"].assign(clock=range(DAYS), pay=range(DAYS))
    _, bars = run(tmp_path, texts({"A": own}))
    assert [*bars][7:] == ["other_clock", "other_pay"]
