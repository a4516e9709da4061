"""Runs that were stopped before their first generation was complete: `--resume` begins them anew."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from main import main
from tests.tiny_run import frame, parameters, records, run, unjudged
from training.erl_trainer import ERLTrainer

INTERRUPTED = 130


@pytest.fixture(autouse=True)
def judge_nothing() -> Iterator[None]:
    with unjudged():
        yield


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def cut_in_its_first_generation(tiny: Path, monkeypatch: pytest.MonkeyPatch, method: str = "evolve_population") -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ERLTrainer, method, interrupt)
        assert run(tiny, "--run", "cut", "--seed", "7", "--generations", "1") == INTERRUPTED
    assert not (tiny.parent / "runs" / "cut" / "checkpoints").exists()


def assert_like_whole(tiny: Path) -> None:
    assert run(tiny, "--run", "whole", "--seed", "7", "--generations", "1") == 0
    assert records(tiny, "cut") == records(tiny, "whole")
    assert parameters(tiny, "cut", 1) == parameters(tiny, "whole", 1)


def test_it_begins_anew_from_its_own_settings(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny, "--run", "earlier", "--generations", "1") == 0
    cut_in_its_first_generation(tiny, monkeypatch)
    assert run(tiny, "--run", "cut") == 2
    assert "continue it with --resume cut" in capsys.readouterr().err
    assert run(tiny, "--resume", "cut", "--seed", "8") == 2
    (tiny.parent / "runs" / "cut" / "metrics.jsonl").write_text('{"generation": 1}\n{"gener')
    assert main(["--runs-dir", str(tiny.parent / "runs"), "--resume"]) == 0
    assert "it begins anew" in capsys.readouterr().out
    assert_like_whole(tiny)


def test_a_fold_begins_anew_on_its_own_days(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before the fold had written down its market."""
    frame(300, 4).to_parquet(tiny.parent / "data.parquet")
    runs = ["--runs-dir", str(tiny.parent / "runs")]
    plan = ["--folds", "1", "--test-windows", "1", "--validation-days", "30", "--generations", "1"]
    data = ["--data", str(tiny.parent / "data.parquet"), "--profile", "quick", "--config", str(tiny)]
    with monkeypatch.context() as patch:
        patch.setattr("training.commands.train.load_market", interrupt)
        assert main(["walk-forward", *data, *plan, *runs, "--run", "walk"]) == INTERRUPTED
    walk = tiny.parent / "runs" / "walk"
    assert [path.name for path in (walk / "fold-1").glob("*.json")] == ["config.json"]
    assert main(["walk-forward", *runs, "--resume"]) == 0
    markets = [json.loads((folder / "market.json").read_text()) for folder in (walk, walk / "fold-1")]
    assert markets[0]["splits"] == markets[1]["splits"]
