"""One suite for all executors: in this process, in several processes, on a cluster."""

import contextlib
import importlib.util
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from main import main
from tests.jobs import tasks_of_tests as work
from utils.errors import ClusterError, ConfigError, DataError, JobsFailed, MemoryLimitReached, StopRequested
from utils.jobs import cluster as cluster_module
from utils.jobs import executor as executors
from utils.jobs import pool
from utils.jobs.cluster import Cluster, connect
from utils.jobs.executor import Executor, open_executor
from utils.jobs.job import Finished, Job, require_all

Open = Callable[..., contextlib.AbstractContextManager[Executor]]
apart = pytest.mark.parametrize("open_one", ["processes", "cluster"], indirect=True)
"""For tests of executors that run jobs in other processes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Ray cluster of this machine that all tests of the file share; it leaves no process."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install -r requirements-cluster.txt")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with connect("local", 2) as found:
        yield found
        own = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert own and not psutil.wait_procs(own, timeout=60)[1], "the cluster leaves no process"


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


def test_every_job_finishes_once_with_its_result_or_its_error(open_one: Open, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_job_is_chosen_when_there_is_room_for_it(open_one: Open) -> None:
    """A generator of jobs knows the outcomes of earlier ones, except those that are still running."""
    ended, known = list[Finished](), list[int]()

    def jobs() -> Iterator[Job]:
        for number in range(6):
            known.append(len(ended))
            yield Job(str(number), partial(work.square, number))

    with open_one() as executor:
        for end in executor.run(jobs()):
            ended.append(end)
    assert len(ended) == 6
    assert all(number - seen < 2 for number, seen in enumerate(known))


@apart
def test_jobs_have_a_process_of_one_thread_and_a_log(open_one: Open, tmp_path: Path) -> None:
    jobs = [Job("who", work.who), Job("a/say", partial(work.say, "hello")), Job("mistaken", work.mistake)]
    with open_one(logs=tmp_path / "jobs") as executor:
        ends = {end.name: end for end in executor.run(jobs)}
    process, threads = ends["who"].result
    assert process != os.getpid() and threads == "1"
    assert (tmp_path / "jobs" / "a-say.log").read_text() == "hello\n"
    said = (tmp_path / "jobs" / "mistaken.log").read_text()
    assert "Traceback" in said and "KeyError: 'absent'" in said


class Unknown:
    """Work that other processes cannot load."""

    def __call__(self) -> None: ...

    def __reduce__(self) -> tuple[object, ...]:
        return work.refuse, ("expected something known, got none",)


@apart
def test_what_cannot_be_sent_fails_its_job_only(open_one: Open) -> None:
    """As do a result that cannot be pickled, and an exception whose copy cannot be made on the other side."""
    jobs = [Job("lock", threading.Lock), Job("failed", work.fail_jobs), Job("other", partial(work.square, 3))]
    with open_one() as executor:
        (odd,) = executor.run([Job("odd", Unknown())])
        ends = {end.name: end for end in executor.run(jobs)}
    assert odd.exit_code > 0 and "expected something known" in str(odd.error)
    assert ends["lock"].exit_code == 1 and "that can be pickled" in str(ends["lock"].error)
    assert ends["failed"].exit_code == 1 and ends["failed"].error == "two failed"
    assert ends["other"].result == 9


@apart
def test_a_job_whose_process_is_killed_is_run_again(
    open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool, "MOST_LOSSES", 1)
    mortal = Job("mortal", partial(work.die_until, tmp_path / "mortal", 1))
    doomed = Job("doomed", partial(work.die_until, tmp_path / "doomed", 9))
    with open_one() as executor:
        ends = {end.name: end for end in executor.run([mortal, doomed, Job("other", partial(work.square, 3))])}
    assert (ends["mortal"].result, ends["other"].result) == (2, 9)
    assert ends["doomed"].exit_code == 1 and "got 2 that were lost" in str(ends["doomed"].error)
    assert isinstance(ends["doomed"].exception, ClusterError)
    assert (tmp_path / "doomed").read_text() == "xx"
    said = [record.getMessage() for record in caplog.records if record.name == pool.__name__]
    assert len(said) == 2 and all("worker was lost" in line and "1 of at most 1" in line for line in said)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers on a busy machine have all the time they need to stop."""
    monkeypatch.setattr(pool, "STOP_SECONDS", 120.0)


@contextlib.contextmanager
def signalled(number: signal.Signals, folder: Path, count: int) -> Iterator[None]:
    """Send this process a signal as soon as `count` jobs have begun."""

    def send() -> None:
        deadline = time.monotonic() + 200
        while len(list(folder.rglob("*.began"))) < count and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    yield
    sender.join()


@pytest.mark.parametrize(
    ("open_one", "number"),
    [("here", signal.SIGINT), ("processes", signal.SIGTERM), ("cluster", signal.SIGTERM)],
    indirect=["open_one"],
)
def test_a_signal_stops_jobs_at_safe_points(
    open_one: Open, tmp_path: Path, number: signal.Signals, patient: None
) -> None:
    """Two jobs that count resume where they were stopped."""
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    jobs = [Job(folder.name, partial(work.count_until_stopped, folder)) for folder in folders]
    with open_one() as executor:
        running = 2 if executor.is_apart else 1
        with signalled(number, tmp_path, running), pytest.raises(StopRequested) as caught:
            list(executor.run(jobs))
        assert caught.value.exit_code == 128 + number
        counts = [int((folder / "count").read_text()) for folder in folders[:running]]
        for folder, count in zip(folders, counts, strict=False):
            assert count > 0 and len(list(folder.glob("*.stopped"))) == 1
            (folder / "count").write_text(str(max(count, 998)))
    for folder in folders[running:]:
        (folder / "count").write_text("999")
    with open_one() as executor:
        assert [end.result for end in executor.run(jobs)] == [1000, 1000]


@apart
def test_a_job_that_ignores_signals_is_killed(open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STOP_SECONDS", 0.5)
    with open_one() as executor, signalled(signal.SIGTERM, tmp_path, 1), pytest.raises(StopRequested):
        list(executor.run([Job("deaf", partial(work.never_stop, tmp_path))]))
    (began,) = tmp_path.glob("*.began")
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(began.stem)).wait(timeout=60)


def test_failures_are_reported_together() -> None:
    good = Finished("good", result=1)
    require_all([good])
    full = MemoryLimitReached("full")
    ends = [good, *(Finished(name, exception=DataError("no")) for name in "ab"), Finished("c", exception=full)]
    with pytest.raises(JobsFailed, match=r"expected 4 jobs .* got 3 .*: a, b: no \(exit code 2\); c: full") as caught:
        require_all(ends)
    assert caught.value.exit_code == 3


def test_a_node_that_differs_is_named(cluster: Cluster, tmp_path: Path) -> None:
    """Or one that does not see the folder of runs."""
    data = tmp_path / "data.parquet"
    data.write_bytes(b"prices")
    own = cluster_module.facts((data,))
    assert {"Python", "torch", "numpy", "source code", str(data)} == own.keys()

    def run(facts: dict[str, str], mark: Path | None = None) -> list[Finished]:
        other = replace(cluster, files=(data,), facts=facts, folder=tmp_path, mark=mark)
        with cluster_module.ClusterTasks(other, 1, None, lambda: None) as executor:
            return list(executor.run([Job("two", partial(work.square, 2))]))

    assert run(own, tmp_path)[0].result == 4
    for name in own:
        expected = rf"expected {re.escape(name)} other on all nodes, .* got {re.escape(own[name])} on node "
        with pytest.raises(ConfigError, match=expected):
            run({**own, name: "other"})
    with pytest.raises(ConfigError, match=r"a folder that all nodes share, got .*, which node .* does not see"):
        run(own, tmp_path / "elsewhere")


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["walk-forward", "--runs-dir", str(tmp_path / "runs"), "--synthetic.days", "3000", "--cluster", "auto"]
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "pip install -r requirements-cluster.txt" in last and "ERROR expected Ray" in last
