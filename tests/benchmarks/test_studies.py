"""Studies of learning: results are kept and not made twice, unseen paths are unseen, null markets hold nothing."""

from __future__ import annotations

import json
import math
import tempfile
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.learning import __main__ as learning
from benchmarks.learning import ablations, study
from benchmarks.learning import markets as learning_markets
from benchmarks.learning import null as learning_null
from benchmarks.learning.ablations import VARIANTS
from benchmarks.learning.markets import Budget, Profits, evaluate_on_unseen, fit, training_market, unseen_profits
from benchmarks.learning.null import MARTINGALE, PERMUTED, null_run, permute_days
from benchmarks.learning.study import Job, append_result, mean_interval, read_results, run_study, study_config
from data.splits import Span
from data.synthetic.built_in import bars_frame, synthetic_market
from models.ddpg_agent import DDPGAgent
from training.erl_trainer import ERLTrainer
from training.run.trainer import build_trainer
from utils.config.trader import Config
from utils.errors import ConfigError

TINY = [
    *("--synthetic.days", "400", "--synthetic.stocks", "4", "--split.context-window-days", "12"),
    *("--env.trading-days", "12", "--env.settlement-days", "4", "--env.max-holding-days", "4"),
    *("--network.encoder-channels", "4", "--network.hidden-units", "6", "--population-size", "3"),
    *("--gradient-steps", "1", "--learning.batch-size", "8", "--learning.block-days", "8"),
    *("--replay.training-starts", "0", "--replay.capacity", "512", "--evolution.distillation-steps", "1"),
    *("--census-every", "0"),
]
SMALL_STUDY = ["--seeds", "2", "--generations", "1", "--paths", "1", "--windows", "3", *TINY]


def tiny_config(*words: str) -> Config:
    return study_config([*TINY, *words])


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def count_calls(log: list[int], number: int) -> dict[str, Any]:
    log.append(number)
    return {"square": number * number}


def test_a_stopped_study_goes_on_where_it_was(tmp_path: Path) -> None:
    path, log = tmp_path / "results.jsonl", list[int]()

    def jobs(numbers: range) -> list[Job]:
        return [Job({"number": number}, partial(count_calls, log, number)) for number in numbers]

    begun = run_study(jobs(range(5)), path)
    assert [next(begun)["square"] for _ in range(3)] == [0, 1, 4]
    begun.close()
    with path.open("a") as file:
        file.write('{"number": 3, "squ')  # the machine went down in the middle of a line
    records = list(run_study(jobs(range(6)), path))
    assert log == [0, 1, 2, 3, 4, 5]
    assert [record["square"] for record in records] == [0, 1, 4, 9, 16, 25]
    assert lines_of(path) == [{"number": n, "square": n * n} for n in range(6)]
    assert list(run_study(jobs(range(6)), path)) == records and len(log) == 6


def test_results_without_a_file_are_not_kept() -> None:
    log: list[int] = []
    for _ in range(2):
        assert [r["square"] for r in run_study([Job({"number": 2}, partial(count_calls, log, 2))], None)] == [4]
    assert log == [2, 2]


def test_workers_give_the_same_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Processes that are forked need not import everything once more.
    monkeypatch.setattr(study, "get_context", lambda _: get_context("fork"))
    jobs = [Job({"number": number}, partial(dict, half=number / 2)) for number in range(3)]
    found = sorted(run_study(jobs, tmp_path / "results.jsonl", workers=2), key=lambda record: record["number"])
    assert found == [{"number": n, "half": n / 2} for n in range(3)]
    assert len(lines_of(tmp_path / "results.jsonl")) == 3


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)), max_size=5))
def test_results_are_read_as_written(records: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.jsonl"
        for record in records:
            append_result(path, record)
        assert read_results(path) == records


@pytest.mark.parametrize(("count", "quantile"), [(2, 12.7062), (5, 2.7764), (10, 2.2622)])
def test_interval_is_students(count: int, quantile: float) -> None:
    values = np.random.default_rng(count).normal(3.0, 2.0, count).tolist()
    mean, half = mean_interval(values)
    assert mean == pytest.approx(np.mean(values))
    assert half == pytest.approx(quantile * np.std(values, ddof=1) / math.sqrt(count), rel=1e-4)


def test_interval_of_too_few() -> None:
    assert mean_interval([4.0])[0] == 4.0 and math.isnan(mean_interval([4.0])[1])
    assert all(math.isnan(value) for value in mean_interval([]))


def test_shares_are_of_mean_profits() -> None:
    found = Profits(np.array([1.0, 3.0]), np.array([2.0, 6.0]), np.array([4.0, 12.0])).shares()
    assert (found["of_rule"], found["of_oracle"]) == (0.5, 0.25)
    assert found["standard_error"] == pytest.approx(1.0)
    nothing = Profits(np.array([1.0, 3.0]), np.zeros(2), np.array([-1.0, 0.0])).shares()
    assert nothing["of_rule"] is None and nothing["of_oracle"] is None


def test_unseen_paths_are_not_the_training_path() -> None:
    """Each path is another one, the same for all champions, and apart from those that seeds train on."""
    config = tiny_config()
    training = training_market(config)
    champion = DDPGAgent(config.network, config.split.context_window_days)
    one = unseen_profits(champion, config, 2, 4, training)
    again = unseen_profits(champion, config, 2, 4, training)
    assert all((getattr(one, name) == getattr(again, name)).all() for name in ("champion", "rule", "oracle"))
    assert len(one.champion) == 8 and len(set(one.oracle[:4]) & set(one.oracle[4:])) == 0
    other = training_market(tiny_config("--seed", "3"))
    assert (other[0].close != training[0].close).any()
    assert evaluate_on_unseen(champion, config, paths=2, windows=4) == one.shares()


def test_training_stops_at_its_budget() -> None:
    config = tiny_config()
    market, _ = training_market(config)
    done = fit(config, market, Budget(generations=2))
    assert done.trainer.generation == 2
    windows, lanes = config.evaluation.fitness_windows, 1 + config.evaluation.exploration_lanes
    assert done.environment_steps == 2 * 3 * windows * lanes * 16
    assert fit(config, market, Budget(cpu_minutes=1e-9)).trainer.generation == 1
    assert fit(config, market, Budget(cpu_minutes=1e9, generations=1)).trainer.generation == 1


def test_study_of_markets_prints_and_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "markets.jsonl"
    words = ["markets", "--kinds", "lead-lag", "martingale", "--json", str(path), *SMALL_STUDY]
    learning.main(words)
    first = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in first[1:]] == ["lead-lag", "martingale"]
    kept = lines_of(path)
    assert [(record["kind"], record["seed"]) for record in kept] == [
        (kind, seed) for kind in ("lead-lag", "martingale") for seed in (0, 1)
    ]
    for record in kept:
        assert record["environment_steps"] > 0 and record["wall_seconds"] > 0 and record["generations_run"] == 1
        assert record["of_rule"] is None or record["of_rule"] == record["champion"] / record["rule"]
    learning.main(words)
    assert capsys.readouterr().out.splitlines() == first
    assert lines_of(path) == kept


def test_other_settings_are_other_results(tmp_path: Path) -> None:
    path = tmp_path / "markets.jsonl"
    words = ["markets", "--kinds", "momentum", "--json", str(path), *SMALL_STUDY, "--seeds", "1"]
    learning.main(words)
    learning.main([*words, "--learning.tau", "0.1"])
    learning.main([*words, "--windows", "2"])
    assert len(lines_of(path)) == 3


def test_a_wrong_flag_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["markets", "--learning.tao", "1"], ["null", "--nonsense"], ["pendulum", "--env.cost-bps", "1"]):
        with pytest.raises(SystemExit, match="2"):
            learning.main(words)
        assert "expected" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        ablations.main(["--learning.tao", "1"])
    assert "expected a known flag" in capsys.readouterr().err


def test_other_control_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "control.json"
    words = ["pendulum", "--environment", "MountainCarContinuous-v0", "--seeds", "2", "--steps", "400"]
    learning.main([*words, "--episodes", "1", "--population", "2", "--json", str(path)])
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [len(result["return_by_seed"]) for result in found.values()] == [2, 2, 2]
    for name in ("Nonsense-v0", "CartPole-v1"):
        with pytest.raises(SystemExit, match="2"):
            learning.main(["pendulum", "--environment", name])
        assert f"got '{name}'" in capsys.readouterr().err


def test_every_line_of_the_ablations_changes_the_profile() -> None:
    configs = [study_config(words) for words in VARIANTS.values()]
    assert len(set(configs)) == len(VARIANTS)


def test_a_population_without_evolution_keeps_everybody() -> None:
    config = study_config([*TINY, *VARIANTS["evolution off"]])
    trainer = build_trainer(config, training_market(config)[0], torch.device("cpu"))
    before = {name: stack.clone() for name, stack in trainer.population.stacks().items()}
    rollout = trainer.evaluate()
    trainer.evolve(rollout.fitness)
    after = trainer.population.stacks()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_ablations_at_a_tiny_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ablations.jsonl"
    chosen = ["fitness windows 1", "crossover head, shared"]
    words = ["--json", str(path), *SMALL_STUDY, "--seeds", "1", "--only", *chosen]
    ablations.main(words)
    first = capsys.readouterr().out.splitlines()
    assert [line[:26].strip() for line in first[1:]] == [ablations.BASE, *(v for v in VARIANTS if v in chosen)]
    assert {record["variant"] for record in lines_of(path)} == {ablations.BASE, *chosen}
    ablations.main(words)
    assert capsys.readouterr().out.splitlines() == first and len(lines_of(path)) == 3


def test_differences_are_taken_seed_by_seed() -> None:
    def records(shares: dict[int, float | None]) -> list[dict[str, Any]]:
        return [
            {"seed": seed, "of_rule": share, "cpu_seconds": 60.0, "environment_steps": 100}
            for seed, share in shares.items()
        ]

    base = records({0: 0.1, 1: 0.5, 2: 0.9})
    line = ablations.line("better", records({0: 0.3, 1: 0.7, 2: 1.1, 3: 9.0}), base)
    assert "+0.20 +- 0.00" in line
    assert "+-" not in ablations.line("first", base, base).replace("0.50 +- 0.99", "")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(3, 30), st.integers(1, 4))
def test_permuted_days_are_the_same_days(seed: int, days: int, stocks: int) -> None:
    """Each day keeps its cross-section; the mean return of every stock is 0; bars stay whole."""
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(0.02 * rng.standard_normal((days, stocks)) + 0.01, axis=0))
    open_ = close * np.exp(0.01 * rng.standard_normal(close.shape))
    bars = np.stack((open_, np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99, close), axis=-1)
    mixed = permute_days(bars, np.random.default_rng(seed))
    assert mixed.shape == bars.shape and (mixed[0] == bars[0]).all()
    assert (mixed[..., 1] >= mixed[..., [0, 3]].max(axis=-1)).all()
    assert (mixed[..., 2] <= mixed[..., [0, 3]].min(axis=-1)).all()
    returns = mixed[1:, :, 3] / mixed[:-1, :, 3] - 1
    assert returns.mean(axis=0) == pytest.approx(np.zeros(stocks), abs=1e-12)
    was = bars[1:, :, 3] / bars[:-1, :, 3]
    was = was / was.mean(axis=0) - 1
    assert np.sort(returns[:, 0]) == pytest.approx(np.sort(was[:, 0]), abs=1e-12)
    # A day's stocks move together wherever the day went.
    order, own = np.argsort(returns[:, 0]), np.argsort(was[:, 0])
    assert returns[order] == pytest.approx(was[own], abs=1e-12)


def test_a_null_run_hears_both_verdicts() -> None:
    heard: list[tuple[Span, int]] = []

    def judge(trainer: ERLTrainer, span: Span, trials: int) -> bool:
        heard.append((span, trials))
        return trials == 1

    config = tiny_config("--synthetic.kind", "martingale")
    found = null_run(MARTINGALE, config, Budget(generations=2), judge)
    splits = training_market(config)[0].splits
    assert heard == [(splits.holdout, 1), (splits.validation, 6)]
    assert found["holdout_praised"] and not found["validation_praised"]


def test_study_of_null_markets(tmp_path: Path, capsys: pytest.CaptureFixture[str], parquet: Path) -> None:
    path = tmp_path / "null.jsonl"
    words = ["null", "--runs", "1", "--generations", "1", "--json", str(path), *TINY]
    learning.main(words)
    assert [record["null"] for record in lines_of(path)] == [MARTINGALE]
    learning.main([*words, "--data", str(parquet)])
    assert [record["null"] for record in lines_of(path)] == [MARTINGALE, PERMUTED]
    assert capsys.readouterr().out.count(" of 1") == 6


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    config = tiny_config().synthetic
    frame = bars_frame(synthetic_market(config, 1))
    late = (frame["ticker"] == "S001") & (frame["date"] < frame["date"].iloc[80])
    path = tmp_path / "prices.parquet"
    frame[~late].to_parquet(path)
    return path


def test_a_permuted_market_keeps_whole_histories(parquet: Path) -> None:
    config = tiny_config("--data", str(parquet))
    market = learning_null.permuted_market(config)
    assert market.tickers == ["S000", "S002", "S003"] and np.isfinite(market.close).all()
    other = learning_null.permuted_market(study_config([*TINY, "--data", str(parquet), "--seed", "1"]))
    assert (market.close[1:] != other.close[1:]).any() and (market.close[0] == other.close[0]).all()


def test_kinds_of_the_study_are_those_of_the_setting() -> None:
    assert set(learning_markets.KINDS) >= {"momentum", "reversal", "lead-lag", "regime", "value", "martingale"}
    with pytest.raises(ConfigError, match="momentum"):
        study_config(["--synthetic.kind", "momentun"])
