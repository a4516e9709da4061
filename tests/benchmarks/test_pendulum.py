"""DDPG on flat environments against a plain loop over agents in float64, and on a task with a known answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.pendulum.agents import Agents, Batch, DDPGConfig, Networks
from benchmarks.pendulum.trainer import LoopConfig, Trainer, evaluate
from utils.config.trader import EvolutionConfig

OBSERVATION, ACTION = 3, 2
CONFIG = DDPGConfig(hidden=(24, 20), batch_size=32, actor_learning_rate=2e-3, tau=0.01)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small take longer with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_agents(count: int, config: DDPGConfig = CONFIG) -> Agents:
    """Agents in float64 with targets unlike the networks, as after some updates."""
    torch.manual_seed(0)
    agents = Agents(count, OBSERVATION, ACTION, config)
    for networks in (agents.networks, agents.targets):
        networks.double()
    for parameter in agents.targets.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return agents


def make_batch(agents: int, seed: int, dtype: torch.dtype = torch.float64) -> Batch:
    generator = seeded(100 + seed)

    def draw(*last: int) -> Tensor:
        return torch.randn(agents, CONFIG.batch_size, *last, generator=generator, dtype=dtype)

    terminated = torch.rand(agents, CONFIG.batch_size, generator=generator) < 0.3
    return Batch(draw(OBSERVATION), draw(ACTION).tanh(), draw(), draw(OBSERVATION), terminated)


def plain_network(networks: Networks, part: str, agent: int) -> nn.Sequential:
    """One agent's actor or critic as modules of its own."""
    layers: list[nn.Module] = []
    for name, weight in networks.get_submodule(part).named_parameters():
        if name.endswith("weight"):
            layer = nn.Linear(*weight.shape[1:], dtype=weight.dtype)
            layer.weight.data.copy_(weight[agent].T)
        else:
            layer.bias.data.copy_(weight[agent, 0])
            layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1], *([nn.Tanh()] if part == "actor" else []))


class PlainAgent:
    """Lillicrap et al. 2016, algorithm 1, as one-file implementations write it."""

    def __init__(self, agents: Agents, agent: int) -> None:
        self.actor, self.critic = (plain_network(agents.networks, part, agent) for part in ("actor", "critic"))
        self.target_actor, self.target_critic = (
            plain_network(agents.targets, part, agent) for part in ("actor", "critic")
        )
        self.config = agents.config
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=self.config.actor_learning_rate)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=self.config.critic_learning_rate)

    def update(self, batch: dict[str, Tensor]) -> tuple[float, float]:
        observation, following = batch["observation"], batch["next_observation"]
        with torch.no_grad():
            next_value = self.target_critic(torch.cat((following, self.target_actor(following)), 1))[:, 0]
            target = batch["reward"] + self.config.gamma * next_value * (1.0 - batch["terminated"].double())
        critic_loss = F.mse_loss(self.critic(torch.cat((observation, batch["action"]), 1))[:, 0], target)
        self.step(self.critic_optimizer, self.critic, critic_loss)
        actor_loss = -self.critic(torch.cat((observation, self.actor(observation)), 1)).mean()
        self.step(self.actor_optimizer, self.actor, actor_loss)
        for online, behind in ((self.actor, self.target_actor), (self.critic, self.target_critic)):
            for parameter, target_parameter in zip(online.parameters(), behind.parameters(), strict=True):
                target_parameter.data += self.config.tau * (parameter.data - target_parameter.data)
        return critic_loss.item(), actor_loss.item()

    def step(self, optimizer: torch.optim.Optimizer, network: nn.Module, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), self.config.max_gradient_norm)
        optimizer.step()


@pytest.mark.parametrize("largest", [float("inf"), 0.05])
def test_updates_equal_plain_agents(largest: float) -> None:
    """Critic target with termination and truncation, clipped gradients, both steps, soft updates."""
    agents = make_agents(3, replace(CONFIG, max_gradient_norm=largest))
    plain = [PlainAgent(agents, agent) for agent in range(3)]
    for step in range(3):
        batch = make_batch(3, step)
        assert 0 < batch.terminated.sum() < batch.terminated.numel()
        losses = torch.stack(agents.update(batch), 1)
        rows = [{name: values[agent] for name, values in vars(batch).items()} for agent in range(3)]
        expected = [one.update(row) for one, row in zip(plain, rows, strict=True)]
        torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))
    for agent, one in enumerate(plain):
        for name, networks in (("", agents.networks), ("target_", agents.targets)):
            for part in ("actor", "critic"):
                found = plain_network(networks, part, agent)
                for mine, wanted in zip(found.parameters(), getattr(one, name + part).parameters(), strict=True):
                    torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-8)


def test_agents_sample_only_their_own_experiment() -> None:
    """Of six lanes two belong to each of three experiments, whose agents meet every step that is kept."""
    trainer = Trainer(_Flat, 3, LoopConfig(population=2, environment_steps=10), replace(CONFIG, batch_size=200), seed=0)
    assert trainer.replay.capacity == 5
    for step in range(7):
        rows = {
            name: torch.zeros(1, *store.shape[1:], dtype=store.dtype) for name, store in trainer.replay.data.items()
        }
        rows["observation"][0, :, 0] = torch.arange(6) // 2
        rows["reward"][:] = step
        trainer.replay.add(rows)
    batch = trainer.sample()
    assert torch.equal(batch.observation[..., 0], (torch.arange(6) // 2)[:, None].expand(6, 200).float())
    assert set(batch.reward.flatten().tolist()) == {2.0, 3.0, 4.0, 5.0, 6.0}


class _Flat(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pays most for the action that undoes the observation; terminates or is cut short after each fourth step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (OBSERVATION,))
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (ACTION,))

    def __init__(self, ends: str = "truncated") -> None:
        self.ends = ends

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def _draw(self) -> np.ndarray:
        self.state = self.np_random.uniform(-1, 1, OBSERVATION).astype(np.float32)
        return self.state

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action.astype(np.float32))
        reward = -float(np.square(action / 2 + self.state[:ACTION]).sum())
        self.steps += 1
        is_over = self.steps == 4
        return self._draw(), reward, is_over and self.ends == "terminated", is_over and self.ends == "truncated", {}


class _Terminating(_Flat):
    def __init__(self) -> None:
        super().__init__("terminated")


@pytest.mark.parametrize(("environment", "share"), [(_Flat, 0.0), (_Terminating, 0.25)])
def test_only_termination_is_stored(environment: type[gymnasium.Env[Any, Any]], share: float) -> None:
    """And where an episode ended, the observation after the action, not that of the next episode."""
    loop = LoopConfig(environment_steps=40, warm_up_steps=40, generation_steps=8)
    trainer = Trainer(environment, 2, loop, CONFIG, seed=0)
    trainer.run()
    stored = trainer.replay.data
    assert stored["terminated"].float().mean() == share
    connected = (stored["next_observation"][:-1] == stored["observation"][1:]).all(-1)
    assert connected.float().sum(0).tolist() == [30.0, 30.0]


@pytest.mark.parametrize("evolution", [None, EvolutionConfig(population_size=2, offspring_fraction=0.0)])
def test_learns_a_known_answer(evolution: EvolutionConfig | None) -> None:
    """The best return is 0; the best constant action's is -8/3, four steps of two numbers of variance 1/3."""
    loop = LoopConfig(
        population=2,
        fitness_lanes=1,
        environment_steps=2400,
        warm_up_steps=200,
        generation_steps=100,
        evolution=evolution,
    )
    config = DDPGConfig(hidden=(32, 32), batch_size=64, gamma=0.5, actor_learning_rate=3e-3, critic_learning_rate=3e-3)
    trained = Trainer(_Flat, 1, loop, config, seed=0).run()
    returns = evaluate(trained.agents, _Flat, episodes=20, seed=5)
    assert returns.shape == (2, 20)
    assert returns[trained.champions].mean() > -0.5
    assert trained.fitness.shape == (6, 1, 2)


@pytest.mark.parametrize(("tau", "is_fixed"), [(0.0, True), (1.0, False)])
def test_policies_are_judged_by_their_averages(tau: float, is_fixed: bool) -> None:
    """Targets that never move play as at first, in fitness lanes and evaluations; those that move at once do not.

    The lane that explores without noise always plays the online actors.
    """
    loop = LoopConfig(2, 1, environment_steps=400, warm_up_steps=0, generation_steps=10)
    trainer = Trainer(_Flat, 2, loop, replace(CONFIG, tau=tau, exploration_noise=0.0), seed=0)
    first = copy.deepcopy(trainer.agents)
    trainer.run()
    observation, action = (trainer.replay.data[name][-1].view(4, 2, -1) for name in ("observation", "action"))
    with torch.no_grad():
        is_as_first = torch.isclose(action, first.networks.act(observation))
        online, averaged = (networks.act(observation) for networks in (trainer.agents.networks, trainer.agents.targets))
    assert is_as_first[:, 1:].all() == is_fixed
    assert not is_as_first[:, :1].any()
    before, after = (evaluate(agents, _Flat, episodes=3, seed=5) for agents in (first, trainer.agents))
    assert before.equal(after) == is_fixed
    assert online.equal(averaged) != is_fixed


def test_the_same_seed_gives_the_same_run() -> None:
    loop = LoopConfig(environment_steps=60, warm_up_steps=20, generation_steps=20)
    first, second = (Trainer(_Flat, 2, loop, CONFIG, seed=3).run() for _ in range(2))
    for name, rows in first.agents.stacks().items():
        assert torch.equal(rows, second.agents.stacks()[name])


@pytest.mark.parametrize(("random_steps", "judged"), [(0, [0, 1]), (10, [1]), (11, []), (25, [])])
def test_only_whole_generations_of_own_actions_choose(
    random_steps: int, judged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three whole generations and a half: nothing evolves by random actions or for the half; the third's best wins."""
    evolved: list[Tensor] = []
    monkeypatch.setattr(Trainer, "_evolve", lambda trainer, fitness, config: evolved.append(fitness))
    config = EvolutionConfig(population_size=3)
    steps = {"environment_steps": 6 * 35, "warm_up_steps": 6 * random_steps, "generation_steps": 10}
    loop = LoopConfig(3, 1, **steps, evolution=config)
    trained = Trainer(_Flat, 2, loop, CONFIG, seed=0).run()
    assert len(trained.fitness) == 4 and len(evolved) == len(judged)
    assert all(found.equal(trained.fitness[number]) for found, number in zip(evolved, judged, strict=True))
    assert trained.champions.tolist() == [row + 3 * place for place, row in enumerate(trained.fitness[2].argmax(1))]
    assert not trained.fitness[2].argmax(1).equal(trained.fitness[3].argmax(1))


def test_spaces_that_are_not_flat_are_refused() -> None:
    with pytest.raises(ValueError, match="expected flat Box spaces"):
        Trainer("CartPole-v1", 1, LoopConfig(), CONFIG, seed=0)


def test_evolution_stays_within_an_experiment() -> None:
    """The fittest keeps its row, moments included; without mutants every row comes from its own experiment."""
    config = EvolutionConfig(population_size=3, elite_fraction=0.34, offspring_fraction=0.0, mutant_fraction=0.0)
    trainer = Trainer(_Flat, 2, LoopConfig(population=3, evolution=config), CONFIG, seed=0)
    trainer.agents.update(make_batch(6, 0, torch.float32))
    for index, rows in enumerate(trainer.agents.stacks().values()):
        rows.copy_((torch.arange(6) + 10 * index).view(-1, *[1] * (rows.dim() - 1)).expand_as(rows))
    trainer._evolve(torch.tensor([[0.0, 2.0, 1.0], [5.0, 3.0, 4.0]]), config)
    for index, rows in enumerate(trainer.agents.stacks().values()):
        sources = rows.flatten(1)[:, 0] - 10 * index
        assert sources[1] == 1 and sources[3] == 3
        assert (sources // 3).tolist() == [0, 0, 0, 1, 1, 1]
