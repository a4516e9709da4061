"""Scripts, notes and watches that were written for the system that this one replaces work as they are."""

import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.trainers import run_generation
from tests.market_cases import random_panel
from tests.screen import screen
from tests.small_market import panel_frame
from tests.tiny import tiny_trainer
from tests.tiny_run import tiny_in
from utils.config import Config

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT = """
import gc

import psutil

from data.loader import StockDataLoader
from environment.trading_env import TradingEnvironment
from tests.tiny import tiny_trainer
from tests.tiny_run import tiny_in
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


@pytest.mark.slow
def test_ten_resets_on_the_default_file_keep_memory_flat(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    gaps = {"missing": 0.0, "delist": 0.0, "late_start": 0.0, "halt": 0.0}
    frame = panel_frame(random_panel(np.random.default_rng(0), Config.CONTEXT_WINDOW_DAYS + 160, 60, **gaps))
    frame.to_parquet(tmp_path / "data" / "stock_data.parquet")
    done = run_in(tmp_path, sys.executable, "-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(60, 9)") == 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("env_reuse.py", ["Environment created once", *[f"Episode {n}: Reset" for n in range(1, 11)], "ok: All 10"]),
        ("episode.py", ["Total reward: ", "memory [Gen 1: After evaluate_population] RAM ", "memory growth since"]),
    ],
)
def test_a_script_runs_without_a_file(tmp_path: Path, script: str, says: list[str]) -> None:
    done = run_in(tmp_path, sys.executable, str(SCRIPTS / script))
    assert done.returncode == 0, done.stderr
    places = [done.stdout.index(text) for text in says]
    assert places == sorted(places) and not any(tmp_path.iterdir())


def test_what_notes_look_for_is_there() -> None:
    done = run_in(ROOT, "/bin/bash", str(SCRIPTS / "greps.sh"))
    assert done.returncode == 0, done.stdout
    assert "self.rollouts.evaluate(self.population" in done.stdout, "the call of an episode"


def test_a_trainer_and_its_agents_have_their_names() -> None:
    trainer = tiny_trainer()
    run_generation(trainer)
    trainer.evolve_population()
    market, agent = trainer.market, trainer.population[0]
    train, validation = market.splits.train, market.splits.validation
    assert (trainer.train_start_idx, trainer.train_end_idx) == (train.first, train.last)
    assert (trainer.val_start_idx, trainer.normalization_stats) == (validation.first, market.stats)
    assert trainer.replay_buffer.size > 0 and trainer.eval_env is not trainer.val_env
    for network, numbers in (
        (agent.actor, agent.networks.online.actor),
        (agent.actor_target, agent.networks.target.actor),
        (agent.critic, agent.networks.online.critic.flat),
        (agent.critic_target, agent.networks.target.critic.flat),
    ):
        assert sum(part.numel() for part in network.parameters()) == numbers.numel()
        network.load_state_dict({name: part + 1.0 for name, part in network.state_dict().items()})
        assert torch.equal(numbers, network["flat"]), "in the memory of the networks"
    before = agent.actor["flat"].clone()
    run_generation(trainer)
    assert not torch.equal(before, agent.actor["flat"])


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of a run of two generations."""
    folder = tmp_path_factory.mktemp("program")
    words = ["--profile", "quick", "--memory-report", "auto", "--runs-dir", str(folder / "runs")]
    return [sys.executable, str(ROOT / "main.py"), "--config", str(tiny_in(folder)), *words]


@pytest.mark.slow
def test_what_is_looked_for_in_a_log_is_there(tmp_path: Path, program: list[str]) -> None:
    with (tmp_path / "main.log").open("w") as log:
        subprocess.run([*program, "--run", "file"], cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT, check=True)
    done = run_in(tmp_path, "/bin/bash", str(SCRIPTS / "log_greps.sh"))
    assert done.returncode == 0, done.stdout
    assert "memory [" not in (tmp_path / "main.log").read_text()


def in_terminal(command: list[str], folder: Path, columns: int, stop_at: str | None = None) -> tuple[int, str]:
    """Run a command in a terminal, with Ctrl-C where it shows a text; return its exit code and what it writes."""
    terminal, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(command, cwd=folder, stdin=end, stdout=end, stderr=end, env=environment)
    os.close(end)
    shown = b""
    with contextlib.suppress(OSError):  # which ends what a terminal gives
        while part := os.read(terminal, 65536):
            shown += part
            if stop_at is not None and stop_at in shown.decode(errors="replace"):
                process.send_signal(signal.SIGINT)
                stop_at = None
    os.close(terminal)
    return process.wait(), shown.decode()


@pytest.mark.slow
def test_ctrl_c_in_the_first_generation_leaves_no_bar(tmp_path: Path, program: list[str]) -> None:
    command = [*program, "--run", "stopped", "--learning.gradient-steps", "20000"]
    code, shown = in_terminal(command, tmp_path, 100, stop_at="Training agents: ")
    lines = screen(shown)
    assert code == 130 and not any("|" in line for line in lines), lines
    asked, told = (next(line for line in lines if text in line) for text in ("at the next safe", "stopped by SIGINT"))
    assert asked.startswith("stopping at") and told.startswith("WARNING "), lines


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 100])
def test_a_terminal_shows_the_phase_in_its_bar_and_rows_above_it(
    tmp_path: Path, program: list[str], columns: int
) -> None:
    code, shown = in_terminal([*program, "--run", f"wide-{columns}"], tmp_path, columns)
    assert code == 0
    lines = [line for line in re.split(r"[\r\n]+", shown) if line.strip()]
    bars = [line for line in lines if "|" in line]
    for phase in ("Evaluating agents", "Evolving population: 1 -> 2", "Training agents", "Validating agent"):
        assert any(line.startswith(f"Generation 1 / 2: {phase}") for line in bars), phase
    assert sum(line.lstrip().startswith("RAM ") for line in lines) == 2
    texts = [line for line in lines if "|" not in line and "/runs" not in line and "runs/" not in line]
    long = [line for line in texts if len(line) > columns]
    assert not long
    assert not any("memory trend" in line for line in lines)
