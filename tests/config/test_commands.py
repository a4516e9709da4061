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
from utils.errors import CheckpointError, ConfigError, DataError, MemoryLimitReached, StopRequested

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
    ("line", "error", "exit_code", "resume"),
    [
        ("", ConfigError("expected x, got y"), 2, None),
        ("", DataError("expected x, got y"), 2, None),
        ("", CheckpointError("expected x, got y"), 1, None),
        ("", OSError(28, "No space left on device"), 1, "python main.py --resume"),
        ("", MemoryLimitReached("too much"), 3, "python main.py --resume"),
        ("", StopRequested(signal.SIGTERM, 0.0), 143, "python main.py --resume"),
        ("walk-forward", KeyboardInterrupt(), 130, "python main.py walk-forward --resume"),
        ("signals", KeyboardInterrupt(), 130, None),
        ("evaluate", OSError(28, "No space left on device"), 1, None),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    error: BaseException,
    exit_code: int,
    resume: str | None,
) -> None:
    def fail(command: ParsedCommand) -> None:
        raise error

    monkeypatch.setattr(ParsedCommand, "run", fail)
    assert main(line.split()) == exit_code
    (shown,) = capsys.readouterr().err.strip().splitlines()
    assert ("continue with" in shown) == (resume is not None)
    assert shown.endswith(resume or "")


def test_help_imports_no_torch() -> None:
    """Only a command that runs pays for what it needs."""
    code = (
        "import sys, main\ntry:\n    main.main(['--help'])\nexcept SystemExit:\n    assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
