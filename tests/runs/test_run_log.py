"""The run folder: records survive exactly, a resumed run forgets what it repeats, runs are found again."""

import io
import json
import logging
import math
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

from training.run.study_folder import StudyKind
from utils.config.settings import LATEST
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.runs.checkpoint import encode_state, save_checkpoint
from utils.runs.console import setup_logging
from utils.runs.find import name_to_resume, newest_run
from utils.runs.run_log import RunLog

floats = st.floats() | st.floats(width=32)
values = st.recursive(
    floats | st.integers(-(2**40), 2**40) | st.booleans() | st.none() | st.text("ab é\n", max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1, max_size=2), inner),
    max_leaves=8,
)


@pytest.fixture(autouse=True)
def quiet_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most tests are about the text files; TensorBoard's writer is slow to start."""
    monkeypatch.setattr(RunLog, "_write_events", lambda *_: None)


def without_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [without_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@settings(deadline=None, max_examples=20)
@given(records=st.lists(st.dictionaries(st.text("xyz", min_size=1, max_size=3), values, max_size=5), max_size=4))
def test_records_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]) -> None:
    runs = tmp_path_factory.mktemp("runs")
    log = RunLog.create(runs, "one", {})
    numbered = [{"generation": number, **record} for number, record in enumerate(records)]
    for record in numbered:
        log.append(record)
    assert log.records() == without_non_finite(numbered)
    lines = (log.path / "metrics.jsonl").read_bytes() if numbered else b""
    assert lines.count(b"\n") == len(numbered)


@given(count=st.integers(0, 6), keep=st.integers(-1, 7), torn=st.sampled_from([b"", b'{"generation": 9', b"\0\0"]))
@settings(deadline=None, max_examples=20)
def test_a_resumed_run_is_the_one_never_interrupted(
    tmp_path_factory: pytest.TempPathFactory, count: int, keep: int, torn: bytes
) -> None:
    def record(generation: int) -> dict[str, Any]:
        return {"generation": generation, "fitness": {"mean": 0.1 * generation, "max": math.inf}}

    runs = tmp_path_factory.mktemp("runs")
    whole, broken = (RunLog.create(runs, name, {}) for name in ("whole", "broken"))
    for generation in range(count):
        whole.append(record(generation))
        broken.append(record(generation))
    with (broken.path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    resumed = RunLog.open(runs, "broken")
    resumed.truncate_to(keep)
    assert [item["generation"] for item in resumed.records()] == list(range(min(count, keep + 1)))
    for generation in range(max(keep + 1, 0), count):
        resumed.append(record(generation))
    lines = (broken.path / "metrics.jsonl").read_bytes()
    assert lines == ((whole.path / "metrics.jsonl").read_bytes() if count else b"")
    assert sorted(path.name for path in broken.path.iterdir()) == ["config.json", "config.toml", "metrics.jsonl"]


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        ('{"generation": 1}\n{"generation": 2}\n', []),
        ('{"generation": 1}\n{"generation": 2}\n{"gener', ["is torn and is dropped: b'{\"gener'"]),
        (
            '{"generation": 1}\n{"generation": 2}',
            ["is torn and is dropped", "no record of 1 generations, the first of them 2"],
        ),
        ("", ["no record of 2 generations, the first of them 1"]),
    ],
)
def test_what_a_resumed_run_has_lost_of_its_records_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, contents: str, told: list[str]
) -> None:
    log = RunLog.create(tmp_path, "a", {})
    (log.path / "metrics.jsonl").write_text(contents)
    log.truncate_to(2)
    assert len(caplog.messages) == len(told)
    assert all(text in line for text, line in zip(told, caplog.messages, strict=True))


def test_a_broken_line_in_the_middle_is_refused(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path, "a", {})
    (log.path / "metrics.jsonl").write_text('{"generation": 1}\nnot json\n{"generation": 3}\n')
    with pytest.raises(ConfigError, match=r"line 2 of .*metrics\.jsonl"):
        log.records()


@pytest.mark.parametrize("text", ["{", "[]", '{"old_setting": 1}', '{"seed": "x"}', "[" * 100_000])
def test_settings_that_this_version_cannot_read_are_refused_in_one_line(tmp_path: Path, text: str) -> None:
    log = RunLog.create(tmp_path, "a", {})
    (log.path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"expected settings of this version in .*config\.json, got: [^\n]*$"):
        log.settings(Config)


def test_a_checkpoint_of_other_settings_or_another_version_is_refused(tmp_path: Path) -> None:
    log = RunLog.create(tmp_path, "a", {})
    path = save_checkpoint(log.path / "checkpoints", 1, encode_state({"part": {"x": 1}}), run_id="a", config_hash="one")
    assert log.newest_generation("one", lambda one: one).generation == 1
    with pytest.raises(ConfigError, match=r"expected the settings that .* began with, got others"):
        log.newest_generation("two", lambda one: one)
    assert not log.is_stopped_at_first()
    (path / "part.json").write_text("damaged")
    assert not log.is_stopped_at_first()
    with pytest.raises(ConfigError, match="expected a complete generation of this version"):
        log.newest_generation("one", lambda one: one)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("a", None):
        with pytest.raises(ConfigError, match="--runs-dir"):
            RunLog.create(tmp_path / "file", name, {})
    with pytest.raises(ConfigError):
        RunLog.create(tmp_path, "file", {})


def test_an_unknown_run_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got 'alpa'; the last names there: none"):
        RunLog.open(tmp_path, "alpa")
    for name in ("alpha", "beta"):
        RunLog.create(tmp_path, name, {})
    with pytest.raises(ConfigError, match="got 'alpa'; the nearest is 'alpha'"):
        RunLog.open(tmp_path, "alpa")
    with pytest.raises(ConfigError, match=r"got 'nope'; the last names there: alpha, beta$"):
        RunLog.open(tmp_path, "nope")


def at(seconds: int, *paths: Path) -> None:
    for path in paths:
        os.utime(path, (seconds, seconds))


def resumed(runs: Path) -> str:
    return name_to_resume(LATEST, runs, None)


def test_a_run_that_has_ended_is_resumed_last(tmp_path: Path) -> None:
    for age, (name, generations, ended_at) in enumerate((("cut", 1, 0), ("ended", 2, 2), ("extended", 3, 2))):
        log = RunLog.create(tmp_path, name, {})
        for generation in range(1, generations + 1):
            log.append({"generation": generation})
        if ended_at:
            log.write_summary({"generations": ended_at})
            at(10**9 + 5 if name == "ended" else 10**9 - 5, log.path / "summary.json")
        at(10**9 - age, log.path / "metrics.jsonl")
        at(10**8, log.path / "config.json")
    assert [RunLog(tmp_path / name).end() for name in ("cut", "ended", "extended")] == [None, 2, None]
    at(10**9 + 4, tmp_path / "ended" / "metrics.jsonl")
    assert (newest_run(tmp_path).name, resumed(tmp_path)) == ("ended", "cut")
    at(10**9 + 1, tmp_path / "extended" / "metrics.jsonl")
    assert (newest_run(tmp_path).name, resumed(tmp_path)) == ("ended", "extended")
    at(10**9 + 6, tmp_path / "ended" / "metrics.jsonl")  # it goes on
    assert resumed(tmp_path) == "ended"


def test_a_study_that_has_ended_does_not_hide_one_that_was_stopped(tmp_path: Path) -> None:
    study = StudyKind("sweep", "plan.json", "trial-*", "sweep.json")
    for age, (name, files) in enumerate((("stopped", ["plan.json"]), ("ended", ["plan.json", "sweep.json"]))):
        (tmp_path / name).mkdir()
        for later, file in enumerate(files):
            (tmp_path / name / file).touch()
            at(10**9 + 10 * age + later, tmp_path / name / file)
    assert study._find(Config(resume=LATEST, runs_dir=tmp_path), None).name == "stopped"


def test_latest_run_is_the_one_written_last(tmp_path: Path) -> None:
    for age, name in enumerate(("b", "a", "c")):
        log = RunLog.create(tmp_path, name, {})
        log.append({"generation": 1})
        at(10**9 + age, log.path / "metrics.jsonl")
        at(0, log.path / "config.json")
    only_begun = RunLog.create(tmp_path, "only-begun", {}).path
    for when in (0, 10**9 + 3):
        at(when, only_begun / "config.json")
        assert newest_run(tmp_path).name == resumed(tmp_path) == "c"
    (only_begun / "market.json").touch()
    assert (newest_run(tmp_path).name, resumed(tmp_path)) == ("c", "only-begun")


def test_latest_run_needs_one_that_got_somewhere(tmp_path: Path) -> None:
    RunLog.create(tmp_path, "only-begun", {})
    assert resumed(tmp_path) == "only-begun"
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=r"expected a run that has trained in .* or name another --runs-dir"):
            newest_run(folder)
    with pytest.raises(ConfigError, match="expected a run to resume in"):
        resumed(tmp_path / "missing")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = RunLog.create(tmp_path, "a", {})
    log.write_summary({"champion": math.nan, "rss": [1, 2.5]})
    assert json.loads((log.path / "summary.json").read_text()) == {"champion": None, "rss": [1, 2.5]}

    def full_disk(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="disk full"):
        log.write_summary({"champion": 1})
    assert json.loads((log.path / "summary.json").read_text())["champion"] is None


def test_tensorboard_shows_numbers_once_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    # Files of one second are told apart by a count of the process, whose 10 is read before its 9.
    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer._global_uid._value", 0)
    record = {"fitness": {"mean": 1.5, "max": math.nan}, "note": "text", "learning": None}
    with closing(RunLog.create(tmp_path, "a", {})) as log:
        for generation in (1, 2, 3):
            log.append({**record, "generation": generation})
    with closing(RunLog.open(tmp_path, "a")) as log:
        log.truncate_to(1)
        log.append({**record, "generation": 2, "fitness": {"mean": 2.5}})
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"fitness/mean", "generation"}
    assert [(event.step, event.value) for event in events.Scalars("fitness/mean")] == [(1, 1.5), (2, 2.5)]


@pytest.mark.usefixtures("small_heap")
def test_logging_goes_to_the_console_and_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, progress = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", results)
    monkeypatch.setattr(sys, "stderr", progress)
    setup_logging()
    setup_logging(tmp_path)
    with tqdm(total=2, file=progress) as bar:
        bar.update()
        logging.getLogger("training").info("Loaded: %d days", 5)
        logging.getLogger("utils.progress").info("train: 1 of 2 updates")
    logging.getLogger("data").warning("a gap")
    logging.getLogger("torch._subclasses").info("unseen")
    lines = (tmp_path / "run.log").read_text().splitlines()
    assert len(lines) == 3 and lines[0].endswith("INFO Loaded: 5 days")
    assert results.getvalue() == "Loaded: 5 days\n"
    told = progress.getvalue()
    assert "Loaded" not in told and told.index("train: 1 of 2 updates\n") < told.index("WARNING a gap\n")


def test_a_reader_who_has_enough_ends_no_command_and_gets_no_traceback() -> None:
    """As in `signals | head -1`."""
    script = """
import logging, os, sys
from utils.runs.console import setup_logging
setup_logging()
os.close(int(sys.argv[1]))
for _ in range(3):
    logging.getLogger("training").info("an order")
logging.getLogger("training").warning("it goes on")
"""
    reading, writing = os.pipe()
    command = [sys.executable, "-c", script, str(reading)]
    process = subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE, text=True, pass_fds=(reading,))
    os.close(reading)
    os.close(writing)
    _, told = process.communicate(timeout=100)
    assert (process.returncode, told) == (0, "WARNING it goes on\n")
