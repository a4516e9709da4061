"""The built-in market has the structure it claims, in every kind, and is fair to those who do not know it."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.loader import StockDataLoader
from data.synthetic.draw import SyntheticMarket, bars_frame, synthetic_market
from data.synthetic.kinds.leak import LEAK_FACTOR_RATIO, LEAK_NOISE_RATIO, LEAK_SESSIONS, LEAK_SHARE, loadings
from data.synthetic.kinds.mixed import MIXED_LAG, MIXED_LOADING
from data.synthetic.kinds.regime import INTERACTION_LOADING, INTERACTION_SESSIONS
from data.synthetic.kinds.spikes import SPIKE_CHANCE, SPIKE_FALL_CHANCE, SPIKE_KEPT, SPIKE_SESSIONS
from data.synthetic.law import FAIR_SESSIONS
from data.synthetic.planted import PLANTED_KINDS
from utils.config.trader import SyntheticConfig

Array = npt.NDArray[np.float64]

configs = st.builds(
    SyntheticConfig,
    kind=st.sampled_from(sorted(PLANTED_KINDS)),
    days=st.integers(2, 60),
    stocks=st.integers(1, 5),
    daily_noise=st.floats(0.001, 0.05),
    drift_std=st.floats(0.0, 0.02),
    drift_half_life_days=st.floats(0.5, 40.0),
)
KINDS: tuple[str, ...] = tuple(PLANTED_KINDS)


def standard_error(by_stock: Array) -> float:
    """Of the mean over stocks, which are independent."""
    return float(by_stock.std(ddof=1) / math.sqrt(len(by_stock)))


def log_returns(market: SyntheticMarket) -> Array:
    """(days - 1, stocks): row t is the return of day t + 1, which `drift[t]` foretells."""
    return np.diff(np.log(market.close), axis=0)


@settings(deadline=None, max_examples=40)
@given(configs, st.integers(0, 2**63))
def test_bars_are_whole_fit_single_precision_and_follow_from_the_seed(config: SyntheticConfig, seed: int) -> None:
    market, again = (synthetic_market(config, seed) for _ in range(2))
    assert (market.high >= np.maximum(market.open, market.close)).all()
    assert (market.low <= np.minimum(market.open, market.close)).all()
    assert (market.low > 0).all()
    for name in ("open", "high", "low", "close", "drift"):
        values = getattr(market, name)
        assert values.shape == (config.days, len(market.tickers))
        assert np.isfinite(values).all() and (values == getattr(again, name)).all()
        assert name == "drift" or (values == values.astype(np.float32)).all()
    assert (market.close != synthetic_market(config, seed + 1).close).any()


def test_seed_0_gives_these_prices_everywhere() -> None:
    market = synthetic_market(SyntheticConfig(kind="momentum", days=3, stocks=2), seed=0)
    close = [[140.1890869140625, 24.411264419555664], [141.4796905517578, 24.535045623779297]]
    assert market.close[:2] == pytest.approx(np.array(close), rel=1e-6)
    assert market.high[2] == pytest.approx(np.array([142.3153533935547, 24.80287742614746]), rel=1e-6)


def test_the_loader_gets_the_same_prices() -> None:
    market = synthetic_market(SyntheticConfig(kind="momentum", days=90, stocks=3), seed=5)
    loader = StockDataLoader.from_frame(bars_frame(market))
    loader.load_and_prepare()
    assert loader.tickers == market.tickers == ["S000", "S001", "S002"]
    assert (loader.dates == market.dates).all() and np.is_busday(market.dates).all()
    for feature, name in enumerate(("open", "close", "high", "low")):
        assert (loader.data_array[:, :, feature] == getattr(market, name)).all()
    assert loader.quality.masked == loader.quality.widened == loader.quality.gaps == 0


@pytest.mark.parametrize("sessions", [1, 20])
def test_a_martingale_grows_by_nothing_from_close_or_open(sessions: int) -> None:
    # So noisy that half of even the overnight variance would show.
    market = synthetic_market(SyntheticConfig(days=400, stocks=1000, daily_noise=0.06, kind="martingale"), 2)
    for bought in (market.close[:-sessions], market.open[1 : -sessions + 1 or None]):
        growth = (market.close[sessions:] / bought - 1).mean(axis=0)
        assert growth.mean() == pytest.approx(0.0, abs=4 * standard_error(growth))
    overnight = (market.open[1:] / market.close[:-1] - 1).mean(axis=0)
    assert overnight.mean() == pytest.approx(0.0, abs=4 * standard_error(overnight))


def test_the_range_of_a_session_is_that_of_a_brownian_path() -> None:
    config = SyntheticConfig(kind="martingale", days=300, stocks=1000, daily_noise=0.03)
    market = synthetic_market(config, 8)
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


@pytest.mark.parametrize("kind", KINDS)
def test_holding_any_stock_earns_nothing(kind: str) -> None:
    """Bought at an open of any day and held for a usual trade; only many paths tell how sure a mean is."""
    markets = [synthetic_market(SyntheticConfig(kind=kind, days=1200, stocks=12), seed) for seed in range(30)]
    growth = np.array(
        [
            (market.close[FAIR_SESSIONS:] / market.open[1 : 1 - FAIR_SESSIONS] - 1)[:, : market.stocks].mean()
            for market in markets
        ]
    )
    assert growth.mean() == pytest.approx(0.0, abs=4 * standard_error(growth))
    assert standard_error(growth) < 0.003


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_as_large_in_every_kind_and_shared_as_said(kind: str) -> None:
    config = SyntheticConfig(kind=kind, days=2000, stocks=20)
    market = synthetic_market(config, 9)
    noise = (log_returns(market) - market.drift[:-1])[:, : market.stocks]
    pairs = np.corrcoef(noise.T)[np.triu_indices(market.stocks, 1)]
    assert pairs.mean() == pytest.approx(PLANTED_KINDS[kind].common_share, abs=0.03)
    assert noise.std(axis=0).mean() == pytest.approx(config.daily_noise, rel=0.03 if kind != "mixed" else 0.1)


def test_a_spike_comes_after_a_fall_and_passes_but_for_its_share() -> None:
    config = SyntheticConfig(kind="spikes", days=4000, stocks=10)
    market = synthetic_market(config, 3)
    drift = market.drift
    is_jump = drift > 0.05
    sizes = np.expm1(drift[is_jump])
    assert sizes.min() > 0.05 and sizes.max() < 0.151 and sizes.mean() == pytest.approx(0.115, abs=0.005)
    noise = log_returns(market) - drift[:-1]
    fell = np.roll(noise, SPIKE_SESSIONS, axis=0)[SPIKE_SESSIONS:] < -2.2 * config.daily_noise
    assert fell[is_jump[SPIKE_SESSIONS:-1]].all()
    assert is_jump.mean() == pytest.approx(SPIKE_FALL_CHANCE * SPIKE_CHANCE, rel=0.2)
    assert drift.sum() == pytest.approx(SPIKE_KEPT * drift[is_jump].sum(), rel=0.1)


def test_moves_are_repeated_while_the_context_rises_and_undone_while_it_falls() -> None:
    config = SyntheticConfig(kind="interaction", days=4000, stocks=10)
    market = synthetic_market(config, 3)
    noise = (log_returns(market) - market.drift[:-1])[:, :10]
    direction = np.sign(market.drift[:-1, -1:])
    lag = INTERACTION_SESSIONS
    answers = market.drift[lag:-1, :10]
    moves = (noise * direction)[: len(answers)]
    slope = (answers * moves).mean() / (moves**2).mean()
    assert slope == pytest.approx(INTERACTION_LOADING, rel=0.02)
    alone = (answers * noise[: len(answers)]).mean() / (noise**2).mean()
    assert abs(alone) < 0.15 * INTERACTION_LOADING


@pytest.mark.parametrize(("kind", "lag"), [("leak", 0), ("lagged-leak", 60)])
def test_the_columns_move_tells_the_next_20_sessions_and_nothing_else_does(kind: str, lag: int) -> None:
    config = SyntheticConfig(kind=kind, days=6000, stocks=6)
    returns = log_returns(synthetic_market(config, 4))
    move, stocks = returns[:, -1], returns[:, :-1]
    weights = loadings(config) / (loadings(config) @ loadings(config))

    def slopes_on(first: int) -> Array:
        """(stocks,) of the sums over 20 sessions from `first` after the move on."""
        sums = np.lib.stride_tricks.sliding_window_view(stocks, LEAK_SESSIONS, axis=0).sum(axis=-1)
        later = sums[first:]
        return later.T @ move[: len(later)] / (move[: len(later)] @ move[: len(later)])

    told = slopes_on(lag + 1)
    noise = LEAK_NOISE_RATIO**2 / (LEAK_SESSIONS * (LEAK_FACTOR_RATIO * LEAK_SHARE) ** 2)
    assert told @ weights == pytest.approx(1 / (LEAK_SHARE * (1 + noise)), rel=0.15)
    assert (np.sign(told) == np.sign(loadings(config))).all()
    for other in (lag + 1 + LEAK_SESSIONS, max(1, lag - 2 * LEAK_SESSIONS) if lag else 60):
        assert abs(slopes_on(other) @ weights) < 0.2 * (told @ weights)


def test_each_third_of_a_mixed_market_has_its_law_and_every_second_stock_follows() -> None:
    config = SyntheticConfig(kind="mixed", days=12_000, stocks=12)
    own = config.daily_noise * np.random.default_rng(4).standard_normal((config.days, 13))
    drift = PLANTED_KINDS["mixed"].latent_drift(config, own, np.random.default_rng(5))
    lag = MIXED_LAG
    slopes = drift[lag:, :12].T @ drift[:-lag, 12] / (drift[:-lag, 12] @ drift[:-lag, 12])
    assert slopes[::2] == pytest.approx(np.full(6, MIXED_LOADING), abs=0.01)
    assert slopes[1::2] == pytest.approx(np.zeros(6), abs=0.01)
    alone = drift[:, 1:12:2]  # momentum: 3, 9; bursts: 1, 7; ring: 5, 11
    momentum, bursts, ring = alone[:, [1, 4]], alone[:, [0, 3]], alone[:, [2, 5]]
    assert momentum.std() == pytest.approx(config.drift_std, rel=0.1)
    assert np.abs(bursts).max() > 6 * bursts.std()
    assert np.abs(ring).max() < 0.4 * config.daily_noise and ring.std() > 0.2 * config.daily_noise
