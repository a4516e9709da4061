"""Rules and oracles of the planted markets: rules read past prices only, and are as good as these allow."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.synthetic.built_in import synthetic_market
from data.synthetic.kinds import PLANTED_KINDS, oracle_scores, rule_scores
from data.synthetic.kinds.drifts import REGIME_COMMON_SHARE, REGIMES, StateSpace, momentum_space, transient_space
from tests.data.test_synthetic import KINDS, standard_error
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

PLANTED = [kind for kind in KINDS if kind != "martingale"]
HOLDING, WARM_UP = 20, 250

LIVES, DRIFTS, NOISES = st.floats(0.5, 40.0), st.floats(0.0005, 0.02), st.floats(0.001, 0.05)
configs = st.builds(
    SyntheticConfig, kind=st.just("momentum"), drift_half_life_days=LIVES, drift_std=DRIFTS, daily_noise=NOISES
)
spaces = st.one_of(
    configs.map(momentum_space),
    st.builds(transient_space, configs, st.floats(0.05, 0.95), st.floats(1.0, 40.0), st.floats(0.0, 0.6)),
)


def covariances(space: StateSpace, days: int) -> tuple[Float64Array, Float64Array]:
    """Of past returns with one another, oldest first, and with the state at the end, summed day by day."""
    phi, load = space.persistence, space.loading
    state = space.shock_variance / (1 - phi**2)
    # cov(z[s], z[t]) for s < t: through x[s], of which load phi^(t-1-s) is left in z[t].
    seen = phi * load * state + space.covariance  # cov(z[s], x[s])
    lags = np.abs(np.subtract.outer(np.arange(days), np.arange(days)))
    of_returns = load * phi ** np.maximum(lags - 1, 0) * seen
    np.fill_diagonal(of_returns, load**2 * state + space.noise_variance)
    return of_returns, seen * phi ** np.arange(days - 1, -1, -1)


@settings(max_examples=25)
@given(spaces)
def test_the_filter_weighs_returns_as_the_best_linear_estimate_does(space: StateSpace) -> None:
    # Enough days for the oldest to weigh nothing, by how fast the filter forgets.
    forgets = abs(space.persistence - space.gain * space.loading)
    days = 5 + math.ceil(math.log(1e-5) / math.log(max(forgets, 1e-3)))
    if days > 400:
        return
    of_returns, with_state = covariances(space, days)
    # Stock k has a single return of 1 on day k + 1: its last estimate is the weight of that day.
    weights = space.filter(np.concatenate((np.zeros((1, days)), np.eye(days))))[-1]
    assert weights == pytest.approx(np.linalg.solve(of_returns, with_state), abs=1e-3)


def by_day(values: Float64Array) -> Float64Array:
    """Means over stretches of days that are long enough to be nearly independent."""
    stretches = np.array_split(values, 40)
    return np.array([stretch.mean() for stretch in stretches])


@pytest.mark.parametrize("kind", PLANTED)
def test_realised_trades_earn_what_is_expected_one_to_one(kind: str) -> None:
    """Bought at the open after the score and held for a trade: the regression of what came on the score has slope 1."""
    config = SyntheticConfig(kind=kind, days=12_000, stocks=12)
    market = synthetic_market(config, 12)
    trades = np.log(market.close[WARM_UP + HOLDING :] / market.open[WARM_UP + 1 : 1 - HOLDING])[:, : market.stocks]
    trades += HOLDING * PLANTED_KINDS[kind].log_growth(config)[: market.stocks]
    for scores in (rule_scores(config, market.bars, HOLDING), oracle_scores(config, market.drift, HOLDING)):
        expected, realised = scores[WARM_UP:-HOLDING, : market.stocks], trades
        if kind == "value":
            realised, expected = (part - part.mean(axis=1, keepdims=True) for part in (realised, expected))
        slopes = by_day((realised * expected).mean(axis=1)) / (expected**2).mean()
        squares = by_day((expected**2).mean(axis=1)) / (expected**2).mean()
        assert (slopes - squares).mean() == pytest.approx(0.0, abs=4 * standard_error(slopes - squares))
        assert standard_error(slopes - squares) < 0.09
        # A wrong scale or sign would show.
        assert slopes.mean() > 4 * standard_error(slopes)


@settings(max_examples=50)
@given(st.sampled_from(KINDS), st.integers(0, 2**32), st.integers(0, 38))
def test_scores_do_not_see_later_bars(kind: str, seed: int, last: int) -> None:
    config = SyntheticConfig(kind=kind, days=40, stocks=4)
    rng = np.random.default_rng(seed)
    bars = synthetic_market(config, seed).bars
    corrupted = {name: values.copy() for name, values in bars.items()}
    for values in corrupted.values():
        values[last + 1 :] = rng.choice([1e-9, 1.0, 1e9], size=values[last + 1 :].shape)
    corrupted["high"][last + 1 :] = 2 * corrupted["low"][last + 1 :]
    before, after = rule_scores(config, bars, HOLDING), rule_scores(config, corrupted, HOLDING)
    assert np.isfinite(before).all() and np.isfinite(after).all()
    assert (before[: last + 1] == after[: last + 1]).all()


@settings(max_examples=50)
@given(st.sampled_from(KINDS), st.integers(0, 2**32), st.integers(0, 38))
def test_drift_and_oracle_see_no_later_noise(kind: str, seed: int, last: int) -> None:
    """Nor does the drift; what is read of it ahead of a lead is known already."""
    config = SyntheticConfig(kind=kind, days=40, stocks=3)
    noise = np.random.default_rng(seed).standard_normal((40, len(PLANTED_KINDS[kind].noise_std(config))))
    corrupted = np.concatenate((noise[: last + 1], np.full_like(noise[last + 1 :], 1e6)))
    before, after = (
        PLANTED_KINDS[kind].latent_drift(config, values, np.random.default_rng(seed)) for values in (noise, corrupted)
    )
    assert (before[: last + 1] == after[: last + 1]).all()
    before, after = (oracle_scores(config, drift, HOLDING) for drift in (before, after))
    assert (before[: last + 1] == after[: last + 1]).all()


def regime_chance(mean_returns: Float64Array, variance: float) -> Float64Array:
    """Chance of the rising regime on the day after, by Bayes' rule on the two densities, day by day."""
    change, chances = REGIMES.switch_chance, []
    rising = 0.5
    for value in mean_returns:
        up = rising * math.exp(-((value - REGIMES.drift) ** 2) / (2 * variance))
        down = (1 - rising) * math.exp(-((value + REGIMES.drift) ** 2) / (2 * variance))
        rising = up / (up + down)
        rising = rising * (1 - change) + (1 - rising) * change
        chances.append(rising)
    return np.array(chances)


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_the_regime_rule_is_bayes_rule(seed: int, stocks: int) -> None:
    config = SyntheticConfig(kind="regime", days=60, stocks=stocks)
    bars = synthetic_market(config, seed).bars
    mean = np.diff(np.log(bars["close"]), axis=0).mean(axis=1) + PLANTED_KINDS["regime"].log_growth(config)[0]
    variance = config.daily_noise**2 * (REGIME_COMMON_SHARE + (1 - REGIME_COMMON_SHARE) / stocks)
    scores = rule_scores(config, bars, 1)
    assert scores[1:, 0] == pytest.approx(REGIMES.drift * (2 * regime_chance(mean, variance) - 1), rel=1e-6, abs=1e-12)
    assert (scores == scores[:, :1]).all()
