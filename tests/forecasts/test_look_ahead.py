"""Labels of the future are refused, whatever their window and noise; honest scores are not, however strong or late."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from data.synthetic.built_in import synthetic_market
from data.synthetic.kinds import PLANTED_KINDS, oracle_scores, rule_scores
from tests.small_market import small_market
from training.forecasts.look_ahead import LookAhead, look_ahead, require_past
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig
from utils.errors import LookAheadError

DAYS, STOCKS = 400, 30
Panel = tuple[Float64Array, Float64Array]


@pytest.fixture(scope="module")
def prices() -> Panel:
    """Open and close: noise about a slow drift, whose skill is honest."""
    rng = np.random.default_rng(3)
    drift = pd.DataFrame(rng.standard_normal((DAYS, STOCKS))).ewm(halflife=10).mean().to_numpy()
    nights, sessions = 0.004 * rng.standard_normal((DAYS, STOCKS)), 0.009 * rng.standard_normal((DAYS, STOCKS))
    close = np.exp(np.cumsum(nights + sessions + 0.005 * np.roll(drift, 1, axis=0), axis=0))
    return close * np.exp(-sessions), close


def found(values: Float64Array, prices: Panel) -> LookAhead:
    return look_ahead({"values": values}, *prices)["values"]


def label(price: Float64Array, late: int, sessions: int, ic: float, seed: int = 0) -> Float64Array:
    """Return the return of a window that begins some sessions late, with noise to a correlation."""
    logs, returns = np.log(price), np.full(price.shape, np.nan)
    returns[: -late - sessions] = logs[late + sessions :] - logs[late : len(logs) - sessions]
    returns = (returns - returns.mean(1, keepdims=True)) / returns.std(1, keepdims=True)
    return np.asarray(returns + np.sqrt(1 / ic**2 - 1) * np.random.default_rng(seed).standard_normal(returns.shape))


def past(close: Float64Array, sessions: int, early: int = 0) -> Float64Array:
    """Return past returns, dated some days early."""
    return np.asarray(pd.DataFrame(np.log(close)).diff(sessions).shift(-early).to_numpy())


def test_labels_are_told_through_noise(prices: Panel) -> None:
    opens, labels = np.vstack((prices[0][1:], prices[1][-1:])), dict[str, Float64Array]()
    for late, sessions in product((0, 1, 5), (2, 5, 20, 60)):
        labels[f"close {late} {sessions}"] = label(prices[1], late, sessions, 0.3, seed=sessions + late)
        labels[f"open {late} {sessions}"] = -label(opens, late, sessions, 0.4, seed=late)
    for name, one in look_ahead(labels, *prices).items():
        assert one.is_label and "return of sessions" in one.reason, name


def test_a_session_of_the_future_is_told_and_one_as_noisy_as_skill_is_doubted(prices: Panel) -> None:
    values = {f"{ic} {late}": label(prices[1], late, 1, ic) for ic in (0.6, 0.3) for late in (0, 2, 40)}
    seen = look_ahead(values, *prices)
    for late in (0, 2, 40):
        clear, noisy = (seen[f"{ic} {late}"] for ic in (0.6, 0.3))
        assert f"session {late + 1} after" in clear.reason and clear.warning == ""
        assert noisy.reason == "" and f"session {late + 1} after" in noisy.warning


def test_past_returns_are_honest_and_dated_early_they_are_not(prices: Panel) -> None:
    honest, *early = ({str(one): past(prices[1], one, days) for one in (1, 5, 20, 60)} for days in (0, 1, 5))
    assert not any(one.reason for one in look_ahead(honest, *prices).values())
    assert all(one.reason for values in early for one in look_ahead(values, *prices).values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTED_KINDS)
def test_rules_and_oracles_of_built_in_markets_are_honest(kind: str) -> None:
    config = SyntheticConfig(kind=kind, days=700, stocks=30)
    market, rng = synthetic_market(config, 101), np.random.default_rng(5)
    close, open_ = (prices[300:, : market.stocks] for prices in (market.close, market.open))
    known = {"rule": rule_scores(config, market.bars, 20), "oracle": oracle_scores(config, market.drift, 20)}
    scores = {"drift": market.drift, **known}
    values = {
        f"{name} {late} {noise}": np.roll(one, late, axis=0)[300:, : market.stocks]
        + noise * one[:, : market.stocks].std() * rng.standard_normal(close.shape)
        for name, one in scores.items()
        for late, noise in ((0, 0.0), (3, 1.0), (12, 2.0))
    }
    assert {name: one.reason for name, one in look_ahead(values, open_, close).items() if one.reason} == {}


def test_an_event_after_which_stocks_drift_is_honest(prices: Panel) -> None:
    """Its correlation is flat over a window and gone after it, as a label's, but events of different days are not
    alike, and neither are those of a moving sum of them as little alike as overlapping windows of returns."""
    rng, moves = np.random.default_rng(8), np.diff(np.log(prices[1]), axis=0, prepend=np.nan)
    event = (rng.random(moves.shape) < 0.1).astype(float)
    for lag in range(1, 9):
        moves[lag:] += 0.006 * event[:-lag]
    close = np.exp(np.nancumsum(moves, axis=0))
    by_event = found(event, (close, close))
    assert by_event.window.ic > 0.2 and by_event.window.sessions == 8 and by_event.reason == ""


def test_values_that_all_stocks_share_are_held_against_their_mean(prices: Panel) -> None:
    index = np.log(prices[1]).mean(axis=1)
    later, noise = np.append(np.diff(index), np.nan), np.random.default_rng(1).standard_normal(DAYS)
    told, honest = (found(np.tile(values[:, None], STOCKS), prices) for values in (later, noise))
    assert told.session.ic > 0.97 and told.reason and not honest.reason


def test_scale_and_order_preserving_changes_do_not_matter(prices: Panel) -> None:
    one, other = (found(values, prices) for values in (past(prices[1], 5), np.exp(5 * past(prices[1], 5)) - 7))
    assert one == other


def test_values_that_never_change_are_missing_or_few_tell_nothing(prices: Panel) -> None:
    constant = np.tile(np.arange(STOCKS, dtype=float), (DAYS, 1))
    few = past(prices[1], 1)[:100, :2]
    monthly = np.where(np.arange(DAYS)[:, None] % 21 == 0, past(prices[1], 1), np.nan)
    for values, is_told in ((constant * np.nan, False), (monthly, False), (constant, True)):
        one = found(values, prices)
        assert (one.reason, one.warning) == ("", "") and ("their persistence is" in one.sentence) == is_told
    one = found(few, (prices[1][:100, :2],) * 2)
    assert (one.reason, one.warning) == ("", "")


def test_what_holds_the_future_is_named() -> None:
    market = small_market()
    close = market.close.astype(float)
    values = {"past": past(close, 1), "early": past(close, 1, 1)}
    require_past({"past": values["past"]}, market)
    with pytest.raises(LookAheadError, match=r"values of 'early' .* session 1 after their day") as refused:
        require_past(values, market)
    assert refused.value.exit_code == 4
