"""Runs that end early: what is refused leaves nothing behind, what is stopped names the command that continues it."""

import os
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from main import main
from tests.tiny_run import frame, run, tiny_in
from training.erl_trainer import ERLTrainer
from utils.errors import ConfigError, MemoryLimitReached
from utils.memory_guard import MemoryGuard
from utils.runs.ending import locked

pytestmark = pytest.mark.usefixtures("small_heap", "judge_nothing")


FILES = {
    "notes.md": "# Notes\n",
    "list.txt": "T1\n\nno ticker\n",
    "index.csv": "date,close\n2001-01-01,100\n2001-01-02,dear\n",
}
MISTAKES = {
    "train --data {folder}/data.parquet --investable {folder}/list.txt": "got 'no ticker'",
    "train --benchmark {folder}/index.csv": "close 'dear'",
    "train --synthetic.kind both": "synthetic.kind",
    "train --synthetic.days 1000000000": "got 1,000,000,000 --synthetic.days x 6 --synthetic.stocks x 300 bytes",
    "train --population-size 1000000000": "1,000,000,000 --population-size",
    "walk-forward --synthetic.days 100": "give more data",
    "walk-forward --data {folder}/notes.md": "expected a readable parquet file",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_what_is_refused_leaves_nothing_here_or_in_the_cloud(
    tiny: Path, volume: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    frame(300, 3).to_parquet(tiny.parent / "data.parquet")
    for name, text in FILES.items():
        (tiny.parent / name).write_text(text)
    runs = tiny.parent / "runs"
    words = [*line.format(folder=tiny.parent).split(), "--config", str(tiny), "--profile", "quick"]
    for name in ([], ["--run", "taken"]):
        assert main([*words, "--runs-dir", str(runs), *name]) == 2
        (shown,) = [line for line in capsys.readouterr().err.splitlines() if "WARNING" not in line]
        assert "expected" in shown and MISTAKES[line] in shown and "continue with" not in shown
        assert list(runs.glob("*")) == [] and [path for path in volume.rglob("*") if path.is_file()] == []
    if "list.txt" in line:
        assert run(tiny, "--run", "taken", "--generations", "1") == 0


def test_a_run_that_got_somewhere_is_never_removed(tmp_path: Path) -> None:
    for name, file, is_new in (("begun", "fold-1/metrics.jsonl", True), ("old", "config.json", False)):
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        path.touch()
        with pytest.raises(ConfigError, match="refused"), locked(tmp_path / name, is_new=is_new):
            raise ConfigError("refused")
        assert path.exists()
    with locked(tmp_path / "old", is_new=False):
        with pytest.raises(ConfigError, match="nobody else"), locked(tmp_path / "old", is_new=True):
            pass
        assert (tmp_path / "old" / "config.json").exists()


def stopped(how: str, generation: int, patch: pytest.MonkeyPatch) -> int:
    """Let something stop a run in a generation; returns the exit code."""
    evaluate = ERLTrainer.evaluate_population
    asked: list[str] = []

    def met(self: ERLTrainer) -> Any:
        if self.generation == generation:
            asked.append(how)
            if how != "memory":
                os.kill(os.getpid(), signal.Signals[how])
        return evaluate(self)

    def check(_: MemoryGuard) -> None:
        if "memory" in asked:
            raise MemoryLimitReached("too much")

    patch.setattr(ERLTrainer, "evaluate_population", met)
    patch.setattr(MemoryGuard, "check", check)
    return 3 if how == "memory" else 128 + signal.Signals[how]


def test_a_stopped_run_says_what_is_saved_and_the_command_that_continues_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny, runs = tiny_in(tmp_path), tmp_path / "my runs"
    words = ["--config", str(tiny), "--profile", "quick", "--runs-dir", str(runs), "--run", "it's"]
    resumed = ["--resume", "it's", "--runs-dir", str(runs)]
    for how, generation, saved, further in (
        ("SIGINT", 1, "no generation is saved yet, it begins anew", []),
        ("memory", 2, "generation 1 of 2 is saved", []),
        ("SIGTERM", 3, "generation 2 of 3 is saved", ["--generations", "3"]),
    ):
        handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        with monkeypatch.context() as patch:
            code = stopped(how, generation, patch)
            assert main([*words, *further]) == code
        assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
        assert not (runs / "it's" / "lock").exists()
        *_, last = capsys.readouterr().err.splitlines()
        said, _, command = last.partition(": continue with python main.py ")
        words = shlex.split(command)
        assert said.endswith(f"; {saved}") and sorted(words) == sorted([*resumed, *further])
    assert main(words) == 0
    assert len((runs / "it's" / "metrics.jsonl").read_text().splitlines()) == 3
