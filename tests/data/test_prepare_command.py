"""The command `prepare` as a user sees it: files, messages, exit codes, and the page."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.prepare.prepare import prepare
from main import main
from tests.data.files import PRICES, read_or_refused, written
from tests.evaluation.test_page import HOSTILE, Page
from tests.tiny_run import frame
from training.commands.prepare import render


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file in which the second ticker has a gap, an error and a bar whose high is below its close."""
    rows = frame(300, 2)
    second = rows.index[rows["ticker"] == "T1"]
    rows.loc[second[50], PRICES] *= 10
    rows.loc[second[60], "high"] /= 2
    rows.drop(index=second[70:80]).to_parquet(tmp_path / "source.parquet")
    return tmp_path / "source.parquet"


def test_files_and_messages(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = source.parent / "out" / "prices.parquet"
    assert main(["prepare", str(source), str(target)]) == 0
    assert sorted(path.name for path in target.parent.iterdir()) == ["prices.html", "prices.parquet"]
    shown = capsys.readouterr().out
    for line in (
        "2010       260        2   510     98.08",
        "Gaps: 1: T1 10 sessions, 2010-04-09 to 2010-04-26",
        "Suspicious moves (1 undone the next day): 2: T1 -90% on 2010-03-16; T1 +",
        "Survivors only: 2 of 2 tickers trade on the last day",
    ):
        assert line in shown
    page = Page((target.parent / "prices.html").read_text())
    rows = [text for _, text in page.all("tr")]
    assert {"T12010-04-092010-04-2610", "2010260251098.1"} <= set(rows)
    assert any(row.startswith("T12010-03-15+9") and row.endswith("yes") for row in rows)
    policy = next(meta["content"] for meta, _ in page.all("meta") if meta.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "prices.parquet"], "does not exist"),
        (["source.parquet", "source.parquet", "--overwrite"], "which is that file"),
        (["source.parquet", "source.parquet"], "which exists; give --overwrite or --append"),
        (["source.parquet", "one.parquet"], "one.html, which exists; give --overwrite or --append"),
        (["source.parquet"], "TARGET: expected PATH, got nothing"),
        (["source.parquet", "prices.html"], "expected a parquet file as TARGET"),
        (["source.parquet", "prices.parquet", "--benchmark", "CCC"], "--benchmark to be one of several tickers"),
        (["one.csv", "prices.parquet", "--benchmark", "one"], "add the stocks to trade"),
        (["source.parquet", "one.csv/prices.parquet"], "expected to write"),
        (["one.csv", "prices.parquet", "--columns", "close=Nope"], "a title, got 'Nope'"),
        (["one.csv", "prices.parquet", "--columns", "closing=Close"], "--columns: expected date, time"),
        (["one.csv", "prices.parquet", "--columns", "close"], "--columns: expected date, time"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    arguments: list[str], words: str, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(source.parent)
    Path("one.html").write_text("not to be lost")
    Path("one.csv").write_text("Date,Open,High,Low,Close\n2020-01-02,1,1,1,1\n")
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    assert main(["prepare", *arguments]) == 2
    shown = capsys.readouterr().err.strip().splitlines()
    assert len(shown) == 1 and words in shown[0]
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def test_names_cannot_act_in_the_page(source: Path) -> None:
    shapes, name = [], " ".join(name for name in HOSTILE if "\x00" not in name)
    summary = prepare(source, source.with_name("prices.parquet"))
    for ticker in ("plain", name):
        summary.notes, summary.skipped = [ticker], [(ticker, ticker)]
        page = Page(render(summary, Path(ticker)))
        shapes.append(sorted(map(str, page.shape())))
        assert " ".join(name.split()) in page.texts[0] or ticker == "plain"
    assert shapes[0] == shapes[1]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_spoilt_files_are_read_or_refused_in_one_line(tmp_path: Path, data: st.DataObject) -> None:
    long = frame(20, 2)
    wide = long.pivot(index="date", columns="ticker", values="close")
    drawn, is_csv = data.draw(st.sampled_from([long, wide.reset_index()])), data.draw(st.booleans())
    content = drawn.to_csv(index=False).encode() if is_csv else drawn.to_parquet(compression="none")
    start = data.draw(st.integers(0, len(content) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=64))
    path = written(tmp_path / "source", content[:start] + junk + content[start + len(junk) :])
    with read_or_refused():
        summary = prepare(path, tmp_path / "prices.parquet")
        render(summary, path)
        assert summary.lines() and summary.survey.lines()
