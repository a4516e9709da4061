"""The networks of a population, stacked: the first dimension of every tensor is the agent.

One agent or a thousand take the same few batched products. All tensors of a population lie in one dict by name, so that
parameters, targets, moments and counts are sliced, gathered, moved and saved alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_ROWS_AT_ONCE = 8192
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
_WEIGHT_DECAY = 0.05
_MAX_NORM = 10.0
"""Largest norm of the gradient of the networks of a fold of an agent; longer ones are scaled to it."""


@dataclass(frozen=True)
class Perceptrons:
    """Perceptrons with two hidden layers of SiLU units, stacked along some dimensions.

    All numbers of a perceptron lie side by side, so that a step of the optimiser or of a target is a few operations on
    a matrix.
    """

    flat: Tensor
    """(*stack, numbers) float32."""
    sizes: tuple[int, int, int]
    """Inputs, hidden units and outputs."""

    @classmethod
    def initialize(cls, stack: Sequence[int], sizes: tuple[int, int, int], generator: torch.Generator) -> Perceptrons:
        """Draw perceptrons of (inputs, hidden, outputs); the last layer is zero, and so are outputs."""
        inputs, hidden, outputs = sizes
        first, second = (
            torch.randn(*stack, width * hidden, generator=generator) / math.sqrt(width) for width in (inputs, hidden)
        )
        bias, last = torch.zeros(*stack, hidden), torch.zeros(*stack, (hidden + 1) * outputs)
        return cls(torch.cat((first, bias, second, bias, last), dim=-1), sizes)

    @property
    def matrices(self) -> tuple[Tensor, ...]:
        """Return views: (*stack, inputs, hidden), (*stack, 1, hidden), (*stack, hidden, hidden), (*stack, 1, hidden),
        (*stack, hidden, outputs), and (*stack, 1, outputs)."""
        inputs, hidden, outputs = self.sizes
        layers = ((inputs, hidden), (1, hidden), (hidden, hidden), (1, hidden), (hidden, outputs), (1, outputs))
        return as_matrices(self.flat, layers)

    def layers(self, x: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
        """Map (folds, rows, inputs), which all agents read, to the (A, folds, rows, hidden) units of the second hidden
        layer and to the outputs, (A, folds, rows, outputs), of an (A, folds) stack.

        Args:
            gains: (A, folds, inputs) factors of the inputs.
        """
        stack, (w1, b1, *others) = self.flat.shape[:-1], self.matrices
        # The first layers of all agents are one wide product a fold: rows are not copied for each of them.
        wide, bias = (part.permute(1, 2, 0, 3).flatten(2) for part in (w1 * gains[..., None], b1))
        first = functional.silu(torch.baddbmm(bias, x, wide)).unflatten(2, (stack[0], -1)).permute(2, 0, 1, 3)
        w2, b2, w3, b3 = (part.flatten(0, 1) for part in others)
        hidden = functional.silu(torch.baddbmm(b2, first.flatten(0, 1), w2))
        outputs = torch.baddbmm(b3, hidden, w3)
        return hidden.unflatten(0, stack), outputs.unflatten(0, stack)


def as_matrices(flat: Tensor, shapes: Sequence[tuple[int, int]]) -> tuple[Tensor, ...]:
    """Return views of (*stack, numbers) as matrices of these shapes, one after the other."""
    split = flat.split([rows * columns for rows, columns in shapes], dim=-1)
    return tuple(part.unflatten(-1, shape) for part, shape in zip(split, shapes, strict=True))


@dataclass(frozen=True)
class ActorCritic:
    """Actors and critics of A agents, each trained without one fold of the training days; online ones or targets.

    The critic tells what a position in a stock gains until it is sold, in percent of its value; the actor's score of
    the stock has the same unit, see `models.policy`. Its layer reads the hidden units of the critic, which it does not
    train (Yarats et al. 2021, "Improving sample efficiency in model-free reinforcement learning from images").
    Inputs count for more the clearer they tell of returns, as by automatic relevance determination (Neal 1996,
    "Bayesian learning for neural networks"): the steps of an optimiser are as large by inputs of noise.
    """

    critic: Perceptrons
    """(A, folds)"""
    actor: Tensor
    """(A, folds, hidden + 1)"""
    gains: Tensor
    """(A, folds, inputs) factors of the inputs, 0 of those that an agent does not see."""
    scale: Tensor
    """(A,): percent in a unit of the outputs."""

    @property
    def actor_matrices(self) -> tuple[Tensor, ...]:
        """Return views of the actor: (A, folds, hidden, 1) and (A, folds, 1, 1)."""
        return as_matrices(self.actor, ((self.critic.sizes[1], 1), (1, 1)))

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values of the critics and the scores of the actors, (A, folds, rows) each, percent, by (folds,
        rows, inputs)."""
        weights, bias = self.actor_matrices
        hidden, values = self.critic.layers(x, self.gains)
        scores, scale = hidden.detach() @ weights + bias, self.scale[:, None, None]
        return values.squeeze(-1) * scale, scores.squeeze(-1) * scale

    @torch.no_grad()
    def played_scores(self, agent: int, fold: int, x: Tensor) -> Tensor:
        """Return the scores of one agent's actor of one fold, (rows,) percent, by (rows, inputs).

        It is independent of the other agents, bit for bit: products have the same shapes however large the stack is.
        """
        w1, b1, w2, b2, *_ = (part.detach()[agent, fold] for part in self.critic.matrices)
        weights, bias = (part.detach()[agent, fold] for part in self.actor_matrices)
        w1 = w1 * self.gains[agent, fold, :, None]
        scores = x.new_empty(len(x))
        for rows, out in zip(x.split(_ROWS_AT_ONCE), scores.split(_ROWS_AT_ONCE), strict=True):
            first = functional.silu(torch.addmm(b1, rows, w1), inplace=True)
            hidden = functional.silu(torch.addmm(b2, first, w2), inplace=True)
            out.copy_(torch.addmm(bias, hidden, weights)[:, 0] * self.scale[agent])
        return scores


@torch.no_grad()
def soft_update(target: Tensor, online: Tensor, share: Tensor) -> None:
    """Move targets towards online parameters by an (A, folds) share: target += share * (online - target)."""
    target.lerp_(online.detach(), share[..., None])


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, "Decoupled weight decay regularization"), by agent.

    Gradient norms are clipped for each fold of each agent, and one whose gradient is not finite skips the step, so that
    all are independent of one another. The host never waits for the device.
    """

    def __init__(self, parameter: Tensor, moments: tuple[Tensor, Tensor], counts: Tensor, learning_rate: float) -> None:
        """Take an (A, folds, numbers) parameter.

        Args:
            moments: first and second moment of its gradient, which steps change in place.
            counts: (A, folds, 3) steps taken, steps skipped because the gradient was not finite, and the norm of the
                last gradient before clipping, which steps change in place, too.
        """
        self.parameter, (self.first, self.second) = parameter.requires_grad_(), moments
        self.steps, self.skipped, self.norm = counts.unbind(2)
        self.learning_rate = learning_rate

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the accumulated gradient, and zero it."""
        part, gradient = self.parameter, self.parameter.grad
        assert gradient is not None
        self.norm.copy_(gradient.square().sum(-1).sqrt())
        is_fine = self.norm.isfinite()
        scale = (_MAX_NORM / self.norm.clamp(min=_MAX_NORM)).where(is_fine, torch.zeros_like(self.norm))
        self.steps += is_fine
        self.skipped += ~is_fine
        rate = self.learning_rate * is_fine
        shares = [((1 - beta) * is_fine)[..., None] for beta in _BETAS]
        # Bias correction (Kingma and Ba 2015, "Adam", section 3).
        rise = [1 - beta ** self.steps.clamp(min=1) for beta in _BETAS]
        gradient.mul_(scale[..., None]).masked_fill_(~is_fine[..., None], 0.0)
        self.first.lerp_(gradient, shares[0])
        self.second.lerp_(gradient.square_(), shares[1])
        spread = (self.second / rise[1][..., None]).sqrt_().add_(_EPSILON)
        step = (rate / rise[0])[..., None] * self.first
        part.mul_((1 - rate * _WEIGHT_DECAY)[..., None]).addcdiv_(step, spread, value=-1)
        gradient.zero_()

    def target_rate(self, tau: float) -> Tensor:
        """Return the (A, folds) step of target networks: `tau`, or 1 / steps while that is larger."""
        return (1.0 / self.steps.clamp(min=1)).clamp(min=tau)


def _of_this_version(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with a spread, and steps of each fold; versions to 0.25 count those of an agent's folds together,
    under another name."""
    folds = tensors["actor"].shape[1]
    found = {"spread": tensors["scale"][:, None].repeat(1, folds), **tensors}
    for owner in ("critic", "actor"):
        if (counts := found.pop(f"{owner}_counts", None)) is not None:
            found[f"{owner}_steps"] = counts[:, None].repeat(1, folds, 1)
    return found


_KINDS = ("", "_target", "_first", "_second")
NOT_LEARNED = ("gains", "scale")
"""Tensors of networks that are given."""


class Networks:
    """Actors and critics of A agents with their target networks, which act in rollouts, and optimisers."""

    def __init__(self, tensors: Mapping[str, Tensor], learning_rate: float = 0.0) -> None:
        """Build around tensors by name, as `tensors` holds them: they are shared, not copied.

        Raises KeyError where one is missing.
        """
        self.tensors = learned = {name: part.detach() for name, part in _of_this_version(tensors).items()}
        self.spread = learned["spread"]
        """(A, folds) deviation of critics' values less the price of capital in the last update, percent."""
        self.worth = torch.zeros(3, *self.spread.shape, device=self.spread.device)
        """Numbers of such values since the last step, their sums, and those of their squares."""
        self.learning_rate = learning_rate
        self.gains, self.scale = (learned[name] for name in NOT_LEARNED)
        """See `ActorCritic`."""
        self.sizes = self.gains.shape[2], learned["actor"].shape[2] - 1, 1
        self.online, self.target = self._actor_critic(""), self._actor_critic("_target")
        self.optimizers = {owner: self._optimizer(owner) for owner in ("critic", "actor")}

    def _actor_critic(self, kind: str) -> ActorCritic:
        critic = Perceptrons(self.tensors[f"critic{kind}"], self.sizes)
        return ActorCritic(critic, self.tensors[f"actor{kind}"], self.gains, self.scale)

    def _optimizer(self, owner: str) -> AdamW:
        first, second = (self.tensors[f"{owner}{kind}"] for kind in _KINDS[2:])
        return AdamW(self.tensors[owner], (first, second), self.tensors[f"{owner}_steps"], self.learning_rate)

    @classmethod
    def initialize(
        cls, gains: Tensor, hidden: int, learning_rate: float, generator: torch.Generator, scale: float = 1.0
    ) -> Networks:
        """Draw the networks of agents with these (A, folds, inputs) gains; all outputs are zero, targets equal.

        Args:
            scale: percent in a unit of the outputs.
        """
        agents, folds, inputs = gains.shape
        critic = Perceptrons.initialize((agents, folds), (inputs, hidden, 1), generator)
        actor = torch.zeros(agents, folds, hidden + 1)
        tensors = {
            f"{owner}{kind}": torch.zeros_like(part) if kind in _KINDS[2:] else part.clone()
            for owner, part in (("critic", critic.flat), ("actor", actor))
            for kind in _KINDS
        }
        tensors |= {f"{owner}_steps": torch.zeros(agents, folds, 3) for owner in ("critic", "actor")}
        given = {"gains": gains.clone(), "scale": torch.full((agents,), scale)}
        networks = cls(tensors | given, learning_rate)
        networks.mask()
        return networks

    @property
    def folds(self) -> int:
        """Number of folds."""
        return self.tensors["actor"].shape[1]

    def map(self, change: Callable[[Tensor], Tensor]) -> Networks:
        """Return networks of the changed tensors: some rows of them, or all on another device."""
        return Networks({name: change(part) for name, part in self.tensors.items()}, self.learning_rate)

    def rows(self, rows: slice | Tensor) -> Networks:
        """Return the networks of some agents: views for a slice, copies for a tensor of rows."""
        return self.map(lambda part: part[rows])

    def note_worth(self, worth: Tensor) -> None:
        """Take in (A, folds, ...) critics' values less the price of capital, for the `spread` of the next update."""
        values = worth.flatten(2)
        total = values.sum(2)
        self.worth += torch.stack((torch.full_like(total, values.shape[2]), total, values.square().sum(2)))

    def end_update(self) -> None:
        """Take the spread of the values that were noted since the last update; where it is not finite the old stays."""
        count, total, squares = self.worth
        spread = (squares / count - (total / count).square()).clamp(min=0.0).sqrt()
        self.spread.copy_(torch.where(spread.isfinite(), spread, self.spread))
        self.worth.zero_()

    @torch.no_grad()
    def assign(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over tensors by name; KeyError where one is missing, ValueError where shapes differ."""
        tensors = _of_this_version(tensors)
        for name, part in self.tensors.items():
            if part.shape != tensors[name].shape:
                raise ValueError(f"expected {name} of {tuple(part.shape)}, got {tuple(tensors[name].shape)}")
            part.copy_(tensors[name])

    @torch.no_grad()
    def mask(self) -> None:
        """Zero what belongs to masked inputs in weights, targets and moments."""
        for kind in _KINDS:
            self._actor_critic(kind).critic.matrices[0].masked_fill_(self.gains[..., None] == 0, 0.0)
