"""Checkpoints come back bit for bit, and nothing damaged, half written or made up is ever trusted."""

import errno
import hashlib
import itertools
import json
import os
import shutil
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.faults.harness import PROCESSES
from main import main
from tests.tiny_run import assert_like, run, unjudged
from training.run.saved import open_saved_run
from utils.errors import CheckpointError
from utils.runs import checkpoint as module
from utils.runs.checkpoint import (
    checkpoint_writer,
    encode_state,
    list_checkpoints,
    load_checkpoint,
    load_latest,
    prune_checkpoints,
    read_manifest,
    save_checkpoint,
    verify_checkpoint,
)
from utils.runs.durable import remove_leftovers

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32),
    *(torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64),
]


def newest(root: Path, run_id: str | None = None) -> int | None:
    found = load_latest(root, run_id=run_id)
    return None if found is None else found.generation


def small_state(mark: int = 0) -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(mark)
    return {
        "population": {"actor.weight": torch.randn(3, 5, 7, generator=generator), "step": torch.tensor(mark)},
        "replay": {"days": torch.arange(2000, dtype=torch.int32), "position": mark, "full": False},
        "history": {"fitness": [0.1, float("-inf"), mark], "span": (1, 2)},
    }


def save(root: Path, generation: int, state: Any = None) -> Path:
    encoded = encode_state(state or small_state(generation))
    return save_checkpoint(root, generation, encoded, run_id="run", config_hash="hash")


def bits(value: Any) -> Any:
    """A value as nested plain objects in which equality means the same type and the same bits."""
    if isinstance(value, Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return ("tensor", value.dtype, tuple(value.shape), raw)
    if isinstance(value, dict):
        return ("dict", [(key, bits(item)) for key, item in value.items()])
    if isinstance(value, list | tuple):
        return (type(value).__name__, [bits(item) for item in value])
    return (type(value).__name__, struct.pack(">d", value) if isinstance(value, float) else value)


def tensor_of(dtype: torch.dtype, shape: list[int], seed: int) -> Tensor:
    size = torch.empty((), dtype=dtype).element_size()
    count = int(np.prod(shape, dtype=int))
    raw = np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, count * size, dtype=np.uint8)
    # Random bytes: float tensors hold NaNs with payloads, infinities and subnormals.
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


tensors = st.builds(tensor_of, st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 999))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
keys = st.text(st.characters(exclude_characters=".$", exclude_categories=["Cs"]), min_size=1, max_size=4)
values = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)
states = st.dictionaries(
    st.from_regex(r"[a-l][a-z0-9_]{0,5}", fullmatch=True), st.dictionaries(keys, values), max_size=3
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states)
def test_any_state_comes_back_bit_for_bit(tmp_path: Path, state: dict[str, dict[str, Any]]) -> None:
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, encode_state(state), run_id="r", config_hash="c"))
    assert bits(loaded.state) == bits(state)
    assert (loaded.generation, loaded.run_id, loaded.config_hash) == (3, "r", "c")


def test_shared_strided_and_learning_tensors_are_saved_as_values(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(base)
    state = {"a": {"base": base, "same": base, "columns": base.T, "tail": base[1:, 2], "learned": parameter}}
    loaded = load_checkpoint(save(tmp_path, 1, state)).state["a"]
    for name, value in state["a"].items():
        assert torch.equal(loaded[name], value)
    loaded["base"].zero_()
    assert torch.equal(loaded["same"], torch.arange(12.0).reshape(3, 4))
    assert not loaded["learned"].requires_grad


def test_every_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = save(tmp_path, 1)
    finally:
        os.umask(before)
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o640}


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"a": {"b": [{3, 4}]}}, "got set at 'b.0'"),
        ({"a": {"b.c": torch.zeros(1), "b": {"c": torch.ones(1)}}}, "Tensor at 'b.c'"),
    ],
)
def test_a_state_without_a_form_is_refused_and_leaves_nothing(tmp_path: Path, state: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match=reason):
        save(tmp_path, 1, state)
    assert list(tmp_path.iterdir()) == []


def test_no_bit_of_the_manifest_is_free_to_change(tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"a": {}})
    original = (path / "manifest.json").read_bytes()
    for place in range(len(original)):
        data = bytearray(original)
        data[place] ^= 1 << place % 8
        (path / "manifest.json").write_bytes(data)
        with pytest.raises(CheckpointError):
            read_manifest(path)


def test_missing_added_and_odd_files_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    (path / "extra.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"missing or added files: \['extra.json'\]"):
        load_checkpoint(path)
    (path / "extra.json").unlink()
    (path / "replay.json").rename(tmp_path / "replay.json")
    with pytest.raises(CheckpointError, match=r"missing or added files: \['replay.json'\]"):
        load_checkpoint(path)
    (path / "replay.json").symlink_to(tmp_path / "replay.json")
    with pytest.raises(CheckpointError, match="plain file"):
        load_checkpoint(path)
    (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"manifest.json: No such file"):
        load_checkpoint(path)


def seal(path: Path, body: dict[str, Any]) -> None:
    """Write a manifest with its checksum, as the writer of a checkpoint does."""
    own = {name: value for name, value in body.items() if name != "sha256"}
    sha256 = hashlib.sha256((json.dumps(own, indent=1) + "\n").encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(own | {"sha256": sha256}, indent=1) + "\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": module.SCHEMA + 1}, f"expected a checkpoint of schema {module.SCHEMA}, got {module.SCHEMA + 1}"),
        ({"generation": "1"}, "expected generation 1 by"),
        ({"files": []}, "is not one"),
        ({"files": {"a.json": {"size": "x", "sha256": ""}}}, "is not one"),
        ({"more": 1}, "is not one"),
        *(
            ({"files": {name: {"size": 2, "sha256": hashlib.sha256(b"{}").hexdigest()}}}, "expected a plain file name")
            for name in ("../secret.json", "/etc/passwd", "a/b.json", "..", "a.pkl", "a.json/../b.json", "", "a\\b")
        ),
    ],
)
def test_a_forged_manifest_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = save(tmp_path, 1)
    (tmp_path / "secret.json").write_text("{}")
    seal(path, json.loads((path / "manifest.json").read_text()) | change)
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(path)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff", b"[]", b"cos\nsystem\n(S'false'\ntR."])
def test_a_manifest_that_is_no_manifest_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(CheckpointError, match="is not one"):
        read_manifest(tmp_path)


def test_nothing_longer_than_the_manifest_says_is_read(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    with (path / "replay.json").open("ab") as file:
        file.truncate(1 << 40)  # A sparse terabyte: reading it would fail.
    with pytest.raises(CheckpointError, match=r"expected at most \d+ bytes in replay.json"):
        load_checkpoint(path)
    with (path / "manifest.json").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=r"expected at most \d+ bytes in manifest.json"):
        load_checkpoint(path)


def test_latest_goes_by_generation_number_and_by_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for generation in (10, 9, 1_000_000):
        save(tmp_path, generation)
    save_checkpoint(tmp_path, 11, encode_state(small_state()), run_id="other", config_hash="hash")
    (tmp_path / "generation-000099").write_text("a file, not a checkpoint")
    (tmp_path / "generation-0000012").mkdir()
    assert list(list_checkpoints(tmp_path)) == [9, 10, 11, 1_000_000]
    shutil.rmtree(tmp_path / "generation-1000000")
    assert [newest(tmp_path, run) for run in (None, "run", "other", "nobody")] == [11, 10, 11, None]
    assert "expected one of run 'run', got run 'other'" in caplog.text
    assert newest(tmp_path / "absent") is None
    assert list_checkpoints(tmp_path / "absent") == {}


def damage_file(path: Path) -> None:
    (path / "replay.json").write_text("{}")


def test_the_generation_just_written_outlives_damaged_later_ones(tmp_path: Path) -> None:
    for generation in (1, 2, 3, 4, 5):
        save(tmp_path, generation)
    for generation in (4, 5):
        damage_file(list_checkpoints(tmp_path)[generation])
    with checkpoint_writer(tmp_path, run_id="run", config_hash="hash", keep=1) as write:
        write(3, small_state(3))
    assert list(list_checkpoints(tmp_path)) == [3, 5] and newest(tmp_path) == 3


def test_nothing_is_deleted_for_a_generation_that_does_not_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_damaged(*arguments: Any, **named: Any) -> Path:
        path = save_checkpoint(*arguments, **named)
        damage_file(path)
        return path

    save(tmp_path, 1)
    monkeypatch.setattr(module, "save_checkpoint", save_damaged)
    with pytest.raises(CheckpointError), checkpoint_writer(tmp_path, run_id="run", config_hash="hash", keep=1) as write:
        write(2, small_state(2))
    assert newest(tmp_path) == 1


def test_a_full_disk_leaves_the_old_checkpoints_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    save_file, full = safetensors.torch.save_file, os.strerror(errno.ENOSPC)

    def failing(tensors: dict[str, torch.Tensor], path: Path) -> None:
        save_file(tensors, path)
        if path.stem == "replay":
            os.truncate(path, path.stat().st_size // 2)
            raise safetensors.SafetensorError(f"I/O error: {full} (os error {errno.ENOSPC})")

    monkeypatch.setattr(safetensors.torch, "save_file", failing)
    with pytest.raises(CheckpointError) as caught:
        save(tmp_path, 2)
    message = str(caught.value)
    assert full in message and "\n" not in message
    assert os.listdir(tmp_path) == ["generation-000001"]
    verify_checkpoint(tmp_path / "generation-000001")


def kill_self_at(function: str, calls_before: int, action: Callable[..., Any], *arguments: Any) -> None:
    call, count = getattr(os, function), itertools.count()

    def dying(*args: Any, **options: Any) -> Any:
        if next(count) == calls_before:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)

    setattr(os, function, dying)
    action(*arguments)


def die_at(function: str, calls_before: int, action: Callable[..., Any], *arguments: Any) -> None:
    process = PROCESSES.Process(target=kill_self_at, args=(function, calls_before, action, *arguments), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize(("function", "calls_before"), [("fsync", 2), ("rename", 1)])
def test_a_death_while_replacing_leaves_the_generation_before(tmp_path: Path, function: str, calls_before: int) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    die_at(function, calls_before, save, tmp_path, 2, small_state(22))
    latest = load_latest(tmp_path)
    assert latest is not None
    assert bits(latest.state) in [bits(small_state(mark)) for mark in (1, 2)]
    assert len(os.listdir(tmp_path)) > len(list_checkpoints(tmp_path))
    remove_leftovers(tmp_path)
    assert {"generation-000001"} <= set(os.listdir(tmp_path)) <= {"generation-000001", "generation-000002"}


def test_a_death_while_pruning_leaves_only_whole_checkpoints(tmp_path: Path) -> None:
    for generation in (1, 2, 3):
        save(tmp_path, generation)
    die_at("rmdir", 0, prune_checkpoints, tmp_path, 1)
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["generation-000002", "generation-000003"]
    for path in list_checkpoints(tmp_path).values():
        verify_checkpoint(path)


Tensors = dict[str, torch.Tensor]


def reseal(path: Path) -> None:
    files = {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.name != "manifest.json"}
    sums = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    seal(path, json.loads((path / "manifest.json").read_text()) | {"files": sums})


def changed(part: str, change: Callable[[Tensors], object]) -> Callable[[Path], None]:
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


@pytest.mark.parametrize("craft", [changed("champion", other_shape), changed("replay", nan), missing("random")])
def test_a_resumed_run_uses_the_generation_before(
    cut: Path, capsys: pytest.CaptureFixture[str], craft: Callable[[Path], Any]
) -> None:
    path = cut.parent / "runs" / "cut" / "checkpoints" / "generation-000002"
    craft(path)
    reseal(path)
    with unjudged():
        assert run(cut, "--resume", "cut", "--generations", "3") == 0
    told, warned = capsys.readouterr()
    assert "generation-000002 is not used: " in warned and "resumed after generation 1" in told
    assert_like(cut, "cut", "whole", 3)


@pytest.mark.parametrize("craft", [changed("champion", nan), missing("champion")])
def test_an_opened_run_uses_the_generation_before(
    cut: Path, capsys: pytest.CaptureFixture[str], craft: Callable[[Path], Any]
) -> None:
    runs = cut.parent / "runs"
    second, first = (runs / "cut" / "checkpoints" / f"generation-00000{number}" for number in (2, 1))
    craft(second)
    reseal(second)
    assert open_saved_run(runs, "cut").generation == 1
    craft(first)
    reseal(first)
    assert main(["signals", "--run", "cut", "--runs-dir", str(runs)]) == 2
    shown = capsys.readouterr().err
    assert "expected a complete generation of this version" in shown and "Traceback" not in shown
