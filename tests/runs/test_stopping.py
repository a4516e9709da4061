"""Runs that are stopped, killed or locked: nothing is lost but the generation they were in, be it the first."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from main import main
from tests.tiny_run import assert_like, frame, run
from training.erl_trainer import ERLTrainer

pytestmark = pytest.mark.usefixtures("judge_nothing")

ROOT = Path(__file__).parents[2]


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=250)


def test_ctrl_c_while_modules_load_shows_no_traceback() -> None:
    done = run_code("""
import runpy, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "training.commands.table":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
runpy.run_path("main.py", run_name="__main__")
""")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_second_signal_ends_the_process_at_once() -> None:
    done = run_code("""
import os, signal
from utils.memory_guard import MemoryGuard
from utils.runs.ending import SafePoint
with SafePoint(MemoryGuard()):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
    print("still here")
""")
    assert (done.returncode, done.stdout) == (143, "")
    assert "once more to stop at once" in done.stderr and done.stderr.endswith("--resume goes on\n")


@pytest.mark.parametrize(
    ("generation", "error"),
    [
        (1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.\nMore advice")),
        (2, RuntimeError("[alloc.cpp:1] . DefaultCPUAllocator: can't allocate memory: you tried 4 bytes")),
    ],
)
def test_without_memory_a_run_ends_in_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], generation: int, error: Exception
) -> None:
    """Before the first generation its name stays free, later it can be continued on a larger machine."""
    evaluate = ERLTrainer.evaluate_population

    def failing(self: ERLTrainer) -> Any:
        if self.generation == generation:
            raise error
        return evaluate(self)

    with monkeypatch.context() as patch:
        patch.setattr(ERLTrainer, "evaluate_population", failing)
        assert run(tiny, "--run", "one") == 3
    shown = capsys.readouterr().err
    assert "ERROR expected enough memory" in shown.splitlines()[-1] and "Traceback" not in shown
    assert (tiny.parent / "runs" / "one").exists() == ("continue with" in shown) == (generation == 2)


@pytest.mark.parametrize(("ignored", "code"), [(False, 129), (True, 0)])
def test_a_closed_terminal_stops_a_run_unless_nohup_does_not_let_it(ignored: bool, code: int) -> None:
    """Shell and kernel both send SIGHUP, and writing to the terminal fails from then on."""
    script = f"""
import os, signal, sys
from utils.errors import StopRequested
from utils.memory_guard import MemoryGuard
from utils.runs.ending import SafePoint
signal.signal(signal.SIGHUP, signal.{"SIG_IGN" if ignored else "SIG_DFL"})
with SafePoint(MemoryGuard()) as check:
    sys.stdin.read()  # until the terminal is closed
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGHUP)
    try:
        check()
    except StopRequested as error:
        print("told", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
"""
    terminal, end = os.openpty()
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    os.close(terminal)
    process.communicate(timeout=250)
    assert process.returncode == code


INTERRUPT = mock.Mock(side_effect=KeyboardInterrupt)


def test_it_begins_anew_from_its_own_settings(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny, "--run", "earlier", "--generations", "1") == 0
    with monkeypatch.context() as patch:
        patch.setattr(ERLTrainer, "evolve_population", INTERRUPT)
        assert run(tiny, "--run", "cut", "--seed", "7", "--generations", "1") == 130
    assert not (tiny.parent / "runs" / "cut" / "checkpoints").exists()
    assert run(tiny, "--run", "cut") == 2
    assert "continue it with --resume cut" in capsys.readouterr().err
    assert run(tiny, "--resume", "cut", "--seed", "8") == 2
    (tiny.parent / "runs" / "cut" / "metrics.jsonl").write_text('{"generation": 1}\n{"gener')
    assert main(["--runs-dir", str(tiny.parent / "runs"), "--resume"]) == 0
    assert "it begins anew" in capsys.readouterr().out
    assert run(tiny, "--run", "whole", "--seed", "7", "--generations", "1") == 0
    assert_like(tiny, "cut", "whole", 1)


def test_a_fold_begins_anew_on_its_own_days(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before the fold had written down its market."""
    frame(300, 6).to_parquet(tiny.parent / "data.parquet")
    runs = ["--runs-dir", str(tiny.parent / "runs")]
    plan = ["--folds", "1", "--test-windows", "1", "--validation-days", "30", "--generations", "1"]
    data = ["--data", str(tiny.parent / "data.parquet"), "--profile", "quick", "--config", str(tiny)]
    with monkeypatch.context() as patch:
        patch.setattr("training.train.data_loader", INTERRUPT)
        assert main(["walk-forward", *data, *plan, *runs, "--run", "walk"]) == 130
    walk = tiny.parent / "runs" / "walk"
    assert [path.name for path in (walk / "fold-1").glob("*.json")] == ["config.json"]
    assert main(["walk-forward", *runs, "--resume"]) == 0
    whole, fold = (json.loads((folder / "market.json").read_text()) for folder in (walk, walk / "fold-1"))
    assert whole["splits"] == fold["splits"]
