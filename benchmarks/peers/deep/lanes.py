"""The vector environment as Stable-Baselines3 takes it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from data.splits import Span
from environment.trading_env import TradingEnvironment
from environment.vector_env import VectorTradingEnvironment


class Lanes(VecEnv):
    """A `VecEnv` whose lanes are those of a vector environment; wrappers for single environments do not apply."""

    def __init__(self, env: TradingEnvironment, lanes: int, days: Span) -> None:
        self.env = VectorTradingEnvironment(env, lanes, days)
        self._actions: NDArray[np.float32] | None = None
        super().__init__(lanes, self.env.single_observation_space, self.env.single_action_space)

    def reset(self) -> VecEnvObs:
        """Begin episodes in all lanes, by the seed given to `seed` the first time."""
        observation, _ = self.env.reset(seed=self._seeds[0])
        self._reset_seeds()
        return observation

    def step_async(self, actions: NDArray[np.float32]) -> None:
        """Keep the actions of the next step."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Step; the infos hold the last observation of episodes that ended."""
        assert self._actions is not None
        observation, rewards, terminated, _, info = self.env.step(self._actions)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for lane, final in enumerate(info.get("final_obs", ())):
            infos[lane] = {"terminal_observation": final, "TimeLimit.truncated": False}
        return observation, rewards.astype(np.float32), terminated, infos

    def close(self) -> None:
        """Close the lanes."""
        self.env.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of the vector environment, the same for each lane."""
        return [getattr(self.env, attr_name)] * len(self._get_indices(indices))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the vector environment."""
        setattr(self.env, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        """Call a method of the vector environment once; each lane has its result."""
        return [getattr(self.env, method_name)(*args, **kwargs)] * len(self._get_indices(indices))

    def env_is_wrapped(self, wrapper_class: type[Any], indices: VecEnvIndices = None) -> list[bool]:
        """Tell that no lane is wrapped."""
        return [False] * len(self._get_indices(indices))

    def _get_indices(self, indices: VecEnvIndices) -> Sequence[int]:
        return range(self.num_envs) if indices is None else [indices] if isinstance(indices, int) else list(indices)
