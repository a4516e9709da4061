"""The updates of a generation: random rows are drawn beforehand, and a counter on the device finds those of the next.

So an update reads nothing of the host, and is launched as a CUDA graph from its second time on.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from models.cash_value import CashValue
from models.ddpg_agent import LOSSES
from models.networks import Networks
from models.replay_buffer import Batch, ReplayBuffer
from models.trader import Traders
from training.cuda_graph import CudaGraph, Tensors
from training.ddpg import update
from utils.config.trader import LearningConfig

Outcomes = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From (...) rows to the (..., inputs) of orders on training days, and the (..., targets) that they earned."""
_TRADERS = ("weights", "target_percent", "value_weight", "size")
_CASH_VALUE = ("weights", "opportunity_knots")


class Updates:
    """Updates the networks of a population; owns what an update reads beside networks, replay and outcomes."""

    def __init__(self, networks: Networks, replay: ReplayBuffer, outcomes: Outcomes, learning: LearningConfig) -> None:
        """Take what lies on the device for the whole run; `outcomes` reads nothing of the host."""
        self.networks, self.replay, self.outcomes, self.learning = networks, replay, outcomes, learning
        self.graph = CudaGraph("updates")
        self._held: dict[str, Tensor] = {}
        self._cash_value: CashValue | None = None

    def begin(self, traders: Traders, cash_value: CashValue, orders: Tensor, replayed: Tensor) -> None:
        """Begin a generation of updates of A agents.

        Args:
            orders: (updates, rows of a batch, folds) rows of the outcomes.
            replayed: (updates, rows of a batch) rows of the replay buffer.
        """
        device = orders.device
        given = {f"traders {name}": getattr(traders, name) for name in _TRADERS}
        given |= {f"cash value {name}": getattr(cash_value, name) for name in _CASH_VALUE}
        given |= {"orders": orders, "replayed": replayed, "next": orders.new_zeros(1)}
        given |= {name: torch.zeros(len(orders), traders.count, dtype=torch.float64, device=device) for name in LOSSES}
        if self._cash_value is None or any(self._held[name].shape != value.shape for name, value in given.items()):
            self._held, self._cash_value = {name: value.clone() for name, value in given.items()}, cash_value
            return
        for name, value in given.items():
            self._held[name].copy_(value)

    @property
    def losses(self) -> Tensors:
        """Return the (updates, A) losses of critics and actors of this generation."""
        return {name: self._held[name] for name in LOSSES}

    def take(self, *, trains_actor: bool) -> None:
        """Take the next update of the generation, see `training.ddpg.update`."""
        device, places = self._held["next"].device, [self._held["next"], trains_actor, self.networks.learning_rate]
        work = partial(self._take, trains_actor)
        if not self.graph.is_repeated({}, places, device):
            self.graph.warm_up(work, device)
        elif self.graph.launch(lambda _: work(), {}) is None:
            work()

    def _take(self, trains_actor: bool) -> Tensors:
        held, learning, now = self._held, self.learning, self._held["next"]
        assert self._cash_value is not None
        traders = Traders(**{name: held[f"traders {name}"] for name in _TRADERS})
        cash_value = self._cash_value.with_values(**{name: held[f"cash value {name}"] for name in _CASH_VALUE})
        orders, replayed = (held[name].index_select(0, now)[0] for name in ("orders", "replayed"))
        losses = update(
            self.networks,
            traders,
            cash_value,
            Batch(self.replay.sample(replayed), *self.outcomes(orders.T)),
            learning.gradient_accumulation,
            gamma=learning.gamma,
            tau=learning.tau,
            trains_actor=trains_actor,
        )
        is_now = torch.arange(len(held["orders"]), device=now.device)[:, None] == now
        for name, loss in vars(losses).items():
            held[name].copy_(torch.where(is_now, loss, held[name]))
        now += 1
        return {}
