"""The run folder: records survive exactly, a resumed run forgets what it repeats, runs are found again."""

import io
import json
import logging
import math
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tqdm import tqdm

from utils.config.settings import LATEST
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.runs.checkpoint import encode_state, save_checkpoint
from utils.runs.console import ConsoleHandler, setup_logging
from utils.runs.find import RunFiles, name_to_resume, newest_run, standings
from utils.runs.run_log import RunLog, write_json

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


contents = st.dictionaries(st.text("xyz", min_size=1, max_size=3), values, max_size=5)


@given(st.lists(contents, max_size=6), st.integers(-1, 7), st.sampled_from([b"", b'{"generation": 9', b"\0\0"]))
@settings(max_examples=25)
def test_records_come_back_exactly_and_a_resumed_run_is_the_one_never_interrupted(
    tmp_path_factory: pytest.TempPathFactory, contents: list[dict[str, Any]], keep: int, torn: bytes
) -> None:
    runs = tmp_path_factory.mktemp("runs")
    whole, broken = (RunLog.create(runs, name, {}) for name in ("whole", "broken"))
    records = [{"generation": number, **content} for number, content in enumerate(contents)]
    for record in records:
        whole.append(record)
        broken.append(record)
    with (broken.path / "metrics.jsonl").open("ab") as file:
        file.write(torn)
    resumed = RunLog.open(runs, "broken")
    resumed.truncate_to(keep)
    # Numbers that are not finite are written as null.
    assert resumed.records() == json.loads(json.dumps(records[: keep + 1]), parse_constant=lambda _: None)
    for record in records[keep + 1 :]:
        resumed.append(record)
    lines = (broken.path / "metrics.jsonl").read_bytes()
    assert lines == ((whole.path / "metrics.jsonl").read_bytes() if records else b"")
    assert sorted(path.name for path in broken.path.iterdir()) == ["config.json", "config.toml", "metrics.jsonl"]


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        ('{"generation": 1}\n{"generation": 2}\n{"gener', ["is torn and is dropped: b'{\"gener'"]),
        ('{"generation": 1}\n{"generation": 2}', ["is torn", "no record of 1 generations, the first of them 2"]),
        ("", ["no record of 2 generations, the first of them 1"]),
    ],
)
def test_what_a_resumed_run_has_lost_of_its_records_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, contents: str, told: list[str]
) -> None:
    log = RunLog.create(tmp_path, "a", {})
    (log.path / "metrics.jsonl").write_text(contents)
    log.truncate_to(2)
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
    assert log.use_newest("one", lambda one: one).generation == 1
    with pytest.raises(ConfigError, match=r"expected the settings that .* began with, got others"):
        log.use_newest("two", lambda one: one)
    assert not log.is_stopped_at_first()
    (path / "part.json").write_text("damaged")
    assert not log.is_stopped_at_first()
    with pytest.raises(ConfigError, match="got none; bring its checkpoints back from a copy, or start a new run"):
        log.use_newest("one", lambda one: one)
    shutil.rmtree(path)  # resuming begins anew
    with pytest.raises(ConfigError, match="got none; train it with --resume a, or start a new run"):
        log.use_newest("one", lambda one: one)


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


FILES = ("config.json", "metrics.jsonl", "summary.json", "market.json")


@pytest.mark.parametrize(
    ("runs", "newest", "resumed"),
    [
        ({"b": (0, 1), "a": (0, 2), "c": (0, 3)}, "c", "c"),
        ({"c": (0, 3), "begun": (0,)}, "c", "c"),
        ({"c": (0, 3), "begun": (4,)}, "c", "c"),
        ({"c": (0, 3), "begun": (4, None, None, 4)}, "c", "begun"),  # its data were accepted
        ({"cut": (0, 2), "ended": (0, 5, 6), "extended": (0, 1, 0)}, "ended", "cut"),
        ({"cut": (0, 2), "ended": (0, 5, 6), "extended": (0, 3, 0)}, "ended", "extended"),
        ({"cut": (0, 2), "ended": (0, 7, 6), "extended": (0, 3, 0)}, "ended", "ended"),  # it goes on
    ],
)
def test_the_newest_run_and_the_one_to_resume(
    tmp_path: Path, runs: dict[str, tuple[int | None, ...]], newest: str, resumed: str
) -> None:
    """By the seconds at which their files were written: the last one that trained, the last one that has not ended."""
    for name, times in runs.items():
        (tmp_path / name).mkdir()
        for path, when in zip((tmp_path / name / file for file in FILES), times, strict=False):
            if when is not None:
                path.touch()
                os.utime(path, (when, when))
    assert (newest_run(tmp_path).name, name_to_resume(LATEST, tmp_path, None)) == (newest, resumed)


def test_a_study_that_has_ended_does_not_hide_one_that_was_stopped() -> None:
    files = {"stopped/plan.json": 0.0, "ended/plan.json": 10.0, "ended/report.html": 11.0}
    assert max(standings(files, RunFiles("test", "plan.json", "report.html"))).name == "stopped"


def test_latest_run_needs_one_that_got_somewhere(tmp_path: Path) -> None:
    RunLog.create(tmp_path, "only-begun", {})
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError, match=r"expected a run that has trained in .* or name another --runs-dir"):
            newest_run(folder)
    with pytest.raises(ConfigError, match="expected a run to resume in"):
        name_to_resume(LATEST, tmp_path / "missing", None)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "a.json", {"champion": math.nan, "rss": [1, 2.5]})
    monkeypatch.setattr(os, "fsync", mock.Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_json(tmp_path / "a.json", {"champion": 1})
    assert json.loads((tmp_path / "a.json").read_text()) == {"champion": None, "rss": [1, 2.5]}


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


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("ascii", "T?rkiye ? 5 ??"), ("cp1252", "T\xfcrkiye ? 5 \x80?"), ("utf-8", "T\xfcrkiye \u2192 5 \u20ac?")],
)
@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
def test_a_console_that_lacks_letters_shows_all_others(
    monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str, level: int
) -> None:
    """Also those of a file's name that is no text."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding=encoding) for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    # Not by a logger, whose messages the test runner hands on, which needs letters that are text.
    said = {"name": "training", "levelno": level, "msg": "T\xfcrkiye \u2192 5 \u20ac\udcff"}
    ConsoleHandler(verbose=False, results=level == logging.INFO).handle(logging.makeLogRecord(said))
    raw = dict[str, bytes]()
    for name, stream in streams.items():
        stream.flush()
        stream.buffer.seek(0)
        raw[name] = stream.buffer.read()
    told, other = (raw["stdout"], raw["stderr"]) if level == logging.INFO else (raw["stderr"], raw["stdout"])
    assert other == b"" and told.decode(encoding if encoding != "cp1252" else "latin-1").endswith(f"{shown}\n")


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
    _, told = process.communicate(timeout=250)
    assert (process.returncode, told) == (0, "WARNING it goes on\n")
