"""Population DDPG against the papers in plain float64, against Stable-Baselines3, and on a task with a known answer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.pendulum.ddpg import (
    ControlBatch,
    ControlConfig,
    ControlLearner,
    ControlReplay,
    Widths,
    actor_loss_gradient,
    critic_loss_gradient,
    pack,
)
from benchmarks.pendulum.mlp import MLP
from benchmarks.pendulum.trainer import ControlTrainer, LoopConfig, evaluate
from training.ddpg import actor_loss, critic_loss
from utils.config.trader import EvolutionConfig

WIDTHS = Widths(observation=3, action=2)
CONFIG = ControlConfig(hidden=(24, 20), batch_size=32, actor_learning_rate=2e-3, tau=0.01)
EXACT, SINGLE = 1e-6, 1e-5
"""Absolute; in float32 a step of 1e-3 carries the rounding of a gradient that Adam has divided by its own size."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small take longer with more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_learner(agents: int, config: ControlConfig = CONFIG, dtype: torch.dtype = torch.float64) -> ControlLearner:
    """Targets unlike the networks, as after some updates."""
    learner = ControlLearner(agents, WIDTHS, config, generator=seeded(), dtype=dtype)
    for target in (learner.target_actor, learner.target_critic):
        for parameter in target.parameters:
            parameter.add_(torch.randn(parameter.shape, generator=seeded(7), dtype=dtype), alpha=0.05)
    return learner


def make_batch(agents: int, seed: int, dtype: torch.dtype = torch.float64) -> ControlBatch:
    generator = seeded(100 + seed)

    def draw(*last: int) -> Tensor:
        return torch.randn(agents, CONFIG.batch_size, *last, generator=generator, dtype=dtype)

    terminated = torch.rand(agents, CONFIG.batch_size, generator=generator) < 0.3
    rows = pack(draw(WIDTHS.observation), draw(WIDTHS.action).tanh(), draw(WIDTHS.observation), draw(), terminated)
    return ControlBatch(rows, WIDTHS)


class Reference:
    """Lillicrap et al. 2016, algorithm 1, and Adam (Kingma and Ba 2015, algorithm 1), one agent, in numpy."""

    def __init__(self, learner: ControlLearner, agent: int) -> None:
        self.config = learner.config
        names = ("actor", "critic", "target_actor", "target_critic")
        self.nets = {name: [p[agent].numpy().copy() for p in getattr(learner, name).parameters] for name in names}
        self.moments: dict[str, list[np.ndarray]] = {}
        self.steps = 0

    def forward(self, name: str, x: np.ndarray) -> list[np.ndarray]:
        layers = self.nets[name]
        kept = [x]
        for at in range(0, len(layers), 2):
            y = np.einsum("bi,oi->bo", kept[-1], layers[at]) + layers[at + 1]
            kept.append(np.maximum(y, 0.0) if at < len(layers) - 2 else y)
        return kept

    def backward(self, name: str, kept: list[np.ndarray], d_y: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        gradients: list[np.ndarray] = []
        for layer in reversed(range(len(kept) - 1)):
            gradients = [np.einsum("bo,bi->oi", d_y, kept[layer]), d_y.sum(0), *gradients]
            d_y = np.einsum("bo,oi->bi", d_y, self.nets[name][2 * layer])
            if layer:
                d_y = d_y * (kept[layer] > 0)
        return gradients, d_y

    def adam(self, name: str, gradients: list[np.ndarray], rate: float) -> None:
        for at, gradient in enumerate(gradients):
            m, v = self.moments.setdefault(f"{name}{at}", [np.zeros_like(gradient), np.zeros_like(gradient)])
            m[...] = 0.9 * m + 0.1 * gradient
            v[...] = 0.999 * v + 0.001 * gradient**2
            unbiased = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
            self.nets[name][at] -= rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)

    def update(self, state: np.ndarray, action: np.ndarray, following: np.ndarray, ending: np.ndarray) -> None:
        self.steps += 1
        size = len(state)
        next_action = np.tanh(self.forward("target_actor", following)[-1])
        next_value = self.forward("target_critic", np.hstack((following, next_action)))[-1][:, 0]
        # Only what terminated has no future; a truncated transition is stored as not terminated.
        target = ending[:, 0] + self.config.gamma * (1.0 - ending[:, 1]) * next_value
        kept = self.forward("critic", np.hstack((state, action)))
        d_value = 2.0 * (kept[-1] - target[:, None]) / size
        self.adam("critic", self.backward("critic", kept, d_value)[0], self.config.critic_learning_rate)
        acted = self.forward("actor", state)
        chosen = np.tanh(acted[-1])
        valued = self.forward("critic", np.hstack((state, chosen)))
        d_action = self.backward("critic", valued, np.full((size, 1), -1.0 / size))[1][:, state.shape[1] :]
        gradients, _ = self.backward("actor", acted, d_action * (1.0 - chosen**2))
        self.adam("actor", gradients, self.config.actor_learning_rate)
        for name in ("actor", "critic"):
            for online, behind in zip(self.nets[name], self.nets[f"target_{name}"], strict=True):
                behind[...] = self.config.tau * online + (1.0 - self.config.tau) * behind


def split(rows: Tensor) -> list[np.ndarray]:
    state, action = WIDTHS.observation, WIDTHS.action
    return np.split(rows.numpy(), [state, state + action, 2 * state + action], axis=-1)


def test_updates_equal_the_papers_in_float64() -> None:
    """Critic target with termination and truncation, both gradient steps, Adam's bias correction, soft updates."""
    learner = make_learner(2)
    references = [Reference(learner, agent) for agent in range(2)]
    for step in range(3):
        batch = make_batch(2, step)
        assert 0 < batch.terminated.sum() < batch.terminated.numel()
        learner.update(batch)
        for agent, reference in enumerate(references):
            reference.update(*split(batch.rows[agent]))
    for agent, reference in enumerate(references):
        for name, expected in reference.nets.items():
            for found, wanted in zip(getattr(learner, name).parameters, expected, strict=True):
                np.testing.assert_allclose(found[agent].numpy(), wanted, rtol=0, atol=EXACT)


def copy_to_sb3(network: MLP, module: Any) -> None:
    layers = [layer for layer in module if isinstance(layer, torch.nn.Linear)]
    for layer, weight, bias in zip(layers, network.weights, network.biases, strict=True):
        layer.weight.data.copy_(weight[0])
        layer.bias.data.copy_(bias[0])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, SINGLE)])
def test_updates_equal_stable_baselines3(dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sb3 = pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    config = ControlConfig(hidden=(24, 20), batch_size=CONFIG.batch_size, gamma=0.97)
    learner = make_learner(1, config, dtype)
    model = sb3.DDPG(
        "MlpPolicy",
        _Flat(),
        gamma=config.gamma,
        tau=config.tau,
        learning_rate=config.actor_learning_rate,
        policy_kwargs={"net_arch": list(config.hidden)},
        device="cpu",
    )
    model.policy.to(dtype)
    # Stable-Baselines3 turns every observation into float32 here.
    monkeypatch.setattr("stable_baselines3.common.policies.preprocess_obs", lambda observation, *_, **__: observation)
    model.set_logger(Logger(None, []))
    modules = {"actor": model.actor.mu, "target_actor": model.actor_target.mu}
    modules |= {"critic": model.critic.qf0, "target_critic": model.critic_target.qf0}
    for name, module in modules.items():
        copy_to_sb3(getattr(learner, name), module)
    for step in range(3):
        batch = make_batch(1, step, dtype)
        state, action, following, ending = (torch.from_numpy(part) for part in split(batch.rows[0]))
        sample = ReplayBufferSamples(state, action, following, ending[:, 1:], ending[:, :1])
        monkeypatch.setattr(model.replay_buffer, "sample", lambda *_, sample=sample, **__: sample)
        model.train(gradient_steps=1, batch_size=config.batch_size)
        learner.update(batch)
    for name, module in modules.items():
        expected = [p.detach() for p in module.parameters()]
        for found, wanted in zip(getattr(learner, name).parameters, expected, strict=True):
            torch.testing.assert_close(found[0], wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("largest", [float("inf"), 0.05])
def test_population_equals_single_agents(largest: float) -> None:
    """One computation for all agents, one at a time or stacked, is A agents on their own."""
    config = ControlConfig(hidden=(24, 20), batch_size=CONFIG.batch_size, max_gradient_norm=largest)
    stacked, one_by_one = make_learner(3, config), make_learner(3, config)
    stacked._groups = [type(stacked._groups[0])(stacked, slice(0, 3))]
    singles = []
    for agent in range(3):
        single = ControlLearner(1, WIDTHS, config, dtype=torch.float64)
        single.write({name: rows[agent : agent + 1] for name, rows in stacked.stacks().items()})
        singles.append(single)
    for step in range(3):
        batch = make_batch(3, step)
        losses = [learner.update(batch) for learner in (stacked, one_by_one)]
        alone = [s.update(ControlBatch(batch.rows[a : a + 1], WIDTHS)) for a, s in enumerate(singles)]
        for kind in range(2):
            expected = torch.cat([each[kind] for each in alone])
            torch.testing.assert_close(losses[0][kind], expected, rtol=0, atol=EXACT)
            torch.testing.assert_close(losses[1][kind], expected, rtol=0, atol=EXACT)
    for agent, single in enumerate(singles):
        for name, expected in single.stacks().items():
            for learner in (stacked, one_by_one):
                torch.testing.assert_close(learner.stacks()[name][agent], expected[0], rtol=0, atol=EXACT)


def test_gradients_are_those_of_the_losses() -> None:
    value, target = torch.randn(2, 3, 8, generator=seeded(), dtype=torch.float64).unbind()
    value.requires_grad_()
    (critic,) = torch.autograd.grad(critic_loss([value], target).sum(), value)
    (actor,) = torch.autograd.grad(actor_loss(value).sum(), value)
    torch.testing.assert_close(critic_loss_gradient(value.detach(), target), critic)
    torch.testing.assert_close(actor_loss_gradient(value.detach().unsqueeze(-1)).squeeze(-1), actor)


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_written_derivatives_equal_autograd(agents: int, dtype: torch.dtype) -> None:
    """For one agent in float32 this is oneDNN's path, for several the stacked one."""
    network = MLP(agents, (5, 40, 32, 2), generator=seeded(), dtype=dtype)
    rows = network.rows(slice(0, agents))
    x = torch.randn(agents, 30, 5, generator=seeded(1), dtype=dtype, requires_grad=True)
    parameters = [p.requires_grad_() for p in network.parameters]
    y = x
    for layer, (weight, bias) in enumerate(zip(network.weights, network.biases, strict=True)):
        y = torch.einsum("abi,aoi->abo", y, weight) + bias[:, None]
        y = y.relu() if layer < 2 else y
    d_y = torch.randn(y.shape, generator=seeded(2), dtype=dtype)
    expected = torch.autograd.grad(y, [x, *parameters], d_y)
    with torch.no_grad():
        own_x, own_d = (t[0] if agents == 1 else t for t in (x.detach(), d_y))
        activations = rows.forward(own_x)
        found = [rows.input_gradient(activations, own_d), *rows.parameter_gradients(activations, own_d)]
        torch.testing.assert_close(activations[-1].view_as(y), y.detach())
        torch.testing.assert_close(rows.output(own_x), activations[-1])
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.view_as(wanted), wanted, rtol=1e-4, atol=1e-5)


def test_agents_sample_only_their_own_experiment() -> None:
    replay = ControlReplay(5, lanes=6, experiments=3, widths=WIDTHS)
    for step in range(7):
        rows = torch.full((6, WIDTHS.transition), float(step))
        rows[:, 0] = torch.arange(6) // 2
        replay.add(rows)
    rows = replay.sample(6, 200, seeded()).rows
    assert torch.equal(rows[..., 0], (torch.arange(6) // 2)[:, None].expand(6, 200).float())
    assert set(rows[..., 1].flatten().tolist()) == {2.0, 3.0, 4.0, 5.0, 6.0}


class _Flat(gymnasium.Env[np.ndarray, np.ndarray]):
    """Pays most for the action that undoes the observation; terminates or is cut short after each fourth step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (WIDTHS.observation,))
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (WIDTHS.action,))

    def __init__(self, ends: str = "truncated") -> None:
        self.ends = ends

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def _draw(self) -> np.ndarray:
        self.state = self.np_random.uniform(-1, 1, WIDTHS.observation).astype(np.float32)
        return self.state

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action.astype(np.float32))
        reward = -float(np.square(action / 2 + self.state[: WIDTHS.action]).sum())
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
    trainer = ControlTrainer(environment, 2, loop, CONFIG, seed=0)
    trainer.run()
    rows = ControlBatch(trainer.replay.ring.data["transition"], WIDTHS)
    assert rows.terminated.float().mean() == share
    connected = (rows.next_observation[:-1] == rows.observation[1:]).all(-1)
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
    config = ControlConfig(
        hidden=(32, 32), batch_size=64, gamma=0.5, actor_learning_rate=3e-3, critic_learning_rate=3e-3
    )
    trained = ControlTrainer(_Flat, 1, loop, config, seed=0).run()
    returns = evaluate(trained.learner, _Flat, episodes=20, seed=5)
    assert returns.shape == (2, 20)
    assert returns[trained.champions].mean() > -0.5
    assert trained.fitness.shape == (6, 1, 2)


@pytest.mark.parametrize(("tau", "is_fixed"), [(0.0, True), (1.0, False)])
def test_policies_are_judged_by_their_averages(tau: float, is_fixed: bool) -> None:
    """Targets that never follow play as at first, in fitness lanes and evaluations; those that follow at once do not.

    The lane that explores without noise always plays the online actors.
    """
    loop = LoopConfig(2, 1, environment_steps=400, warm_up_steps=0, generation_steps=10)
    trainer = ControlTrainer(_Flat, 2, loop, replace(CONFIG, tau=tau, exploration_noise=0.0), seed=0)
    first = copy.deepcopy(trainer.learner)
    trainer.run()
    rows = ControlBatch(trainer.replay.ring.data["transition"][-1].view(4, 2, -1), WIDTHS)
    is_as_first = torch.isclose(rows.observation_action[..., WIDTHS.observation :], first.act(rows.observation))
    assert is_as_first[:, 1:].all() == is_fixed
    assert not is_as_first[:, :1].any()
    before, after = (evaluate(learner, _Flat, episodes=3, seed=5) for learner in (first, trainer.learner))
    assert before.equal(after) == is_fixed
    observation = rows.observation
    assert trainer.learner.act(observation).equal(trainer.learner.act_averaged(observation)) != is_fixed


def test_the_same_seed_gives_the_same_run() -> None:
    loop = LoopConfig(environment_steps=60, warm_up_steps=20, generation_steps=20)
    first, second = (ControlTrainer(_Flat, 2, loop, CONFIG, seed=3).run() for _ in range(2))
    for name, rows in copy.copy(first.learner.stacks()).items():
        assert torch.equal(rows, second.learner.stacks()[name])


@pytest.mark.parametrize(("random_steps", "judged"), [(0, [0, 1]), (10, [1]), (11, []), (25, [])])
def test_only_whole_generations_of_own_actions_choose(
    random_steps: int, judged: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three whole generations and a half: nothing evolves by random actions or for the half; the third's best wins."""
    evolved: list[Tensor] = []
    monkeypatch.setattr(ControlTrainer, "_evolve", lambda trainer, fitness, config: evolved.append(fitness))
    config = EvolutionConfig(population_size=3)
    steps = {"environment_steps": 6 * 35, "warm_up_steps": 6 * random_steps, "generation_steps": 10}
    loop = LoopConfig(3, 1, **steps, evolution=config)
    trained = ControlTrainer(_Flat, 2, loop, CONFIG, seed=0).run()
    assert len(trained.fitness) == 4 and len(evolved) == len(judged)
    assert all(found.equal(trained.fitness[number]) for found, number in zip(evolved, judged, strict=True))
    assert trained.champions.tolist() == [row + 3 * place for place, row in enumerate(trained.fitness[2].argmax(1))]
    assert not trained.fitness[2].argmax(1).equal(trained.fitness[3].argmax(1))


def test_spaces_that_are_not_flat_are_refused() -> None:
    with pytest.raises(ValueError, match="expected flat Box spaces"):
        ControlTrainer("CartPole-v1", 1, LoopConfig(), CONFIG, seed=0)


def test_evolution_stays_within_an_experiment() -> None:
    """The fittest keeps its row, moments included; without mutants every row comes from its own experiment."""
    config = EvolutionConfig(population_size=3, elite_fraction=0.34, offspring_fraction=0.0, mutant_fraction=0.0)
    trainer = ControlTrainer(_Flat, 2, LoopConfig(population=3, evolution=config), CONFIG, seed=0)
    learner = trainer.learner
    for index, rows in enumerate(learner.stacks().values()):
        rows.copy_((torch.arange(6) + 10 * index).view(-1, *[1] * (rows.dim() - 1)).expand_as(rows))
    trainer._evolve(torch.tensor([[0.0, 2.0, 1.0], [5.0, 3.0, 4.0]]), config)
    for index, rows in enumerate(learner.stacks().values()):
        sources = rows.flatten(1)[:, 0] - 10 * index
        assert sources[1] == 1 and sources[3] == 3
        assert (sources // 3).tolist() == [0, 0, 0, 1, 1, 1]
