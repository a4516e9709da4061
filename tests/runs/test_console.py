"""What a run says on the console after a generation."""

import math
from typing import Any

from training.run.results import generation_row, status_block
from utils.config.trader import EnvironmentConfig

RULES = EnvironmentConfig(initial_capital=10_000.0)
"""Episodes of 145 steps."""
PHASES = {"evaluate": 20.12, "train": None, "evolve": 0.1, "validate": 5.0, "checkpoint": 1.0, "other": 19.6}
TRADES = {"trades": 1600, "wins": 900, "losses": 700, "win_rate": 0.5625, "positions_opened": 1760, "costs": 12_345.678}
LEARNED = {"elite_profit_percent": -0.75, "founders": 5, "noise_scale": 0.1}
LEARNED |= {"risk": 0.0312, "largest": 0.1, "horizon": 7.5}
RECORD: dict[str, Any] = {
    "generation": 3,
    "generations": 25,
    "replay": {"size": 8120, "capacity": 50_000, "training_starts": 0},
    "seconds": {**PHASES, "total": 46.2, "average": 100.4, "left": 7600.0},
    "fitness": {"mean": 1.234, "max": 3.2, "min": -2.1, "std": 1.1, "above_zero": 9, "agents": 16},
    "trading": {**TRADES, "days_with_positions": 2300, "days_without_positions": 20},
    "validation": {"champion": 2.25, "other": math.nan},
    "learning": LEARNED,
}
"""Of a run without gradient steps."""
LOSSES = {"critic_loss": 9.43786, "actor_loss": -0.00321, "skipped_updates": 12.0}


def trained(size: int, **learned: float) -> dict[str, Any]:
    replay = {"size": size, "capacity": 50_000, "training_starts": 10_000}
    return {**RECORD, "replay": replay, "learning": {**LEARNED, **learned}}


def assert_says(record: dict[str, Any], *texts: str) -> None:
    block = status_block(record, "resident 1 MB", RULES, "worth a look")
    for text in texts:
        assert text in block, text


def test_the_block_of_a_generation() -> None:
    assert_says(
        RECORD,
        "Generation 3 / 25 complete",
        "8,120 / 50,000, ready",
        "46.2 s, average 1 min 40 s, left 2 h 06 min, then judging (evaluate 20.1 s, evolve 0.1 s, train -",
        "checkpoint 1.0 s, other 19.6 s)",
        "mean +1.23 %, max +3.20 %, min -2.10 %, std 1.10 %, 9 of 16 agents above zero",
        "110.0 an episode (1,760 in 16 episodes); of 1,600 closed 900 wins, 700 losses, win rate 56.25 %; ",
        "an episode costs 7.72 % of ",
        "Validation  champion +2.25 %, other -, mean of single episodes\n",
        "Evidence    worth a look\n",
        "Learning    not trained; elites earned -0.75 % an episode; price of risk 0.031, largest weight 0.10; ",
        "Memory      resident 1 MB",
    )
    losses = "Learning    losses: critic 9.438, actor -0.003; elites earned -0.75 % an episode; "
    noise = "exploration noise 0.10; 12 updates skipped\n"
    assert_says(trained(15_680, **LOSSES), "Replay      15,680 / 50,000, ready\n", losses, noise)
    assert_says(trained(6960), "Replay      Buffer not ready: 6,960 / 10,000\n", "Learning    not trained;")


def test_the_row_of_a_generation_keeps_its_columns_apart() -> None:
    """With more than an hour left, four digits of fitness and a large buffer."""
    record = {
        **RECORD,
        "generation": 1234,
        "seconds": {"left": 360_300.0},
        "fitness": {"mean": 1234.5, "max": 12_345.6, "min": -1234.5, "std": 999.9},
        "validation": {"champion": 12_345.6, "agents": 2345.6, "benchmark": 1.0, "added_error": 1234.5},
        "learning": {"elite_profit_percent": 12_345.6, "evidence_p_value": 0.0},
        "memory": {"rss_mb": 512.0, "gpu_reserved_mb": 0.0, "environments": 2, "agents": 17},
    }
    head, row, memory = generation_row(record, is_first=True).splitlines()[-3:]
    numbers = "1234 1234 12346 -1234 999.9 12345.6 12345.6 +2345 +- 1234 p < 0.001 100h05"
    assert " ".join(row.split()) == numbers and len(head) <= len(row) <= 80
    assert memory == "      RAM 0.50 GB, environments 2, agents 17, buffer 8,120 / 50,000"
