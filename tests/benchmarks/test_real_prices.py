"""The study on real prices: stopped it goes on, its plan is frozen, its sums are right, and it shows what is there."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.real_prices.__main__ import PARTS, accounts, main, table
from benchmarks.real_prices.ledger import LEDGER
from benchmarks.real_prices.parts import Source
from benchmarks.real_prices.plan import Plan
from data.splits import make_folds
from data.synthetic.built_in import bars_frame, synthetic_market
from tests.benchmarks.study_cases import lines_of
from training.evaluation.baselines import CHAMPION, EQUAL
from utils.config.trader import OUTCOME_SESSIONS, SyntheticConfig
from utils.errors import ConfigError

PLAN = """
seeds = [0, 1]
rival_refit = 30
[folds]
folds = 2
test_windows = 2
validation_days = 30
train_days = 0
[settings]
generations = 1
split.context_window_days = 12
env = { trading_days = 20, settlement_days = 4 }
evolution.population_size = 8
learning = { replay_capacity = 512, training_starts = 100 }
evaluation = { fitness_windows = 2, exploration_windows = 1, validation_windows = 2 }
[universes.few]
stocks = "listed"
variants = { product = {} }
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


def test_a_planted_market_is_seen(planted: tuple[list[str], Path]) -> None:
    """All champions believe their scores, and earn more than equal weight."""
    records = lines_of(planted[1] / PARTS)
    played = accounts("few", records)
    assert f"{CHAMPION}, product" in played and "ridge, refitted every 30 days" in played
    assert all(daily.shape == (2 if "product" in name else 1, 96) for name, (daily, _) in played.items())
    assert played[f"{CHAMPION}, product"][0].mean() > played[EQUAL][0].mean() + 0.05
    assert "product: 0 of 4 champions held the benchmark" in [*table("few", records)]


def test_a_stopped_study_goes_on(
    planted: tuple[list[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed in the middle of a line it continues after the last whole one, and finds what it would have found."""
    words, whole = planted
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    lines = (whole / PARTS).read_bytes().splitlines(keepends=True)
    (out / PARTS).write_bytes(b"".join(lines[:-2]) + lines[-2][:999])
    main([*words[:-1], str(out)])
    said = capsys.readouterr().out
    assert f"| {CHAMPION}, product | +" in said and "run 2 over these test days" in said

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
    (tmp_path / "other").write_text(text.replace("rival_refit = 30", "rival_refit = 31") + "\n")
    with pytest.raises(SystemExit, match="2"):
        main([*words, flag, str(tmp_path / "other")])
    message = capsys.readouterr().err
    assert f"expected the {what}" in message and "--out" in message and message.count("\n") == 1
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("rival_refit = 30", "", "rival_refit"),
        ("generations = 1", "generation = 1", "generation"),
        ('"listed"', '"liked"', "liked"),
        ("product = {}", "product = { learning.agents = 1 }", "agents"),
    ],
)
def test_a_wrong_plan_is_told(old: str, new: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(old, new))
    with pytest.raises(ConfigError, match="expected") as error:
        Plan.read(path)
    assert told in str(error.value)


def test_a_fold_sees_nothing_after_its_test_days(planted: tuple[list[str], Path]) -> None:
    case = planted[1].parent
    source = Source(case / "prices.parquet", case / "few.txt", Plan.read(case / "plan.toml"))
    for number, fold in enumerate(source.folds()):
        market = source.market("few", number, "past")
        assert len(market.dates) == len(market.data_array) == fold.holdout.last + 1
        assert market.volume is not None and len(market.volume) == len(market.dates)
        assert not market.features and source.market("few", number, "all").features


def test_sums_and_intervals_are_those_of_plain_numpy() -> None:
    """Folds in any order are joined, seeds averaged, and who lacks a fold is left out."""
    rng = np.random.default_rng(0)
    daily = rng.normal(0.1, 1.0, (2, 2, 30))
    records: list[dict[str, Any]] = [
        {
            **{"universe": "few", "fold": fold, "seed": seed, "part": "trained", "variant": "v"},
            "policies": {CHAMPION: {"daily": daily[seed, fold].tolist(), "turnover": 2.0 * fold}},
            "evidence": {"shrink": 0.5 * fold, "excess": 1.0 + seed, "error": 0.5},
        }
        for fold in (1, 0)
        for seed in (0, 1)
    ]
    equal = {"daily": [0.05] * 30, "turnover": 0.1}
    rivals = [{EQUAL: equal}, {EQUAL: equal, "ridge": equal}]
    records += [{"universe": "few", "fold": n, "part": "rivals", "policies": one} for n, one in enumerate(rivals)]
    found = accounts("few", records)
    assert [*found] == [f"{CHAMPION}, v", EQUAL]
    assert (found[f"{CHAMPION}, v"][0] == daily.reshape(2, 60)).all()
    lines = list(table("few", records))
    line = next(line for line in lines if line.startswith(f"| {CHAMPION}"))
    cells = [cell.strip() for cell in line.split("|")[2:]]
    curves = [np.concatenate(([1.0], np.cumprod(1 + seed / 100))) for seed in daily.reshape(2, 60)]
    falls = [100 * max(1 - x / curve[: n + 1].max() for n, x in enumerate(curve)) for curve in curves]
    assert cells[0].startswith(f"{252 * daily.mean():+.1f} (") and cells[1].startswith(
        f"{252 * (daily.mean() - 0.05):+.1f}"
    )
    apart = 252**0.5 * np.mean([seed.std() for seed in daily.reshape(2, 60)])
    of_folds = daily.mean(axis=(0, 2)) - 0.05
    assert cells[2].startswith(f"{252 * of_folds.min():+.1f} (")
    assert [cells[3], *cells[5:7]] == [f"{apart:.1f}", f"{np.mean(falls):.1f}", "1.0"]
    for fold, believed in enumerate((0, 50)):
        line = next(one for one in lines if one.startswith(f"| {fold} |"))
        ahead, *others = [cell.strip() for cell in line.split("|")[2:-1]]
        assert ahead.startswith(f"{252 * of_folds[fold]:+.1f} (")
        apart = 252**0.5 * np.mean([seed.std() for seed in daily[:, fold]])
        assert others == [f"{apart:.1f}", "+1.5 (+- 0.5)", str(believed)]


def test_the_committed_plan_tests_2320_days_that_follow_one_another() -> None:
    plan = Plan.read()
    folds = make_folds(3781, plan.folds, plan.config.split, plan.config.env)
    spans = [fold.holdout for fold in folds]
    assert spans[0].first == 1460 and spans[-1].last == 3780
    assert all(one.last == other.first for one, other in pairwise(spans))
    assert all(fold.train.last + OUTCOME_SESSIONS < fold.validation.first for fold in folds)
