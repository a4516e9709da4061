"""The supervisor: which run it resumes, and when it starts the program again."""

import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from box.supervise import MAX_FAILURES, LastRun, Supervisor, last_to_progress, resumed_names
from tests.box.emulated import Box

W = ("--resume=w",)
STUB = """
echo "$*" >> words
code=$(head -1 codes)
sed -i 1d codes
[ "$code" = unborn ] && exit 1
mkdir -p runs/one && touch runs/one/config.json
case $code in
  saved*) mkdir -p runs/one/checkpoints/generation-$(wc -l < words); exit 1;;
  killed) kill -9 $$;;
  wait) trap 'kill $!; exit 143' TERM; sleep 60 & touch waiting; wait $!;;
  *) exit "$code";;
esac
"""


def supervised(folder: Path, codes: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Supervisor, list[str]]:
    """A supervisor of a stub that ends as told, begun with `--run one`, and the arguments that it was called with."""
    monkeypatch.chdir(folder)
    for name in ("config.json", "summary.json"):
        (folder / "runs" / "old").mkdir(parents=True, exist_ok=True)
        (folder / "runs" / "old" / name).touch()
    (folder / "codes").write_text("\n".join(codes) + "\n")
    (folder / "words").touch()
    return Supervisor(folder / "runs", ["bash", "-c", STUB, "stub"], first_wait=0.0), ["--run", "one"]


@pytest.mark.parametrize(
    ("codes", "ends_with", "starts"),
    [
        (["0"], 0, 1), (["2", "0"], 2, 1), (["130", "0"], 130, 1), (["143", "0"], 143, 1),
        (["1", "3", "killed", "0"], 0, 4), (["killed", "2", "0"], 2, 2),
        (["1"] * (MAX_FAILURES + 1), 1, MAX_FAILURES), (["3"] * (MAX_FAILURES + 1), 3, MAX_FAILURES),
        (["1"] * (MAX_FAILURES - 1) + ["saved"] + ["1"] * (MAX_FAILURES - 2) + ["0"], 0, 2 * MAX_FAILURES - 1),
        (["saved"] * (2 * MAX_FAILURES) + ["0"], 0, 2 * MAX_FAILURES + 1),
    ],
)  # fmt: skip
def test_it_starts_the_program_again_where_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[str], ends_with: int, starts: int
) -> None:
    supervisor, words = supervised(tmp_path, codes, monkeypatch)
    assert supervisor.supervise(words) == ends_with
    assert (tmp_path / "words").read_text().splitlines() == ["--run one", *["--resume=one"] * (starts - 1)]


def test_a_run_that_never_began_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is an earlier run resumed in its place, nor are the arguments of a resumed one lost."""
    supervisor, words = supervised(tmp_path, ["unborn", "1", "0", "1", "0"], monkeypatch)
    assert supervisor.supervise(words) == 0
    assert supervisor.supervise(["--resume", "one", "--generations", "9"]) == 0
    begun, resumed = ["--run one", "--run one", "--resume=one"], ["--resume one --generations 9"] * 2
    assert (tmp_path / "words").read_text().splitlines() == begun + resumed


def test_runs_that_are_resumed_are_known_in_both_notations() -> None:
    assert resumed_names(["fuel-breaks", "train", "--resume", "one", "--seed", "3"]) == ["one"]
    assert resumed_names(["--resume=two"]) == ["two"] and resumed_names(["--resume", "--seed", "3", "--resume"]) == []


def test_a_signal_reaches_the_program_and_ends_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, words = supervised(tmp_path, ["wait", "0"], monkeypatch)

    def stop() -> None:
        while not (tmp_path / "waiting").exists():
            time.sleep(0.01)
        supervisor.stop(signal.SIGTERM, None)

    threading.Thread(target=stop).start()
    assert supervisor.supervise(words) == 143
    assert (tmp_path / "codes").read_text() == "0\n"


def test_a_signal_ends_the_wait_for_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, words = supervised(tmp_path, ["1", "0"], monkeypatch)
    supervisor._first_wait, wait = 300.0, supervisor._stopped.wait

    def stopped(seconds: float) -> bool:
        threading.Thread(target=supervisor.stop, args=(signal.SIGTERM, None)).start()
        return wait(seconds)

    monkeypatch.setattr(supervisor._stopped, "wait", stopped)
    assert supervisor.supervise(words) == 1
    assert (tmp_path / "codes").read_text() == "0\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ("", None),
        ("settings.toml=9 report.html=9", None),
        ("a/config.json=1 b/config.json=2", LastRun(["--resume=b"], False)),
        ("a/config.json=1 a/metrics.jsonl=3 b/config.json=2", LastRun(["--resume=a"], False)),
        ("a/config.json=1 b/config.json=2 b/summary.json=9", LastRun(["--resume=b"], True)),
        # What an evaluation writes later is no progress.
        ("a/config.json=1 a/summary.json=1 a/results.json=9 b/config.json=2", LastRun(["--resume=b"], False)),
        ("a/config.json=3 a/summary.json=3 b/config.json=2", LastRun(["--resume=a"], True)),
        # Settings that were fetched last do not unfinish a run that has ended.
        ("a/config.json=9 a/metrics.jsonl=2 a/summary.json=3 b/config.json=1", LastRun(["--resume=a"], True)),
        # Settings alone may be those of a mistake.
        ("a/config.json=1 a/market.json=1 b/config.json=2", LastRun(["--resume=a"], False)),
        ("w/walk_forward.json=1 w/fold-1/config.json=2", LastRun(["walk-forward", *W], False)),
        ("w/walk_forward.json=1 w/fold-1/metrics.jsonl=4 a/config.json=3", LastRun(["walk-forward", *W], False)),
        ("w/walk_forward.json=1 w/fold-1/summary.json=2 w/report.html=2", LastRun(["walk-forward", *W], True)),
        ("fuel-breaks/f/config.json=1", LastRun(["fuel-breaks", "train", "--resume=f"], False)),
    ],
)
def test_the_run_that_progressed_last(files: str, found: LastRun | None) -> None:
    times = {name: float(time) for name, _, time in (word.partition("=") for word in files.split())}
    assert last_to_progress(times) == found


def test_a_second_run_on_one_box_is_refused(tmp_path: Path) -> None:
    box = Box.fresh(tmp_path / "container", tmp_path / "volume")
    pid_file = box.root / "run" / "erl-trader.pid"
    box.stub("held", f"exec 9>>{pid_file}; flock 9; echo -n 77 >&9; touch {tmp_path}/held; exec sleep 60")
    with subprocess.Popen([box.root / "bin" / "held"]) as holder:
        while not (tmp_path / "held").exists():
            time.sleep(0.01)
        box.call("post_start.sh", "--run", "two")
        while "trains here already" not in box.log:
            time.sleep(0.05)
        holder.kill()
    assert "process 77 trains here already" in box.log and "starting main.py" not in box.log


def test_a_missing_key_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    box = Box.fresh(tmp_path / "container", tmp_path / "volume")
    key = "/workspace/gcs-credentials.json"
    bucket = {"CLOUD_PROVIDER": "gcs", "CLOUD_BUCKET": "my-bucket", "GOOGLE_APPLICATION_CREDENTIALS": key}
    box.call("post_start.sh", **bucket)
    while "expected" not in box.log:
        time.sleep(0.05)
    assert f"'{key}', which is absent" in box.log and "starting main.py" not in box.log and "Traceback" not in box.log
