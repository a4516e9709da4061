"""Every command that the README and the pages in docs/ show works, as do their example, their links and the file tree.

The commands of the cloud are run by `tests/runs/test_cloud_run.py`, those of the fuel breaks by `tests/fuel_breaks`.
"""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from main import main
from tests.once import computed_once
from tests.tiny_run import TINY, frame, unjudged
from training.commands import features
from training.commands.table import COMMANDS
from utils.config.cli import parse_command
from utils.config.settings import flatten

pytestmark = pytest.mark.usefixtures("small_heap")
ROOT = Path(__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (*sorted(ROOT.glob("[A-Z]*.md")), *sorted(ROOT.glob("docs/**/*.md")))
}
PAPER = ("docs/paper.md", "README.md")
README, ARCHITECTURE = PAGES["README.md"], PAGES["docs/design/architecture.md"]
ALL_PAGES = "\n".join(PAGES.values())
TUTORIAL = PAGES["docs/tutorial.md"]
OTHERS = ALL_PAGES.replace(TUTORIAL, "")
SHOWN = list(dict.fromkeys(re.findall(r"(?m)^python main\.py(?! fuel-breaks| paper| --help).*$", OTHERS)))
"""Every command once, however many pages show it."""
PACKAGES = ("data", "environment", "models", "training", "utils", "benchmarks")
SMALL = {
    "prepare": "--overwrite",
    "features": "--config run.toml",
    "evaluate": "--random-pickers 20 --rivals none",
    "signals": "",
    "audit": "--days 1",
    "report": "",
    "walk-forward": "--config run.toml --generations 1 --jobs 1 --evaluation.random-pickers 20 --folds 1 "
    "--validation-days 30 --rivals none",
}
"""Flags that make a command quick."""


@pytest.fixture(scope="module", autouse=True)
def sheets_once() -> Iterator[None]:
    """Make the sheet of equal features once."""
    with computed_once(features, "feature_sheet"):
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, small_heap: None) -> Path:
    """A working folder with every file that the README's commands name, and a run of one generation."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        data = frame(300, 6)
        shutil.copy(ROOT / "examples" / "own_features.py", "my_features.py")
        data["volume"] = 1000 + np.arange(len(data)) % 7
        data.to_parquet("prices.parquet")
        data.head(280 * 6).to_parquet("before.parquet")
        Path("tickers.txt").write_text("T1\nT2\nT3\nT4\nT5\n")
        Path("run.toml").write_text(TINY)
        Path("space.toml").write_text('["evolution.mutation_strength"]\nlow = 0.01\nhigh = 0.3\nlog = true\n')
        Path("held.csv").write_text("ticker,shares,entry_date,entry_price\nT1,10,2011-01-27,29.5\n")
        Path("mine.py").write_text("def momentum(bars):\n    return bars.close.diff(5)\n")
        shutil.copy(ROOT / "tests" / "policies" / "buyer.py", "other.py")
        data[["date", "ticker"]].assign(score=np.sin(np.arange(len(data)))).to_csv("scores.csv", index=False)
        data[["date", "ticker"]][::3].assign(weight=0.25).to_csv("weights.csv", index=False)
        data[["date", "ticker"]][::7].assign(side="buy", value=20_000.0).to_csv("trades.csv", index=False)
        (folder / "folder_of_csv_files").mkdir()
        for ticker, rows in data.groupby("ticker"):
            rows.drop(columns="ticker").to_csv(f"folder_of_csv_files/{ticker}.csv", index=False)
        data.assign(vix=1.0)[["date", "vix"]].drop_duplicates().to_csv("vix.csv", index=False)
        data[["date", "ticker"]][::50].assign(pe=12.5).to_csv("fundamentals.csv", index=False)
        (folder / "files_of_the_day").mkdir()
        later = data[data["ticker"] == "T1"].tail(1)
        later.assign(date=later["date"] + pd.offsets.BDay(1)).to_csv("files_of_the_day/T1.csv", index=False)
        with unjudged():
            train = ["--config", "run.toml", "--data", "before.parquet", "--generations", "1", "--run"]
            assert [main([*train, run]) for run in ("OTHER", "NAME")] == [0, 0]
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


PARSED = {"--jobs"}
"""Flags of commands that are only parsed, for tests of jobs run them."""


def asked_by(command: str) -> tuple[str, set[str]]:
    """The name of a command, none of training, and its flags."""
    words = command.split()[2:]
    return next((word for word in words[:1] if word[0] != "-"), ""), {word for word in words if word.startswith("--")}


def is_part(command: str, other: str) -> bool:
    """Tell whether a longer command, which runs, asks for all that this one asks for."""
    (name, flags), (longer, more) = asked_by(command), asked_by(other)
    return len(command) < len(other) and name == longer and flags <= more and not more & PARSED


@pytest.mark.parametrize("command", SHOWN)
def test_commands(folder: Path, command: str) -> None:
    """One that is a part of another one is parsed alone."""
    arguments = shlex.split(command)[2:]
    if PARSED & set(arguments) or any(is_part(command, other) for other in SHOWN):
        assert parse_command(arguments, COMMANDS).name == (asked_by(command)[0] or "train")
        return
    if arguments[0] == "evaluate" and "--data" in arguments and "--config" not in arguments:
        arguments += ["--config", "run.toml"]  # of windows that so few days hold
    begins = not {"--resume", "--extend"} & set(arguments)
    train = "--config run.toml --generations 1" if begins else "--generations 2"
    with unjudged():
        assert main([*arguments, *SMALL.get(" ".join(arguments[:1]), train).split()]) == 0


def test_the_commands_of_a_paper_account_in_their_order(folder: Path) -> None:
    shutil.copy("before.parquet", "prices.parquet")
    shown, short = (re.findall(r"^python main\.py paper .*$", PAGES[page], re.MULTILINE) for page in PAPER)
    assert set(short) <= set(shown)
    for command in shown:
        assert main(shlex.split(command)[2:]) == 0, command


def test_the_tutorial_in_its_order(folder: Path) -> None:
    (own,) = re.findall(r"```python\n(.*?)```", TUTORIAL, flags=re.DOTALL)
    Path("my_features.py").write_text(own)
    commands = [shlex.split(line)[2:] for line in re.findall(r"^python main\.py .*$", TUTORIAL, flags=re.MULTILINE)]
    assert len(commands) == 8
    with unjudged():
        for command in commands:
            train = "--config run.toml --generations 1" if command[0].startswith("--") else ""
            assert main([*command, *SMALL.get(command[0], train).split()]) == 0, command


def test_the_commands_are_there() -> None:
    shown = {shlex.split(line)[2] for line in SHOWN if len(line.split()) > 2}
    assert {"prepare", "evaluate", "signals", "report", "walk-forward", "--resume", "--extend"} <= shown
    setup = re.findall(r"^python3 -m venv .*$", README, flags=re.MULTILINE)
    assert [line.rsplit("bin/", 1)[1] for line in setup] == ["python main.py", "python -m pytest"]
    assert len(README.splitlines()) <= 150


def test_the_example(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", ARCHITECTURE, flags=re.DOTALL)
    exec(compile(example, "docs/design/architecture.md", "exec"), {})
    assert "'trades'" in capsys.readouterr().out


def test_requirements_and_benchmarks_that_are_shown_exist() -> None:
    named = set(re.findall(r"pip install (?:-\w+ )*-r ([\w.-]+)", ALL_PAGES))
    assert len(named) >= 4 and all((ROOT / name).is_file() for name in named)
    for module in re.findall(r"python -m (benchmarks[\w.]*)", ALL_PAGES):
        path = ROOT / module.replace(".", "/")
        source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        assert '__name__ == "__main__"' in source.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_lead_somewhere(page: str) -> None:
    text, folder = PAGES[page], (ROOT / page).parent
    for target in re.findall(r"\]\(((?!https?:)[^)]*)\)", text):
        name, _, anchor = target.partition("#")
        path = folder / name if name else ROOT / page
        assert path.is_file(), target
        titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    paths = re.findall(rf"`((?:{'|'.join(PACKAGES)}|tests|docs|examples)/[\w./-]*)", text)
    assert [path for path in paths if not (ROOT / path).exists() and not path.endswith(".parquet")] == []


def test_the_file_tree_names_every_package_and_only_what_exists() -> None:
    lines = re.search(r"## File tree.*?```\n(.*?)```", ARCHITECTURE, flags=re.DOTALL)
    assert lines
    named: list[str] = []
    folders: list[str] = []
    for indent, name in re.findall(r"^( *)(\S+) ", lines[1], flags=re.MULTILINE):
        folders[len(indent) // 2 :] = [name]
        named.append("".join(folders))
    assert [name for name in named if not (ROOT / name).exists()] == []
    packages = {file.parent for top in PACKAGES for file in (ROOT / top).rglob("__init__.py")}
    assert {f"{path.relative_to(ROOT).as_posix()}/" for path in packages} <= set(named)


def test_the_fields_of_the_metrics_are_those_that_the_page_names(trained: Path) -> None:
    lines = (trained / "runs" / "NAME" / "metrics.jsonl").read_text().splitlines()
    recorded = {name for line in lines for path in flatten(json.loads(line)) for name in path.split(".")}
    rows = re.findall(r"(?m)^\| `.*$", PAGES["docs/runs.md"].split("## The champion")[0])
    shown = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    learned = {"critic_loss", "actor_loss", "critic_gradient_norm", "actor_gradient_norm", "skipped_updates"}
    assert recorded | learned == shown
