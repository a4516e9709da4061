"""Rollouts as CUDA graphs: what the host would launch kernel by kernel, day by day, is captured once and replayed."""

from __future__ import annotations

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
"""From work to its outputs and to what does it again: reads the same inputs, and writes the same outputs."""


def cuda_graph(work: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
    """Capture work on the current CUDA device; RuntimeError where it cannot be.

    What other threads do meanwhile, as the writer of checkpoints, is no part of it.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = work()
    return outputs, graph.replay


@dataclass(frozen=True)
class _Captured:
    inputs: Tensors
    outputs: Tensors
    replay: Callable[[], None]
    days: Days
    """Holds the tensors that the graph reads beside its inputs."""


class RolloutGraph:
    """The days of the rollouts of one account, which are alike but for their inputs.

    The first of a shape is played as it is, the second captured; from then on each is one replay, bit for bit what
    playing would give. As long as it lives it holds a copy of the inputs, of which the expectations are the largest (4
    bytes an agent, day and stock), and in a pool of its own what is alive at once within a rollout. Slices and numbers
    of steps are constants of the capture. Off CUDA, and where a capture fails, all rollouts are played as they are.
    """

    def __init__(self, capture: Capture | None = None) -> None:
        """Begin with nothing captured; `capture` is for who has no CUDA device."""
        self._capture = capture or (cuda_graph if torch.backends.cuda.is_built() else None)
        self._is_for_all = capture is not None
        self._lanes: Tensor | None = None
        self._shapes: list[torch.Size] = []
        self._captured: _Captured | None = None

    def play(self, env: Portfolio, starts: Tensor, days: Days, inputs: Tensors, safe_point: SafePoint) -> Tensors:
        """Play an account from these (lanes,) first days to its end; return what its days give.

        Outputs are written over by the next rollout. The safe point is called once before a replay.
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
        self._captured.replay()
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
            outputs, replay = self._capture(lambda: days(own, None))
        except RuntimeError as error:
            logger.warning("rollouts are played step by step: no CUDA graph of one (%s)", str(error).splitlines()[0])
            self._capture = None
            return None
        logger.info("rollouts replay a CUDA graph")
        return _Captured(own, outputs, replay, days)
