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
    """Perceptrons with two hidden layers of SiLU units, stacked along one or more dimensions."""

    parts: tuple[Tensor, ...]
    """(*stack, inputs, hidden), (*stack, 1, hidden), (*stack, hidden, hidden), (*stack, 1, hidden), (*stack, hidden,
    outputs), (*stack, 1, outputs) float32."""

    @classmethod
    def initialize(cls, stack: Sequence[int], sizes: tuple[int, int, int], generator: torch.Generator) -> Self:
        """Draw perceptrons of (inputs, hidden, outputs); the last layer is zero, so that outputs start at zero."""
        inputs, hidden, outputs = sizes
        first, second = (
            torch.randn(*stack, width, hidden, generator=generator) / math.sqrt(width) for width in (inputs, hidden)
        )
        bias, last = torch.zeros(*stack, 1, hidden), torch.zeros(*stack, hidden, outputs)
        return cls((first, bias, second, bias.clone(), last, last.new_zeros(*stack, 1, outputs)))

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], name: str) -> Self:
        """Build from tensors that are named by their place."""
        return cls(tuple(tensors[f"{name} {place}"] for place in range(6)))

    def __call__(self, x: Tensor) -> Tensor:
        """Map (*stack, rows, inputs) to (*stack, rows, outputs); leading dimensions of `x` broadcast."""
        stack = self.parts[0].shape[:-2]
        hidden = x.expand(*stack, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
        w1, b1, w2, b2, w3, b3 = (part.reshape(-1, *part.shape[-2:]) for part in self.parts)
        hidden = functional.silu(torch.baddbmm(b1, hidden, w1))
        hidden = functional.silu(torch.baddbmm(b2, hidden, w2))
        return torch.baddbmm(b3, hidden, w3).view(*stack, x.shape[-2], -1)

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return perceptrons of the changed parts."""
        return replace(self, parts=tuple(change(part) for part in self.parts))

    def parameters(self) -> list[Tensor]:
        """Return all tensors."""
        return [*self.parts]

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
        return [*self.reward.parts, *self.continuation.parts]

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a critic of the changed parts."""
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
        """Take the stacked parameters."""
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
        # Bias correction (Kingma and Ba 2015, "Adam", section 3).
        rise = [1 - beta ** self.steps.clamp(min=1) for beta in _BETAS]
        rate = self.learning_rate * is_fine
        for part, gradient, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            clipped = torch.where(_by_agent(is_fine, part), gradient * _by_agent(scale, part), 0.0)
            first.lerp_(clipped, _by_agent((1 - _BETAS[0]) * is_fine, part))
            second.lerp_(clipped.square_(), _by_agent((1 - _BETAS[1]) * is_fine, part))
            spread = (second / _by_agent(rise[1], part)).sqrt_().add_(_EPSILON)
            part.mul_(1 - _by_agent(rate * _WEIGHT_DECAY, part))
            part.sub_(_by_agent(rate / rise[0], part) * first / spread)
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
            Perceptrons(tuple(tensors[f"{name}.{place}"].clone() for place in range(first, first + 6)))
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
        unseen = ~self.input_mask[:, None, :, None]
        optimizer = self.critic_optimizer
        for first in (self.critic.reward, self.critic_target.reward):
            first.parts[0].masked_fill_(unseen, 0.0)
        for moment in (optimizer.first[0], optimizer.second[0]):
            moment.masked_fill_(unseen, 0.0)

    @torch.no_grad()
    def renew_reward(self, generator: torch.Generator) -> None:
        """Draw the reward networks anew: after the training days have grown the folds have moved."""
        own, target, optimizer = self.critic.reward.parts, self.critic_target.reward.parts, self.critic_optimizer
        agents, folds, inputs, hidden = own[0].shape
        drawn = Perceptrons.initialize((agents, folds), (inputs, hidden, own[4].shape[-1]), generator)
        for place, new in enumerate(drawn.parts):
            own[place].copy_(new)
            target[place].copy_(new)
            optimizer.first[place].zero_()
            optimizer.second[place].zero_()
        self.apply_mask()

    def mask_gradient(self) -> None:
        """Keep the weights of masked inputs at zero."""
        gradient = self.critic.reward.parts[0].grad
        if gradient is not None:
            gradient.mul_(self.input_mask[:, None, :, None])

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name; rows are agents."""
        parts: dict[str, list[Tensor]] = {
            name: getattr(self, name).parameters() for name in ("actor", "actor_target", "critic", "critic_target")
        }
        parts |= {name: getattr(self, name).tensors() for name in ("actor_optimizer", "critic_optimizer")}
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
