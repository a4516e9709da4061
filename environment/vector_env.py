"""Lanes of the batched account as a Gymnasium vector environment, on random windows."""

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from data.splits import Span
from environment.trading_env import Observation, TradingEnvironment, windows_from

Info = dict[str, Any]
Step = tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Info]


class VectorTradingEnvironment(VectorEnv[Observation, NDArray[np.float32], NDArray[Any]]):
    """Lanes that trade windows of the rules' length, drawn anew whenever an episode begins.

    All windows are equally long, so that all lanes end on the same step. That step returns the first observations of
    the new episodes (Gymnasium's `SAME_STEP`), and puts the last ones of the old into `final_obs` and `final_info`.
    Everything equals a `SyncVectorEnv` of single environments on the same windows, bit for bit.
    """

    def __init__(self, env: TradingEnvironment, lanes: int, days: Span) -> None:
        """Trade on the data and by the rules of `env`, which stays as it is.

        Args:
            days: from the first possible day of a window to the last; ValueError if they hold no window.
        """
        if days.days <= env.rules.episode_steps:
            raise ValueError(
                f"expected days for an episode of {env.rules.episode_steps} steps, got {days.first}..{days.last}"
            )
        self.env, self.num_envs, self.days = env.twin(), lanes, days
        self.metadata = {**env.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = batch_space(self.single_observation_space, lanes)
        self.action_space = batch_space(self.single_action_space, lanes)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Observation, Info]:
        """Begin episodes in all lanes, on random windows."""
        super().reset(seed=seed)
        latest = self.days.last - self.env.rules.episode_steps
        starts = self.np_random.integers(self.days.first, latest, self.num_envs, endpoint=True)
        observation, info = self.env.reset(**windows_from(starts, self.env.rules))
        return observation, self._info(info)

    def step(self, actions: NDArray[np.float32]) -> Step:
        """Live through a day in all lanes; `actions` are (lanes, stocks) target weights."""
        observation, rewards, terminated, truncated, info = self.env.step(actions)
        info = self._info(info)
        if terminated[0]:
            final = np.empty(self.num_envs, dtype=object)
            final[:] = [{name: value[lane] for name, value in observation.items()} for lane in range(self.num_envs)]
            finals = self._marked({"final_obs": final, "final_info": info})
            observation, info = self.reset()
            info |= finals
        return observation, rewards, terminated, truncated, info

    def _info(self, info: Info) -> Info:
        return self._marked({**info, "can_buy": np.full(self.num_envs, info["can_buy"])})

    def _marked(self, info: Info) -> Info:
        """Add to each entry, as Gymnasium does, which lanes have it: all."""
        return info | {f"_{name}": np.ones(self.num_envs, dtype=bool) for name in info}
