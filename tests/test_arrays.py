"""Work in several threads comes back in its order, and its errors come back too."""

import threading

import pytest
import torch

from utils.arrays import in_order


@pytest.fixture(autouse=True)
def two_threads() -> None:
    torch.set_num_threads(2)


def test_results_keep_their_order_though_the_first_is_done_last() -> None:
    done: list[int] = []
    second_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_is_done.wait(60)
        done.append(item)
        if item == 1:
            second_is_done.set()
        return item * item

    assert list(in_order(work, range(20))) == [item * item for item in range(20)]
    assert done.index(1) < done.index(0)


def test_only_a_few_are_begun_before_they_are_asked_for_and_errors_come_back() -> None:
    begun: list[float] = []
    found = in_order(lambda item: begun.append(1 / (item - 1)), range(100))
    next(found)
    assert len(begun) <= 4
    with pytest.raises(ZeroDivisionError):
        next(found)
