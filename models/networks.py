"""The networks of a population, stacked: the first dimension of every tensor is the agent.

One agent or a thousand take the same few batched products. A network is a tuple of tensors, so that parameters, targets
and moments are sliced, gathered and saved alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

_ROWS_AT_ONCE = 8192
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_WEIGHT_DECAY = 0.05
_MAX_NORM = 10.0
"""Largest norm of the gradient of an agent's network; longer ones are scaled to it."""


@dataclass(frozen=True)
class Perceptrons:
    """Perceptrons with two hidden layers of SiLU units, stacked along one or more dimensions.

    All numbers of a perceptron lie side by side, so that a step of the optimiser or of a target is a few operations on
    a matrix.
    """

    flat: Tensor
    """(*stack, numbers) float32."""
    sizes: tuple[int, int, int]
    """Inputs, hidden units and outputs."""

    @classmethod
    def initialize(cls, stack: Sequence[int], sizes: tuple[int, int, int], generator: torch.Generator) -> Self:
        """Draw perceptrons of (inputs, hidden, outputs); the last layer is zero, so that outputs start at zero."""
        inputs, hidden, outputs = sizes
        first, second = (
            torch.randn(*stack, width, hidden, generator=generator) / math.sqrt(width) for width in (inputs, hidden)
        )
        bias, last = torch.zeros(*stack, 1, hidden), torch.zeros(*stack, hidden, outputs)
        return cls.of((first, bias, second, bias, last, last.new_zeros(*stack, 1, outputs)))

    @classmethod
    def of(cls, parts: Sequence[Tensor]) -> Self:
        """Build from copies of what `parts` gives."""
        sizes = parts[0].shape[-2], parts[0].shape[-1], parts[5].shape[-1]
        return cls(torch.cat([part.flatten(-2) for part in parts], dim=-1), sizes)

    @classmethod
    def named(cls, tensors: Mapping[str, Tensor], name: str) -> Self:
        """Build from parts that are named by their place."""
        return cls.of([tensors[f"{name} {place}"] for place in range(6)])

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Return views: (*stack, inputs, hidden), (*stack, 1, hidden), (*stack, hidden, hidden), (*stack, 1, hidden),
        (*stack, hidden, outputs), (*stack, 1, outputs)."""
        inputs, hidden, outputs = self.sizes
        shapes = ((inputs, hidden), (1, hidden), (hidden, hidden), (1, hidden), (hidden, outputs), (1, outputs))
        split = self.flat.split([rows * columns for rows, columns in shapes], dim=-1)
        return tuple(part.unflatten(-1, shape) for part, shape in zip(split, shapes, strict=True))

    def __call__(self, x: Tensor) -> Tensor:
        """Map (*stack, rows, inputs) to (*stack, rows, outputs); leading dimensions of `x` broadcast."""
        stack = self.flat.shape[:-1]
        hidden = x.expand(*stack, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
        w1, b1, w2, b2, w3, b3 = replace(self, flat=self.flat.view(-1, self.flat.shape[-1])).parts
        hidden = _silu(torch.baddbmm(b1, hidden, w1))
        hidden = _silu(torch.baddbmm(b2, hidden, w2))
        return torch.baddbmm(b3, hidden, w3).view(*stack, x.shape[-2], -1)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return perceptrons of changed numbers."""
        return replace(self, flat=change(self.flat))

    def parameters(self) -> list[Tensor]:
        """Return all numbers, in one tensor."""
        return [self.flat]

    def of_numbers(self, numbers: Sequence[Tensor]) -> Self:
        """Return perceptrons of this shape with other numbers, such as gradients or moments: views."""
        return replace(self, flat=numbers[0])

    @torch.no_grad()
    def output(self, place: tuple[int, ...], output: int, x: Tensor) -> Tensor:
        """Return one output of the perceptron at a place of the stack: (rows,) from (rows, inputs).

        Its bits do not depend on the other agents: the products have the same shapes however large the stack is.
        """
        w1, b1, w2, b2, w3, b3 = (part.detach()[place] for part in self.parts)
        w3, b3 = w3[:, output : output + 1], b3[:, output : output + 1]
        found = x.new_empty(len(x))
        for rows, out in zip(x.split(_ROWS_AT_ONCE), found.split(_ROWS_AT_ONCE), strict=True):
            hidden = functional.silu(torch.addmm(b1, rows, w1), inplace=True)
            hidden = functional.silu(torch.addmm(b2, hidden, w2), inplace=True)
            out.copy_(torch.addmm(b3, hidden, w3)[:, 0])
        return found


def _silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x), where no gradient is taken with the same bits however many agents there are.

    On a CPU the last bits of torch's own depend on the place in memory: vectors of numbers and those that are left over
    take different paths.
    """
    return functional.silu(x) if x.requires_grad or x.is_cuda else x / (1.0 + torch.exp(-x))


@dataclass(frozen=True)
class Critic:
    """The learned part of Q(s, a): a correction to what orders earn, and to the value of the account after them.

    Q(s, a) = sum of size times (forecast + weight * reward(inputs)) over the orders + (value of cash + continuation)
    (account after them): see `models.ddpg_agent`.
    """

    reward: Perceptrons
    """(A, folds): from the inputs of a stock to what its orders earn beyond the day's mean, in standard deviations, for
    each sale target; each trained without one fold of the training days."""
    continuation: Perceptrons
    """(A,): from the account after the orders to its value beyond the value of cash, in units of `good_order`."""

    def parameters(self) -> list[Tensor]:
        """Return all tensors."""
        return [self.reward.flat, self.continuation.flat]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Return views of both, see `Perceptrons.parts`."""
        return (*self.reward.parts, *self.continuation.parts)

    def of_numbers(self, numbers: Sequence[Tensor]) -> Self:
        """Return a critic of this shape with other numbers, see `parameters`: views."""
        reward, continuation = self.reward.of_numbers(numbers[:1]), self.continuation.of_numbers(numbers[1:])
        return replace(self, reward=reward, continuation=continuation)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a critic of changed numbers."""
        return replace(self, reward=self.reward.map(change), continuation=self.continuation.map(change))


Network = Critic | Perceptrons


@torch.no_grad()
def soft_update(target: Network, online: Network, share: Tensor) -> None:
    """Move a target network towards the online one by an (A,) share: target += share * (online - target)."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast.detach(), _by_agent(share, slow))


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"), by agent.

    Gradient norms are clipped per agent, and an agent whose gradient is not finite skips the step, so that agents are
    independent of one another. Nothing is read by the host.
    """

    def __init__(self, parameters: Sequence[Tensor], learning_rate: float) -> None:
        """Take parameters whose first dimension is the agent."""
        self.parameters = [parameter.requires_grad_() for parameter in parameters]
        self.learning_rate = learning_rate
        self.first, self.second = ([torch.zeros_like(part) for part in parameters] for _ in range(2))
        """Moments of the gradients."""
        like = parameters[0].detach()
        self.steps = like.new_zeros(len(like))
        """(A,) steps taken."""
        self.skipped = like.new_zeros(len(like))
        """(A,) steps skipped because the gradient was not finite."""
        self.norm = like.new_zeros(len(like))
        """(A,) norms of the last gradients, before clipping."""

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the accumulated gradients, and zero them."""
        gradients = [part.grad for part in self.parameters if part.grad is not None]
        self.norm.copy_(torch.stack([part.flatten(1).square().sum(1) for part in gradients]).sum(0).sqrt())
        is_fine = self.norm.isfinite()
        scale = (_MAX_NORM / self.norm.clamp(min=_MAX_NORM)).where(is_fine, torch.zeros_like(self.norm))
        self.steps += is_fine
        self.skipped += ~is_fine
        rate = self.learning_rate * is_fine
        shares = [(1 - beta) * is_fine for beta in _BETAS]
        # Bias correction (Kingma and Ba 2015, "Adam", section 3).
        rise = [1 - beta ** self.steps.clamp(min=1) for beta in _BETAS]
        kept, step = 1 - rate * _WEIGHT_DECAY, rate / rise[0]
        for part, gradient, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            gradient.mul_(_by_agent(scale, part)).masked_fill_(_by_agent(~is_fine, part), 0.0)
            first.lerp_(gradient, _by_agent(shares[0], part))
            second.lerp_(gradient.square_(), _by_agent(shares[1], part))
            spread = (second / _by_agent(rise[1], part)).sqrt_().add_(_EPSILON)
            part.mul_(_by_agent(kept, part)).addcdiv_(_by_agent(step, part) * first, spread, value=-1)
            gradient.zero_()

    def averaging(self, tau: float) -> Tensor:
        """Return the (A,) step of target networks: `tau`, or 1 / steps while that is larger."""
        return (1.0 / self.steps.clamp(min=1)).clamp(min=tau)

    def tensors(self) -> list[Tensor]:
        """Return moments and counts; rows are agents."""
        return [*self.first, *self.second, self.steps, self.skipped]

    def rows(self, rows: slice | Tensor, parameters: Sequence[Tensor]) -> AdamW:
        """Return the optimiser of some agents with these parameters: of views for a slice, of copies for rows."""
        other = AdamW(parameters, self.learning_rate)
        count = len(self.first)
        found = [part[rows] for part in self.tensors()]
        other.first, other.second = found[:count], found[count : 2 * count]
        other.steps, other.skipped = found[-2:]
        other.norm = self.norm[rows]
        return other


def _by_agent(values: Tensor, part: Tensor) -> Tensor:
    """Shape (A,) values so that they multiply the (A, ...) part of a network."""
    return values.view(-1, *[1] * (part.dim() - 1))


class Networks:
    """Actors and critics of A agents with their target networks, which are played, and optimisers."""

    actor: Perceptrons
    """(A,): the policy's residual on the greedy rule, from the account and a candidate to a share of the largest order
    to buy more, or less, before its bound."""
    actor_target: Perceptrons
    critic: Critic
    critic_target: Critic
    actor_optimizer: AdamW
    critic_optimizer: AdamW
    input_mask: Tensor
    """(A, inputs) bool"""
    calibration: Tensor
    """(A,) realised over expected results: the scale of the closed-form part of Q."""

    def __init__(self, actor: Perceptrons, critic: Critic, input_mask: Tensor, learning_rate: float) -> None:
        """Take the networks; targets begin as they are.

        Args:
            input_mask: (A, inputs) bool: the inputs that each critic's reward part looks at.
        """
        self.actor, self.critic, self.input_mask = actor, critic, input_mask
        self.calibration = torch.ones(len(input_mask), device=input_mask.device)
        self.actor_target = actor.map(lambda part: part.detach().clone())
        self.critic_target = critic.map(lambda part: part.detach().clone())
        self.actor_optimizer = AdamW(actor.parameters(), learning_rate)
        self.critic_optimizer = AdamW(critic.parameters(), learning_rate)

    @classmethod
    def initialize(
        cls, input_mask: Tensor, sizes: NetworkSizes, learning_rate: float, generator: torch.Generator
    ) -> Networks:
        """Draw the networks of agents with these (A, inputs) input masks."""
        agents, inputs = input_mask.shape
        reward = Perceptrons.initialize((agents, sizes.folds), (inputs, sizes.hidden, sizes.outputs), generator)
        account = sizes.account, sizes.hidden, 1
        critic = Critic(reward, Perceptrons.initialize((agents,), account, generator))
        actor = Perceptrons.initialize((agents,), account, generator)
        networks = cls(actor, critic, input_mask, learning_rate)
        networks.apply_mask()
        return networks

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], learning_rate: float = 0.0) -> Networks:
        """Build from tensors by name, see `tensors`; KeyError or ValueError where they are not those of networks."""
        own, follows, actor = (
            Perceptrons.of([tensors[f"{name}.{place}"] for place in range(first, first + 6)])
            for name, first in (("critic", 0), ("critic", 6), ("actor", 0))
        )
        networks = cls(actor, Critic(own, follows), tensors["input_mask"].clone(), learning_rate)
        networks.assign(tensors)
        return networks

    def to(self, device: torch.device | str) -> Networks:
        """Return the networks on a device."""
        return Networks.of({name: part.to(device) for name, part in self.tensors().items()}, self.learning_rate)

    @property
    def learning_rate(self) -> float:
        """Step size of the optimisers."""
        return self.critic_optimizer.learning_rate

    @torch.no_grad()
    def apply_mask(self) -> None:
        """Zero the weights of masked inputs, so that they start at zero once they are unmasked."""
        optimizer, critic = self.critic_optimizer, self.critic
        for numbers in (critic.parameters(), self.critic_target.parameters(), optimizer.first, optimizer.second):
            critic.of_numbers(numbers).reward.parts[0].masked_fill_(~self.input_mask[:, None, :, None], 0.0)

    @torch.no_grad()
    def renew_reward(self, generator: torch.Generator) -> None:
        """Draw the reward networks anew: after the training days have grown the folds have moved."""
        own, optimizer = self.critic.reward, self.critic_optimizer
        own.flat.copy_(Perceptrons.initialize(own.flat.shape[:-1], own.sizes, generator).flat)
        self.critic_target.reward.flat.copy_(own.flat)
        optimizer.first[0].zero_()
        optimizer.second[0].zero_()
        self.apply_mask()

    def mask_gradient(self) -> None:
        """Keep the weights of masked inputs at zero."""
        gradient = self.critic.reward.flat.grad
        if gradient is not None:
            self.critic.reward.of_numbers([gradient]).parts[0].mul_(self.input_mask[:, None, :, None])

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name; rows are agents."""
        names = ("actor", "actor_target", "critic", "critic_target")
        parts: dict[str, Sequence[Tensor]] = {name: getattr(self, name).parts for name in names}
        for name in ("actor", "critic"):
            network, optimizer = getattr(self, name), getattr(self, f"{name}_optimizer")
            first, second = (network.of_numbers(own).parts for own in (optimizer.first, optimizer.second))
            parts[f"{name}_optimizer"] = [*first, *second, optimizer.steps, optimizer.skipped]
        found = {f"{name}.{place}": part.detach() for name, own in parts.items() for place, part in enumerate(own)}
        return {**found, "input_mask": self.input_mask, "calibration": self.calibration}

    def rows(self, rows: slice | Tensor) -> Networks:
        """Return the networks of some agents: views for a slice, copies for a tensor of rows."""
        other = object.__new__(Networks)
        other.input_mask, other.calibration = self.input_mask[rows], self.calibration[rows]
        for name in ("actor", "actor_target", "critic", "critic_target"):
            setattr(other, name, getattr(self, name).map(lambda part: part.detach()[rows]))
        for name in ("actor", "critic"):
            optimizer: AdamW = getattr(self, f"{name}_optimizer")
            setattr(other, f"{name}_optimizer", optimizer.rows(rows, getattr(other, name).parameters()))
        return other

    @torch.no_grad()
    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over tensors by name, see `tensors`; ValueError where shapes differ."""
        own = self.tensors()
        for name, part in own.items():
            if part.shape != tensors[name].shape:
                raise ValueError(f"expected {name} of {tuple(part.shape)}, got {tuple(tensors[name].shape)}")
            part.copy_(tensors[name])


@dataclass(frozen=True)
class NetworkSizes:
    """Sizes of the networks of an agent."""

    hidden: int
    folds: int
    outputs: int
    """Sale targets."""
    account: int
    """Numbers that describe an account."""
