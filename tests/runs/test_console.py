"""What a run says on the console after a generation."""

import math
from typing import Any

import pytest

from training.run.status import status_block
from utils.config.trader import EnvironmentConfig

RULES = EnvironmentConfig(initial_capital=10_000.0)
"""Episodes of 145 steps."""
PHASES = {"evaluate": 20.12, "train": None, "evolve": 0.1, "validate": 5.0, "checkpoint": 1.0, "other": 19.6}
TRADES = {"trades": 1600, "wins": 900, "losses": 700, "win_rate": 0.5625, "costs": 12_345.678, "penalties": 8.0}
LEARNED = {
    **{"explained": 0.0125, "explained_best": 0.025, "initial_value": 6.5, "elite_profit_percent": -0.75},
    "founders": 5,
}
RECORD: dict[str, Any] = {
    "generation": 3,
    "generations": 25,
    "replay": {"size": 8120, "capacity": 50_000},
    "seconds": {**PHASES, "total": 46.2, "average": 100.4, "left": 7600.0},
    "fitness": {"mean": 1.234, "max": 3.2, "min": -2.1, "std": 1.1, "above_zero": 9, "agents": 16},
    "trading": {**TRADES, "days_with_positions": 2300, "days_without_positions": 20},
    "validation": {"champion": 2.25, "closed_form": math.nan},
    "learning": LEARNED,
}
"""Of a run without networks."""
ACTORS = {"noise_scale": 0.1, "departed": 0.3125, "added": 0.524, "added_error": 0.108, "skipped_updates": 12.0}
LOSSES = {"reward_loss": 9.43786, "temporal_loss": 0.5117, "actor_loss": -0.00321}


def trained(size: int, **learned: float) -> dict[str, Any]:
    replay = {"size": size, "capacity": 50_000, "training_starts": 10_000}
    return {**RECORD, "replay": replay, "learning": {**LEARNED, **ACTORS, **learned}}


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (
            RECORD,
            (
                "Generation 3 of 25",
                "8,120 / 50,000 transitions",
                "46.2 s, average 1 min 40 s, left 2 h 06 min, then judging (evaluate 20.1 s, evolve 0.1 s, train -",
                "checkpoint 1.0 s, other 19.6 s)",
                "mean +1.23 %, max +3.20 %, min -2.10 %, std 1.10 %, 9 of 16 agents above zero",
                "(1,600 in 16 episodes): 900 wins, 700 losses, win rate 56.25 %; an episode costs 7.72 % of ",
                "Validation  champion +2.25 %, closed form -, mean of single episodes\n",
                "Trust       on training days worth a look\n",
                "explain 1.25 % of results out of fold, the best 2.50 %; Q(s0) +6.50 %, elites earned -0.75 %; 5 ",
                "Memory      resident 1 MB",
            ),
        ),
        (
            trained(15_680, **LOSSES),
            (
                "Replay      15,680 / 50,000, ready\n",
                "Networks    losses: reward 9.438, temporal 0.512, actor -0.003; 31 % of the elites' orders differ ",
                "added +0.52 % (standard error 0.11) an episode; exploration noise 0.10; 12 updates skipped\n",
            ),
        ),
        (trained(6960), ("Replay      Buffer not ready: 6,960 / 10,000\n", "Networks    not trained yet;")),
    ],
)
def test_the_block_of_a_generation(record: dict[str, Any], says: tuple[str, ...]) -> None:
    block = status_block(record, "resident 1 MB", RULES, "worth a look")
    for text in says:
        assert text in block, text
    assert ("Networks" in block) == ("noise_scale" in record["learning"])
