"""Rollouts as CUDA graphs: the kernels of all days are captured once, and launched together afterwards."""

from collections.abc import Callable
from typing import Any

from environment.trading_env import TradingEnvironment
from training.cuda_graph import Capture, CudaGraph, Tensors

SafePoint = Callable[[], None] | None
Days = Callable[[Tensors, SafePoint], Tensors]
"""From the inputs of a rollout to what its days give; the safe point is called before every day."""


class RolloutGraph:
    """The rollouts of one account, which differ in their inputs only.

    The first of a shape is played eagerly, the second captured, see `CudaGraph`. The largest inputs are the forecasts
    of the best stocks of each day.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        """Start with nothing captured; `capture` replaces CUDA's in tests."""
        self._graph = CudaGraph("rollouts", capture)

    def play(
        self, env: TradingEnvironment, windows: dict[str, Any], days: Days, inputs: Tensors, safe_point: SafePoint
    ) -> Tensors:
        """Play an account on windows, as `TradingEnvironment.reset` takes them; return the outputs of `days`.

        All rollouts have windows of the same lengths. The next rollout overwrites them. The safe point is called once
        before a launch.
        """
        account = env.account
        env.reset(**windows, observe=False)
        # An account that was allocated anew since the last rollout has another tensor of days.
        if self._graph.is_repeated(inputs, [account.day], account.device):
            if safe_point is not None:
                safe_point()
            outputs = self._graph.launch(lambda own: days(own, None), inputs)
            if outputs is not None:
                account.step_index = account.steps
                return outputs
            env.reset(**windows, observe=False)
        return days(inputs, safe_point)
