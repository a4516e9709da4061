"""The networks of a population, stacked: the first dimension of every tensor is the agent.

One agent or a thousand take the same few batched products. All tensors of a population lie in one dict by name, so that
parameters, targets, moments and counts are sliced, gathered, moved and saved alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from models.cash_value import FEATURES
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT, TARGET_PERCENTS

_ROWS_AT_ONCE = 8192
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_WEIGHT_DECAY = 0.05
_MAX_NORM = 10.0
"""Largest norm of the gradient of an agent's network; longer ones are scaled to it."""
_TARGET_STEP = TARGET_PERCENTS[1] - TARGET_PERCENTS[0]


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
    def initialize(cls, stack: Sequence[int], sizes: tuple[int, int, int], generator: torch.Generator) -> Perceptrons:
        """Draw perceptrons of (inputs, hidden, outputs); the last layer is zero, so that outputs start at zero."""
        inputs, hidden, outputs = sizes
        first, second = (
            torch.randn(*stack, width * hidden, generator=generator) / math.sqrt(width) for width in (inputs, hidden)
        )
        bias, last = torch.zeros(*stack, hidden), torch.zeros(*stack, (hidden + 1) * outputs)
        return cls(torch.cat((first, bias, second, bias, last), dim=-1), sizes)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Return views: (*stack, inputs, hidden), (*stack, 1, hidden), (*stack, hidden, hidden), (*stack, 1, hidden),
        (*stack, hidden, outputs), (*stack, 1, outputs)."""
        inputs, hidden, outputs = self.sizes
        shapes = ((inputs, hidden), (1, hidden), (hidden, hidden), (1, hidden), (hidden, outputs), (1, outputs))
        split = self.flat.split([rows * columns for rows, columns in shapes], dim=-1)
        return tuple(part.unflatten(-1, shape) for part, shape in zip(split, shapes, strict=True))

    def layers(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map (*stack, rows, inputs), leading dimensions of which broadcast, to the (*stack, rows, hidden) units of the
        second hidden layer and the (*stack, rows, outputs)."""
        stack = self.flat.shape[:-1]
        rows = x.expand(*stack, *x.shape[-2:]).reshape(-1, *x.shape[-2:])
        w1, b1, w2, b2, w3, b3 = replace(self, flat=self.flat.reshape(-1, self.flat.shape[-1])).parts
        hidden = _silu(torch.baddbmm(b2, _silu(torch.baddbmm(b1, rows, w1)), w2))
        outputs = torch.baddbmm(b3, hidden, w3)
        return hidden.view(*stack, *hidden.shape[-2:]), outputs.view(*stack, *outputs.shape[-2:])

    def __call__(self, x: Tensor) -> Tensor:
        """Map (*stack, rows, inputs) to (*stack, rows, outputs); leading dimensions of `x` broadcast."""
        return self.layers(x)[1]

    def map(self, change: Callable[[Tensor], Tensor]) -> Perceptrons:
        """Return perceptrons of changed numbers."""
        return replace(self, flat=change(self.flat))


def _silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x), where no gradient is taken with the same bits however many agents there are.

    On a CPU the last bits of torch's own depend on the place in memory: vectors of numbers and those that are left over
    take different paths.
    """
    return functional.silu(x) if x.requires_grad or x.is_cuda else x / (1.0 + torch.exp(-x))


@dataclass(frozen=True)
class Critic:
    """Q(s, a) = sum of size times reward(inputs, sale target) over the orders + (value of cash + continuation)
    (account after them): its learned parts. See `models.ddpg_agent`."""

    reward: Perceptrons
    """(A, folds): from the inputs of a stock to what its orders earn beyond the day's mean, in standard deviations, for
    each of `TARGET_PERCENTS`; each trained without one fold of the training days."""
    continuation: Perceptrons
    """(A,): from the account after the orders to its value beyond the value of cash, in units of `good_order`."""

    def parameters(self) -> list[Tensor]:
        """Return all tensors."""
        return [self.reward.flat, self.continuation.flat]


@dataclass(frozen=True)
class Actor:
    """mu(s): which stock is bought, at which sale target, and how much of it.

    A stock's score is what the critic expects of it, with weights of its parts that are learned, plus what `choice`
    makes of it. The sale target is the agent's own, shifted. While these networks and the critic's are zero, as at the
    start, stocks are ranked by the closed form.
    """

    choice: Tensor
    """(A, folds, hidden + 1, 2): the last layer of a network whose hidden layers are those of the critic's reward
    network, which the actor reads but does not train (Yarats et al. 2021, "Improving sample efficiency in model-free
    reinforcement learning from images"). From the hidden units of a stock, and a constant, to its score and the shift
    of its sale target."""
    slope: Tensor
    """(A, folds, 2): how much more the ridge forecast and the critic's reward count in the score."""
    size: Perceptrons
    """(A,): from the account and a candidate to the share of the largest order by which it departs from the greedy
    rule."""

    def parameters(self) -> list[Tensor]:
        """Return all tensors."""
        return [self.choice, self.slope, self.size.flat]

    @property
    def layers(self) -> list[Tensor]:
        """Return views of what mutates by noise of its own scale: (A, ...) each."""
        return [self.choice, self.slope, *self.size.parts]


@dataclass(frozen=True)
class ActorCritic:
    """Actors and critics of A agents, online ones or targets, and the scales that go with them."""

    actor: Actor
    critic: Critic
    calibration: Tensor
    """(A,) realised over expected results: the scale of the closed-form part of Q."""
    base: Tensor
    """(A, 3) of what scores are made: weights of the ridge forecast and of the critic's reward, as they were blended
    when the agent was evaluated last, and the unit of `Actor.choice` in percent of the initial capital."""

    @property
    def weights(self) -> Tensor:
        """Return the (A, folds, 2) weights of ridge forecast and critic's reward in the score."""
        return self.base[:, None, :2] * (1.0 + self.actor.slope.detach())

    @torch.no_grad()
    def judge(self, agent: int, fold: int, x: Tensor, start: Tensor, deviation: Tensor) -> Tensor:
        """Return what an agent's networks of a fold make of stocks, (4, rows): their part of the score; the sale target
        in percent; the reward at the target that the agent starts from, and at its own, percent of the initial capital.

        The bits do not depend on the other agents: products have the same shapes however large the stack is.

        Args:
            x: (rows, inputs) of the critic.
            start: () sale target in percent, float32.
            deviation: (targets,) percent of the initial capital in a standard deviation of results.
        """
        w1, b1, w2, b2, w3, b3 = (part.detach()[agent, fold] for part in self.critic.reward.parts)
        choice, judgement = self.actor.choice.detach()[agent, fold], x.new_empty(4, len(x))
        w3, b3 = torch.cat((choice[:-1], w3), dim=1), torch.cat((choice[-1:], b3), dim=1)
        for rows, out in zip(x.split(_ROWS_AT_ONCE), judgement.split(_ROWS_AT_ONCE, dim=1), strict=True):
            hidden = functional.silu(torch.addmm(b1, rows, w1), inplace=True)
            hidden = functional.silu(torch.addmm(b2, hidden, w2), inplace=True)
            outputs = torch.addmm(b3, hidden, w3)
            rewards = deviation * outputs[:, 2:]
            out[1] = sale_target(start, outputs[:, 1])
            out[2], out[3] = at_target(rewards, torch.as_tensor(start).expand(len(rows))), at_target(rewards, out[1])
            out[0] = self.base[agent, 2] * outputs[:, 0] + self.weights[agent, fold, 1] * out[2]
        return judgement


def sale_target(start: Tensor, shift: Tensor) -> Tensor:
    """Return sale targets in percent: those an agent starts from, shifted by steps between `TARGET_PERCENTS`."""
    return (start + _TARGET_STEP * shift).clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT)


def at_target(values: Tensor, percent: Tensor) -> Tensor:
    """Interpolate (..., targets) values at `TARGET_PERCENTS` linearly to (...) sale targets in percent."""
    knots = torch.arange(values.shape[-1] - 1, dtype=percent.dtype, device=percent.device)
    passed = ((percent - MIN_TARGET_PERCENT)[..., None] / _TARGET_STEP - knots).clamp(0.0, 1.0)
    return values[..., 0] + (passed * values.diff(dim=-1)).sum(-1)


@torch.no_grad()
def soft_update(target: Actor | Critic, online: Actor | Critic, share: Tensor) -> None:
    """Move a target network towards the online one by an (A,) share: target += share * (online - target)."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast.detach(), _by_agent(share, slow))


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"), by agent.

    Gradient norms are clipped per agent, and an agent whose gradient is not finite skips the step, so that agents are
    independent of one another. Nothing is read by the host.
    """

    def __init__(
        self, parameters: Sequence[Tensor], moments: Sequence[Sequence[Tensor]], counts: Tensor, learning_rate: float
    ) -> None:
        """Take parameters whose first dimension is the agent.

        Args:
            moments: first and second moments of their gradients, which steps change in place.
            counts: (A, 3) steps taken, steps skipped because the gradient was not finite, and the norm of the last
                gradient before clipping, which steps change in place, too.
        """
        self.parameters = [parameter.requires_grad_() for parameter in parameters]
        self.first, self.second = moments
        self.steps, self.skipped, self.norm = counts.unbind(1)
        self.learning_rate = learning_rate

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


def _by_agent(values: Tensor, part: Tensor) -> Tensor:
    """Shape (A,) values so that they multiply the (A, ...) part of a network."""
    return values.view(-1, *[1] * (part.dim() - 1))


_OWNERS = {"critic": ("reward", "continuation"), "actor": ("choice", "slope", "size")}
_KINDS = ("", "_target", "_first", "_second")


class Networks:
    """Actors and critics of A agents with their target networks, which are played, and optimisers."""

    def __init__(self, tensors: Mapping[str, Tensor], learning_rate: float = 0.0) -> None:
        """Build around tensors by name, as `tensors` holds them: they are shared, not copied.

        Raises KeyError where one is missing.
        """
        self.tensors = held = {name: part.detach() for name, part in tensors.items()}
        self.learning_rate, hidden = learning_rate, held["actor.choice"].shape[2] - 1
        self.of_stock = held["input_mask"].shape[1], hidden, len(TARGET_PERCENTS)
        self.of_account = FEATURES, hidden, 1
        """Sizes of networks that read a stock, and an account: inputs, hidden units and outputs."""
        self.critic, self.critic_target = self._critic(""), self._critic("_target")
        self.actor, self.actor_target = self._actor(""), self._actor("_target")
        self.critic_optimizer = self._optimizer("critic", self.critic.parameters())
        self.actor_optimizer = self._optimizer("actor", self.actor.parameters())
        self.input_mask = held["input_mask"]
        """(A, inputs) bool: the inputs that each critic's reward network looks at."""
        self.calibration, self.base = held["calibration"], held["base"]
        """(A,) and (A, 3), see `ActorCritic`."""

    def _critic(self, kind: str) -> Critic:
        reward, continuation = (self.tensors[f"critic{kind}.{name}"] for name in _OWNERS["critic"])
        return Critic(Perceptrons(reward, self.of_stock), Perceptrons(continuation, self.of_account))

    def _actor(self, kind: str) -> Actor:
        choice, slope, size = (self.tensors[f"actor{kind}.{name}"] for name in _OWNERS["actor"])
        return Actor(choice, slope, Perceptrons(size, self.of_account))

    def _optimizer(self, owner: str, parameters: list[Tensor]) -> AdamW:
        moments = [[self.tensors[f"{owner}{kind}.{name}"] for name in _OWNERS[owner]] for kind in _KINDS[2:]]
        return AdamW(parameters, moments, self.tensors[f"{owner}.counts"], self.learning_rate)

    @classmethod
    def initialize(
        cls, input_mask: Tensor, hidden: int, folds: int, learning_rate: float, generator: torch.Generator
    ) -> Networks:
        """Draw the networks of agents with these (A, inputs) input masks; last layers are zero, targets equal."""
        agents, inputs = input_mask.shape
        reward = Perceptrons.initialize((agents, folds), (inputs, hidden, len(TARGET_PERCENTS)), generator)
        reward.parts[0].masked_fill_(~input_mask[:, None, :, None], 0.0)
        continuation, size = (Perceptrons.initialize((agents,), (FEATURES, hidden, 1), generator) for _ in range(2))
        choice, slope = (torch.zeros(agents, folds, *shape) for shape in ((hidden + 1, 2), (2,)))
        drawn = {"critic": (reward.flat, continuation.flat), "actor": (choice, slope, size.flat)}
        tensors = {
            f"{owner}{kind}.{name}": torch.zeros_like(part) if kind in _KINDS[2:] else part.clone()
            for owner, names in _OWNERS.items()
            for kind in _KINDS
            for name, part in zip(names, drawn[owner], strict=True)
        }
        tensors |= {f"{owner}.counts": torch.zeros(agents, 3) for owner in _OWNERS}
        tensors |= {"input_mask": input_mask.clone(), "calibration": torch.ones(agents)}
        return cls(tensors | {"base": torch.tensor([1.0, 0.0, 1.0]).repeat(agents, 1)}, learning_rate)

    @property
    def online(self) -> ActorCritic:
        """The networks that learn."""
        return ActorCritic(self.actor, self.critic, self.calibration, self.base)

    @property
    def targets(self) -> ActorCritic:
        """The target networks, which are played."""
        return ActorCritic(self.actor_target, self.critic_target, self.calibration, self.base)

    def map(self, change: Callable[[Tensor], Tensor]) -> Networks:
        """Return networks of the changed tensors: some rows of them, or all on another device."""
        return Networks({name: change(part) for name, part in self.tensors.items()}, self.learning_rate)

    def rows(self, rows: slice | Tensor) -> Networks:
        """Return the networks of some agents: views for a slice, copies for a tensor of rows."""
        return self.map(lambda part: part[rows])

    @torch.no_grad()
    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over tensors by name; KeyError where one is missing, ValueError where shapes differ."""
        for name, part in self.tensors.items():
            if part.shape != tensors[name].shape:
                raise ValueError(f"expected {name} of {tuple(part.shape)}, got {tuple(tensors[name].shape)}")
            part.copy_(tensors[name])

    @torch.no_grad()
    def mask(self, *rewards: Tensor) -> None:
        """Zero what belongs to masked inputs in tensors like the rewards', by default weights, targets and moments."""
        for reward in rewards or [self.tensors[f"critic{kind}.reward"] for kind in _KINDS]:
            Perceptrons(reward, self.of_stock).parts[0].masked_fill_(~self.input_mask[:, None, :, None], 0.0)

    @torch.no_grad()
    def renew_folds(self, generator: torch.Generator) -> None:
        """Draw what is trained by fold anew: after the training days have grown the folds have moved."""
        hidden, folds = self.of_stock[1], self.actor.choice.shape[1]
        drawn = Networks.initialize(self.input_mask.cpu(), hidden, folds, self.learning_rate, generator)
        for name, part in self.tensors.items():
            if name.endswith((".reward", ".choice", ".slope")):
                part.copy_(drawn.tensors[name])
        self.base[:, :2] = drawn.base[:, :2]
