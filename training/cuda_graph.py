"""Work that is captured as a CUDA graph: its kernels are recorded once, and launched together afterwards."""

import logging
from collections.abc import Callable, Mapping, Sequence
from operator import is_

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
        self._places: Sequence[object] = ()
        self._shapes: list[object] = []
        self._captured: tuple[Tensors, Tensors, Callable[[], None], Work] | None = None
        """Inputs, outputs, launch, and the work, which holds the other tensors that the graph reads."""

    def run(
        self,
        work: Work,
        inputs: Tensors,
        places: Sequence[object],
        device: torch.device,
        begin_again: Callable[[], object] = lambda: None,
    ) -> Tensors:
        """Run work and return its outputs; the next launch overwrites them.

        Args:
            places: objects, the same ones as at the last run where the work reads and writes the same memory.
            begin_again: undoes what the work has done on the host, after a capture that failed.
        """
        if self._capture is None or not (self._is_for_all or device.type == "cuda"):
            return work(inputs)
        shapes: list[object] = [(name, value.shape) for name, value in inputs.items()]
        is_same = len(places) == len(self._places) and all(map(is_, places, self._places))
        if not is_same or shapes != self._shapes:
            self._places, self._shapes, self._captured = places, shapes, None
            return self._warm_up(work, inputs, device)
        if self._captured is None:
            copies = {name: value.clone() for name, value in inputs.items()}
            try:
                # A capture runs nothing on the device.
                self._captured = copies, *self._capture(lambda: work(copies)), work
            except RuntimeError as error:
                first = str(error).splitlines()[0]
                logger.warning("%s run eagerly: capturing a CUDA graph failed (%s)", self.name, first)
                self._capture = None
                begin_again()
                return work(inputs)
            logger.info("%s are captured as a CUDA graph", self.name)
        held, outputs, launch, _ = self._captured
        for name, value in inputs.items():
            held[name].copy_(value)
        launch()
        return outputs

    def _warm_up(self, work: Work, inputs: Tensors, device: torch.device) -> Tensors:
        """Run work that may be captured next time, as PyTorch asks of work with backward passes: on a side stream.

        Gradients are accumulated on the stream on which a parameter was first used, and a captured stream may not wait
        for the default one.
        """
        if self._is_for_all or not torch.is_grad_enabled():
            return work(inputs)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            outputs = work(inputs)
        torch.cuda.current_stream(device).wait_stream(stream)
        return outputs
