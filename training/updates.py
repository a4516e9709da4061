"""The updates of a population's networks, each a launch of one CUDA graph: an update reads no host memory."""

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from models.population import Learn, Learners
from models.replay_buffer import Batch, ReplayBuffer
from models.trader import Traders
from training.cuda_graph import CudaGraph, Tensors

Outcomes = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From (...) rows to the (..., inputs) of orders on training days, and the (..., targets) that they earned."""


class Updates:
    """Updates the networks of a population by what the replay buffer and the outcomes of all orders hold."""

    def __init__(self, learn: Learn, replay: ReplayBuffer, accumulate: int) -> None:
        """Learn from batches in `accumulate` micro-batches."""
        self.learn, self.replay, self.accumulate = learn, replay, accumulate
        self.graph = CudaGraph("updates")

    def take(self, learners: Learners, outcomes: Outcomes, orders: Tensor, replayed: Tensor) -> Tensors:
        """Take an update of A agents; return the (A,) losses by name, which the next one overwrites.

        Args:
            outcomes: reads no host memory.
            orders: (folds, D, S) rows of the outcomes.
            replayed: (N,) rows of the replay buffer.
        """
        closed = {f"traders {name}": part for name, part in vars(learners.traders).items()}
        closed |= {f"cash {name}": part for name, part in learners.cash_value.state_dict().items()}
        risk = {} if learners.risk is None else {"risk": learners.risk}
        inputs = {**closed, **risk, "by_fold": learners.by_fold, "orders": orders, "replayed": replayed}

        def learn(held: Tensors) -> Tensors:
            traders = Traders(**{name: held[f"traders {name}"] for name in vars(learners.traders)})
            # What is computed of the value of cash once is computed within each launch.
            cash_value = learners.cash_value.with_values(held["cash weights"], held["cash opportunity_knots"])
            given = replace(learners, traders=traders, cash_value=cash_value, by_fold=held["by_fold"])
            batch = Batch(self.replay.sample(held["replayed"]), *outcomes(held["orders"]))
            return self.learn(replace(given, risk=held.get("risk")), batch, self.accumulate)

        return self.graph.run(learn, inputs, learners.networks)
