"""The commands of a paper account, from its opening to its page, on one tiny run."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from main import main
from tests.tiny_run import TINY, frame, unjudged
from tests.tiny_run import run as train
from training.paper.journal import JOURNAL, STOP, Journal
from utils.runs.run_log import REPORT

LEARNED, DAYS = 300, 320
FRAME = frame(DAYS, 5)
DATES = FRAME["date"].astype(str).unique().tolist()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("paper")
    (folder / "tiny.toml").write_text(TINY)
    write(folder / "all.parquet", LEARNED)
    with unjudged():
        flags = ("--run", "one", "--data", str(folder / "all.parquet"), "--evaluation.evidence", "require")
        assert train(folder / "tiny.toml", *flags) == 0  # it holds the market, and so buys
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
        rows = [
            row
            for kind in ("session", "intent", "answer", "hold", "missed", "stop", "go")
            for row in journal.of(kind).values()
        ]
        return [row.kind for row in sorted(rows, key=lambda row: row.number)]


def test_an_account_goes_on_from_day_to_day(
    home: Path, data: Path, restore_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paper(home, "open", "daily", "--run", "one", "--data", str(data)) == 0
    assert paper(home, "open", "daily", "--run", "one") == 2  # the name is taken
    assert paper(home, "status", "daily") == paper(home, "step", "daily") == 0
    rows = kinds(home, "daily")
    assert rows[:2] == ["session", "intent"]
    page = home / "runs" / "daily" / REPORT
    written = page.stat().st_mtime_ns
    assert paper(home, "step", "daily") == 0
    assert kinds(home, "daily") == rows and page.stat().st_mtime_ns == written  # nothing the second time
    assert "nothing to do" in capsys.readouterr().err
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
    home: Path, data: Path, restore_process: None, capsys: pytest.CaptureFixture[str]
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


def test_a_replay_is_its_backtest(home: Path, restore_process: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert paper(home, "open", "demo", "--run", "one") == 0
    assert paper(home, "replay", "demo", "--to", DATES[LEARNED - 10]) == 0
    assert "equal bit for bit" in capsys.readouterr().err
    assert (home / "runs" / "demo" / "replay" / REPORT).is_file()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("step", "none"), 2),
        (("open", "other", "--run", "one", "--calendar", "MARS"), 2),
        (("open", "other", "--run", "one", "--venue", "alpaca"), 2),
        (("replay", "one"), 2),
    ],
)
def test_mistakes_are_one_line(
    home: Path, restore_process: None, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int
) -> None:
    assert paper(home, *words) == code
    assert capsys.readouterr().err.count("expected") == 1
    assert not (home / "runs" / "other").exists()


def test_a_folder_stop_is_refused_before_anything_is_written(
    home: Path, restore_process: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paper(home, "open", "folder", "--run", "one") == paper(home, "stop", "folder") == 0
    (home / "runs" / "folder" / STOP).mkdir()
    assert paper(home, "go", "folder") == 2 and "remove it" in capsys.readouterr().err
    assert kinds(home, "folder") == ["stop"]
    (home / "runs" / "folder" / STOP).rmdir()
    (home / "runs" / "folder" / STOP).symlink_to("nothing")
    assert paper(home, "go", "folder") == 0 and kinds(home, "folder") == ["stop", "go"]
    assert "no new orders" not in capsys.readouterr().err
