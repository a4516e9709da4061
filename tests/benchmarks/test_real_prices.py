"""The study on real prices: stopped it goes on, its plan is frozen, its sums are right, and it claims what is there."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.real_prices.__main__ import PARTS, RESULTS, main
from benchmarks.real_prices.accounts import Account, Pickers, block_edges
from benchmarks.real_prices.ledger import LEDGER
from benchmarks.real_prices.measures import Field, confirm, detectable
from benchmarks.real_prices.parts import Source
from benchmarks.real_prices.plan import AT_EXPOSURE, BEST_RIVAL, PICKERS, Comparison, read_plan
from benchmarks.real_prices.plan import PLAN as COMMITTED
from data.splits import make_folds
from data.synthetic.draw import bars_frame, synthetic_market
from tests.benchmarks.study_cases import lines_of
from training.evaluation.baselines import EQUAL
from training.evaluation.measures import EquityCurves
from utils.config.trader import SyntheticConfig
from utils.errors import ConfigError
from utils.metrics import TRADING_DAYS_PER_YEAR

PLAN = """
seeds = [0, 1]
forms = ["champion", "untested ensemble"]
pickers = 40
rival_refit = 30
[folds]
folds = 2
test_windows = 2
validation_days = 30
train_days = 0
[settings]
generations = 1
split.context_window_days = 12
env = { trading_days = 20, settlement_days = 4, max_holding_days = 4, stake_percent = 5.0 }
evolution.population_size = 8
learning = { replay_capacity = 512 }
evaluation = { fitness_windows = 2, exploration_windows = 1, validation_windows = 2 }
[[universes]]
name = "few"
stocks = "listed"
variants = ["product"]
[[comparisons]]
universe = "few"
policy = "champion"
against = "pickers"
[[comparisons]]
universe = "few"
policy = "champion"
against = "best rival"
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, small_heap: None) -> tuple[list[str], Path]:
    """The words and the folder of a finished study of a market with strong momentum."""
    folder = tmp_path_factory.mktemp("planted")
    market = synthetic_market(SyntheticConfig(kind="momentum", days=500, stocks=8, drift_std=0.02), 3)
    frame = bars_frame(market)
    frame["volume"] = np.random.default_rng(0).integers(10_000, 1_000_000, len(frame)).astype(float)
    frame.to_parquet(folder / "prices.parquet")
    (folder / "few.txt").write_text("\n".join(market.tickers[: market.stocks]))
    (folder / "plan.toml").write_text(PLAN)
    names = ("data", "prices.parquet"), ("investable", "few.txt"), ("plan", "plan.toml"), ("out", "out")
    words = [word for flag, name in names for word in (f"--{flag}", str(folder / name))]
    main(words)
    return words, folder / "out"


def found(out: Path) -> dict[str, Any]:
    """What a study found, without what differs between equal studies."""
    results: dict[str, Any] = json.loads((out / RESULTS).read_text())
    return {name: value for name, value in results.items() if name != "runs"}


def test_a_planted_market_is_praised(planted: tuple[list[str], Path]) -> None:
    results = found(planted[1])
    main_test, few = results["confirmatory"][0], results["universes"]["few"]
    assert main_test["outcome"] == "better" and main_test["low"] > 0 and main_test["p_holm"] <= 0.05
    assert (few["trainings"], few["without_evidence"], few["holding_the_market"]) == (4, 0, 0)
    assert few["policies"]["champion"]["profit"]["value"] > few["policies"][EQUAL]["profit"]["value"]


def test_a_stopped_study_goes_on(
    planted: tuple[list[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the middle of a line it continues after the last whole one, and finds what it would have found."""
    words, whole = planted
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    lines = (whole / PARTS).read_bytes().splitlines(keepends=True)
    (out / PARTS).write_bytes(b"".join(lines[:-2]) + lines[-2][:999])
    (out / RESULTS).unlink()
    main([*words[:-1], str(out)])
    assert found(out) == found(whole)
    said = capsys.readouterr().out
    assert "| few | champion over pickers | +" in said and "| better |" in said and "run 2 over these test days" in said

    def parts(folder: Path) -> list[dict[str, Any]]:
        return [
            {name: own for name, own in line.items() if "seconds" not in name and "peak" not in name}
            for line in lines_of(folder / PARTS)
        ]

    assert parts(out) == parts(whole)
    looks = lines_of(out / LEDGER)
    assert [look["parts_left"] for look in looks] == [len(lines), 2]


@pytest.mark.parametrize(("flag", "what"), [("--plan", "plan"), ("--investable", "data")])
def test_a_folder_keeps_its_plan_and_data(
    planted: tuple[list[str], Path], flag: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, out = planted
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    text = Path(words[words.index(flag) + 1]).read_text()
    (tmp_path / "other").write_text(text.replace("pickers = 40", "pickers = 41") + "\n")
    with pytest.raises(SystemExit, match="2"):
        main([*words, flag, str(tmp_path / "other")])
    message = capsys.readouterr().err
    assert f"expected the {what}" in message and "--out" in message and message.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"untested ensemble"]', '"worst elite"]', "worst elite"),
        ("pickers = 40", "", "pickers"),
        ("generations = 1", "generation = 1", "generation"),
        ('universe = "few"\npolicy', 'universe = "many"\npolicy', "many"),
        ('against = "pickers"', 'against = "luck"', "luck"),
    ],
)
def test_a_wrong_plan_is_told(old: str, new: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(old, new))
    with pytest.raises(ConfigError, match="expected") as error:
        read_plan(path)
    assert told in str(error.value)


def test_a_fold_sees_nothing_after_its_test_days(planted: tuple[list[str], Path]) -> None:
    case = planted[1].parent
    source = Source(case / "prices.parquet", case / "few.txt", read_plan(case / "plan.toml"))
    for number, fold in enumerate(source.folds()):
        market = source.market(source.plan.universes[0], number, "past")
        assert len(market.dates) == len(market.data_array) == fold.holdout.last + 1
        assert market.volume is not None and len(market.volume) == len(market.dates)
        assert not market.features and source.market(source.plan.universes[0], number, "all").features


STEPS, WINDOWS = 12, 4
DAYS = STEPS * WINDOWS


def an_account(
    rng: np.random.Generator, seeds: int = 1, pickers: int = 0, edge: float = 0.0, exposure: float = 0.5
) -> Account:
    """Random daily profits around an edge in percent a day, with random pickers if they are asked for."""
    profit = edge + rng.normal(0, 0.5, (seeds, WINDOWS, STEPS))
    equity = 1e6 * (1 + np.concatenate((np.zeros((seeds, WINDOWS, 1)), profit.cumsum(axis=2)), axis=2) / 100)
    ones = np.ones((seeds, WINDOWS))
    known = None
    if pickers:
        drawn = rng.normal(0, 0.5, (seeds, pickers, WINDOWS, STEPS))
        sums = np.add.reduceat(drawn, block_edges(STEPS)[:-1], axis=3)
        known = Pickers(
            drawn.mean(axis=1).reshape(seeds, DAYS),
            sums.reshape(seeds, pickers, -1),
            rng.normal(0, 0.5, (seeds, DAYS)),
            np.ones((seeds, DAYS)),
            np.zeros((seeds, DAYS)),
        )
    return Account(
        EquityCurves(equity, exposure * ones, ones, ones, ones, ones, ones), np.full((seeds, DAYS), np.nan), known
    )


def a_field(seed: int = 0, edge: float = 0.0) -> Field:
    rng = np.random.default_rng(seed)
    accounts = {"champion": an_account(rng, 3, 30, edge), EQUAL: an_account(rng, exposure=1.0)}
    accounts |= {name: an_account(rng) for name in ("one", "other")}
    return Field(accounts, ["champion"], 2, 4)


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_pickers_keep_their_sums_and_daily_means(seed: int) -> None:
    """And the parts of the profit sum up: choice, timing and exposure are what the champion earned."""
    field = a_field(seed)
    account = field.accounts["champion"]
    assert account.pickers is not None
    each, sums = account.pickers.each(STEPS), account.pickers.blocks.sum(axis=2)
    assert each.mean(axis=0) == pytest.approx(account.pickers.daily.mean(axis=0))
    beyond = (sums - sums.mean(axis=1, keepdims=True)).ravel()
    assert each.sum(axis=1) == pytest.approx(sums.mean() + beyond)
    less = field.difference("champion", PICKERS).mean * DAYS / TRADING_DAYS_PER_YEAR
    assert less == pytest.approx(account.track.daily_profit.mean(axis=0).sum() - each.mean(axis=0).sum())
    judged = field.judge(account)
    assert judged.timing is not None and judged.exposure is not None
    earned = judged.selection.mean + judged.timing.mean + judged.exposure.mean
    assert earned == pytest.approx(TRADING_DAYS_PER_YEAR * account.profit.mean())


def test_an_edge_called_detectable_is_seen_four_times_out_of_five() -> None:
    edge = detectable(0.7) / 0.7
    seen = stats.norm.sf(stats.norm.ppf(0.975) - edge) + stats.norm.cdf(-stats.norm.ppf(0.975) - edge)
    assert seen == pytest.approx(0.8, abs=1e-4)


def test_equal_weight_is_held_at_the_exposure_of_the_champion() -> None:
    field = a_field()
    halved = TRADING_DAYS_PER_YEAR * (field.accounts["champion"].profit - field.equal.profit / 2).mean()
    assert field.difference("champion", AT_EXPOSURE).mean == pytest.approx(halved)


@pytest.mark.parametrize(("edge", "outcome"), [(1.0, "better"), (-1.0, "worse"), (0.0, "open")])
def test_what_is_clear_is_found_either_way(edge: float, outcome: str) -> None:
    comparisons = [Comparison("u", "champion", against) for against in (PICKERS, EQUAL, AT_EXPOSURE, BEST_RIVAL)]
    assert [one.outcome for one in confirm({"u": a_field(edge=edge)}, comparisons)] == [outcome] * 4


def test_the_committed_plan_tests_2320_days_that_follow_one_another() -> None:
    """And all others can be followed, too."""
    assert all(read_plan(path).folds == read_plan().folds for path in COMMITTED.parent.glob("*.toml"))
    plan = read_plan()
    folds = make_folds(3781, plan.folds, plan.config.split, plan.config.env)
    spans = [fold.holdout for fold in folds]
    assert spans[0].first == 1460 and spans[-1].last == 3780
    assert all(one.last == other.first for one, other in pairwise(spans))
    assert all(fold.train.last + plan.config.env.max_holding_days < fold.validation.first for fold in folds)
    assert plan.comparisons[0] == Comparison("108", "champion", PICKERS)
