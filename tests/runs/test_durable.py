"""Files that are written in one step, wherever their names lead."""

import os
import threading
from pathlib import Path

import pytest

from main import main
from utils.runs.run_log import write_atomically

pytestmark = pytest.mark.usefixtures("restore_process")


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
    reader.join(10)
    assert got == ["orders"] and pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_prepare_refuses_a_target_that_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bars.csv").write_text("date,ticker,open,high,low,close\n")
    os.mkfifo(tmp_path / "pipe")
    assert main(["prepare", str(tmp_path / "bars.csv"), str(tmp_path / "pipe")]) == 2
    assert "expected a parquet file as TARGET" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo() and len(os.listdir(tmp_path)) == 2
