"""Multi-layer perceptrons of a whole population, with their derivatives written out.

Shapes: A agents, B states. The parameters of all agents are stacked along the first dimension. A computation runs on
some of the agents at a time: all of them on a GPU, where one large product is fastest, and one by one on a CPU, where
an agent's weights and activations then stay in the cache, and where oneDNN multiplies matrices, but not stacks of them,
with bias and rectifier in the same pass. Writing the derivatives out saves the graph, its bookkeeping and the gradients
that nobody reads: of the critic's weights in the actor's step, and of the observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_FEWEST_FOR_ONEDNN = 16
"""Narrower matrices cost less through BLAS, whose calls need no set-up."""


def _uses_onednn(x: Tensor, outputs: int) -> bool:
    is_wide = min(x.shape[-1], outputs) >= _FEWEST_FOR_ONEDNN
    return _HAS_ONEDNN and is_wide and x.dim() == 2 and x.dtype == torch.float32 and x.device.type == "cpu"


def affine(x: Tensor, weight: Tensor, bias: Tensor, *, rectify: bool) -> Tensor:
    """x W' + b, if wanted rectified: (..., B, in), (..., out, in), (..., out) to (..., B, out); ... is G or nothing."""
    if _uses_onednn(x, len(weight)):
        onednn: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if rectify else "none", [], "")
        return onednn
    y = torch.addmm(bias, x, weight.mT) if x.dim() == 2 else torch.baddbmm(bias.unsqueeze(-2), x, weight.mT)
    return y.relu_() if rectify else y


def product(a: Tensor, b: Tensor) -> Tensor:
    """a b for matrices or stacks of them."""
    if a.shape[-1] == 1:
        return a * b
    if _uses_onednn(a, b.shape[-1]) and len(a) >= _FEWEST_FOR_ONEDNN:
        onednn: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.mT, None, "none", [], "")
        return onednn
    return a @ b


@dataclass(frozen=True)
class MLPRows:
    """The perceptrons of some agents: views, matrices for one agent and stacks for several."""

    weights: list[Tensor]
    """(..., out, in) by layer."""
    biases: list[Tensor]
    """(..., out) by layer."""

    def forward(self, x: Tensor) -> list[Tensor]:
        """The input, each hidden layer's activations, and the output, which is not rectified, (..., B, .) each."""
        activations = [x]
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            activations.append(affine(activations[-1], weight, bias, rectify=layer < last))
        return activations

    def output(self, x: Tensor) -> Tensor:
        """The output alone; hidden activations are dropped at once, so that their memory, still in cache, is reused."""
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = affine(x, weight, bias, rectify=layer < last)
        return x

    def input_gradient(self, activations: list[Tensor], d_output: Tensor, first: int = 0) -> Tensor:
        """Derivative for the input from its column `first` on, given that for the output."""
        for layer in reversed(range(1, len(self.weights))):
            d_output = self._through(layer, activations, d_output)
        return product(d_output, self.weights[0][..., first:])

    def parameter_gradients(self, activations: list[Tensor], d_output: Tensor) -> list[Tensor]:
        """Derivatives for the parameters in the order of `MLP.parameters`, given that for the output."""
        gradients: list[Tensor] = []
        for layer in reversed(range(len(self.weights))):
            gradients += [d_output.sum(-2), _weight_gradient(activations[layer], d_output)]
            if layer:
                d_output = self._through(layer, activations, d_output)
        return gradients[::-1]

    def _through(self, layer: int, activations: list[Tensor], d_output: Tensor) -> Tensor:
        """Derivative for the previous layer before its rectifier."""
        d_hidden = product(d_output, self.weights[layer])
        torch.ops.aten.threshold_backward.grad_input(d_hidden, activations[layer], 0, grad_input=d_hidden)
        return d_hidden


def _weight_gradient(x: Tensor, d_output: Tensor) -> Tensor:
    if x.shape[-1] < _FEWEST_FOR_ONEDNN:
        # BLAS is several times faster with the narrow side first.
        return (x.mT @ d_output).mT.contiguous()
    return product(d_output.mT, x)


class MLP:
    """One perceptron an agent, with rectified hidden layers and a linear output."""

    def __init__(
        self,
        population: int,
        sizes: Sequence[int],
        *,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Draw weights and biases uniformly within 1/sqrt(inputs), as in the reference code of TD3 and in SB3."""
        self.population, self.sizes = population, tuple(sizes)
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        for inputs, outputs in pairwise(sizes):
            bound = 1 / math.sqrt(inputs)
            for stack, shape in ((self.weights, (outputs, inputs)), (self.biases, (outputs,))):
                drawn = torch.empty(population, *shape, dtype=dtype).uniform_(-bound, bound, generator=generator)
                stack.append(drawn.to(device))

    @property
    def parameters(self) -> list[Tensor]:
        """Weight and bias of the first layer, of the second, ...: (A, out, in) and (A, out)."""
        return [p for pair in zip(self.weights, self.biases, strict=True) for p in pair]

    def named(self) -> dict[str, Tensor]:
        """The same by name."""
        pairs = enumerate(zip(self.weights, self.biases, strict=True))
        return {f"{layer}.{name}": p for layer, pair in pairs for name, p in zip(("weight", "bias"), pair, strict=True)}

    def rows(self, agents: slice) -> MLPRows:
        """Views of some agents' parameters."""
        return MLPRows(*(rows_of(stack, agents) for stack in (self.weights, self.biases)))

    def clone(self) -> MLP:
        """A copy with storage of its own."""
        copy = MLP(0, self.sizes)
        copy.population = self.population
        copy.weights, copy.biases = ([p.clone() for p in stack] for stack in (self.weights, self.biases))
        return copy


def rows_of(stacks: Sequence[Tensor], agents: slice) -> list[Tensor]:
    """Views of some agents' rows: without the first dimension if it is one agent."""
    chosen = [stack[agents] for stack in stacks]
    return [stack[0] for stack in chosen] if agents.stop - agents.start == 1 else chosen


def agent_groups(population: int, device: torch.device) -> list[slice]:
    """Which agents to compute at a time: one on a CPU, all on a GPU."""
    step = 1 if device.type == "cpu" else population
    return [slice(first, first + step) for first in range(0, population, step)]
