"""The updates of a generation: random rows are drawn beforehand, and a counter on the device finds those of the next.

An update reads no host memory, so later updates replay a CUDA graph.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from models.ddpg_agent import LOSSES
from models.population import Learn, Learners
from models.replay_buffer import Batch, ReplayBuffer
from models.trader import Traders
from training.cuda_graph import CudaGraph, Tensors
from utils.config.trader import LearningConfig

Outcomes = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From (...) rows to the (..., inputs) of orders on training days, and the (..., targets) that they earned."""
_TRADERS = ("weights", "target_percent", "value_weight", "size")
_CASH_VALUE = ("weights", "opportunity_knots")


class Updates:
    """Updates the networks of a population; owns what an update reads beside networks, replay and outcomes."""

    def __init__(self, learn: Learn, replay: ReplayBuffer, learning: LearningConfig) -> None:
        """Take what lies on the device for the whole run."""
        self.learn, self.replay, self.learning = learn, replay, learning
        self.graph = CudaGraph("updates")
        self._held: dict[str, Tensor] = {}
        self._learners: Learners | None = None

    def begin(self, learners: Learners, outcomes: Outcomes, orders: Tensor, replayed: Tensor) -> None:
        """Begin a generation of updates of A agents.

        Args:
            outcomes: the same in all generations; it reads no host memory.
            orders: (updates, folds, D, S) rows of the outcomes.
            replayed: (updates, rows of a batch) rows of the replay buffer.
        """
        self.outcomes = outcomes
        given = {f"traders {name}": getattr(learners.traders, name) for name in _TRADERS}
        given |= {f"cash value {name}": getattr(learners.cash_value, name) for name in _CASH_VALUE}
        given |= {} if learners.risk is None else {"risk": learners.risk}
        given |= {"by fold": learners.by_fold, "orders": orders, "replayed": replayed, "next": orders.new_zeros(1)}
        shape, device = (len(orders), learners.traders.count), orders.device
        given |= {name: torch.zeros(shape, dtype=torch.float64, device=device) for name in LOSSES}
        if self._learners is None or any(self._held[name].shape != value.shape for name, value in given.items()):
            self._held = {name: value.clone() for name, value in given.items()}
            self._learners = self._on_held(learners)
            return
        for name, value in given.items():
            self._held[name].copy_(value)

    def _on_held(self, learners: Learners) -> Learners:
        """Return the agents with the tensors that are held, which stay where they are in memory."""
        held = self._held
        traders = Traders(**{name: held[f"traders {name}"] for name in _TRADERS})
        cash_value = learners.cash_value.with_values(**{name: held[f"cash value {name}"] for name in _CASH_VALUE})
        risk = held.get("risk")
        return replace(learners, traders=traders, by_fold=held["by fold"], cash_value=cash_value, risk=risk)

    @property
    def losses(self) -> Tensors:
        """Return the (updates, A) losses of this generation by name."""
        return {name: self._held[name] for name in LOSSES}

    def take(self) -> None:
        """Take the next update of the generation, see `training.ddpg.update`."""
        assert self._learners is not None
        places, device = [self._held["next"], self._learners.networks.learning_rate], self._held["next"].device
        self.graph.run(self._take, {}, places, device)

    def _take(self, _: Tensors) -> Tensors:
        held, now = self._held, self._held["next"]
        assert self._learners is not None
        # What is computed of the value of cash once must be computed within each launch.
        learners = self._on_held(self._learners)
        orders, replayed = (held[name].index_select(0, now)[0] for name in ("orders", "replayed"))
        batch = Batch(self.replay.sample(replayed), *self.outcomes(orders))
        losses = self.learn(learners, batch, self.learning.gradient_accumulation)
        is_now = torch.arange(len(held["orders"]), device=now.device)[:, None] == now
        for name, loss in losses.items():
            held[name].copy_(torch.where(is_now, loss, held[name]))
        now += 1
        return {}
