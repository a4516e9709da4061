"""A script that checks memory by its own means: one environment, reset ten times, on the default data file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from tests.market_cases import random_panel
from tests.small_market import panel_frame
from utils.config import Config

ROOT = Path(__file__).resolve().parents[2]
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
    print(i, state["market"].shape, f"{sizes[-1]:.0f} MB")
assert max(sizes) - sizes[0] < 10, sizes
assert info["day_index"] == start and data_array is loader.data_array
"""


def run_script(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


def test_ten_resets_on_the_default_file_keep_memory_flat(tmp_path: Path) -> None:
    days, tickers = Config.CONTEXT_WINDOW_DAYS + 160, 60
    (tmp_path / "data").mkdir()
    frame = panel_frame(
        random_panel(np.random.default_rng(0), days, tickers, missing=0.0, delist=0.0, late_start=0.0, halt=0.0)
    )
    frame.to_parquet(tmp_path / "data" / "stock_data.parquet")
    done = run_script(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"({tickers}, 9)") == 10


def test_without_the_default_file_the_error_names_it_and_how_to_make_one(tmp_path: Path) -> None:
    done = run_script(tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "data/stock_data.parquet does not exist" in last and "main.py prepare" in last


def test_the_constant_is_the_default_of_the_setting() -> None:
    assert Config.CONTEXT_WINDOW_DAYS == Config().split.context_window_days == 504
    with pytest.raises(ValidationError):
        Config(CONTEXT_WINDOW_DAYS=1)  # type: ignore[call-arg]
