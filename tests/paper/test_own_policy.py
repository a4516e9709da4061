"""An account of a policy that is not a run's champion: as judged, from its opening to its page."""

import dataclasses
import itertools
import os
import signal
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from benchmarks.faults.paper import begin_early, in_children, kill_at_writes
from data.features.own import OwnFeature
from data.features.wide import WideBars
from tests.paper.cases import START, Walk
from tests.paper.commands import DATES, LEARNED, Commands, rows_until
from tests.small_market import TINY_RULES
from tests.tiny_run import TINY
from training.api import judge, load_market
from training.paper.account import Account
from training.paper.decider import OwnPolicy
from training.paper.journal import JOURNAL, Journal
from training.paper.report import backtest
from utils.config.trader import EvaluationConfig

pytestmark = pytest.mark.usefixtures("restore_process")
SOURCE = """
import numpy as np


def reversal(bars):
    return -np.log(bars.close).diff(5)


def leaky(bars):
    return np.log(bars.close).diff(5).shift(-5)


def cash(bars):
    return bars.close * 0 - 1


def spread(bars):
    return bars.close * 0 + 0.2


spread.returns = "weights"


def short(bars):
    return bars.close * 0 - 0.2


short.returns = "weights"


class Actor:
    def act(self, observation, info):
        return 0
"""


@pytest.fixture
def own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """An account that is yet to be opened, beside a file of policies."""
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "two.py").write_text("import mine\ndef both(bars):\n    return mine.reversal(bars)")
    (tmp_path / "tiny.toml").write_text(TINY)
    return Commands(tmp_path, capsys)


def follow(account: Commands, name: str, *flags: str) -> bool:
    """Tell whether an account was opened with a policy of the file."""
    policy, config = (str(account.home / file) for file in (f"mine.py:{name}", "tiny.toml"))
    return account.open("--policy", policy, "--config", config, *flags) == 0


def reversal(bars: WideBars) -> pd.DataFrame:
    return -np.log(bars.close).diff(3)


def weights(bars: WideBars) -> pd.DataFrame:
    return 0.15 * (bars.close.rolling(4).mean() > bars.close)


weights.returns = "weights"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "numbers", "lock"),
    [
        (reversal, {"unit": 20.0, "risk": 0.016, "largest": 0.3}, 0.0),
        (reversal, {"unit": 1 / 3, "risk": 0.004, "largest": 0.1}, 6.0),
        (weights, {}, 0.0),
    ],
)
def test_an_account_equals_its_backtest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: OwnFeature, numbers: dict[str, float], lock: float
) -> None:
    """Whatever the numbers of its rule, which the journal keeps to the last digit; with gaps and locks."""
    rules = dataclasses.replace(TINY_RULES, max_days_without_bar=6, drawdown_lock=lock)
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # random prices may look split
    days, policy = range(START, START + 80), OwnPolicy("own", function, numbers, b"")
    assert {name: float(number) for name, number in policy.said["rule"].items()} == numbers
    walk = Walk(tmp_path, policy, rules)
    walk.replay(days)
    account = walk.at(days[-1])
    assert backtest(account).first_difference(account, 0.0) == ""
    assert sum(len(account.book.fills(day)) for day in days) > 4
    if function is weights:
        session = account.book.session(days[-1])
        for ticker, shares in session["positions"].items():
            share = account.book.worth({ticker: shares}, days[-1]) / session["equity"]
            assert 0.1 < share < 0.2


def test_a_replay_is_its_backtest_and_what_evaluate_says(own: Commands) -> None:
    assert follow(own, "reversal", "--capital", "1000000")
    assert "tuned on training days" in (shown := own.shown) and "policy reversal, of which it keeps" in shown
    assert own("replay") == 0
    assert "equal bit for bit" in own.shown
    with Journal(own.path / "replay" / JOURNAL) as journal:
        sessions = journal.of("session")
    namespace: dict[str, Any] = {}
    exec(SOURCE, namespace)
    market = load_market(own.data, own.home / "tiny.toml")
    quick = EvaluationConfig(rivals="none", random_pickers=5)
    judged = judge(market, {"reversal": namespace["reversal"]}, judging=quick)
    equity = judged.equity["reversal"]
    assert [*sessions] == equity.index.strftime("%Y-%m-%d").tolist()
    assert [row.body["equity"] for row in sessions.values()] == pytest.approx(equity.tolist(), rel=1e-12)
    assert sum(len(row.body["fills"]) for row in sessions.values()) > 10


def test_a_replay_takes_what_a_live_account_asks_about(own: Commands) -> None:
    """Few bars on one day, those of the day before on another: told in a line, and equal to the backtest."""
    few, again = DATES[220], DATES[230]
    rows, dates = rows_until(LEARNED), rows_until(LEARNED)["date"].astype(str)
    repeated = rows[dates == DATES[229]].assign(date=np.datetime64(again, "s"))
    known = rows[(dates != again) & ((dates != few) | rows["ticker"].isin(["T0", "T1"]))]
    pd.concat([known, repeated]).sort_values("date").to_parquet(own.data)
    assert follow(own, "reversal") and own.shown
    assert own("replay", "--from", DATES[210], "--to", DATES[235]) == 0
    _, doubts, parity, *_ = own.shown.splitlines()
    assert doubts == (
        f"data taken as they are where a live account asks (2): expected some 5 bars on {few} as "
        f"before, got 2; new bars on {again}, got those of the day before for 5"
    )
    assert "equal bit for bit on 26 sessions" in parity


def test_a_replay_reads_its_journal_once_and_leaves_what_it_walked(own: Commands) -> None:
    """After a kill -9 in a step the sessions before it are on the disk, as in the journal of a whole replay."""
    assert follow(own, "reversal")
    path, real, steps = own.path / "replay" / JOURNAL, Account.step, itertools.count()

    def stepped(account: Account) -> bool:
        if next(steps) == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(account)

    with mock.patch.object(Account, "step", stepped):
        assert os.WTERMSIG(in_children(lambda: own("replay"))[0]) == signal.SIGKILL
    with Journal(path) as journal:
        assert len(journal.of("session")) == 7
        walked = [row.hash for kind in ("session", "intent") for row in journal.of(kind).values()]
    with mock.patch.object(Journal, "__init__", autospec=True, side_effect=Journal.__init__) as read:
        assert own("replay") == 0
    assert [call.args[1] for call in read.mock_calls].count(path) == 2  # to walk, and to compare what is on the disk
    with Journal(path) as journal:
        assert journal.hashes >= {*walked}


def test_it_goes_on_by_the_source_of_its_opening(own: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    other, intents = Commands(own.home, capsys), []
    assert follow(own, "reversal") and own("step") == 0
    (own.home / "mine.py").write_text(SOURCE.replace("-np.log", "np.log"))
    assert follow(other, "reversal")
    for account in (own, other):
        for day in range(LEARNED, LEARNED + 7):
            account.write(day)
            if day == LEARNED + 3:
                (own.home / "mine.py").unlink(missing_ok=True)
            assert account("step") == 0
        with Journal(account.path / JOURNAL) as journal:
            orders = [order for row in journal.of("intent").values() for order in row.body["orders"]]
            intents.append([(order["side"], order["ticker"]) for order in orders])
    assert len(intents[0]) > 3 and intents[0] != intents[1]
    assert "equal bit for bit on 8 sessions" in own.page and "champion" not in own.page
    assert own("status") == 0 and own.shown
    copy = own.path / OwnPolicy.file
    copy.write_text(SOURCE.replace("diff(5)", "diff(6)"))
    for got in ("got another file", "got: No such file"):
        assert own("step") == 2
        (line,) = own.shown.splitlines()
        assert f"expected the policy that the account began with in {copy}, {got}" in line
        copy.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--policy mine.py:leaky --data DATA", "it looks ahead"),
        ("--policy mine.py:cash --data DATA", "that differ between stocks"),
        ("--policy mine.py:short --data DATA", "only `evaluate` has shorts and leverage"),
        ("--policy mine.py:Actor --data DATA", "expected a function of bars as --policy of a paper account"),
        ("--policy mine.py:reversed --data DATA", "nearest is 'reversal'"),
        ("--policy two.py --data DATA", "got two.py with mine beside it; write all into one file"),
        ("--policy mine.py --data DATA", "name it as --policy"),
        ("--policy none.py --data DATA", "--policy: expected an existing FILE.py"),
        ("--policy mine.py", "expected --policy with --data FILE"),
        ("--run one", "expected --config with --policy"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    own: Commands, monkeypatch: pytest.MonkeyPatch, words: str, said: str
) -> None:
    monkeypatch.chdir(own.home)
    assert own("open", "--config", "tiny.toml", *words.replace("DATA", own.data.name).split()) == (
        4 if "leaky" in words else 2
    )
    (line,) = own.shown.splitlines()
    assert said in line and not own.path.exists()


@pytest.mark.slow
def test_a_kill_at_any_write_loses_nothing(own: Commands) -> None:
    assert follow(own, "reversal")
    begin_early(own.path)
    row = kill_at_writes(own.path, 40)
    assert row.is_ok, row.measured
