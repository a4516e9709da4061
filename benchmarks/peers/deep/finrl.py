"""FinRL's own environment and its DDPG recipe (Liu et al. 2020), on the same prices in its form.

Its package asks for brokers' and data vendors' clients as soon as it is imported, so the one file of the environment is
loaded by its path: `pip install --no-deps FinRL`. Its rules are its own: whole shares, at most 100 of a stock a day at
the close that is observed, no holding period; costs are ours.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from types import ModuleType

import gymnasium as gym
import numpy as np
import pandas as pd
import stable_baselines3 as sb3
import talib

from benchmarks.learning.unseen import UnseenPath
from benchmarks.peers.deep.agents import Keeper
from benchmarks.peers.peer import Array, Budget, Learned
from data.features import CLOSE, HIGH, LOW
from data.market import Market
from data.splits import spaced_windows
from utils.config.trader import Config, EnvironmentConfig
from utils.errors import ConfigError

_MODULE = "finrl/meta/env_stock_trading/env_stocktrading.py"
_INDICATORS = ("macd", "boll_ub", "boll_lb", "rsi_30", "cci_30", "dx_30", "close_30_sma", "close_60_sma")
_MOST_SHARES, _REWARD_SCALING = 100, 1e-4
_SETTINGS = {"batch_size": 128, "buffer_size": 50_000, "learning_rate": 0.001}
"""Of DDPG in FinRL's `config.py`."""


def finrl_ddpg(config: Config, market: Market, budget: Budget) -> Learned:
    """Train FinRL's DDPG on episodes over all training days; keep the agent that earned most on validation windows."""
    is_spent, module, frame = budget.started(), _module(), _frame(market)
    train, steps = market.splits.train, config.env.episode_steps
    env = _env(module, frame, config.env, slice(train.first, train.last + 1))
    model = sb3.DDPG("MlpPolicy", env, seed=config.seed, device="cpu", **_SETTINGS)  # type: ignore[arg-type]
    starts = spaced_windows(market.splits.validation, steps, config.evaluation.validation_windows).tolist()

    def profits(frame: pd.DataFrame, starts: list[int]) -> Array:
        windows = (slice(start, start + steps + 1) for start in starts)
        return np.array([_profit(_env(module, frame, config.env, window), model) for window in windows])

    keeper = Keeper(is_spent, budget.seconds / 4, lambda: float(profits(frame, starts).mean()))
    model.learn(total_timesteps=2**62, callback=keeper)
    keeper.look()
    model.set_parameters(keeper.best)

    def play(path: UnseenPath) -> Array:
        return profits(_frame(path.market), path.starts.tolist())

    return Learned(play, model.num_timesteps)


def _module() -> ModuleType:
    try:
        path = importlib.metadata.distribution("FinRL").locate_file(_MODULE)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError("expected FinRL's package, got none; pip install --no-deps FinRL") from None
    spec = importlib.util.spec_from_file_location("finrl_environment", str(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _frame(market: Market) -> pd.DataFrame:
    """Return the investable stocks in FinRL's long form, a row a day and stock, indexed by the day's number."""
    prices = market.data_array[:, market.investable_columns].astype(np.float64)
    prices = pd.DataFrame(prices.reshape(len(prices), -1)).ffill().bfill().to_numpy().reshape(prices.shape)
    parts = []
    for place, column in enumerate(market.investable_columns):
        close, high, low = (prices[:, place, feature] for feature in (CLOSE, HIGH, LOW))
        upper, _, lower = talib.BBANDS(close, 20)
        values = {
            "date": market.dates.astype(str),
            "tic": market.tickers[column],
            "close": close,
            "macd": talib.MACD(close)[0],
            "boll_ub": upper,
            "boll_lb": lower,
            "rsi_30": talib.RSI(close, 30),
            "cci_30": talib.CCI(high, low, close, 30),
            "dx_30": talib.DX(high, low, close, 30),
            "close_30_sma": talib.SMA(close, 30),
            "close_60_sma": talib.SMA(close, 60),
        }
        parts.append(pd.DataFrame(values).fillna(0.0))
    return pd.concat(parts).sort_index(kind="stable")


def _env(module: ModuleType, frame: pd.DataFrame, rules: EnvironmentConfig, days: slice) -> gym.Env[Array, Array]:
    window = frame.loc[days.start : days.stop - 1]
    window.index = window.index - days.start
    stocks = window.loc[0].shape[0]
    env: gym.Env[Array, Array] = module.StockTradingEnv(
        df=window,
        stock_dim=stocks,
        hmax=_MOST_SHARES,
        initial_amount=int(rules.initial_capital),
        num_stock_shares=[0] * stocks,
        buy_cost_pct=[rules.cost_rate] * stocks,
        sell_cost_pct=[rules.cost_rate] * stocks,
        reward_scaling=_REWARD_SCALING,
        state_space=1 + (2 + len(_INDICATORS)) * stocks,
        action_space=stocks,
        tech_indicator_list=list(_INDICATORS),
        print_verbosity=2**31,
    )
    return env


def _profit(env: gym.Env[Array, Array], model: sb3.DDPG) -> float:
    """Play an episode; return the profit in percent of the initial capital."""
    observation, done = np.asarray(env.reset()[0]), False
    while not done:
        seen, _, done, _, _ = env.step(model.predict(observation, deterministic=True)[0])
        observation = np.asarray(seen)
    first, last = (env.unwrapped.asset_memory[place] for place in (0, -1))  # type: ignore[attr-defined]
    return float(100.0 * (last / first - 1.0))
