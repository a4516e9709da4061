"""Studies of learning: results are kept and not made twice, unseen paths are unseen, null markets hold nothing."""

import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.learning import __main__ as learning
from benchmarks.learning import ablations, markets, peers, structures
from benchmarks.learning.ablations import BASE, LINES, Difference
from benchmarks.learning.markets import Budget, fit
from benchmarks.learning.study import Experiment, holm, ratio, run_study, study_config
from benchmarks.learning.unseen import Holder, UnseenPaths, hold, training_market
from benchmarks.trainers import build_trainer, generations, run_generation
from data.features.bank import relative_risk
from data.features.nine import CLOSE, OPEN
from environment.portfolio import Portfolio
from models import ddpg
from models.evolution import HORIZON
from tests.benchmarks.study_cases import SMALL_STUDY, TINY, Studied, lines_of, tiny_config
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import CHAMPION, IN_FULL, ORACLE, RULE, BandRule
from utils.errors import JobsFailed


def test_a_stopped_study_goes_on_where_it_was_and_a_failure_leaves_the_other_results(tmp_path: Path) -> None:
    path, log = tmp_path / "results.jsonl", list[int]()

    def square(number: int) -> dict[str, Any]:
        log.append(number)
        return {"square": number * number}

    def jobs(numbers: range) -> list[Experiment]:
        return [Experiment({"number": number}, partial(square, number)) for number in numbers]

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
    failing = Experiment({"number": 8}, partial(dict, [0]))
    with pytest.raises(JobsFailed, match=r"got 1 that failed: 0 8: TypeError"):
        list(run_study([failing, *jobs(range(8))], path))
    assert [record["square"] for record in run_study(jobs(range(9)), path)] == [n * n for n in range(9)]
    assert log == list(range(9))


def closes(unseen: UnseenPaths, *words: str) -> list[bytes]:
    config = tiny_config(*words)
    return [path.market.close.tobytes() for path in unseen.each(config, training_market(config)[0])]


def test_unseen_paths_are_fresh() -> None:
    """Each seed has others, the same each time; another unseen seed gives others; none is trained on."""
    found = [*closes(UnseenPaths(paths=2)), *closes(UnseenPaths(paths=2), "--seed", "1")]
    trained = [training_market(tiny_config("--seed", str(seed)))[0].close.tobytes() for seed in range(2)]
    assert len({*found, *trained}) == 6
    assert closes(UnseenPaths(paths=2), "--seed", "1") == found[2:]
    assert not set(closes(UnseenPaths(3_000_000, paths=2))) & set(found)
    (short,) = UnseenPaths(paths=1, days=300).each(tiny_config(), training_market(tiny_config())[0])
    assert len(short.market.dates) == 300 and short.days == slice(12, 299)


def test_what_is_held_is_measured_as_in_plain_numpy() -> None:
    """One rule on random scores: every close and open of its account and of the benchmark's is played again."""
    config = tiny_config()
    market, _ = training_market(config)
    rng, first, last = np.random.default_rng(4), 20, 120
    drift = 0.01 * rng.standard_normal(market.close.shape)[:, : len(market.investable_columns)]
    rule = BandRule(rng.standard_normal(drift.shape), unit=2.0)
    portfolio = Portfolio.on(market, config.env)
    of_rule, nothing = hold(
        portfolio,
        {"rule": Holder.of_rule(rule, market), "nothing": Holder.of_rule(replace(rule, unit=0.0), market)},
        first,
        last,
        drift,
    ).values()
    assert (nothing.excess, nothing.expected, nothing.tracking_error, nothing.information_ratio) == (0, 0, 0, 0)
    columns, rate = market.investable_columns, config.env.cost_rate
    open_, close = (market.data_array[:, columns, part].astype(np.float64) for part in (OPEN, CLOSE))
    daily, expected, turnover = [], [], []
    for lane in (0, -1):
        again = Portfolio.on(market, config.env)
        again.begin(torch.tensor([first]), steps=last - first)
        policy = rule.policy(torch.from_numpy(relative_risk(market.close)))
        cash, shares, equity, seen = 1e6, np.zeros(len(columns)), [1e6], []
        for day in range(first, last):
            order = np.asarray(again.orders(policy(again) if lane == 0 else again.wanted)[0])
            before = shares.copy()
            again.trade(policy(again) if lane == 0 else again.wanted)
            shares = np.asarray(again.account.shares[0])
            filled, price = shares - before, open_[day + 1]
            assert (np.abs(filled) <= np.abs(order) + 1e-9).all()
            traded = np.abs(filled * price).sum()
            cash -= filled @ price + rate * traded
            seen.append((shares * price @ np.expm1(drift[day]) - rate * traded) / equity[-1])
            turnover += [traded / equity[-1]] if lane == 0 else []
            equity.append(cash + shares @ close[day + 1])
        daily.append(np.diff(equity) / np.array(equity[:-1]))
        expected.append(seen)
    excess = daily[0] - daily[1]
    assert of_rule.excess == pytest.approx(25200 * excess.mean(), rel=1e-6) and abs(of_rule.excess) > 0.1
    assert of_rule.expected == pytest.approx(25200 * (np.array(expected[0]) - np.array(expected[1])).mean(), rel=1e-6)
    assert of_rule.tracking_error == pytest.approx(100 * np.sqrt(252) * excess.std(), rel=1e-6)
    assert of_rule.turnover == pytest.approx(126 * np.mean(turnover), rel=1e-6)


def test_training_stops_at_its_budget() -> None:
    config = tiny_config()
    market, _ = training_market(config)
    done = fit(config, market, Budget(generations=2))
    assert done.trainer.generation == 2
    assert done.record()["environment_steps"] == 2 * 4 * (2 + 1) * 16
    assert fit(config, market, Budget(cpu_minutes=1e-9)).trainer.generation == 1
    assert fit(config, market, Budget(cpu_minutes=1e9, generations=1)).trainer.generation == 1


def test_study_of_markets_prints_and_keeps(studied: Studied) -> None:
    words = ["markets", "--kinds", "lead-lag", "momentum", "--unseen-seed", "77", *SMALL_STUDY]
    first, kept = studied(*words)
    assert "from seed 77" in first[0]
    for kind in ("lead-lag", "momentum", "all kinds"):
        lines = [line for line in first[2:] if line.startswith(f"{kind:<13}")]
        assert [line[14:36].strip() for line in lines[:-1]][:2] == [CHAMPION, IN_FULL] and "lost by caution" in lines[
            -1
        ]
        assert [line[14:36].strip() for line in lines[-3:-1]] == [RULE, ORACLE] and len(lines) > 5
    played = [(record["part"], record["seed"]) for record in kept[:6]]
    assert played == [(part, seed) for part in ("trained", "rivals", "planted") for seed in (0, 1)]
    for record in kept[:2]:
        assert record["unseen_seed"] == 77 and record["environment_steps"] > 0 and record["generations_run"] == 1
    assert studied(*words) == (first, kept)


def test_shares_over_kinds_are_ratios_of_sums() -> None:
    """A kind of twice the size has twice the weight; the error is that of the seeds' residuals."""
    keys = ("expected", "excess", "information_ratio", "turnover", "cpu_seconds")

    def kind(champion: tuple[float, float], rule: tuple[float, float]) -> dict[str, dict[int, dict[str, float]]]:
        named = {CHAMPION: champion, IN_FULL: champion, RULE: rule}
        return {name: {seed: dict.fromkeys(keys, one) for seed, one in enumerate(of)} for name, of in named.items()}

    both = markets.summed([kind((1.0, 3.0), (10.0, 10.0)), kind((20.0, 16.0), (20.0, 20.0))])
    pairs = [(both[CHAMPION][seed]["excess"], both[RULE][seed]["excess"]) for seed in (0, 1)]
    share, half = ratio(pairs)
    assert share == pytest.approx(40 / 60)
    assert half == pytest.approx(stats.t.ppf(0.975, 1) * stats.sem([10.5 - 10, 9.5 - 10]) / 15)
    assert np.isnan(ratio([(1.0, -1.0)])).all()
    assert "0.00 +- 0.00" in markets.lost_by_caution(both)


@pytest.mark.parametrize("words", [["markets", "--env.cost-bsp", "1"], ["null", "--nonsense"]])
def test_a_wrong_flag_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        learning.main(words)
    assert "expected a known flag" in capsys.readouterr().err


LEARNING = (
    *("--learning.training-starts", "10", "--learning.gradient-steps", "3", "--learning.hidden", "4"),
    *("--learning.batch-size", "16", "--evolution.elite-fraction", "0.5"),
)


def altered(name: str) -> ERLTrainer:
    """A new trainer as a line of the ablations has it, whose networks learn from the first generation on."""
    (line,) = (line for line in LINES if line.name == name)
    config = study_config([*TINY, *LEARNING, *line.flags])
    trainer = build_trainer(config, training_market(config)[0], torch.device("cpu"))
    if line.alter is not None:
        line.alter(trainer, torch.Generator().manual_seed(0))
    return trainer


def learned(name: str) -> dict[str, torch.Tensor]:
    trainer = altered(name)
    run_generation(trainer)
    assert trainer.population.updates == 3
    return trainer.population.networks.tensors


def test_an_altered_run_leaves_the_next_one_as_it_was() -> None:
    """A trainer of the profile that is trained afterwards; what each alteration changes is tested with the learner."""
    targets, before, found = ddpg.td_targets, learned(BASE), learned("noise in the targets")
    assert all(part.isfinite().all() for part in found.values())
    assert not all(torch.equal(part, before[key]) for key, part in found.items())
    assert ddpg.td_targets is targets
    assert all(torch.equal(part, before[name]) for name, part in learned(BASE).items())


@pytest.mark.parametrize("name", ablations.ALTERATIONS)
def test_each_altered_part_learns_otherwise(name: str) -> None:
    changed, plain = after_two(name), unaltered()
    assert any(not torch.equal(changed[part], plain[part]) for part in plain)


def after_two(name: str) -> dict[str, torch.Tensor]:
    """Networks and genes after two generations."""
    trainer = altered(name)
    list(generations(trainer, 2))
    assert trainer.population.updates > 0
    return {**trainer.population.networks.tensors, "genes": trainer.population.genes}


@cache
def unaltered() -> dict[str, torch.Tensor]:
    return after_two(BASE)


def test_ablations_at_a_tiny_budget(studied: Studied) -> None:
    words = ["parts", *SMALL_STUDY, "--synthetic.drift-std", "0.03", "--kinds", "momentum"]
    first, kept = studied(*words, "--only", "random fitness")
    assert first[0].startswith("momentum")
    assert [line[:30].strip() for line in first[2:4]] == [BASE, "random fitness"]
    assert first[4].startswith("of 1 differences") and first[-1].startswith("random fitness")
    assert [one.get("variant") for one in kept] == [None] * 2 + [BASE] * 2 + ["random fitness"] * 2
    again, _ = studied(*words, "reversal", "--only", "single best", "--seeds", "1")
    shown = [line[:30].strip() for line in again]
    assert [shown[place] for place in (2, 3, 8, 10, 11)] == [BASE, "single best", "all kinds", BASE, shown[3]]


def test_differences_are_corrected_together() -> None:
    clear, weak, single = ([1.0, 1.1, 0.9], [0.1, -0.2, 0.3], [2.0])
    named = {"weak": weak, "one": single, "clear": clear}
    header, *lines = ablations.corrected([Difference("value", name, by_seed) for name, by_seed in named.items()])
    assert header.startswith("of 2 differences") and [line.split()[0] for line in lines] == ["clear", "weak"]
    p_value = stats.ttest_1samp(clear, 0.0).pvalue
    assert lines[0].split()[-2:] == [f"{p_value:.4f}", f"{2 * p_value:.4f}"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.001, 0.999))
def test_holm_rejects_step_by_step(p_values: Sequence[float], level: float) -> None:
    """The smallest is compared with level / m, the next with level / (m - 1), until one is not rejected."""
    rejected = set()
    for step, place in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[place] * (len(p_values) - step) > level:
            break
        rejected.add(int(place))
    assert {place for place, p in enumerate(holm(p_values)) if p <= level} == rejected


def test_every_line_of_the_ablations_changes_the_profile() -> None:
    changes = {(study_config(line.flags), str(line.alter)) for line in LINES[1:]}
    assert len(changes) == len(LINES) - 1 and len({line.name for line in LINES}) == len(LINES)
    assert [pickle.loads(pickle.dumps(line)).name for line in LINES] == [line.name for line in LINES]  # for workers


def test_a_random_gradient_is_as_long_and_of_the_actor_alone() -> None:
    one, other = (altered(name).population.networks for name in ("noise in the policy gradient", BASE))
    for networks in (one, other):
        networks.online.actor.grad = torch.ones_like(networks.online.actor)
        networks.online.actor.grad[..., ::2] = 0.0  # as that of an input that an agent does not see
        networks.optimizers["actor"].step()
    torch.testing.assert_close(one.optimizers["actor"].norm, other.optimizers["actor"].norm)
    assert not torch.equal(one.online.actor, other.online.actor) and not one.online.actor[..., ::2].any()


def test_a_gene_is_fixed_in_all_agents_and_their_children() -> None:
    trainer = altered("middle horizon")
    for _ in range(2):
        assert (trainer.population.genes[:, HORIZON] == trainer.population.genes[0, HORIZON]).all()
        assert trainer.population.genes[:, :HORIZON].std(dim=0).min() > 0
        run_generation(trainer)


def test_gains_are_alike_or_those_of_others_in_all_generations() -> None:
    own, alike, others = (altered(name) for name in (BASE, "all inputs count alike", "random gains of inputs"))
    for _ in range(2):
        for trainer in (alike, others):
            population = trainer.population
            assert torch.equal(population.networks.gains, population.gains_of_agents)
            run_generation(trainer)
    before = own.population.gains
    assert alike.population.gains.unique().tolist() == [0.5]
    assert torch.equal(others.population.gains.sort(1).values, before.sort(1).values)
    assert not torch.equal(others.population.gains, before)


def updates_when_bred(name: str) -> int:
    """Gradient steps so far when the first generation breeds."""
    trainer, seen = altered(name), list[int]()
    inherit, population = trainer.population.inherit, trainer.population

    def noted(*given: Any) -> None:
        seen.append(population.updates)
        inherit(*given)

    population.inherit = noted  # type: ignore[method-assign]
    run_generation(trainer)
    assert population.updates == 3
    return seen[0]


def test_children_learn_before_they_are_judged_but_in_the_other_order() -> None:
    assert (updates_when_bred(BASE), updates_when_bred("trained before breeding")) == (0, 3)


def test_differences_are_taken_seed_by_seed() -> None:
    def line(by_seed: dict[int, float]) -> dict[int, dict[str, float]]:
        return {seed: {"expected": expected} for seed, expected in by_seed.items()}

    base, rule = line({0: 1.0, 1: 5.0, 2: 9.0, 4: 1.0}), line({0: 10.0, 1: 10.0, 2: 10.0, 3: 10.0, 4: -1.0})
    found = ablations.difference("momentum", "better", line({2: 11.0, 0: 3.0, 3: 9.0, 1: 7.0, 4: 10.0}), base, rule)
    assert found.by_seed == pytest.approx([0.2, 0.2, 0.2]) and str(found) == "+0.20 +- 0.00"


@pytest.mark.parametrize("name", structures.STRUCTURES)
def test_a_structure_moves_the_next_session_and_a_column_tells_it(name: str) -> None:
    """The drift is that of the intraday returns of the day after; the column changes no price."""
    config = tiny_config("--synthetic.days", "1500", "--synthetic.stocks", "30")
    silent, told = (structures.draw(name, config, is_told=flag) for flag in (False, True))
    assert silent.bars.equals(told.bars.drop(columns="told")) and len(silent.tickers) == 20
    wide = {column: told.bars.pivot(index="date", columns="ticker", values=column).iloc[:, :20] for column in told.bars}
    moves = np.log(wide["close"] / wide["open"]).to_numpy()
    moves = moves - moves.mean(axis=1, keepdims=True)
    column = wide["told"].to_numpy() - wide["told"].to_numpy().mean(axis=1, keepdims=True)
    if name == "null":
        assert not told.drift.any() and abs(structures.mean_correlation(column[:-1], moves[1:])) < 0.02
        return
    assert structures.mean_correlation(column, told.drift) == pytest.approx(1, abs=1e-6)
    slope = (told.drift[:-1] * moves[1:]).sum() / (told.drift[:-1] ** 2).sum()
    late = (told.drift[1:] * moves[:-1]).sum() / (told.drift[1:] ** 2).sum()
    assert 0.5 < slope < 1.5 and (abs(late) < 1 or name in ("sector", "crash", "volrev"))


def test_study_of_structures(studied: Studied) -> None:
    words = "structures", "--structures", "season", "--seeds", "1", "--generations", "1", "--synthetic.days", "600"
    shown, kept = studied(*words, *LEARNING)
    assert [line[:14].strip() for line in shown[2:]] == ["season", "season, told"]
    assert [(record["structure"], record["is_told"]) for record in kept] == [("season", False), ("season", True)]
    assert all(-1 <= record["correlation"] <= 1 for record in kept)
    part = "random gains of inputs"
    _, more = studied(*words, *LEARNING, "--told", "no", "--part", part)
    assert [record["part"] for record in more] == [None, None, part]
    assert more[2]["correlation"] != more[0]["correlation"] != 0.0


def test_peers_learn_as_long_as_we_do_or_are_refused(
    studied: Studied, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["peers", "--seeds", "1", "--kinds", "momentum", "--generations", "1"]
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "stable_baselines3", None)
        with pytest.raises(SystemExit, match="2"):
            studied(*words)
    assert "pip install stable-baselines3" in capsys.readouterr().err
    pytest.importorskip("stable_baselines3")
    shown, kept = studied(*words)
    assert shown[1].startswith("momentum") and set(kept[0]["excess"]) == {CHAMPION, IN_FULL, *peers.PEERS}
    assert all(steps > 0 for steps in kept[0]["steps"].values())
