"""The share of a planted structure that a policy finds; the days of scores."""

import numpy as np
import pandas as pd
import pytest

from data.features.wide import WideBars
from data.synthetic.kinds import PLANTED_KINDS
from training.api import load_market
from training.policies.planted import planted_shares
from training.policies.read import long_rows
from utils.config.trader import SyntheticConfig
from utils.errors import DataError

SETTINGS = {
    **{"synthetic.days": 1500, "synthetic.stocks": 12, "split.context_window_days": 64},
    **{"env.trading_days": 20, "env.settlement_days": 10},
}


def rule_of_momentum(bars: WideBars) -> pd.DataFrame:
    """Return what the rule of `momentum` knows: it reads nothing but returns."""
    config, kind = SyntheticConfig(kind="momentum", days=len(bars.close), stocks=12), PLANTED_KINDS["momentum"]
    returns = np.diff(np.log(bars.close.to_numpy()), axis=0, prepend=np.nan) + kind.log_growth(config)
    scores = kind.rule(config, np.nan_to_num(returns), 20)
    return pd.DataFrame(scores, bars.close.index, bars.close.columns)


def noise(bars: WideBars) -> pd.DataFrame:
    return bars.close * 1e4 % 1.0 - 0.5


def test_the_rule_finds_what_is_planted_and_noise_does_not() -> None:
    policies = {"rule": rule_of_momentum, "noise": noise}
    found = planted_shares(policies, load_market(settings=SETTINGS).config, ["momentum", "martingale"])
    share = found.set_index(["policy", "kind"])["share"]
    assert share["rule", "momentum"] > 0.75, "it is tuned apart, with one of three horizons"
    assert share["noise", "momentum"] < 0.2
    assert found[found["kind"] == "martingale"]["share"].isna().all(), "nothing was planted"


DATES = ["2014-11-10", "2014-11-11"]


@pytest.mark.parametrize(
    "dates",
    [
        pd.to_datetime(DATES),
        pd.to_datetime(DATES).tz_localize("Europe/Berlin"),
        pd.to_datetime([f"{date} 22:00" for date in DATES]).tz_localize("America/New_York"),
        DATES,
        ["20141110", "20141111"],
        ["2014-11-10 00:00:00-04:00", "2014-11-11 00:00:00-05:00"],
    ],
)
def test_a_date_is_the_day_of_its_zone(dates: pd.Index | list[str]) -> None:
    """Another day would be that of earlier bars: a look ahead."""
    long = long_rows(pd.DataFrame({"date": dates, "ticker": "A", "score": 1.0}), "score", "rows")
    assert long["date"].astype(str).tolist() == DATES


@pytest.mark.parametrize("dates", [[20141110], ["10.11.2014"], ["11/10/2014"]])
def test_a_date_that_can_be_read_in_two_ways_is_refused(dates: list[object]) -> None:
    with pytest.raises(DataError, match="like 2014-11-10"):
        long_rows(pd.DataFrame({"date": dates, "ticker": "A", "score": 1.0}), "score", "rows")
