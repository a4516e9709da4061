"""The command `prepare` as a user sees it: files, messages, exit codes, and the page."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.raw.prepare import prepare
from main import main
from tests.data.files import read_or_refused
from tests.evaluation.test_page import HOSTILE, Page
from training.commands.prepare import render


def bars(tickers: tuple[str, ...] = ("AAA", "BBB"), days: int = 300) -> pd.DataFrame:
    """Long frame in which the second ticker has a gap, an error, a wide row and no split column."""
    rng = np.random.default_rng(0)
    dates = np.busday_offset("2019-06-03", np.arange(days)).astype("datetime64[s]")
    parts = []
    for place, ticker in enumerate(tickers):
        close = 30 * np.exp(np.cumsum(0.01 * rng.standard_normal(days)))
        own = pd.DataFrame(
            {"date": dates, "ticker": ticker, "open": close, "high": close, "low": close, "close": close}
        )
        if place == 1:
            own.loc[50, ["open", "high", "low", "close"]] *= 10
            own.loc[60, "high"] /= 2
            own = own.drop(index=range(70, 80))
        parts.append(own)
    return pd.concat(parts, ignore_index=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    bars().to_parquet(tmp_path / "source.parquet")
    return tmp_path / "source.parquet"


def test_files_and_messages(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = source.parent / "out" / "prices.parquet"
    assert main(["prepare", str(source), str(target)]) == 0
    assert sorted(path.name for path in target.parent.iterdir()) == ["prices.html", "prices.parquet"]
    shown = capsys.readouterr().out
    for line in (
        "2019       152        2   294     96.71",
        "Gaps: 1: BBB 10 sessions, 2019-09-06 to 2019-09-23",
        "Suspicious moves (1 undone the next day): 2: BBB +",
        "Survivors only: 2 of 2 tickers trade on the last day",
    ):
        assert line in shown
    page = Page((target.parent / "prices.html").read_text())
    rows = [text for _, text in page.all("tr")]
    assert {"BBB2019-09-062019-09-2310", "2019152229496.7"} <= set(rows)
    assert any(row.startswith("BBB2019-08-12+88") and row.endswith("undone the next day") for row in rows)
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
        (
            ["source.parquet", "prices.parquet", "--benchmark", "CCC"],
            "expected --benchmark to be one of several tickers of the data",
        ),
        (["one.csv", "prices.parquet", "--benchmark", "one"], "add the stocks to trade"),
        (["source.parquet", "one.csv/prices.parquet"], "expected to write"),
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
    path = tmp_path / "source"
    is_csv = data.draw(st.booleans())
    frame = bars().groupby("ticker").head(20)
    wide = frame.pivot(index="date", columns="ticker", values="close")
    shown = data.draw(st.sampled_from([frame, wide.reset_index()]))
    if is_csv:
        shown.to_csv(path, index=False)
    else:
        shown.to_parquet(path, compression="none")
    content = path.read_bytes()
    start = data.draw(st.integers(0, len(content) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=64))
    path.write_bytes(content[:start] + junk + content[start + len(junk) :])
    with read_or_refused():
        summary = prepare(path, tmp_path / "prices.parquet")
        render(summary, path)
        assert summary.lines() and summary.survey.lines()
