"""Rollouts as CUDA graphs: the kernels of all days are captured once, and launched together afterwards."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from environment.portfolio import Portfolio

logger = logging.getLogger(__name__)

Tensors = Mapping[str, Tensor]
SafePoint = Callable[[], None] | None
Days = Callable[[Tensors, SafePoint], Tensors]
"""From the inputs of a rollout to what its days give; the safe point is called before every day."""
Capture = Callable[[Callable[[], Tensors]], tuple[Tensors, Callable[[], None]]]
"""From work to its outputs and to a function that launches it again, on the same inputs and outputs."""


def cuda_graph(work: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
    """Capture work on the current CUDA device; RuntimeError where it cannot be.

    Work of other threads, such as the writer of checkpoints, is not captured.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = work()
    return outputs, graph.replay


@dataclass(frozen=True)
class _Captured:
    inputs: Tensors
    outputs: Tensors
    launch: Callable[[], None]
    days: Days
    """Holds the tensors that the graph reads beside its inputs."""


class RolloutGraph:
    """The rollouts of one account, which differ in their inputs only.

    The first of a shape is played eagerly, the second captured; from then on each is one launch, with the same bits.
    The graph holds a copy of the inputs, of which the forecasts are the largest (4 bytes per agent, day and stock), and
    its own memory pool. Slices and numbers of steps are constants of the capture. Without CUDA, and where a capture
    fails, all rollouts are played eagerly.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        """Start with nothing captured; `capture` replaces CUDA's in tests."""
        self._capture = capture or (cuda_graph if torch.backends.cuda.is_built() else None)
        self._is_for_all = capture is not None
        self._lanes: Tensor | None = None
        self._shapes: list[torch.Size] = []
        self._captured: _Captured | None = None

    def play(self, env: Portfolio, starts: Tensor, days: Days, inputs: Tensors, safe_point: SafePoint) -> Tensors:
        """Play an account from these (lanes,) first days to its end; return the outputs of `days`.

        The next rollout overwrites them. The safe point is called once before a launch.
        """
        env.reset(starts)
        is_possible = self._capture is not None and (self._is_for_all or env.device.type == "cuda")
        if not (is_possible and self._is_repeated(env, inputs)):
            return days(inputs, safe_point)
        if safe_point is not None:
            safe_point()
        if self._captured is None:
            self._captured = self._captured_from(days, inputs)
            env.reset(starts)
        if self._captured is None:
            return days(inputs, safe_point)
        for name, value in inputs.items():
            self._captured.inputs[name].copy_(value)
        self._captured.launch()
        env.step_index = env.steps
        return self._captured.outputs

    def _is_repeated(self, env: Portfolio, inputs: Tensors) -> bool:
        """Tell whether the last rollout had inputs of the same shapes, and the account was not allocated anew since."""
        shapes = [value.shape for value in inputs.values()]
        if env.day is self._lanes and shapes == self._shapes:
            return True
        self._lanes, self._shapes, self._captured = env.day, shapes, None
        return False

    def _captured_from(self, days: Days, inputs: Tensors) -> _Captured | None:
        assert self._capture is not None
        own = {name: value.clone() for name, value in inputs.items()}
        try:
            outputs, launch = self._capture(lambda: days(own, None))
        except RuntimeError as error:
            logger.warning("rollouts run eagerly: capturing a CUDA graph failed (%s)", str(error).splitlines()[0])
            self._capture = None
            return None
        logger.info("rollouts are captured as a CUDA graph")
        return _Captured(own, outputs, launch, days)
