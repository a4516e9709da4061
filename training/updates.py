"""Updates of a population's networks, each a launch of one CUDA graph: an update reads no host memory."""

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
    gamma: Tensor
    """(P,) discounts."""


class Updates:
    """Updates of all agents from the stocks of replayed days."""

    def __init__(self, stocks: StockTransitions, replay: ReplayBuffer, micro_batches: int, *, tau: float) -> None:
        """Learn from batches in a number of micro-batches."""
        self.stocks, self.replay, self.micro_batches, self.tau = stocks, replay, micro_batches, tau
        self.graph = CudaGraph[UpdateInputs, Tensor]("updates")

    def run(self, population: Population, inputs: UpdateInputs) -> Tensor:
        """Run `models.ddpg.update` for all agents, as a CUDA graph on a card; return its (2, P) losses.

        The next update of a graph overwrites them.
        """
        return self.graph.run(partial(self._update, population), inputs, population.networks)

    def _update(self, population: Population, inputs: UpdateInputs) -> Tensor:
        batch = self.stocks.batch(inputs.rows, self.replay.at(inputs.replayed))
        return ddpg.update(
            population.networks,
            inputs.gamma,
            batch,
            self.micro_batches,
            cost=self.stocks.cost,
            tau=self.tau,
        )
