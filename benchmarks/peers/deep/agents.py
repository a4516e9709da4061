"""Deep agents of Stable-Baselines3 (Raffin et al. 2021), which FinRL trains too, on the trading environment."""

import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sb3_contrib
import stable_baselines3 as sb3
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise

from benchmarks.learning.unseen import UnseenPath
from benchmarks.peers.deep.lanes import FlatLanes, Float32Array
from benchmarks.peers.deep.views import Act, InputsView, View, profits, raw_view
from data.market import Market
from data.splits import spaced_windows
from environment.trading_env import TradingEnvironment
from utils.config.trader import Config

Array = NDArray[np.float64]
ALGORITHMS: Mapping[str, type[BaseAlgorithm]] = {
    "DDPG": sb3.DDPG,
    "TD3": sb3.TD3,
    "SAC": sb3.SAC,
    "PPO": sb3.PPO,
    "A2C": sb3.A2C,
    "CrossQ": sb3_contrib.CrossQ,
    "TQC": sb3_contrib.TQC,
}
ON_POLICY = ("PPO", "A2C")
LANES = 8
"""Environments that on-policy agents step side by side; the others step one, as documented."""
BUFFER = 50_000
"""Transitions of a replay buffer; with raw observations it takes 240 MB."""
NOISE = 0.1
"""Standard deviation of the exploration noise of DDPG and TD3, as in their documentation."""
LOOKS = 4
"""Evenly spaced evaluations on validation windows in a budget; the best agent is kept."""
TUNED = Path(__file__).with_name("tuned.json")
"""Settings that Optuna found in twenty trials of 30 CPU seconds on another path, by profit on validation windows."""


@dataclass(frozen=True)
class Learned:
    """What a peer learned."""

    play: Callable[[UnseenPath], Array]
    """Plays the path's windows; returns their (windows,) profits in percent of the initial capital."""
    environment_steps: int
    """Account steps that it learned from."""


@dataclass(frozen=True)
class Budget:
    """CPU seconds of this process that a peer may learn for; it stops at its first step of work after them."""

    seconds: float

    def started(self) -> Callable[[], bool]:
        """Start the clock; return a function that tells whether the budget is spent."""
        end = time.process_time() + self.seconds
        return lambda: time.process_time() >= end


Peer = Callable[[Config, Market, Budget], Learned]
"""Learns from the training days of a market with the seed of the settings; it may select on the validation days."""


@dataclass(frozen=True)
class DeepAgent:
    """A deep agent as a peer: an algorithm, what it sees, and settings other than its documented ones."""

    algorithm: str
    sees_inputs: bool
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, config: Config, market: Market, budget: Budget) -> Learned:
        """Train until the budget is spent; keep the agent that earned most on validation windows."""
        is_spent = budget.started()
        view: View = InputsView.fit(market, config.env) if self.sees_inputs else raw_view
        seen, steps = view(market), config.env.episode_steps
        lanes = LANES if self.algorithm in ON_POLICY else 1
        env = FlatLanes(TradingEnvironment.on(market, config.env), lanes, market.splits.train, seen)
        chosen: dict[str, Any] = {} if self.algorithm in ON_POLICY else {"buffer_size": BUFFER}
        if self.algorithm in ("DDPG", "TD3"):
            none = np.zeros(env.action_space.shape or ())
            chosen["action_noise"] = NormalActionNoise(none, NOISE + none)
        chosen |= {"seed": config.seed, "device": "cpu", **self.settings}
        model = ALGORITHMS[self.algorithm]("MlpPolicy", env, **chosen)
        starts = spaced_windows(market.splits.validation, steps, config.evaluation.validation_windows)
        judge = partial(profits, market, config.env, seen, starts, acting(model))
        keeper = Keeper(is_spent, budget.seconds / LOOKS, lambda: float(judge().mean()))
        model.learn(total_timesteps=2**62, callback=keeper)
        keeper.look()
        model.set_parameters(keeper.best)

        def play(path: UnseenPath) -> Array:
            found: Array = profits(path.market, path.env.rules, view(path.market), path.starts, acting(model))
            return found

        return Learned(play, env.steps)


def acting(model: BaseAlgorithm) -> Act:
    """Return a model's actions without exploration noise."""

    def act(observation: Float32Array) -> NDArray[Any]:
        return model.predict(observation, deterministic=True)[0]

    return act


class Keeper(BaseCallback):
    """Stops a training once its budget is spent, and keeps the parameters that earned most on the way."""

    def __init__(self, is_spent: Callable[[], bool], apart: float, earned: Callable[[], float]) -> None:
        super().__init__()
        self.is_spent, self.apart, self.earned = is_spent, apart, earned
        self.is_due = Budget(apart).started()
        self.most, self.best = -np.inf, dict[str, Any]()

    def _on_step(self) -> bool:
        if self.is_due():
            self.look()
            self.is_due = Budget(self.apart).started()
        return not self.is_spent()

    def look(self) -> None:
        """Evaluate the agent and keep it if it is the best so far."""
        if not (found := self.earned()) <= self.most or not self.best:
            self.most, self.best = found, copy.deepcopy(self.model.get_parameters())


def deep_agents() -> dict[str, DeepAgent]:
    """Return every algorithm twice, with the raw observation and with the product's inputs and forecasts."""
    views = {"raw observation": False, "our inputs": True}
    return {f"{name}, {view}": DeepAgent(name, sees) for name in ALGORITHMS for view, sees in views.items()}


def tuned_agents() -> dict[str, DeepAgent]:
    """Return those that were tuned, with their settings."""
    found = json.loads(TUNED.read_text(encoding="utf-8")) if TUNED.is_file() else {}
    agents = deep_agents()
    return {f"{name}, tuned": replace(agents[name], settings=own["settings"]) for name, own in found.items()}
