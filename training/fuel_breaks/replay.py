"""Replay of states that are functions of a few indices, and returns from an episode's rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.signal import lfilter
from torch import Tensor

from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fires import BoolArray, BurnState, Exposure, Float64Array
from utils.memory.living import counted
from utils.tensor_ring import TensorRing


def n_step_returns(rewards: Float64Array, n_steps: int, discount: float) -> Float64Array:
    """Return (lanes, steps) discounted sums of each reward and up to n - 1 after it."""
    to_the_end = lfilter([1.0], [1.0, -discount], rewards[:, ::-1])[:, ::-1]
    later = np.zeros_like(to_the_end)
    later[:, :-n_steps] = to_the_end[:, n_steps:]
    return np.asarray(to_the_end - discount**n_steps * later)


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


States = tuple[Tensor, Tensor]  # observations (n, channels, rows, columns) and masks of legal cells (n, cells)


class ReplaySample(NamedTuple):
    """Sampled transitions; all but states are (n,)."""

    state: States
    action: Tensor
    reward: Tensor
    factor: Tensor
    terminated: Tensor
    following: States | None


@counted("replay_buffers")
class Replay:
    """Transitions as (tile, cleared cells, scenario seed, action, rewards, cleared cells after them).

    A transition takes under 200 bytes on tiles of 20 x 20 cells; the environment rebuilds its observations. The
    exposures of its states, which take longest to compute, are kept beside the ring but not in a checkpoint.
    """

    def __init__(
        self, capacity: int, env: VectorFuelBreakEnvironment, *, n_steps: int, device: torch.device | str = "cpu"
    ) -> None:
        mask_bytes = -(-env.cells // 8)
        self.device = torch.device(device)
        self._env = env
        self._n_steps = n_steps
        self._burnable = np.stack([tile.landscape.burnable.ravel() for tile in env.planning.tiles])
        self.ring = TensorRing(
            capacity,
            {
                "tile": ((), torch.int32),
                "scenario_seed": ((), torch.int64),
                "cleared": ((mask_bytes,), torch.uint8),
                "action": ((), torch.int16),
                "reward": ((), torch.float32),
                "factor": ((), torch.float32),
                "terminated": ((), torch.bool),
                "next_cleared": ((mask_bytes,), torch.uint8),
            },
        )
        scenarios = env.config.scenarios
        fires, cells = scenarios.winds * scenarios.planning_ignitions_per_wind, env.cells
        exposure = np.dtype(
            [
                ("burned", np.min_scalar_type(fires), cells),
                ("downstream", np.min_scalar_type(fires * cells), cells),
                ("start_burned_cells", np.int64),
            ]
        )
        masks = ("cleared", "next_cleared") if n_steps else ("cleared",)
        self._exposures = {mask: np.empty(capacity, exposure) for mask in masks}
        for store in self._exposures.values():
            store.view(np.uint8).fill(0)  # takes all pages now, so that the process does not grow as it fills
        self.store_bytes = sum(store.nbytes for store in self._exposures.values())

    def add_episode(self, transitions: Mapping[str, Tensor], exposures: Sequence[Exposure]) -> None:
        """Append the (steps, ...) transitions of one episode, and the exposures of its (steps + 1) states."""
        first = self.ring.next_row
        self.ring.add(transitions)
        self._keep([(first + step) % self.ring.capacity for step in range(len(exposures) - 1)], exposures)

    def sample(self, count: int, generator: torch.Generator) -> ReplaySample:
        """Draw transitions uniformly, with replacement; whole returns (`n_steps` = 0) need no following states."""
        rows = torch.randint(self.ring.size, (count,), generator=generator)
        stored = {name: values[rows] for name, values in self.ring.data.items()}
        following = self._states("next_cleared", rows, stored) if self._n_steps else None
        reward, factor, terminated = (stored[name].to(self.device) for name in ("reward", "factor", "terminated"))
        action = stored["action"].long().to(self.device)
        return ReplaySample(self._states("cleared", rows, stored), action, reward, factor, terminated, following)

    def clear(self) -> None:
        """Empty the replay; it keeps its preallocated memory."""
        self.ring.clear()

    def load_state_dict(self, state: Mapping[str, Any], safe_point: Callable[[], None]) -> None:
        """Restore the ring and simulate the fires of its states again, which takes as long as playing them did."""
        self.ring.load_state_dict(state)
        for rows in self._episodes():
            safe_point()
            self._keep(rows, self._burn_again(rows))

    def _keep(self, rows: Sequence[int], exposures: Sequence[Exposure]) -> None:
        for step, row in enumerate(rows):
            for mask, store in self._exposures.items():
                own = exposures[step if mask == "cleared" else min(step + self._n_steps, len(rows))]
                store[row] = (own.burned, own.downstream, own.start_burned_cells)

    def _episodes(self) -> Iterator[list[int]]:
        """Yield the rows of each episode in the ring, oldest first; the oldest may have lost its beginning."""
        size, capacity = self.ring.size, self.ring.capacity
        oldest = self.ring.next_row if size == capacity else 0
        rows = (oldest + np.arange(size)) % capacity
        begins = ~self.ring.data["cleared"].numpy()[rows].any(axis=1)
        yield from (part.tolist() for part in np.split(rows, np.flatnonzero(begins)) if len(part))

    def _burn_again(self, rows: Sequence[int]) -> list[Exposure]:
        data, first = self.ring.data, rows[0]
        hazard = self._env.planning.hazard(int(data["tile"][first]), int(data["scenario_seed"][first]))
        state = BurnState(hazard, self._unpacked(data["cleared"][first]))
        exposures = [state.exposure()]
        for row in rows:
            state.clear(int(data["action"][row]))
            exposures.append(state.exposure())
        return exposures

    def _states(self, mask: str, rows: Tensor, stored: Mapping[str, Tensor]) -> States:
        """Rebuild the states before or after transitions."""
        tiles, cleared = stored["tile"].tolist(), self._unpacked(stored[mask])
        exposures = (Exposure(*exposure) for exposure in self._exposures[mask][rows.numpy()])
        observations = np.stack([self._env.render(*state) for state in zip(tiles, cleared, exposures, strict=True)])
        legal = self._burnable[tiles] & ~cleared
        return torch.from_numpy(observations).to(self.device), torch.from_numpy(legal).to(self.device)

    def _unpacked(self, masks: Tensor) -> BoolArray:
        return np.unpackbits(masks.numpy(), axis=-1, count=self._env.cells).astype(np.bool_)
