"""Garbage and the GPU's cache, given back between two phases of work."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import torch

from utils.memory.guard import MB, release_free_memory


class CleanUp(NamedTuple):
    """Cost of a clean-up, and what it gave back."""

    seconds: float
    objects: int
    freed_mb: float
    gpu_freed_mb: float


def clean_up(generation: int = 2) -> CleanUp:
    """Collect garbage up to a generation, and give CUDA's unused cache to the driver.

    After a full collection free memory is given to the system, too.
    """
    process, started = psutil.Process(), time.perf_counter()
    resident, (_, reserved) = process.memory_info().rss, gpu_memory()
    objects = gc.collect(generation)
    if generation == 2:
        release_free_memory()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    seconds = time.perf_counter() - started
    freed = resident - process.memory_info().rss, reserved - gpu_memory()[1]
    return CleanUp(seconds, objects, *(max(0, freed_bytes) / MB for freed_bytes in freed))


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
def thawed_heap() -> Iterator[None]:
    """Collect and show all objects in the block, those of `frozen_heap` included."""
    is_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
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
