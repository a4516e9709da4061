"""Null markets hold nothing, and verdicts on them are counted."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.learning.null import DRAWN, NULL_MARKETS, clustered_market, drawn_market, rising
from data.synthetic.built_in import bars_frame, synthetic_market
from tests.benchmarks.study_cases import Studied, tiny_config
from training.evaluation.permutation_nulls import rearranged


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(3, 30), st.integers(1, 4), st.booleans())
def test_chosen_days_are_the_same_days(seed: int, days: int, stocks: int, keeps_market: bool) -> None:
    """Each day keeps its cross-section; the mean return of every stock is 0, or the market's; bars stay whole."""
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(0.02 * rng.standard_normal((days, stocks)) + 0.01, axis=0))
    open_ = close * np.exp(0.01 * rng.standard_normal(close.shape))
    bars = np.stack((open_, np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99, close), axis=-1)
    mixed = rearranged(bars, rng.permutation(days - 1))
    mixed = rising(bars, mixed) if keeps_market else mixed
    assert mixed.shape == bars.shape and (mixed[0] == bars[0]).all()
    assert (mixed[..., 1] >= mixed[..., [0, 3]].max(axis=-1) * (1 - 1e-12)).all()
    assert (mixed[..., 2] <= mixed[..., [0, 3]].min(axis=-1) * (1 + 1e-12)).all()
    returns = mixed[1:, :, 3] / mixed[:-1, :, 3] - 1
    was = bars[1:, :, 3] / bars[:-1, :, 3]
    kept = was.mean() if keeps_market else 1.0
    assert returns.mean(axis=0) == pytest.approx(np.full(stocks, kept - 1), abs=1e-12)
    was = kept * was / was.mean(axis=0) - 1
    assert np.sort(returns[:, 0]) == pytest.approx(np.sort(was[:, 0]), abs=1e-12)
    # A day's stocks move together wherever the day went.
    order, own = np.argsort(returns[:, 0]), np.argsort(was[:, 0])
    assert returns[order] == pytest.approx(was[own], abs=1e-12)


def test_study_of_null_markets(studied: Studied, parquet: Path) -> None:
    shown, kept = studied("null", "--runs", "1", "--generations", "1", "--data", str(parquet))
    assert [record["null"] for record in kept] == [*NULL_MARKETS]
    assert [line[:14].strip() for line in shown[1:]] == [*NULL_MARKETS] and "tracking error" in shown[0]
    untrained = "--learning.gradient-steps", "0"
    idle, only = studied("null", "--runs", "1", "--kinds", DRAWN, "--data", str(parquet), *untrained)
    assert idle[1].startswith(DRAWN) and len(only) == len(kept) + 1


def test_clustered_returns_are_fair_and_listings_staggered() -> None:
    """The squares of a day's returns tell those of the next; the mean price change is nothing beside its error."""
    words = ("--synthetic.days", "3000", "--synthetic.stocks", "30")
    market = clustered_market(tiny_config(*words))
    growth = market.close[1:].astype(np.float64) / market.close[:-1] - 1
    assert abs(growth.mean()) < 3 * growth.mean(axis=1).std() / np.sqrt(len(growth))
    squares = (growth - growth.mean()) ** 2
    lagged = [np.corrcoef(one[1:], one[:-1])[0, 1] for one in squares.T]
    assert np.mean(lagged) > 0.05
    common = np.atleast_2d(np.corrcoef(growth.T))[np.triu_indices(30, 1)].mean()
    assert 0.2 < common < 0.6
    known = np.isfinite(clustered_market(tiny_config(*words), is_staggered=True).close)
    first, last = known.argmax(axis=0), known[::-1].argmax(axis=0)
    assert (known.sum(axis=0) == len(known) - first - last).all()  # no gap between
    assert (first > 0).sum() >= 3 and (last > 0).sum() >= 3 and known[:, :2].all()


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    config = tiny_config().synthetic
    frame = bars_frame(synthetic_market(config, 1))
    late = (frame["ticker"] == "S001") & (frame["date"] < frame["date"].iloc[80])
    path = tmp_path / "prices.parquet"
    frame[~late].to_parquet(path)
    return path


def test_a_drawn_market_keeps_whole_histories(parquet: Path) -> None:
    market, other = (drawn_market(tiny_config("--data", str(parquet), "--seed", seed)) for seed in ("0", "1"))
    assert (
        market.tickers == ["S000", *(f"S00{stock}" for stock in range(2, 8)), "X000"]
        and np.isfinite(market.close).all()
    )
    assert (market.close[1:] != other.close[1:]).any() and (market.close[0] == other.close[0]).all()
