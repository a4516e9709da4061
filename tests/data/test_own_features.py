"""Own features: a file of functions, and the audit that refuses those that look ahead and no others."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from data.features.nine import PRICES
from data.features.own import audit_features, own_columns, read_features, require_alone
from data.features.wide import WideBars
from data.market import Market
from data.record import past_ratios, pin_market, record_market
from tests.data.files import refused, written
from tests.small_market import small_market
from training.run.market import with_own_features

Frame = pd.DataFrame
Source = Callable[[WideBars], Frame]
Change = Callable[[Frame], Frame]
SOURCES: dict[str, Source] = {
    "close": lambda bars: bars.close,
    "returns": lambda bars: bars.close.pct_change(fill_method=None),
    "range": lambda bars: bars.high / bars.low,
    "volume": lambda bars: bars.volume,
    "money": lambda bars: bars.close * bars.volume,
    "sentiment": lambda bars: bars["sentiment"],
    "gap": lambda bars: bars.open / bars.close.shift() - 1,
}


def weekly(values: Frame, label: str) -> Frame:
    """Weeks merged back to days: a week's value is known at its end."""
    week = values.resample("W-FRI", label=label).last()
    return week.reindex(values.index, method="ffill")


AHEAD: dict[str, Change] = {
    "shifted": lambda values: values.shift(-1),
    "five sessions later": lambda values: values.shift(-5),
    "centred mean": lambda values: values.rolling(5, center=True).mean(),
    "z-score of the whole sample": lambda values: (values - values.mean()) / values.std(),
    "rank of the whole sample": lambda values: values.rank(),
    "share of the largest ever": lambda values: values / values.max(),
    "backward fill": lambda values: values.bfill(),
    "interpolated": lambda values: values.interpolate(limit_area="inside"),
    "from the end": lambda values: values[::-1].expanding().mean()[::-1],
    "weeks by their first day": lambda values: weekly(values, "left"),
    "month's mean": lambda values: values.groupby(values.index.to_period("M")).transform("mean"),
    "largest of the next month": lambda values: values[::-1].rolling(21, min_periods=1).max()[::-1],
    "less the mean of all": lambda values: values - np.nanmean(values.to_numpy()),
    "smoothed both ways": lambda values: (values.ewm(5).mean() + values[::-1].ewm(5).mean()[::-1]) / 2,
    "detrended": lambda values: values.sub(values.iloc[-1]),
}
CAUSAL: dict[str, Change] = {
    "as it is": lambda values: values,
    "shifted": lambda values: values.shift(3),
    "mean": lambda values: values.rolling(20).mean(),
    "sum with gaps": lambda values: values.rolling(20, min_periods=1).sum(),
    "exponential mean": lambda values: values.ewm(halflife=10).mean(),
    "deviation": lambda values: values.rolling(20).std(),
    "z-score of the past": lambda values: (values - values.rolling(60).mean()) / values.rolling(60).std(),
    "expanding rank": lambda values: values.expanding().rank(),
    "rank of the day": lambda values: values.rank(axis=1),
    "less the mean of the day": lambda values: values.sub(values.mean(axis=1), axis=0),
    "forward fill": lambda values: values.ffill(),
    "change": lambda values: values.pct_change(5, fill_method=None),
    "against its largest so far": lambda values: values / values.cummax(),
    "skewness": lambda values: values.rolling(30).skew(),
    "above its mean": lambda values: (values > values.rolling(20).mean()).astype(float),
}


def market() -> Market:
    as_is = small_market(1, 260)
    rng, shape = np.random.default_rng(7), as_is.data_array.shape[:2]
    sentiment = rng.standard_normal(shape).astype(np.float32)
    sentiment[rng.random(shape) < 0.2] = np.nan
    volume = np.exp(rng.normal(10, 1, shape)).astype(np.float32)
    return replace(as_is, volume=volume, columns={"sentiment": sentiment})


def functions(changes: dict[str, Change]) -> Iterator[tuple[str, Callable[[WideBars], Frame]]]:
    for (of, source), (how, change) in product(SOURCES.items(), changes.items()):
        yield f"{of}, {how}", partial(lambda bars, source, change: change(source(bars)), source=source, change=change)


def test_a_hundred_features_that_look_ahead_are_refused() -> None:
    as_is, ahead = market(), dict(functions(AHEAD))
    assert len(ahead) >= 100
    for name, function in ahead.items():
        with refused(f"{name}.* looks ahead"):
            audit_features({name: function}, as_is, np.random.default_rng(0))


def test_a_random_feature_is_told_as_such() -> None:
    def drawn(bars: WideBars) -> pd.DataFrame:
        return bars.close * np.random.default_rng().random()

    with refused("'drawn' to give the same values of the same bars.*at random or reads a clock"):
        audit_features({"drawn": drawn}, market(), np.random.default_rng(0))


def test_a_hundred_features_that_do_not_are_taken() -> None:
    own = dict(functions(CAUSAL))
    assert len(own) >= 100
    audit_features(own, market(), np.random.default_rng(0))


MINE = """
from __future__ import annotations
import functools
from dataclasses import dataclass
from math import sqrt

@dataclass
class Window:
    days: int

def _mean(bars, window=Window(5)):
    return bars.volume.rolling(window.days).mean()

longer = functools.partial(_mean, window=Window(20))

def _twice(function):
    return functools.wraps(function)(lambda bars: 2 * function(bars))

@_twice
def shorter(bars):
    return bars.close.diff()

def volume_shock(bars):
    return bars.volume / longer(bars) - 1
"""


def test_a_file_gives_its_public_functions_also_partial_and_decorated_ones(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", MINE)
    own, digest = read_features(path)
    assert [*own] == ["longer", "shorter", "volume_shock"]
    as_is = market().wide()
    found = own_columns(own, as_is)
    volume = pd.DataFrame(as_is.volume)
    expected = {"shorter": 2 * as_is.close.diff(), "volume_shock": volume / volume.rolling(20).mean() - 1}
    for name, values in expected.items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], values, rtol=1e-4)
    assert read_features(written(path, MINE + "\n"))[1] != digest


@pytest.mark.parametrize(
    ("text", "told"),
    {
        "def broken(bars)": "SyntaxError",
        "def other(bars):\n    return bars['sentimentt']": "the nearest is 'sentiment'",
        "def one(bars):\n    return bars.close.mean(axis=1)": "days x tickers",
        "def fails(bars):\n    return 1 / 0": "ZeroDivisionError",
        "def turned(bars):\n    return bars.close[::-1]": "another index",
        "def sentiment(bars):\n    return bars.close": "a column of the data; rename it",
        "def rsi(bars):\n    return bars.close": "a built-in feature; rename it",
        "from functools import partial\nimport numpy as np\nhelp = partial(np.roll, shift=1)": "got none without",
        "def volume(bars):\n    return bars.close": "rename it",
        "def nothing(bars):\n    return bars.close * float('nan')": "got none that is a number",
        "raise SystemExit(0)": "SystemExit",
        "def leaves(bars):\n    raise SystemExit(0)": "SystemExit",
    }.items(),
)
def test_what_cannot_be_used_is_refused_with_one_line(text: str, told: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", text)
    with refused(told):
        own_columns(read_features(path)[0], market().wide())


WITH_NEIGHBOURS = """
from __future__ import annotations
import pickle
from dataclasses import dataclass
import helper
from parts.deeper import WEIGHT

@dataclass
class Settings:
    days: int = helper.DAYS
    note: "str | None" = None

def momentum(bars):
    import late
    settings, other = pickle.loads(pickle.dumps((Settings(), helper.Other())))
    return WEIGHT * late.SIGN * bars.close.pct_change(settings.days + other.days)
"""


def test_a_file_imports_what_lies_beside_it_and_never_another_files(tmp_path: Path) -> None:
    """Whatever the installed modules are called; a neighbour that changes makes it another file."""
    seen = list[str]()
    for folder, days in (("one", 2), ("two", 3), ("one", 4)):
        written(tmp_path / folder / "parts" / "__init__.py", "")
        written(tmp_path / folder / "parts" / "deeper.py", "WEIGHT = 2.0")
        written(tmp_path / folder / "late.py", "SIGN = -1.0")
        text = f"DAYS = {days}\nclass Other:\n    days = 1 + {days} - DAYS" + "\n" * days
        written(tmp_path / folder / "helper.py", text)
        own, digest = read_features(written(tmp_path / folder / "mine.py", WITH_NEIGHBOURS))
        as_is = market().wide()
        expected = -2.0 * as_is.close.pct_change(days + 1)
        np.testing.assert_allclose(own_columns(own, as_is)["momentum"], expected, rtol=1e-4)
        seen.append(digest)
    assert len({*seen}) == 3
    with refused(r"features of a paper account in one file, .*mine.py with helper, parts, parts.deeper beside it"):
        require_alone(tmp_path / "one" / "mine.py", "features")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "def fails(bars):\n    x = 1\n    return helper.deep(bars)\nimport helper",
            "TypeError: no, in helper.py, line 2;",
        ),
        ("def fails(bars):\n\n    return bars.close.rolling(-1).mean()", "mine.py, line 3;"),
        ("import helper\nhelper.deep(1)", r"TypeError: no, in helper.py, line 2\)"),
        ("x = 1\nimport absent_module", r"'absent_module', in mine.py, line 2\)"),
        (
            "def fits(bars):\n    return bars.close - bars.close.mean()",
            "fit a model before, on earlier days, save it, and",
        ),
    ],
)
def test_an_error_names_its_place_in_the_users_files_and_what_to_do(text: str, told: str, tmp_path: Path) -> None:
    written(tmp_path / "helper.py", "def deep(bars):\n    raise TypeError('no')")
    path = written(tmp_path / "mine.py", text)
    with refused(told):
        with_own_features(market(), path, audits=True)


STATEFUL = """
_kept = {}

def score(bars):
    _kept.setdefault("mean", bars.close.mean())
    return bars.close / _kept["mean"] - 1
"""
MONTHLY = """
def month(bars):
    values = bars.close.shift(-3)
    values.loc[bars.close.index.to_series().dt.month.diff().shift(-1).eq(0)] = 0.0
    return values
"""


@pytest.mark.parametrize("text", [STATEFUL, MONTHLY], ids=["kept from the first call", "ends of months"])
def test_a_look_ahead_that_hides_is_refused(text: str, tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", text)
    own, _ = read_features(path)
    for seed in range(5):
        with refused("looks ahead"):
            audit_features(own, market(), np.random.default_rng(seed), lambda: read_features(path)[0])


def test_a_cross_section_of_prices_that_were_adjusted_again_is_the_same_data(tmp_path: Path) -> None:
    """The mean of the day changes for all stocks with the dividend of one."""
    text = "def relative(bars):\n    return bars.close.sub(bars.close.mean(axis=1), axis=0)"
    path, before = written(tmp_path / "mine.py", text), market()
    array = before.data_array.copy()
    array[:, 0, list(PRICES)] *= np.float32(0.99)
    record = record_market(with_own_features(before, path, audits=False))
    later = with_own_features(replace(before, data_array=array), path, audits=False)
    assert past_ratios(later, record).keys() == {before.tickers[0]}
    pin_market(later, record)


def test_a_frame_that_a_feature_changes_changes_nothing_else() -> None:
    as_is = market().wide()

    def spoils(bars: WideBars) -> Frame:
        close = bars.close
        close[:] = 0.0
        return close

    before = as_is.close
    own_columns({"spoils": spoils}, as_is)
    pd.testing.assert_frame_equal(as_is.close, before)
