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
from functools import partial
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
from utils.errors import CheckpointError, ConfigError
from utils.runs import checkpoint as module
from utils.runs.checkpoint import (
    checkpoint_writer,
    encode_state,
    list_checkpoints,
    load_checkpoint,
    load_latest,
    newest_usable,
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
    return newest_usable(root, run_id, lambda checkpoint: checkpoint.generation)


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
    # Random bytes: float tensors hold NaNs with payloads, infinities and subnormals. Transposed ones are strided.
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype) if count else torch.empty(0, dtype=dtype)
    return tensor.reshape(shape).movedim(0, -1) if shape else tensor.reshape(shape)


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
names = st.from_regex(r"[a-l][a-z0-9_]{0,5}", fullmatch=True)
states = st.dictionaries(names, st.dictionaries(keys, values), max_size=3)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states)
def test_any_state_comes_back_bit_for_bit(tmp_path: Path, state: dict[str, dict[str, Any]]) -> None:
    """Tensors that share memory, too."""
    state = {name: {"once": part, "again": part} for name, part in state.items()}
    loaded = load_checkpoint(save_checkpoint(tmp_path, 3, encode_state(state), run_id="r", config_hash="c"))
    assert bits(loaded.state) == bits(state)
    assert (loaded.generation, loaded.run_id, loaded.config_hash) == (3, "r", "c")


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


def lengthen(file: Path) -> None:
    os.truncate(file, 1 << 40)  # a sparse terabyte: reading it would fail


def replace_by_link(file: Path) -> None:
    file.symlink_to(file.rename(file.parents[1] / file.name))


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("extra.json", Path.touch, r"missing or added files: \['extra.json'\]"),
        ("replay.json", Path.unlink, r"missing or added files: \['replay.json'\]"),
        ("replay.json", replace_by_link, "plain file"),
        ("replay.json", lengthen, r"expected at most \d+ bytes in replay.json"),
        ("manifest.json", lengthen, r"expected at most \d+ bytes in manifest.json"),
        ("manifest.json", Path.unlink, "manifest.json: No such file"),
        *(
            ("manifest.json", partial(Path.write_bytes, data=data), "is not one")
            for data in (b"[" * 100_000, b"\xff", b"[]", b"cos\nsystem\n(S'false'\ntR.")
        ),
    ],
)
def test_missing_added_and_odd_files_are_refused(
    tmp_path: Path, name: str, change: Callable[[Path], object], reason: str
) -> None:
    path = save(tmp_path, 1)
    change(path / name)
    with pytest.raises(CheckpointError, match=reason):
        load_checkpoint(path)


LITTER = (".DS_Store", "._manifest.json", "._replay.json", "desktop.ini", "Thumbs.db", "thumbs.db")


def test_what_file_managers_leave_in_a_checkpoint_is_passed_over_and_goes_with_it(tmp_path: Path) -> None:
    for generation in (1, 2):
        path = save(tmp_path, generation)
        for name in LITTER:
            (path / name).write_bytes(b"\0")
            (tmp_path / name).write_bytes(b"\0")
    loaded = load_latest(tmp_path, run_id="run")
    assert loaded is not None and bits(loaded.state) == bits(small_state(2))
    prune_checkpoints(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["generation-000002"]


def seal(path: Path, **changes: Any) -> None:
    """Change a manifest and write it with its checksum, as the writer of a checkpoint does."""
    own = json.loads((path / "manifest.json").read_text()) | changes
    del own["sha256"]
    sha256 = hashlib.sha256((json.dumps(own, indent=1) + "\n").encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(own | {"sha256": sha256}, indent=1) + "\n")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema": module.SCHEMA + 1}, f"expected a checkpoint of schema {module.SCHEMA}, got {module.SCHEMA + 1}"),
        ({"generation": "1"}, "expected generation 1 by"),
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
    seal(path, **change)
    with pytest.raises((CheckpointError, ConfigError), match=reason):
        load_checkpoint(path)


def test_one_of_the_last_schema_is_read(tmp_path: Path) -> None:
    """So that a run goes on after an update."""
    seal(path := save(tmp_path, 1), schema=module.READABLE[0])
    assert module.SCHEMA in module.READABLE and module.read_manifest(path).schema == module.READABLE[0]


@pytest.mark.parametrize("schema", range(15, module.READABLE[0]))
def test_one_of_an_earlier_schema_names_the_commit_that_reads_it(tmp_path: Path, schema: int) -> None:
    """Also where a damaged one is newer; every schema since 15 has one."""
    seal(save(tmp_path, 1), schema=schema)
    save_damaged(tmp_path, 2, encode_state(small_state()), run_id="run", config_hash="hash")
    reader = r"`git checkout [0-9a-f]{8}` \(version \d+\.\d+\.\d+\)"
    with pytest.raises(ConfigError, match=rf"got {schema} in .*generation-000001; {reader} continues it"):
        newest(tmp_path, "run")


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


def save_damaged(*arguments: Any, **named: Any) -> Path:
    path = save_checkpoint(*arguments, **named)
    (path / "replay.json").write_text("{}")
    return path


def test_what_the_writer_saves_and_deletes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It saves what the state was, though training goes on in the same tensors.

    It deletes neither the generation just written for later ones, which are damaged, nor any for one that does not
    verify.
    """
    names: dict[str, Any] = {"run_id": "run", "config_hash": "hash"}
    for generation in (1, 2, 3):
        save(tmp_path, generation)
    for generation in (4, 5):
        save_damaged(tmp_path, generation, encode_state(small_state()), **names)
    state = small_state(3)
    with checkpoint_writer(tmp_path, **names, keep=1) as write:
        write(3, state)
        state["population"]["actor.weight"].zero_()
    assert list(list_checkpoints(tmp_path)) == [3, 5]
    latest = load_latest(tmp_path)
    assert latest is not None and bits(latest.state) == bits(small_state(3))
    monkeypatch.setattr(module, "save_checkpoint", save_damaged)
    with pytest.raises(CheckpointError), checkpoint_writer(tmp_path, **names, keep=1) as write:
        write(4, small_state(4))
    assert newest(tmp_path) == 3


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
    assert full in str(caught.value) and "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == ["generation-000001"]
    verify_checkpoint(tmp_path / "generation-000001")


def kill_self_at(function: str, calls_before: int, action: Callable[[Path], Any], root: Path) -> None:
    call, count = getattr(os, function), itertools.count()

    def dying(*args: Any, **options: Any) -> Any:
        if next(count) == calls_before:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **options)

    setattr(os, function, dying)
    action(root)


@pytest.mark.parametrize(
    ("function", "calls_before", "action", "left"),
    [
        ("fsync", 2, partial(save, generation=3, state=small_state(33)), [1, 2, 3]),
        ("rename", 1, partial(save, generation=3, state=small_state(33)), [1, 2]),
        ("rmdir", 0, partial(prune_checkpoints, keep=1), [2, 3]),
    ],
)
def test_a_death_while_replacing_or_pruning_leaves_only_whole_checkpoints(
    tmp_path: Path, function: str, calls_before: int, action: Callable[[Path], Any], left: list[int]
) -> None:
    for generation in (1, 2, 3):
        save(tmp_path, generation)
    process = PROCESSES.Process(target=kill_self_at, args=(function, calls_before, action, tmp_path), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert list(list_checkpoints(tmp_path)) == left and len(os.listdir(tmp_path)) > len(left)
    remove_leftovers(tmp_path)
    assert len(os.listdir(tmp_path)) == len(left)
    for generation, path in list_checkpoints(tmp_path).items():
        assert bits(load_checkpoint(path).state) == bits(small_state(generation))


def spoil(run: Path, generation: int, part: str, how: str) -> None:
    """Give the tensors of a part another shape or a NaN, or remove the part, and seal the checkpoint again."""
    path = run / "checkpoints" / f"generation-{generation:06d}"
    file = path / f"{part}.safetensors"
    if how == "missing":
        file.unlink()
        file.with_suffix(".json").unlink()
    else:
        held = safetensors.torch.load(file.read_bytes())
        for name, value in held.items():
            if how == "shape" and value.ndim:
                held[name] = value[..., :-1].contiguous()
            if how == "NaN" and value.is_floating_point() and value.numel():
                value.view(-1)[0] = torch.nan
        file.write_bytes(safetensors.torch.save(held))
    files = {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.name != "manifest.json"}
    sums = {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    seal(path, files=sums)


@pytest.mark.usefixtures("days_anew")
@pytest.mark.parametrize(("part", "how"), [("champion", "shape"), ("replay", "NaN"), ("random", "missing")])
def test_a_resumed_run_uses_the_generation_before(
    cut: Path, capsys: pytest.CaptureFixture[str], part: str, how: str
) -> None:
    spoil(cut.parent / "runs" / "cut", 2, part, how)
    with unjudged():
        assert run(cut, "--resume", "cut", "--generations", "3") == 0
    told, warned = capsys.readouterr()
    assert "generation-000002 is not used: " in warned and "resumed after generation 1" in told
    assert_like(cut, "cut", "whole", 3)


@pytest.mark.parametrize("how", ["NaN", "missing"])
def test_an_opened_run_uses_the_generation_before(cut: Path, capsys: pytest.CaptureFixture[str], how: str) -> None:
    runs = cut.parent / "runs"
    spoil(runs / "cut", 2, "champion", how)
    assert open_saved_run(runs, "cut").generation == 1
    spoil(runs / "cut", 1, "champion", how)
    assert main(["signals", "--run", "cut", "--runs-dir", str(runs)]) == 2
    shown = capsys.readouterr().err
    assert "expected a complete generation of this version" in shown and "Traceback" not in shown
