"""Cards that are not there: what a generation costs, what one refuses, and every command with the CPU's results."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.golden import differences
from benchmarks.gpu_budget.__main__ import BUDGET
from benchmarks.gpu_budget.generation import UPDATES
from main import main
from tests.benchmarks.study_cases import lines_of
from tests.fuel_breaks.run_cases import TINY as FIRE
from tests.tiny_run import TINY, frame, unjudged

ROOT = Path(__file__).resolve().parents[2]
needs_fake_card = pytest.mark.skipif(
    shutil.which("g++") is None or torch.version.cuda is not None,
    reason="the fake card needs g++ and a torch without CUDA",
)
TRAIN = (
    "--config {f}/tiny.toml --data {f}/prices.parquet --profile quick --runs-dir {f}/runs --rivals none "
    "--env.trading-days 5 --env.settlement-days 2 --env.max-days-without-bar 2 "
    "--learning.gradient-steps 20 --learning.learning-rate 0.03"
)
JUDGE = "evaluate --runs-dir {f}/runs --split validation --rivals none --random-pickers 20"
SIGNALS = "signals --runs-dir {f}/runs"
FUEL = "fuel-breaks train --config {f}/fire.toml --runs-dir {f}/runs"

_COSTS_AND_REFUSALS = """
import pytest
import torch
from benchmarks.gpu_budget.card import DrawnOnCardError, MixedDevicesError, card, install, unordered

install()
here = torch.arange(4)
with card() as meter:
    x = torch.zeros(4, 8, dtype=torch.float64, device="cuda")
    rows, mask = torch.zeros(3, dtype=torch.int64, device="cuda"), torch.ones(4, dtype=torch.bool, device="cuda")
    waiting = {
        "item": lambda: x[0, 0].item(),
        "mask": lambda: x[mask],
        "nonzero": lambda: mask.nonzero(),
        "constant": lambda: torch.tensor([1.0, 2.0], device="cuda"),
        "to the device": lambda: here.to("cuda"),
        "to the host": lambda: x.cpu(),
        "host index": lambda: x[here],
        "into": lambda: x.copy_(torch.zeros(4, 8)),
        "solve": lambda: torch.linalg.solve(torch.eye(4, dtype=torch.float64, device="cuda"), x),
    }
    running = {
        "add": lambda: x + 1,
        "rows": lambda: x[rows],
        "fill by mask": lambda: x.__setitem__(mask, 0.0),
        "where": lambda: torch.where(x > 0, x, 0.0),
        "on the host": lambda: bool(here.any()) and here[here > 1].tolist(),
    }
    for name, work in (waiting | running).items():
        with meter.within(name):
            work()
    for name in waiting:
        assert meter.phases[name].waits.total() == 1, (name, meter.phases[name].waits)
    for name in running:
        assert not meter.phases[name].waits, (name, meter.phases[name].waits)
    assert meter.phases["to the host"].copied == 256
    with meter.within("backward"):
        torch.ops.aten.silu_backward(x, x)
    assert meter.phases["backward"].figures()["operations"] == 1
    assert not meter.phases["on the host"].lines
    with meter.within("memory"):
        large = torch.empty(1000, device="cuda")
        del large
        torch.empty(10, device="cuda")
    others = meter.phases["memory"].peak - meter.phases["add"].peak
    assert 0 <= 4096 - others <= 4096, others
here = torch.arange(4.0)
with card():
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
        (lambda: torch.rand(2, device="cuda"), DrawnOnCardError),
        (lambda: there.numpy(), RuntimeError),
    ):
        with pytest.raises(error):
            work()
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


@needs_fake_card
def test_costs_are_what_they_are_and_what_a_card_refuses_is_refused() -> None:
    done = beside("-c", _COSTS_AND_REFUSALS)
    assert done.returncode == 0, done.stderr


@needs_fake_card
def test_a_small_generation_is_within_its_budget_but_for_a_figure_that_was_lowered(tmp_path: Path) -> None:
    budget = json.loads(BUDGET.read_text())
    figures = budget["small 4"]["train"]
    figures["operations"] = int(figures["operations"] / 1.03)
    path = tmp_path / "budget.json"
    path.write_text(json.dumps(budget | {"torch": torch.__version__.split("+")[0].rpartition(".")[0]}))
    done = beside("-m", "benchmarks.gpu_budget", "--small", "--budget", str(path))
    assert done.returncode == 1, done.stdout + done.stderr
    days = ("Evaluating agents, days", "Validating agent, days")
    for phase in ("evaluate", "evolve", "train", UPDATES, *days, "generation"):
        assert f"\n{phase}" in done.stdout
    (fault,) = re.findall("FAULT .*", done.stdout)
    assert fault.startswith("FAULT 4 agents: train operations:")


@needs_fake_card
def test_every_command_gives_on_a_card_what_it_gives_on_a_cpu(tmp_path: Path, small_heap: None) -> None:
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
        "--runs-dir {f}/runs --resume moved --generations 2 --device cuda",
        f"{JUDGE} --run moved --device cuda",
        f"{SIGNALS} --run moved --device cuda --json {{f}}/moved.json",
        f"{FUEL} --run fire-there --device cuda",
    ]
    joined = [word for text in commands for word in (*words(text), "--then")][:-1]
    done = beside("-m", "tests.benchmarks.card_unjudged", *joined)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "no deterministic kernel" not in done.stdout, done.stdout

    assert "resumed after generation 1" in done.stdout
    for names in (("fire-here", "fire-there"), ("here", "moved")):
        ours, theirs = (lines_of(tmp_path / "runs" / run / "metrics.jsonl") for run in names)
        assert len(ours) == len(theirs) == 2 and differences(ours[1], theirs[1], tolerance=1e-6) == []
    assert ours[1]["learning"]["evidence_shrink"] > 0  # the champion plays by its critic
    for path in ("runs/{}/evaluation-validation/results.json", "{}.json"):
        ours, theirs = (json.loads((tmp_path / path.format(run)).read_text()) for run in ("here", "moved"))
        assert differences(ours | {"run": "moved"}, theirs, tolerance=1e-6) == []
