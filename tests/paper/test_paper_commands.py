"""The commands of a paper account, from its opening to its page, on one tiny run."""

import math
import re
import shlex
import shutil
import signal
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from main import main
from models.ddpg_agent import DDPGAgent
from tests.paper.commands import DATES, LEARNED, Commands, rows_until
from tests.paper.fake_alpaca import FakeAlpaca
from tests.tiny_run import TINY, unjudged
from tests.tiny_run import run as train
from training.evaluation.holdout import LEDGER, read_looks
from training.paper.account import Account
from training.paper.alpaca import ENDPOINT, KEY, SECRET
from training.paper.journal import JOURNAL, STOP, Journal
from training.run.market import read_market_record
from training.run.saved import open_saved_run
from utils import checkout
from utils.errors import ConfigError
from utils.runs.run_lock import RunLock
from utils.runs.run_log import REPORT


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, small_heap: None) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    (folder / "tiny.toml").write_text(TINY)
    rows_until(LEARNED - 1).to_parquet(folder / "all.parquet")
    with unjudged():
        flags = ("--run", "one", "--data", str(folder / "all.parquet"), "--evaluation.evidence", "require")
        assert train(folder / "tiny.toml", *flags) == 0  # it holds the benchmark
    return folder


@pytest.fixture
def fresh(home: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """An account that was opened."""
    account = Commands(home, capsys)
    assert account.open("--run", "one") == 0 and "opened with" in account.shown
    return account


@pytest.fixture
def account(fresh: Commands) -> Commands:
    """An account after its first step."""
    assert fresh("step") == 0
    return fresh


def followed(patch: pytest.MonkeyPatch) -> None:
    """Follow the forecasts of a champion that was judged to have no skill."""
    patch.setattr(DDPGAgent, "load", lambda path, load=DDPGAgent.load: load(path).shrunk(1.0))


def test_an_account_goes_on_from_day_to_day(fresh: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a champion whose forecasts are followed, so that it orders on most days."""
    account = fresh
    followed(monkeypatch)
    assert account("open", "--run", "one") == 2  # the name is taken
    assert account("status") == account("step") == 0
    rows = account.kinds
    assert rows[:2] == ["session", "intent"]
    page = account.path / REPORT
    written = page.stat().st_mtime_ns
    assert account("step") == 0
    assert account.kinds == rows and page.stat().st_mtime_ns == written  # nothing the second time
    assert "nothing to do" in account.shown
    for day in (LEARNED, LEARNED + 3):
        account.write(day)
        assert account("step") == 0
    assert account.kinds.count("missed") == 2 and account.kinds.count("session") == 5
    assert "was missed" in account.shown
    assert account("stop") == 0
    account.write(LEARNED + 4)
    assert account("step") == 0 and account.kinds[-2:] == ["session", "intent"]
    assert "nothing is bought: `paper stop" in account.shown
    assert account("go") == account("report") == 0
    account.write(LEARNED - 1)
    assert account("step") == 2
    assert "give the file that has it" in account.shown


def test_orders_that_were_not_given_are_the_first_difference(fresh: Commands) -> None:
    fresh.write(LEARNED + 1)
    assert fresh("step") == fresh("report") == 0 and fresh.kinds.count("missed") == 2
    assert f"differ, first on {DATES[LEARNED]}: 0.0 shares of T0, backtest " in fresh.page


def test_a_replay_is_its_backtest(home: Path, account: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Walked on validation days, without a look at the holdout, and told in a few lines."""
    followed(monkeypatch)
    first, last = read_market_record(account.path).splits["validation"]
    assert account("status") == 0 and "orders for the next open: buy" in account.shown
    assert account("replay") == 0
    shown, page = account.shown, account.path / "replay" / REPORT
    assert "equal bit for bit" in shown and "accepted" not in shown and len(shown.splitlines()) == 3
    earned = r"[+-][\d.]+%, its benchmark [+-][\d.]+%"
    assert re.match(rf"{account.name} on \d+ sessions, {first} to {last}: {earned}; \d+ fills\n", shown)
    assert page.is_file() and shown.endswith(f"written to {page}\n")
    assert not (account.runs / LEDGER).exists()


def test_a_replay_of_the_holdout_is_a_look(fresh: Commands) -> None:
    """Refused without the flag, before anything is walked; entered even where the walk is cut short."""
    first, last = read_market_record(fresh.path).splits["holdout"]
    for span in (("--from", first), ("--to", last)):
        assert fresh("replay", *span) == 2 and "expected --spend-look" in fresh.shown
    assert not (fresh.runs / LEDGER).exists() and not (fresh.path / "replay").exists()
    with mock.patch.object(Account, "step", side_effect=KeyboardInterrupt):
        assert fresh("replay", "--from", first, "--spend-look") == 130
    run = open_saved_run(fresh.runs, "one")
    (look,) = read_looks(fresh.runs, run.market, first, last)
    assert (look.run, look.champion_generation, look.first_day, look.last_day) == ("one", run.generation, first, last)
    assert main([*shlex.split(look.command)[2:], "--runs-dir", str(fresh.runs)]) == 0
    assert len(read_looks(fresh.runs, run.market, first, last)) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("step other", "a paper account in"),
        ("open other --run one --calendar MARS", "an exchange's calendar"),
        ("open other --run one --venue alpaca", "the keys of a paper account in APCA_API_KEY_ID and"),
        ("open other --run one --capital 1e300", "capital"),
        ("replay NAME --from 2010-8-2", "for --from, got '2010-8-2'"),
        ("replay NAME --to 2010-09", "for --to, got '2010-09'"),
        ("step NAME --date 2010-01-29", "--date from"),
        *((command, r"the NAME of a paper account, got none; .* has .*\bNAME\b") for command in ("step", "go", "open")),
    ],
)
def test_mistakes_are_one_line(fresh: Commands, words: str, said: str) -> None:
    words, said = words.replace("NAME", fresh.name), said.replace(r"\bNAME", rf"\b{fresh.name}")
    assert main(["paper", *words.split(), "--runs-dir", str(fresh.runs)]) == 2
    shown = fresh.shown
    assert shown.count("expected") == 1 and re.search(said, shown) and not (fresh.runs / "other").exists()


def test_accounts_at_a_broker_have_orders_of_their_own(fresh: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of one name as well; what is held there, or is no number, is refused, and the sessions are the exchange's."""
    pytest.importorskip("alpaca.trading.client", reason="requirements-alpaca.txt is not installed")
    venue = FakeAlpaca(100_000.0)
    for name, value in {KEY: "key", SECRET: "secret", ENDPOINT: venue.address}.items():
        monkeypatch.setenv(name, value)
    openings = []
    for _ in range(2):
        shutil.rmtree(fresh.path)
        assert fresh.open("--run", "one", "--venue", "alpaca") == 0
        with Journal(fresh.path / JOURNAL) as journal:
            openings.append(journal.opening)
    assert {one["calendar"] for one in openings} == {"XNYS"} and len({one["orders"] for one in openings}) == 2
    shutil.rmtree(fresh.path)
    for cash, held, said in ((1e5, {"T0": 3.0}, "no positions at the venue, got T0"), (math.nan, {}, "an answer of A")):
        venue.cash, venue.held = cash, held
        assert fresh.open("--run", "one", "--venue", "alpaca") == 2 and f"expected {said}" in fresh.shown


def test_where_no_account_is_one_is_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "step", "--runs-dir", str(tmp_path)]) == 2
    assert "`paper open NAME` begins one" in capsys.readouterr().err


def test_an_account_of_an_earlier_version_is_refused_in_one_line(fresh: Commands) -> None:
    """Its journal says nothing of its layout, or an earlier one, with which an earlier version goes on."""
    path = fresh.path / JOURNAL
    with Journal(path) as journal:
        opening = {name: value for name, value in journal.opening.items() if name != "layout"}
    for layout, command, remedy in (
        ({}, "step", "open a new one with `paper open`"),
        ({"layout": 2}, "report", f"{checkout('0.13.0')} goes on with it, or open a new one with `paper open`"),
        ({"layout": 2}, "status", f"{checkout('0.13.0')} goes on with it"),
    ):
        path.unlink()
        Journal.create(path, opening | layout)
        assert fresh(command) == 2
        (line,) = fresh.shown.splitlines()
        assert f"got {fresh.name} of an earlier one" in line and remedy in line


def test_a_folder_stop_is_refused_before_anything_is_written(fresh: Commands) -> None:
    assert fresh("stop") == 0
    (fresh.path / STOP).mkdir()
    assert fresh("go") == 2 and "remove it" in fresh.shown and fresh.kinds == ["stop"]
    (fresh.path / STOP).rmdir()
    (fresh.path / STOP).symlink_to("nothing")
    assert fresh("go") == 0 and fresh.kinds == ["stop", "go"]


def test_status_reads_a_disk_that_cannot_be_written(account: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an unmerged log of SQLite are read, and nothing in the folder changes; what writes still asks for it."""

    def contents() -> dict[str, tuple[int, bytes]]:
        files = (file for file in account.path.iterdir() if file.is_file())
        return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in files}

    with Journal(account.path / JOURNAL) as journal:
        journal.append("stop", "x", {"text": "a reason"})
        before = contents()
        assert f"{JOURNAL}-wal" in before
        monkeypatch.setattr("os.access", lambda *_: False)
        monkeypatch.setattr(RunLock, "__enter__", mock.Mock(side_effect=ConfigError("expected a disk to write on")))
        assert account("status") == 0 and "nothing is bought: a reason" in account.shown
        assert contents() == before
        assert account("go") == 2


def test_a_head_that_was_shown_must_be_in_the_journal(account: Commands) -> None:
    """Rows that are cut off, or a chain that is written anew, are noticed by who kept what `status` showed."""
    kept = (account.path / JOURNAL).read_bytes()
    account.write(LEARNED)
    assert account("step") == account("status") == 0
    head = re.findall(r"head of the journal: ([0-9a-f]{64}), row", account.shown)[-1]
    assert head in account.page
    account.write(LEARNED + 1)
    assert account("step", "--head", head) == 0
    for file in account.path.glob(f"{JOURNAL}*"):
        file.unlink()
    (account.path / JOURNAL).write_bytes(kept)
    assert account("status") == 0  # a valid chain by itself
    for command in ("status", "step", "report", "go"):
        assert account(command, "--head", head) == 2
        assert "rows were cut off" in account.shown


def test_the_page_follows_the_journal_after_a_kill_between_them(account: Commands) -> None:
    before = account.page
    account.write(LEARNED)
    with mock.patch("training.commands.paper.write_report", side_effect=OSError("disk full")):
        assert account("step") == 1
    assert account.page == before
    assert account("step") == 0  # nothing else is new
    assert account.page != before and DATES[LEARNED] in account.page


def test_sigterm_ends_a_step_with_a_word(fresh: Commands, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 143, what is saved, and how it goes on; the next step ends as an undisturbed one."""
    plain, earlier, real = Commands(fresh.home, capsys), signal.getsignal(signal.SIGTERM), Account._decide
    assert plain.open("--run", "one") == 0 and "opened with" in plain.shown

    def ask(self: Account, *day: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        real(self, *day)

    with mock.patch.object(Account, "_decide", ask):
        assert fresh("step") == 143
    shown = fresh.shown
    assert "stopped by SIGTERM; what it did until now is saved in its journal: continue with" in shown
    assert f"paper step {fresh.name}" in shown and "Traceback" not in shown
    assert signal.getsignal(signal.SIGTERM) is earlier and fresh.kinds == ["session"]
    assert fresh("step") == plain("step") == 0
    assert fresh.kinds == plain.kinds


def test_dividends_splits_and_new_names_from_the_command_line(account: Commands) -> None:
    """No question about the first two, in two commands; the third is asked about, and told by `paper rename`."""
    file, prices = rows_until(LEARNED), ["open", "high", "low", "close"]
    for ticker, ratio in (("T0", 0.995), ("T1", 0.25)):
        file.loc[file["ticker"] == ticker, prices] *= ratio
    file.to_parquet(account.data)
    assert account("step") == 0
    assert "dividend of T0" in (shown := account.shown) and "split of T1" in shown
    assert main(["signals", "--run", "one", "--data", str(account.data), "--runs-dir", str(account.runs)]) == 0
    file.assign(ticker=file["ticker"].replace("T2", "NEW")).to_parquet(account.data)
    assert account("step") == 2
    assert "without T2" in (shown := account.shown) and "paper rename" in shown
    for old, new in (("T9", "NEW"), ("T2", "T3")):
        assert account("rename", old, new) == 2
    assert account("rename", "T2", "NWE") == 0 and account("step") == 2  # mistyped, and told again
    assert account("rename", "T2", "NEW") == account("step") == account("report") == 0
    assert "equal to 0.001% of the equity" in account.page and "T2 is NEW now" in account.page


def test_bars_of_the_future_may_be_the_clock(fresh: Commands) -> None:
    with mock.patch("data.bars.date", wraps=date) as clock, mock.patch("data.loader.date", clock):
        clock.today.return_value = date(1990, 1, 1)
        assert fresh("step") == 2
    assert "or the clock, which says 1990-01-01" in fresh.shown


def test_a_session_that_a_vendor_delivers_late_is_left_out(account: Commands) -> None:
    """The account stepped without it; the same orders and page follow as if it had never come."""
    file = rows_until(LEARNED + 1)
    file[file["date"] != np.datetime64(DATES[LEARNED], "s")].to_parquet(account.data)
    assert account("step") == 0
    for last in (LEARNED + 1, LEARNED + 2):
        account.write(last)
        assert account("step") == account("report") == 0
    shown = account.shown
    assert f"left out: {DATES[LEARNED]}" in shown and "differ" not in shown
    assert account.kinds.count("session") == 3


def test_an_account_keeps_the_file_of_own_features(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    account, features = Commands(home, capsys), home / "mine.py"
    features.write_text("def trend(bars):\n    return bars['close'].pct_change(5)\n")
    with unjudged():
        flags = ("--run", "own", "--data", str(home / "all.parquet"), "--features", str(features))
        assert train(home / "tiny.toml", *flags) == 0
    assert account.open("--run", "own") == 0
    features.write_text("def other(bars):\n    return bars['close']\n")
    assert account("step") == 0
    features.unlink()
    account.write(LEARNED)
    assert account("step") == 0
