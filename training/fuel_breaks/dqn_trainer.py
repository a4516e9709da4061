"""Deep Q-learning: lanes play episodes, the network learns from the replay, validation keeps the best network.

The network learns whole returns (Monte Carlo), relative to those of other lanes on the tile.
"""

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from data.fuel_breaks import Tile
from environment.fuel_breaks.env import MAX_SCENARIO_SEED, VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import Exposure
from models.fuel_breaks import SYMMETRIES
from models.replay_buffer import TensorRing
from training.fuel_breaks import policies
from training.fuel_breaks.policies import judging_environment, spaced
from utils.arrays import BoolArray, Float64Array, Int64Array
from utils.config.fuel_breaks import FuelBreakRunConfig
from utils.memory_census import counted
from utils.memory_guard import MIB
from utils.memory_profiler import clean_up, gpu_memory
from utils.runs.devices import named_generator

logger = logging.getLogger(__name__)
_INPUT_TILES = 32
_PROGRESS = ("generation", "episodes", "updates", "seconds", "scores")
_NETWORKS = ("online", "target", "best")


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


class ReplaySample(NamedTuple):
    """Sampled transitions, n each."""

    observation: Tensor
    """(n, channels, rows, columns)"""
    legal: Tensor
    """(n, cells) that may be cleared."""
    action: Tensor
    reward: Tensor


@counted("replay_buffers")
class Replay(TensorRing):
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
        super().__init__(capacity, fields)

    def state(self) -> Rows:
        """Return the environment's states as they are stored."""
        return {"cleared": np.packbits(self._env.cleared, axis=1), **self._env.exposure._asdict()}

    def sample(self, count: int, generator: torch.Generator) -> ReplaySample:
        """Draw transitions uniformly, with replacement."""
        rows = torch.randint(self.size, (count,), generator=generator)
        stored = {name: values[rows].numpy() for name, values in self.data.items()}
        tiles, exposure = stored["tile"], Exposure(*(stored[name] for name in Exposure._fields))
        cleared = np.unpackbits(stored["cleared"], axis=1, count=self._env.cells).astype(np.bool_)
        state = self._env.render(tiles, cleared, exposure), self._burnable[tiles] & ~cleared
        arrays = *state, stored["action"], stored["reward"]
        return ReplaySample(*(torch.from_numpy(array).to(self._device) for array in arrays))


class PeriodicChecks:
    """Calls a safe point and cleans up memory after a number of units of each kind of work."""

    def __init__(self, safe_point: Callable[[], None], every: Mapping[str, int]) -> None:
        """Take how often each kind of work is checked."""
        self.safe_point, self._every = safe_point, every
        self.counts, self._since = dict.fromkeys(every, 0), dict.fromkeys(every, 0)
        self.freed_mb = dict.fromkeys(every, 0.0)

    def add(self, work: str, units: int) -> None:
        """Count work; if a check is due, make it and clean up."""
        self._since[work] += units
        if self._since[work] >= self._every[work]:
            self._since[work] %= self._every[work]
            self.counts[work] += 1
            self.safe_point()
            freed = clean_up(1)  # a full collection takes as long as several steps, and their garbage is young
            self.freed_mb[work] += freed
            logger.debug("clean-up %d after %s gave back %.1f MiB", self.counts[work], work, freed)

    def record(self) -> dict[str, Any]:
        """Return the memory in use (MiB), and by work the checks made and what their clean-ups gave back."""
        allocated, reserved = gpu_memory()
        sizes = {"rss": psutil.Process().memory_info().rss, "gpu_allocated": allocated, "gpu_reserved": reserved}
        in_use = {f"{name}_mb": size / MIB for name, size in sizes.items()}
        return {**in_use, "checks": dict(self.counts), "freed_mb": dict(self.freed_mb)}


class DQNTrainer:
    """The training state (networks, optimiser, replay, histories, generator) and its steps."""

    def __init__(
        self,
        config: FuelBreakRunConfig,
        train: Sequence[Tile],
        validation: Sequence[Tile],
        device: torch.device,
        safe_point: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.device, self.clock = config, device, clock
        learning, bounds = config.learning, config.bounds
        works = "episodes", "environment_steps", "training_steps"
        every = {work: getattr(bounds, f"check_every_{work}") for work in works}
        self.checks = PeriodicChecks(safe_point, every)
        self.env = VectorFuelBreakEnvironment(train, config.env)
        chosen = spaced(len(validation), config.validation_tiles)
        self.validation = judging_environment([validation[tile] for tile in chosen], config.env)
        self.symmetry = policies.build_symmetry(config.tiles.tile_cells)
        self.online = policies.build_network(config.network).to(device)
        inputs = spaced(len(train), _INPUT_TILES)
        self.env.reset(inputs, [0] * len(inputs))
        self.online.fit_inputs(torch.from_numpy(self.env.observe()).to(device))
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.best = copy.deepcopy(self.target)  # the network with the best validation
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=learning.learning_rate)
        capacity = learning.lanes * bounds.experience_per_collector
        self.replay = Replay(capacity, self.env, device)
        self.generation = self.episodes = self.updates = 0
        self.seconds = {"total": 0.0, "round": 0.0, "validation": 0.0}  # of all resumed parts, and of the last of each
        self.scores: dict[str, float] = {}
        """Reductions in percent on validation tiles, and the generation of the best network."""
        self.histories: dict[str, deque[float]] = {
            "losses": deque(maxlen=bounds.loss_history),
            "returns": deque(maxlen=bounds.reward_history),  # percent, of the lanes without demonstrations
            "step_times": deque(maxlen=bounds.step_times),
            "collection_times": deque(maxlen=bounds.collection_times),
        }
        demonstrating = round(learning.demonstration_share * learning.lanes_per_tile)
        self.demonstrates = np.arange(learning.lanes) % learning.lanes_per_tile < demonstrating
        """(lanes,) played by the noisy heuristic."""
        self.generator = named_generator(config.seed, "fuel breaks")

    @property
    def epsilon(self) -> float:
        """The probability of exploring."""
        learning = self.config.learning
        done = min(1.0, self.episodes / learning.epsilon_episodes)
        return learning.epsilon_start + done * (learning.epsilon_end - learning.epsilon_start)

    @property
    def is_out_of_time(self) -> bool:
        """Whether another round and validation would go beyond the minutes."""
        return 0 < self.config.minutes * 60 < sum(self.seconds.values())

    def begin(self) -> None:
        """Validate the heuristic and the untrained network."""
        heuristic, score = self._judge(policies.best_by(policies.downstream_value)), self._validate()
        self.scores = {"agent": score, "best": score, "best_generation": 0, "untrained": score}
        self.scores["adaptive_downstream_value"] = heuristic

    def run_generation(self, on_round: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Play and learn for a generation, shorter if the time is up; validate; return the record for metrics.jsonl."""
        for _ in range(math.ceil(self.config.generation_episodes / self.config.learning.lanes)):
            with self._timed("round"):
                self.play_round()
                self.learn()
            on_round()
            if self.is_out_of_time:
                break
        self.generation += 1
        self.scores["agent"] = score = self._validate()
        if score > self.scores["best"]:
            self.scores.update(best=score, best_generation=self.generation)
            self.best.load_state_dict(self.target.state_dict())
        return self._record()

    def play_round(self) -> None:
        """Play an episode in each lane into the replay."""
        started = time.monotonic()
        learning, env = self.config.learning, self.env
        groups = learning.lanes // learning.lanes_per_tile
        tiles = torch.randint(len(env.tiles), (groups,), generator=self.generator).numpy()
        seeds = torch.randint(MAX_SCENARIO_SEED, (groups,), generator=self.generator).numpy()
        env.reset(tiles.repeat(learning.lanes_per_tile), seeds.repeat(learning.lanes_per_tile))
        states, steps = list[Rows](), []
        while not (terminated := env.terminated).all():
            begun = time.monotonic()
            states.append(self.replay.state())
            actions = self._choose()
            steps.append((actions, env.step(actions), ~terminated))
            self.histories["step_times"].append(time.monotonic() - begun)
            self.checks.add("environment_steps", learning.lanes)
        actions, rewards, is_open = map(np.stack, zip(*steps, strict=True))
        self._store(states, actions, rewards, is_open)
        self.histories["returns"].extend(rewards.sum(axis=0)[~self.demonstrates].tolist())
        self.episodes += learning.lanes
        self.histories["collection_times"].append(time.monotonic() - started)
        self.checks.add("episodes", learning.lanes)

    def learn(self) -> None:
        """Take the gradient steps that are due for the episodes so far."""
        learning = self.config.learning
        due = int((self.episodes - learning.warm_up_episodes) * learning.updates_per_episode)
        while self.updates < due:
            self.histories["losses"].append(self.update(self.replay.sample(learning.batch_size, self.generator)))
            self.updates += 1
            self.checks.add("training_steps", 1)

    def update(self, sample: ReplaySample) -> float:
        """Take one gradient step; return its loss."""
        learning, grid = self.config.learning, self.symmetry
        turn = int(torch.randint(SYMMETRIES, (1,), generator=self.generator))
        values = self.online(grid.maps(sample.observation, turn), grid.cells(sample.legal, turn))
        values = values.gather(1, grid.action(sample.action.long(), turn).unsqueeze(1)).squeeze(1)
        loss = functional.smooth_l1_loss(values, sample.reward)  # Huber's (Mnih et al. 2015)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), learning.max_gradient_norm)
        self.optimizer.step()
        with torch.no_grad():
            for average, parameter in zip(self.target.parameters(), self.online.parameters(), strict=True):
                average.lerp_(parameter, learning.target_tau)
        return loss.item()

    def cleanup_memory(self) -> float:
        """Clean up memory, see `clean_up`; return the MiB that the process gave back."""
        return clean_up()

    def reset_memory(self) -> float:
        """Empty the replay, the histories and the caches of fires, and clean up; return the MiB given back.

        Networks, optimiser and progress stay: training goes on as if it had only now begun to remember.
        """
        self.replay.clear()
        for values in self.histories.values():
            values.clear()
        self.env.cleanup_memory()
        return self.cleanup_memory()

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Return everything needed to continue exactly."""
        optimizer = self.optimizer.state_dict()
        # Keys of a checkpoint are strings, torch's are the numbers of parameters.
        optimizer["state"] = {str(key): value for key, value in optimizer["state"].items()}
        progress = copy.deepcopy({name: getattr(self, name) for name in _PROGRESS})
        progress |= {name: list(values) for name, values in self.histories.items()}
        progress |= {"generator": self.generator.get_state(), "device": str(self.device)}
        networks = {name: getattr(self, name).state_dict() for name in _NETWORKS}
        return {
            "networks": networks,
            "optimizer": optimizer,
            "replay": self.replay.state_dict(),
            "progress": progress,
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what `state_dict` returned."""
        optimizer, progress = state["optimizer"], state["progress"]
        for name, network in state["networks"].items():
            getattr(self, name).load_state_dict(network)
        by_number = {int(key): value for key, value in optimizer["state"].items()}
        self.optimizer.load_state_dict({**optimizer, "state": by_number})
        self.replay.load_state_dict(state["replay"])
        for name in _PROGRESS:
            setattr(self, name, copy.deepcopy(progress[name]))
        for name, values in self.histories.items():
            values.clear()
            values.extend(progress[name])
        self.generator.set_state(progress["generator"])

    def _choose(self) -> Int64Array:
        env, legal, generator = self.env, self.env.action_masks(), self.generator
        heuristic = (env.exposure.downstream * legal).astype(np.float64)
        noise = torch.randn(heuristic.shape, generator=generator, dtype=torch.float64).numpy()
        noisy = heuristic * np.exp(self.config.learning.demonstration_noise * noise)
        chosen = np.where(legal, noisy, -np.inf).argmax(axis=1)
        values = policies.action_values(self.online, env)
        explores = torch.rand(len(legal), generator=generator).numpy() < self.epsilon
        explored = policies.proportional_choice(heuristic, legal, generator)
        return np.where(self.demonstrates, chosen, np.where(explores, explored, values.argmax(axis=1)))

    def _store(self, states: Sequence[Rows], actions: Int64Array, rewards: Float64Array, is_open: BoolArray) -> None:
        """Turn a round, (steps, lanes) each, into transitions, lane by lane."""
        totals = np.cumsum(rewards[::-1] / policies.PERCENT_PER_UNIT, axis=0)[::-1].T
        totals = centre_by_group(totals, self.config.learning.lanes_per_tile)
        lane, step = np.nonzero(is_open.T)
        transitions = {
            "tile": self.env.lane_tiles[lane],
            "scenario_seed": self.env.scenario_seeds[lane],
            "action": actions[step, lane],
            "reward": totals[lane, step],
        }
        transitions |= {name: np.stack([state[name] for state in states])[step, lane] for name in states[0]}
        self.replay.add({name: torch.from_numpy(values) for name, values in transitions.items()})

    @contextmanager
    def _timed(self, work: str) -> Iterator[None]:
        started = self.clock()
        yield
        self.seconds[work] = self.clock() - started
        self.seconds["total"] += self.seconds[work]

    def _validate(self) -> float:
        with self._timed("validation"):
            return self._judge(policies.greedy(self.target, self.symmetry))

    def _judge(self, policy: policies.Policy) -> float:
        return float(policies.reductions(policy, self.validation, safe_point=self.checks.safe_point).mean())

    def _record(self) -> dict[str, Any]:
        means = {name: float(np.mean(values)) if values else math.nan for name, values in self.histories.items()}
        return {
            "generation": self.generation,
            "episodes": self.episodes,
            "updates": self.updates,
            "epsilon": self.epsilon,
            "loss": means["losses"],
            "return_percent": means["returns"],
            "validation": dict(self.scores),
            "prior_scale": float(self.online.prior_log_scale.detach().exp()),
            "seconds": {
                "total": self.seconds["total"],
                "environment_step": means["step_times"],
                "collection": means["collection_times"],
            },
            "buffers": {
                "replay": self.replay.size,
                "replay_capacity": self.replay.capacity,
                "replay_bytes": self.replay.capacity * self.replay.bytes_per_row,
                "histories": {name: len(values) for name, values in self.histories.items()},
            },
            "memory": self.checks.record(),
        }
