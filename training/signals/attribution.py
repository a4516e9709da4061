"""Attribution of an order to its inputs: gradient x input (Shrikumar et al. 2016, arXiv 1605.01713).

Inputs are standardised, so that an input's product with its gradient is, to first order, what the coefficient would
lose if the input were at its mean. A share is the sum of absolute products over a group, relative to the sum over all.
The mask of traded days is left out: it is 1 nearly everywhere and tells no stock from another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data.features import FEATURES, MASK
from models.networks import AgentNetworks

METHOD = (
    "gradient x input of the coefficient, shares of the absolute sum, + raises and - lowers it "
    "(Shrikumar et al. 2016, arXiv 1605.01713)"
)


@dataclass(frozen=True)
class State:
    """The inputs of one decision."""

    inputs: Tensor
    """(N, context_days, 10) network inputs of the days up to the decision."""
    investable: Tensor
    """(n,) columns that may be bought."""
    positions: Tensor
    """(K, 6) open positions."""
    account: Tensor
    """(3,)."""


def act(networks: AgentNetworks, state: State) -> Tensor:
    """Return the (n, 2) action of a single agent, without exploration: coefficient, sale target in percent."""
    encoding = networks.encode_distinct(state.inputs, state.investable)
    action: Tensor = networks.actor(
        encoding.stocks, encoding.summary, state.positions[None, None], state.account[None, None]
    )
    return action[0, 0]


@dataclass(frozen=True)
class Share:
    """The share of an order's attribution that falls on one day, column or feature."""

    name: str
    percent: float
    raises: bool
    """The group as a whole raised the coefficient."""

    def __str__(self) -> str:
        return f"{self.name} {'+' if self.raises else '-'}{self.percent:.0f}%"


@dataclass(frozen=True)
class Attribution:
    """The days, columns and features that matter most for one order, the first the most."""

    days: list[Share]
    columns: list[Share]
    features: list[Share]


def products(networks: AgentNetworks, state: State, stocks: Sequence[int]) -> list[Tensor]:
    """Return gradient x input of each named stock's coefficient: (N, context_days, 9) each."""
    inputs = state.inputs.clone().requires_grad_()
    with torch.enable_grad():
        coefficients = act(networks, dataclasses.replace(state, inputs=inputs))[:, 0]
        gradients = [torch.autograd.grad(coefficients[stock], inputs, retain_graph=True)[0] for stock in stocks]
    return [(gradient * state.inputs)[..., :MASK] for gradient in gradients]


def attribution(product: Tensor, tickers: Sequence[str], dates: Sequence[str], most: int = 3) -> Attribution:
    """Find the `most` important days, columns and features of one (N, days, 9) product."""
    names = (tickers, dates, FEATURES)
    columns, days, features = (_shares(product.movedim(axis, 0).flatten(1), names[axis], most) for axis in range(3))
    return Attribution(days, columns, features)


def _shares(groups: Tensor, names: Sequence[str], most: int) -> list[Share]:
    weight, total = groups.abs().sum(1), groups.sum(1)
    percent = 100 * weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
    best = percent.topk(min(most, len(names))).indices.tolist()
    return [Share(names[place], float(percent[place]), bool(total[place] >= 0)) for place in best]
