"""What is planted is worth holding: rule and oracle beat the benchmark."""

from itertools import product

import numpy as np
import pytest
import torch

from data.synthetic.built_in import SESSIONS, built_in_market
from data.synthetic.kinds import PLANTED_KINDS
from environment.portfolio import Portfolio
from models.policy import Forecasts
from training.evaluation.baselines import BandRule, Tuning, numbers_of
from training.rollout import roll_out
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig

RULES, CPU = EnvironmentConfig(), torch.device("cpu")


def leads(kind: str) -> dict[str, float]:
    """Profit over the benchmark, percent of an episode, at the best of the horizons, with and without cash, of rule and
    oracle."""
    planted = SyntheticConfig(kind=kind, days=1200, stocks=16)
    market, scores = built_in_market(planted, DataConfig(context_window_days=64), RULES)
    tuning, names = Tuning.of(market, Portfolio.on(market, RULES)), ("rule", "oracle")
    # A score is a log return: percent, and followed in full.
    known = [100 * getattr(scores, name)[ahead] for name in names for ahead in SESSIONS]
    rules = [BandRule(one, timing=cash, usual=float(np.nanmean(one))) for one, cash in product(known, (0.0, 1.0))]
    forecasts, numbers = Forecasts.joined([rule.forecasts(tuning.risk) for rule in rules]), numbers_of(rules, CPU)
    played = roll_out(tuning.portfolio, forecasts, starts=tuning.starts, steps=tuning.steps, **numbers)
    return dict(zip(names, played.excess.mean(1).view(2, -1).amax(1).tolist(), strict=True))


@pytest.mark.parametrize("kind", [kind for kind in PLANTED_KINDS if kind != "martingale"])
def test_rule_and_oracle_earn_under_the_agents_rules(kind: str) -> None:
    """Some percent an episode over the benchmark, and the oracle no less than the rule where the drift tells it all."""
    found = leads(kind)
    assert 1.5 < found["rule"] < 150
    assert found["oracle"] > (0.5 if kind in ("agree", "ring") else 0.9) * found["rule"]


def test_where_nothing_is_planted_the_benchmark_is_held() -> None:
    assert np.abs([*leads("martingale").values()]).max() < 1.0
