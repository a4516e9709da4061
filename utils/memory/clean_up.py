"""Garbage and the GPU's cache, given back between two phases of work."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from utils.memory.guard import MB, release_free_memory


def clean_up(generation: int = 2) -> float:
    """Collect garbage up to a generation, and give CUDA's unused cache to the driver; return the MiB given back.

    After a full collection free memory is given to the system, too.
    """
    process = psutil.Process()
    resident = process.memory_info().rss
    gc.collect(generation)
    if generation == 2:
        release_free_memory()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return max(0, resident - process.memory_info().rss) / MB


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leave what is alive now, such as the libraries, out of collections: a full one then takes milliseconds."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def thawed_heap(*, collects: bool = True) -> Iterator[None]:
    """Collect and show all objects in the block, those of `frozen_heap` included."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    if collects:
        gc.collect()
    yield
    if is_frozen:
        gc.freeze()


def gpu_memory() -> tuple[int, int]:
    """Return the bytes allocated and reserved on all CUDA devices; never starts CUDA itself."""
    if not torch.cuda.is_initialized():
        return 0, 0
    devices = range(torch.cuda.device_count())
    return sum(map(torch.cuda.memory_allocated, devices)), sum(map(torch.cuda.memory_reserved, devices))
