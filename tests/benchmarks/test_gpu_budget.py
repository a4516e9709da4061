"""The cost of a generation on a fake card: within its budget, and what must not be there is found."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_budget.__main__ import BUDGET
from benchmarks.gpu_budget.costs import BYTES_SHARE, CARDS, Cost, Phase, joined
from benchmarks.gpu_budget.generation import UPDATES

ROOT = Path(__file__).resolve().parents[2]
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ for the fake card")

_METER = """
import torch
from benchmarks.gpu_budget.fake_card import MixedDevicesError, fake_card, install

install()
here = torch.arange(4)
with fake_card() as meter:
    x = torch.zeros(4, 8, dtype=torch.float64, device="cuda")
    rows, mask = torch.zeros(3, dtype=torch.int64, device="cuda"), torch.ones(4, dtype=torch.bool, device="cuda")
    waiting = {
        "item": lambda: x[0, 0].item(),
        "truth": lambda: bool((x > 0).any()),
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
        "product": lambda: x @ x.T,
        "view": lambda: x[:, 1:],
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
    assert meter.phases["backward"].figures()["kernels"] == 1
    product, view = (meter.phases[name].figures() for name in ("product", "view"))
    assert product["flops"] == 2 * 4 * 8 * 4 and product["bytes"] == 8 * (32 + 32 + 16), product
    assert view["kernels"] == 0 and not meter.phases["on the host"].costs
    with meter.within("memory"):
        large = torch.empty(1000, device="cuda")
        del large
        torch.empty(10, device="cuda")
    others = meter.phases["memory"].peak - meter.phases["view"].peak
    assert 0 <= 4096 - others <= 4096, others
    assert not meter.faults
    torch.rand(2, device="cuda")
    assert len(meter.faults) == 1, meter.faults
    try:
        x + torch.zeros(8)
        raise SystemExit("mixed devices were not found")
    except MixedDevicesError:
        pass
"""


def in_its_own_process(*words: str) -> subprocess.CompletedProcess[str]:
    """Run Python from the project's root, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250
    )


@needs_compiler
def test_a_small_generation_is_within_its_budget_but_for_a_figure_that_was_lowered(tmp_path: Path) -> None:
    budget = json.loads(BUDGET.read_text())
    figures = budget["small 4"]["train"]
    figures["operations"] = int(figures["operations"] / 1.03)
    path = tmp_path / "budget.json"
    path.write_text(json.dumps(budget | {"torch": torch.__version__.split("+")[0].rpartition(".")[0]}))
    done = in_its_own_process("-m", "benchmarks.gpu_budget", "--small", "--budget", str(path))
    assert done.returncode == 1, done.stdout + done.stderr
    phases = ("evaluate", "evaluate, days", "evolve", "train", UPDATES, "validate, days", "generation")
    for phase in phases:
        assert f"\n{phase}" in done.stdout
    (fault,) = re.findall("FAULT .*", done.stdout)
    assert fault.startswith("FAULT 4 agents: train operations:")


@needs_compiler
def test_waits_mixed_devices_and_costs_are_what_they_are() -> None:
    done = in_its_own_process("-c", _METER)
    assert done.returncode == 0, done.stderr


def test_phases_add_up_and_the_slower_side_decides() -> None:
    large = Phase(peak=5)
    large.costs[Cost(1, int(CARDS[0].bytes_per_second), 0, False)] += 1
    many = Phase(copied=12_000_000_000, peak=9)
    many.costs[Cost(0, 0, 0, False)] += 125_000
    taken = 1 / BYTES_SHARE
    assert large.seconds(CARDS[0]) == pytest.approx((taken, taken))
    assert many.seconds(CARDS[0]) == pytest.approx((0.0, 2.0))  # one of the host, one of the copies
    # A replay is one launch: what is left is the copies.
    assert replace(many, graphs=1).seconds(CARDS[0]) == pytest.approx((0.0, 1.0), abs=1e-4)
    whole = joined([large, many])
    figures = whole.figures()
    assert figures.pop("H200 us") == pytest.approx(1e6 * taken)
    assert {name for name in figures if name.endswith(" us")} == {"H100 us", "RTX 4090 us"}
    assert {name: value for name, value in figures.items() if not name.endswith(" us")} == {
        "operations": 125_001,
        "waits": 0,
        "copied": 12_000_000_000,
        "kernels": 1,
        "bytes": int(CARDS[0].bytes_per_second),
        "flops": 0,
        "peak": 9,
    }
