"""The fuel-break commands as a user runs them: train, resume, stop, evaluate, show, and mistakes."""

import dataclasses
import json
import logging
import os
import re
import shlex
import shutil
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from data.fuel_breaks.landscape import generated_landscape
from main import main
from models.fuel_breaks.config import QNetworkConfig
from tests.fuel_breaks.run_cases import TINY, run_config
from training.fuel_breaks import policies
from training.fuel_breaks.config import FuelBreakRunConfig, FuelBreakTrainArguments
from training.fuel_breaks.dqn_trainer import DQNTrainer
from training.fuel_breaks.evaluate_command import paired_lead
from training.fuel_breaks.run import GENERATED, PRIOR, UNTRAINED, caveats, standing
from training.fuel_breaks.train_command import run_train

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
        "GPU 0 MB;",
        "clean-ups gave back",
        "replay 24 / 80",
        "losses",
        "collection times",
        "clean-up 1 after episodes",
    ):
        assert words in log, words


def test_a_result_of_generation_0_is_called_that_of_the_baseline() -> None:
    config = FuelBreakRunConfig()
    blank = dataclasses.replace(config, network=QNetworkConfig(downstream_prior=False), landscape=Path("land.npz"))
    assert caveats(config, {"best_generation": 0}) == [GENERATED, PRIOR]
    assert caveats(config, {"best_generation": 3}) == [GENERATED]
    assert caveats(blank, {"best_generation": 0}) == [UNTRAINED]


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
    pictures = [drawn / "breaks.png", drawn / "burn_probability.png", run / "learning.png"]
    for path in pictures:
        with Image.open(path) as image:
            assert image.width > 600 and len(image.convert("RGB").getcolors(2**24) or []) > 20, path
    with Image.open(drawn / "fire.gif") as image:
        assert getattr(image, "n_frames", 1) == 25


@pytest.mark.usefixtures("folder", "no_pictures")
def test_a_run_keeps_to_its_minutes_and_names_its_folder(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = SimpleNamespace(now=0.0)

    def timed(seconds: int, work: Any, *arguments: Any, **named: Any) -> Any:
        clock.now += seconds
        return work(*arguments, **named)

    play = DQNTrainer.play_round
    monkeypatch.setattr(DQNTrainer, "play_round", lambda trainer: timed(7, play, trainer))
    monkeypatch.setattr(policies, "reductions", partial(timed, 5, policies.reductions))
    for minutes, expected in ((1.0, 55), (0.01, 22)):
        clock.now = 0.0
        config = run_config(minutes=minutes, episodes=0, generation_episodes=16, run=f"of-{minutes}")
        summary = run_train(FuelBreakTrainArguments(config), frozenset(), lambda: clock.now)
        # Two validations before; rounds of 7 s, as long as another and a validation fit, but at least one.
        assert clock.now == expected and summary["minutes"] * 60 == pytest.approx(expected)
        assert f"run runs/fuel-breaks/of-{minutes}" in caplog.text


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
        (["train", "--landscape", "nowhere.npz"], "expected a landscape as .npz"),
        (["train", "--lanes", "20"], "multiple of lanes-per-tile"),
        (["train", "--minutes", "0", "--episodes", "0"], "minutes > 0 or episodes > 0"),
        (["train", "--run", "a", "--resume", "b"], "--run or --resume"),
        (["train", "--resume"], "expected a run to resume"),
        (["evaluate", "--run", "nothing"], "expected a run in"),
        (["evaluate", "--split", "train"], "expected validation|test"),
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
    error = difference.std(ddof=1) / np.sqrt(40)
    assert lead["p_value_t"] == pytest.approx(2 * stats.t.sf(abs(difference.mean() / error), 39))
    assert lead["p_value_wilcoxon"] < 0.01 and lead["share_better"] == (difference > 0).mean()
    assert np.allclose(lead["interval"], difference.mean() + np.array([-1.96, 1.96]) * error, atol=0.1)
    same = paired_lead(own, own)
    assert same["mean"] == 0 and np.isnan(same["p_value_t"]) and same["interval"] == (0.0, 0.0)
