"""A population of agents whose networks are rows of one stack: each stands for itself, and hands on what it learned."""

from __future__ import annotations

import copy
import io
import math
from collections import deque
from functools import cache

import pytest
import torch
from torch import Tensor

from data.market import Market
from models.cash_value import BUCKETS, FEATURES, Accounts, CashValue
from models.ddpg_agent import HISTORY, DDPGAgent
from models.inputs import GROUP_OF_INPUT, GROUPS
from models.population import Population, input_mask_of
from models.replay_buffer import Batch, Transitions
from models.trader import Traders
from tests.small_market import TINY_RULES, small_market
from tests.tiny import INPUTS, seeded, tiny_agent, tiny_trainer
from training.ddpg import learner, update
from utils.config.trader import EvolutionConfig, LearningConfig
from utils.errors import ConfigError
from utils.spaces import TARGET_PERCENTS

FOLDS, TARGETS = 2, len(TARGET_PERCENTS)
LEARNING = LearningConfig(hidden=4, learning_rate=0.01)
SIZE = EvolutionConfig().population_size


@cache
def market() -> Market:
    return small_market(days=120)


def random_traders(agents: int, seed: int = 0) -> Traders:
    weights = torch.randn(agents, INPUTS, generator=seeded(seed), dtype=torch.float64)
    one = torch.ones(agents, dtype=torch.float64)
    return Traders(weights, 20 * one, 0.5 * one, one)


def population_of(size: int = 4, seed: int = 0, learning: LearningConfig = LEARNING) -> Population:
    """A population that is informed; its networks have random numbers in all parts."""
    agent, generator = tiny_agent(market()), seeded(seed)
    device, learn = torch.device("cpu"), learner(gamma=1.0, tau=0.3)
    population = Population.initialize(
        size, learning, agent.inputs, TINY_RULES, FOLDS, device, generator, learner=learn
    )
    population.inform(random_traders(size), agent.cash_value)
    if population.networks is not None:
        for name, part in population.networks.tensors().items():
            if "optimizer" in name:
                part += 0.1 * torch.rand(part.shape, generator=generator)
            elif "." in name:
                part += 0.5 * torch.randn(part.shape, generator=generator)
        population.networks.apply_mask()
    return population


def random_batch(rows: int = 12, seed: int = 1) -> Batch:
    draws = seeded(seed)
    cash, opportunity = torch.rand(2, rows, generator=draws, dtype=torch.float64)
    pending = 0.1 * torch.rand(rows, BUCKETS, generator=draws, dtype=torch.float64)
    left = torch.randint(1, TINY_RULES.trading_days, (rows,), generator=draws).double()
    best, reward = torch.rand(2, rows, 1, generator=draws, dtype=torch.float64)
    state, following = Accounts(cash, pending, left, opportunity), Accounts(cash, pending, left - 1, opportunity)
    transitions = Transitions(state, best, 0.5 * best, reward[:, 0], state, following, best, left <= 1)
    x = torch.randn(FOLDS, rows, INPUTS - 1, generator=draws)
    return Batch(transitions, x, torch.randn(FOLDS, rows, TARGETS, generator=draws))


def tensors_of(population: Population) -> dict[str, Tensor]:
    """A copy of all tensors."""
    assert population.networks is not None
    return {name: part.clone() for name, part in population.networks.tensors().items()}


def differing_rows(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[int]:
    """The agents any of whose numbers differ."""
    rows = [
        row
        for name, part in before.items()
        for row in (part != after[name]).reshape(len(part), -1).any(1).nonzero()[:, 0]
    ]
    return {int(row) for row in rows}


def test_there_are_as_many_agents_as_asked_for_and_each_is_an_object() -> None:
    population = population_of(SIZE)
    assert len(population.agents) == SIZE == 16
    assert all(isinstance(agent, DDPGAgent) for agent in population.agents)
    assert len({id(agent) for agent in population.agents}) == 16
    places = {agent.critic.reward.parts[0].data_ptr() for agent in population.agents}
    assert len(places) == 16


def test_the_best_agent_of_a_trainer_is_an_agent_of_its_own() -> None:
    trainer = tiny_trainer()
    trainer.run_generation()
    best = trainer.best_agent
    assert isinstance(best, DDPGAgent) and all(best is not agent for agent in trainer.population.agents)
    assert best.networks is not None and trainer.population.networks is not None
    before = {name: part.clone() for name, part in best.networks.tensors().items()}
    for part in trainer.population.networks.tensors().values():
        part.zero_()
    assert all(torch.equal(part, before[name]) for name, part in best.networks.tensors().items())


def test_founders_see_groups_of_inputs_and_nothing_else() -> None:
    population = population_of(8)
    assert population.networks is not None
    groups = torch.from_numpy(GROUP_OF_INPUT[1:])
    for row, seen in enumerate(population.feature_groups):
        expected = [bool(seen[group]) for group in groups.tolist()]
        assert population.networks.input_mask[row].tolist() == expected
        first = population.networks.critic.reward.parts[0].detach()[row]
        assert not bool(first[:, ~torch.tensor(expected)].any())
        assert bool((first[:, torch.tensor(expected)] != 0).all())
    assert population.networks.critic.reward.parts[0].shape == (8, FOLDS, INPUTS - 1, LEARNING.hidden)
    assert population.networks.actor.parts[0].shape == (8, FEATURES, LEARNING.hidden)
    assert 0 < int(population.feature_groups.sum()) < population.feature_groups.numel() == 8 * len(GROUPS)


def test_what_the_population_learns_shows_in_its_agents() -> None:
    population = population_of()
    assert population.networks is not None
    agent = population.agents[2]
    held = [part.detach().clone() for part in agent.critic.parameters()]
    traders, cash_value = random_traders(4), agent.cash_value
    update(population.networks, traders, cash_value, random_batch(), 1, gamma=1.0, tau=0.3, trains_actor=True)
    assert not any(torch.equal(part, old) for part, old in zip(agent.critic.parameters(), held, strict=True))
    for name in ("actor", "actor_target", "critic", "critic_target"):
        own, stack = getattr(agent, name).parameters(), getattr(population.networks, name).parameters()
        assert all(torch.equal(part[0], whole[2]) for part, whole in zip(own, stack, strict=True)), name
    for name in ("actor_optimizer", "critic_optimizer"):
        own, stack = getattr(agent, name), getattr(population.networks, name)
        assert all(torch.equal(part[0], whole[2]) for part, whole in zip(own.tensors(), stack.tensors(), strict=True))
        assert float(own.norm) == float(stack.norm[2]) > 0


def test_an_update_of_an_agent_changes_only_its_row() -> None:
    population = population_of()
    before = tensors_of(population)
    losses = population.agents[1].update(random_batch(), accumulate=2)
    assert differing_rows(before, tensors_of(population)) == {1}
    assert set(losses) == {"critic", "actor"} and all(math.isfinite(loss) for loss in losses.values())
    assert [len(agent.losses["critic"]) for agent in population.agents] == [0, 1, 0, 0]


def test_a_clone_shares_nothing() -> None:
    population = population_of()
    agent = population.agents[1]
    agent.update(random_batch())
    clone = agent.clone()
    assert clone.networks is not None and agent.networks is not None
    for name, part in clone.networks.tensors().items():
        assert torch.equal(part, agent.networks.tensors()[name]), name
    before, losses = tensors_of(population), copy.deepcopy(agent.losses)
    clone.update(random_batch(seed=5))
    assert differing_rows(before, tensors_of(population)) == set() and agent.losses == losses
    untouched = {name: part.clone() for name, part in clone.networks.tensors().items()}
    agent.update(random_batch(seed=6))
    assert all(torch.equal(part, untouched[name]) for name, part in clone.networks.tensors().items())


def test_children_inherit_and_who_is_its_own_parent_stays_bit_for_bit() -> None:
    """Networks, targets and moments: all that is of a parent, but for inputs that a child looks at no more."""
    population, parents = population_of(6), torch.tensor([0, 1, 1, 5, 0, 5])
    for agent in population.agents:
        agent.update(random_batch(seed=int(agent is population.agents[0])))
    before, feature_groups = tensors_of(population), population.feature_groups.clone()
    assert population.networks is not None
    places = {name: part.data_ptr() for name, part in population.networks.tensors().items()}
    population.inherit(parents, seeded(7))
    after = tensors_of(population)
    assert {name: part.data_ptr() for name, part in population.networks.tensors().items()} == places
    elites, children = [0, 1, 5], [2, 3, 4]
    assert torch.equal(population.feature_groups[elites], feature_groups[elites])
    assert not torch.equal(population.feature_groups[children], feature_groups[parents[children]])
    assert torch.equal(after["input_mask"], input_mask_of(population.feature_groups))
    firsts = {"critic.0", "critic_target.0", "critic_optimizer.0", "critic_optimizer.12"}
    for name, part in after.items():
        assert torch.equal(part[elites], before[name][elites]), name
        if name in firsts:
            for child in children:
                both = after["input_mask"][child] & before["input_mask"][parents[child]]
                assert torch.equal(part[child][:, both], before[name][parents[child]][:, both]), name
                assert bool(part[child][:, both].any()) and not bool(part[child][:, ~both].any()), name
        elif name != "input_mask":
            assert torch.equal(part[children], before[name][parents[children]]), name


def test_about_a_tenth_of_what_children_look_at_changes() -> None:
    population, size = population_of(4, learning=LearningConfig(gradient_steps=0)), 4
    changed = torch.zeros(size, len(GROUPS))
    generator = seeded(3)
    for _ in range(300):
        before = population.feature_groups
        population.inherit(torch.tensor([0, 0, 2, 2]), generator)
        changed += population.feature_groups != before[[0, 0, 2, 2]]
    assert not bool(changed[[0, 2]].any())
    assert float(changed[[1, 3]].mean()) == pytest.approx(0.1 * 300, rel=0.1)


def test_inputs_that_a_child_looks_at_no_more_do_not_matter_to_it() -> None:
    """And those that it begins to look at begin to matter with its updates."""
    population = population_of(2)
    assert population.networks is not None
    generator = seeded(1)
    while not bool((population.networks.input_mask[1] & ~population.networks.input_mask[0]).any()):
        population.inherit(torch.tensor([0, 0]), generator)
    batch, child = random_batch(), population.agents[1]
    seen = population.networks.input_mask[1]
    assert not bool(seen.all())
    other = torch.where(seen, batch.x, -batch.x)
    for _ in range(3):
        assert torch.equal(child.critic.reward(batch.x[None]), child.critic.reward(other[None]))
        child.update(batch)
    begun = seen & ~population.networks.input_mask[0]
    assert bool(child.critic.reward.parts[0].detach()[0][:, begun].any())


def test_a_population_comes_back_from_its_state() -> None:
    """After any training, through a file; and continues to learn as if it had not been away."""
    population, other = population_of(3, seed=1), population_of(3, seed=2)
    for seed in range(3):
        for agent in population.agents:
            agent.update(random_batch(seed=seed))
    population.inherit(torch.tensor([0, 0, 2]), seeded(4))
    file = io.BytesIO()
    torch.save(population.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert differing_rows(tensors_of(population), tensors_of(other)) == set()
    assert torch.equal(population.feature_groups, other.feature_groups)
    for one, two in zip(population.agents, other.agents, strict=True):
        assert one.losses == two.losses and len(two.losses["critic"]) == 3
        assert one.update(random_batch(seed=9)) == two.update(random_batch(seed=9))
    assert differing_rows(tensors_of(population), tensors_of(other)) == set()


def test_losses_are_floats_of_the_last_thousand_updates() -> None:
    trainer = tiny_trainer()
    for _ in trainer.run(2):
        pass
    for agent in trainer.population.agents:
        for losses in agent.losses.values():
            assert isinstance(losses, deque) and losses.maxlen == HISTORY == 1000
            assert len(losses) == trainer.updates
            assert all(type(loss) is float and math.isfinite(loss) for loss in losses)
    agent = trainer.population.agents[0]
    agent.losses["critic"].extend([0.5] * 2000)
    trainer.run_generation()
    assert len(agent.losses["critic"]) == 1000 and agent.losses["critic"][0] == 0.5 != agent.losses["critic"][-1]


def test_statistics_are_finite_once_an_agent_has_learned() -> None:
    trainer = tiny_trainer()
    for _ in trainer.run(3):
        pass
    assert trainer.population.networks is not None
    names = {f"{part}_{name}" for part in ("actor", "critic") for name in ("loss", "norm", "steps", "skipped")}
    for row, agent in enumerate(trainer.population.agents):
        stats = agent.get_stats()
        assert set(stats) == names | {"noise_scale"}
        assert all(type(value) is float and math.isfinite(value) for value in stats.values())
        assert stats["critic_loss"] == agent.losses["critic"][-1] and stats["noise_scale"] == agent.noise_scale > 0
        assert stats["critic_steps"] > stats["actor_steps"] > 0 == stats["critic_skipped"]
        assert stats["critic_norm"] == float(trainer.population.networks.critic_optimizer.norm[row]) > 0


def test_agents_without_networks_are_closed_forms() -> None:
    population = population_of(3, learning=LearningConfig(gradient_steps=0))
    assert population.networks is None and population.state_dict() == {}
    population.load_state_dict({})
    for agent in population.agents:
        assert agent.networks is None and agent.policy is None
        with pytest.raises(ConfigError, match="gradient-steps"):
            _ = agent.critic
        with pytest.raises(ConfigError, match="gradient-steps"):
            agent.update(random_batch())
        assert set(agent.get_stats()) == {"critic_loss", "actor_loss", "noise_scale"}
    with pytest.raises(ConfigError, match="learner"):
        tiny_agent(market()).update(random_batch())


def test_agents_are_informed_of_their_own_closed_form() -> None:
    population, traders = population_of(3), random_traders(3, seed=8)
    worth = CashValue.zero(TINY_RULES)
    population.inform(traders, worth)
    for row, agent in enumerate(population.agents):
        assert torch.equal(agent.traders.weights[0], traders.weights[row]) and agent.cash_value is worth
