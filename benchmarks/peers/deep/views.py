"""What deep agents see of a day, raw or the product's own inputs, and what they earn."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.deep.lanes import Float32Array, flat, scaled
from data.features.nine import NUM_FEATURES, observed_features
from data.market import Market
from environment.trading_env import TradingEnvironment, windows_from
from models.inputs import TradeInputs
from training.forecasts.training_days import TrainingDays
from utils.config.trader import EnvironmentConfig

View = Callable[[Market], Float32Array]
"""What an agent sees of a market's days besides its account: (days, features)."""
Act = Callable[[Float32Array], NDArray[Any]]
"""From flat observations, (lanes, features), to flat actions."""
_CLIP = 10.0


def raw_view(market: Market) -> Float32Array:
    """Show the observation's own market features: nine of each column."""
    features = observed_features(market.data_array, market.stats, market.input_clip)[..., :NUM_FEATURES]
    return features.reshape(len(market.dates), -1)


@dataclass(frozen=True)
class InputsView:
    """The product's inputs of each stock, fitted to the training days of one market."""

    inputs: TradeInputs
    trained_on: Market
    seen: Float32Array
    """(days, features) of that market: on training days cross-fitted inputs."""

    @classmethod
    def fit(cls, market: Market, rules: EnvironmentConfig) -> Self:
        """Fit inputs to the training days."""
        days = TrainingDays.of(market, TradingEnvironment.on(market, rules).account)
        x, own = days.inputs.of(market), days.samples.x
        x[own.days] = own.dense(own.days)
        return cls(days.inputs, market, _flattened(x))

    def __call__(self, market: Market) -> Float32Array:
        """Show the inputs without the constant."""
        return self.seen if market is self.trained_on else _flattened(self.inputs.of(market))


def _flattened(x: Float32Array) -> Float32Array:
    seen: Float32Array = np.clip(x[..., 1:], -_CLIP, _CLIP).reshape(len(x), -1)
    return seen


def profits(market: Market, rules: EnvironmentConfig, seen: Float32Array, starts: Tensor, act: Act) -> Any:
    """Play windows, one a lane; return their (windows,) profits in percent of the initial capital."""
    env = TradingEnvironment.on(market, rules)
    observation, info = env.reset(**windows_from(starts, rules))
    for _ in range(rules.episode_steps):
        actions = act(flat(observation, seen[info["day_index"]]))
        observation, _, _, _, info = env.step(scaled(actions, env.action_space))
    return env.get_episode_summary()["profit_percent"]
