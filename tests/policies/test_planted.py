"""The share of planted structures that a policy finds, where it is known: the rule itself finds all, noise nothing."""

import numpy as np
import pandas as pd

from data.features.wide import WideBars
from data.synthetic.planted import PLANTED_KINDS
from training.api import load_market
from training.policies.planted import planted_shares
from utils.config.trader import SyntheticConfig

SETTINGS = {
    **{"synthetic.days": 1500, "synthetic.stocks": 12, "split.context_window_days": 64},
    **{"env.trading_days": 60, "env.settlement_days": 20},
}


def rule_of_momentum(bars: WideBars) -> pd.DataFrame:
    """Return what the rule of `momentum` knows: it reads nothing but returns."""
    close = bars.close.to_numpy()
    config = SyntheticConfig(kind="momentum", days=len(close), stocks=12)
    kind = PLANTED_KINDS["momentum"]
    returns = np.diff(np.log(close), axis=0, prepend=np.nan) + kind.log_growth(config)
    returns = np.nan_to_num(returns)
    scores = kind.rule(config, returns, 20) - 2 * 10 / 10_000
    return pd.DataFrame(scores, bars.close.index, bars.close.columns)


def noise(bars: WideBars) -> pd.DataFrame:
    return bars.close * 1e4 % 1.0 - 0.5


def test_the_rule_finds_what_is_planted_and_noise_does_not() -> None:
    policies = {"rule": rule_of_momentum, "noise": noise}
    found = planted_shares(policies, load_market(settings=SETTINGS).config, ["momentum", "martingale"])
    share = found.set_index(["policy", "kind"])["share"]
    assert 0.75 < share["rule", "momentum"] < 1.35, "it is tuned apart, with another smallest threshold"
    assert share["noise", "momentum"] < 0.4
    assert found[found["kind"] == "martingale"]["share"].isna().all(), "nothing was planted"
