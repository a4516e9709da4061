"""Stacked networks against the same networks one by one, as torch.nn and torch.optim have them."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from models.networks import AdamW, Networks, Perceptrons, soft_update
from tests.tiny import seeded, shake

INPUTS, AGENTS = 4, 3
HIDDEN, FOLDS = 5, 3
seeds = st.integers(0, 2**32)


def random_perceptrons(stack: tuple[int, ...], sizes: tuple[int, int, int], seed: int = 0) -> Perceptrons:
    """Perceptrons whose last layers and biases are random too."""
    generator = seeded(seed)
    found = Perceptrons.initialize(stack, sizes, generator)
    return replace(found, flat=found.flat + 0.5 * torch.randn(found.flat.shape, generator=generator))


class Plain(nn.Module):
    """The perceptron at a place of the stack, of the layers of torch."""

    def __init__(self, perceptrons: Perceptrons, place: tuple[int, ...]) -> None:
        super().__init__()
        parts = [part.detach()[place] for part in perceptrons.matrices]
        layers: list[nn.Module] = []
        for weight, bias in zip(parts[:6:2], parts[1:6:2], strict=True):
            layer = nn.Linear(*weight.shape)
            layer.weight.data, layer.bias.data = weight.T.clone(), bias[0].clone()
            layers += [layer, nn.SiLU()]
        self.layers, self.linear = nn.Sequential(*layers[:-1]), nn.Linear(*parts[6].shape, bias=False)
        self.linear.weight.data = parts[6].T.clone()

    def forward(self, x: Tensor) -> Tensor:
        return torch.add(self.layers(x), self.linear(x))


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
    perceptrons = random_perceptrons(stack, (INPUTS, 5, outputs), seed)
    perceptrons.flat.requires_grad_()
    own = torch.randn(*stack, rows, INPUTS, generator=seeded(seed + 1))
    for x in (own, own[(0,) * len(stack)], own[(slice(0, 1),) * len(stack)]):
        perceptrons.flat.grad = None
        beside = torch.randn(*stack, 1 + INPUTS, 2, generator=seeded(seed + 2))
        _, found, other = perceptrons.layers(x, beside=beside)
        expected = x @ beside[..., 1:, :] + beside[..., :1, :]
        torch.testing.assert_close(other, expected.expand(other.shape), rtol=1e-5, atol=1e-5)
        assert found.shape == (*stack, rows, outputs)
        found.square().sum().backward()
        slopes = gradient_of(perceptrons)
        for place in torch.ones(stack).nonzero().tolist():
            module = Plain(perceptrons, tuple(place))
            expected = module(x.expand(*stack, rows, INPUTS)[tuple(place)])
            torch.testing.assert_close(found[tuple(place)], expected, rtol=1e-5, atol=1e-5)
            expected.square().sum().backward()
            gradients = [part.grad for part in module.parameters()]
            for part, gradient in zip(slopes.matrices, gradients, strict=True):
                assert gradient is not None
                shaped = gradient.T if gradient.dim() == 2 else gradient[None]
                torch.testing.assert_close(part[tuple(place)], shaped, rtol=1e-4, atol=1e-4)


def test_scores_are_the_same_bits_in_any_company(monkeypatch: pytest.MonkeyPatch) -> None:
    """And those that an update sees, up to rounding."""
    networks, x = random_networks(agents=7), torch.randn(200, INPUTS, generator=seeded(1))
    found = networks.target.played_scores(5, 1, x)
    assert torch.equal(found, networks.rows(torch.tensor([5])).target.played_scores(0, 1, x))
    stacked = networks.target.outputs(x.expand(FOLDS, -1, -1))[1][5, 1].detach()
    torch.testing.assert_close(found, stacked, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr("models.networks._ROWS_AT_ONCE", 64)
    torch.testing.assert_close(networks.target.played_scores(5, 1, x), found, rtol=1e-5, atol=1e-5)


def optimizer_of(parameter: Tensor, rate: float) -> AdamW:
    first, second = (torch.zeros_like(parameter) for _ in range(2))
    return AdamW(parameter, (first, second), torch.zeros(len(parameter), 3), rate)


def optimised(start: Tensor, gradients: list[Tensor], rate: float = 0.02) -> tuple[AdamW, Tensor]:
    """A parameter after steps by these gradients."""
    parameter = start.clone()
    optimizer = optimizer_of(parameter, rate)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return optimizer, parameter


def random_part(agents: int, generator: torch.Generator) -> Tensor:
    return torch.randn(agents, 2, 8, generator=generator)


@given(seeds, st.integers(1, 8), st.floats(-3, 0.3))
@settings(max_examples=25)
def test_a_step_is_that_of_adamw_of_torch(seed: int, steps: int, size: float) -> None:
    """The norm of a gradient is below the bound: sizes up to 2 of 16 numbers, drawn anew for each step."""
    generator = seeded(seed)
    start = random_part(1, generator)
    gradients = [10**size * random_part(1, generator).clamp(-4, 4) for _ in range(steps)]
    gradients = [gradient for gradient in gradients if float(gradient.square().sum()) < 99]
    optimizer, found = optimised(start, gradients)
    expected = start.clone().requires_grad_()
    reference = torch.optim.AdamW([expected], lr=0.02, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05)
    for gradient in gradients:
        expected.grad = gradient.clone()
        reference.step()
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-5, atol=1e-6)
    assert optimizer.steps.tolist() == [len(gradients)] and optimizer.skipped.tolist() == [0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_agent_without_a_finite_gradient_is_left_as_it_is(bad: float) -> None:
    generator = seeded(2)
    start, gradients = random_part(3, generator), [random_part(3, generator) for _ in range(4)]
    broken = [step.clone() for step in gradients]
    broken[1][1, 1, 0], broken[2][1] = bad, bad
    _, before = optimised(start, gradients[:1])
    frozen, middle = optimised(start, broken[:3])
    optimizer, found = optimised(start, broken)
    _, others = optimised(start, gradients)
    _, spared = optimised(start, [gradients[0], gradients[3]])
    assert torch.equal(middle[1], before[1]) and torch.equal(found[1], spared[1])
    assert torch.equal(found[[0, 2]], others[[0, 2]])
    assert frozen.steps.tolist() == [3, 1, 3] and frozen.skipped.tolist() == [0, 2, 0]
    assert optimizer.steps.tolist() == [4, 2, 4] and optimizer.skipped.tolist() == [0, 2, 0]
    assert found.grad is not None and not bool(found.grad.any())


@given(seeds, st.integers(1, 30), st.floats(0.01, 1.0))
@settings(max_examples=20)
def test_targets_are_the_mean_of_few_steps_and_a_moving_average_of_many(seed: int, steps: int, tau: float) -> None:
    """Until 1 / tau steps are taken, a target is the mean of the networks after each of them."""
    generator = seeded(seed)
    parameter = random_part(1, generator)
    optimizer = optimizer_of(parameter, 0.01)
    trail, mean = [], torch.zeros(1)
    for _ in range(steps):
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        trail.append(float(parameter.detach()[0, 0, 0]))
        mean = torch.lerp(mean, torch.tensor(trail[-1]), optimizer.target_rate(tau))
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
        other = torch.where(alone.input_mask[0], x, 9.0 * torch.randn(x.shape, generator=generator))
        for _ in range(4):
            for found, expected in zip(told(alone, other), told(alone, x), strict=True):
                assert torch.equal(found, expected)
            outputs, scores = alone.online.outputs(x)
            ((outputs - 1.0).square().mean() + scores.square().mean()).backward()
            alone.mask_gradients()
            for owner in ("critic", "actor"):
                getattr(alone, f"{owner}_optimizer").step()
                soft_update(alone.tensors[f"{owner}_target"], alone.tensors[owner], torch.full((1,), 0.3))
    weights = networks.online.critic.matrices[0].detach()
    assert not bool((weights * ~networks.input_mask[:, None, :, None]).any())
    assert bool((weights * networks.input_mask[:, None, :, None]).any())


def test_networks_begin_with_the_weights_of_a_closed_form() -> None:
    networks = Networks.initialize(torch.ones(2, INPUTS, dtype=torch.bool), HIDDEN, FOLDS, 0.01, seeded(1), scale=3.0)
    weights = torch.randn(2, FOLDS, INPUTS + 1, generator=seeded(2))
    networks.start_from(weights)
    x = torch.randn(FOLDS, 8, INPUTS, generator=seeded(3))
    expected = 3.0 * (x @ weights[:, :, 1:, None] + weights[:, :, :1, None])[..., 0]
    for found in told(networks, x):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
