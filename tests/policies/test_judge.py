"""Policies of anybody against what is known of them: equal rules earn equal money, and leaks are named."""

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import empyrical
import gymnasium as gym
import numpy as np
import pandas as pd
import pytest
from gymnasium.utils.env_checker import check_env

from data.features.nine import CLOSE, OPEN
from data.features.wide import WideBars
from main import main
from models.evidence import Evidence
from tests.evaluation.page_case import case
from tests.evaluation.test_page import FOLD
from tests.once import computed_once
from tests.tiny_run import TINY, frame, to_reproduce, unjudged
from training import api
from training.api import TradedMarket, judge, load_market
from training.evaluation.compared import Baselines
from training.evaluation.export import render
from training.evaluation.export import results as results_of
from training.evaluation.measures import METRICS
from training.forecasts import look_ahead
from training.policies.read import read_table
from utils.config.settings import read_settings
from utils.config.trader import EvaluationConfig
from utils.errors import ConfigError, DataError

pytestmark = pytest.mark.usefixtures("small_heap")
QUICK = EvaluationConfig(rivals="none", random_pickers=40)


@pytest.fixture(scope="module", autouse=True)
def baselines_once() -> Iterator[None]:
    """Fit the same baselines once, and rank the same returns: half of the time of a judgement."""
    with computed_once(Baselines, "fitted"), computed_once(look_ahead, "_returns"):
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def market(tiny: Path) -> TradedMarket:
    return load_market(settings=tiny)


def drift(bars: WideBars, days: int = 60) -> pd.DataFrame:
    return np.log(bars.close).diff(days)


def short_drift(bars: WideBars) -> pd.DataFrame:
    return drift(bars, 5)


class Idle:
    def act(self, observation: dict[str, Any], info: dict[str, Any]) -> np.ndarray[Any, Any]:
        assert observation["portfolio"].ndim == 2 and np.ndim(info["day_index"]) == 0
        return np.zeros(len(info["has_bar"]), np.float32)


class Counting(Idle):
    """A policy that remembers, and sees each of the judged days once."""

    def __init__(self) -> None:
        self.days: list[int] = []

    def act(self, observation: dict[str, Any], info: dict[str, Any]) -> np.ndarray[Any, Any]:
        self.days.append(int(info["day_index"]))
        assert np.diff(self.days).tolist() == [1] * (len(self.days) - 1)
        action = super().act(observation, info)
        action[len(self.days) % len(action)] = 0.5
        return action


def test_equal_scores_earn_equal_money(market: TradedMarket) -> None:
    """60-day momentum is a baseline; as a frame of scores, wide or long, it is the same trader."""
    wide = drift(market.market.wide(market.market.investable_columns)).astype(np.float32)
    long = wide.rename_axis(index="date", columns="ticker").stack().rename("score").reset_index()
    found = judge(market, {"wide": wide, "long": long.sample(frac=1.0, random_state=0)}, judging=QUICK)
    for name in ("wide", "long"):
        np.testing.assert_allclose(found.equity[name], found.equity["60-day momentum"], rtol=1e-6)
        assert found.table.loc[name, "rank_ic_5"] == pytest.approx(found.table.loc["60-day momentum", "rank_ic_5"])
    assert set(found.trades["policy"]) == set(found.positions["policy"]) == {"wide", "long"}
    assert set(found.table.columns) == {*METRICS, "rank_ic_1", "rank_ic_5", "rank_ic_20"}
    assert found.verdict["wide"] == found.evaluations["wide"].sentence


def test_scores_of_judged_days_alone_are_held_too(market: TradedMarket) -> None:
    """In deviations of their day: their scale says nothing."""
    scores = short_drift(market.market.wide(market.market.investable_columns))
    late = scores[scores.index >= market.market.dates[market.market.splits.validation.first]]
    found = judge(market, {"late": late, "scaled": 1000 * late}, judging=QUICK)
    np.testing.assert_allclose(found.equity["late"], found.equity["scaled"], rtol=1e-6)
    assert np.abs(found.equity["late"] / found.equity["equal weight"] - 1).max() > 1e-3


def test_scores_stand_until_the_next_day_that_has_any(market: TradedMarket) -> None:
    """Of every 21st session alone, they are held as the same ones of each day; a gap within a day's row stays one."""
    wide = drift(market.market.wide(market.market.investable_columns))
    wide.iloc[:, 1] = np.nan
    monthly = wide.iloc[::21]
    daily = monthly.reindex(wide.index, method="ffill")
    found = judge(market, {"monthly": monthly, "daily": daily, "fresh": wide}, judging=QUICK)
    np.testing.assert_array_equal(found.equity["monthly"], found.equity["daily"])
    assert np.abs(found.equity["monthly"] / found.equity["fresh"] - 1).max() > 1e-3
    ranked = [found.evaluations[name].coefficients[name][1].days for name in ("monthly", "daily")]
    assert 10 * ranked[0] < ranked[1], "what scores tell is told by the days that have any"


def test_a_function_is_the_frame_that_it_returns(market: TradedMarket) -> None:
    stocks = market.market.investable_columns
    found = judge(market, {"code": short_drift, "frame": short_drift(market.market.wide(stocks))}, judging=QUICK)
    np.testing.assert_array_equal(found.equity["code"], found.equity["frame"])
    assert found.table.loc["code", "turnover"] > 0
    said = {name: " ".join(one.caveats) for name, one in found.evaluations.items()}
    assert "cannot be audited" in said["frame"] and "cannot be audited" not in said["code"]


def test_a_class_acts_on_each_judged_day_and_ends_marked_to_market(market: TradedMarket) -> None:
    found = judge(market, {"counting": Counting}, judging=QUICK)
    assert found.table.loc["counting", "turnover"] > 50 and found.positions["last_date"].isna().sum() == 1
    assert len(found.trades["date"].unique()) == len(found.equity) - 1


class Model:
    """What is used of a model of Stable-Baselines3: flat observations, actions between -1 and 1."""

    def __init__(self, market: TradedMarket, weight: float) -> None:
        stocks = len(market.market.investable_columns)
        env = api.TradingEnvironment.on(market.market, market.config.env)
        self.observation_space = gym.spaces.flatten_space(env.observation_space)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (stocks,), np.float32)
        self.mode = np.full(stocks, 2 * weight - 1).astype(np.float32)

    def predict(self, observation: Any, deterministic: bool = False) -> tuple[Any, None]:
        assert deterministic and observation.shape == self.observation_space.shape
        return self.mode, None


def test_a_models_actions_are_scaled_to_the_environments(market: TradedMarket) -> None:
    found = judge(market, {"buys": Model(market, 0.1), "waits": Model(market, 0.0)}, judging=QUICK)
    assert found.table.loc["waits", "turnover"] == 0 < found.table.loc["buys", "turnover"]
    assert found.table.loc["buys", "exposure"] == pytest.approx(60, abs=0.5), "six stocks of a tenth each"
    np.testing.assert_allclose(found.trades["value"][:6], 0.1 * market.config.env.initial_capital, rtol=0.1)


def weights(bars: WideBars) -> pd.DataFrame:
    """Return 4 % of the first stock from Monday to Wednesday, then none; of the second 20 %, once."""
    frame = bars.close * 0.0
    frame.iloc[:, 0] = np.where(pd.DatetimeIndex(frame.index).day_of_week < 3, 0.04, 0.0)
    frame.iloc[:, 1] = np.nan
    return frame


def test_weights_are_held_as_they_are(market: TradedMarket, tmp_path: Path) -> None:
    """To the digit of what cash allows, NaN keeps; as a function, a wide frame or file, and rows of a file, where
    nothing is held of what a date leaves out."""
    weights.returns = "weights"  # type: ignore[attr-defined]
    wide = weights(market.market.wide(market.market.investable_columns))
    wide.attrs["returns"] = "weights"
    first = market.market.splits.validation.first
    wide.iloc[first, 1] = 0.2
    rows = wide.reset_index(names="Date").melt("Date", var_name="Symbol", value_name="Weight")
    zeros, held = wide.fillna(0.0), rows[rows["Weight"] > 0]
    zeros.attrs["returns"], has_some = "weights", zeros.any(axis=1)
    own = {"code": weights, "wide": wide, "rows": rows, "zeros": zeros[has_some], "held": held}
    wide.to_csv(tmp_path / "wide.csv")
    wide.to_parquet(tmp_path / "wide.pq")
    held.to_csv(tmp_path / "held.csv", index=False)
    files = {f"file of {one}": read_table(tmp_path / one, "weights") for one in ("wide.csv", "wide.pq", "held.csv")}
    judgement = judge(market, own | files, judging=QUICK)
    for same in ("rows", "file of wide.csv", "file of wide.pq"):
        np.testing.assert_array_equal(judgement.equity["wide"], judgement.equity[same])
    np.testing.assert_array_equal(judgement.equity["held"], judgement.equity["file of held.csv"])
    np.testing.assert_array_equal(judgement.equity["zeros"], judgement.equity["held"])
    zero = judgement.evaluations["zeros"].played.asked
    dates, judged = int(has_some.sum()), int(has_some[first : market.market.splits.validation.last].sum())
    assert zero is not None and zero.how.endswith(f" Read: {dates:,} dates, {judged} of them judged, 6 tickers.")
    told = " ".join(judgement.evaluations["rows"].caveats)
    assert "Weights of a file cannot be audited" in told and "Orders" not in told
    trades = judgement.trades
    tickers = trades.groupby("policy")["ticker"].unique().map(set)
    assert tickers["code"] == {"S000"} and tickers["wide"] == {"S000", "S001"}
    own = trades[(trades["policy"] == "wide") & (trades["ticker"] == "S001")]
    close, open_ = (market.market.data_array[first + day, 1, place] for day, place in ((0, CLOSE), (1, OPEN)))
    assert own["value"].tolist() == [pytest.approx(0.2 * market.config.env.initial_capital / close * open_, rel=1e-6)]
    asked = judgement.evaluations["code"].played.asked
    assert asked is not None and not asked.is_apart and asked.gap < 1e-3
    assert repr(market).startswith("TradedMarket(6 stocks, 2000-01-03 to ") and len(repr(market)) < 300
    assert asked.turnover == pytest.approx(asked.done, rel=0.02)
    for name in ("code", "random picker, code"):  # which trade as much
        assert judgement.table.loc[name, "turnover"] == pytest.approx(asked.done)
    assert asked.sentence not in judgement.verdict["code"]


def test_an_account_begins_with_the_weights_in_force(market: TradedMarket) -> None:
    """Those of the last day before the judged ones, held as if they had been given on the first of these."""
    first, wide = market.market.splits.validation.first, weights(market.market.wide(market.market.investable_columns))
    monthly, begun = wide * np.nan, wide * np.nan
    monthly.iloc[first - 9, :2], begun.iloc[first, :2] = 0.4, 0.4
    later, short, shorted = monthly.copy(), monthly.copy(), begun.copy()
    later.iloc[first + 9, 2] = 0.1
    short.iloc[first - 9, 0] = shorted.iloc[first, 0] = -0.4
    own = {"monthly": monthly, "begun": begun, "later": later, "short": short, "shorted": shorted}
    for one in own.values():
        one.attrs["returns"] = "weights"
    found = judge(market, own, judging=QUICK)
    np.testing.assert_array_equal(found.equity["short"], found.equity["shorted"])
    assert (found.weights["short"].iloc[:, 0] < 0).all()
    sides = [float(found.weights["short"].clip(**one).sum(axis=1).abs().mean()) for one in ({"lower": 0}, {"upper": 0})]
    told = "It is {:.0%} of its equity long and {:.0%} short, in the mean. ".format(*sides)
    assert told in found.evaluations["short"].sentence and " short, " not in found.evaluations["monthly"].sentence
    np.testing.assert_array_equal(found.equity["monthly"], found.equity["begun"])
    np.testing.assert_array_equal(found.equity["later"][:10], found.equity["begun"][:10])
    assert "holds to their end what it said last before" in found.verdict["monthly"]
    assert all("what it said last" not in found.verdict[name] for name in ("begun", "later"))


def test_weights_in_percent_and_ruin_are_named(market: TradedMarket) -> None:
    """An account that owes more than it has is worth nothing from then on."""
    wide = weights(market.market.wide(market.market.investable_columns))
    percent, bet = wide * 0 + 100 / 6, wide * np.nan
    first = market.market.splits.validation.first
    bet.iloc[first, int((market.market.close[-1] / market.market.close[first]).argmin())] = 9.9
    for one in (percent, bet):
        one.attrs["returns"] = "weights"
    with pytest.raises(DataError, match="got a day on which they add up to 83"):
        judge(market, {"percent": percent}, judging=QUICK)
    found = judge(market, {"bet": bet}, judging=QUICK)
    assert found.verdict["bet"].startswith("The account lost everything, and was closed.")
    assert "weights below 0" not in found.verdict["bet"]
    assert (found.equity["bet"] >= 0).all() and found.equity["bet"].iloc[-1] == 0


POLICIES = """
import numpy as np

def fair(bars):
    return np.log(bars.close).diff(5)

def peeks(bars):
    return np.log(bars.close).diff().shift(-1)

class Broken:
    def act(self, observation, info):
        return np.zeros(3)

def equal(bars):
    return bars.close * 0.0

class Waits:
    def act(self, observation, info):
        return np.zeros(len(info["has_bar"]), np.float32)
"""


@pytest.fixture
def policies(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(POLICIES)
    return path


def evaluate(tmp_path: Path, *words: str) -> int:
    quick = ["--random-pickers", "20", "--rivals", "none", "--threads", "1", "--device", "cpu"]
    return main(["evaluate", "--runs-dir", str(tmp_path / "runs"), *quick, *words])


def judged(folder: Path, name: str) -> Path:
    return folder / "runs" / "judged" / "evaluation-validation" / name


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return found


def test_equal_results_of_a_command_are_made_once_and_others_are_kept(
    tmp_path: Path, tiny: Path, policies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, kept = judged(tmp_path, "fair"), []
    words = ("--config", str(tiny), "--policy", f"{policies}:fair", "--variants")
    for variants in ("1", "1", "2"):
        assert evaluate(tmp_path, *words, variants) == 0
        kept.append(sorted(path.name for path in folder.parent.iterdir()))
        assert (f"kept in {folder.parent / kept[-1][-1]}" in capsys.readouterr().out) == (len(kept) > 2)
    assert kept == [["fair"], ["fair"], ["fair", "fair-1"]]
    found = [results(judged(tmp_path, name)) for name in ("fair-1", "fair")]
    assert [one["verdict"]["trials"] for one in found] == [1, 2]
    assert all("fair" in one["policies"] and "champion" not in one["policies"] for one in found)
    assert "fair" in (folder / "report.html").read_text() and (folder / "trades.csv").is_file()
    (folder / "notes.txt").write_text("mine")
    assert main(to_reproduce(folder / "report.html")) == 0
    assert (judged(tmp_path, "fair-2") / "notes.txt").read_text() == "mine"
    assert results(judged(tmp_path, "fair-2")) == results(folder)
    assert "trains such a run" not in (folder / "report.html").read_text()


def test_the_holdout_is_spent_and_counted_for_any_policy(tmp_path: Path, tiny: Path, policies: Path) -> None:
    words = ("--policy", f"{policies}:fair", "--config", str(tiny), "--split", "holdout")
    assert evaluate(tmp_path, *words) == 2
    for _ in range(2):
        assert evaluate(tmp_path, *words, "--spend-look") == 0
    rows = [json.loads(line) for line in (tmp_path / "runs" / "holdout.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and len({row["run"] for row in rows}) == 1


def test_a_run_is_trained_opened_and_its_champion_shown_beside_policies(
    tmp_path: Path, tiny: Path, policies: Path
) -> None:
    """As it is alone, by the command and in Python."""
    runs = tmp_path / "runs"
    config = load_market(settings={**read_settings(tiny), "runs_dir": str(runs), "run": "one"}).config
    with unjudged():
        trained = api.train(config)
    opened = api.open_run(runs, "one")
    assert (trained.name, trained.generation) == (opened.name, opened.generation) == ("one", 2)
    assert evaluate(tmp_path) == 0
    assert evaluate(tmp_path, "--run", "one", "--policy", f"{policies}:fair", f"{policies}:Waits") == 0
    found = judge(TradedMarket.of_run(opened), {"code": short_drift}, judging=QUICK)
    assert found.save_page(tmp_path / "pages") == [tmp_path / "pages" / "code" / "report.html"]
    folders = [runs / "one" / "evaluation-validation", runs / "one" / "evaluation-validation" / "fair"]
    shown = to_reproduce(folders[0] / "report.html"), to_reproduce(folders[1] / "report.html")
    assert all(one[one.index("--run") + 1] == "one" for one in shown), "the newest run will be another one"
    assert shown[1][shown[1].index("--policy") + 1 :][:2] == [f"{policies}:fair", f"{policies}:Waits"]
    assert "judged from Python" in (tmp_path / "pages" / "code" / "report.html").read_text()
    alone, *beside = (pd.read_csv(folder / "equity.csv") for folder in (*folders, tmp_path / "pages" / "code"))
    for one in beside:
        np.testing.assert_array_equal(alone[["champion", "equal weight"]], one[["champion", "equal weight"]])


HAS_SB3 = find_spec("stable_baselines3") is not None
SCORES = "date,ticker,score\n"
TRADES = "date,ticker,side,value\n"
HELD = "def held(bars):\n    frame = bars.close.copy()\n    frame.attrs['returns'] = 'weights'\n    return frame\n"


@pytest.mark.parametrize(
    ("flag", "place", "text", "said"),
    [
        ("--policy", "mine.py:peeks", POLICIES, "'peeks' to follow from bars up to its day, but of S00"),
        ("--policy", "mine.py", POLICIES, "got fair, peeks, Broken, equal, Waits"),
        ("--policy", "mine.py:fare", POLICIES, "the nearest is 'fair'"),
        ("--policy", "mine.py:Broken", POLICIES, "expected an action (6,) of policy 'Broken'"),
        ("--policy", "mine.py:equal", POLICIES, "expected scores of 'equal' that differ between stocks"),
        ("--policy", "mine.py:fair", None, "expected an existing FILE.py"),
        ("--policy", "mine.py:f", "def f(:\n", "expected a Python file of policies"),
        ("--policy", "mine.zip", "PK", f"expected {'a model of PPO' if HAS_SB3 else 'stable_baselines3'}"),
        ("--scores", "mine.csv", "date,ticker,scores\n2000-06-05,S000,1\n", "date, ticker and one of score and weight"),
        ("--scores", "mine.csv", f"{SCORES}2000-06-05,S000,1\n2000-06-05,S000,2\n", "got two of S000 on 2000-06-05"),
        ("--policy", "mine.py", HELD, 'expected `held.returns = "weights"` of a function'),
        ("--scores", "mine.csv", f"{SCORES}2000-06-05,S000,high\n", "numbers like 0.05 under 'score' in"),
        ("--weights", "mine.csv", f"{SCORES}2000-06-05,S000,1\n", "a column weight in"),
        ("--weights", "mine.csv", "date,symbl,weight\n2000-06-05,S000,1\n", "got date, symbl, weight"),
        ("--weights", "mine.csv", "date,S000\n2000-06-05,high\n", "numbers like 0.05 under 'weight' in"),
        ("--weights", "mine.csv", "date,S000\n2000-06-05,0.1\n2000-06-05,0.2\n", "got two of S000 on 2000-06-05"),
        ("--weights", "mine.csv", "date\n2000-06-05\n", "date, ticker and one of score and weight"),
        ("--weights", "mine.csv", ",AAPL\n2000-06-05,1\n", "for days and tickers of the data"),
        ("--scores", "mine.csv", f"{SCORES}2000-06-05,AAPL,1\n", "for days and tickers of the data"),
        ("--trades", "mine.csv", "", "expected a CSV or parquet file of trades"),
        ("--trades", "mine.csv", TRADES, "expected rows in"),
        (
            "--scores",
            "mine.csv",
            "date;ticker;score\n2000-06-05;S000;1,500\n",
            "which may have decimals or be in thous",
        ),
        ("--scores", "mine.csv", f"{SCORES}02/03/2000,S000,1\n", "got 02/03/2000, whose day and month nothing tells"),
        (
            "--weights",
            "mine.csv",
            "date,ticker,weight\n2000-06-05,S000,0.5\n,S001,0.5\n",
            "got '' in row 2; write",
        ),
        ("--weights", "mine.csv", "date,ticker,weight\n2000-01-05,S000,inf\n", "an infinite one on 2000-01-05"),
        ("--trades", "mine.csv", f"{TRADES}2000-06-05,S000,short,1\n", "expected buy or sell under 'side'"),
        ("--trades", "mine.csv", f"{TRADES}2000-06-05,S000,buy,\n", "got none: 1 without an amount other than 0"),
        ("--trades", "mine.csv", f"{TRADES}2000-06-05,S000,buy,0\n", "got none: 1 without an amount other than 0"),
        ("--trades", "mine.csv", f"{TRADES}2000-06-05,S000,buy,inf\n", "1 without an amount other than 0"),
        ("--trades", "mine.csv", f"{TRADES},S000,buy,1\n", "expected a date"),
        ("--trades", "mine.csv", f"{TRADES}2000-06-05,AAPL,buy,1\n", "got none: 1 of an unknown ticker"),
        ("--trades", "mine.csv", f"{TRADES}2000-06-05,S000,sell,1\n", "expected purchases in"),
    ],
)
def test_bad_files_are_refused_in_one_line(
    flag: str, place: str, text: str | None, said: str, tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / place.partition(":")[0]).write_text(text)
    assert evaluate(tmp_path, flag, str(tmp_path / place), "--config", str(tiny)) == (4 if "peeks" in place else 2)
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert said in last and "Traceback" not in last


def test_an_index_that_is_none_is_refused_before_a_run_is_looked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.csv").write_text("date,close\n2000-01-03,-5\n")
    assert evaluate(tmp_path, "--run", "none", "--benchmark", str(tmp_path / "index.csv")) == 2
    assert "expected a date and a positive close" in capfd.readouterr().err


def test_names_of_baselines_and_flags_that_miss_or_exclude_others_are_refused(
    market: TradedMarket, tmp_path: Path, tiny: Path, policies: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="names of their own"):
        judge(market, {"equal weight": short_drift}, judging=QUICK)
    with pytest.raises(ConfigError, match="expected policies to judge, got none"):
        judge(market, {}, judging=QUICK)
    for words, said in (
        (("--variants", "3"), "expected --variants with policies of your own"),
        (("--config", str(tiny)), "expected --config only with policies of your own"),
        (("--trades", str(tiny), "--null", "2"), "expected --null with --policy alone"),
        (("--policy", f"{policies}:Waits", "--null", "2"), "expected functions of bars with --null, got 'Waits'"),
        (("--weights", str(tiny), "--hold", "2"), "--hold: expected scores, of which the best are held"),
        (("--policy", str(tiny), "--investable", str(tiny), "--run", "one"), "no --run: a run brings its own settings"),
    ):
        assert evaluate(tmp_path, *words) == 2
        assert said in capfd.readouterr().err


def test_the_environment_is_registered(tiny: Path) -> None:
    env = gym.make(api.ENVIRONMENT_ID, settings=tiny)
    starts = [env.reset()[1]["day_index"] for _ in range(12)]
    assert len(set(starts)) > 3
    again = [env.reset(seed=5)[1]["day_index"] for _ in range(2)]
    assert again[0] == again[1]
    same = gym.make(api.ENVIRONMENT_ID, settings=tiny, random_windows=False)
    assert len({same.reset()[1]["day_index"] for _ in range(3)}) == 1
    check_env(env.unwrapped, skip_render_check=True)


def test_the_documented_names_are_those_of_the_module() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    assert all(f"`{name}" in documented for name in api.__all__) and f"version {api.API_VERSION}" in documented


def test_of_a_policy_that_never_trades_one_line_says_so(
    tmp_path: Path, tiny: Path, policies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No verdict and no tables; files and exit code are those of other judgements."""
    frame(300, 5).to_parquet(tmp_path / "data.parquet")
    late = tmp_path / "late.csv"
    late.write_text("date,ticker,weight\n2010-11-29,T1,0.0\n")
    data = ("--config", str(tiny), "--data", str(tmp_path / "data.parquet"))
    reason = "no weight is above 0, or they are of stocks or days without a price"
    for flag, place, name in (("--policy", f"{policies}:Waits", "Waits"), ("--weights", str(late), "late")):
        assert evaluate(tmp_path, flag, place, *data) == 0
        shown = capsys.readouterr().out
        assert f"{name} never traded from 2010-11-22 to 2010-12-24: no verdict. Perhaps " in shown and reason in shown
        assert "Sharpe" not in shown and "skill" not in shown
        verdict = results(judged(tmp_path, name))["verdict"]
        assert not verdict["has_skill"] and f"{name} never traded" in verdict["sentence"]
        page = (judged(tmp_path, name) / "report.html").read_text()
        assert "never traded" in page and "skill in" not in page and "Parts and differences" not in page


def test_a_judgement_hands_on_frames_and_shows_itself_in_few_lines(market: TradedMarket) -> None:
    """As pandas and empyrical read them, whose measures are the same; baselines are the same beside any policy."""
    short_drift_as_pairs = short_drift(market.market.wide(market.market.investable_columns))
    signed = short_drift_as_pairs.sub(short_drift_as_pairs.mean(axis=1), axis=0)
    signed = signed.div(signed.abs().sum(axis=1), axis=0)
    signed.attrs["returns"] = "weights"
    found = judge(market, {"scores": short_drift, "pairs": signed}, judging=QUICK)
    returns = found.returns["pairs"]
    assert {*found.returns.columns} == {*found.table.index}
    is_mean = found.table.index.str.startswith("random picker")  # a row has the mean measures, a curve is the mean
    traded = found.table.loc[~is_mean & (found.table["volatility"] > 0)]
    for name, row in traded.iterrows():
        daily = found.returns[name]
        assert empyrical.sharpe_ratio(daily) == pytest.approx(row["sharpe"])
        assert empyrical.sortino_ratio(daily) == pytest.approx(row["sortino"])
        assert empyrical.annual_return(daily) == pytest.approx(row["annual_return"] / 100)
        assert empyrical.calmar_ratio(daily) == pytest.approx(row["calmar"])
        assert -100 * empyrical.max_drawdown(daily) == pytest.approx(row["max_drawdown"])
        assert 100 * empyrical.annual_volatility(daily) == pytest.approx(row["volatility"])
        assert empyrical.beta(daily, found.returns["equal weight"]) == pytest.approx(row["beta"])
    assert (1 + returns).prod() - 1 == pytest.approx(found.table.loc["pairs", "return"] / 100)
    weights = found.weights["pairs"]
    assert weights.index.equals(returns.index) and set(weights.columns) == {f"S{n:03d}" for n in range(6)}
    assert 100 * weights.sum(axis=1).mean() == pytest.approx(found.table.loc["pairs", "exposure"])
    assert found.positions["first_date"].dtype.kind == found.trades["date"].dtype.kind == "M"
    assert (found.positions["shares"] < 0).any() and found.evaluations["pairs"].played.benchmark == "cash"
    lines = repr(found).splitlines()
    assert [line.split("  ")[0] for line in lines[2:6]] == ["scores", "pairs", "equal weight", "cash"]
    assert lines[16] == f"... {len(found.table) - 14} more" and lines[17].startswith("scores: ")
    assert len(lines) <= 20 and len(found._repr_html_()) < 20_000
    held = judge(market, {"scores": short_drift}, judging=QUICK, hold=2, borrow_bps=900.0)
    assert held.weights["scores"].max().max() == pytest.approx(0.5, abs=0.05)
    baselines = ["equal weight", "60-day momentum", "12-1 momentum", "low volatility", "planted rule"]
    pd.testing.assert_frame_equal(held.table.loc[baselines], found.table.loc[baselines])
    costs = [one.evaluations["scores"].cost_returns["12-1 momentum"] for one in (held, found)]
    assert costs[0] == costs[1]


DEPTHS = {"policies": 1, "active_share": 1, "correlation": 1, "importance": 1, "known_biases": 1, "dates": 1}
DEPTHS |= {"active_correlation": 1, "information_coefficients": 2, "return_percent_at_cost_bps": 2}


def fields(found: dict[str, Any], names: int = 0) -> Iterator[str]:
    """Keys at any depth, but for levels of names, as of policies, inputs and sessions."""
    for key, value in found.items():
        yield from () if names else (key,)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                yield from fields(part, names - 1 if names else DEPTHS.get(key, 0))


def test_rules_are_flags_and_results_alone_are_printed(
    tmp_path: Path, tiny: Path, policies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--config", str(tiny), "--policy", f"{policies}:fair", "--json")
    said = []
    for flags in (("--null", "2"), ("--env.cost-bps", "80", "--env.volume-cap", "0")):
        assert evaluate(tmp_path, *words, *flags) == 0
        said.append(json.loads(capsys.readouterr().out)["fair"])
        assert said[-1] == results(judged(tmp_path, "fair")) and said[-1]["schema"] == 1
    costs = [one["policies"]["equal weight"]["costs"]["value"] for one in said]
    assert costs[1] > 5 * costs[0]
    nulls = [one["verdict"]["null"] for one in said]
    assert nulls[1] is None and nulls[0]["markets"] == 2 >= nulls[0]["has_skill"]
    assert said[0]["verdict"]["sentence"].count("On 2 markets of the same days drawn again") == 1
    documented = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text()
    schema = documented[documented.index("### results.json") :]
    trained = results_of(case(evidence=[Evidence()], folds=[FOLD]))
    assert [name for one in (said[0], trained) for name in fields(one) if f"`{name}`" not in schema] == []
    assert evaluate(tmp_path, "--run", "one", "--env.cost-bps", "3") == 2


def test_a_baseline_in_disguise_is_named_and_month_ends_count_as_the_session_before(
    market: TradedMarket, tmp_path: Path
) -> None:
    """On the last calendar days of months, which are often none of the data's; so is momentum, whatever its rule is."""
    wide = weights(market.market.wide(market.market.investable_columns)) * 0.0 + 1 / 6
    near, ends = wide * np.nan, wide.fillna(1 / 6).resample("ME").last()
    near.iloc[market.market.splits.validation.first] = 1 / 6
    ends.iloc[:, 0] = np.arange(len(ends)) % 5 / 30
    on_sessions = ends.set_axis([wide.index[wide.index <= day][-1] for day in ends.index])
    sparse = wide.where(np.eye(6, dtype=bool)[np.arange(len(wide)) % 6])
    policies = {
        "near": near,
        "ends": ends,
        "on sessions": on_sessions,
        "daily": wide.fillna(1 / 6),
        "sparse": 3 * sparse,
        "little": 0.0 * wide.fillna(0.0) + [0.03, 0.0, 0.0, 0.0, 0.0, 0.0],
        "lower": on_sessions.rename(columns=" {} ".format).rename(columns=str.lower),
    }
    for one in policies.values():
        one.attrs["returns"] = "weights"
    found = judge(market, policies, judging=QUICK)
    assert "Its returns have a correlation of 0.99" in found.verdict["daily"]
    assert "Empty cells keep what is held, so that weights add up to 2.50 at most; 0 sells." in found.verdict["sparse"]
    assert found.verdict["near"].startswith("It is equal weight to within 0.0% of the equity.")
    assert "It is" not in found.verdict["ends"]
    assert "It is 3% invested in the mean, and the rest is cash." in found.verdict["little"]
    assert "correlation" not in found.verdict["little"]
    np.testing.assert_array_equal(found.equity["ends"], found.equity["on sessions"])
    np.testing.assert_array_equal(found.equity["lower"], found.equity["on sessions"])
    twice = near.assign(s000=0.1)
    twice.attrs["returns"] = "weights"
    with pytest.raises(DataError, match="got two of S000; keep one"):
        judge(market, {"twice": twice}, judging=QUICK)
    found.equity["equal weight"].rename("close").to_csv(tmp_path / "index.csv")
    judging = replace(QUICK, benchmark=tmp_path / "index.csv")
    own = judge(market, {"own": drift}, judging=judging, hold=2).evaluations["own"]
    assert "It is plain 60-day momentum to within 0.0%" in own.sentence
    alike = own.played.correlation
    assert alike["plain 60-day momentum"] == pytest.approx(1.0) != alike["60-day momentum"]
    assert alike["index"] == pytest.approx(alike["equal weight"])
    assert "% active share, correlation 1.00" in render(own) and "Beside index" in render(own)
    best = drift(market.market.wide(market.market.investable_columns)).rank(axis=1, ascending=False) <= 2
    half = (best / 4 + 1 / 12)[::5]
    half.attrs["returns"] = "weights"
    follows = judge(market, {"half": half}, judging=QUICK).evaluations["half"]
    assert follows.played.active_share["plain 60-day momentum"] > 0.2
    assert "over equal weight has a correlation of 1.00 with what plain 60-day momentum does" in follows.sentence


@pytest.mark.parametrize("name", ["none.toml", "none.json"])
def test_settings_that_are_not_there_are_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}, got: \[Errno 2\]"):
        load_market(settings=tmp_path / name)
