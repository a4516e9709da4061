"""The built-in market has the structure it claims, in every kind, and is fair to those who do not know it."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.loader import StockDataLoader
from data.synthetic.built_in import bars_frame, synthetic_market
from data.synthetic.kinds import PLANTED_KINDS, rule_scores
from data.synthetic.kinds.columns import LEAD_LAG, MIXED_LOADING
from data.synthetic.kinds.nonlinear import AGREE, RING, TrendDrift
from data.synthetic.law import FAIR_SESSIONS
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

SIZES = {"days": st.integers(2, 60), "stocks": st.integers(1, 5), "drift_half_life_days": st.floats(0.5, 40.0)}
NOISE = {"daily_noise": st.floats(0.001, 0.05), "drift_std": st.floats(0.0, 0.02)}
configs = st.builds(SyntheticConfig, kind=st.sampled_from(sorted(PLANTED_KINDS)), **SIZES, **NOISE)
KINDS: tuple[str, ...] = tuple(PLANTED_KINDS)


def standard_error(by_stock: Float64Array) -> float:
    """Of the mean over stocks, which are independent."""
    return float(by_stock.std(ddof=1) / math.sqrt(len(by_stock)))


@settings(max_examples=40)
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
    paths = []
    for seed in range(30):
        market = synthetic_market(SyntheticConfig(kind=kind, days=1200, stocks=12), seed)
        grown = market.close[FAIR_SESSIONS:] / market.open[1 : 1 - FAIR_SESSIONS] - 1
        paths.append(grown[:, : market.stocks].mean())
    growth = np.array(paths)
    assert growth.mean() == pytest.approx(0.0, abs=4 * standard_error(growth))
    assert standard_error(growth) < 0.003


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_as_large_in_every_kind_and_shared_as_said(kind: str) -> None:
    config = SyntheticConfig(kind=kind, days=2000, stocks=20)
    market = synthetic_market(config, 9)
    # Row t of the returns is that of day t + 1, which `drift[t]` foretells.
    noise = (np.diff(np.log(market.close), axis=0) - market.drift[:-1])[:, : market.stocks]
    pairs = np.corrcoef(noise.T)[np.triu_indices(market.stocks, 1)]
    assert pairs.mean() == pytest.approx(PLANTED_KINDS[kind].common_share, abs=0.03)
    assert noise.std(axis=0).mean() == pytest.approx(config.daily_noise, rel=0.03 if kind != "mixed" else 0.1)


def test_each_third_of_a_mixed_market_has_its_law_and_every_second_stock_follows() -> None:
    config = SyntheticConfig(kind="mixed", days=12_000, stocks=12)
    own = config.daily_noise * np.random.default_rng(4).standard_normal((config.days, 13))
    drift = PLANTED_KINDS["mixed"].latent_drift(config, own, np.random.default_rng(5))
    lag = LEAD_LAG
    slopes = drift[lag:, :12].T @ drift[:-lag, 12] / (drift[:-lag, 12] @ drift[:-lag, 12])
    assert slopes[::2] == pytest.approx(np.full(6, MIXED_LOADING), abs=0.01)
    assert slopes[1::2] == pytest.approx(np.zeros(6), abs=0.01)
    alone = drift[:, 1:12:2]  # momentum: 3, 9; bursts: 1, 7; ring: 5, 11
    momentum, bursts, ring = alone[:, [1, 4]], alone[:, [0, 3]], alone[:, [2, 5]]
    assert momentum.std() == pytest.approx(config.drift_std, rel=0.1)
    assert np.abs(bursts).max() > 6 * bursts.std()
    assert np.abs(ring).max() < 0.4 * config.daily_noise and ring.std() > 0.2 * config.daily_noise


WARM_UP = 400


def trends_of(returns: Float64Array, std: float) -> Float64Array:
    """(2, days, columns) exponential means of the returns, in their standard deviations under independent noise."""
    kept = {half_life: 0.5 ** (1 / half_life) for half_life in (16, 64)}
    means = [pd.DataFrame(returns).ewm(halflife=half_life, adjust=False).mean() for half_life in kept]
    spreads = [std * math.sqrt((1 - share) / (1 + share)) for share in kept.values()]
    return np.stack([mean.to_numpy() / spread for mean, spread in zip(means, spreads, strict=True)])


def explained(inputs: list[Float64Array], results: Float64Array) -> float:
    """Return the share of the variance of (n,) results that least squares on inputs explain."""
    rows = np.stack([np.ones(len(results)), *(values.ravel() for values in inputs)], axis=1)
    fitted = rows @ np.linalg.lstsq(rows, results, rcond=None)[0]
    return float(fitted.var() / results.var())


@pytest.mark.parametrize(("kind", "law", "line"), [("agree", AGREE, 0.06), ("ring", RING, 0.2)])
def test_lines_on_trends_explain_next_to_nothing_and_the_rule_what_there_is(
    kind: str, law: TrendDrift, line: float
) -> None:
    """Next-day returns: `line` is the largest share of the predictable variance that a weighing of trends may find."""
    config = SyntheticConfig(kind=kind, days=3000, stocks=60)
    market = synthetic_market(config, 21)
    returns = np.diff(np.log(market.close), axis=0, prepend=np.log(market.close[:1]))
    own = returns - returns.mean(axis=1, keepdims=True)
    known, following = slice(WARM_UP, -1), own[WARM_UP + 1 :].ravel()
    predictable = float(market.drift[known].var() / following.var())
    by_rule = explained([rule_scores(config, market.bars, 1)[known]], following)
    by_line = explained(list(trends_of(own, law.specific_std(config))[:, known]), following)
    assert by_rule == pytest.approx(predictable, rel=0.25)
    assert by_line < line * predictable
