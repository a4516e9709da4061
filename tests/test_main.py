"""The program as a user runs it: whole runs on a tiny market, resuming, and mistakes."""

import dataclasses
import gc
import html
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from main import main
from tests.tiny_run import frame, records, run, unjudged
from training.commands.table import COMMANDS
from training.evaluation import supervised
from training.run.results import status_block
from utils.config.cli import parse_command
from utils.config.trader import Config
from utils.runs.run_log import RunLog

pytestmark = pytest.mark.usefixtures("small_heap")
POLICIES = {
    "champion",
    *("best agent", "random picker", "equal weight", "buy and hold", "equal risk"),
    *("60-day momentum", "5-day reversal", "12-1 momentum", "low volatility", "filled at the next close"),
}


def test_a_run_leaves_what_people_look_at(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "_ROUNDS", 3)
    assert run(tiny, "--run", "one", "--rivals", "learned") == 0
    folder = tiny.parent / "runs" / "one"
    for name in ("learning.png", "equity.png", "memory.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    assert json.loads((folder / "config.json").read_text())["generations"] == 2
    assert list(folder.glob("tensorboard/events*"))
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["environments"], summary["agents"], summary["replay_buffers"]) == (2, 5, 1)
    sizes = ("generations", "population_size", "days", "columns", "features")
    assert [summary[name] for name in sizes] == [2, 4, 300, 6, 9]
    assert summary["replay_capacity"] == 80 and set(summary["champion"]["return_percent"]) >= {*POLICIES, "ridge"}
    assert 0 < summary["replay_size"] <= 80 and summary["replay_bytes_per_transition"] <= 256
    assert len(summary["uss_mb_per_generation"]) == 2 and all(len(v) == 2 for v in summary["seconds"].values())
    policies = {*POLICIES, "ridge", "LightGBM", "planted rule", "oracle"}
    assert set(json.loads((folder / "results.json").read_text())["policies"]) == policies
    page = html.unescape((folder / "report.html").read_text())
    (again,) = re.findall(r"<pre><code>(python main.py --profile .*?)</code>", page)
    repeated = parse_command(shlex.split(again)[2:], COMMANDS).arguments.settings
    assert dataclasses.replace(repeated, run="one") == RunLog.open(folder.parent, "one").settings(Config)
    shown, log = capsys.readouterr().out, (folder / "run.log").read_text()
    for text in (
        f", run {folder}: 2 generations of 4 agents, quick profile, seed 0, on cpu\n",
        "Loaded: 300 days, 6 stocks, 9 features from the built-in market",
        "Environments: training on 194 days from 2000-01-25 to 2000-10-20, validation on 25 days",
        f"Replay      {summary['replay_size']} / 80, ready",
        "Evidence    The agents' orders are worth ",
        "environments 2, agents 5, replay buffers 1; too early to tell",
    ):
        assert text in shown, text
    assert "memory [Trainer initialized (baseline)] RAM " in log and "memory [" not in shown
    for text in ("\nGen 2: After generation ", "memory growth since 'Trainer initialized (baseline)'"):
        assert text in log and text in shown, text
    seconds = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["seconds"]
    phases = ("fit", "evaluate", "evolve", "train", "validate", "clean_up", "other")
    assert seconds["total"] == pytest.approx(sum(seconds.get(name, 0.0) for name in phases)) and seconds["other"] >= 0
    for text in (shown, log):
        watched = [int(number) for number in re.findall(r"Generation (\d+) / 2\n", text)]
        assert watched == [1, 2]
        begins = [text.index("Initializing persistent"), text.index("Generation 1 / 2\n")]
        phases = ("Evaluating agents", "Evolving population: 1 -> 2", "Training agents", "Validating agent")
        begins += [text.index(f"{phase}...\n") for phase in phases]
        assert begins == sorted(begins) and text.index("Generation 1 / 2 complete") > begins[-1]
    (evaluate,) = re.findall(r"<pre><code>(python main.py evaluate .*?)</code>", page)
    assert "--random-pickers" in evaluate and main(shlex.split(evaluate)[2:]) == 0
    assert (folder / "evaluation-validation" / "results.json").read_text() == (folder / "results.json").read_text()
    assert "Training range: days 16 to 209;" in shown  # 70% of 300 days, after a context of 16
    assert "25 days at the end are left out, for the holdout" in shown
    # A run that was stopped before its judgement is only judged, and alike.
    with unjudged():
        assert run(tiny, "--run", "last") == 0
    assert run(tiny, "--resume", "last", "--rivals", "learned") == 0
    assert records(tiny, "last") == records(tiny, "one")
    judged = [json.loads((folder.parent / name / "results.json").read_text()) | {"run": ""} for name in ("one", "last")]
    assert judged[0] == judged[1]


def test_own_data_trains_and_only_listed_tickers_are_bought(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path goes from where the run began, unless the file is there from here as well."""
    (tiny.parent / "elsewhere").mkdir()
    frame(340, 6).assign(volume=1000).to_parquet(tiny.parent / "train.parquet")
    (tiny.parent / "listed.txt").write_text("T1\nT3\nT4\nT5\n")
    words = ["--profile", "quick", "--data", "train.parquet", "--investable", "listed.txt"]
    words += ["--env.volume-cap", "5", "--env.delisting-loss", "30"]
    monkeypatch.chdir(tiny.parent)
    with unjudged():
        assert main(["--config", tiny.name, "--run", "base", *words]) == 0
    monkeypatch.chdir(tiny.parent / "elsewhere")
    assert main(["--resume", "base", "--runs-dir", "../runs", "--generations", "3"]) == 0
    assert [record["generation"] for record in records(tiny, "base")] == [1, 2, 3]
    summary = json.loads((tiny.parent / "runs" / "base" / "summary.json").read_text())
    assert (summary["columns"], summary["investable"]) == (6, 4)
    assert set(json.loads((tiny.parent / "runs" / "base" / "results.json").read_text())["policies"]) == POLICIES


def test_a_run_of_another_version_gets_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text('{"seed": 1, "a_setting_that_went": 2}')
    for words in (["--resume"], ["evaluate", "--run", "old"]):
        assert main([*words, "--runs-dir", str(tmp_path)]) == 2
        (error,) = [line for line in capsys.readouterr().err.splitlines() if " INFO " not in line]
        assert "expected settings of this version" in error and "a_setting_that_went" in error


@pytest.mark.parametrize(("is_terminal", "report"), [(False, "auto"), (True, "auto"), (True, "on")])
def test_memory_is_reported_on_request(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool, report: str
) -> None:
    """A person's own count of the objects sees all of the trainer's, too."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    seen = list[Counter[str]]()

    def block(*given: Any) -> str:
        seen.append(Counter(type(item).__name__ for item in gc.get_objects()))
        return status_block(*given)

    monkeypatch.setattr("training.run.results.status_block", block)
    with unjudged():
        assert run(tiny, "--generations", "1", "--memory-report", report) == 0
    assert [(one["TradingEnvironment"], one["DDPGAgent"]) for one in seen] == [(2, 5)]
    shown, times = capsys.readouterr().out, int(report == "on")
    for text in ("memory [Gen 1: After train_population] RAM ", "memory trend\n", "memory growth since 'Trainer init"):
        assert shown.count(text) == times, text
    counts = r"\[Gen 1: After evolve_population\] .*DDPGAgent 4, ReplayBuffer 1, .*, lists [\d,]+, dicts [\d,]+"
    assert len(re.findall(counts, shown.replace("\n  ", " "))) == times
    if is_terminal:
        assert not [line for line in shown.splitlines() if len(line) > 80 and str(tiny.parent) not in line]
    assert "GPU" not in shown and "largest objects\n" not in shown


def test_a_run_without_a_holdout_trains_to_the_end_and_says_so(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its record, and so resuming, evaluating and extending, know that there is none."""
    assert run(tiny, "--run", "all", "--split.holdout-fraction", "0") == 0
    shown, runs = capsys.readouterr().out, str(tiny.parent / "runs")
    assert "; 0 days at the end are left out" in shown and "--split holdout" not in shown
    record = json.loads((tiny.parent / "runs" / "all" / "market.json").read_text())
    assert record["splits"]["validation"][1] == record["splits"]["holdout"][0] > record["splits"]["holdout"][1]
    with unjudged():
        assert run(tiny, "--resume", "all", "--generations", "3") == 0
    assert main(["signals", "--run", "all", "--runs-dir", runs]) == 0
    assert main(["evaluate", "--run", "all", "--runs-dir", runs, "--split", "holdout", "--spend-look"]) == 2
    assert "expected data with a holdout" in capsys.readouterr().err
