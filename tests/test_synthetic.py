"""The built-in market has the structure it claims, is fair to who does not see it, and its rule is the best one."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.loader import StockDataLoader
from data.synthetic import (
    FAIR_SESSIONS,
    MARKET_KINDS,
    SyntheticMarket,
    bars_frame,
    expected_trade_return,
    kalman_gain,
    oracle_scores,
    persistence,
    planted_rule_scores,
    prediction_variance,
    synthetic_market,
)
from utils.config import SyntheticConfig

Array = npt.NDArray[np.float64]

ARRAYS = [field.name for field in fields(SyntheticMarket) if field.name != "tickers"]
WARM_UP = 250
CONFIG = SyntheticConfig(days=2400, stocks=60)

configs = st.builds(
    SyntheticConfig,
    days=st.integers(2, 60),
    stocks=st.integers(1, 5),
    daily_noise=st.floats(0.001, 0.05),
    drift_std=st.floats(0.0, 0.02),
    drift_half_life_days=st.floats(0.5, 40.0),
)
kinds = st.sampled_from(sorted(MARKET_KINDS))


@pytest.fixture(scope="module")
def market() -> SyntheticMarket:
    return synthetic_market(CONFIG, seed=11)


def standard_error(by_stock: Array) -> float:
    """Of the mean over stocks, which are independent."""
    return float(by_stock.std(ddof=1) / math.sqrt(len(by_stock)))


def log_returns(market: SyntheticMarket) -> Array:
    """(days - 1, stocks): row t is the return of day t + 1, which `drift[t]` foretells."""
    return np.diff(np.log(market.close), axis=0)


@settings(deadline=None)
@given(configs, st.integers(0, 2**63), kinds)
def test_bars_are_whole_and_fit_single_precision(config: SyntheticConfig, seed: int, kind: str) -> None:
    market = synthetic_market(config, seed, kind)
    assert (market.high >= np.maximum(market.open, market.close)).all()
    assert (market.low <= np.minimum(market.open, market.close)).all()
    assert (market.low > 0).all() and (market.volume >= 0).all()
    for name in ("open", "high", "low", "close", "volume", "drift"):
        values = getattr(market, name)
        assert values.shape == (config.days, config.stocks)
        assert np.isfinite(values).all()
        assert name == "drift" or (values == values.astype(np.float32)).all()


@settings(deadline=None)
@given(configs, st.integers(0, 2**63), kinds)
def test_a_seed_gives_one_market_and_another_seed_another(config: SyntheticConfig, seed: int, kind: str) -> None:
    first, second = (synthetic_market(config, seed, kind) for _ in range(2))
    assert all((getattr(first, name) == getattr(second, name)).all() for name in ARRAYS)
    assert (first.close != synthetic_market(config, seed + 1, kind).close).any()


def test_seed_0_gives_these_prices_everywhere() -> None:
    market = synthetic_market(SyntheticConfig(days=3, stocks=2), seed=0)
    close = [[140.1890869140625, 24.411264419555664], [141.4796905517578, 24.535045623779297]]
    assert market.close[:2] == pytest.approx(np.array(close), rel=1e-6)
    assert market.high[2] == pytest.approx(np.array([142.3153533935547, 24.80287742614746]), rel=1e-6)


def test_tickers_and_dates_ascend() -> None:
    market = synthetic_market(SyntheticConfig(days=8, stocks=1001), seed=0)
    assert market.tickers == sorted(set(market.tickers)) and market.tickers[:2] == ["S0000", "S0001"]
    assert synthetic_market(SyntheticConfig(days=2, stocks=40), 0).tickers[-1] == "S039"
    assert np.is_busday(market.dates).all()
    assert np.busday_count(market.dates[:-1], market.dates[1:]).tolist() == [1] * 7


def test_the_loader_gets_the_same_prices() -> None:
    market = synthetic_market(SyntheticConfig(days=90, stocks=3), seed=5)
    loader = StockDataLoader.from_frame(bars_frame(market))
    loader.load_and_prepare()
    assert loader.tickers == market.tickers
    assert (loader.dates == market.dates).all()
    for feature, name in enumerate(("open", "close", "high", "low")):
        assert (loader.data_array[:, :, feature] == getattr(market, name)).all()
    assert loader.quality.masked == loader.quality.widened == loader.quality.gaps == 0


def test_drift_foretells_the_next_return_and_lasts_as_long_as_said(market: SyntheticMarket) -> None:
    returns, drift = log_returns(market), market.drift
    slopes = (returns * drift[:-1]).mean(axis=0) / (drift[:-1] ** 2).mean(axis=0)
    assert slopes.mean() == pytest.approx(1.0, abs=4 * standard_error(slopes))
    shock = drift[1:-1] - persistence(CONFIG) * drift[:-2]  # new at a day's close, so that day's return lacks it
    same_day = (returns[:-1] * shock).mean(axis=0)
    assert same_day.mean() == pytest.approx(0.0, abs=4 * standard_error(same_day))
    noise = returns - drift[:-1]
    assert noise.std() == pytest.approx(CONFIG.daily_noise, rel=0.01)
    assert drift.std() == pytest.approx(CONFIG.drift_std, rel=0.05)
    lag = round(CONFIG.drift_half_life_days)
    halves = (drift[lag:] * drift[:-lag]).mean(axis=0) / CONFIG.drift_std**2
    assert halves.mean() == pytest.approx(0.5, abs=4 * standard_error(halves))


def test_the_first_drift_is_as_large_as_any() -> None:
    config = SyntheticConfig(days=2, stocks=10_000)
    assert synthetic_market(config, 1).drift[0].std() == pytest.approx(config.drift_std, rel=0.04)


@settings(deadline=None)
@given(kinds, st.integers(0, 2**32), st.integers(0, 29))
def test_drift_does_not_see_the_noise_of_later_days(kind: str, seed: int, last: int) -> None:
    config = SyntheticConfig(days=30, stocks=3)
    noise = np.random.default_rng(seed).standard_normal((30, 3))
    corrupted = noise.copy()
    corrupted[last + 1 :] = 1e6
    before, after = (
        MARKET_KINDS[kind].latent_drift(config, values, np.random.default_rng(seed)) for values in (noise, corrupted)
    )
    assert (before[: last + 1] == after[: last + 1]).all()


def test_momentum_without_drift_is_the_martingale() -> None:
    config = SyntheticConfig(days=50, stocks=4, drift_std=0.0)
    momentum, martingale = (synthetic_market(config, 3, kind) for kind in ("momentum", "martingale"))
    assert all((getattr(momentum, name) == getattr(martingale, name)).all() for name in ARRAYS)
    assert (martingale.drift == 0).all()
    assert (planted_rule_scores(martingale.close, config) == 0).all()


@pytest.mark.parametrize("sessions", [1, 20])
def test_a_martingale_grows_by_nothing_from_close_or_open(sessions: int) -> None:
    # So noisy that half of even the overnight variance would show.
    market = synthetic_market(SyntheticConfig(days=600, stocks=1000, daily_noise=0.06), 2, "martingale")
    for bought in (market.close[:-sessions], market.open[1 : -sessions + 1 or None]):
        growth = (market.close[sessions:] / bought - 1).mean(axis=0)
        assert growth.mean() == pytest.approx(0.0, abs=4 * standard_error(growth))
    overnight = (market.open[1:] / market.close[:-1] - 1).mean(axis=0)
    assert overnight.mean() == pytest.approx(0.0, abs=4 * standard_error(overnight))


def test_momentum_is_fair_over_a_usual_trade() -> None:
    config = SyntheticConfig(days=600, stocks=2000, drift_std=0.008)
    market = synthetic_market(config, 4)
    growth = (market.close[FAIR_SESSIONS:] / market.close[:-FAIR_SESSIONS] - 1).mean(axis=0)
    assert growth.mean() == pytest.approx(0.0, abs=4 * standard_error(growth))
    # Without the share of the lasting drift it would be this far off, which the test must be able to see.
    phi = 0.5 ** (1 / config.drift_half_life_days)
    covariance = config.drift_std**2 * phi ** np.abs(np.subtract.outer(range(FAIR_SESSIONS), range(FAIR_SESSIONS)))
    assert math.expm1(covariance.sum() / 2) > 8 * standard_error(growth)


@pytest.mark.parametrize("target", [0.01, 0.03])
def test_selling_at_a_target_earns_nothing_in_a_martingale(target: float) -> None:
    market = synthetic_market(SyntheticConfig(days=300, stocks=1000, daily_noise=0.03), 6, "martingale")
    sold = np.where(market.high >= market.open * (1 + target), 1 + target, market.close / market.open) - 1
    earned = sold.mean(axis=0)
    assert earned.mean() == pytest.approx(0.0, abs=4 * standard_error(earned))


def test_the_range_of_a_session_is_that_of_a_brownian_path() -> None:
    config = SyntheticConfig(days=300, stocks=1000, daily_noise=0.03)
    market = synthetic_market(config, 8, "martingale")
    std = math.sqrt(0.9) * config.daily_noise
    mean = -(std**2) / 2

    def below(value: float) -> float:
        return 0.5 * math.erfc(-value / math.sqrt(2))

    def reach(level: float, mean: float) -> float:
        """Chance that a Brownian motion with drift reaches `level` within the session (reflection principle)."""
        reflected = math.exp(2 * mean * level / std**2) * below((-level - mean) / std)
        return below((mean - level) / std) + reflected

    for level in (0.005, 0.02, 0.06):
        up = (np.log(market.high / market.open) >= level).mean(axis=0)
        down = (np.log(market.low / market.open) <= -level).mean(axis=0)
        assert up.mean() == pytest.approx(reach(level, mean), abs=4 * standard_error(up))
        assert down.mean() == pytest.approx(reach(level, -mean), abs=4 * standard_error(down))


@settings(deadline=None)
@given(configs)
def test_the_gain_is_the_limit_of_the_riccati_iteration(config: SyntheticConfig) -> None:
    phi, noise = 0.5 ** (1 / config.drift_half_life_days), config.daily_noise**2
    variance = config.drift_std**2
    for _ in range(2000):
        gain = variance / (variance + noise)
        variance = phi**2 * (1 - gain) * variance + (1 - phi**2) * config.drift_std**2
    assert prediction_variance(config) == pytest.approx(variance, rel=1e-9, abs=1e-300)
    assert kalman_gain(config) == pytest.approx(variance / (variance + noise), rel=1e-9, abs=1e-300)


@settings(deadline=None)
@given(st.floats(1e-3, 1e15), st.floats(1e-6, 1e3))
def test_the_gain_stays_a_share_at_the_extremes(half_life: float, ratio: float) -> None:
    config = SyntheticConfig(drift_half_life_days=half_life, drift_std=ratio * 0.014)
    phi = persistence(config)
    variance, noise = prediction_variance(config), config.daily_noise**2
    assert 0 < kalman_gain(config) < 1
    assert 0 < variance <= config.drift_std**2 * (1 + 1e-12)
    if half_life < 1e6:
        shock = (1 - phi) * (1 + phi) * config.drift_std**2
        assert phi**2 * variance * noise / (variance + noise) + shock == pytest.approx(variance, rel=1e-6)


def projection_weights(config: SyntheticConfig, days: int) -> Array:
    """Best linear weights (days,), oldest first, of past returns in the drift, from their covariances alone."""
    phi = 0.5 ** (1 / config.drift_half_life_days)
    lags = np.abs(np.subtract.outer(np.arange(days), np.arange(days)))
    of_returns = config.drift_std**2 * phi**lags + config.daily_noise**2 * np.eye(days)
    with_drift = config.drift_std**2 * phi ** np.arange(days, 0, -1)
    weights: Array = np.linalg.solve(of_returns, with_drift)
    return weights


@settings(max_examples=20, deadline=None)
@given(st.floats(0.005, 0.03), st.floats(0.001, 0.01), st.floats(1.0, 20.0))
def test_the_rule_weighs_returns_as_the_best_linear_estimate_does(noise: float, drift: float, life: float) -> None:
    days = 250
    config = SyntheticConfig(daily_noise=noise, drift_std=drift, drift_half_life_days=life)
    # Stock k has a single return of 1 on day k + 1: its last score is the weight of that day, beside the constant's.
    close = np.exp(np.tril(np.ones((days + 1, days)), -1))
    scores = planted_rule_scores(close, config)[-1] - planted_rule_scores(np.ones((days + 1, 1)), config)[-1]
    assert scores == pytest.approx(projection_weights(config, days), abs=1e-6)


def test_the_rule_is_as_exact_as_theory_says(market: SyntheticMarket) -> None:
    scores = planted_rule_scores(market.close, CONFIG)[WARM_UP:]
    drift = oracle_scores(market)[WARM_UP:]
    errors = ((scores - drift) ** 2).mean(axis=0)
    assert errors.mean() == pytest.approx(prediction_variance(CONFIG), abs=4 * standard_error(errors))
    assert errors.mean() == pytest.approx(prediction_variance(CONFIG), rel=0.05)
    explained = 1 - prediction_variance(CONFIG) / CONFIG.drift_std**2
    assert np.corrcoef(scores.ravel(), drift.ravel())[0, 1] == pytest.approx(math.sqrt(explained), abs=0.03)
    # What the rule does not know is unrelated to what it says: its scores are to be taken at their word.
    leftover = ((drift - scores) * scores).mean(axis=0)
    assert leftover.mean() == pytest.approx(0.0, abs=4 * standard_error(leftover))


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 38))
def test_scores_do_not_see_later_closes(seed: int, last: int) -> None:
    config = SyntheticConfig(days=40, stocks=4)
    rng = np.random.default_rng(seed)
    close = synthetic_market(config, seed).close
    close[rng.random(close.shape) < 0.1] = np.nan
    corrupted = close.copy()
    corrupted[last + 1 :] = rng.choice([np.nan, 1e-9, 1.0, 1e9], size=corrupted[last + 1 :].shape)
    before, after = planted_rule_scores(close, config), planted_rule_scores(corrupted, config)
    assert np.isfinite(before).all()
    assert (before[: last + 1] == after[: last + 1]).all()


@pytest.mark.parametrize("missing", [np.nan, 0.0])
def test_a_day_without_a_bar_only_predicts(missing: float) -> None:
    config = SyntheticConfig(days=30, stocks=2)
    close = synthetic_market(config, 9).close
    whole = planted_rule_scores(close, config)
    close[15, 0] = missing
    scores = planted_rule_scores(close, config)
    phi = 0.5 ** (1 / config.drift_half_life_days)
    assert (scores[:, 1] == whole[:, 1]).all()
    assert scores[15, 0] == pytest.approx(phi * whole[14, 0], rel=1e-12)
    assert scores[16, 0] == pytest.approx(phi**2 * whole[14, 0], rel=1e-12)
    # From then on it differs from the uninterrupted filter by what that one had learned, which it forgets.
    forgets = phi * (1 - kalman_gain(config))
    gap = scores[16, 0] - whole[16, 0]
    assert scores[29, 0] - whole[29, 0] == pytest.approx(gap * forgets**13, rel=1e-9)


@settings(deadline=None)
@given(configs, st.integers(1, 60), st.floats(-0.01, 0.01))
def test_a_trade_earns_the_sum_of_the_fading_drift(config: SyntheticConfig, holding_days: int, score: float) -> None:
    total, drift = 0.0, score
    for _ in range(holding_days):
        total += drift
        drift *= 0.5 ** (1 / config.drift_half_life_days)
    assert expected_trade_return(np.array([score]), config, holding_days) == pytest.approx(total, rel=1e-9)


def test_realised_trades_earn_what_the_rule_expects() -> None:
    """Bought at the open after the score and held for a trade, a stock returns what was expected, one to one."""
    config, holding_days = replace(CONFIG, stocks=300), 20
    market = synthetic_market(config, 12)
    expected = expected_trade_return(planted_rule_scores(market.close, config), config, holding_days)
    expected = expected[WARM_UP:-holding_days]
    realised = np.log(market.close[WARM_UP + holding_days :] / market.open[WARM_UP + 1 : 1 - holding_days])
    by_stock = expected.mean(axis=0)
    assert by_stock.mean() == pytest.approx(0.0, abs=4 * standard_error(by_stock))
    slopes = (realised * expected).mean(axis=0) / (expected**2).mean()
    assert slopes.mean() == pytest.approx(1.0, abs=4 * standard_error(slopes))
    assert standard_error(slopes) < 0.05
