"""The whole program on a card that is not there: every command runs, and gives the CPU's results."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.golden import differences
from main import main
from tests.fuel_breaks.run_cases import TINY as FIRE
from tests.tiny_run import TINY, frame, unjudged

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ for the fake card")
TRAIN = (
    "--config {f}/tiny.toml --data {f}/prices.parquet --profile quick --runs-dir {f}/runs --rivals none "
    "--env.trading-days 5 --env.settlement-days 2 --env.max-holding-days 3 --env.max-days-without-bar 2"
)
JUDGE = "evaluate --runs-dir {f}/runs --split validation --rivals none --random-pickers 20"
SIGNALS = "signals --runs-dir {f}/runs"
FUEL = "fuel-breaks train --config {f}/fire.toml --runs-dir {f}/runs"

_REFUSALS = """
import torch
from benchmarks.gpu_budget.card_with_values import DrawnOnCardError, card_with_values, unordered
from benchmarks.gpu_budget.fake_card import MixedDevicesError, install

install()
here = torch.arange(4.0)
with card_with_values():
    there = here.to("cuda")
    assert there.device.type == "cuda" and torch.tensor([1], device="cuda").device.type == "cuda"
    there[1:].mul_(2).unsqueeze_(0)
    there[torch.tensor([0])] = 5.0
    assert there.tolist() == [5.0, 2.0, 4.0, 6.0] and here.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert torch.equal((there + torch.tensor(1.0)).cpu(), torch.tensor([6.0, 3.0, 5.0, 7.0]))
    into = torch.empty(4).copy_(there)
    assert into.device.type == "cpu" and into.numpy()[0] == 5.0
    for work, error in (
        (lambda: there + here, MixedDevicesError),
        (lambda: here[there.long() * 0], MixedDevicesError),
        (lambda: torch.cat((there, here)), MixedDevicesError),
        (lambda: here.add_(there), MixedDevicesError),
        (lambda: torch.rand(2, device="cuda"), DrawnOnCardError),
        (lambda: there.numpy(), RuntimeError),
    ):
        try:
            work()
        except error:
            continue
        raise SystemExit(f"{error.__name__} was not raised")
    assert not unordered
    there.long().cumsum(0)
    assert not unordered
    there.cumsum(0)
    assert len(unordered) == 1
"""


def beside(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python from the project's root, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CLOUD_PROVIDER": ""}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )


def metrics(folder: Path, run: str) -> list[dict[str, Any]]:
    """The records of a run."""
    return [json.loads(line) for line in (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()]


@needs_compiler
def test_what_a_card_refuses_is_refused() -> None:
    done = beside("-c", _REFUSALS)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_every_command_gives_on_a_card_what_it_gives_on_a_cpu(tmp_path: Path, restore_process: None) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "fire.toml").write_text(FIRE)
    prices = frame(320, 6)
    drift = np.exp(np.outer(np.arange(320), np.linspace(-0.004, 0.006, 6))).ravel()
    prices[["open", "high", "low", "close"]] *= drift[:, None]  # something to learn
    prices.to_parquet(tmp_path / "prices.parquet")

    def words(text: str) -> list[str]:
        return [word.format(f=tmp_path) for word in text.split()]

    with unjudged():
        for text in (f"{TRAIN} --run here", f"{TRAIN} --run moved --generations 1"):
            assert main(words(text)) == 0
    for text in (f"{JUDGE} --run here", f"{SIGNALS} --run here --json {{f}}/here.json", f"{FUEL} --run fire-here"):
        assert main(words(text)) == 0
    commands = [
        f"{TRAIN} --run there --device cuda",
        "--runs-dir {f}/runs --resume moved --generations 2 --device cuda",
        f"{JUDGE} --run there --device cuda",
        f"{SIGNALS} --run there --device cuda --json {{f}}/there.json",
        f"{FUEL} --run fire-there --device cuda",
    ]
    joined = [word for text in commands for word in (*words(text), "--then")][:-1]
    done = beside("-m", "benchmarks.gpu_budget.card_with_values", *joined)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "no deterministic kernel" not in done.stdout, done.stdout

    assert "resumed after generation 1" in done.stderr
    with unjudged():  # and back
        for text in ("--resume moved --device cpu", "--resume here"):
            assert main(words(f"--runs-dir {{f}}/runs {text} --generations 3")) == 0
    ours, theirs = metrics(tmp_path, "here"), metrics(tmp_path, "moved")
    assert len(ours) == len(theirs) == 3 and differences(ours[2], theirs[2], tolerance=1e-6) == []
    for here, there in (("here", "there"), ("here", "moved"), ("fire-here", "fire-there")):
        ours, theirs = metrics(tmp_path, here), metrics(tmp_path, there)
        assert min(len(ours), len(theirs)) >= 2 and differences(ours[1], theirs[1], tolerance=1e-6) == []
    assert metrics(tmp_path, "here")[1]["learning"]["p_value_selection"] < 0.001  # the champion plays by its critic
    for path in ("runs/{}/evaluation-validation/results.json", "{}.json"):
        ours, theirs = (json.loads((tmp_path / path.format(run)).read_text()) for run in ("here", "there"))
        assert differences(ours | {"run": "there"}, theirs, tolerance=1e-6) == []
