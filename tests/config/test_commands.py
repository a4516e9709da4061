"""The table of commands, and how the program ends: exit codes, and a hint where a run goes on."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from matplotlib.rcsetup import validate_backend

from main import main
from utils.config.cli import ParsedCommand
from utils.errors import CheckpointError, ConfigError, MemoryLimitReached, Remains, StopRequested

pytestmark = pytest.mark.usefixtures("small_heap")
ROOT = Path(__file__).parents[2]


def test_only_the_table_imports_the_fuel_breaks() -> None:
    folders = ("data", "environment", "models", "training", "utils")
    files = [ROOT / "main.py", *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    outside = [path for path in files if "fuel_breaks" not in str(path.relative_to(ROOT))]
    importing = [path for path in outside if re.search(r"(?m)^\s*(from|import) .*fuel_breaks", path.read_text())]
    assert set(importing) <= {ROOT / "training" / "commands" / "table.py"}


@pytest.mark.parametrize(
    ("line", "error", "exit_code"),
    [
        ("", ConfigError("expected x, got y"), 2), ("", CheckpointError("expected x, got y"), 1),
        ("", OSError(28, "No space left on device"), 1), ("", MemoryLimitReached("too much"), 3),
        ("", StopRequested(signal.SIGTERM, 0.0), 143), ("walk-forward", KeyboardInterrupt(), 130),
    ],
)  # fmt: skip
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, error: BaseException, exit_code: int
) -> None:
    monkeypatch.setattr(ParsedCommand, "run", mock.Mock(side_effect=error))
    assert main(line.split()) == exit_code
    (shown,) = capsys.readouterr().err.strip().splitlines()
    assert "continue with" not in shown


@pytest.mark.parametrize(
    ("line", "folder", "command"),
    [
        ("", ROOT, "python main.py --resume 'a run' --runs-dir x"),
        ("--extend", ROOT, "python main.py --resume 'a run' --runs-dir x"),
        ("walk-forward --folds 2 --jobs 3", ROOT, "python main.py walk-forward --resume 'a run' --runs-dir x --jobs 3"),
        ("fuel-breaks train", Path("/"), f"python {ROOT}/main.py fuel-breaks train --resume 'a run' --runs-dir x"),
    ],
)
def test_a_stopped_run_names_the_command_that_continues_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, folder: Path, command: str
) -> None:
    error = StopRequested(signal.SIGTERM, 0.0)
    error.remains = Remains("generation 2 of 9 is saved", ("--resume", "a run", "--runs-dir", "x"))
    monkeypatch.setattr(ParsedCommand, "run", mock.Mock(side_effect=error))
    monkeypatch.chdir(folder)
    assert main(line.split()) == 143
    (shown,) = capsys.readouterr().err.strip().splitlines()
    assert shown.endswith(f"stopped by SIGTERM; generation 2 of 9 is saved: continue with {command}")


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "module://ipympl.backend_nbagg"])
def test_the_program_draws_whatever_backend_a_notebook_hands_down(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    monkeypatch.setenv("MPLBACKEND", backend)
    monkeypatch.setattr("sys.argv", ["main.py", "--version"])
    assert main() == 0 and validate_backend(os.environ["MPLBACKEND"]) == "agg"


@pytest.mark.slow
def test_help_is_the_same_without_docstrings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stripped = [sys.executable, "-OO", str(ROOT / "main.py"), "--help-all"]
    found = subprocess.run(stripped, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    with pytest.raises(SystemExit):
        main(["--help-all"])
    assert found == capsys.readouterr().out and "None" not in found


HEAVY = "torch matplotlib pandas talib scipy scipy.stats lightgbm gymnasium google.cloud jinja2"
PROBE = """
import sys, main
try:
    code = main.main(sys.argv[2:])
except SystemExit as end:
    code = end.code
print(code, *(name for name in sys.argv[1].split() if name in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "code", "loaded"),
    [
        ("--help", 0, ""),
        ("--help-all", 0, "scipy"),  # of the kinds of market, which it lists
        ("--extend none --run a/b", 2, ""),
        ("serve --host 999.1.1.1 --runs-dir .", 2, ""),
        ("prepare none.csv none.parquet", 2, "pandas jinja2"),
        ("signals --run none --runs-dir .", 2, "torch pandas talib scipy gymnasium"),
    ],
)
def test_a_command_imports_only_what_it_needs(line: str, code: int, loaded: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROBE, HEAVY, *line.split()]
    clear = {name: value for name, value in os.environ.items() if not name.startswith("CLOUD_")}
    found = subprocess.run(
        command, cwd=tmp_path, env=clear | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1].split() == [str(code), *loaded.split()]
