"""Work that is captured as a CUDA graph: its kernels are recorded once, and launched together afterwards."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

logger = logging.getLogger(__name__)


class CudaGraph:
    """Work that is repeated with other inputs of the same shapes.

    The first run is eager, the second is captured; from then on each is one launch, with the same bits. The graph holds
    a copy of the inputs and its own memory pool. Slices and numbers of steps are constants of the capture. All runs are
    eager without CUDA, and where a capture fails.
    """

    def __init__(self, name: str) -> None:
        """Start with nothing captured; `name` is plural, for the log."""
        self.name, self.is_eager = name, not torch.backends.cuda.is_built()
        self._key: tuple[object, list[torch.Size]] | None = None
        self._captured: tuple[Any, Tensor, Callable[[], None], Callable[[Any], Tensor]] | None = None
        """Inputs, outputs, launch, and the work, which holds the other tensors that the graph reads."""

    def run(self, work: Callable[[Any], Tensor], inputs: Any, place: object) -> Tensor:
        """Run work and return its outputs; the next launch overwrites them.

        Args:
            work: what else it reads and writes must stay where it is in memory.
            inputs: a named tuple of tensors.
            place: the same object as at the last run where the work reads and writes the same memory.
        """
        device = inputs[0].device
        if self.is_eager or device.type != "cuda":
            return work(inputs)
        shapes = [value.shape for value in inputs]
        if self._key is None or self._key[0] is not place or self._key[1] != shapes:
            self._key, self._captured = (place, shapes), None
            # On a side stream: gradients are accumulated on the stream on which a parameter was first used, and a
            # captured one may not wait for the default stream.
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                outputs = work(inputs)
            torch.cuda.current_stream(device).wait_stream(stream)
            return outputs
        if self._captured is None:
            copies = type(inputs)(*(value.clone() for value in inputs))
            try:
                graph = torch.cuda.CUDAGraph()
                # Work of other threads, such as the writer of checkpoints, is not captured.
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    outputs = work(copies)
                self._captured = copies, outputs, graph.replay, work
            except RuntimeError as error:
                first = str(error).splitlines()[0]
                logger.warning("%s run eagerly: capturing a CUDA graph failed (%s)", self.name, first)
                self.is_eager = True
                return work(inputs)
            logger.info("%s are captured as a CUDA graph", self.name)
        static, outputs, launch, _ = self._captured
        for copy, value in zip(static, inputs, strict=True):
            copy.copy_(value)
        launch()
        return outputs
