"""One suite for every way to do jobs: in this process, in several, on a cluster."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial

import psutil
import pytest

from tests.jobs import tasks_of_tests as work
from utils.errors import JobsFailed
from utils.jobs import executor as executors
from utils.jobs.cluster import connect
from utils.jobs.executor import open_executor
from utils.jobs.job import Executor, Finished, Job, require_all

Open = Callable[..., contextlib.AbstractContextManager[Executor]]
IN_OTHER_PROCESSES = ("processes", "cluster")


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A Ray cluster of this machine that all tests of the file share; it leaves no process."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install -r requirements-cluster.txt")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with connect("local", 2) as found:
        yield found
    left = [c for c in psutil.Process().children(recursive=True) if c.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=10)
    assert not alive, "the cluster leaves no processes"


@pytest.fixture(params=["here", "processes", "cluster"])
def open_one(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens an executor of one kind."""
    if request.param == "here":
        return partial(open_executor, 1)
    if request.param == "processes":
        return partial(open_executor, 2)
    found = request.getfixturevalue("cluster")
    monkeypatch.setattr(executors, "connect", lambda *_: contextlib.nullcontext(found))
    return partial(open_executor, None, "auto")


def done(executor: Executor, jobs: list[Job]) -> dict[str, Finished]:
    return {finished.name: finished for finished in executor.run(jobs)}


def test_every_job_ends_once_with_its_result_or_its_error(open_one: Open, caplog: pytest.LogCaptureFixture) -> None:
    jobs = [Job(f"square of {number}", partial(work.square, number)) for number in range(5)]
    jobs[2:2] = [Job("refused", partial(work.refuse, "expected data, got none")), Job("mistaken", work.mistake)]
    changes: list[tuple[str, str]] = []
    with open_one() as executor:
        ends = list(executor.run(jobs, lambda name, state: changes.append((name, state))))
    assert sorted(end.name for end in ends) == sorted(job.name for job in jobs)
    by_name = {end.name: end for end in ends}
    assert [by_name[f"square of {number}"].result for number in range(5)] == [0, 1, 4, 9, 16]
    assert (by_name["refused"].error, by_name["refused"].exit_code) == ("expected data, got none", 2)
    assert (by_name["mistaken"].error, by_name["mistaken"].exit_code) == ("KeyError: 'absent'", 1)
    assert all(end.seconds >= 0 and (end.error is None) == (end.exit_code == 0) for end in ends)
    assert sorted(changes) == sorted((job.name, "running") for job in jobs)
    with pytest.raises(JobsFailed, match="refused: expected data, got none") as caught:
        require_all(ends)
    assert caught.value.exit_code == 2
