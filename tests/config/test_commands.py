"""The table of commands, and how the program ends: exit codes, and a hint where a run goes on."""

from __future__ import annotations

import importlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from main import main
from training.commands.table import COMMANDS
from utils.config.cli import ParsedCommand
from utils.errors import CheckpointError, ConfigError, DataError, MemoryLimitReached, Remains, StopRequested

pytestmark = pytest.mark.usefixtures("restore_process")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_calls_a_function_that_is_there(name: str) -> None:
    module, _, function = COMMANDS[name].function.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_only_the_table_imports_the_fuel_breaks() -> None:
    folders = ("data", "environment", "models", "training", "utils")
    files = [ROOT / "main.py", *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    outside = [path for path in files if "fuel_breaks" not in path.parts]
    importing = [path for path in outside if re.search(r"(?m)^\s*(from|import) .*fuel_breaks", path.read_text())]
    assert set(importing) <= {ROOT / "training" / "commands" / "table.py"}


@pytest.mark.parametrize(
    ("line", "error", "exit_code"),
    [
        ("", ConfigError("expected x, got y"), 2),
        ("", DataError("expected x, got y"), 2),
        ("", CheckpointError("expected x, got y"), 1),
        ("", OSError(28, "No space left on device"), 1),
        ("", MemoryLimitReached("too much"), 3),
        ("", StopRequested(signal.SIGTERM, 0.0), 143),
        ("walk-forward", KeyboardInterrupt(), 130),
        ("signals", KeyboardInterrupt(), 130),
        ("evaluate", OSError(28, "No space left on device"), 1),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    error: BaseException,
    exit_code: int,
) -> None:
    def fail(command: ParsedCommand) -> None:
        raise error

    monkeypatch.setattr(ParsedCommand, "run", fail)
    assert main(line.split()) == exit_code
    (shown,) = capsys.readouterr().err.strip().splitlines()
    assert "continue with" not in shown


@pytest.mark.parametrize(
    ("line", "folder", "command"),
    [
        ("", ROOT, "python main.py --resume 'a run' --runs-dir x"),
        ("--shards 2 --extend", ROOT, "python main.py --resume 'a run' --runs-dir x --shards 2"),
        ("walk-forward --folds 2 --jobs 3", ROOT, "python main.py walk-forward --resume 'a run' --runs-dir x --jobs 3"),
        ("fuel-breaks train", Path("/"), f"python {ROOT}/main.py fuel-breaks train --resume 'a run' --runs-dir x"),
    ],
)
def test_a_stopped_run_names_the_command_that_continues_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, folder: Path, command: str
) -> None:
    def stop(_: ParsedCommand) -> None:
        error = StopRequested(signal.SIGTERM, 0.0)
        error.remains = Remains("generation 2 of 9 is saved", ("--resume", "a run", "--runs-dir", "x"))
        raise error

    monkeypatch.setattr(ParsedCommand, "run", stop)
    monkeypatch.chdir(folder)
    assert main(line.split()) == 143
    (shown,) = capsys.readouterr().err.strip().splitlines()
    assert shown.endswith(f"stopped by SIGTERM; generation 2 of 9 is saved: continue with {command}")


def test_help_imports_no_torch() -> None:
    """Only a command that runs pays for what it needs."""
    code = (
        "import sys, main\ntry:\n    main.main(['--help'])\nexcept SystemExit:\n    assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
