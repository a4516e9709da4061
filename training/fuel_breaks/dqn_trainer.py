"""The learning loop: lanes play episodes, the network learns from the replay, validation keeps the best network."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.burn_state import Exposure
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from training.fuel_breaks.baselines import adaptive, downstream_value
from training.fuel_breaks.config import FuelBreakRunConfig
from training.fuel_breaks.dqn_update import double_dqn_target, follow, value_loss
from training.fuel_breaks.policies import (
    PERCENT_PER_UNIT,
    action_values,
    build_network,
    build_symmetry,
    downstream_values,
    greedy,
    noisy_choice,
    proportional_choice,
)
from training.fuel_breaks.replay import Batch, FuelBreakReplay, centre_by_group, n_step_sums, returns_to_go
from training.fuel_breaks.validation import Validation, spaced
from utils.memory.profiler import get_profiler
from utils.runs.seeding import named_generator
from utils.runs.stopping import PeriodicChecks

logger = logging.getLogger(__name__)
_MAX_SCENARIO_SEED = 2**31
_INPUT_TILES = 32
SafePointCall = Callable[[], None]


class DQNTrainer:
    """Owns everything that a checkpoint holds: networks, optimiser, replay, histories, generators."""

    def __init__(
        self,
        config: FuelBreakRunConfig,
        train: Sequence[Tile],
        validation: Sequence[Tile],
        device: torch.device,
        safe_point: SafePointCall,
    ) -> None:
        self.config, self.device = config, device
        learning, bounds = config.learning, config.bounds
        every = {"episodes": bounds.check_every_episodes, "environment_steps": bounds.check_every_environment_steps}
        self.checks = PeriodicChecks(safe_point, every | {"training_steps": bounds.check_every_training_steps})
        self.env = VectorFuelBreakEnvironment(train, config.env)
        self.validation = Validation(spaced(validation, config.validation_tiles), config.env, safe_point)
        self.symmetry = build_symmetry(config.tiles.tile_cells).to(device)
        self.online = build_network(config.network).to(device)
        self.online.fit_inputs(self._first_observations())
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.best = copy.deepcopy(self.target)
        """The network of the best validation so far."""
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=learning.learning_rate)
        capacity = learning.lanes * bounds.experience_per_collector
        self.replay = FuelBreakReplay(capacity, self.env.observer, n_steps=learning.n_steps, device=device)
        self.generation = 0
        self.episodes = 0
        self.updates = 0
        self.seconds = 0.0
        """Of training, earlier runs included."""
        self.best_generation = 0
        self.best_score = self.heuristic_score = -math.inf
        """Reductions in percent on validation tiles: of the best network, and of the adaptive downstream value."""
        self.losses: deque[float] = deque(maxlen=bounds.loss_history)
        self.returns: deque[float] = deque(maxlen=bounds.reward_history)
        """Reductions in percent that the agent's own lanes were rewarded for."""
        self.step_times: deque[float] = deque(maxlen=bounds.step_times)
        self.collection_times: deque[float] = deque(maxlen=bounds.collection_times)
        self.generator = named_generator(config.seed, "fuel breaks")
        profiler = get_profiler()
        profiler.track("environments", self.env)
        profiler.track("replay_buffers", self.replay)
        profiler.track("agents", self.online)

    @property
    def epsilon(self) -> float:
        """Chance of exploring at the present number of episodes."""
        learning = self.config.learning
        done = min(1.0, self.episodes / learning.epsilon_episodes)
        return learning.epsilon_start + done * (learning.epsilon_end - learning.epsilon_start)

    def begin(self) -> None:
        """Validate the untrained network, which a trained one must beat, and the heuristic."""
        self.heuristic_score = float(self.validation.reductions(adaptive(downstream_value)).mean())
        self.best_score = self._validate()

    def run_generation(self, clock: Callable[[], float] = time.monotonic) -> dict[str, Any]:
        """Play and learn for the configured number of episodes, then validate; returns the record for metrics.jsonl."""
        started = clock()
        for _ in range(self.config.rounds_per_generation):
            self.play_round()
            self.learn()
        self.generation += 1
        score = self._validate()
        if score > self.best_score:
            self.best_score, self.best_generation = score, self.generation
            self.best.load_state_dict(self.target.state_dict())
        self.seconds += clock() - started
        return self._record(score)

    def play_round(self) -> None:
        """One episode in each lane; all of them go to the replay."""
        started = time.monotonic()
        learning, env = self.config.learning, self.env
        groups = learning.lanes // learning.lanes_per_tile
        tiles = torch.randint(len(env.planning.tiles), (groups,), generator=self.generator)
        seeds = torch.randint(_MAX_SCENARIO_SEED, (groups,), generator=self.generator)
        tile_of_lane, seed_of_lane = (v.repeat_interleave(learning.lanes_per_tile).numpy() for v in (tiles, seeds))
        env.reset(tile_of_lane, seed_of_lane)
        demonstrates = self._demonstrators()
        masks, actions, rewards, is_open = [], [], [], []
        exposures: list[list[Exposure]] = [list(env.exposures)]
        while not env.terminated.all():
            begun = time.monotonic()
            masks.append(np.packbits(env.cleared, axis=1))
            is_open.append(~env.terminated)
            actions.append(self._choose(demonstrates))
            rewards.append(env.step(actions[-1])[1])
            exposures.append(list(env.exposures))
            self.step_times.append(time.monotonic() - begun)
            self.checks.add("environment_steps", learning.lanes)
        masks.append(np.packbits(env.cleared, axis=1))
        self._store(np.stack(masks), np.stack(actions), np.stack(rewards), np.stack(is_open), exposures)
        self.returns.extend(np.sum(rewards, axis=0)[~demonstrates].tolist())
        self.episodes += learning.lanes
        self.collection_times.append(time.monotonic() - started)
        self.checks.add("episodes", learning.lanes, release_memory=True)

    def learn(self) -> None:
        """The gradient steps that the episodes played so far are due."""
        learning = self.config.learning
        due = int((self.episodes - learning.warm_up_episodes) * learning.updates_per_episode)
        while self.updates < due:
            self.losses.append(self.update(self.replay.sample(learning.batch_size, self.generator)))
            self.updates += 1
            self.checks.add("training_steps", 1)

    def update(self, batch: Batch) -> float:
        """One gradient step on a batch; returns its loss."""
        learning = self.config.learning
        targets = self._targets(batch)
        observation, legal, actions = batch.observation, batch.legal, batch.action
        if learning.symmetry:
            turn = int(torch.randint(8, (1,), generator=self.generator))
            observation, legal = self.symmetry.maps(observation, turn), self.symmetry.cells(legal, turn)
            actions = self.symmetry.action(actions, turn)
        loss = value_loss(self.online(observation, legal), actions, targets)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.online.parameters(), learning.max_gradient_norm)
        self.optimizer.step()
        follow(self.target, self.online, learning.target_tau)
        return loss.item()

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """Everything that a run needs to go on exactly."""
        return {
            "networks": {name: getattr(self, name).state_dict() for name in ("online", "target", "best")},
            "optimizer": self.optimizer.state_dict() | {"state": _string_keys(self.optimizer.state_dict()["state"])},
            "replay": self.replay.state_dict(),
            "progress": {
                **{name: getattr(self, name) for name in _PROGRESS},
                **{name: list(getattr(self, name)) for name in _HISTORIES},
                "generator": self.generator.get_state(),
            },
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what `state_dict` gave."""
        for name, values in state["networks"].items():
            getattr(self, name).load_state_dict(values)
        optimizer = dict(state["optimizer"])
        self.optimizer.load_state_dict(optimizer | {"state": {int(k): v for k, v in optimizer["state"].items()}})
        logger.info("burning the states of the replay again")
        self.replay.load_state_dict(state["replay"], self.checks.safe_point)
        progress = state["progress"]
        for name in _PROGRESS:
            setattr(self, name, progress[name])
        for name in _HISTORIES:
            history = getattr(self, name)
            history.clear()
            history.extend(progress[name])
        self.generator.set_state(progress["generator"])

    def _first_observations(self) -> Tensor:
        tiles = np.unique(np.linspace(0, len(self.env.planning.tiles) - 1, _INPUT_TILES).round().astype(int))
        observations = self.env.reset(tiles, np.zeros_like(tiles))
        # Static channels are kept once computed: for all tiles now, so that memory does not grow as they are visited.
        for tile in range(len(self.env.planning.tiles)):
            self.env.observer.render(tile, self.env.cleared[0], self.env.exposures[0])
        return torch.from_numpy(observations).to(self.device)

    def _demonstrators(self) -> NDArray[np.bool_]:
        learning = self.config.learning
        place = np.arange(learning.lanes) % learning.lanes_per_tile
        return place < round(learning.demonstration_share * learning.lanes_per_tile)

    def _choose(self, demonstrates: NDArray[np.bool_]) -> NDArray[np.int64]:
        env, legal, generator = self.env, self.env.action_masks(), self.generator
        heuristic = downstream_values(env)
        chosen = noisy_choice(heuristic, legal, self.config.learning.demonstration_noise, generator)
        if not demonstrates.all():
            values = action_values(self.online, env, self.device, None)
            explores = torch.rand(len(legal), generator=generator).numpy() < self.epsilon
            own = np.where(explores, proportional_choice(heuristic, legal, generator), values.argmax(axis=1))
            chosen = np.where(demonstrates, chosen, own)
        return chosen

    def _store(
        self,
        masks: NDArray[np.uint8],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float64],
        is_open: NDArray[np.bool_],
        exposures: list[list[Exposure]],
    ) -> None:
        """Turn a round, (steps, lanes) each and one more mask, into transitions, lane by lane."""
        n_steps, discount = self.config.learning.n_steps, self.config.learning.discount
        totals = self._return_targets(rewards.T / PERCENT_PER_UNIT)
        for lane in range(actions.shape[1]):
            steps = int(is_open[:, lane].sum())
            after = np.minimum(np.arange(steps) + (n_steps or steps), steps)
            transitions = {
                "tile": np.full(steps, self.env.tiles[lane], np.int32),
                "scenario_seed": np.full(steps, self.env.scenario_seeds[lane], np.int64),
                "cleared": masks[:steps, lane],
                "action": actions[:steps, lane].astype(np.int16),
                "reward": totals[lane, :steps].astype(np.float32),
                "factor": (discount ** (after - np.arange(steps))).astype(np.float32),
                "terminated": after == steps,
                "next_cleared": masks[after, lane],
            }
            tensors = {name: torch.from_numpy(np.ascontiguousarray(v)) for name, v in transitions.items()}
            self.replay.add_episode(tensors, [row[lane] for row in exposures[: steps + 1]])

    def _return_targets(self, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
        learning = self.config.learning
        if learning.n_steps:
            return n_step_sums(rewards, learning.n_steps, learning.discount)
        returns = returns_to_go(rewards, learning.discount)
        return centre_by_group(returns, learning.lanes_per_tile) if learning.centre_returns else returns

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        if batch.next_observation is None or batch.next_legal is None:
            return batch.reward
        following = batch.next_observation, batch.next_legal
        return double_dqn_target(
            batch.reward, batch.factor, self.online(*following), self.target(*following), batch.terminated
        )

    def _validate(self) -> float:
        symmetry = self.symmetry if self.config.learning.symmetry else None
        return float(self.validation.reductions(greedy(self.target, self.device, symmetry)).mean())

    def _record(self, score: float) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "episodes": self.episodes,
            "updates": self.updates,
            "epsilon": self.epsilon,
            "loss": _mean(self.losses),
            "return_percent": _mean(self.returns),
            "validation": {
                "agent": score,
                "best": self.best_score,
                "best_generation": self.best_generation,
                "adaptive_downstream_value": self.heuristic_score,
            },
            "prior_scale": float(self.online.prior_log_scale.detach().exp()),
            "seconds": {
                "total": self.seconds,
                "environment_step": _mean(self.step_times),
                "collection": _mean(self.collection_times),
            },
            "buffers": {
                "replay": self.replay.size,
                "replay_capacity": self.replay.ring.capacity,
                "replay_bytes": self.replay.ring.capacity * self.replay.bytes_per_transition,
                "store_bytes": self.replay.store_bytes,
                "histories": {name: len(getattr(self, name)) for name in _HISTORIES},
            },
            "memory": self.checks.record(),
        }


_PROGRESS = ("generation", "episodes", "updates", "seconds", "best_generation", "best_score", "heuristic_score")
_HISTORIES = ("losses", "returns", "step_times", "collection_times")


def _mean(values: Sequence[float] | deque[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _string_keys(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(key): value for key, value in values.items()}
