"""The update: targets by hand, gradients where they belong, and an actor that comes to what its critic sees."""

import pytest
import torch

from models import ddpg
from models.inputs import INPUTS
from models.networks import Networks
from tests.tiny import random_batch, seeded, shake

AGENTS, FOLDS, COST = 3, 2, 0.1
HURDLE, TARGET = torch.tensor([0.0, 0.2, 1.0]), torch.tensor([0, 1, 1])


def networks_of(seed: int = 0, agents: int = AGENTS) -> Networks:
    mask = torch.ones(agents, INPUTS - 1, dtype=torch.bool)
    return shake(Networks.initialize(mask, 5, FOLDS, 0.01, seeded(seed), scale=2.0), 0.3, seeded(seed + 1))


def updated(networks: Networks, micro_batches: int = 1) -> torch.Tensor:
    batch = random_batch(FOLDS, targets=2, seed=5)
    return ddpg.update(networks, HURDLE, TARGET, batch, micro_batches, cost=COST, gamma=0.9, tau=0.5)


def test_targets_follow_the_actor_of_the_target_networks_in_the_replayed_account() -> None:
    """Stock by stock in plain numbers: what the actor keeps goes on, what it sells costs, what is closed has ended."""
    networks, batch = networks_of(), random_batch(FOLDS, targets=2, seed=5)
    targets = ddpg.td_targets(networks, HURDLE, TARGET, batch, COST, gamma=0.9)
    kept = 0
    for agent in range(AGENTS):
        for fold, day, stock in torch.ones(targets.shape[1:]).nonzero().tolist():
            place = fold, day, stock
            x = batch.next_x[place][None].expand(FOLDS, 1, -1)
            own, score = (float(part[agent, fold, 0]) for part in networks.target.outputs(x))
            price = float(HURDLE[agent]) * float(batch.next_invested[fold, day])
            expected = float(batch.reward[place][TARGET[agent]])
            if not batch.terminated[place]:
                keeps = score - price >= -COST
                kept += keeps
                expected += 0.9 * (own if keeps else -COST)
            assert float(targets[agent, fold, day, stock]) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert 5 < kept < targets.numel() - 5


def test_the_actors_loss_does_not_reach_the_critic() -> None:
    """Critics beside different actors take the same step, hidden layers and all: targets follow the target networks."""
    networks, batch = networks_of(), random_batch(FOLDS, targets=2, seed=5)
    moved = networks_of()
    moved.tensors["actor"].data.mul_(-3.0)
    for one in (networks, moved):
        ddpg.update(one, HURDLE, TARGET, batch, 2, cost=COST, gamma=0.9, tau=0.5)
    assert torch.equal(moved.tensors["critic_first"], networks.tensors["critic_first"])
    assert not torch.equal(moved.tensors["actor_first"], networks.tensors["actor_first"])
    assert bool(networks.tensors["actor_first"].any(-1).all())


def test_an_actors_scores_come_to_what_the_critic_sees() -> None:
    """Beside a critic that stays as it is: the actor can say all that the critic can."""
    networks = networks_of(agents=1)
    networks.critic_optimizer.learning_rate, networks.actor_optimizer.learning_rate = 0.0, 0.03
    critic = networks.tensors["critic"].detach().clone()
    for step in range(500):
        batch = random_batch(FOLDS, days=8, stocks=6, targets=2, seed=step)
        ddpg.update(networks, torch.tensor([0.1]), TARGET[:1], batch, 1, cost=1.0, gamma=0.9, tau=0.05)
    assert torch.equal(networks.tensors["critic"], critic)
    x = random_batch(FOLDS, days=50, seed=-1).x.flatten(1, 2)
    value, score = (part.detach() for part in networks.online.outputs(x))
    assert float((score - value).abs().mean()) < 0.1 * float(value.std())


def test_agents_learn_alone_what_they_learn_together() -> None:
    together = networks_of()
    updated(together, micro_batches=2)
    for agent in range(AGENTS):
        alone = networks_of().rows(slice(agent, agent + 1))
        batch = random_batch(FOLDS, targets=2, seed=5)
        ddpg.update(alone, HURDLE[[agent]], TARGET[[agent]], batch, 2, cost=COST, gamma=0.9, tau=0.5)
        for name, part in alone.tensors.items():
            torch.testing.assert_close(part[0], together.tensors[name][agent], rtol=1e-3, atol=1e-4, msg=name)


def test_micro_batches_add_up_to_the_batch() -> None:
    """In losses and in the critic's gradient; the actor's temperatures are measured by the values of a part."""
    whole, parts = networks_of(), networks_of()
    critic, _ = updated(whole)
    critic_of_parts, actor_of_parts = updated(parts, micro_batches=4)
    torch.testing.assert_close(critic, critic_of_parts, rtol=1e-4, atol=1e-4)
    first = parts.tensors["critic_first"], whole.tensors["critic_first"]
    torch.testing.assert_close(*first, rtol=1e-4, atol=1e-5)
    assert float(first[1].abs().max()) > 1e-3 and bool(actor_of_parts.isfinite().all())
