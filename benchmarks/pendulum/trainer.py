"""Training on Gymnasium's flat environments: single agents, populations, and populations with evolution.

E independent experiments of P agents run side by side as rows of one stack and lanes of one vector environment. Each
agent has one lane that explores, and may have lanes without noise, whose returns are its fitness. The online actors
explore. Their averages, the target actors, are judged, and are what a training results in: an online actor may be far
worse for a hundred steps than before and after them; its average hardly is (Polyak and Juditsky 1992).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from benchmarks.pendulum.agents import Agents, Batch, DDPGConfig
from training.evolution import Selection, inherit, mutate, plan_selection
from utils.config.trader import EvolutionConfig
from utils.tensor_ring import TensorRing

Environment = str | type[gymnasium.Env[Any, Any]]


@dataclass(frozen=True)
class LoopConfig:
    """Settings of how an experiment spends its environment steps."""

    population: int = 1
    fitness_lanes: int = 0
    """Lanes of each agent's target actor, without noise; their steps count, and are learned from, as well."""
    environment_steps: int = 20_000
    """Of one experiment, over all its agents and lanes."""
    warm_up_steps: int = 1_000
    """First environment steps, whose actions are uniform; updates begin after them."""
    generation_steps: int = 200
    """Steps of each lane between two resets; fitness is the reward in them."""
    updates_per_step: float = 1.0
    """Updates of every agent each time that every lane makes a step."""
    evolution: EvolutionConfig | None = None


@dataclass(frozen=True)
class Trained:
    """Result of a training."""

    agents: Agents
    champions: Tensor
    """(E,) row of each experiment's fittest agent in the last whole generation."""
    fitness: Tensor
    """(generations, E, P) mean return of the fitness lanes, of the exploring lane where there are none."""


class FlatEnvironments:
    """Lanes of a Gymnasium environment with flat spaces, whose actions are mapped from [-1, 1]."""

    def __init__(self, environment: Environment, lanes: int) -> None:
        """Make the lanes, which begin a new episode in the step that ends one; ValueError if spaces are not flat."""

        def one() -> gymnasium.Env[Any, Any]:
            return gymnasium.make(environment) if isinstance(environment, str) else environment()

        self.lanes: VectorEnv[Any, Any, Any] = gymnasium.vector.SyncVectorEnv(
            [one] * lanes, autoreset_mode=AutoresetMode.SAME_STEP
        )
        observation, action = self.lanes.single_observation_space, self.lanes.single_action_space
        for space in (observation, action):
            if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
                raise ValueError(f"expected flat Box spaces, got {space}; wrap the environment with FlattenObservation")
        self.low, self.high = cast(gymnasium.spaces.Box, action).low, cast(gymnasium.spaces.Box, action).high
        self.sizes = gymnasium.spaces.flatdim(observation), gymnasium.spaces.flatdim(action)

    def reset(self, seeds: list[int]) -> Tensor:
        """Begin an episode in each lane: (lanes, observation)."""
        return torch.as_tensor(self.lanes.reset(seed=cast(Any, seeds))[0], dtype=torch.float32)

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Take (lanes, action) in [-1, 1].

        Returns:
            (lanes, observation) to act on next, and after the action: they differ where an episode ended; then (lanes,)
            reward, terminated and truncated.
        """
        scaled = self.low + (action.numpy() + 1) / 2 * (self.high - self.low)
        following, reward, terminated, truncated, info = self.lanes.step(scaled)
        last = following.copy()
        if "final_obs" in info:
            last[info["_final_obs"]] = np.stack(info["final_obs"][info["_final_obs"]])
        following, last, reward = (torch.as_tensor(array, dtype=torch.float32) for array in (following, last, reward))
        return following, last, reward, torch.as_tensor(terminated), torch.as_tensor(truncated)


class Trainer:
    """The environments, the agents and the replay of E experiments."""

    def __init__(
        self,
        environment: Environment,
        experiments: int,
        loop: LoopConfig,
        config: DDPGConfig,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.experiments, self.loop, self.config, self.seed, self.device = experiments, loop, config, seed, device
        self.lanes_per_agent = 1 + loop.fitness_lanes
        self.lanes_per_experiment = loop.population * self.lanes_per_agent
        self.steps = loop.environment_steps // self.lanes_per_experiment
        self.warm_up = -(-loop.warm_up_steps // self.lanes_per_experiment)
        self.environments = FlatEnvironments(environment, experiments * self.lanes_per_experiment)
        observation, action = self.environments.sizes
        torch.manual_seed(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.agents = Agents(experiments * loop.population, observation, action, config, device)
        lanes = experiments * self.lanes_per_experiment
        shapes = [(lanes, observation), (lanes, action), (lanes,), (lanes, observation), (lanes,)]
        names = [field.name for field in fields(Batch)]
        kinds = {"terminated": torch.bool}
        stored = {name: (shape, kinds.get(name, torch.float32)) for name, shape in zip(names, shapes, strict=True)}
        self.replay = TensorRing(self.steps, stored, device)
        self._updates_due = 0.0

    def run(self) -> Trained:
        """Spend all environment steps."""
        fitness: list[Tensor] = []
        length = self.loop.generation_steps
        whole = max(1, self.steps // length)
        for number in range(-(-self.steps // length)):
            # Random actions say nothing about an agent, and what is left after the whole generations is too short an
            # episode to judge a new one by.
            is_judged = (number - 1) * length >= self.warm_up
            if self.loop.evolution is not None and is_judged and number < whole:
                self._evolve(fitness[-1], self.loop.evolution)
            fitness.append(self._generation(number))
        self.environments.lanes.close()
        champions = fitness[whole - 1].argmax(1) + torch.arange(self.experiments) * self.loop.population
        return Trained(self.agents, champions, torch.stack(fitness))

    def _generation(self, number: int) -> Tensor:
        """Step all lanes from a reset, and make the updates that fall due; return (E, P) fitness."""
        # Agents of a generation start alike, or luck would decide who is fit.
        draw = np.random.default_rng((self.seed, number))
        starts = draw.integers(2**31, size=(self.experiments, 1, self.lanes_per_agent))
        observation = self.environments.reset(starts.repeat(self.loop.population, axis=1).flatten().tolist())
        total = torch.zeros(len(observation))
        for _ in range(min(self.loop.generation_steps, self.steps - self.replay.size)):
            is_random = self.replay.size < self.warm_up
            action = self._draw_actions() if is_random else self._choose(observation)
            following, last, reward, terminated, _ = self.environments.step(action)
            transition = Batch(observation, action, reward, last, terminated)
            self.replay.add({name: values[None] for name, values in vars(transition).items()})
            self._updates_due += 0 if is_random else self.loop.updates_per_step
            while self._updates_due >= 1:
                self._updates_due -= 1
                self.agents.update(self.sample())
            observation = following
            total += reward
        by_lane = total.view(self.experiments, self.loop.population, -1)
        return by_lane[..., 1 if self.loop.fitness_lanes else 0 :].mean(-1)

    def _draw_actions(self) -> Tensor:
        shape = self.experiments * self.lanes_per_experiment, self.environments.sizes[1]
        return torch.rand(shape, generator=self.generator) * 2 - 1

    @torch.no_grad()
    def _choose(self, observation: Tensor) -> Tensor:
        """Return each agent's (lanes, action): of the online actor with noise on the first lane, then of the target."""
        by_agent = observation.to(self.device).view(self.agents.count, self.lanes_per_agent, -1)
        exploring = self.agents.networks.act(by_agent[:, :1]).cpu()
        noise = self.config.exploration_noise * torch.randn(exploring.shape, generator=self.generator)
        judged = self.agents.targets.act(by_agent[:, 1:]).cpu()
        return torch.cat(((exploring + noise).clamp(-1, 1), judged), 1).flatten(0, 1)

    def sample(self) -> Batch:
        """Draw a minibatch for each agent from the lanes of its own experiment."""
        shape = (self.agents.count, self.config.batch_size)
        step = torch.randint(self.replay.size, shape, generator=self.generator).to(self.device)
        lane = torch.randint(self.lanes_per_experiment, shape, generator=self.generator)
        experiment = torch.arange(self.experiments).repeat_interleave(self.loop.population)
        lane = (lane + experiment[:, None] * self.lanes_per_experiment).to(self.device)
        return Batch(**{name: rows[step, lane] for name, rows in self.replay.data.items()})

    def _evolve(self, fitness: Tensor, config: EvolutionConfig) -> None:
        """Replace every experiment's generation by winners' copies and mutants of its own agents."""
        plans = [vars(plan_selection(each, config, self.generator)) for each in fitness]
        first = (torch.arange(self.experiments) * self.loop.population).repeat_interleave(self.loop.population)
        joined = {name: torch.cat([plan[name] for plan in plans]) for name in plans[0]}
        selection = Selection(**joined | {"parents": joined["parents"] + first, "mates": joined["mates"] + first})
        inherited = inherit(self.agents.stacks(), selection)
        evolved = mutate(inherited, selection.is_mutant, config.mutation_strength, self.generator)
        for name, rows in self.agents.stacks().items():
            rows.copy_(evolved[name])


@torch.no_grad()
def evaluate(agents: Agents, environment: Environment, episodes: int, seed: int, most_steps: int = 1000) -> Tensor:
    """Play the target actors; undiscounted returns, (A, episodes), of the same starts for every agent."""
    environments = FlatEnvironments(environment, agents.count * episodes)
    observation = environments.reset([seed + episode for episode in range(episodes)] * agents.count)
    device = next(agents.targets.parameters()).device
    total, is_running = torch.zeros(len(observation)), torch.ones(len(observation), dtype=torch.bool)
    for _ in range(most_steps):
        action = agents.targets.act(observation.to(device).view(agents.count, episodes, -1))
        observation, _, reward, terminated, truncated = environments.step(action.flatten(0, 1).cpu())
        total += reward * is_running
        is_running &= ~(terminated | truncated)
        if not is_running.any():
            break
    environments.lanes.close()
    return total.view(agents.count, episodes)
