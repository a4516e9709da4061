"""Stable-Baselines3's form of the trading environment: flat observations and actions, windows of a market as lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.vec_env.base_vec_env import VecEnv
from torch import Tensor

from data.features import NUM_FEATURES, observed_features
from data.market import Market
from environment.trading_env import Observation, TradingEnvironment
from models.genome import random_genes
from models.inputs import TradeInputs
from training.forecasts.ridge import TrainingDays, expectations
from utils.config.trader import EnvironmentConfig
from utils.runs.seeding import named_generator

Float32Array = NDArray[np.float32]
View = Callable[[Market], Float32Array]
"""What an agent sees of a market's days besides its account: (days, features)."""


def raw_view(market: Market) -> Float32Array:
    """Show the observation's own market features: nine of each column."""
    features = observed_features(market.data_array, market.stats, market.input_clip)[..., :NUM_FEATURES]
    return features.reshape(len(market.dates), -1)


@dataclass(frozen=True)
class InputsView:
    """The product's inputs of each stock and its closed-form forecast, fitted to the training days of one market."""

    inputs: TradeInputs
    weights: Tensor
    """(1, inputs) of the ridge regression that explains most out of fold, of 16 drawn at random."""
    trained_on: Market
    seen: Float32Array
    """(days, features) of that market: on training days cross-fitted inputs and out-of-fold forecasts."""

    @classmethod
    def fit(cls, market: Market, rules: EnvironmentConfig, seed: int) -> Self:
        """Fit inputs and forecasts to the training days."""
        days = TrainingDays.of(market, TradingEnvironment.on(market, rules).account)
        ridge = days.fit(random_genes(16, named_generator(seed, "peers")))
        best = int(ridge.explained.argmax())
        weights = ridge.weights[best : best + 1]
        forecast = days.out_of_fold(ridge.by_fold[best : best + 1])[0]
        forecast = torch.where(forecast.isfinite(), forecast, expectations(days.x, weights)[0])
        return cls(days.inputs, weights, market, _flat(days.x, forecast))

    def __call__(self, market: Market) -> Float32Array:
        """Show the inputs without the constant, and the forecast in percent of an order's largest size."""
        if market is self.trained_on:
            return self.seen
        x = torch.from_numpy(self.inputs.of(market))
        return _flat(x, expectations(x, self.weights)[0])


def _flat(x: Tensor, forecast: Tensor) -> Float32Array:
    seen = torch.cat((x[..., 1:].clamp(-10.0, 10.0), forecast[..., None]), dim=-1)
    flat: Float32Array = seen.flatten(1).float().numpy()
    return flat


class Lanes(VecEnv):
    """Windows of a market traded in lockstep; an episode over, each lane begins the next window that is drawn for it.

    Actions are in [-1, 1], (lanes, 2 x stocks): coefficients, then sale targets, scaled to their ranges.
    """

    def __init__(
        self, market: Market, rules: EnvironmentConfig, seen: Float32Array, lanes: int, starts: Callable[[int], Tensor]
    ) -> None:
        self.env, self.seen, self.starts = TradingEnvironment.on(market, rules), seen, starts
        self.stocks = len(market.investable_columns)
        width = seen.shape[1] + 6 * self.stocks + 3
        super().__init__(
            lanes,
            gym.spaces.Box(-np.inf, np.inf, (width,), np.float32),
            gym.spaces.Box(-1.0, 1.0, (2 * self.stocks,), np.float32),
        )
        self.low, self.high = self.env.action_space.low, self.env.action_space.high  # type: ignore[attr-defined]
        self.steps = 0

    def reset(self) -> Float32Array:
        """Begin an episode in every lane."""
        start = self.starts(self.num_envs).numpy()
        rules = self.env.rules
        windows = {"end_idx": start + rules.episode_steps, "trading_end_idx": start + rules.trading_days}
        return self._flat(*self.env.reset(options={"start_idx": start, **windows}))

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the actions of `step_wait`."""
        self.actions = actions

    def step_wait(self) -> tuple[Float32Array, Float32Array, NDArray[np.bool_], list[dict[str, Any]]]:
        """Trade a day; lanes that end begin anew, their last observation in the infos."""
        scaled = np.asarray(self.actions, np.float32).reshape(self.num_envs, 2, self.stocks).swapaxes(1, 2)
        action = self.low + (np.clip(scaled, -1.0, 1.0) + 1.0) / 2.0 * (self.high - self.low)
        observation, reward, terminated, _, info = self.env.step(action.astype(np.float32))
        self.steps += self.num_envs
        flat, infos = self._flat(observation, info), [dict[str, Any]() for _ in range(self.num_envs)]
        if terminated.all():
            for lane, own in enumerate(infos):
                own |= {"terminal_observation": flat[lane], "TimeLimit.truncated": False}
            flat = self.reset()
        return flat, reward.astype(np.float32), terminated, infos

    def _flat(self, observation: Observation, info: dict[str, Any]) -> Float32Array:
        parts = (observation[name].reshape(self.num_envs, -1) for name in ("portfolio", "exits", "account"))
        flat: Float32Array = np.concatenate((self.seen[info["day_index"]], *parts), axis=1)
        return flat

    def profits(self, act: Callable[[Float32Array], NDArray[Any]]) -> NDArray[np.float64]:
        """Play one episode in every lane; return the (lanes,) profits in percent of the initial capital."""
        observation = self.reset()
        for _ in range(self.env.rules.episode_steps - 1):
            self.step_async(act(observation))
            observation, *_ = self.step_wait()
        # The last day closes every position whatever the action; `step` would begin anew.
        self.env.step(np.tile(self.low, (self.num_envs, 1, 1)))
        found: NDArray[np.float64] = self.env.get_episode_summary()["profit_percent"]
        return found

    def close(self) -> None:
        """Keep everything: nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the lanes, which are one object."""
        return [getattr(self.env, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: lanes share their environment."""
        raise NotImplementedError

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Refuse: lanes share their environment."""
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> Sequence[bool]:  # type: ignore[override]
        """Tell that nothing is wrapped."""
        return [False] * self.num_envs
