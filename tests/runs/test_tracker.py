"""Runs at Weights & Biases and MLflow: by the real clients offline where they are installed, else by one that fails."""

import contextlib
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.tiny_run import records, run, unjudged
from utils.runs import tracker
from utils.runs.tracker import TRACKED

PROGRAM = Path(__file__).parents[2] / "main.py"
REASON = "{} is not installed (requirements-track.txt)"


def failing(good: int) -> mock.Mock:
    """A client whose first calls succeed, and no later ones."""
    call = mock.Mock(side_effect=[mock.DEFAULT] * good + [OSError("no\nconnection")] * 9)
    call.return_value = SimpleNamespace(identity="x", log=call, keep=call, close=call)
    return call


def test_a_client_that_fails_warns_once_and_alters_nothing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracker, "find_spec", lambda _: SimpleNamespace())
    with unjudged():
        assert run(tiny, "--run", "alone") == 0
    assert "goes on without" not in "".join(capsys.readouterr())
    for good in range(4):  # at the beginning, in both generations, at the end
        monkeypatch.setitem(tracker._CLIENTS, "wandb", failing(good))
        with contextlib.nullcontext() if good == 3 else unjudged():
            assert run(tiny, "--run", f"good-{good}", "--log-to", "wandb") == 0
        assert "".join(capsys.readouterr()).count("wandb failed (OSError: no); the run goes on without it") == 1
        assert records(tiny, f"good-{good}") == records(tiny, "alone")
    assert (tiny.parent / "runs" / "good-3" / "report.html").is_file()


def test_an_absent_client_is_one_line(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracker, "find_spec", lambda _: None)
    assert run(tiny, "--run", "one", "--log-to", "mlflow") == 2
    assert "pip install -r requirements-track.txt" in capsys.readouterr().err
    assert not (tiny.parent / "runs" / "one").exists()


def offline(tiny: Path, *words: str, **environment: str) -> None:
    """Run the program in a process and folder of its own: clients keep global state."""
    runs = ["--runs-dir", str(tiny.parent / "runs"), "--rivals", "none"]
    quiet = {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    command = [sys.executable, str(PROGRAM), *words, *runs]
    env = {**os.environ, **quiet, **environment}
    done = subprocess.run(command, cwd=tiny.parent, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "goes on without" not in done.stdout + done.stderr, done.stderr


@pytest.mark.skipif(find_spec("mlflow") is None, reason=REASON.format("mlflow"))
def test_mlflow_has_the_run_and_goes_on_with_it(tiny: Path) -> None:
    from mlflow import MlflowClient

    place = f"sqlite:///{tiny.parent}/mlflow.db"
    began = ["--config", str(tiny), "--run", "one", "--log-to", "mlflow"]
    offline(tiny, *began, MLFLOW_TRACKING_URI=place)
    offline(tiny, "--resume", "one", "--generations", "3", MLFLOW_TRACKING_URI=place)
    client, folder = MlflowClient(place), tiny.parent / "runs" / "one"
    (there,) = client.search_runs([client.get_experiment_by_name("erl-trader").experiment_id])
    identity = there.info.run_id
    assert identity == json.loads((folder / TRACKED).read_text())["mlflow"] and there.info.status == "FINISHED"
    shown = [(one.step, one.value) for one in client.get_metric_history(identity, "fitness/mean")]
    assert shown == [(record["generation"], record["fitness"]["mean"]) for record in records(tiny, "one")]
    assert there.data.params["evolution.population_size"] == "4"
    kept = {file.path for file in client.list_artifacts(identity)}
    assert kept == {"report.html", "summary.json", "champion.safetensors"}


@pytest.mark.skipif(find_spec("wandb") is None, reason=REASON.format("wandb"))
def test_wandb_has_the_run_and_goes_on_with_it(tiny: Path) -> None:
    began = ["--config", str(tiny), "--run", "one", "--log-to", "wandb"]
    offline(tiny, *began)
    offline(tiny, "--resume", "one", "--generations", "3")
    folder = tiny.parent / "runs" / "one"
    identity, parts = json.loads((folder / TRACKED).read_text())["wandb"], [*folder.glob("wandb/offline-run-*")]
    assert len(parts) == 2 and all(part.name.endswith(identity) for part in parts)
    written = b"".join(file.read_bytes() for part in parts for file in part.glob("*.wandb"))
    for text in (b"fitness/mean", b"evolution.population_size", b"champion.safetensors", b"report.html"):
        assert text in written, text
