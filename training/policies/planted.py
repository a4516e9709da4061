"""What a policy finds of structures that were planted: its lead on built-in markets beside that of the best rule."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from data.synthetic.kinds import PLANTED_KINDS
from training.evaluation.baselines import RULE
from training.evaluation.play import Played, play_held, play_rules
from training.evaluation.stage import stage_of
from training.policies.accounts import account_of
from training.run.market import load_market
from utils.config.settings import with_settings
from utils.config.trader import Config
from utils.errors import DataError, LookAheadError
from utils.metrics import TRADING_DAYS_PER_YEAR
from utils.progress import progress

_LEAST_PERCENT = 1.0
"""Lead of the rule, percent a year, below which nothing was planted that a share is of."""


def planted_shares(policies: Mapping[str, Any], config: Config, kinds: Iterable[str] | None = None) -> pd.DataFrame:
    """Play policies on one built-in market of each kind; return their leads over the benchmark on validation days.

    Args:
        config: settings of the markets, but for the kind.
        kinds: by name; default: all.

    Returns:
        One row for each policy and kind: `policy`, `kind`, `lead` and `rule`, its lead, percent a year, and `share`.
    """
    rows = []
    judging = dataclasses.replace(config.evaluation, rivals="none", benchmark=None, benchmark_weights="")
    for kind in progress([*(kinds or PLANTED_KINDS)], "judge", "kind"):
        settings = with_settings(config, {"data": None, "features": None, "investable": None, "synthetic.kind": kind})
        market, planted = load_market(settings)
        stage = stage_of(market, planted, settings, market.splits.validation, judging)
        held = play_held(stage.setup)[stage.setup.benchmark]
        of_rule = _lead(play_rules(stage.setup, {RULE: stage.rules[RULE]})[RULE], held)
        for name, policy in policies.items():
            try:
                lead = _lead(account_of(name, policy, stage.setup), held)
            except LookAheadError:
                raise
            except DataError:
                lead = math.nan  # its scores do not differ, or it reads what this market lacks
            share = lead / of_rule if of_rule >= _LEAST_PERCENT else math.nan
            rows.append({"policy": name, "kind": kind, "lead": lead, "rule": of_rule, "share": share})
    return pd.DataFrame(rows)


def _lead(played: Played, held: Played) -> float:
    """Return the mean daily return over another's, percent a year."""
    return float(TRADING_DAYS_PER_YEAR * (played.curves.daily - held.curves.daily).mean())
