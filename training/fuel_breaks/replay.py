"""Replay of states that are functions of a few indices, and how an episode's rewards become targets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from environment.fuel_breaks.burn_state import Exposure, TracedBurnState
from environment.fuel_breaks.env import Observer
from environment.fuel_breaks.fire_spread import BoolArray, Float64Array
from utils.tensor_ring import TensorRing


def returns_to_go(rewards: Float64Array, discount: float) -> Float64Array:
    """Return the (lanes, steps) discounted sums of each reward and those after it."""
    totals = np.zeros_like(rewards)
    following = np.zeros(len(rewards))
    for step in range(rewards.shape[1] - 1, -1, -1):
        following = rewards[:, step] + discount * following
        totals[:, step] = following
    return totals


def n_step_sums(rewards: Float64Array, n_steps: int, discount: float) -> Float64Array:
    """Return the (lanes, steps) discounted sums of each reward and the n - 1 after it, or as many as there are."""
    totals = returns_to_go(rewards, discount)
    later = np.zeros_like(totals)
    later[:, :-n_steps] = totals[:, n_steps:]
    return totals - discount**n_steps * later


def centre_by_group(returns: Float64Array, lanes_per_group: int) -> Float64Array:
    """Subtract from each return the mean of the group's other lanes at the same step, which no own action moves.

    With common random numbers in a group most of the luck cancels. Source: Kool, van Hoof & Welling (2019), "Buy 4
    REINFORCE samples, get a baseline for free!". A lane without company keeps its returns.
    """
    if lanes_per_group == 1:
        return returns
    grouped = returns.reshape(-1, lanes_per_group, returns.shape[1])
    others = (grouped.sum(axis=1, keepdims=True) - grouped) / (lanes_per_group - 1)
    return np.asarray((grouped - others).reshape(returns.shape))


@dataclass(frozen=True)
class Batch:
    """Sampled transitions; observations are (n, channels, rows, columns), masks (n, cells), the rest (n,)."""

    observation: Tensor
    legal: Tensor
    action: Tensor
    reward: Tensor
    factor: Tensor
    terminated: Tensor
    next_observation: Tensor | None
    next_legal: Tensor | None


class Replay:
    """Transitions as (tile, cleared cells, scenario seed, action, rewards, cleared cells after them).

    A transition takes under 200 bytes on tiles of 20 x 20 cells. Observations are rebuilt from it by the observer. The
    exposures of its states take longest to compute and are kept beside it, in memory that is taken once; a checkpoint
    leaves them out.
    """

    def __init__(self, capacity: int, observer: Observer, *, n_steps: int, device: torch.device | str = "cpu") -> None:
        """Allocate; with `n_steps` = 0 targets need no next state."""
        mask_bytes = -(-observer.cells // 8)
        self.device = torch.device(device)
        self._observer = observer
        self._n_steps = n_steps
        self._burnable = np.stack([tile.landscape.burnable.ravel() for tile in observer.simulator.tiles])
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
        scenarios = observer.simulator.config.scenarios
        fires, cells = scenarios.winds * scenarios.planning_ignitions_per_wind, observer.cells
        exposure = np.dtype(
            [
                ("burned", np.min_scalar_type(fires), cells),
                ("downstream", np.min_scalar_type(fires * cells), cells),
                ("start_burned_cells", np.int64),
            ]
        )
        masks = ("cleared", "next_cleared") if n_steps else ("cleared",)
        self._exposures = {mask: np.empty(capacity, exposure) for mask in masks}
        """A row each transition, by the mask of the state."""
        for store in self._exposures.values():
            # Written once, so that all pages are there from the start and the process does not grow as it fills.
            store.view(np.uint8).fill(0)

    @property
    def size(self) -> int:
        """Transitions held."""
        return self.ring.size

    @property
    def bytes_per_transition(self) -> int:
        """Storage of one transition, without what can be computed from it."""
        return self.ring.bytes_per_row

    @property
    def store_bytes(self) -> int:
        """Storage of the exposures."""
        return sum(store.nbytes for store in self._exposures.values())

    def add_episode(self, transitions: Mapping[str, Tensor], exposures: Sequence[Exposure]) -> None:
        """Append the (steps, ...) transitions of one episode, and the exposures of its (steps + 1) states."""
        first = self.ring.next_row
        self.ring.add(transitions)
        self._keep([(first + step) % self.ring.capacity for step in range(len(exposures) - 1)], exposures)

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        """Draw transitions uniformly, with replacement."""
        rows = torch.randint(self.size, (count,), generator=generator)
        stored = {name: values[rows] for name, values in self.ring.data.items()}
        observation, legal = self._states("cleared", rows, stored)
        following = self._states("next_cleared", rows, stored) if self._n_steps else (None, None)
        return Batch(
            observation,
            legal,
            stored["action"].long().to(self.device),
            stored["reward"].to(self.device),
            stored["factor"].to(self.device),
            stored["terminated"].to(self.device),
            *following,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the transitions."""
        return self.ring.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], safe_point: Callable[[], None]) -> None:
        """Restore what `state_dict` gave and burn its states again, which takes about as long as playing them took."""
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
        """Yield the rows of each episode in the ring, oldest first; the oldest one may have lost its beginning."""
        size, capacity = self.ring.size, self.ring.capacity
        oldest = self.ring.next_row if size == capacity else 0
        rows = (oldest + np.arange(size)) % capacity
        begins = ~self.ring.data["cleared"].numpy()[rows].any(axis=1)
        yield from (part.tolist() for part in np.split(rows, np.flatnonzero(begins)) if len(part))

    def _burn_again(self, rows: Sequence[int]) -> list[Exposure]:
        data, first = self.ring.data, rows[0]
        hazard = self._observer.simulator.hazard(int(data["tile"][first]), int(data["scenario_seed"][first]))
        state = TracedBurnState(hazard, self._unpacked(data["cleared"][first]))
        exposures = [state.exposure()]
        for row in rows:
            state.clear(int(data["action"][row]))
            exposures.append(state.exposure())
        return exposures

    def _states(self, mask: str, rows: Tensor, stored: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Rebuild the observations and legal cells of the states before or after transitions."""
        tiles, cleared = stored["tile"].tolist(), self._unpacked(stored[mask])
        observations = np.empty((len(tiles), *self._observer.shape), dtype=np.float32)
        for sampled, row in enumerate(rows.tolist()):
            burned, downstream, start = self._exposures[mask][row]
            exposure = Exposure(burned, downstream, int(start))
            observations[sampled] = self._observer.render(tiles[sampled], cleared[sampled], exposure)
        legal = self._burnable[tiles] & ~cleared
        return torch.from_numpy(observations).to(self.device), torch.from_numpy(legal).to(self.device)

    def _unpacked(self, masks: Tensor) -> BoolArray:
        """Unpack the bits of (..., bytes) to (..., cells)."""
        return np.unpackbits(masks.numpy(), axis=-1, count=self._observer.cells).astype(np.bool_)
