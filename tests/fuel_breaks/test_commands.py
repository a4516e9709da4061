"""The fuel-break commands as a user runs them: train, resume, stop, evaluate, show, and mistakes."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from benchmarks.learning.fuel_breaks import compare, memory_growth
from main import main
from tests.fuel_breaks.dqn_cases import TINY
from training.commands.table import COMMANDS
from training.fuel_breaks.config import FuelBreakRunConfig, run_hash
from training.fuel_breaks.dqn_trainer import DQNTrainer
from training.fuel_breaks.evaluate_command import paired_lead
from utils.config.cli import parse_command
from utils.config.settings import flatten, from_dict, nest, to_dict

VOLATILE = ("seconds", "memory")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a settings file that makes a run take a second."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    return tmp_path


def train(*words: str) -> int:
    return main(["fuel-breaks", "train", "--config", "tiny.toml", *words])


def records(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in VOLATILE} for line in lines]


def test_train_evaluate_show(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert train("--run", "one") == 0
    run = folder / "runs" / "fuel-breaks" / "one"
    assert [record["episodes"] for record in records(run)] == [4, 8]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["episodes"] == 8 and summary["replay_bytes_per_transition"] < 200
    log = (run / "run.log").read_text()
    for words in ("GPU 0 MB allocated", "clean-ups gave back", "replay 24 / 80", "losses", "collection times"):
        assert words in log, words
    assert main(["fuel-breaks", "evaluate", "--tiles", "4", "--scenario-seeds", "1", "--threads", "1"]) == 0
    result = json.loads((run / "evaluation-test.json").read_text())
    assert len(result["reduction_percent"]["network"]) == 4 and len(result["lead_of_network"]) == 6
    own, other = (np.array(result["reduction_percent"][name]) for name in ("network", "random"))
    assert result["lead_of_network"]["random"]["mean"] == pytest.approx((own - other).mean())
    assert "generated terrain" in caplog.text
    assert main(["fuel-breaks", "show", "--run", "one", "--tile", "2", "--threads", "1"]) == 0
    pictures = ["tile-test-2/breaks.png", "tile-test-2/burn_probability.png", "learning.png", "evaluation-test.png"]
    for name in pictures:
        with Image.open(run / name) as image:
            assert image.width > 600 and len(image.convert("RGB").getcolors(2**24) or []) > 20, name
    with Image.open(run / "tile-test-2" / "fire.gif") as image:
        assert getattr(image, "n_frames", 1) == 25


def test_resume_is_exact(folder: Path) -> None:
    assert train("--run", "whole", "--episodes", "16") == 0
    assert train("--run", "parts", "--episodes", "8") == 0
    assert main(["fuel-breaks", "train", "--resume", "parts", "--episodes", "16"]) == 0
    runs = folder / "runs" / "fuel-breaks"
    assert len(records(runs / "whole")) == 4 and records(runs / "whole") == records(runs / "parts")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_at_a_safe_point_and_the_run_goes_on(
    number: signal.Signals, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert train("--run", "whole", "--episodes", "12") == 0
    play = DQNTrainer.play_round

    def play_and_stop(self: DQNTrainer) -> None:
        if self.episodes == 8:
            os.kill(os.getpid(), number)
        play(self)

    with monkeypatch.context() as patched:
        patched.setattr(DQNTrainer, "play_round", play_and_stop)
        assert train("--run", "cut", "--episodes", "12") == 128 + number
    assert "fuel-breaks train --resume" in caplog.text
    assert main(["fuel-breaks", "train", "--resume", "--episodes", "12"]) == 0
    runs = folder / "runs" / "fuel-breaks"
    assert records(runs / "cut") == records(runs / "whole")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--lanse", "3"], "the nearest is '--lanes'"),
        (["trian"], "the nearest is 'fuel-breaks train'"),
        (["train", "--landscape", "nowhere.npz"], "expected a landscape as .npz"),
        (["train", "--landscape", "tiny.toml"], "expected a landscape as .npz"),
        (["train", "--lanes", "20"], "multiple of lanes-per-tile"),
        (["train", "--minutes", "0", "--episodes", "0"], "minutes > 0 or episodes > 0"),
        (["train", "--run", "a", "--resume", "b"], "--run or --resume"),
        (["train", "--resume"], "expected a run to resume"),
        (["train", "--config", "no.toml"], "readable TOML"),
        (["train", "--device", "tpu"], "auto, cpu, cuda"),
        (["evaluate", "--run", "nothing"], "expected a run in"),
        (["evaluate", "--split", "train"], "expected validation or test"),
        (["evaluate", "--scenario-seeds", "0"], "scenario-seeds >= 1"),
        (["show", "--tile", "-1"], "tile >= 0"),
    ],
)
def test_mistakes_end_with_2(folder: Path, words: list[str], message: str, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["fuel-breaks", *words]) == 2
    assert message in caplog.text and not Path("runs").exists()


def test_mistakes_on_a_run(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert train("--run", "one", "--episodes", "4") == 0
    assert main(["fuel-breaks", "train", "--resume", "one", "--learning.learning-rate", "0.1"]) == 2
    assert main(["fuel-breaks", "show", "--tile", "500"]) == 2
    assert train("--run", "one") == 2
    assert train("--run", "large", "--memory-limit-mb", "1") == 3
    # Its minutes and episodes are spent: it ends as it is.
    assert main(["fuel-breaks", "train", "--resume", "one", "--episodes", "4"]) == 0
    for words in ("with which the run began", "expected a test tile from 0 to", "expected a new name for --run"):
        assert words in caplog.text, words
    description = folder / "runs" / "fuel-breaks" / "one" / "landscape.json"
    description.write_text(json.dumps({**json.loads(description.read_text()), "sha256": "other"}))
    assert main(["fuel-breaks", "evaluate"]) == 2
    assert "got another; give --landscape" in caplog.text


def test_settings_come_from_flags_over_the_file(folder: Path) -> None:
    words = ["fuel-breaks", "--config", "tiny.toml", "--lanes", "8", "--env.moisture.dead-1h-percent", "6"]
    command = parse_command(words, COMMANDS)
    settings: Any = command.arguments
    assert command.name == "fuel-breaks train"
    assert (settings.settings.learning.lanes, settings.settings.env.moisture.dead_1h_percent) == (8, 6.0)
    assert settings.settings.env.budget_cells == 3 and "env.moisture.dead_1h_percent" in command.explicit


@pytest.mark.parametrize("command", ["train", "evaluate", "show"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["fuel-breaks", command, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert f"main.py fuel-breaks {command}" in shown and "--run" in shown
    assert not re.search(r"--settings", shown)


def test_the_hash_counts_what_shapes_results() -> None:
    base = FuelBreakRunConfig()

    def changed(**values: Any) -> FuelBreakRunConfig:
        return from_dict(nest({**flatten(to_dict(base)), **values}), FuelBreakRunConfig)

    for same in ({"minutes": 3.0}, {"runs_dir": "x"}, {"env.cached_states": 9}, {"device": "cpu"}):
        assert run_hash(changed(**same)) == run_hash(base)
    for other in ({"seed": 3}, {"learning.lanes": 32}, {"env.budget_cells": 9}, {"landscape": "a/b.npz"}):
        assert run_hash(changed(**other)) != run_hash(base)
    assert run_hash(changed(landscape="a/b.npz")) == run_hash(changed(landscape="c/b.npz"))


def test_paired_leads_by_hand() -> None:
    generator = np.random.default_rng(0)
    other = generator.normal(20, 5, 40)
    own = other + generator.normal(1, 1, 40)
    lead, difference = paired_lead(own, other), own - other
    t = difference.mean() / (difference.std(ddof=1) / np.sqrt(40))
    assert lead.mean == pytest.approx(difference.mean())
    assert lead.p_value_t == pytest.approx(2 * stats.t.sf(abs(t), 39))
    assert lead.p_value_wilcoxon < 0.01 and lead.share_better == (difference > 0).mean()
    reach = 1.96 * difference.std(ddof=1) / np.sqrt(40)
    assert np.allclose(lead.interval, (lead.mean - reach, lead.mean + reach), atol=0.1)
    same = paired_lead(own, own)
    assert same.mean == 0 and np.isnan(same.p_value_t) and same.interval == (0.0, 0.0)


def test_benchmark_compares_means_over_seeds(folder: Path) -> None:
    seeds = [{"reduction_percent": {"network": [3.0, 5, 7], "random": [1.0, 2, 3]}}]
    seeds.append({"reduction_percent": {"network": [5.0, 7, 9], "random": [1.0, 2, 3]}})
    result = compare(seeds)
    assert result["network_by_seed"] == [5.0, 7.0] and result["tiles"] == 3
    assert result["reduction_percent"] == {"network": 6.0, "random": 2.0}
    assert result["lead"]["random"]["mean"] == 4.0
    arguments: Any = parse_command(["fuel-breaks", "--config", "tiny.toml"], COMMANDS).arguments
    growth = memory_growth(arguments.settings, 192)
    assert growth["episodes"] == 192 and "mb_per_100_episodes_past_60" in growth
    assert "mb_per_100_episodes_past_600" not in growth
