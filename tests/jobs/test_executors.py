"""One suite for both executors: in this process, and in several."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.jobs import tasks_of_tests as work
from utils import jobs as executors
from utils.errors import JobsFailed, StopRequested
from utils.jobs import Executor, Finished, Job, open_executor, require_all

MISTAKE = partial({}.pop, "absent")
"""Work that raises KeyError."""
Open = Callable[..., contextlib.AbstractContextManager[Executor]]
apart = pytest.mark.parametrize("open_one", ["processes"], indirect=True)
"""For tests of executors that run jobs in other processes."""


@pytest.fixture(params=["here", "processes"])
def open_one(request: pytest.FixtureRequest) -> Open:
    return partial(open_executor, 1 if request.param == "here" else 2)


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


@pytest.mark.parametrize("times", [9, 1])
@apart
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
    [("here", signal.SIGINT), ("processes", signal.SIGTERM)],
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
