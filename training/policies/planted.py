"""What a policy finds of structures that were planted: its profit on built-in markets beside that of the best rule."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from data.synthetic.planted import PLANTED_KINDS
from environment.portfolio import Portfolio
from training.evaluation.baselines import RULE
from training.evaluation.measures import EquityCurves
from training.evaluation.play import play_rules
from training.evaluation.stage import stage_of
from training.policies.accounts import account_of
from training.run.market import load_market
from utils.config.settings import with_settings
from utils.config.trader import Config
from utils.errors import DataError, LookAheadError
from utils.progress import progress

_LEAST_PERCENT = 1.0
"""Profit of the rule, in percent of the capital a window, below which nothing was planted that a share is of."""


def planted_shares(policies: Mapping[str, Any], config: Config, kinds: Iterable[str] | None = None) -> pd.DataFrame:
    """Play policies on one built-in market of each kind; return their mean profits on its validation windows.

    Args:
        config: settings of the markets, but for the kind and what it brings.
        kinds: by name; default: all.

    Returns:
        One row for each policy and kind: `policy`, `kind`, `profit`, `rule` in percent of the capital, and `share`.
    """
    rows = []
    judging = dataclasses.replace(config.evaluation, rivals="none", benchmark=None)
    for kind in progress([*(kinds or PLANTED_KINDS)], "judge", "kind"):
        changed = {"data": None, "features": None, "investable": None, "synthetic.kind": kind}
        settings = with_settings(config, {**changed, **PLANTED_KINDS[kind].trading_rules})
        market, planted = load_market(settings)
        env = Portfolio.on(market, settings.env)
        stage = stage_of(market, planted, env, market.splits.validation, judging)
        of_rule = _profit(play_rules(stage.setup, {RULE: stage.rules[RULE]})[RULE])
        for name, policy in policies.items():
            try:
                profit = _profit(account_of(name, policy, stage).curves)
            except LookAheadError:
                raise
            except DataError:
                profit = math.nan  # none of its scores is above 0, or it reads what this market lacks
            share = profit / of_rule if of_rule >= _LEAST_PERCENT else math.nan
            rows.append({"policy": name, "kind": kind, "profit": profit, "rule": of_rule, "share": share})
    return pd.DataFrame(rows)


def _profit(curves: EquityCurves) -> float:
    """Return the mean profit of a window, in percent of the initial capital."""
    return float(100 * (curves.equity[0, :, -1] / curves.capital - 1).mean())
