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
from main import main
from tests.paper.cases import START, Walk
from tests.small_market import TINY_RULES
from tests.tiny_run import TINY, frame
from training.api import judge, load_market
from training.evaluation.baselines import RULE_NUMBERS, ScoreRule
from training.paper.account import Account
from training.paper.backtest import backtest
from training.paper.decider import OwnPolicy
from training.paper.journal import JOURNAL, Journal
from utils.config.trader import EvaluationConfig
from utils.runs.run_log import REPORT

pytestmark = pytest.mark.usefixtures("restore_process")
FRAME, OPENED = frame(320, 5), 300
DATES = FRAME["date"].unique()
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


class Actor:
    def act(self, observation, info):
        return 0
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "tiny.toml").write_text(TINY)
    write(tmp_path, OPENED)
    return tmp_path


def write(home: Path, days: int) -> None:
    FRAME[FRAME["date"] <= DATES[days - 1]].to_parquet(home / "prices.parquet")


def paper(home: Path, *words: str) -> int:
    return main(["paper", *words, "--runs-dir", str(home / "runs")])


def open_it(home: Path, name: str, policy: str, *flags: str) -> int:
    data, config = str(home / "prices.parquet"), str(home / "tiny.toml")
    return paper(home, "open", name, "--policy", f"{home}/{policy}", "--data", data, "--config", config, *flags)


def reversal(bars: WideBars) -> pd.DataFrame:
    return -np.log(bars.close).diff(3)


def weights(bars: WideBars) -> pd.DataFrame:
    return 0.07 * (bars.close.rolling(4).mean() > bars.close)


weights.returns = "weights"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "numbers", "changed"),
    [
        (reversal, {"cash_price": 0.1, "keep_above": 0.0}, {"max_new_positions_per_day": 2}),
        (reversal, {"threshold": 0.005, "full_score": 0.05, "keep_above": -0.02}, {"stop_percent": 3.0}),
        (reversal, {"keep_above": -np.inf}, {"exits": "target", "drawdown_lock": 6.0}),
        (weights, {"keep_above": 0.01}, {"max_new_positions_per_day": 3}),
    ],
)
def test_an_account_equals_its_backtest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: OwnFeature, numbers: Any, changed: dict[str, Any]
) -> None:
    """Whatever the numbers of its rule: prices of cash, sizes by score; with gaps, stops, locks and exits."""
    rules = dataclasses.replace(TINY_RULES, max_days_without_bar=6, **changed)
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # random prices may look split
    days, plain = range(START, START + 80), ScoreRule(np.zeros((1, 1)))
    numbers = {name: getattr(plain, name) for name in RULE_NUMBERS} | numbers
    walk = Walk(tmp_path, OwnPolicy("own", function, numbers, b""), rules)
    with walk.journal() as journal:
        account = walk.account(journal, days[-1])
        venue = account.new_venue()
        for day in days:
            account.on(day, embedded=venue).step()
        account = account.on(days[-1])
        assert backtest(account).first_difference(account, 0.0) == ""
        assert sum(len(account.book.fills(day)) for day in days) > 5


def test_a_replay_is_its_backtest_and_what_evaluate_says(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert open_it(home, "own", "mine.py:reversal", "--capital", "1000000") == 0
    assert "bought above" in (shown := capsys.readouterr().out) and "policy reversal, of which it keeps" in shown
    assert paper(home, "replay", "own") == 0
    assert "equal bit for bit" in (shown := capsys.readouterr().out) and "basket" not in shown
    with Journal(home / "runs" / "own" / "replay" / JOURNAL) as journal:
        sessions = journal.of("session")
    namespace: dict[str, Any] = {}
    exec(SOURCE, namespace)
    market = load_market(home / "prices.parquet", home / "tiny.toml")
    quick = EvaluationConfig(rivals="none", random_pickers=5)
    judged = judge(market, {"reversal": namespace["reversal"]}, is_continuous=True, judging=quick)
    equity = judged.equity["reversal"]
    assert [*sessions] == equity.index.strftime("%Y-%m-%d").tolist()
    assert [row.body["whole"] for row in sessions.values()] == pytest.approx(equity.tolist(), rel=1e-12)
    bought = [fill for row in sessions.values() for fill in row.body["fills"] if fill["side"] == "buy"]
    assert len(bought) == len(judged.trades) > 10


def test_a_replay_takes_what_a_live_account_asks_about(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Few bars on one day, those of the day before on another: told in a line, and equal to the backtest."""
    few, again = DATES[220], DATES[230]
    rows = FRAME[(FRAME["date"] != few) | FRAME["ticker"].isin(["T0", "T1"])]
    repeated = rows[rows["date"] == DATES[229]].assign(date=again)
    pd.concat([rows[rows["date"] != again], repeated]).sort_values("date").to_parquet(home / "prices.parquet")
    assert open_it(home, "own", "mine.py:reversal") == 0
    days = ["--from", str(DATES[210])[:10], "--to", str(DATES[235])[:10]]
    capsys.readouterr()
    assert paper(home, "replay", "own", *days) == 0
    _, doubts, parity, _ = capsys.readouterr().out.splitlines()
    assert doubts == (
        f"data taken as they are where a live account asks (2): expected some 5 bars on {str(few)[:10]} as on the "
        f"session before, got 2; new bars on {str(again)[:10]}, got those of the day before for 5"
    )
    assert "equal bit for bit on 26 sessions" in parity


def test_a_replay_reads_its_journal_once_and_leaves_what_it_walked(home: Path) -> None:
    """After a kill -9 in a step the sessions before it are on the disk, as in the journal of a whole replay."""
    assert open_it(home, "own", "mine.py:reversal") == 0
    path, real, steps = home / "runs" / "own" / "replay" / JOURNAL, Account.step, itertools.count()

    def stepped(account: Account) -> bool:
        if next(steps) == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(account)

    with mock.patch.object(Account, "step", stepped):
        assert os.WTERMSIG(in_children(lambda: paper(home, "replay", "own"))[0]) == signal.SIGKILL
    with Journal(path) as journal:
        assert len(journal.of("session")) == 7
        walked = [row.hash for kind in ("session", "intent") for row in journal.of(kind).values()]
    with mock.patch.object(Journal, "__init__", autospec=True, side_effect=Journal.__init__) as read:
        assert paper(home, "replay", "own") == 0
    assert [call.args[1] for call in read.mock_calls].count(path) == 2  # to walk, and to compare what is on the disk
    with Journal(path) as journal:
        assert journal.hashes >= {*walked}


def test_an_account_says_that_its_limit_keeps_it_from_its_weights(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the opening and in each step that brings something."""
    said = "spread: of up to 5 purchases a day env.max-new-positions-per-day takes 1"
    assert open_it(home, "own", "mine.py:spread") == 0 and said in capsys.readouterr().err
    assert paper(home, "step", "own") == 0 and said in capsys.readouterr().err
    assert paper(home, "step", "own") == 0 and said not in capsys.readouterr().err
    (home / "tiny.toml").write_text(TINY.replace("[env]", "[env]\nmax_new_positions_per_day = 5"))
    assert open_it(home, "other", "mine.py:spread") == 0 and said not in capsys.readouterr().err


def test_it_goes_on_by_the_source_of_its_opening(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("own", "other"):
        assert open_it(home, name, "mine.py:reversal") == paper(home, "step", name) == 0
    (home / "mine.py").write_text(SOURCE.replace("-np.log", "np.log"))
    assert open_it(home, "another", "mine.py:reversal") == 0
    for days in range(OPENED + 1, OPENED + 8):
        write(home, days)
        if days == OPENED + 4:
            (home / "mine.py").unlink()
        assert paper(home, "step", "own") == paper(home, "step", "another") == 0
    write(home, OPENED)
    page = (home / "runs" / "own" / REPORT).read_text()
    assert "equal bit for bit on 8 sessions" in page and "champion" not in page and "decided by" in page
    intents = []
    for name in ("own", "another"):
        with Journal(home / "runs" / name / JOURNAL) as journal:
            orders = [order for row in journal.of("intent").values() for order in row.body["orders"]]
            intents.append([(order["side"], order["ticker"]) for order in orders])
    assert len(intents[0]) > 3 and intents[0] != intents[1]
    capsys.readouterr()
    assert paper(home, "status", "own") == 0
    assert "the policy's cash" in (shown := capsys.readouterr().out) and "agents" not in shown
    copy = home / "runs" / "other" / OwnPolicy.file
    copy.write_text(SOURCE.replace("diff(5)", "diff(6)"))
    for got in ("got another file", "got: No such file"):
        assert paper(home, "step", "other") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"expected the policy that the account began with in {copy}, {got}" in line
        copy.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("mine.py:leaky", "it looks ahead"),
        ("mine.py:cash", "above 0, which ask for a stock"),
        ("mine.py:Actor", "expected a function of bars as --policy of a paper account"),
        ("mine.py:reversed", "nearest is 'reversal'"),
        ("mine.py", "name it as --policy"),
        ("none.py", "--policy: expected an existing FILE.py"),
    ],
)
def test_what_cannot_be_followed_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], policy: str, said: str
) -> None:
    assert open_it(home, "own", policy) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and not (home / "runs" / "own").exists()


@pytest.mark.parametrize("flags", [("--policy", "mine.py"), ("--config", "tiny.toml")])
def test_data_and_settings_belong_to_a_policy(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: tuple[str, str]
) -> None:
    monkeypatch.chdir(home)
    assert paper(home, "open", "own", *flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "expected --policy with --data FILE" in line or "expected --config with --policy" in line


@pytest.mark.slow
def test_a_kill_at_any_write_loses_nothing(home: Path) -> None:
    assert open_it(home, "own", "mine.py:reversal") == 0
    begin_early(home / "runs" / "own")
    row = kill_at_writes(home / "runs" / "own", 40)
    assert row.is_ok, row.measured
