"""The program's parts at full scale on real prices, where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from data.loader import StockDataLoader
from environment.trading_env import TradingEnvironment

FOLDER = Path(__file__).parents[3] / "shared" / "data"
PRICES, INVESTABLE = FOLDER / "us_daily_1999_2014.parquet", FOLDER / "investable_108.txt"
pytestmark = pytest.mark.skipif(not PRICES.exists(), reason=f"no real prices at {PRICES}")


@pytest.fixture(scope="module")
def loader() -> StockDataLoader:
    loader = StockDataLoader(PRICES, investable=INVESTABLE)
    loader.load_and_prepare()
    return loader


def test_ten_windows_on_one_environment(loader: StockDataLoader) -> None:
    env = TradingEnvironment(
        data_array=loader.data_array,
        dates=loader.dates,
        normalization_stats=loader.compute_normalization_stats(),
        start_idx=504,
        end_idx=649,
        trading_end_idx=629,
        investable_columns=loader.investable_columns,
    )
    seen = set()
    for start in range(504, 3504, 300):
        observation, info = env.reset(start_idx=start, end_idx=start + 145, trading_end_idx=start + 125)
        assert observation["market"].shape == (669, 9) and observation["portfolio"].shape == (108, 4)
        assert np.isfinite(observation["market"]).all() and info["day_index"] == start
        seen.add(observation["market"].tobytes())
        steps, done = 0, False
        rng = np.random.default_rng(start)
        while not done:
            action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
            observation, _, done, _, info = env.step(action)
            steps += 1
        summary = env.get_episode_summary()
        assert steps == 145 and summary["trades"] == summary["positions_opened"] > 20
        assert summary["final_equity"] == pytest.approx(info["cash"], rel=1e-12)
    assert len(seen) == 10
