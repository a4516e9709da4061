"""The fuel-break commands as a user runs them: train, resume, stop, evaluate, show, and mistakes."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy import stats

from benchmarks.learning.fuel_breaks import compare
from data.fuel_breaks.landscape import generated_landscape
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from main import main
from models.fuel_breaks.config import QNetworkConfig
from tests.fuel_breaks.run_cases import TINY, run_config
from training.fuel_breaks import policies
from training.fuel_breaks.config import FuelBreakRunConfig, FuelBreakTrainArguments
from training.fuel_breaks.dqn_trainer import DQNTrainer
from training.fuel_breaks.evaluate_command import paired_lead
from training.fuel_breaks.pictures import draw_learning
from training.fuel_breaks.run import GENERATED, PRIOR, UNTRAINED, caveats, standing
from training.fuel_breaks.train_command import run_train
from utils.progress import Reporter

SHOWN = (Path(__file__).parents[2] / "docs" / "fuel_breaks.md").read_text(encoding="utf-8")
SHOWN_COMMANDS = re.findall(r"^python main\.py (fuel-breaks .*)$", SHOWN, flags=re.MULTILINE)
VOLATILE = ("seconds", "memory")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a settings file that makes a run take a second."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(TINY)
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of two generations; not to be changed."""
    path = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(path)
        Path("tiny.toml").write_text(TINY)
        assert train("--run", "one") == 0
    return path


@pytest.fixture
def trained_folder(folder: Path, trained: Path) -> Path:
    """A working folder with a copy of the run."""
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures, most of a tiny run's time, are not written where a test does not look at them."""
    monkeypatch.setattr("utils.pictures.save_figure", lambda figure, path: None)


def train(*words: str) -> int:
    return main(["fuel-breaks", "train", "--config", "tiny.toml", *words])


def records(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in VOLATILE} for line in lines]


def test_a_run_leaves_records_a_summary_and_a_log(trained: Path) -> None:
    run = trained / "runs" / "fuel-breaks" / "one"
    assert [record["episodes"] for record in records(run)] == [4, 8]
    summary = json.loads((run / "summary.json").read_text())
    untrained = summary["validation"]["untrained"]
    assert all(record["validation"]["untrained"] == untrained for record in records(run))
    assert summary["episodes"] == 8 and summary["replay_bytes_per_transition"] < 2600
    assert len(summary["rss_mb_per_generation"]) == 2
    log = (run / "run.log").read_text()
    for words in (
        "GPU 0 MB allocated",
        "clean-ups gave back",
        "replay 24 / 80",
        "losses",
        "collection times",
        "clean-up 1 after episodes",
    ):
        assert words in log, words


def test_the_learning_curve_begins_with_the_untrained_network(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("utils.pictures.save_figure", lambda figure, path: drawn.append(figure))
    own = records(trained / "runs" / "fuel-breaks" / "one")
    own[-1]["validation"]["agent"] = 50.0
    draw_learning(own, Path("learning.png"), None)
    curves = {str(line.get_label()).split("\n")[0]: line.get_xydata().tolist() for line in drawn[0].axes[0].lines}  # type: ignore[union-attr]
    untrained = own[0]["validation"]["untrained"]
    assert curves["network"][0] == curves["best network so far"][0] == [0, untrained]
    assert curves["network"][1:] == [[4, own[0]["validation"]["agent"]], [8, 50.0]]
    assert len({line.get_color() for line in drawn[0].axes[0].lines}) == len(curves) == 4


def test_a_result_of_generation_0_is_called_that_of_the_baseline(trained: Path) -> None:
    run = trained / "runs" / "fuel-breaks" / "one"
    summary, log = json.loads((run / "summary.json").read_text()), (run / "run.log").read_text()
    assert (summary["validation"]["best_generation"] == 0) == (PRIOR in summary["notes"]) == (f"note: {PRIOR}" in log)
    config = FuelBreakRunConfig()
    blank = dataclasses.replace(config, network=QNetworkConfig(downstream_prior=False))
    assert caveats(config, {"best_generation": 0}) == [GENERATED, PRIOR]
    assert caveats(config, {"best_generation": 3}) == [GENERATED]
    assert caveats(dataclasses.replace(blank, landscape=Path("land.npz")), {"best_generation": 0}) == [UNTRAINED]


def test_the_commands_of_the_docs(trained_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    after_training = [command for command in SHOWN_COMMANDS if command != "fuel-breaks train"]
    assert {"evaluate", "show"} <= {
        shlex.split(command)[1] for command in after_training
    } and "fuel-breaks train" in SHOWN_COMMANDS
    for command in after_training:
        assert main(shlex.split(command)) == 0, command
    run = trained_folder / "runs" / "fuel-breaks" / "one"
    result = json.loads((run / "evaluation-test.json").read_text())
    tiles = len(result["reduction_percent"]["network"])
    assert tiles >= 3 and len(result["lead_of_network"]) == 6
    own, other = (np.array(result["reduction_percent"][name]) for name in ("network", "random"))
    assert result["lead_of_network"]["random"]["mean"] == pytest.approx((own - other).mean())
    assert "generated terrain" in caplog.text
    (drawn,) = run.glob("tile-test-*")
    pictures = [drawn / "breaks.png", drawn / "burn_probability.png", run / "learning.png", run / "evaluation-test.png"]
    for path in pictures:
        with Image.open(path) as image:
            assert image.width > 600 and len(image.convert("RGB").getcolors(2**24) or []) > 20, path
    with Image.open(drawn / "fire.gif") as image:
        assert getattr(image, "n_frames", 1) == 25


class Clock:
    """A clock that work moves, and the reporter of a pipe that asks it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self._patch = 0.0, monkeypatch
        self.reporter = Reporter(lambda: self.now, poll_seconds=1e9)
        monkeypatch.setattr("utils.progress.REPORTER", self.reporter)

    def add(self, kind: Any, name: str, seconds: float) -> None:
        """Let a method take this time."""
        work = getattr(kind, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            self.now += seconds
            self.reporter.check()
            return work(*arguments, **named)

        self._patch.setattr(kind, name, timed)


@pytest.mark.usefixtures("folder", "no_pictures")
def test_a_run_keeps_to_its_minutes_and_names_its_folder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(monkeypatch)
    clock.add(DQNTrainer, "play_round", 7)
    clock.add(policies, "reductions", 5)
    for minutes, expected in ((1.0, 55), (0.01, 22)):
        clock.now = 0.0
        config = run_config(minutes=minutes, episodes=0, generation_episodes=16, run=f"of-{minutes}")
        summary = run_train(FuelBreakTrainArguments(config), frozenset(), lambda: clock.now)
        # Two validations before; rounds of 7 s, as long as another and a validation fit, but at least one.
        assert clock.now == expected and summary["minutes"] * 60 == pytest.approx(expected)
        assert f"run runs/fuel-breaks/of-{minutes}" in caplog.text


@pytest.mark.usefixtures("no_pictures")
def test_long_work_in_a_pipe_says_what_is_left(
    trained_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(monkeypatch)
    clock.add(VectorFuelBreakEnvironment, "step", 31)
    config = dataclasses.replace(run_config(), run="slow", runs_dir=trained_folder / "runs" / "fuel-breaks")
    run_train(FuelBreakTrainArguments(config), frozenset(), lambda: clock.now)
    assert "placing breaks: 1 of 4 steps" in caplog.text
    assert re.search(r"training: 4 of 16 episodes, \d\d:\d\d left \(4 episodes, generation 1\)", caplog.text)
    assert main(["fuel-breaks", "evaluate", "--run", "one", "--scenario-seeds", "1"]) == 0
    assert re.search(r"evaluating: 2 of 7 methods, \d\d:\d\d left; placing breaks: \d of 3 steps", caplog.text)


@pytest.mark.usefixtures("no_pictures")
def test_a_network_that_learned_nothing_is_called_so_first(
    trained_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scores = iter([30.0, 30.0, 12.0, 14.0])  # heuristic, untrained, two generations
    with monkeypatch.context() as patched:
        patched.setattr(policies, "reductions", lambda *_, **__: np.array([next(scores)]))
        assert train("--run", "bad") == 0
    worse = "16.00 points below the untrained network, 16.00 points below adaptive downstream value"
    first = [message.split("\n")[0] for message in caplog.messages]
    assert (
        f"Generation 2: network {worse}" in first and f"trained network: 14.00 % on validation tiles, {worse}" in first
    )
    reductions = {name: np.full(3, value) for name, value in {"network": 20.0, "random": 8.0, "DomiRank": 21.5}.items()}
    monkeypatch.setattr("training.fuel_breaks.evaluate_command.judge", lambda *_: reductions)
    assert main(["fuel-breaks", "evaluate", "--run", "one"]) == 0
    lines = [message.split("\n")[0] for message in caplog.messages]
    assert "network: 20.00 % on 3 test tiles, 1.50 points below the best baseline, DomiRank" in lines
    assert standing(3.0, {"a": 3.0, "b": 2.5}) == "level with a, 0.50 points above b"


@pytest.mark.usefixtures("no_pictures")
def test_a_run_stopped_by_signals_goes_on_exactly(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    np.savez("land.npz", **generated_landscape(1, 160, 60).arrays())
    assert train("--landscape", "land.npz", "--run", "whole", "--episodes", "16") == 0
    play = DQNTrainer.play_round
    begin, resume = ["--config", "tiny.toml", "--landscape", "land.npz", "--run", "cut"], ["--resume"]
    for episodes, number, words in ((4, signal.SIGINT, begin), (8, signal.SIGTERM, resume)):

        def play_and_stop(self: DQNTrainer, episodes: int = episodes, number: int = number) -> None:
            if self.episodes == episodes:
                os.kill(os.getpid(), number)
            play(self)

        with monkeypatch.context() as patched:
            patched.setattr(DQNTrainer, "play_round", play_and_stop)
            assert main(["fuel-breaks", "train", *words, "--episodes", "16"]) == 128 + number
    assert "fuel-breaks train --resume" in caplog.text
    assert main(["fuel-breaks", "train", *resume, "--episodes", "16"]) == 0
    runs = folder / "runs" / "fuel-breaks"
    assert len(records(runs / "whole")) == 4 and records(runs / "cut") == records(runs / "whole")


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
        (["evaluate", "--split", "train"], "expected validation|test"),
        (["evaluate", "--scenario-seeds", "0"], "--scenario-seeds: expected INT >= 1"),
        (["show", "--tile", "-1"], "--tile: expected INT >= 0"),
    ],
)
def test_mistakes_end_with_2(folder: Path, words: list[str], message: str, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["fuel-breaks", *words]) == 2
    assert message in caplog.text and not Path("runs").exists()


@pytest.mark.usefixtures("no_pictures")
def test_mistakes_on_a_run(trained_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["fuel-breaks", "train", "--resume", "one", "--learning.learning-rate", "0.1"]) == 2
    assert main(["fuel-breaks", "show", "--tile", "500"]) == 2
    assert train("--run", "one") == 2
    assert train("--run", "large", "--memory-limit-mb", "1") == 3
    # Its minutes and episodes are spent: it ends as it is.
    assert main(["fuel-breaks", "train", "--resume", "one", "--episodes", "8"]) == 0
    for words in ("with which the run began", "expected a test tile from 0 to", "expected a new name for --run"):
        assert words in caplog.text, words
    description = trained_folder / "runs" / "fuel-breaks" / "one" / "landscape.json"
    description.write_text(json.dumps({**json.loads(description.read_text()), "sha256": "other"}))
    assert main(["fuel-breaks", "evaluate"]) == 2
    assert "got another; give --landscape" in caplog.text


def test_paired_leads_by_hand() -> None:
    generator = np.random.default_rng(0)
    other = generator.normal(20, 5, 40)
    own = other + generator.normal(1, 1, 40)
    lead, difference = paired_lead(own, other), own - other
    t = difference.mean() / (difference.std(ddof=1) / np.sqrt(40))
    assert lead["mean"] == pytest.approx(difference.mean())
    assert lead["p_value_t"] == pytest.approx(2 * stats.t.sf(abs(t), 39))
    assert lead["p_value_wilcoxon"] < 0.01 and lead["share_better"] == (difference > 0).mean()
    reach = 1.96 * difference.std(ddof=1) / np.sqrt(40)
    assert np.allclose(lead["interval"], (lead["mean"] - reach, lead["mean"] + reach), atol=0.1)
    same = paired_lead(own, own)
    assert same["mean"] == 0 and np.isnan(same["p_value_t"]) and same["interval"] == (0.0, 0.0)


def test_benchmark_compares_means_over_seeds() -> None:
    seeds = [{"reduction_percent": {"network": [3.0, 5, 7], "random": [1.0, 2, 3]}}]
    seeds.append({"reduction_percent": {"network": [5.0, 7, 9], "random": [1.0, 2, 3]}})
    result = compare(seeds)
    assert result["network_by_seed"] == [5.0, 7.0] and result["tiles"] == 3
    assert result["reduction_percent"] == {"network": 6.0, "random": 2.0}
    assert result["lead"]["random"]["mean"] == 4.0
