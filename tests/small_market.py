"""Tiny markets, as the loader makes them, with rules: a whole episode takes milliseconds."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from data.loader import StockDataLoader
from data.market import Market, build_market
from environment.trading_env import TradingEnvironment, windows_from
from tests.market_cases import random_panel
from utils.arrays import Float32Array
from utils.config.trader import DataConfig, EnvironmentConfig

# Operations this small only lose time, and order of summation, to more threads.
torch.set_num_threads(1)

TINY_DATA = DataConfig(context_window_days=16, train_fraction=0.5, validation_fraction=0.25, max_bad_row_share=0.9)
TINY_RULES = EnvironmentConfig(trading_days=12, settlement_days=6, max_days_without_bar=2)


def panel_frame(panel: Float32Array, volume: Float32Array | None = None) -> pd.DataFrame:
    """Long frame of a (days, columns, 4) panel of open, high, low, close; a row of NaN where there is no bar.

    It has a column of (days, columns) volumes if they are given.
    """
    days, columns, _ = panel.shape
    dates = np.busday_offset(np.datetime64("2010-01-04"), np.arange(days)).astype("datetime64[s]")
    tickers = [f"T{column:02d}" for column in range(columns)]
    frame = pd.DataFrame({"date": np.repeat(dates, columns), "ticker": np.tile(tickers, days)})
    frame[["open", "high", "low", "close"]] = panel.reshape(-1, 4).astype(np.float64)
    if volume is not None:
        frame["volume"] = volume.ravel()
    return frame


def loader_of(
    panel: Float32Array,
    *,
    config: DataConfig = TINY_DATA,
    investable: Sequence[int] | None = None,
    volume: Float32Array | None = None,
) -> StockDataLoader:
    """A prepared loader of a panel and perhaps its (days, columns) volume; `investable` are columns."""
    tickers = None if investable is None else [f"T{column:02d}" for column in investable]
    frame = panel_frame(panel, volume)
    needs = volume is not None
    loader = StockDataLoader.from_frame(frame, config=config, investable_tickers=tickers, requires_volume=needs)
    loader.load_and_prepare()
    return loader


def market_of(
    panel: Float32Array,
    *,
    config: DataConfig = TINY_DATA,
    rules: EnvironmentConfig = TINY_RULES,
    investable: Sequence[int] | None = None,
    volume: Float32Array | None = None,
) -> Market:
    """A panel as training sees it, through the loader."""
    return build_market(loader_of(panel, config=config, investable=investable, volume=volume), config, rules)


def small_market(
    seed: int = 0, days: int = 160, columns: int = 5, *, investable: Sequence[int] | None = None
) -> Market:
    """A random market with gaps, late starts, halts and delistings."""
    return market_of(random_panel(np.random.default_rng(seed), days, columns), investable=investable)


def environment_of(
    market: Market, start: int | None = None, *, rules: EnvironmentConfig = TINY_RULES
) -> TradingEnvironment:
    """The single environment on the window of the rules' length from `start`; default: the first training day."""
    env = TradingEnvironment.on(market, rules)
    if start is not None:
        env.reset(**windows_from(start, rules))
    return env
