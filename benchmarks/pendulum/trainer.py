"""Training on Gymnasium's flat environments: single agents, populations, and populations with evolution.

Several independent experiments run side by side as rows of one stack and lanes of one vector environment: E
experiments of P agents, each with one exploring lane and some lanes without noise, whose returns are its fitness.
What explores are the online actors; what is judged, and what a training results in, are their averages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from benchmarks.pendulum.ddpg import ControlConfig, ControlLearner, ControlReplay, Widths, pack
from training.evolution import Selection, inherit, mutate, plan_selection
from utils.config.trader import EvolutionConfig


@dataclass(frozen=True)
class LoopConfig:
    """How an experiment spends its environment steps."""

    population: int = 1
    fitness_lanes: int = 0
    """Lanes of each agent's averaged actor, without noise; their steps count, and are learned from, as well."""
    environment_steps: int = 20_000
    """Of one experiment, over all its agents and lanes."""
    warm_up_steps: int = 1_000
    """First environment steps, whose actions are uniform; updates begin after them."""
    generation_steps: int = 200
    """Steps of each lane between two resets; fitness is the reward in them."""
    updates_per_step: float = 1.0
    """Updates of every agent each time that every lane makes a step."""
    evolution: EvolutionConfig | None = None

    @property
    def lanes_per_agent(self) -> int:
        """One that explores, and those that measure fitness."""
        return 1 + self.fitness_lanes


@dataclass(frozen=True)
class Trained:
    """What came of it."""

    learner: ControlLearner
    champions: Tensor
    """(E,) row of each experiment's fittest agent in the last whole generation."""
    fitness: Tensor
    """(generations, E, P) mean return of the fitness lanes, of the exploring lane where there are none."""


@dataclass(frozen=True)
class ActionRange:
    """The map from [-1, 1] to the environment's actions."""

    low: np.ndarray
    high: np.ndarray

    def scale(self, action: Tensor) -> np.ndarray:
        """(..., action) in [-1, 1] to (lanes, action) in the environment's units."""
        flat = action.cpu().numpy().reshape(-1, len(self.low))
        scaled: np.ndarray = self.low + (flat + 1) / 2 * (self.high - self.low)
        return scaled


def make_environments(name: str | type[gymnasium.Env[Any, Any]], lanes: int) -> VectorEnv[Any, Any, Any]:
    """Lanes of a Gymnasium environment that reset in the step in which their episode ends."""

    def one() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(name) if isinstance(name, str) else name()

    return gymnasium.vector.SyncVectorEnv([one] * lanes, autoreset_mode=AutoresetMode.SAME_STEP)


def spaces(environments: VectorEnv[Any, Any, Any]) -> tuple[Widths, ActionRange]:
    """Widths and action range of flat spaces; ValueError for others."""
    observation, action = environments.single_observation_space, environments.single_action_space
    for space in (observation, action):
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ValueError(f"expected flat Box spaces, got {space}; wrap the environment with FlattenObservation")
    assert isinstance(action, gymnasium.spaces.Box) and observation.shape is not None
    return Widths(observation.shape[0], action.shape[0]), ActionRange(action.low, action.high)


class ControlTrainer:
    """The vector environment, the learner and the replay of E experiments."""

    def __init__(
        self,
        name: str | type[gymnasium.Env[Any, Any]],
        experiments: int,
        loop: LoopConfig,
        config: ControlConfig,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.name, self.experiments, self.loop, self.seed = name, experiments, loop, seed
        self.agents = experiments * loop.population
        self.lanes = self.agents * loop.lanes_per_agent
        self.environments = make_environments(name, self.lanes)
        widths, self.action_range = spaces(self.environments)
        self.generator = torch.Generator().manual_seed(seed)
        self.device_generator = torch.Generator(device).manual_seed(seed)
        self.learner = ControlLearner(self.agents, widths, config, generator=self.generator, device=device)
        self.steps = loop.environment_steps * experiments // self.lanes
        self.replay = ControlReplay(self.steps, self.lanes, experiments, widths, device)
        self._updates_due = 0.0

    def run(self) -> Trained:
        """Spend all environment steps."""
        fitness: list[Tensor] = []
        whole = max(1, self.steps // self.loop.generation_steps)
        while self.replay.ring.size < self.steps:
            # Random actions say nothing about an agent, and what is left after the whole generations is too short an
            # episode to judge a new one by.
            is_judged = not self._is_random((len(fitness) - 1) * self.loop.generation_steps)
            if is_judged and len(fitness) < whole and self.loop.evolution is not None:
                self._evolve(fitness[-1], self.loop.evolution)
            fitness.append(self._generation(len(fitness)))
        self.environments.close()
        champions = fitness[whole - 1].argmax(1) + torch.arange(self.experiments) * self.loop.population
        return Trained(self.learner, champions, torch.stack(fitness))

    def _generation(self, number: int) -> Tensor:
        """Steps of all lanes from a reset, and the updates that fall due; (E, P) fitness."""
        # Agents of a generation start alike, or luck would decide who is fit.
        starts = [
            hash((self.seed, number, lane)) % 2**31 for lane in range(self.experiments * self.loop.lanes_per_agent)
        ]
        observation, _ = self.environments.reset(seed=cast(Any, self._by_agent(starts)))
        total = torch.zeros(self.lanes)
        for _ in range(min(self.loop.generation_steps, self.steps - self.replay.ring.size)):
            observation, reward = self._step(observation)
            total += reward
        by_lane = total.view(self.experiments, self.loop.population, -1)
        return by_lane[..., 1 if self.loop.fitness_lanes else 0 :].mean(-1)

    def _by_agent(self, starts: list[int]) -> list[int]:
        per_agent = self.loop.lanes_per_agent
        groups = [starts[first : first + per_agent] for first in range(0, len(starts), per_agent)]
        return [start for group in groups for _ in range(self.loop.population) for start in group]

    def _step(self, observation: np.ndarray) -> tuple[np.ndarray, Tensor]:
        action = self._choose(torch.as_tensor(observation, dtype=torch.float32))
        following, reward, terminated, _, info = self.environments.step(self.action_range.scale(action))
        last = following
        if "final_obs" in info:
            ended = info["_final_obs"]
            last = following.copy()
            last[ended] = np.stack(info["final_obs"][ended])
        earned = torch.as_tensor(reward, dtype=torch.float32)
        before, after = (torch.as_tensor(o, dtype=torch.float32) for o in (observation, last))
        self.replay.add(pack(before, action, after, earned, torch.as_tensor(terminated)))
        self._update()
        return following, earned

    def _choose(self, observation: Tensor) -> Tensor:
        """(lanes, action) in [-1, 1]: uniform at first; then the online actors' with noise on the first lane of each
        agent, and the averaged actors' on its others."""
        width = self.learner.widths.action
        if self._is_random(self.replay.ring.size):
            return torch.rand(self.lanes, width, generator=self.generator) * 2 - 1
        by_agent = observation.view(self.agents, self.loop.lanes_per_agent, -1).to(self.learner.device)
        exploring = self.learner.act(by_agent[:, :1])
        action = torch.cat((exploring, self.learner.act_averaged(by_agent[:, 1:])), 1).cpu()
        noise = torch.randn(self.agents, width, generator=self.generator) * self.learner.config.exploration_noise
        action[:, 0] = (action[:, 0] + noise).clamp(-1, 1)
        return action.view(self.lanes, width)

    def _is_random(self, step: int) -> bool:
        """Whether the actions of a step of all lanes, counted from 0, are uniform; so is what lies before the first."""
        return step * self.lanes < self.loop.warm_up_steps * self.experiments

    def _update(self) -> None:
        if self._is_random(self.replay.ring.size):
            return
        self._updates_due += self.loop.updates_per_step
        while self._updates_due >= 1:
            self._updates_due -= 1
            batch = self.replay.sample(self.agents, self.learner.config.batch_size, self.device_generator)
            self.learner.update(batch)

    def _evolve(self, fitness: Tensor, config: EvolutionConfig) -> None:
        """The next generation of every experiment, from its own agents: winners' copies and mutants."""
        plans = [plan_selection(each, config, self.generator) for each in fitness]
        offset = (torch.arange(self.experiments) * self.loop.population).repeat_interleave(self.loop.population)
        selection = Selection(
            torch.cat([plan.parents for plan in plans]) + offset,
            torch.cat([plan.mates for plan in plans]) + offset,
            torch.cat([plan.is_elite for plan in plans]),
            torch.cat([plan.is_mutant for plan in plans]),
        )
        stacks = inherit(self.learner.stacks(), selection)
        self.learner.write(mutate(stacks, selection.is_mutant, config.mutation_strength, self.generator))


def evaluate(
    learner: ControlLearner, name: str | type[gymnasium.Env[Any, Any]], episodes: int, seed: int, most_steps: int = 1000
) -> Tensor:
    """Undiscounted returns of the averaged actors, (A, episodes); the same starts for every agent."""
    environments = make_environments(name, learner.population * episodes)
    _, action_range = spaces(environments)
    starts = [seed + episode for episode in range(episodes)] * learner.population
    observation, _ = environments.reset(seed=cast(Any, starts))
    total = torch.zeros(len(starts))
    is_running = torch.ones(len(total), dtype=torch.bool)
    for _ in range(most_steps):
        states = torch.as_tensor(observation, dtype=torch.float32).view(learner.population, episodes, -1)
        action = learner.act_averaged(states.to(learner.device))
        observation, reward, terminated, truncated, _ = environments.step(action_range.scale(action))
        total += torch.as_tensor(reward, dtype=torch.float32) * is_running
        is_running &= ~torch.as_tensor(terminated | truncated)
        if not is_running.any():
            break
    environments.close()
    return total.view(learner.population, episodes)
