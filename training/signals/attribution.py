"""Attribution of an order: what its inputs and the agent's networks contribute to what is expected of it, exactly.

Without networks the expected result is linear in the inputs. With them it is the day's mean of the ridge regression,
plus what the stock is expected to earn beyond the others of its day: its inputs times the committee's ridge weights,
and what the networks add. So it is the sum of a part of each group of inputs, a constant, and one part of the networks.
Inputs are standardised, so that a group whose inputs are at their means contributes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.ddpg_agent import DDPGAgent
from models.inputs import GROUP_OF_INPUT, GROUPS
from models.trader import day_mean

NETWORKS = "networks"
METHOD = (
    "input times weight, summed by group of inputs, and what networks add; shares of the absolute sum, + raises and - "
    "lowers what is expected"
)


@dataclass(frozen=True)
class Share:
    """The share of what is expected of an order that comes from one group of inputs, or from the networks."""

    name: str
    percent: float
    raises: bool
    """The group raised what is expected."""

    def __str__(self) -> str:
        return f"{self.name} {'+' if self.raises else '-'}{self.percent:.0f}%"


@dataclass(frozen=True)
class Parts:
    """What the results that are expected of the orders of a day are made of, percent of the initial capital."""

    groups: NDArray[np.float64]
    """(n, groups) of the inputs."""
    constant: float
    networks: NDArray[np.float64] | None
    """(n,) of the networks, relative to their mean over the day's stocks; None where there are none."""

    @property
    def expected(self) -> NDArray[np.float64]:
        """Return the (n,) expected results."""
        total: NDArray[np.float64] = self.groups.sum(axis=1) + self.constant
        return total if self.networks is None else np.add(total, self.networks)


def parts_of(agent: DDPGAgent, x: Tensor, tradable: Tensor) -> Parts:
    """Split what an agent expects of the orders of a day: (n, inputs), on its device, and (n,) with a bar."""
    weights, numbers = agent.traders.weights[0].double(), x.double()
    if agent.committee is None:
        return Parts(_by_group(numbers * weights), float(weights[0]), None)
    own, mean = agent.committee.ridge.double(), day_mean(numbers.T, tradable).T
    added = agent.network_share(x[None])[0].double()
    relative = (added - day_mean(added, tradable)).cpu().numpy()
    return Parts(_by_group(numbers * own + mean * (weights - own)), float(weights[0]), relative)


def _by_group(products: Tensor) -> NDArray[np.float64]:
    """Sum (n, inputs) products over the groups of inputs; the constant, which is the first input, is left out."""
    groups = torch.from_numpy(GROUP_OF_INPUT[1:]).to(products.device)
    total = products.new_zeros(len(products), len(GROUPS))
    return np.asarray(total.index_add(1, groups, products[:, 1:]).cpu().numpy())


def attribution(parts: Parts, stock: int, most: int = 3) -> list[Share]:
    """Find the `most` important parts of what is expected of a stock, the first the most."""
    names, total = GROUPS, parts.groups[stock]
    if parts.networks is not None:
        names, total = (*GROUPS, NETWORKS), np.append(total, parts.networks[stock])
    percent = 100 * np.abs(total) / max(np.abs(total).sum(), np.finfo(np.float64).tiny)
    best = [place for place in np.argsort(-percent, kind="stable")[:most].tolist() if percent[place] > 0]
    return [Share(names[place], float(percent[place]), bool(total[place] >= 0)) for place in best]
