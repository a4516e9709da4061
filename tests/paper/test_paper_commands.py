"""The commands of a paper account, from its opening to its page, on one tiny run."""

import re
import shlex
import signal
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from main import main
from models.ddpg_agent import DDPGAgent
from tests.paper.cases import Keeper
from tests.tiny_run import TINY, frame, unjudged
from tests.tiny_run import run as train
from training.evaluation.holdout import LEDGER, read_looks
from training.paper.account import Account
from training.paper.journal import JOURNAL, STOP, Journal
from training.run.market import read_market_record
from training.run.saved import open_saved_run
from utils.errors import ConfigError
from utils.runs.run_lock import RunLock
from utils.runs.run_log import REPORT

LEARNED, DAYS = 300, 320
FRAME = frame(DAYS, 5)
DATES = FRAME["date"].astype(str).unique().tolist()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, small_heap: None) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("paper")
    (folder / "tiny.toml").write_text(TINY)
    write(folder / "all.parquet", LEARNED)
    with unjudged():
        flags = ("--run", "one", "--data", str(folder / "all.parquet"), "--evaluation.evidence", "require")
        assert train(folder / "tiny.toml", *flags) == 0  # all of it holds the basket
    yield folder


@pytest.fixture
def data(home: Path, request: pytest.FixtureRequest) -> Path:
    """A data file of a test, as long as the run's."""
    path = home / f"{request.node.name}.parquet"
    write(path, LEARNED)
    return path


def write(path: Path, days: int) -> None:
    FRAME[FRAME["date"] < np.datetime64(DATES[days - 1], "s") + np.timedelta64(1, "D")].to_parquet(path)


def paper(home: Path, *words: str) -> int:
    return main(["paper", *words, "--runs-dir", str(home / "runs")])


def kinds(home: Path, name: str) -> list[str]:
    with Journal(home / "runs" / name / JOURNAL) as journal:
        known = ("session", "intent", "answer", "hold", "missed", "stop", "go")
        rows = (row for kind in known for row in journal.of(kind).values())
        return [row.kind for row in sorted(rows, key=lambda row: row.number)]


def test_an_account_goes_on_from_day_to_day(
    home: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a champion that orders on every day."""
    monkeypatch.setattr(DDPGAgent, "load", lambda path, load=DDPGAgent.load: Keeper(**vars(load(path))))
    assert paper(home, "open", "daily", "--run", "one", "--data", str(data)) == 0
    assert paper(home, "open", "daily", "--run", "one") == 2  # the name is taken
    assert paper(home, "status", "daily") == paper(home, "step", "daily") == 0
    rows = kinds(home, "daily")
    assert rows[:2] == ["session", "intent"]
    page = home / "runs" / "daily" / REPORT
    written = page.stat().st_mtime_ns
    assert paper(home, "step", "daily") == 0
    assert kinds(home, "daily") == rows and page.stat().st_mtime_ns == written  # nothing the second time
    assert "nothing to do" in capsys.readouterr().out
    write(data, LEARNED + 1)
    assert paper(home, "step", "daily") == 0
    write(data, LEARNED + 4)
    assert paper(home, "step", "daily") == 0
    assert kinds(home, "daily").count("missed") == 2 and kinds(home, "daily").count("session") == 5
    assert "was missed" in capsys.readouterr().err
    assert paper(home, "stop", "daily") == 0
    write(data, LEARNED + 5)
    assert paper(home, "step", "daily") == 0 and kinds(home, "daily")[-2:] == ["session", "intent"]
    assert "no new orders" in capsys.readouterr().err
    assert paper(home, "go", "daily") == paper(home, "report", "daily") == 0
    assert "differ, first on" in page.read_text()  # by the orders that were not given
    write(data, LEARNED)
    assert paper(home, "step", "daily") == 2
    assert "give the file that has it" in capsys.readouterr().err


def test_what_cannot_be_right_is_held_until_it_is_accepted(
    home: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paper(home, "open", "held", "--run", "one", "--data", str(data)) == paper(home, "step", "held") == 0
    known = kinds(home, "held")
    few = FRAME[(FRAME["date"].astype(str) < DATES[LEARNED]) | (FRAME["ticker"] == "T0")]
    few[few["date"].astype(str) <= DATES[LEARNED]].to_parquet(data)
    for _ in range(2):
        assert paper(home, "step", "held") == 2
        assert "bars on" in capsys.readouterr().err and kinds(home, "held") == [*known, "hold"]
    assert paper(home, "go", "held") == paper(home, "step", "held") == 0
    assert kinds(home, "held")[len(known) :][:3] == ["hold", "go", "session"]


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_replay_is_its_backtest(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Walked on validation days, without a look at the holdout, and told in a few lines; a basket only if there is
    one."""
    name = f"demo{share:g}"
    monkeypatch.setattr(DDPGAgent, "load", lambda path, load=DDPGAgent.load: load(path).with_share(share))
    assert paper(home, "open", name, "--run", "one") == paper(home, "step", name) == 0
    capsys.readouterr()
    assert paper(home, "status", name) == 0
    assert ("basket" in capsys.readouterr().out) == (share < 1)
    assert paper(home, "replay", name) == 0
    shown = capsys.readouterr().out
    first, last = read_market_record(home / "runs" / name).splits["validation"]
    assert "equal bit for bit" in shown and "accepted" not in shown and len(shown.splitlines()) == 3
    basket = ", its basket [+-][\\d.]+%" if share < 1 else ""
    assert re.match(rf"{name} on \d+ sessions, {first} to {last}: [+-][\d.]+%{basket}; \d+ fills\n", shown)
    page = home / "runs" / name / "replay" / REPORT
    assert page.is_file() and shown.endswith(f"written to {page}\n")
    assert not (home / "runs" / LEDGER).exists()


def test_a_replay_of_the_holdout_is_a_look(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused without the flag, before anything is walked; entered even where the walk is cut short."""
    assert paper(home, "open", "look", "--run", "one") == 0
    first, last = read_market_record(home / "runs" / "look").splits["holdout"]
    for span in (("--from", first), ("--to", last)):
        assert paper(home, "replay", "look", *span) == 2
        assert "expected --spend-look" in capsys.readouterr().err
    assert not (home / "runs" / LEDGER).exists() and not (home / "runs" / "look" / "replay").exists()
    with mock.patch.object(Account, "step", side_effect=KeyboardInterrupt):
        assert paper(home, "replay", "look", "--from", first, "--spend-look") == 130
    run = open_saved_run(home / "runs", "one")
    (look,) = read_looks(home / "runs", run.market, first, last)
    assert (look.run, look.champion_generation, look.first_day, look.last_day) == ("one", run.generation, first, last)
    assert main([*shlex.split(look.command)[2:], "--runs-dir", str(home / "runs")]) == 0
    assert len(read_looks(home / "runs", run.market, first, last)) == 2


@pytest.mark.parametrize(
    "words",
    [
        *("step none", "open other --run one --calendar MARS", "open other --run one --venue alpaca", "replay one"),
        *("open other --run one --capital 1e300", "replay demo1 --from 2010-8-2", "replay demo1 --to 2010-09"),
        "step demo1 --date 2010-01-29",
    ],
)
def test_mistakes_are_one_line(home: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    assert paper(home, *words.split()) == 2
    assert capsys.readouterr().err.count("expected") == 1
    assert not (home / "runs" / "other").exists()


def test_without_a_name_the_accounts_are_named(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper(home, "open", "known", "--run", "one") == 0
    for command in ("step", "status", "go", "open"):
        assert paper(home, command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "expected the NAME of a paper account, got none" in line and re.search(r"has .*\bknown\b", line)
    assert main(["paper", "step", "--runs-dir", str(tmp_path)]) == 2
    assert "`paper open NAME` begins one" in capsys.readouterr().err


def test_an_account_of_an_earlier_version_is_refused_in_one_line(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its journal says nothing of its layout."""
    assert paper(home, "open", "windows", "--run", "one") == 0
    path = home / "runs" / "windows" / JOURNAL
    with Journal(path) as journal:
        opening = {name: value for name, value in journal.opening.items() if name != "layout"}
    path.unlink()
    Journal.create(path, opening)
    assert paper(home, "step", "windows") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "got windows of an earlier version" in line and "open a new one with `paper open`" in line


def test_a_folder_stop_is_refused_before_anything_is_written(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper(home, "open", "folder", "--run", "one") == paper(home, "stop", "folder") == 0
    (home / "runs" / "folder" / STOP).mkdir()
    assert paper(home, "go", "folder") == 2 and "remove it" in capsys.readouterr().err
    assert kinds(home, "folder") == ["stop"]
    (home / "runs" / "folder" / STOP).rmdir()
    (home / "runs" / "folder" / STOP).symlink_to("nothing")
    assert paper(home, "go", "folder") == 0 and kinds(home, "folder") == ["stop", "go"]
    assert "no new orders" not in capsys.readouterr().err


def test_status_reads_a_disk_that_cannot_be_written(
    home: Path, data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of an unmerged log of SQLite are read, and nothing in the folder changes; what writes still asks for it."""
    assert paper(home, "open", "still", "--run", "one", "--data", str(data)) == paper(home, "step", "still") == 0
    path = home / "runs" / "still"
    with Journal(path / JOURNAL) as journal:
        journal.append("stop", "x", {"text": "a reason"})
        before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir() if file.is_file()}
        assert f"{JOURNAL}-wal" in before
        monkeypatch.setattr("os.access", lambda *_: False)
        monkeypatch.setattr(RunLock, "__enter__", refused)
        capsys.readouterr()
        assert paper(home, "status", "still") == 0
        assert "no new orders: a reason" in capsys.readouterr().err
        after = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir() if file.is_file()}
        assert after == before
        assert paper(home, "go", "still") == 2


def refused(lock: RunLock) -> RunLock:
    """What a lock on a disk does that cannot be written."""
    raise ConfigError("expected a disk that can be written")


def test_a_head_that_was_shown_must_be_in_the_journal(
    home: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that are cut off, or a chain that is written anew, are noticed by who kept what `status` showed."""
    assert paper(home, "open", "head", "--run", "one", "--data", str(data)) == paper(home, "step", "head") == 0
    path = home / "runs" / "head"
    kept = (path / JOURNAL).read_bytes()
    write(data, LEARNED + 1)
    assert paper(home, "step", "head") == paper(home, "status", "head") == 0
    found = re.findall(r"head of the journal: ([0-9a-f]{64}), row", capsys.readouterr().out)
    assert found[-1] in (path / REPORT).read_text()
    write(data, LEARNED + 2)
    assert paper(home, "step", "head", "--head", found[-1]) == 0
    for file in path.glob(f"{JOURNAL}*"):
        file.unlink()
    (path / JOURNAL).write_bytes(kept)
    assert paper(home, "status", "head") == 0  # a valid chain by itself
    for command in ("status", "step", "report", "go"):
        assert paper(home, command, "head", "--head", found[-1]) == 2
        assert "rows were cut off" in capsys.readouterr().err


def test_the_page_follows_the_journal_after_a_kill_between_them(home: Path, data: Path) -> None:
    assert paper(home, "open", "page", "--run", "one", "--data", str(data)) == paper(home, "step", "page") == 0
    page = home / "runs" / "page" / REPORT
    before = page.read_text()
    write(data, LEARNED + 1)
    with mock.patch("training.commands.paper.write_report", side_effect=OSError("disk full")):
        assert paper(home, "step", "page") == 1
    assert page.read_text() == before
    assert paper(home, "step", "page") == 0  # nothing else is new
    assert page.read_text() != before and DATES[LEARNED] in page.read_text()


def test_sigterm_ends_a_step_with_a_word(home: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 143, what is saved, and how it goes on; the next step ends as an undisturbed one."""
    for name in ("plain", "killed"):
        assert paper(home, "open", name, "--run", "one", "--data", str(data)) == 0
    earlier, real = signal.getsignal(signal.SIGTERM), Account._decide

    def ask(self: Account, day: int) -> None:
        signal.raise_signal(signal.SIGTERM)
        real(self, day)

    with mock.patch.object(Account, "_decide", ask):
        assert paper(home, "step", "killed") == 143
    shown = capsys.readouterr().err
    assert "stopped by SIGTERM; what it did until now is saved in its journal: continue with" in shown
    assert "paper step killed" in shown and "Traceback" not in shown
    assert signal.getsignal(signal.SIGTERM) is earlier and kinds(home, "killed") == ["session"]
    assert paper(home, "step", "killed") == paper(home, "step", "plain") == 0
    assert kinds(home, "killed") == kinds(home, "plain")


def test_dividends_splits_and_new_names_from_the_command_line(
    home: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No question about the first two, in two commands; the third is asked about, and told by `paper rename`."""
    assert paper(home, "open", "names", "--run", "one", "--data", str(data)) == paper(home, "step", "names") == 0
    file, prices = FRAME[FRAME["date"].astype(str) <= DATES[LEARNED]].copy(), ["open", "high", "low", "close"]
    for ticker, ratio in (("T0", 0.995), ("T1", 0.25)):
        file.loc[file["ticker"] == ticker, prices] *= ratio
        file.to_parquet(data)
    assert paper(home, "step", "names") == 0
    shown = capsys.readouterr().out
    assert "dividend of T0" in shown and "split of T1" in shown
    assert main(["signals", "--run", "one", "--data", str(data), "--runs-dir", str(home / "runs")]) == 0
    renamed = file.assign(ticker=file["ticker"].replace("T2", "NEW"))
    renamed.to_parquet(data)
    assert paper(home, "step", "names") == 2
    assert "without T2" in (shown := capsys.readouterr().err) and "paper rename" in shown
    for old, new in (("T9", "NEW"), ("T2", "T3")):
        assert paper(home, "rename", "names", old, new) == 2
    assert paper(home, "rename", "names", "T2", "NEW") == paper(home, "step", "names") == 0
    assert paper(home, "report", "names") == 0
    page = (home / "runs" / "names" / REPORT).read_text()
    assert "equal to the cent" in page and "T2 is NEW now" in page


def test_bars_of_the_future_may_be_the_clock(home: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper(home, "open", "clock", "--run", "one", "--data", str(data)) == 0
    with mock.patch("data.bars.date", wraps=date) as clock, mock.patch("data.loader.date", clock):
        clock.today.return_value = date(1990, 1, 1)
        assert paper(home, "step", "clock") == 2
    assert "or the clock, which says 1990-01-01" in capsys.readouterr().err


def test_a_session_that_a_vendor_delivers_late_is_left_out(
    home: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The account stepped without it; the same orders and page follow as if it had never come."""
    assert paper(home, "open", "late", "--run", "one", "--data", str(data)) == paper(home, "step", "late") == 0
    dates = FRAME["date"].astype(str)
    FRAME[(dates <= DATES[LEARNED + 1]) & (dates != DATES[LEARNED])].to_parquet(data)
    assert paper(home, "step", "late") == 0
    for last in (LEARNED + 1, LEARNED + 2):
        FRAME[dates <= DATES[last]].to_parquet(data)
        assert paper(home, "step", "late") == paper(home, "report", "late") == 0
    shown = capsys.readouterr().out
    assert f"left out: {DATES[LEARNED]}" in shown and "differ" not in shown
    assert kinds(home, "late").count("session") == 3


def test_an_account_keeps_the_file_of_own_features(home: Path, tmp_path: Path, data: Path) -> None:
    features = tmp_path / "mine.py"
    features.write_text("def trend(bars):\n    return bars['close'].pct_change(5)\n")
    with unjudged():
        flags = ("--run", "own", "--data", str(home / "all.parquet"), "--features", str(features))
        assert train(home / "tiny.toml", *flags) == 0
    assert paper(home, "open", "keeps", "--run", "own", "--data", str(data)) == 0
    features.write_text("def other(bars):\n    return bars['close']\n")
    assert paper(home, "step", "keeps") == 0
    features.unlink()
    write(data, LEARNED + 1)
    assert paper(home, "step", "keeps") == 0


def test_a_split_of_what_the_basket_alone_holds_is_asked_about(
    home: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raw bars at a quarter of the price; none of the capital follows the agents."""
    assert paper(home, "open", "raw", "--run", "one", "--data", str(data)) == paper(home, "step", "raw") == 0
    file = FRAME[FRAME["date"].astype(str) <= DATES[LEARNED]].copy()
    split = (file["date"].astype(str) == DATES[LEARNED]) & (file["ticker"] == "T1")
    file.loc[split, ["open", "high", "low", "close"]] /= 4
    file.to_parquet(data)
    assert paper(home, "step", "raw") == 2
    assert "adjusted bars of T1, got what looks like a split by 4" in capsys.readouterr().err


def test_a_name_that_was_mistyped_is_told_again(home: Path, data: Path) -> None:
    assert paper(home, "open", "typo", "--run", "one", "--data", str(data)) == 0
    renamed = FRAME.assign(ticker=FRAME["ticker"].replace("T2", "META"))
    renamed[FRAME["date"].astype(str) < DATES[LEARNED]].to_parquet(data)
    assert paper(home, "rename", "typo", "T2", "MTEA") == 0 and paper(home, "step", "typo") == 2
    assert paper(home, "rename", "typo", "T2", "META") == paper(home, "step", "typo") == 0
