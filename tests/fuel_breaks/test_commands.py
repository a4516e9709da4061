"""The fuel-break commands as a user runs them: train, resume, stop, evaluate, show, and mistakes."""

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
import torch
from PIL import Image
from scipy import stats

from benchmarks.faults.harness import records
from data.fuel_breaks import generated_landscape
from main import main
from models.fuel_breaks import QNetwork
from tests.fuel_breaks.run_cases import TINY, run_config
from training.fuel_breaks import policies
from training.fuel_breaks.commands import UNTRAINED, paired_lead, run_train
from training.fuel_breaks.dqn_trainer import DQNTrainer
from utils.config.fuel_breaks import FuelBreakTrainArguments, QNetworkConfig

SHOWN = (Path(__file__).parents[2] / "docs" / "fuel_breaks.md").read_text(encoding="utf-8")
RUN = Path("runs") / "fuel-breaks" / "one"


def train(*words: str) -> int:
    return main(["fuel-breaks", "train", "--config", "tiny.toml", *words])


@pytest.fixture(scope="module")
def trained(real_charts: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of four generations; not to be changed."""
    path = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(path)
        np.savez("land.npz", **generated_landscape(1, 240, 60).arrays())
        Path("tiny.toml").write_text('landscape = "land.npz"\n' + TINY)
        assert train("--run", "one", "--episodes", "16") == 0
    return path


@pytest.fixture
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    """A working folder with a copy of the run and its settings."""
    caplog.set_level(logging.INFO)
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures, most of a tiny run's time, are not written where a test does not look at them."""
    monkeypatch.setattr("utils.pictures.save_figure", lambda figure, path: None)


def test_a_run_leaves_records_a_summary_and_a_log(trained: Path) -> None:
    run = trained / RUN
    assert [record["episodes"] for record in records(run)] == [4, 8, 12, 16]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["episodes"] == 16 and summary["replay_bytes_per_transition"] < 2600
    assert len(summary["rss_mb_per_generation"]) == 4
    log = (run / "run.log").read_text()
    for words in ("GPU 0 MiB allocated, 0 MiB reserved; clean-ups (", " by episodes, ", "replay 48 / 80", "losses"):
        assert words in log, words


def test_the_commands_of_the_docs(folder: Path) -> None:
    first, *after_training = re.findall(r"^python main\.py (fuel-breaks .*)$", SHOWN, flags=re.MULTILINE)
    assert first == "fuel-breaks train" and len(after_training) == 2
    for command in after_training:
        assert main(shlex.split(command)) == 0, command
    result = json.loads((folder / RUN / "evaluation-test.json").read_text())
    tiles = len(result["reduction_percent"]["network"])
    assert tiles >= 3 and len(result["lead_of_network"]) == 6
    own, other = (np.array(result["reduction_percent"][name]) for name in ("network", "random"))
    assert result["lead_of_network"]["random"]["mean"] == pytest.approx((own - other).mean())
    (drawn,) = (folder / RUN).glob("tile-test-*")
    for path in (drawn / "breaks.png", drawn / "burn_probability.png", folder / RUN / "learning.png"):
        with Image.open(path) as image:
            assert image.width > 100 and len(image.convert("RGB").getcolors(2**24) or []) > 20, path
    with Image.open(drawn / "fire.gif") as image:
        assert getattr(image, "n_frames", 1) == 25


@pytest.mark.usefixtures("folder", "no_pictures")
def test_a_run_keeps_to_its_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)

    def timed(seconds: int, work: Any, *arguments: Any, **named: Any) -> Any:
        clock.now += seconds
        return work(*arguments, **named)

    play = DQNTrainer.play_round
    monkeypatch.setattr(DQNTrainer, "play_round", lambda trainer: timed(7, play, trainer))
    monkeypatch.setattr(policies, "reductions", partial(timed, 5, policies.reductions))
    for minutes, expected in ((1.0, 55), (0.01, 22)):
        clock.now = 0.0
        config = run_config(minutes=minutes, episodes=0, generation_episodes=16, landscape=Path("land.npz"))
        summary = run_train(FuelBreakTrainArguments(config), frozenset(), lambda: clock.now)
        # Two validations before; rounds of 7 s, as long as another and a validation fit, but at least one.
        assert clock.now == expected and summary["minutes"] * 60 == pytest.approx(expected)


@pytest.mark.usefixtures("folder", "no_pictures")
def test_a_network_that_learned_nothing_is_called_so_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scores = iter([30.0, 30.0, 12.0, 14.0])  # heuristic, untrained, two generations
    with monkeypatch.context() as patched:
        patched.setattr(policies, "reductions", lambda *_, **__: np.array([next(scores)]))
        assert train("--run", "bad") == 0
    worse = "16.00 points below the untrained network, 16.00 points below adaptive downstream value"
    assert f"Generation 2: network 14.00 %, {worse}" in caplog.text and f"note: {UNTRAINED}" in caplog.text
    assert f"trained network: 14.00 % on validation tiles, {worse}" in caplog.text


@pytest.mark.usefixtures("no_pictures")
def test_a_run_stopped_by_signals_goes_on_exactly(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = DQNTrainer.play_round
    begin, resume = ["--config", "tiny.toml", "--run", "cut"], ["--resume"]
    for episodes, number, words in ((4, signal.SIGINT, begin), (8, signal.SIGTERM, resume)):

        def play_and_stop(self: DQNTrainer, episodes: int = episodes, number: int = number) -> None:
            if self.episodes == episodes:
                os.kill(os.getpid(), number)
            play(self)

        with monkeypatch.context() as patched:
            patched.setattr(DQNTrainer, "play_round", play_and_stop)
            assert main(["fuel-breaks", "train", *words, "--episodes", "16"]) == 128 + number
    build = policies.build_network

    def build_another(config: QNetworkConfig) -> QNetwork:
        torch.manual_seed(99)  # what a network is drawn as must not matter: the checkpoint is all
        return build(config)

    monkeypatch.setattr(policies, "build_network", build_another)
    assert main(["fuel-breaks", "train", *resume, "--episodes", "16"]) == 0
    whole, cut = folder / RUN, folder / RUN.with_name("cut")
    assert records(cut) == records(whole)
    for part in ("networks", "optimizer", "replay", "progress"):
        (one,), (other,) = ([*(run / "checkpoints").glob(f"*4/{part}.safetensors")] for run in (whole, cut))
        assert one.read_bytes() == other.read_bytes(), part


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train --landscape nowhere.npz", "expected a landscape as .npz"),
        ("train --lanes 20", "multiple of lanes-per-tile"),
        ("train --minutes 0 --episodes 0", "minutes > 0 or episodes > 0"),
        ("train --resume one --learning.learning-rate 0.1", "with which the run began"),
        ("evaluate --run nothing", "expected a run in"),
        ("show --tile 500", "expected a test tile from 0 to"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes_end_with_2(words: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["fuel-breaks", *words.split()]) == 2
    assert message in caplog.text and os.listdir(RUN.parent) == ["one"]


@pytest.mark.usefixtures("folder")
def test_a_run_belongs_to_its_landscape(caplog: pytest.LogCaptureFixture) -> None:
    arrays = generated_landscape(1, 240, 60).arrays()
    np.savez("land.npz", **arrays | {"elevation_m": arrays["elevation_m"] + 1})
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
