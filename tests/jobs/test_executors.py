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
from functools import partial
from pathlib import Path

import psutil
import pytest

from main import main
from tests.jobs import tasks_of_tests as work
from utils.errors import ConfigError, JobsFailed, StopRequested
from utils.jobs import cluster as cluster_module
from utils.jobs import executor as executors
from utils.jobs.cluster import ClusterTasks, connect
from utils.jobs.executor import Executor, open_executor
from utils.jobs.job import Finished, Job, require_all

MISTAKE = partial({}.pop, "absent")
"""Work that raises KeyError."""
Open = Callable[..., contextlib.AbstractContextManager[Executor]]
apart = pytest.mark.parametrize("open_one", ["processes", "cluster"], indirect=True)
"""For tests of executors that run jobs in other processes."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this machine that all tests of the file share; it leaves no process."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install -r requirements-cluster.txt")
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with connect("local"):
        yield
        own = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert own and not psutil.wait_procs(own, timeout=60)[1], "the cluster leaves no process"


@pytest.fixture(params=["here", "processes", "cluster"])
def open_one(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Open:
    if request.param != "cluster":
        return partial(open_executor, 1 if request.param == "here" else 2)
    request.getfixturevalue("cluster")
    monkeypatch.setattr(cluster_module, "connect", lambda _: contextlib.nullcontext())
    return partial(open_executor, 2, "auto")


def test_every_job_finishes_once_with_its_result_or_its_error(open_one: Open) -> None:
    jobs = [Job(f"square of {number}", partial(pow, number, 2)) for number in range(5)]
    jobs[2:2] = [Job("refused", partial(work.refuse, "expected data, got none")), Job("mistaken", MISTAKE)]
    jobs.append(Job("several", work.fail_jobs))
    with open_one() as executor:
        ends = list(executor.run(jobs))
    assert sorted(end.name for end in ends) == sorted(job.name for job in jobs)
    by_name = {end.name: end for end in ends}
    assert [by_name[f"square of {number}"].result for number in range(5)] == [0, 1, 4, 9, 16]
    assert by_name["refused"] == Finished("refused", error="expected data, got none", exit_code=2)
    assert by_name["mistaken"] == Finished("mistaken", error="KeyError: 'absent'", exit_code=1)
    assert by_name["several"] == Finished("several", error="two failed", exit_code=1)
    with pytest.raises(JobsFailed, match=r"expected 8 .* got 3 .*refused: expected data, got none \(exit") as caught:
        require_all(ends)
    assert caught.value.exit_code == 2
    require_all([by_name["square of 1"]])


@apart
def test_jobs_have_a_process_of_one_thread_and_a_log(open_one: Open, tmp_path: Path) -> None:
    """A result that cannot be pickled fails its job only; so does an error without words, which is named."""
    jobs = [Job("process", os.getpid), Job("threads", partial(os.getenv, "OMP_NUM_THREADS")), Job("mistaken", MISTAKE)]
    jobs += [Job("a/say", partial(print, "hello", flush=True)), Job("lock", threading.Lock), Job("mute", work.Mute)]
    with open_one(logs=tmp_path / "jobs") as executor:
        ends = {end.name: end for end in executor.run(jobs)}
    assert ends["process"].result != os.getpid() and ends["threads"].result == "1"
    assert (tmp_path / "jobs" / "a-say.log").read_text() == "hello\n"
    said = (tmp_path / "jobs" / "mistaken.log").read_text()
    assert "Traceback" in said and "KeyError: 'absent'" in said
    assert ends["lock"].exit_code == 1 and "cannot pickle" in str(ends["lock"].error)
    assert str(ends["mute"].error).endswith("got: EOFError")


@pytest.mark.parametrize(("open_one", "times"), [("processes", 9), ("cluster", 1)], indirect=["open_one"])
def test_a_job_whose_process_is_killed_is_run_again(
    open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    monkeypatch.setattr(executors, "MOST_LOSSES", 1)
    mortal = Job("mortal", partial(work.die_until, tmp_path / "mortal", times))
    with open_one() as executor:
        ends = {end.name: end for end in executor.run([mortal, Job("other", partial(pow, 3, 2))])}
    assert ends["other"].result == 9 and (tmp_path / "mortal").read_text() == "xx"
    failed = Finished("mortal", error="expected an outcome of the job, got: a process that was lost", exit_code=1)
    assert ends["mortal"] == failed if times > 1 else ends["mortal"].result == 2
    assert caplog.text.count("was lost, 1 of at most 1 times") == 1


@contextlib.contextmanager
def signalled(number: signal.Signals, folder: Path, count: int) -> Iterator[None]:
    """Send this process a signal as soon as `count` jobs have begun."""

    def send() -> None:
        deadline = time.monotonic() + 200
        while len(list(folder.glob("*.began"))) < count and time.monotonic() < deadline:
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
    open_one: Open, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "STOP_SECONDS", 120.0)  # all the time that they need on a busy machine
    jobs = [Job(name, partial(work.count_until_stopped, tmp_path)) for name in ("one", "two")]
    running = 1 if number == signal.SIGINT else 2  # in this process they run one after the other
    with signalled(number, tmp_path, running), pytest.raises(StopRequested) as caught, open_one() as executor:
        list(executor.run(jobs))
    assert caught.value.exit_code == 128 + number
    assert len(list(tmp_path.glob("*.stopped"))) == running


@apart
def test_a_job_that_ignores_signals_is_killed(open_one: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "STOP_SECONDS", 0.5)
    with signalled(signal.SIGTERM, tmp_path, 1), pytest.raises(StopRequested), open_one() as executor:
        list(executor.run([Job("deaf", partial(work.never_stop, tmp_path))]))
    (began,) = tmp_path.glob("*.began")
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(began.stem)).wait(timeout=60)


def test_a_node_that_differs_is_named(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data.parquet"
    data.write_bytes(b"prices")
    known = cluster_module.facts((data,))
    assert {"Python", "torch", "numpy", "source code", str(data)} == known.keys()

    def ends() -> list[Finished]:
        with ClusterTasks([data], 1, None, lambda: None) as executor:
            return list(executor.run([Job("two", partial(pow, 2, 2))]))

    assert [end.result for end in ends()] == [4]
    for name in ("source code", str(data)):
        monkeypatch.setattr(cluster_module, "facts", lambda _, name=name: known | {name: "other"})
        with pytest.raises(ConfigError, match=rf"expected {re.escape(name)} other on all nodes, got \S+ on node "):
            ends()


def test_without_ray_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["walk-forward", "--runs-dir", str(tmp_path / "runs"), "--synthetic.days", "3000", "--cluster", "auto"]
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "pip install -r requirements-cluster.txt" in last and "ERROR expected Ray" in last
