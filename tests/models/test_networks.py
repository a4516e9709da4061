"""Stacked networks against the same networks one by one, as torch.nn and torch.optim have them."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from models.cash_value import FEATURES
from models.networks import AdamW, Networks, Perceptrons, soft_update
from tests.tiny import seeded, shake
from utils.spaces import TARGET_PERCENTS

INPUTS, AGENTS = 4, 3
HIDDEN, FOLDS = 5, 3
seeds = st.integers(0, 2**32)


def random_perceptrons(stack: tuple[int, ...], sizes: tuple[int, int, int], seed: int = 0) -> Perceptrons:
    """Perceptrons whose last layers and biases are random too."""
    generator = seeded(seed)
    found = Perceptrons.initialize(stack, sizes, generator)
    return found.map(lambda part: part + 0.5 * torch.randn(part.shape, generator=generator))


def module_of(perceptrons: Perceptrons, place: tuple[int, ...]) -> nn.Sequential:
    """The perceptron at a place of the stack, of the layers of torch."""
    parts = [part.detach()[place] for part in perceptrons.parts]
    layers: list[nn.Module] = []
    for weight, bias in zip(parts[::2], parts[1::2], strict=True):
        layer = nn.Linear(*weight.shape)
        layer.weight.data, layer.bias.data = weight.T.clone(), bias[0].clone()
        layers += [layer, nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def random_networks(seed: int = 0, agents: int = AGENTS) -> Networks:
    """Networks without any part at zero, but for what is not looked at: each agent sees two thirds of the inputs."""
    generator = seeded(seed)
    input_mask = torch.rand(agents, INPUTS, generator=generator) < 0.67
    return shake(Networks.initialize(input_mask, HIDDEN, FOLDS, 0.01, generator), 0.3, generator)


def gradient_of(perceptrons: Perceptrons) -> Perceptrons:
    gradient = perceptrons.flat.grad
    assert gradient is not None
    return replace(perceptrons, flat=gradient)


@given(seeds, st.sampled_from(((1,), (4,), (3, 2), (2, 1, 3))), st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=15)
def test_stacked_perceptrons_are_those_of_torch_one_by_one(
    seed: int, stack: tuple[int, ...], rows: int, outputs: int
) -> None:
    """Outputs and gradients, for inputs of each of them and for inputs that they share."""
    perceptrons = random_perceptrons(stack, (INPUTS, 5, outputs), seed).map(lambda part: part.requires_grad_())
    own = torch.randn(*stack, rows, INPUTS, generator=seeded(seed + 1))
    for x in (own, own[(0,) * len(stack)], own[(slice(0, 1),) * len(stack)]):
        perceptrons.flat.grad = None
        found = perceptrons(x)
        assert found.shape == (*stack, rows, outputs)
        found.square().sum().backward()
        slopes = gradient_of(perceptrons)
        for place in torch.ones(stack).nonzero().tolist():
            module = module_of(perceptrons, tuple(place))
            expected = module(x.expand(*stack, rows, INPUTS)[tuple(place)])
            torch.testing.assert_close(found[tuple(place)], expected, rtol=1e-5, atol=1e-5)
            expected.square().sum().backward()
            gradients = [part.grad for part in module.parameters()]
            for part, gradient in zip(slopes.parts, gradients, strict=True):
                assert gradient is not None
                shaped = gradient.T if gradient.dim() == 2 else gradient[None]
                torch.testing.assert_close(part[tuple(place)], shaped, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hidden", [3, 4, 32])
def test_without_gradients_outputs_are_the_same_bits_in_any_company(hidden: int) -> None:
    """Where the numbers of the hidden units fill whole vectors of the processor, and where some are left over."""
    perceptrons = random_perceptrons((9,), (INPUTS, hidden, 2), 1)
    x = torch.randn(9, 7, INPUTS, generator=seeded(2))
    with torch.no_grad():
        whole = perceptrons(x)
        for rows in (slice(0, 1), slice(1, 4), slice(8, 9)):
            assert torch.equal(perceptrons.map(lambda part, rows=rows: part[rows])(x[rows]), whole[rows])  # type: ignore[misc]


def test_a_judgement_is_the_same_bits_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    networks, x = random_networks(agents=7), torch.randn(200, INPUTS, generator=seeded(1))
    rest = x, 20.0, torch.ones(len(TARGET_PERCENTS))
    found = networks.targets.judge(5, 1, *rest)
    assert torch.equal(found, networks.rows(torch.tensor([5])).targets.judge(0, 1, *rest))
    monkeypatch.setattr("models.networks._ROWS_AT_ONCE", 64)
    torch.testing.assert_close(networks.targets.judge(5, 1, *rest), found, rtol=1e-5, atol=1e-5)


def test_networks_come_back_from_their_tensors() -> None:
    networks = random_networks()
    other = Networks(networks.tensors)
    assert (
        other.of_stock == networks.of_stock == (INPUTS, HIDDEN, len(TARGET_PERCENTS))
        and other.tensors.keys() == networks.tensors.keys()
    )
    for name, part in other.tensors.items():
        assert torch.equal(part, networks.tensors[name]), name
    again = Networks.initialize(networks.input_mask, HIDDEN, FOLDS, 0.01, seeded(9))
    again.assign(networks.tensors)
    for name, part in again.tensors.items():
        assert torch.equal(part, networks.tensors[name]), name
        assert part.data_ptr() != networks.tensors[name].data_ptr(), name
    with pytest.raises(ValueError, match="expected"):
        networks.assign(random_networks(agents=2).tensors)
    with pytest.raises(KeyError):
        Networks({name: part for name, part in networks.tensors.items() if name != "input_mask"})


def optimizer_of(parameters: list[Tensor], rate: float) -> AdamW:
    moments = [[torch.zeros_like(part) for part in parameters] for _ in range(2)]
    return AdamW(parameters, moments, torch.zeros(len(parameters[0]), 3), rate)


def optimised(parts: list[Tensor], gradients: list[list[Tensor]], rate: float = 0.02) -> tuple[AdamW, list[Tensor]]:
    """Parameters after steps by these gradients."""
    parameters = [part.clone() for part in parts]
    optimizer = optimizer_of(parameters, rate)
    for step in gradients:
        for part, gradient in zip(parameters, step, strict=True):
            part.grad = gradient.clone()
        optimizer.step()
    return optimizer, parameters


def random_parts(agents: int, generator: torch.Generator, scale: float = 1.0) -> list[Tensor]:
    return [scale * torch.randn(agents, *shape, generator=generator) for shape in ((3, 2), (1, 2), (2, 4, 1))]


@given(seeds, st.integers(1, 8), st.floats(-3, 0.3))
@settings(max_examples=25)
def test_a_step_is_that_of_adamw_of_torch(seed: int, steps: int, size: float) -> None:
    """The norm of a gradient is below the bound: sizes up to 2 of 16 numbers, drawn anew for each step."""
    generator = seeded(seed)
    parts = random_parts(1, generator)
    gradients = [[g.clamp(-4, 4) for g in random_parts(1, generator)] for _ in range(steps)]
    gradients = [[10**size * g for g in step] for step in gradients]
    gradients = [step for step in gradients if sum(float(g.square().sum()) for g in step) < 99]
    optimizer, found = optimised(parts, gradients)
    expected = [part.clone().requires_grad_() for part in parts]
    reference = torch.optim.AdamW(expected, lr=0.02, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05)
    for step in gradients:
        for part, gradient in zip(expected, step, strict=True):
            part.grad = gradient.clone()
        reference.step()
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own.detach(), other.detach(), rtol=1e-5, atol=1e-6)
    assert optimizer.steps.tolist() == [len(gradients)] and optimizer.skipped.tolist() == [0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_agent_without_a_finite_gradient_is_left_as_it_is(bad: float) -> None:
    """The others step as if it were not there, and it steps later as if the gradient had not been."""
    generator = seeded(2)
    parts, gradients = random_parts(3, generator), [random_parts(3, generator) for _ in range(4)]
    broken = [[part.clone() for part in step] for step in gradients]
    broken[1][0][1, 2, 0], broken[2][2][1] = bad, bad
    _, before = optimised(parts, gradients[:1])
    frozen, middle = optimised(parts, broken[:3])
    optimizer, found = optimised(parts, broken)
    _, others = optimised(parts, gradients)
    _, spared = optimised(parts, [gradients[0], gradients[3]])
    for place in range(len(parts)):
        assert torch.equal(middle[place][1], before[place][1])
        assert torch.equal(found[place][[0, 2]], others[place][[0, 2]])
        assert torch.equal(found[place][1], spared[place][1])
    assert frozen.steps.tolist() == [3, 1, 3] and frozen.skipped.tolist() == [0, 2, 0]
    assert optimizer.steps.tolist() == [4, 2, 4] and optimizer.skipped.tolist() == [0, 2, 0]
    assert all(bool((part.grad == 0).all()) for part in found if part.grad is not None)


@given(seeds, st.integers(1, 30), st.floats(0.01, 1.0))
@settings(max_examples=20)
def test_targets_are_the_mean_of_few_steps_and_a_moving_average_of_many(seed: int, steps: int, tau: float) -> None:
    """Until 1 / tau steps are taken, a target is the mean of the networks after each of them."""
    generator = seeded(seed)
    parameters = random_parts(1, generator)
    optimizer = optimizer_of(parameters, 0.01)
    trail, mean = [], torch.zeros(1)
    for _ in range(steps):
        for part in parameters:
            part.grad = torch.randn(part.shape, generator=generator)
        optimizer.step()
        trail.append(float(parameters[0].detach()[0, 0, 0]))
        mean = torch.lerp(mean, torch.tensor(trail[-1]), optimizer.averaging(tau))
    few = trail[: math.floor(1 / tau)]
    expected = sum(few) / len(few)
    for value in trail[len(few) :]:
        expected += tau * (value - expected)
    assert float(mean) == pytest.approx(expected, abs=1e-5)


def rewards_of(networks: Networks, x: Tensor) -> tuple[Tensor, Tensor]:
    return networks.critic.reward(x).detach(), networks.critic_target.reward(x).detach()


def test_inputs_that_are_not_looked_at_never_matter() -> None:
    """At first and after updates, which would else begin to use them."""
    generator, networks = seeded(4), random_networks()
    x = torch.randn(1, FOLDS, 6, INPUTS, generator=generator).expand(AGENTS, -1, -1, -1).clone()
    other = torch.where(networks.input_mask[:, None, None], x, 9.0 * torch.randn(x.shape, generator=generator))
    assert not torch.equal(x, other)
    for _ in range(4):
        for found, expected in zip(rewards_of(networks, other), rewards_of(networks, x), strict=True):
            assert torch.equal(found, expected)
        (networks.critic.reward(x) - 1.0).square().mean().backward()
        networks.critic.continuation(torch.ones(2, FEATURES)).sum().backward()
        networks.mask(gradient_of(networks.critic.reward).flat)
        networks.critic_optimizer.step()
        soft_update(networks.critic_target, networks.critic, torch.full((AGENTS,), 0.3))
    first = networks.critic.reward.parts[0].detach()
    assert not bool((first * ~networks.input_mask[:, None, :, None]).any())
    assert bool((first * networks.input_mask[:, None, :, None]).any())


def test_folds_are_drawn_anew_without_what_reads_the_account() -> None:
    networks = random_networks()
    before = {name: part.clone() for name, part in networks.tensors.items()}
    networks.renew_folds(seeded(8))
    kept = {name for name, part in networks.tensors.items() if torch.equal(part, before[name])}
    assert {name for name in before if not name.endswith((".reward", ".choice", ".slope", "base"))} <= kept
    assert networks.base[:, :2].tolist() == [[1.0, 0.0]] * AGENTS, "the closed form's, as at the start"
    reward = networks.critic.reward
    assert not bool(reward(torch.ones(2, INPUTS)).any()) and "critic.reward" not in kept
    assert not bool((reward.parts[0].detach() * ~networks.input_mask[:, None, :, None]).any())
    rest = "critic_first.reward", "critic_second.reward", "actor.choice", "actor_target.choice", "actor.slope"
    assert not any(bool(networks.tensors[name].any()) for name in rest)
