"""NumPy arrays by the type of their elements, as annotations name them, and work on their parts in several threads.

NumPy and SciPy let other threads run while they compute.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
DateArray = NDArray[np.datetime64]
Item = TypeVar("Item")
Result = TypeVar("Result")
_MOST = 4
"""Threads: each holds the temporary arrays of a part."""


def in_order(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield what `work` makes of the items, in their order; some are worked on at the same time.

    As many as there are CPU threads for tensors, up to four.
    """
    import torch  # it takes seconds, and most that import this module need none of it

    threads = min(torch.get_num_threads(), _MOST)
    if threads == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting = deque[Future[Result]]()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
