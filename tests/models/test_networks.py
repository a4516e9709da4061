"""Stacked networks against the same ones one by one, as torch has them; their update, by hand, and what it comes to."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from models import ddpg
from models.ddpg import Batch
from models.networks import AdamW, Networks, Perceptrons, soft_update
from tests.tiny import random_batch, seeded, shake

INPUTS, AGENTS = 4, 3
HIDDEN, FOLDS = 5, 3
seeds = st.integers(0, 2**32)


def random_perceptrons(stack: tuple[int, ...], sizes: tuple[int, int, int], seed: int = 0) -> Perceptrons:
    """Perceptrons whose last layers and biases are random too."""
    found, generator = Perceptrons.initialize(stack, sizes, seeded(seed)), seeded(seed + 1)
    return replace(found, flat=found.flat + 0.5 * torch.randn(found.flat.shape, generator=generator))


def plain(parts: Sequence[Tensor], x: Tensor) -> Tensor:
    """What one perceptron of these matrices makes of (rows, inputs), layer by layer of torch."""
    hidden = x
    for weight, bias in zip(parts[:4:2], parts[1:4:2], strict=True):
        hidden = functional.silu(functional.linear(hidden, weight.T, bias[0]))
    return functional.linear(hidden, parts[4].T, parts[5][0])


def random_networks(seed: int = 0, agents: int = AGENTS) -> Networks:
    """Networks without any part at zero, but for what is not looked at: each agent sees two thirds of the inputs."""
    generator = seeded(seed)
    sees = torch.rand(agents, 1, INPUTS, generator=generator) < 0.67
    gains = sees * (0.5 + torch.rand(agents, FOLDS, INPUTS, generator=generator))
    return shake(Networks.initialize(gains, HIDDEN, 0.01, generator, scale=2.0), 0.3, generator)


@given(seeds, st.sampled_from(((1, 1), (4, 1), (3, 2))), st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=15)
def test_stacked_perceptrons_are_those_of_torch_one_by_one(
    seed: int, stack: tuple[int, int], rows: int, outputs: int
) -> None:
    """Outputs and gradients."""
    perceptrons = random_perceptrons(stack, (INPUTS, 5, outputs), seed)
    perceptrons.flat.requires_grad_()
    x = torch.randn(stack[1], rows, INPUTS, generator=seeded(seed + 1))
    gains = torch.randn(*stack, INPUTS, generator=seeded(seed + 2))
    _, found = perceptrons.layers(x, gains)
    assert found.shape == (*stack, rows, outputs)
    found.square().sum().backward()
    slopes = replace(perceptrons, flat=torch.as_tensor(perceptrons.flat.grad)).matrices
    for agent, fold in torch.ones(stack).nonzero().tolist():
        parts = [part.detach()[agent, fold].requires_grad_() for part in perceptrons.matrices]
        expected = plain(parts, x[fold] * gains[agent, fold])
        torch.testing.assert_close(found[agent, fold], expected, rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad(expected.square().sum(), parts)
        for part, gradient in zip(slopes, gradients, strict=True):
            torch.testing.assert_close(part[agent, fold], gradient, rtol=1e-4, atol=1e-4)


def test_scores_are_the_same_bits_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that an update sees, up to rounding."""
    networks, x = random_networks(agents=7), torch.randn(200, INPUTS, generator=seeded(1))
    found = networks.target.played_scores(5, 1, x)
    assert torch.equal(found, networks.rows(torch.tensor([5])).target.played_scores(0, 1, x))
    stacked = networks.target.outputs(x.expand(FOLDS, -1, -1))[1][5, 1].detach()
    torch.testing.assert_close(found, stacked, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr("models.networks._ROWS_AT_ONCE", 64)
    torch.testing.assert_close(networks.target.played_scores(5, 1, x), found, rtol=1e-5, atol=1e-5)


def optimised(start: Tensor, gradients: Sequence[Tensor]) -> tuple[AdamW, Tensor]:
    """A parameter after steps by these gradients."""
    parameter = start.clone()
    first, second = torch.zeros_like(start), torch.zeros_like(start)
    optimizer = AdamW(parameter, (first, second), torch.zeros(*start.shape[:2], 3), 0.02)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return optimizer, parameter


@given(seeds, st.integers(1, 8), st.floats(-3, 0.3))
@settings(max_examples=25)
def test_a_step_is_that_of_adamw_of_torch(seed: int, steps: int, size: float) -> None:
    """The norm of a gradient is below the bound: sizes up to 2 of 8 numbers, drawn anew for each step."""
    start, *drawn = torch.randn(1 + steps, 1, 2, 8, generator=seeded(seed))
    gradients = [10**size * gradient.clamp(-4, 4) for gradient in drawn]
    gradients = [gradient for gradient in gradients if float(gradient.square().sum()) < 99]
    optimizer, found = optimised(start, gradients)
    expected = start.clone().requires_grad_()
    reference = torch.optim.AdamW([expected], lr=0.02, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05)
    for gradient in gradients:
        expected.grad = gradient.clone()
        reference.step()
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    assert optimizer.steps.tolist() == [[len(gradients)] * 2] and not optimizer.skipped.any()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_networks_without_a_finite_gradient_are_left_as_they_are(bad: float) -> None:
    """Those of one fold of an agent; its others step on."""
    start, *gradients = torch.randn(5, 3, 2, 8, generator=seeded(2))
    broken = [step.clone() for step in gradients]
    broken[1][1, 1, 0], broken[2][1, 1] = bad, bad
    optimizer, found = optimised(start, broken)
    _, others = optimised(start, gradients)
    _, spared = optimised(start, [gradients[0], gradients[3]])
    assert torch.equal(found[1, 1], spared[1, 1]) and torch.equal(found[[0, 2]], others[[0, 2]])
    assert torch.equal(found[1, 0], others[1, 0])
    assert optimizer.steps.tolist() == [[4, 4], [4, 2], [4, 4]]
    assert optimizer.skipped.tolist() == [[0, 0], [0, 2], [0, 0]]
    assert found.grad is not None and not bool(found.grad.any())


def test_a_fold_learns_nothing_from_another_one() -> None:
    """Rewards of the second fold that are a hundred times as large, beyond any bound of a gradient, or are none."""
    for times in (100.0, torch.nan):
        networks, others = random_networks(), random_networks()
        batch = batch_of()
        wild = replace(batch, reward=torch.cat((batch.reward[:1], times * batch.reward[1:])))
        for one, learned in ((networks, batch), (others, wild)):
            for _ in range(3):
                ddpg.update(one, GAMMA, learned, 2, cost=COST, tau=0.5)
        for name in ("critic", "actor", "critic_target", "actor_target"):
            torch.testing.assert_close(others.tensors[name][:, 0], networks.tensors[name][:, 0], rtol=0, atol=0)
            assert not torch.equal(others.tensors[name][:, 1], networks.tensors[name][:, 1])


def test_networks_of_earlier_versions_are_read() -> None:
    """Their counts are those of every fold, and their values spread as results of sessions do."""
    networks, old = random_networks(), torch.tensor([[7.0, 1.0, 0.5]]).repeat(AGENTS, 1)
    later = ("spread", "critic_steps", "actor_steps")
    tensors = {name: part for name, part in networks.tensors.items() if name not in later}
    tensors |= {"critic_counts": old, "actor_counts": old}
    updated(networks)
    networks.assign(tensors)
    for read in (networks, Networks(tensors)):
        assert read.optimizers["actor"].steps.tolist() == [[7.0] * FOLDS] * AGENTS
        assert torch.equal(read.spread, read.scale[:, None].expand(-1, FOLDS))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_targets_are_the_mean_of_few_steps_and_a_moving_average_of_many(trail: list[float], tau: float) -> None:
    """Until 1 / tau steps are taken, a target is the mean of the networks after each of them."""
    optimizer, _ = optimised(torch.zeros(1, 1, 1), [])
    mean = torch.zeros(1, 1)
    for value in trail:
        optimizer.steps += 1
        mean = torch.lerp(mean, torch.tensor(value), optimizer.target_rate(tau))
    few = trail[: math.floor(1 / tau)]
    expected = sum(few) / len(few)
    for value in trail[len(few) :]:
        expected += tau * (value - expected)
    assert float(mean) == pytest.approx(expected, abs=1e-5)


def told(networks: Networks, x: Tensor) -> list[Tensor]:
    """What critics and actors, online and targets, make of (folds, rows, inputs)."""
    found = []
    for own in (networks.online, networks.target):
        found += [part.detach() for part in own.outputs(x)]
    return found


def test_inputs_that_are_not_looked_at_never_matter() -> None:
    generator, networks = seeded(4), random_networks()
    for agent in range(AGENTS):
        alone = networks.rows(slice(agent, agent + 1))
        x = torch.randn(FOLDS, 6, INPUTS, generator=generator)
        other = torch.where(alone.gains[0, :, None] != 0, x, 9.0 * torch.randn(x.shape, generator=generator))
        for _ in range(4):
            for found, expected in zip(told(alone, other), told(alone, x), strict=True):
                assert torch.equal(found, expected)
            outputs, scores = alone.online.outputs(x)
            ((outputs - 1.0).square().mean() + scores.square().mean()).backward()
            for owner in ("critic", "actor"):
                alone.optimizers[owner].step()
                soft_update(alone.tensors[f"{owner}_target"], alone.tensors[owner], torch.full((1, FOLDS), 0.3))
    weights, sees = networks.online.critic.matrices[0].detach(), networks.gains[..., None] != 0
    assert not bool((weights * ~sees).any()) and bool((weights * sees).any())


COST, GAMMA = 0.1, torch.tensor([0.6, 0.8, 0.95])


def batch_of(seed: int = 5, days: int = 4, stocks: int = 3) -> Batch:
    return random_batch(FOLDS, days=days, stocks=stocks, seed=seed, inputs=1 + INPUTS)


def updated(networks: Networks, micro_batches: int = 2, agents: slice = slice(None)) -> torch.Tensor:
    """The losses of these agents, whose networks have taken a step."""
    return ddpg.update(networks, GAMMA[agents], batch_of(), micro_batches, cost=COST, tau=0.5)


def test_targets_follow_the_actor_of_the_target_networks_in_the_replayed_account() -> None:
    """Stock by stock in plain numbers: what the actor keeps goes on, what it sells costs, what is closed has ended."""
    networks, batch = random_networks(), batch_of()
    targets = ddpg.td_targets(networks, GAMMA, batch, COST)
    kept = 0
    for agent in range(AGENTS):
        for fold, day, stock in torch.ones(targets.shape[1:]).nonzero().tolist():
            place = fold, day, stock
            x = batch.next_x[place][None].expand(FOLDS, 1, -1)
            own, score = (float(part[agent, fold, 0]) for part in networks.target.outputs(x))
            expected = float(batch.reward[place])
            if not batch.terminated[place]:
                keeps = score - float(batch.next_price[fold, day]) >= -COST
                kept += keeps
                expected += float(GAMMA[agent]) * (own if keeps else -COST)
            assert float(targets[agent, fold, day, stock]) == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert 5 < kept < targets.numel() - 5


def test_the_actors_loss_does_not_reach_the_critic() -> None:
    """Critics beside different actors take the same step, hidden layers and all: targets follow the target networks."""
    networks, moved = random_networks(), random_networks()
    moved.tensors["actor"].data.mul_(-3.0)
    for one in (networks, moved):
        updated(one)
    assert torch.equal(moved.tensors["critic_first"], networks.tensors["critic_first"])
    assert not torch.equal(moved.tensors["actor_first"], networks.tensors["actor_first"])
    assert bool(networks.tensors["actor_first"].any(-1).all())


def test_an_actors_scores_come_to_what_the_critic_sees() -> None:
    """Beside a critic that stays as it is: the actor can say all that the critic can."""
    networks = random_networks(agents=1)
    networks.optimizers["critic"].learning_rate, networks.optimizers["actor"].learning_rate = 0.0, 0.03
    critic = networks.tensors["critic"].detach().clone()
    for step in range(500):
        batch = batch_of(step, days=8, stocks=6)
        ddpg.update(networks, torch.tensor([0.9]), batch, 1, cost=1.0, tau=0.05)
    assert torch.equal(networks.tensors["critic"], critic)
    x = batch_of(-1, days=50).x.flatten(1, 2)
    value, score = (part.detach() for part in networks.online.outputs(x))
    assert float((score - value).abs().mean()) < 0.1 * float(value.std())


def test_agents_learn_alone_what_they_learn_together() -> None:
    together = random_networks()
    updated(together)
    for agent in range(AGENTS):
        row = slice(agent, agent + 1)
        alone = random_networks().rows(row)
        updated(alone, agents=row)
        for name, part in alone.tensors.items():
            torch.testing.assert_close(part[0], together.tensors[name][agent], rtol=1e-3, atol=1e-4, msg=name)


def test_micro_batches_add_up_to_the_batch() -> None:
    """In losses and gradients of critics and actors, in the first update and a later one."""
    whole, parts = random_networks(), random_networks()
    for _ in range(2):
        of_whole, of_parts = (updated(one, micro_batches=number) for one, number in ((whole, 1), (parts, 4)))
        torch.testing.assert_close(of_whole, of_parts, rtol=1e-4, atol=1e-4)
        for name in ("critic_first", "actor_first", "spread"):
            torch.testing.assert_close(parts.tensors[name], whole.tensors[name], rtol=1e-4, atol=1e-5)
            assert float(whole.tensors[name].abs().max()) > 1e-3


def test_the_actors_temperature_follows_the_values_of_the_update_before() -> None:
    networks, batch = random_networks(), batch_of()
    value, _ = networks.online.outputs(batch.x.flatten(1, 2))
    values = (value.detach().unflatten(2, batch.x.shape[1:3]) - batch.price[..., None]).flatten(2)
    updated(networks)
    torch.testing.assert_close(networks.spread, values.std(-1, correction=0), rtol=1e-4, atol=1e-5)
    networks.note_worth(values * torch.nan)
    networks.end_update()
    assert bool(networks.spread.isfinite().all())
