"""Settings of the test process."""

import gc
import logging
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

# Processes side by side have a core each, and so have the programs that they start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell that starts tests in the background leaves Ctrl-C ignored, also in the programs that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# On a rented machine, too, runs of tests stay away from its volume.
os.environ.pop("BOX_VOLUME", None)

import psutil
import pytest
import torch
from hypothesis import HealthCheck, settings
from matplotlib.figure import Figure

from data.features.grammar import Quantities
from data.features.inputs import TradeInputs
from tests.once import computed_once
from tests.tiny_run import keep_in, tiny_in, unjudged
from training.evaluation.baselines import Tuning
from training.forecasts.training_days import TrainingDays
from utils import pictures, statistics
from utils.memory_profiler import MemoryProfiler, restart_profiler
from utils.pictures import _figure, new_figure

# A shared machine may be slow at any moment. Examples are the same in every process, so that what fails does so by
# a change, and again; `--hypothesis-profile search` draws others.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", UNTIMED)
settings.register_profile("project", UNTIMED, derandomize=True)
settings.load_profile("project")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many processes as there are cores; one more for slow tests, which mostly wait for programs that they start."""
    return (os.cpu_count() or 1) + (config.option.markexpr == "slow")


SLOW = (
    *("benchmarks/", "test_examples", "test_wheel", "jobs/test_folds"),
    *("box/test_first_hour", "data/test_planted_decisions", "runs/test_tracker", "policies/test_sb3"),
)
"""Tests of whole programs in processes of their own, and of studies: `pytest -m slow`."""
MEASURE, RESAMPLES = psutil.Process.memory_full_info, statistics.RESAMPLES
ALL, SEARCH, DAYS = vars(Quantities)["names"], TradeInputs.fit_formulas, vars(TrainingDays)["of"]
QUANTITIES = ("gap", "intraday", "rsi", "return_5", "range_shock_1")
"""Of which formulas of tiny runs are made."""
LONGEST = (
    *("test_readme", "test_what_decides", "test_executors", "test_folds", "test_faults"),
    "test_cards",
)
"""Files that begin first, so that no process ends with one of them while the others are idle."""


def is_slow(path: Path) -> bool:
    """Whether all tests of a file or folder are slow."""
    name = path.relative_to(Path(__file__).parent).as_posix()
    return f"{name}/".startswith(SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file whose tests are left out, where all are collected: that takes each process a while."""
    is_left_out = config.option.markexpr == "not slow" and [Path(one).name for one in config.args] == ["tests"]
    return True if is_left_out and is_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, and put the longest files first; `--no-loadscope-reorder` keeps this order."""
    for item in items:
        if is_slow(item.path):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def resident(process: psutil.Process) -> SimpleNamespace:
    """Memory as far as the system counts it at all times: all of it is the process's own."""
    now = process.memory_info()
    return SimpleNamespace(rss=now.rss, vms=now.vms, uss=now.rss)


def blank(*_: object) -> Figure:
    """Nothing, in place of a chart."""
    return Figure((1, 1), 20)


@pytest.fixture(scope="session", autouse=True)
def blank_pictures() -> Iterator[None]:
    """Draw charts as nothing, and other pictures of few pixels: charts take half of the time of judging a tiny run.

    Processes that tests start draw theirs.
    """
    with mock.patch.multiple(pictures, new_figure=partial(new_figure, dpi=20), _figure=blank):
        yield


@pytest.fixture(scope="session", autouse=True)
def cheap_memory() -> Iterator[None]:
    """Look for garbage in what is made from now on, and read no memory page by page: both are done after each phase of
    a run, and take half of the time of a tiny one."""
    gc.freeze()
    with mock.patch.object(psutil.Process, "memory_full_info", resident):
        yield


@pytest.fixture(scope="session", autouse=True)
def computed_before() -> Iterator[None]:
    """Search formulas among few quantities, and draw few resamples of accounts; of equal markets search formulas,
    compute training days and tune rules once a process: that takes most of the time of a tiny run."""
    few = property(lambda table: [name for name in ALL.func(table) if name in (*QUANTITIES, *table.market.columns)])
    with (
        mock.patch.object(Quantities, "names", few),
        mock.patch.object(statistics, "RESAMPLES", 100),
        computed_once(TradeInputs, "fit_formulas"),
        computed_once(TrainingDays, "of"),
        computed_once(Tuning, "tuned_together"),
    ):
        yield


@pytest.fixture
def days_anew(computed_before: None) -> Iterator[None]:
    """Compute the training days of one test anew."""
    with mock.patch.object(TrainingDays, "of", DAYS):
        yield


@pytest.fixture(scope="module")
def all_formulas(computed_before: None) -> Iterator[None]:
    """Search the formulas of a module's tests among all quantities."""
    anew = mock.patch.object(TradeInputs, "fit_formulas", SEARCH), mock.patch.object(TrainingDays, "of", DAYS)
    with mock.patch.object(Quantities, "names", ALL), anew[0], anew[1], computed_once(TrainingDays, "of"):
        yield


@pytest.fixture(scope="module")
def real_charts(blank_pictures: None) -> Iterator[None]:
    """Draw the charts of a module's tests."""
    with mock.patch.multiple(pictures, _figure=_figure):
        yield


@pytest.fixture
def blank_charts() -> Iterator[None]:
    """Draw the charts of one test as nothing, in a module that draws them."""
    with mock.patch.multiple(pictures, _figure=blank):
        yield


@pytest.fixture
def tiny(tmp_path: Path, small_heap: None) -> Path:
    """A settings file that makes a run take a second."""
    return tiny_in(tmp_path)


@pytest.fixture
def volume(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep runs in a folder as in a bucket."""
    return keep_in(tiny.parent / "volume", monkeypatch)


@pytest.fixture(scope="module", autouse=True)
def restore_process() -> Iterator[None]:
    """Undo what runs of a module's tests set for the process: threads, and log handlers, whose folders are gone."""
    threads, handlers = torch.get_num_threads(), logging.getLogger().handlers[:]
    yield
    torch.set_num_threads(threads)
    logging.getLogger().handlers[:] = handlers


@pytest.fixture(scope="module")
def judge_nothing() -> Iterator[None]:
    """Let runs end without their judgement, which takes most of the time of a tiny one."""
    with unjudged():
        yield


@pytest.fixture(scope="module")
def small_heap() -> None:
    """Hide what the libraries and the test runner hold: a census of it would take most of the time."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def profiler() -> Iterator[MemoryProfiler]:
    """A fresh profiler of the process, which reads all of its memory."""
    with mock.patch.object(psutil.Process, "memory_full_info", MEASURE):
        yield restart_profiler()
    restart_profiler()
