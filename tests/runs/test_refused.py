"""What cannot start says so in one line, what has ended is not begun again, and files are written in one step."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from main import main
from tests.tiny_run import run, unjudged
from utils.runs.run_lock import RunLock
from utils.runs.run_log import RunLog, write_atomically

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
sys.modules["torch"] = None  # importing it fails
from main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("program", "absent"),
    [(["-S", str(ROOT / "main.py"), "--help"], "pydantic"), (["-c", WITHOUT_TORCH, "report"], "torch")],
)
def test_a_package_that_is_not_installed_is_told_with_the_command_that_installs_it(
    program: list[str], absent: str
) -> None:
    done = subprocess.run([sys.executable, *program], capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith(f"ERROR expected {absent} to be installed for {sys.executable}")
    command = line.partition("install all by: ")[2]
    assert f"\n{command} && .venv/bin/python main.py\n" in (ROOT / "README.md").read_text()


def told(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("train --data notes.md", "notes.md"),
        ("signals --run one --data notes.md", "notes.md"),
        ("walk-forward --resume one", "process {pid} "),
    ],
)
def test_bad_data_and_a_held_lock_are_told_before_torch_is_imported(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n")
    (tmp_path / "runs" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.json").write_text("{}")
    with RunLock(tmp_path / "runs" / "one"):
        program = [sys.executable, "-c", WITHOUT_TORCH, *line.split()]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and says.format(pid=os.getpid()) in done.stderr and len(done.stderr.splitlines()) == 1


def test_settings_are_not_read_from_what_may_never_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        assert main(["--config", str(path), "--runs-dir", str(tmp_path / "runs")]) == 2
        assert f"--config: expected an existing file, got {str(path)!r}" in told(capsys)


def test_a_folder_of_files_names_prepare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path)]) == 2
    assert f"prepare {tmp_path} prices.parquet" in told(capsys)


def test_a_complete_run_says_how_it_goes_on(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with unjudged():
        assert run(tiny, "--run", "one") == 0
    (tiny.parent / "runs" / "one" / "summary.json").write_text('{"generations": 2}')
    monkeypatch.setattr("training.run.results.judge_training", lambda *_: pytest.fail("it is judged again"))
    for name in ([], ["one"]):
        capsys.readouterr()
        assert main(["--runs-dir", str(tiny.parent / "runs"), "--resume", *name]) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert "one is complete: 2 generations in" in line and "--resume one --generations 4" in line
    assert main(["--runs-dir", str(tiny.parent / "runs"), "--resume", "one", "--generations", "1"]) == 2
    assert "expected --generations of at least 2" in told(capsys)
    log = RunLog.open(tiny.parent / "runs", "one")
    assert log.end() == 2
    log.append({"generation": 3})
    assert log.end() is None, "it has gone on since"


pytestmark = pytest.mark.usefixtures("small_heap")


def test_what_a_link_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "orders.json", tmp_path / "link.json"
    link.symlink_to(Path("folder") / "orders.json")
    for text in ("created", "replaced"):
        write_atomically(link, text)
        assert link.is_symlink() and target.read_text() == text
    assert os.listdir(target.parent) == [target.name]


def test_a_pipe_stays_one_and_gets_the_text(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    write_atomically(pipe, "orders")
    reader.join()
    assert got == ["orders"] and pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_prepare_refuses_a_target_that_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bars.csv").write_text("date,ticker,open,high,low,close\n")
    os.mkfifo(tmp_path / "pipe.pq")
    assert main(["prepare", str(tmp_path / "bars.csv"), str(tmp_path / "pipe.pq")]) == 2
    assert "pipe.pq, which is no file; name a new one" in told(capsys)
    assert (tmp_path / "pipe.pq").is_fifo() and len(os.listdir(tmp_path)) == 2
