"""Replay of states that are functions of a few indices, and returns relative to those of others."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import Exposure
from utils.arrays import Float64Array
from utils.memory.census import counted
from utils.tensor_ring import TensorRing


def centre_by_group(returns: Float64Array, lanes_per_group: int) -> Float64Array:
    """Subtract from each return the mean of the group's other lanes at the same step; a lane alone keeps its returns.

    With common random numbers in a group most of the noise cancels. Source: Kool, van Hoof & Welling (2019), "Buy 4
    REINFORCE samples, get a baseline for free!".
    """
    if lanes_per_group == 1:
        return returns
    grouped = returns.reshape(-1, lanes_per_group, returns.shape[1])
    others = (grouped.sum(axis=1, keepdims=True) - grouped) / (lanes_per_group - 1)
    return np.asarray((grouped - others).reshape(returns.shape))


Rows = Mapping[str, NDArray[Any]]
"""Arrays (n, ...) by the names of the ring's fields."""
States = tuple[Tensor, Tensor]  # observations (n, channels, rows, columns) and masks of legal cells (n, cells)


class ReplaySample(NamedTuple):
    """Sampled transitions: states and (n,) tensors."""

    state: States
    action: Tensor
    reward: Tensor


@counted("replay_buffers")
class Replay:
    """Actions and returns in states that are kept as a tile, cleared cells and the exposure to the planning fires.

    The environment rebuilds observations from them. A state of 20 x 20 cells takes 2.5 KB, nearly all of it for the
    exposure, which takes longest to compute.
    """

    def __init__(self, capacity: int, env: VectorFuelBreakEnvironment, device: torch.device) -> None:
        self._env, self._device = env, device
        self._burnable = np.stack([tile.landscape.burnable.ravel() for tile in env.tiles])
        scenarios = env.config.scenarios
        is_few = scenarios.winds * scenarios.planning_ignitions_per_wind < 2**15
        fields = {
            "tile": ((), torch.int32),
            "scenario_seed": ((), torch.int64),
            "action": ((), torch.int16),
            "reward": ((), torch.float32),
            "cleared": ((-(-env.cells // 8),), torch.uint8),
            "burned": ((env.cells,), torch.int16 if is_few else torch.int32),
            "downstream": ((env.cells,), torch.int32),
            "start_burned_cells": ((1,), torch.int32),
        }
        self.ring = TensorRing(capacity, fields)

    def state(self) -> Rows:
        """Return the environment's states as they are stored."""
        return {"cleared": np.packbits(self._env.cleared, axis=1), **self._env.exposure._asdict()}

    def add(self, transitions: Rows) -> None:
        """Append (n, ...) transitions, arrays by the names of the ring."""
        self.ring.add({name: torch.from_numpy(transitions[name]).to(t.dtype) for name, t in self.ring.data.items()})

    def sample(self, count: int, generator: torch.Generator) -> ReplaySample:
        """Draw transitions uniformly, with replacement."""
        rows = torch.randint(self.ring.size, (count,), generator=generator)
        stored = {name: values[rows] for name, values in self.ring.data.items()}
        arrays = {name: stored[name].numpy() for name in ("cleared", *Exposure._fields)}
        cleared = np.unpackbits(arrays.pop("cleared"), axis=1, count=self._env.cells).astype(np.bool_)
        tiles = stored["tile"].numpy()
        observation = self._env.render(tiles, cleared, Exposure(**arrays))
        state = observation, self._burnable[tiles] & ~cleared
        on_device = [torch.from_numpy(array).to(self._device) for array in state]
        action, reward = (stored[name].to(self._device) for name in ("action", "reward"))
        return ReplaySample((on_device[0], on_device[1]), action, reward)

    def clear(self) -> None:
        """Empty the replay; it keeps its preallocated memory."""
        self.ring.clear()
