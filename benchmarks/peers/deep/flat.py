"""Flat observations and actions for deep agents: a day's features, raw or the product's own, beside the account."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnvWrapper
from torch import Tensor

from benchmarks.peers.deep.lanes import Lanes
from data.features.nine import NUM_FEATURES, observed_features
from data.market import Market
from environment.trading_env import TradingEnvironment, windows_from
from models.inputs import TradeInputs
from training.forecasts.training_days import TrainingDays
from utils.config.trader import EnvironmentConfig

Float32Array = NDArray[np.float32]
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


def flat(observation: Mapping[str, Float32Array], seen: Float32Array) -> Float32Array:
    """Join what is seen of the lanes' days and the account: (lanes, features)."""
    parts = (observation[name].reshape(len(seen), -1) for name in ("portfolio", "exits", "account"))
    joined: Float32Array = np.concatenate((seen, *parts), axis=1)
    return joined


def scaled(actions: NDArray[Any], space: gym.Space[Any]) -> Float32Array:
    """Scale actions in [-1, 1], (lanes, 2 x stocks), coefficients before targets, to those of the environment."""
    assert isinstance(space, gym.spaces.Box)
    pairs = np.clip(np.asarray(actions, np.float32).reshape(len(actions), 2, -1).swapaxes(1, 2), -1.0, 1.0)
    found: Float32Array = (space.low + (pairs + 1.0) / 2.0 * (space.high - space.low)).astype(np.float32)
    return found


class FlatLanes(VecEnvWrapper):
    """Lanes with flat observations and actions in [-1, 1]."""

    def __init__(self, lanes: Lanes, seen: Float32Array) -> None:
        self.lanes, self.seen, self.steps = lanes, seen, 0
        self.account = lanes.env.env.account
        stocks = self.account.bars.stocks
        width = seen.shape[1] + 6 * stocks + 3
        super().__init__(
            lanes,
            gym.spaces.Box(-np.inf, np.inf, (width,), np.float32),
            gym.spaces.Box(-1.0, 1.0, (2 * stocks,), np.float32),
        )

    def reset(self) -> Float32Array:
        """Begin episodes in all lanes."""
        return self._flat(self.lanes.reset())

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the scaled actions."""
        self.lanes.step_async(scaled(actions, self.lanes.action_space))

    def step_wait(self) -> tuple[Float32Array, Float32Array, NDArray[np.bool_], list[dict[str, Any]]]:
        """Step; the infos hold the last observation of episodes that ended."""
        today = self.account.day.numpy() + 1
        observation, rewards, done, infos = self.lanes.step_wait()
        self.steps += self.num_envs
        for lane, info in enumerate(infos):
            if info:
                last = {name: value[None] for name, value in info["terminal_observation"].items()}
                info["terminal_observation"] = flat(last, self.seen[today[lane : lane + 1]])[0]
        return self._flat(observation), rewards, done, infos

    def _flat(self, observation: Any) -> Float32Array:
        return flat(observation, self.seen[self.account.day.numpy()])


def profits(market: Market, rules: EnvironmentConfig, seen: Float32Array, starts: Tensor, act: Act) -> Any:
    """Play windows, one a lane; return their (windows,) profits in percent of the initial capital."""
    env = TradingEnvironment.on(market, rules)
    observation, info = env.reset(**windows_from(starts, rules))
    for _ in range(rules.episode_steps):
        actions = act(flat(observation, seen[info["day_index"]]))
        observation, _, _, _, info = env.step(scaled(actions, env.action_space))
    return env.get_episode_summary()["profit_percent"]
