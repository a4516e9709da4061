"""Runs that are stopped, killed or locked: nothing is lost but the generation they were in."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_run import parameters, records, run, unjudged
from training.erl_trainer import ERLTrainer
from utils.runs.checkpoint import checkpoint_writer, list_checkpoints, load_checkpoint

ROOT = Path(__file__).parents[2]
GENERATIONS = 3
LENGTH = ("--generations", str(GENERATIONS))


def ended(tiny: Path, name: str) -> tuple[list[dict[str, Any]], bytes, list[dict[str, list[float]]]]:
    """Records, last tensors and agents' losses of a run."""
    last = load_checkpoint(list_checkpoints(tiny.parent / "runs" / name / "checkpoints")[GENERATIONS])
    return records(tiny, name), parameters(tiny, name, GENERATIONS), last.state["population"]["losses"]


@pytest.fixture(scope="module", autouse=True)
def judge_nothing() -> Iterator[None]:
    with unjudged():
        yield


def signalling(method: Callable[..., Any], number: int) -> Callable[..., Any]:
    """The trainer's method, which a signal meets in generation 2."""

    def met(self: ERLTrainer, *arguments: Any) -> Any:
        if self.generation == 2:
            os.kill(os.getpid(), number)
        return method(self, *arguments)

    return met


@pytest.mark.parametrize(("phase", "number"), [("train_population", signal.SIGINT), ("state_dict", signal.SIGTERM)])
def test_a_signal_in_any_phase_stops_and_resumes_exactly(
    tiny: Path, trained: Path, monkeypatch: pytest.MonkeyPatch, phase: str, number: signal.Signals
) -> None:
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    with monkeypatch.context() as patch:
        patch.setattr(ERLTrainer, phase, signalling(getattr(ERLTrainer, phase), number))
        assert run(tiny, "--run", "cut", *LENGTH) == 128 + number
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    saved = list_checkpoints(tiny.parent / "runs" / "cut" / "checkpoints")
    assert max(saved) == (2 if phase == "state_dict" and 2 in saved else 1)
    assert not (tiny.parent / "runs" / "cut" / "lock").exists()
    assert run(tiny, "--resume", "cut", *LENGTH) == 0
    found = ended(tiny, "cut")
    assert found == ended(trained / "tiny.toml", "whole")
    # Two updates a generation.
    assert all(len(own) == 2 * GENERATIONS and all(own) for losses in found[2] for own in losses.values())


def test_ctrl_c_while_modules_load_shows_no_traceback() -> None:
    code = f"""
import runpy, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "training.commands.table":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
sys.path.insert(0, {str(ROOT)!r})
runpy.run_path({str(ROOT / "main.py")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_second_signal_ends_the_process_at_once() -> None:
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from utils.memory.guard import MemoryGuard
from utils.runs.stopping import SafePoint
with SafePoint(MemoryGuard()):
    for _ in range(2):
        os.kill(os.getpid(), {int(signal.SIGTERM)})
    print("still here")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (143, "")
    assert "once more to stop at once" in done.stderr


def test_the_writer_saves_what_the_state_was(tmp_path: Path) -> None:
    """Training goes on in the same tensors while the copy is written."""
    tensor = torch.zeros(1000)
    with checkpoint_writer(tmp_path, run_id="r", config_hash="h", keep=2) as write:
        for generation in range(1, 6):
            tensor += 1
            write(generation, {"part": {"tensor": tensor, "list": [tensor, 3]}})
            tensor.mul_(1.0)
    saved = list_checkpoints(tmp_path)
    assert list(saved) == [4, 5]
    for generation, path in saved.items():
        assert load_checkpoint(path).state["part"]["tensor"].unique().tolist() == [generation]


@pytest.mark.parametrize(
    ("generation", "error"),
    [
        (1, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.00 GiB.\nMore advice")),
        (
            2,
            RuntimeError(
                "[enforce fail at alloc.cpp:1] . DefaultCPUAllocator: can't allocate memory: you tried 4 bytes"
            ),
        ),
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


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs pseudo-terminals")
@pytest.mark.parametrize(("ignored", "code"), [(False, 129), (True, 0)])
def test_a_closed_terminal_stops_a_run_unless_nohup_does_not_let_it(ignored: bool, code: int, tmp_path: Path) -> None:
    """Shell and kernel both send SIGHUP, and writing to the terminal fails from then on."""
    script = f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
from utils.errors import StopRequested
from utils.memory.guard import MemoryGuard
from utils.runs.stopping import SafePoint
{"signal.signal(signal.SIGHUP, signal.SIG_IGN)" if ignored else ""}
with SafePoint(MemoryGuard()) as check:
    open({str(tmp_path / "ready")!r}, "w").close()
    while not os.path.exists({str(tmp_path / "closed")!r}):
        time.sleep(0.01)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGHUP)
    try:
        check()
    except StopRequested as error:
        print("told", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
"""
    terminal, end = os.openpty()
    process = subprocess.Popen([sys.executable, "-c", script], stdout=end, stderr=end, start_new_session=True)
    os.close(end)
    while not (tmp_path / "ready").exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.close(terminal)
    (tmp_path / "closed").touch()
    assert process.wait(60) == code
