"""A universe that changes: who is a member on which day, and that nothing is drawn from others."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.record import record_market
from data.universe import read_universe
from environment.account import Account
from environment.benchmark import benchmark_weights
from environment.portfolio import Portfolio
from environment.quotes import Quotes
from tests.environment.test_account import FREE, tensors
from tests.policies.test_judge import evaluate, judged, results
from tests.small_market import TINY_RULES, market_of
from tests.tiny import trending_panel
from tests.tiny_run import frame
from training.evaluation.baselines import EQUAL, SURVIVORS, Tuning
from training.evaluation.permutation_nulls import Active
from training.evaluation.play import EvaluationSetup, play_held
from training.policies.accounts import account_of
from utils.errors import DataError

DAYS = np.arange("2020-01-01", "2020-01-11", dtype="datetime64[D]")


def test_a_dated_list_tells_the_members_of_each_day(tmp_path: Path) -> None:
    path = tmp_path / "members.csv"
    path.write_text("ticker, from, to\n# index of 2020\nB,2020-01-03,2020-01-04\nA,,2020-01-02\nB,2020-01-09,\n")
    columns, members = read_universe(path, ["A", "B", "C"], DAYS)
    assert columns.tolist() == [0, 1] and members is not None and not members[:, 2].any()
    assert members[:, 0].nonzero()[0].tolist() == [0, 1] and members[:, 1].nonzero()[0].tolist() == [2, 3, 8, 9]
    for text, said in (
        ("ticker,from,to\nB,2020-02-01,2020-01-01\n", "the reverse of 'B'"),
        ("ticker,from,to\nB,soon,\n", "expected rows of ticker,from,to"),
        ("ticker,from,to\nD,,\n", "got 'D'"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            read_universe(path, ["A", "B", "C"], DAYS)


def test_the_benchmark_sells_who_left_and_buys_who_joined_at_a_rebalancing() -> None:
    close, member = np.full((20, 3), 10.0), np.ones((20, 3), dtype=np.bool_)
    member[:10, 2], member[8:, 0] = False, False
    account = Account(Quotes.of(**tensors(open_=close, close=close), is_member=torch.from_numpy(member)), FREE)
    account.reset(torch.tensor([0]), steps=19, keeps_trades=True)
    while not account.is_done:
        account.step(benchmark_weights(account, torch.ones(3), rebalanced=(0, 15)))
    torch.testing.assert_close(account.weights, torch.tensor([[0.0, 0.5, 0.5]]).double())
    assert account.trades().filled[1:15].abs().sum() == 0


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.booleans(), st.booleans())
def test_permuted_weights_are_those_of_other_members(seed: int, at_close: bool, changes: bool) -> None:
    """By hand: sums over stocks of weights times returns, before and after the fill, in each order of the stocks of a
    spell; the mean is that of all orders. Without members one that lacks closes for long counts for nothing; one that
    lacks them for as long as an account waits is held at the last one."""
    rng, member = np.random.default_rng(seed), np.ones((6, 4), dtype=np.bool_)
    before, held = rng.normal(size=(2, 6, 4))
    open_, close = np.exp(0.05 * rng.normal(size=(2, 7, 4)))
    open_[3, 1] = np.nan
    if changes:
        member[:, 3], member[4:, 0] = False, False
    else:
        close[2:5, 3], member[:, 3] = np.nan, False
    close[3:5, 2], open_[3:5, 2] = np.nan, np.nan
    waits = {"at_close": at_close, "longest_gap": 2}
    active = Active.of(before, held, open_, close, **waits, member=member if changes else None)
    close[3:5, 2] = close[2, 2]
    fill = close[:-1] if at_close else np.where(np.isnan(open_[1:]), close[1:], open_[1:])
    night = fill / close[:-1] - 1
    session = close[1:] / close[:-1] - 1 - night
    drawn = active.permuted(400, torch.Generator().manual_seed(0))
    for spell in (slice(0, 4), slice(4, 6)):
        some = member[spell.start].nonzero()[0]
        orders = [list(order) for order in itertools.permutations(some)]
        both = ((before, night), (held, session))
        earned = [100 * sum((w[spell, one] * r[spell, some]).sum(axis=1) for w, r in both) for one in orders]
        np.testing.assert_allclose(active.selection[spell], earned[0] - np.mean(earned, axis=0), atol=1e-9)
        distance = np.abs(drawn[:, None, spell] - np.subtract(earned, earned[0])).max(axis=2)
        assert (distance.min(axis=1) < 1e-8).all() and len(np.unique(distance.argmin(axis=1))) == len(orders)
    none = Active.of(before, held, open_, np.full_like(close, np.nan), **waits)
    assert not none.selection.any() and not none.permuted(3, torch.Generator()).any()


def test_what_others_would_be_held_of_goes_to_members() -> None:
    """Scores that like two stocks most which are no members: nothing is asked of them, and all is invested."""
    plain = market_of(trending_panel([0.0] * 10, 200, noise=0.01, seed=3))
    member = np.ones(plain.close.shape, dtype=bool)
    member[:, :2] = False
    market = replace(plain, members=member)
    portfolio = Portfolio.on(market, TINY_RULES)
    columns, likes = market.investable_columns.tolist(), [9.0, 8.0, 3.0, 2.0, *[0.0] * 6]
    setup = EvaluationSetup(market, portfolio, Tuning.of(market, portfolio.under()), 100, 90, columns)
    days = pd.DatetimeIndex(market.dates.astype("datetime64[s]"))
    scores = pd.DataFrame(np.tile(likes, (len(days), 1)), days, market.tickers)
    own = account_of("own", scores[days >= days[100]], setup)
    assert own.asked is not None and own.curves.exposure[0, 1:].min() > 0.99
    assert own.held[..., :2].max() == 0 and own.held[..., 2].mean() > 0.12
    assert "not in the universe on the day" not in [lapse.reason for lapse in own.asked.lapses]


def test_a_sale_that_an_end_of_prices_overtook_is_open_until_then() -> None:
    """A fifth is to be sold at the close of the last bar, and is sold unasked some sessions later: until then it is
    elsewhere than asked, and on no later day."""
    panel = trending_panel([0.0] * 4, 200, noise=0.01, seed=5)
    panel[131:, 0] = np.nan
    market = market_of(panel)
    portfolio = Portfolio.on(market, TINY_RULES)
    setup = EvaluationSetup(market, portfolio, Tuning.of(market, portfolio.under()), 100, 90, [0, 1, 2, 3])
    weights = pd.DataFrame(np.nan, pd.DatetimeIndex(market.dates.astype("datetime64[s]")), market.tickers)
    weights.iloc[100], weights.iloc[130] = [0.2, 0.2, 0.2, 0.2], [0.0, 0.2, 0.2, 0.2]
    weights.attrs["returns"] = "weights"
    own = account_of("own", weights, setup)
    assert own.asked is not None and own.trades is not None
    (ended,) = own.trades.closed[:, 0, 0].nonzero()[:, 0].tolist()
    held = own.held[30, 0, 0]
    assert held > 0.15 and own.asked.gap == pytest.approx(held * (ended - 30 + 1) / 90, rel=0.1)


def test_survivors_alone_would_add_what_the_others_lost() -> None:
    """Of ten stocks that stand still four fall to a fifth and are delisted: equal weight of members loses 32%."""
    panel = trending_panel([0.0] * 10, 200, noise=0.0)
    for place, stock in enumerate((1, 3, 5, 7)):
        panel[120 + 5 * place :, stock] *= 0.2
        panel[130 + 5 * place :, stock] = np.nan
    plain = market_of(panel)
    market = replace(plain, members=np.isfinite(plain.close))
    portfolio = Portfolio.on(market, replace(TINY_RULES, cost_bps=0.0, slippage_bps=0.0))
    columns = market.investable_columns.tolist()
    held = play_held(EvaluationSetup(market, portfolio, Tuning.of(market, portfolio.under()), 100, 90, columns))
    ends = {name: one.curves.equity[0, -1] / 1e6 for name, one in held.items()}
    assert ends[EQUAL] == pytest.approx(0.6 + 0.4 * 0.2, abs=1e-4) and ends[SURVIVORS] == pytest.approx(1.0, abs=1e-4)
    with pytest.raises(DataError, match="got a dated one"):
        record_market(market)


def test_a_dated_list_is_judged_by_the_command(tmp_path: Path, tiny: Path) -> None:
    """Nothing is bought of who is no member on the day before; a run is refused."""
    frame(300, 5).to_parquet(tmp_path / "data.parquet")
    (tmp_path / "mine.py").write_text("import numpy as np\n\ndef fair(bars):\n    return np.log(bars.close).diff(5)\n")
    (tmp_path / "list.csv").write_text("ticker,from,to\nT1,,\nT2,,\nT3,,2010-12-01\nT4,2010-12-10,\n")
    listed = ("--data", str(tmp_path / "data.parquet"), "--investable", str(tmp_path / "list.csv"))
    words = ("--config", str(tiny), "--policy", str(tmp_path / "mine.py"), "--hold", "2")
    assert evaluate(tmp_path, *words, *listed) == 0
    trades = pd.read_csv(judged(tmp_path, "fair") / "trades.csv")
    bought = trades[trades["value"] > 0].groupby("ticker")["date"].agg(["min", "max"])
    assert set(bought.index) == {"T1", "T2", "T3", "T4"}
    assert bought.loc["T3", "max"] <= "2010-12-02" and bought.loc["T4", "min"] >= "2010-12-13"
    assert SURVIVORS in results(judged(tmp_path, "fair"))["policies"]
