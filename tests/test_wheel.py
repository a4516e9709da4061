"""The wheel: it holds all that the program reads, and runs from another folder without the checkout."""

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.test_project import ROOT, lines
from tests.tiny_run import TINY
from utils import VERSION

setuptools = pytest.importorskip("setuptools")
if Version(setuptools.__version__) < Version("77"):
    pytest.skip("setuptools is older than pyproject.toml asks for", allow_module_level=True)
PACKAGES = ("data", "environment", "models", "training", "utils")
EXTRAS = ("alpaca", "track")
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since the build leaves folders behind."""
    copy, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for path in tracked():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes((ROOT / path).read_bytes())
    subprocess.run([sys.executable, "-c", BUILD, str(built)], cwd=copy, check=True, capture_output=True)
    (found,) = built.glob("*.whl")
    return found


def tracked() -> list[str]:
    """Files of the checkout, but for pictures and tests."""
    found = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if found.returncode:
        pytest.skip("no git checkout")
    return [name for name in found.stdout.splitlines() if not name.startswith(("tests/", "docs/", "benchmarks/"))]


def test_it_holds_the_program_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        held = {name for name in file.namelist() if ".dist-info/" not in name}
        metadata = Parser().parsestr(file.read(f"erl_trader-{VERSION}.dist-info/METADATA").decode())
    assert held == {name for name in tracked() if name.split("/")[0] in (*PACKAGES, "main.py")}
    assert {f"{package}/py.typed" for package in PACKAGES} <= held
    wanted = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    base = {str(one) for one in wanted if one.marker is None}
    assert base == {str(Requirement(line)) for line in lines("requirements.txt")}
    for extra in EXTRAS:
        own = {one.name for one in wanted if one.marker is not None and one.marker.evaluate({"extra": extra})}
        assert own == {Requirement(line).name for line in lines(f"requirements-{extra}.txt")}


def test_it_runs_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    installed, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    zipfile.ZipFile(wheel).extractall(installed)
    elsewhere.mkdir()
    (entry,) = installed.glob("*.dist-info/entry_points.txt")
    assert "erl-trader = main:main" in entry.read_text()
    (elsewhere / "tiny.toml").write_text(TINY)
    rows = "".join(f"2020-01-{day:02d},AAA,{day},{day},{day},{day}\n" for day in range(6, 11))
    (elsewhere / "prices.csv").write_text("Date,Ticker,Open,High,Low,Close\n" + rows)
    train = "--profile quick --config tiny.toml --run first --generations 1"
    start = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); import main, training.train as train\n"
        "train._finish = lambda trainer, run, *_: run.write_summary({})  # without a judgement, which takes a while\n"
        "sys.exit(any(main.main(words.split()) for words in sys.argv[1:]))"
    )
    commands = (train, "report first", "prepare prices.csv prices.parquet", "--version")
    done = subprocess.run([sys.executable, "-I", "-c", start, *commands], cwd=elsewhere, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"erl-trader {VERSION}\n")
    assert "<html" in (elsewhere / "runs" / "report.html").read_text()
    assert (elsewhere / "prices.parquet").is_file() and (elsewhere / "prices.html").is_file()
