"""The interface from Python that stays as it is within a version; docs/api.md is its table.

from training.api import judge, load_market
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import register

from data.prepare.prepare import prepare
from environment.trading_env import Observation, TradingEnvironment, windows_from
from training.policies.judgement import Judgement, TradedMarket, judge, load_market
from training.policies.trades import Trades
from training.run.saved import SavedRun as Run
from training.run.saved import open_saved_run as open_run
from training.train import train as train_run
from utils.config.trader import Config, EvaluationConfig
from utils.errors import ConfigError

if TYPE_CHECKING:
    from training.signals.signals import Signals

API_VERSION = 2
ENVIRONMENT_ID = "ErlTrader-v0"
__all__ = [
    "API_VERSION",
    "ENVIRONMENT_ID",
    "Config",
    "EvaluationConfig",
    "Judgement",
    "Run",
    "TradedMarket",
    "Trades",
    "TradingEnvironment",
    "judge",
    "load_market",
    "make_environment",
    "open_run",
    "prepare",
    "signals",
    "train",
]


def train(config: Config) -> Run:
    """Train a run to its last generation, as `python main.py` does; return it opened.

    Raises ConfigError, DataError for settings or data that cannot be used.
    """
    train_run(config)
    return open_run(config.runs_dir, config.run or config.resume)


def signals(run: Run) -> "Signals":
    """Return a run's orders for the next session, decided at the last close, in an account with cash only.

    Raises DataError where too few tickers have a bar on that day.
    """
    from training.signals.signals import make_signals, newest_day

    last, rules = newest_day(run.market), run.config.env
    return make_signals(run.champion, run.benchmark, run.market, last, rules, rules.initial_capital)


class RandomWindows(gym.Wrapper[Observation, Any, Observation, Any]):
    """A trading environment whose plain `reset` begins a window that is drawn from a span of days."""

    def __init__(self, env: TradingEnvironment, first: int, latest: int) -> None:
        super().__init__(env)
        self._trading, self._first, self._latest = env, first, latest

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Any]:
        """Begin an episode with cash only, on a drawn window unless the options say which."""
        if seed is not None:
            self._trading.np_random = np.random.default_rng(seed)  # which the window is drawn by
        if not options:
            start = int(self._trading.np_random.integers(self._first, self._latest, endpoint=True))
            options = windows_from(start, self._trading.rules)
        return self._trading.reset(options=options)


def make_environment(
    data: Path | str | None = None,
    *,
    settings: Mapping[str, Any] | Path | str | None = None,
    split: str = "train",
    random_windows: bool = True,
) -> gym.Env[Observation, Any]:
    """Make the trading environment of a market's training or validation days.

    Args:
        data, settings: as in `load_market`.
        split: `train` or `validation`.
        random_windows: each `reset` draws a window; else each begins the same, the first of the days.

    Raises ConfigError, DataError for another split, or data and settings that cannot be used.
    """
    if split not in ("train", "validation"):
        raise ConfigError(f"expected train or validation as split, got {split!r}")
    market = load_market(data, settings)
    env, days = TradingEnvironment.on(market.market, market.config.env), getattr(market.market.splits, split)
    if random_windows:
        return RandomWindows(env, days.first, days.last - env.rules.episode_steps)
    env.reset(**windows_from(days.first, env.rules))
    return env


register(ENVIRONMENT_ID, entry_point=f"{__name__}:{make_environment.__name__}")
