"""The user's own scripts run as they are, on the default data file or, without one, on the built-in market."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.market_cases import random_panel
from tests.small_market import panel_frame
from utils.config import Config

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT.parent / "shared" / "user_scripts"
needs_scripts = pytest.mark.skipif(not SCRIPTS.is_dir(), reason="needs the scripts in ../shared/user_scripts")
SCRIPT = """
import gc

import psutil

from data.loader import StockDataLoader
from environment.trading_env import TradingEnvironment
from utils.config import Config

loader = StockDataLoader()
data_array, stats = loader.load_and_prepare()
stats = loader.compute_normalization_stats()
start = Config.CONTEXT_WINDOW_DAYS
env = TradingEnvironment(
    data_array=loader.data_array,
    dates=loader.dates,
    normalization_stats=stats,
    start_idx=start,
    end_idx=start + 145,
    trading_end_idx=start + 125,
)
sizes = []
for i in range(10):
    state, info = env.reset()
    gc.collect()
    sizes.append(psutil.Process().memory_info().rss / 2**20)
    print(i, state.shape, f"{sizes[-1]:.0f} MB")
assert max(sizes) - sizes[0] < 10, sizes
assert info["day_index"] == start and data_array is loader.data_array
"""


def run_in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_ten_resets_on_the_default_file_keep_memory_flat(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    gaps = {"missing": 0.0, "delist": 0.0, "late_start": 0.0, "halt": 0.0}
    frame = panel_frame(random_panel(np.random.default_rng(0), Config.CONTEXT_WINDOW_DAYS + 160, 60, **gaps))
    frame.to_parquet(tmp_path / "data" / "stock_data.parquet")
    done = run_in(tmp_path, sys.executable, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(60, 9)") == 10


@needs_scripts
def test_the_users_script_runs_without_a_file(tmp_path: Path) -> None:
    done = run_in(tmp_path, sys.executable, str(SCRIPTS / "test_env_reuse.py"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("shape=(41, 9)") == 10 and "ok: All 10 episodes" in done.stdout
    assert not any(tmp_path.iterdir())


@needs_scripts
def test_what_the_users_notes_look_for_is_there() -> None:
    done = run_in(ROOT, "/bin/bash", str(SCRIPTS / "greps.sh"))
    assert done.returncode == 0, done.stdout
