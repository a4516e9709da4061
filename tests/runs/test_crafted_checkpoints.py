"""Checkpoints that are sealed but hold what no run wrote: the generation before them is used, and it is said why."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from main import main
from tests.tiny_run import parameters, records, run, unjudged
from training.run.saved import open_saved_run

Tensors = dict[str, torch.Tensor]


def reseal(path: Path) -> None:
    """Seal what the folder holds, as the writer of a checkpoint does."""
    body = json.loads((path / "manifest.json").read_text())
    files = {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.name != "manifest.json"}
    del body["sha256"]
    body["files"] = {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()
    }
    body["sha256"] = hashlib.sha256((json.dumps(body, indent=1) + "\n").encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(body, indent=1) + "\n")


def tensors(part: str, change: Callable[[Tensors], object]) -> Callable[[Path], None]:
    def craft(path: Path) -> None:
        file = path / f"{part}.safetensors"
        held = safetensors.torch.load(file.read_bytes())
        change(held)
        file.write_bytes(safetensors.torch.save({name: value.contiguous() for name, value in held.items()}))

    return craft


def other_shape(held: Tensors) -> None:
    held.update({name: value[..., :-1] for name, value in held.items() if value.ndim})


def nan(held: Tensors) -> None:
    for value in held.values():
        if value.is_floating_point() and value.numel():
            value.view(-1)[0] = torch.nan


def missing(part: str) -> Callable[[Path], object]:
    return lambda path: [file.unlink() for file in path.glob(f"{part}.*")]


@pytest.mark.parametrize("craft", [tensors("champion", other_shape), tensors("replay", nan), missing("random")])
def test_a_resumed_run_uses_the_generation_before(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], craft: Callable[[Path], Any]
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    tiny, path = tmp_path / "tiny.toml", tmp_path / "runs" / "cut" / "checkpoints" / "generation-000002"
    craft(path)
    reseal(path)
    with unjudged():
        assert run(tiny, "--resume", "cut", "--generations", "3") == 0
    told, warned = capsys.readouterr()
    assert "generation-000002 is not used: " in warned and "resumed after generation 1" in told
    assert [record | {"generations": 3} for record in records(tiny, "cut")] == records(tiny, "whole")
    assert parameters(tiny, "cut", 3) == parameters(tiny, "whole", 3)


@pytest.mark.parametrize("craft", [tensors("champion", nan), missing("champion")])
def test_an_opened_run_uses_the_generation_before(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], craft: Callable[[Path], Any]
) -> None:
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    root = tmp_path / "runs" / "cut" / "checkpoints"
    craft(root / "generation-000002")
    reseal(root / "generation-000002")
    assert open_saved_run(tmp_path / "runs", "cut").generation == 1
    craft(root / "generation-000001")
    reseal(root / "generation-000001")
    assert main(["signals", "--run", "cut", "--runs-dir", str(tmp_path / "runs")]) == 2
    shown = capsys.readouterr().err
    assert "expected a complete generation of this version" in shown and "Traceback" not in shown
