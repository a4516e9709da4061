"""Praise: what a verdict claims is counted, null markets hold nothing, half a rule earns half."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.learning import power
from benchmarks.learning.markets import MARTINGALE
from benchmarks.learning.null import DRAWN, RISING, UNTRAINED, drawn_market, rearranged
from benchmarks.learning.unseen import training_market
from data.synthetic.draw import bars_frame, synthetic_market
from environment.portfolio import Portfolio
from tests.benchmarks.study_cases import Studied, tiny_config
from training.evaluation.baselines import score_policy, tuning_windows
from training.rollout import play


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 30), st.integers(1, 4), st.booleans())
def test_chosen_days_are_the_same_days(seed: int, days: int, stocks: int, keeps_market: bool) -> None:
    """Each day keeps its cross-section; the mean return of every stock is 0, or the market's; bars stay whole."""
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(0.02 * rng.standard_normal((days, stocks)) + 0.01, axis=0))
    open_ = close * np.exp(0.01 * rng.standard_normal(close.shape))
    bars = np.stack((open_, np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99, close), axis=-1)
    mixed = rearranged(bars, rng.permutation(days - 1), keeps_market=keeps_market)
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
    words = ("--runs", "1", "--cheap-runs", "1", "--generations", "1", "--data", str(parquet))
    shown, kept = studied("null", *words)
    kinds = [(study, kind) for study in ("untrained", "trained") for kind in (MARTINGALE, DRAWN, RISING)]
    assert [(record["study"], record["null"]) for record in kept] == kinds
    assert any(UNTRAINED in line and "high beta" in line for line in shown)
    titles = [line.rpartition(", ")[0] for line in shown if line.endswith(" runs")]
    assert titles == [f"{kind}: {study}" for study, kind in kinds]


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
    assert market.tickers == ["S000", "S002", "S003", "X000"] and np.isfinite(market.close).all()
    assert (market.close[1:] != other.close[1:]).any() and (market.close[0] == other.close[0]).all()


def test_half_of_a_rule_earns_half() -> None:
    """On the days on which it was tuned; its scores keep their spread."""
    config = tiny_config("--synthetic.drift-std", "0.02", "--synthetic.days", "900")
    rule, share = power.tuned_rule(config)
    market, scores = training_market(config)
    env = Portfolio.on(market, config.env)
    starts = tuning_windows(market, env)
    half = power.mixed(scores.rule, power.foreign_scores(config), share)
    policies = [score_policy(env, replace(rule, scores=own)) for own in (scores.rule, half)]
    earned = [float(play(env, policy, starts)[0].profit_percent.mean()) for policy in policies]
    assert earned[0] > 1 and earned[1] == pytest.approx(earned[0] / 2, rel=0.2) and 0 < share < 1
    assert np.std(half) == pytest.approx(np.std(scores.rule), rel=0.2)


def test_study_of_power(studied: Studied) -> None:
    shown, kept = studied("power", "--runs", "2", "--kinds", "momentum")
    assert shown[0].startswith("momentum: a holdout of 48 days")
    assert [(record["kind"], record["seed"]) for record in kept] == [("momentum", seed) for seed in (0, 1)]
