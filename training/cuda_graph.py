"""Work that is captured as a CUDA graph: its kernels are recorded once, and launched together afterwards."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Tensors = Mapping[str, Tensor]
Work = Callable[[Tensors], Tensors]
"""From inputs to outputs; what else it reads and writes must stay where it is in memory."""
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
    work: Work
    """Holds the tensors that the graph reads beside its inputs."""


class CudaGraph:
    """Work that is repeated with other inputs of the same shapes.

    The first run is eager, the second is captured; from then on each is one launch, with the same bits. The graph holds
    a copy of the inputs and its own memory pool. Slices and numbers of steps are constants of the capture. All runs are
    eager without CUDA, and where a capture fails.
    """

    def __init__(self, name: str, capture: Capture | None = None) -> None:
        """Start with nothing captured.

        Args:
            name: plural, for the log.
            capture: replaces CUDA's in tests.
        """
        self.name = name
        self._capture = capture or (cuda_graph if torch.backends.cuda.is_built() else None)
        self._is_for_all = capture is not None
        self._places: list[object] = []
        self._shapes: list[object] = []
        self._captured: _Captured | None = None

    def is_repeated(self, inputs: Tensors, places: Sequence[object], device: torch.device) -> bool:
        """Tell whether a run may be launched; else it must be eager, and what was captured is dropped.

        Args:
            places: objects, the same ones as at the last run where the work reads and writes the same memory.
        """
        if self._capture is None or not (self._is_for_all or device.type == "cuda"):
            return False
        shapes: list[object] = [(name, value.shape) for name, value in inputs.items()]
        is_same = len(places) == len(self._places) and all(map(_is, places, self._places))
        if is_same and shapes == self._shapes:
            return True
        self._places, self._shapes, self._captured = list(places), shapes, None
        return False

    def launch(self, work: Work, inputs: Tensors) -> Tensors | None:
        """Run work by one launch; return its outputs, which the next run overwrites, or None if it cannot be captured.

        A capture runs nothing, so that nothing is done where it fails.
        """
        if self._captured is None:
            self._captured = self._captured_from(work, inputs)
        if self._captured is None:
            return None
        for name, value in inputs.items():
            self._captured.inputs[name].copy_(value)
        self._captured.launch()
        return self._captured.outputs

    def warm_up(self, work: Callable[[], object], device: torch.device) -> None:
        """Run work that may be captured next time, as PyTorch asks of work with backward passes: on a side stream.

        Gradients are accumulated on the stream on which a parameter was first used, and a captured stream may not wait
        for the default one.
        """
        if self._capture is None or self._is_for_all or device.type != "cuda":
            work()
            return
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            work()
        torch.cuda.current_stream(device).wait_stream(stream)

    def _captured_from(self, work: Work, inputs: Tensors) -> _Captured | None:
        assert self._capture is not None
        own = {name: value.clone() for name, value in inputs.items()}
        try:
            outputs, launch = self._capture(lambda: work(own))
        except RuntimeError as error:
            logger.warning("%s run eagerly: capturing a CUDA graph failed (%s)", self.name, str(error).splitlines()[0])
            self._capture = None
            return None
        logger.info("%s are captured as a CUDA graph", self.name)
        return _Captured(own, outputs, launch, work)


def _is(one: object, other: object) -> bool:
    return one is other
