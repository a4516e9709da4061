"""Updates of a population's networks, each a launch of one CUDA graph: an update reads no host memory."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from torch import Tensor

from models import ddpg
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.cuda_graph import CudaGraph
from training.forecasts.transitions import StockTransitions


class UpdateInputs(NamedTuple):
    """What differs from one update to the next."""

    rows: Tensor
    """(folds, D, S) of the stocks."""
    replayed: Tensor
    """(folds, D) rows of the replay buffer, of the same days."""
    hurdle: Tensor
    """(P,) prices of capital where all is invested."""
    target_index: Tensor
    """(P,) of the sale targets."""


class Updates:
    """Updates of all agents from the stocks of replayed days."""

    def __init__(
        self, stocks: StockTransitions, replay: ReplayBuffer, accumulate: int, *, gamma: float, tau: float
    ) -> None:
        """Learn from batches in `accumulate` micro-batches."""
        self.stocks, self.replay, self.accumulate, self.gamma, self.tau = stocks, replay, accumulate, gamma, tau
        self.graph = CudaGraph[UpdateInputs, Mapping[str, Tensor]]("updates")

    def take(self, population: Population, inputs: UpdateInputs) -> Mapping[str, Tensor]:
        """Take an update of all agents; return the (P,) losses by name, which the next one overwrites."""
        return self.graph.run(partial(self._update, population), inputs, population.networks)

    def _update(self, population: Population, inputs: UpdateInputs) -> Mapping[str, Tensor]:
        batch = self.stocks.batch(inputs.rows, self.replay.at(inputs.replayed))
        return ddpg.update(
            population.networks,
            inputs.hurdle,
            inputs.target_index,
            batch,
            self.accumulate,
            cost=self.stocks.cost,
            gamma=self.gamma,
            tau=self.tau,
        )
