"""What scores tell: too much to be honest, or the share of a planted structure."""

import numpy as np
import pandas as pd
import pytest

from data.features.wide import WideBars
from data.synthetic.draw import synthetic_market
from data.synthetic.planted import PLANTED_KINDS, oracle_scores, rule_scores
from training.api import load_market
from training.evaluation.score_check import TOO_GOOD, ScoreCheck, check_scores
from training.policies.planted import planted_shares
from training.policies.read import long_rows
from utils.config.trader import SyntheticConfig
from utils.errors import DataError

DAYS, STOCKS, HOLDING = 400, 30, 20


@pytest.fixture(scope="module")
def returns() -> pd.DataFrame:
    """Daily log returns: noise about a slow drift, whose skill is honest."""
    rng = np.random.default_rng(3)
    drift = pd.DataFrame(rng.standard_normal((DAYS, STOCKS))).ewm(halflife=10).mean().to_numpy()
    return pd.DataFrame(0.01 * rng.standard_normal((DAYS, STOCKS)) + 0.01 * np.roll(drift, 1, axis=0))


def check(scores: pd.DataFrame, returns: pd.DataFrame) -> ScoreCheck:
    moves = returns.shift(-1).to_numpy()
    results = returns.rolling(HOLDING).sum().shift(-HOLDING).to_numpy()
    return check_scores(scores.to_numpy(), moves, results)


@pytest.mark.parametrize("window", [1, 5, 20, 60])
def test_past_returns_are_honest_and_dated_early_they_are_not(window: int, returns: pd.DataFrame) -> None:
    past = returns.rolling(window).sum()
    assert check(past, returns).explained < TOO_GOOD < check(past.shift(-1), returns).explained


@pytest.mark.parametrize("kind", PLANTED_KINDS)
def test_rules_and_oracles_of_built_in_markets_are_honest(kind: str) -> None:
    config = SyntheticConfig(kind=kind, days=1200, stocks=40)
    market = synthetic_market(config, 101)
    returns = pd.DataFrame(np.log(market.close[:, : market.stocks])).diff()
    for scores in (rule_scores(config, market.bars, HOLDING), oracle_scores(config, market.drift, HOLDING)):
        assert check(pd.DataFrame(scores[:, : market.stocks])[300:], returns[300:]).suspicion == ""


@pytest.mark.parametrize("ahead", [1, 5, 20])
def test_returns_of_the_future_are_found(ahead: int, returns: pd.DataFrame) -> None:
    scores = returns.rolling(ahead).sum().shift(-ahead)
    assert check(scores, returns).suspicion and not check(scores.shift(ahead), returns).suspicion


def test_scale_and_order_preserving_changes_do_not_matter(returns: pd.DataFrame) -> None:
    past = returns.rolling(5).sum()
    one, other = (check(scores, returns) for scores in (past, np.exp(5 * past) - 7))
    assert vars(one) == pytest.approx(vars(other))


def test_scores_that_never_change_or_are_missing_have_no_news(returns: pd.DataFrame) -> None:
    constant = pd.DataFrame(np.tile(np.arange(STOCKS, dtype=float), (DAYS, 1)))
    assert check(constant, returns).explained < TOO_GOOD
    missing = constant * np.nan
    found = check_scores(missing.to_numpy(), returns.to_numpy(), returns.to_numpy())
    assert found.explained == 0.0 and np.isnan(found.rank_ic)
    assert "nan" in found.sentence


SETTINGS = {
    **{"synthetic.days": 1500, "synthetic.stocks": 12, "split.context_window_days": 64},
    **{"env.trading_days": 20, "env.settlement_days": 10, "env.max_holding_days": 10},
}


def rule_of_momentum(bars: WideBars) -> pd.DataFrame:
    """Return what the rule of `momentum` knows: it reads nothing but returns."""
    config, kind = SyntheticConfig(kind="momentum", days=len(bars.close), stocks=12), PLANTED_KINDS["momentum"]
    returns = np.diff(np.log(bars.close.to_numpy()), axis=0, prepend=np.nan) + kind.log_growth(config)
    scores = kind.rule(config, np.nan_to_num(returns), 10) - 2 * 10 / 10_000
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
