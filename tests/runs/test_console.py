"""What a run says on the console: the block of a generation, details left out, text as wide as the terminal."""

import math
from typing import Any

from training.run.status import status_block
from utils.config.trader import EnvironmentConfig

RULES = EnvironmentConfig(initial_capital=10_000.0)
"""Episodes of 145 steps."""
RECORD: dict[str, Any] = {
    "generation": 3,
    "generations": 25,
    "replay": {"size": 8120, "capacity": 50_000},
    "seconds": {
        "evaluate": 20.12,
        "train": None,
        "evolve": 0.1,
        "validate": 5.0,
        "checkpoint": 1.0,
        "other": 19.6,
        "total": 46.2,
        "average": 100.4,
        "left": 7600.0,
    },
    "fitness": {"mean": 1.234, "max": 3.2, "min": -2.1, "std": 1.1, "above_zero": 9, "agents": 16},
    "trading": {
        "trades": 1600,
        "wins": 900,
        "losses": 700,
        "win_rate": 0.5625,
        "positions_opened": 1601,
        "days_with_positions": 2300,
        "days_without_positions": 20,
        "costs": 12_345.678,
        "penalties": 8.0,
    },
    "validation": {"champion": 2.25},
    "learning": {
        "explained": 0.0125,
        "explained_best": 0.025,
        "initial_value": 6.5,
        "elite_profit_percent": -0.75,
        "p_value_selection": 0.0312,
        "p_value_timing": 1.0,
        "founders": 5,
    },
}


def test_status_block_says_everything() -> None:
    block = status_block(RECORD, "resident 1 MB", RULES, "worth a look")
    for expected in (
        "Generation 3 of 25",
        "8,120 / 50,000 transitions",
        "46.2 s, average 1 min 40 s, left 2 h 06 min, then judging",
        "(evaluate 20.1 s, evolve 0.1 s, train -",
        "checkpoint 1.0 s, other 19.6 s)",
        "mean +1.23 %, max +3.20 %, min -2.10 %, std 1.10 %, 9 of 16 agents above zero",
        "(1,600 in 16 episodes): 900 wins, 700 losses, win rate 56.25 %; an episode costs 7.72 % of the capital\n",
        "Validation  champion +2.25 %, mean of single episodes\n",
        "Trust       on training days worth a look\n",
        "Memory      resident 1 MB",
        "explain 1.25 % of results out of fold, the best 2.50 %; Q(s0) +6.50 %, elites earned -0.75 %",
        "-0.75 %; 5 founders left\n",
    ):
        assert expected in block
    assert "Networks" not in block


TRAINED: dict[str, Any] = {
    **RECORD,
    "replay": {"size": 15_680, "capacity": 50_000, "training_starts": 10_000},
    "validation": {"champion": 2.25, "closed_form": math.nan},
    "learning": {
        **RECORD["learning"],
        "noise_scale": 0.1,
        "departed": 0.3125,
        "added": 0.524,
        "added_error": 0.108,
        "reward_loss": 9.43786,
        "temporal_loss": 0.5117,
        "actor_loss": -0.00321,
        "skipped_updates": 12.0,
    },
}


def test_status_block_tells_what_networks_do() -> None:
    block = status_block(TRAINED, "", RULES, "")
    for expected in (
        "Replay      15,680 / 50,000, ready\n",
        "Validation  champion +2.25 %, closed form -, mean of single episodes",
        "Networks    losses: reward 9.438, temporal 0.512, actor -0.003;",
        "; 31 % of the elites' orders differ from their closed forms' and added +0.52 % (standard error 0.11) an ",
        " an episode; exploration noise 0.10; 12 updates skipped\n",
    ):
        assert expected in block
    untrained = {name: value for name, value in TRAINED["learning"].items() if not name.endswith("_loss")}
    replay = {**TRAINED["replay"], "size": 6960}
    block = status_block({**TRAINED, "learning": untrained, "replay": replay}, "", RULES, "")
    assert "Replay      Buffer not ready: 6,960 / 10,000\n" in block and "Networks    not trained yet;" in block
