"""Twelve strategies as a researcher writes them, in an account of plain pandas, against the judge's."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environment.portfolio import Portfolio
from tests.market_cases import random_panel, random_volume
from tests.small_market import TINY_RULES, market_of
from training.evaluation.baselines import Tuning
from training.evaluation.play import EvaluationSetup, Played
from training.policies.accounts import account_of
from utils.config.trader import EnvironmentConfig

WHOLE = {"delist": 0.0, "late_start": 0.0, "halt": 0.0}
MARKET = market_of(random_panel(np.random.default_rng(4), 170, 12, **WHOLE, missing=0.02, jump=0.01))
FIRST, STEPS, RATE, FEE = 70, 65, 0.001, 50 / 10_000 / 252
BARS = MARKET.wide()
OPEN, BAR, CLOSE = BARS.open.astype(float), BARS.close.notna(), BARS.close.astype(float).ffill()
LOG, N = np.log(CLOSE), len(CLOSE.columns)
Rule = Callable[[pd.Timestamp, "pd.Series[float]"], "pd.Series[float]"]


def ranked(day: pd.Timestamp, back: int = 20) -> "pd.Series[float]":
    return LOG.diff(back).loc[day].rank(ascending=False)


def monthly(day: pd.Timestamp, held: "pd.Series[float]") -> "pd.Series[float]":
    before = CLOSE.index[CLOSE.index.get_loc(day) - 1]
    return (ranked(day, 60) <= 4) / 4 if day.month != before.month else held * np.nan


def volatility_target(day: pd.Timestamp, held: "pd.Series[float]") -> "pd.Series[float]":
    spread = LOG.diff().loc[:day].tail(20).mean(axis=1).std() * np.sqrt(252)
    return 0.0 * held + min(1.0, 0.15 / spread) / N


def stop_loss(day: pd.Timestamp, held: "pd.Series[float]") -> "pd.Series[float]":
    fallen = CLOSE.loc[day] < 0.9 * CLOSE.loc[:day].tail(20).max()
    return (~fallen) / N


def pairs(day: pd.Timestamp, held: "pd.Series[float]") -> "pd.Series[float]":
    weights = 0.0 * held
    for one, other in zip(held.index[::2], held.index[1::2], strict=True):
        spread = (LOG[one] - LOG[other]).loc[:day].tail(40)
        side = -np.clip((spread.iloc[-1] - spread.mean()) / spread.std(), -2, 2)
        weights[one], weights[other] = side / N, -side / N
    return weights


def leveraged(day: pd.Timestamp, held: "pd.Series[float]") -> "pd.Series[float]":
    rank = ranked(day)
    return 1.3 * (rank <= N / 2) / (N / 2) - 0.3 * (rank > N / 2) / (N / 2)


def sector_capped(day: pd.Timestamp, held: "pd.Series[float]") -> "pd.Series[float]":
    raw, sector = 1 / ranked(day), np.arange(N) % 3
    raw /= raw.sum()
    return raw * (0.4 / raw.groupby(sector).transform("sum")).clip(upper=1.0)


def drift_band(day: pd.Timestamp, held: "pd.Series[float]") -> "pd.Series[float]":
    return (0.0 * held + 1 / N).where((held - 1 / N).abs() >= 0.01)


DRAWN = pd.DataFrame(np.random.default_rng(1).dirichlet(np.ones(N), len(CLOSE)), CLOSE.index, CLOSE.columns)
STRATEGIES: dict[str, Rule] = {
    "equal": lambda day, held: 0.0 * held + 1 / N,
    "tilt": lambda day, held: (ranked(day).rsub(N + 1)) / (N * (N + 1) / 2),
    "monthly four": monthly,
    "quintiles": lambda day, held: np.sign(2 * (ranked(day) <= 2) - (ranked(day) <= 2) - (ranked(day) > N - 2)) / 4,
    "volatility target": volatility_target,
    "stop-loss": stop_loss,
    "pairs": pairs,
    "130/30": leveraged,
    "sector-capped": sector_capped,
    "buy and hold": lambda day, held: held * np.nan if held.any() else held + 1 / N,
    "drift band": drift_band,
    "random": lambda day, held: DRAWN.loc[day],
}
SIGNED = {"quintiles", "pairs", "130/30"}


def played_in_pandas(rule: Rule, *, is_signed: bool) -> tuple[list[float], pd.DataFrame]:
    """Equity at each close, and the targets: ordered at the close, filled at the next open, sales first; a stock
    without a bar at either keeps its shares."""
    shares, cash, equity, targets = 0.0 * CLOSE.iloc[0], 1e6, [1e6], {}
    for day, after in pairwise(CLOSE.index[FIRST : FIRST + STEPS + 1]):
        targets[day] = rule(day, shares * CLOSE.loc[day] / equity[-1]).astype(float)
        order, price = targets[day] * equity[-1] / CLOSE.loc[day] - shares, OPEN.loc[after].fillna(0.0)
        order = order.where(BAR.loc[day] & BAR.loc[after], 0.0).fillna(0.0)
        if is_signed:
            cash -= FEE * ((-shares * CLOSE.loc[day]).clip(lower=0).sum() + max(0.0, -cash))
        else:
            sold, needed = (order.clip(upper=0) * price).sum(), (order.clip(lower=0) * price).sum() * (1 + RATE)
            order = order.where(order < 0, order * min(1.0, (cash - sold * (1 - RATE)) / max(needed, 1e-300)))
        cash -= (order * price).sum() + RATE * (order * price).abs().sum()
        shares = shares + order
        equity.append(cash + float((shares * CLOSE.loc[after]).sum()))
    return equity, pd.DataFrame(targets).T


def judged(policy: pd.DataFrame, market: object = MARKET, rules: EnvironmentConfig = TINY_RULES) -> Played:
    portfolio = Portfolio.on(market, rules)  # type: ignore[arg-type]
    tuning, columns = Tuning.of(market, portfolio.under()), market.investable_columns.tolist()  # type: ignore
    return account_of("own", policy, EvaluationSetup(market, portfolio, tuning, FIRST, STEPS, columns))  # type: ignore


def as_weights(frame: pd.DataFrame) -> pd.DataFrame:
    frame.attrs["returns"] = "weights"
    return frame


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_judge_earns_what_pandas_earns(name: str) -> None:
    """To 1e-9, with shorts, credit and their fees; and what was asked was done but for what cash had to pay."""
    equity, targets = played_in_pandas(STRATEGIES[name], is_signed=name in SIGNED)
    own = judged(as_weights(targets))
    np.testing.assert_allclose(own.curves.equity[0], equity, rtol=1e-9)
    assert own.is_signed == (name in SIGNED) and own.is_neutral == (name in {"quintiles", "pairs"})
    gaps = {"no bar at the close", "no bar at the fill"}
    assert own.asked is not None
    assert {lapse.reason for lapse in own.asked.lapses} <= {"cash, after costs and the night's moves", *gaps}


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), lock=st.sampled_from([0.0, 8.0]), is_signed=st.booleans())
def test_what_was_not_done_is_explained_line_by_line(seed: int, lock: float, is_signed: bool) -> None:
    """In a market with gaps, delistings and a volume cap: asked is done and the reasons, less what was sold unasked."""
    rng = np.random.default_rng(seed)
    panel = random_panel(rng, 170, 6, missing=0.1, delist=0.4)
    market = market_of(panel, volume=random_volume(rng, panel, 4e6))
    weights = rng.dirichlet(np.ones(6), 170) * (np.sign(rng.normal(size=(170, 6))) if is_signed else 1.0)
    own = judged(
        as_weights(pd.DataFrame(weights, pd.DatetimeIndex(market.dates.astype("datetime64[s]")), market.tickers)),
        market,
        EnvironmentConfig(trading_days=12, settlement_days=6, volume_cap=2.0, drawdown_lock=lock),
    )
    assert own.asked is not None and own.asked.is_apart and own.asked.warning.startswith("Another portfolio")
    lapses = {lapse.reason: lapse.turnover for lapse in own.asked.lapses}
    unasked = lapses.pop("sold unasked, as prices or equity had ended", 0.0)
    assert own.asked.turnover == pytest.approx(own.asked.done - unasked + sum(lapses.values()), rel=1e-6)
    assert {"no bar at the close", "no bar at the fill", "volume cap"} <= lapses.keys()
    assert torch.isfinite(torch.from_numpy(own.curves.equity)).all()


@pytest.mark.parametrize("lacks", ["member", "ticker", "volume"])
def test_what_is_asked_on_few_dates_stands_on_the_days_after(lacks: str) -> None:
    """One date, nine tenths of it in no member, or no ticker that may be bought; and equal weights of each month, of
    which little is traded."""
    weights, rules, market = CLOSE * np.nan, TINY_RULES, MARKET
    if lacks == "member":
        weights.iloc[FIRST] = [0.05, 0.05, 0.9] + [0.0] * (N - 3)
        market = replace(MARKET, members=np.arange(N) != np.full((len(CLOSE), 1), 2))
    elif lacks == "ticker":
        weights.iloc[FIRST] = [0.05, 0.05] + [0.0] * (N - 2)
        weights["OTHER"] = weights.iloc[:, 0] * 18
        weights = pd.concat((weights.iloc[[FIRST]] / 2, weights))  # of two rows of a date the last counts
    else:
        weights.iloc[FIRST::21] = 1 / N
        market = replace(MARKET, volume=np.full(CLOSE.shape, 1e4, np.float32))
        rules = replace(TINY_RULES, volume_cap=1.0)
    own = judged(as_weights(weights), market, rules)
    lacking = 1 - own.curves.exposure.mean()
    assert lacking > 0.2 and own.asked is not None and own.asked.gap == pytest.approx(lacking, abs=0.03)
    assert "Another portfolio was judged" in own.asked.warning


def test_who_has_lost_everything_orders_nothing_more() -> None:
    """Short five times the equity in what trebles."""
    data = MARKET.data_array.copy()
    data[FIRST + 20 :, 0, :4] *= 3
    weights = pd.DataFrame(0.0, CLOSE.index, CLOSE.columns)
    weights.iloc[:, 0] = -5.0
    own = judged(as_weights(weights), type(MARKET)(**{**vars(MARKET), "data_array": data}))
    ruined = own.curves.equity[0] <= 0
    assert ruined[20:].all() and own.trades is not None and (own.trades.filled[20:] == 0).all()
