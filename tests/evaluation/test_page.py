"""The page says what it was given, to everybody, and nothing that it was given can act in it."""

import base64
import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.evidence import Evidence
from tests.conftest import blank
from tests.evaluation.page_case import DRIFTS, SESSIONS, case, sessions, walk
from training.evaluation import charts
from training.evaluation.baselines import CHAMPION, EQUAL, MOMENTUM, RANDOM
from training.evaluation.export import monthly_returns, render
from training.evaluation.judge import Evaluation
from training.evaluation.measures import EquityCurves
from training.evaluation.verdict import FoldResult
from utils import pictures
from utils.charts import DASH, MINUS, Chart, described, number
from utils.pictures import svg_data_uri

pytestmark = pytest.mark.usefixtures("real_charts")
HOSTILE = (
    "<script>alert(1)</script>",
    '"onload="alert(1)',
    "'><img src=x onerror=alert(1)>",
    "</style></title></svg><b>",
    "{{ 7 * 7 }}",
    "&lt;b&gt; & \udcff\x00",
    "x" * 300,
)
VOID = {"meta", "link", "br", "img", "input"}
FOLD = FoldResult("fold-1", {"holdout": ["2019-01-02", "2019-07-24"]}, 7, 1.234)


class Page(HTMLParser):
    """The elements of a page in order, the text of each, and whether every one is closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs)
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for index in self._open:
            self.texts[index] += data

    def all(self, *tags: str) -> list[tuple[dict[str, str | None], str]]:
        pairs = zip(self.elements, self.texts, strict=True)
        return [(attributes, " ".join(text.split())) for (tag, attributes), text in pairs if tag in tags]

    def of_class(self, name: str) -> list[str]:
        pairs = zip(self.elements, self.texts, strict=True)
        return [" ".join(text.split()) for (_, a), text in pairs if name in (a.get("class") or "").split()]

    def shape(self) -> list[tuple[str, list[str]]]:
        """Tags and names of attributes: what the page is, not what it says."""
        return [(tag, sorted(attributes)) for tag, attributes in self.elements]


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    return case()


@pytest.fixture(scope="module")
def page(evaluation: Evaluation) -> Page:
    return Page(render(evaluation))


def small(**changes: Any) -> Evaluation:
    """An evaluation of few days that leaves out what may be missing."""
    absent = {"records": (), "looks": (), "champion_generation": None}
    return case(**{"days": SESSIONS, "tickers": ("ABC",), **absent, **changes})


def named(name: str) -> Evaluation:
    """An evaluation that shows `name` wherever a name can come from outside."""
    ticker = name.replace("\udcff", "")  # tickers come from files of text
    one = small(name=name, tickers=(ticker,), command=f"python main.py --run {name}")
    look = replace(case(days=SESSIONS).looks[0], command=name, result=name)
    return replace(one, looks=[look], folds=[replace(FOLD, dates={"holdout": [name, name]})])


def drawn(chart: Chart) -> str:
    kind, _, data = svg_data_uri(chart).partition(",")
    assert kind == "data:image/svg+xml;base64"
    return base64.b64decode(data).decode()


def test_the_page_loads_and_runs_nothing(page: Page) -> None:
    addresses = [a[key] or "" for _, a in page.elements for key in ("src", "href", "data", "action") if key in a]
    assert addresses and all(address.startswith(("#", "data:")) for address in addresses)
    assert not any(name.startswith("on") for _, a in page.elements for name in a) and not page.all("script")
    ((_, style),) = page.all("style")
    assert "url(" not in style and "@import" not in style
    (policy,) = [a["content"] for a, _ in page.all("meta") if "http-equiv" in a]
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_names_are_text_and_nothing_else() -> None:
    name = " ".join(HOSTILE)
    shown = Page(render(named(name)))
    with mock.patch.object(pictures, "_figure", blank):
        assert shown.shape() == Page(render(named("plain"))).shape()
    for tag in ("h1", "pre", "dd"):
        assert any(letters(name) in letters(text) for _, text in shown.all(tag)), tag


def letters(text: str) -> str:
    """What is printed of a text but for spaces: parsers replace NUL and drop surrogates."""
    return "".join(letter for letter in text if letter.isprintable() and letter != " ")


def test_a_reader_who_listens_finds_the_way(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert next(text for _, text in page.all("h2")) == "Verdict"
    tables, captions = page.all("table"), page.all("caption")
    assert len(tables) == len(captions) >= 6 and all(text for _, text in captions)
    assert all(a.get("scope") in ("col", "row") and text for a, text in page.all("th"))
    assert all(a["alt"] for a, _ in page.all("img"))
    identities = [a["id"] for _, a in page.elements if "id" in a]
    assert len(identities) == len(set(identities))
    targets = {(a.get("href") or "")[1:] for a, _ in page.all("a", "use")}
    assert targets <= set(identities)
    labelled = {a["aria-labelledby"] for a, _ in page.all("section")}
    assert labelled <= set(identities)
    assert dict(page.elements)["html"] == {"lang": "en"}


def test_the_page_says_what_was_found(evaluation: Evaluation, page: Page) -> None:
    assert [text.replace("\N{MINUS SIGN}", "-") for text in page.of_class("sentence")] == [evaluation.verdict.sentence]
    text = " ".join(page.texts[0].split())
    value, low, high = (number(value, 2) for value in evaluation.policies[CHAMPION]["sharpe"])
    words = ["holdout", "best of 3 without skill", "Survivors only", "25 bp", "have had 3 at these data", "Rank IC"]
    words += ["timing: exposure over its mean", "over equal weight, at its exposure", "at its volatility"]
    for said in (*DRIFTS, *words, f"{value} {low} to {high}"):
        assert said in text
    monthly = monthly_returns(evaluation.dates, evaluation.equity[CHAMPION])
    known = [value for _, months, _ in monthly for value in months if np.isfinite(value)]
    cells = {text for _, text in page.all("td")}
    assert cells >= {number(float(value), 1, is_signed=True) for value in known}
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text)


@pytest.mark.usefixtures("blank_charts")
def test_what_is_missing_is_left_out_and_an_idle_champion_makes_a_page() -> None:
    one = small()
    idle = one.played.curves[CHAMPION]
    still = {"equity": np.full_like(idle.equity, 1000.0), "exposure": np.zeros_like(idle.exposure)}
    none = dict.fromkeys(("positions", "wins", "losses", "sessions", "largest", "traded", "costs"), np.zeros(1))
    curves = {**one.played.curves, CHAMPION: EquityCurves(**still, **none)}
    nothing = {"traded": 0 * one.played.traded, "positions": [], "selection": 0 * one.played.selection}
    shown = Page(render(replace(one, played=replace(one.played, curves=curves, **nothing))))
    titles = {text for _, text in shown.all("h2")}
    assert not {"Trades", "Fitness over the generations", "Holdout ledger"} & titles
    text = shown.texts[0]
    assert "No significant skill in selection or timing; not significantly different from equal weight" in text
    assert not re.search(r"\bnan\b|\bNone\b|\binf\b", text)


@pytest.mark.usefixtures("blank_charts")
def test_a_walk_forward_test_lists_its_folds() -> None:
    shown = Page(render(small(split="walk-forward", folds=[FOLD], trials=1)))
    assert "walk-forward test of 1 champion" in shown.all("h1")[0][1]
    text = " ".join(shown.texts[0].split())
    assert "tested 2019-01-02 to 2019-07-24, champion of generation 7, +1.23%" in text
    assert "nothing was chosen on the test days" in text


@given(
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e9, max_value=1e9), st.integers(0, 4), st.booleans()
)
def test_numbers_can_be_read_back(value: float, decimals: int, is_signed: bool) -> None:
    text = number(value, decimals, is_signed=is_signed)
    back = float(text.replace(",", "").replace(MINUS, "-"))
    assert abs(back - value) <= 0.5000001 * 10.0**-decimals
    assert text.startswith(MINUS) == (back < 0) and text.startswith("+") == (is_signed and back > 0)
    assert len(text.partition(".")[2]) == decimals


def test_a_chart_says_in_text_what_it_shows() -> None:
    """Whatever a name holds, it is text in the picture too."""
    days = np.datetime64("2020-01-01") + np.arange(300)
    label = 'a $name$ <b style="c">'
    chart = Chart("Title", days, {label: np.linspace(0, -1234.5, 300)}, note="What is shown.")
    shown = drawn(chart)
    for text in ("2020-07", "\N{MINUS SIGN}1,000", "a $name$ &lt;b", "\N{MINUS SIGN}1,234.5 %", "What is shown."):
        assert text in shown
    assert described(chart) == f"Title. What is shown. {label} \N{MINUS SIGN}1,234.5 %"
    assert "Titel?" in drawn(replace(chart, title="Titel\x00"))


def test_monthly_returns_compound_to_the_whole() -> None:
    dates = sessions("2019-11-05", 300)
    equity = walk(np.random.default_rng(0), 300, 0.0003)
    found = monthly_returns(dates, equity)
    assert np.prod([1 + total / 100 for _, _, total in found]) == pytest.approx(equity[-1] / equity[0])
    ends = pd.Series(equity[1:], index=pd.DatetimeIndex(dates[1:])).groupby(lambda day: (day.year, day.month)).last()
    expected = 100 * (ends.to_numpy() / np.concatenate(([equity[0]], ends.to_numpy()[:-1])) - 1)
    percent = np.array([months for _, months, _ in found])
    known = np.isfinite(percent)
    assert percent[known] == pytest.approx(expected)
    assert [(found[row][0], column + 1) for row, column in np.argwhere(known)] == list(ends.index)


@pytest.mark.usefixtures("blank_charts")
def test_evidence_and_what_follows_from_it_are_told() -> None:
    strong, weak = Evidence(9.6, 2.0, 1e-9, 0.97), Evidence(1.2, 2.1, 0.703, 0.0)
    for evidence, claim, head in (
        (strong, "worth 9.6% a year (+- 2.0) over the benchmark", "EDGE: 97% of the differences between scores"),
        (
            weak,
            "(p = 0.703 after correction for all agents tried): the benchmark is held.",
            "NO SIGNIFICANT EDGE: the benchmark is held",
        ),
    ):
        one = small(evidence=[evidence])
        assert claim in one.evidence_sentence and one.sentence == f"{one.evidence_sentence} {one.verdict.sentence}"
        assert one.headline.startswith(head) and one.headline in Page(render(one)).of_class("headline")[0]
    several = small(folds=[FOLD, FOLD], evidence=[strong, replace(weak, shrink=0.4)])
    assert several.sentence.startswith(
        "Training days show significant evidence for 1 of 2 champions; in the mean 68% of the differences"
    )
    assert several.headline.startswith("EDGE: 68% of") and small().headline == ""


def test_the_answer_stands_above_all_tables(evaluation: Evaluation, page: Page) -> None:
    """Bars are the champion's leads; blue or red only where the verdict tells apart."""
    order = [a.get("class") or tag for tag, a in page.elements if tag == "table" or "bars" in (a.get("class") or "")]
    assert order.index("bars") < 3, "below what was asked, and years"
    sources = [tag for tag, a in page.elements if tag == "img" or "sentence" in (a.get("class") or "")]
    assert sources[:3] == ["p", "img", "img"], "the verdict, and equity and drawdown beside it"
    signs = [evaluation.verdict.selection.sign, evaluation.verdict.over_benchmark.sign]
    bars = charts.answer_bars(evaluation)
    best = evaluation.verdict.best_baseline
    assert best is not None
    assert [bar.label for bar in bars] == [f"over {name}" for name in (RANDOM, EQUAL, best.name)]
    signs.append(best.test.sign)
    assert [bar.kind for bar in bars] == [{1: "gain", 0: "none", -1: "loss"}[sign] for sign in signs]
    assert all(bar.label in page.texts[0] and bar.text in page.texts[0] for bar in bars)
    for bar, lead in zip(bars, evaluation.leads, strict=True):
        assert [edge > bar.zero for edge in bar.interval] == [edge > 0 for edge in lead.test.interval]
        assert bar.interval[0] < (bar.left if lead.test.mean < 0 else bar.left + bar.width) < bar.interval[1]
    assert len(page.of_class("whisker")) == len(bars)
    assert "never trained (buffer 9,920 of 10,000)" in page.texts[0]


def test_a_baseline_that_follows_nothing_is_told() -> None:
    one = small()
    assert one.idle == []
    curves = {**one.played.curves, MOMENTUM: one.played.curves[EQUAL]}
    idle = replace(one, played=replace(one.played, curves=curves))
    assert "60-day momentum: the same as equal weight, for" in Page(render(idle)).texts[0]
    assert MOMENTUM not in [lead.policy for lead in idle.leads]


def test_positions_and_trades_are_told_by_stock_and_day(evaluation: Evaluation) -> None:
    positions, texts = evaluation.positions, [bar.text for bar in charts.profit_bars(evaluation)]
    counted = sum(int(text.split()[-2].replace(",", "")) for text in texts)
    assert counted == len(positions) and positions["last_date"].isna().any()
    trades = evaluation.trades
    first = positions.iloc[0]
    bought = trades[(trades["date"] == first["first_date"]) & (trades["ticker"] == first["ticker"])]
    assert bought["value"].tolist() == [1000.0]
    assert trades["value"].sum() == pytest.approx(evaluation.played.traded.sum())


@pytest.mark.usefixtures("blank_charts")
def test_what_decided_a_trade_stands_beside_its_result() -> None:
    one = small(decided={2: "leaders +0.41, <b> -0.10", 0: "rsi +0.05"})
    rows = [text for _, text in Page(render(one)).all("tr")]
    ends = ("<b> \N{MINUS SIGN}0.10", "rsi +0.05")
    first, second = (next(text for text in rows if text.endswith(end)) for end in ends)
    assert rows.index(first) + 1 == rows.index(second)
    held = one.positions.iloc[2]
    result = number(100 * (held["profit"] - held["costs"]) / 1e6, 2, is_signed=True)
    assert first.startswith(f"{held['ticker']}{held['first_date']}{held['last_date'] or DASH}{result}")
