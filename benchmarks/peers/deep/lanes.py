"""The vector environment as Stable-Baselines3 takes it, with flat observations and actions in [-1, 1]."""

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices

from data.splits import Span
from environment.trading_env import TradingEnvironment
from environment.vector_env import VectorTradingEnvironment

Float32Array = NDArray[np.float32]


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


class FlatLanes(VecEnv):
    """A `VecEnv` whose lanes are those of a vector environment; wrappers for single environments do not apply."""

    def __init__(self, env: TradingEnvironment, lanes: int, days: Span, seen: Float32Array) -> None:
        """Show `seen`, (days, features), beside the account, in place of the market."""
        self.env, self.seen, self.steps = VectorTradingEnvironment(env, lanes, days), seen, 0
        self.account = self.env.env.account
        self._actions: Float32Array | None = None
        stocks = self.account.bars.stocks
        observed = gym.spaces.Box(-np.inf, np.inf, (seen.shape[1] + 6 * stocks + 3,), np.float32)
        super().__init__(lanes, observed, gym.spaces.Box(-1.0, 1.0, (2 * stocks,), np.float32))

    def reset(self) -> Float32Array:
        """Begin episodes in all lanes, by the seed given to `seed` the first time."""
        observation, _ = self.env.reset(seed=self._seeds[0])
        self._reset_seeds()
        return self._flat(observation)

    def step_async(self, actions: NDArray[Any]) -> None:
        """Keep the scaled actions of the next step."""
        self._actions = scaled(actions, self.env.single_action_space)

    def step_wait(self) -> tuple[Float32Array, Float32Array, NDArray[np.bool_], list[dict[str, Any]]]:
        """Step; the infos hold the last observation of episodes that ended."""
        assert self._actions is not None
        today = self.account.day.numpy() + 1
        observation, rewards, terminated, _, info = self.env.step(self._actions)
        self.steps += self.num_envs
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for lane, final in enumerate(info.get("final_obs", ())):
            last = {name: value[None] for name, value in final.items()}
            shown = flat(last, self.seen[today[lane : lane + 1]])[0]
            infos[lane] = {"terminal_observation": shown, "TimeLimit.truncated": False}
        return self._flat(observation), rewards.astype(np.float32), terminated, infos

    def _flat(self, observation: Any) -> Float32Array:
        return flat(observation, self.seen[self.account.day.numpy()])

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
