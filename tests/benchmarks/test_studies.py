"""Studies of learning: results are kept and not made twice, unseen paths are unseen, null markets hold nothing."""

import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.learning import __main__ as learning
from benchmarks.learning import ablations, differentiable
from benchmarks.learning.ablations import BASE, LINES, WARM, Difference
from benchmarks.learning.differentiable import SoftAccount
from benchmarks.learning.markets import WINDOWS, Budget, fit
from benchmarks.learning.study import Experiment, holm, run_study, study_config
from benchmarks.learning.unseen import UnseenPaths, training_market
from data.synthetic.built_in import built_in_market
from environment.trading_env import TradingEnvironment
from models import ddpg
from models.policy import Forecasts
from tests.benchmarks.study_cases import SMALL_STUDY, TINY, Studied, lines_of, tiny_config
from tests.tiny import seeded
from training.erl_trainer import ERLTrainer, build_trainer
from training.evaluation.baselines import CHAMPION, ORACLE, RULE
from training.rollout import roll_out
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig
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
    return [path.market.close.tobytes() for path in unseen.each(config, training_market(config)[0].stats)]


def test_unseen_paths_are_fresh() -> None:
    """Each seed has others, the same each time; another unseen seed gives others; none is trained on."""
    found = [*closes(UnseenPaths(paths=2)), *closes(UnseenPaths(paths=2), "--seed", "1")]
    trained = [training_market(tiny_config("--seed", str(seed)))[0].close.tobytes() for seed in range(2)]
    assert len({*found, *trained}) == 6
    assert closes(UnseenPaths(paths=2), "--seed", "1") == found[2:]
    assert not set(closes(UnseenPaths(3_000_000, paths=2))) & set(found)


def test_training_stops_at_its_budget() -> None:
    config = tiny_config()
    market, _ = training_market(config)
    done = fit(config, market, Budget(generations=2))
    assert done.trainer.generation == 2
    assert done.record()["environment_steps"] == 2 * 4 * (2 + 1) * 16
    assert fit(config, market, Budget(cpu_minutes=1e-9)).trainer.generation == 1
    assert fit(config, market, Budget(cpu_minutes=1e9, generations=1)).trainer.generation == 1


def test_study_of_markets_prints_and_keeps(studied: Studied) -> None:
    words = ["markets", "--kinds", "lead-lag", "--unseen-seed", "77", *SMALL_STUDY]
    first, kept = studied(*words)
    assert "from seed 77" in first[0]
    policies = [line[13:37].strip() for line in first[2:] if line[:12].strip() == "lead-lag"]
    assert policies[0] == CHAMPION and policies[-2:] == [RULE, ORACLE] and len(policies) > 4
    played = [(record["played"], record["seed"]) for record in kept]
    assert played == [("rivals", 0), ("rivals", 1), ("trained", 0), ("trained", 1)]
    for record in kept[2:]:
        assert record["unseen_seed"] == 77 and record["environment_steps"] > 0 and record["generations_run"] == 1
    assert studied(*words) == (first, kept)


@pytest.mark.parametrize("words", [["markets", "--env.cost-bsp", "1"], ["null", "--nonsense"]])
def test_a_wrong_flag_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        learning.main(words)
    assert "expected a known flag" in capsys.readouterr().err


LEARNING = (
    *("--learning.training-starts", "10", "--learning.gradient-steps", "3", "--learning.hidden", "4"),
    *("--learning.batch-size", "16", "--evolution.elite-fraction", "0.5", "--learning.no-warm-start"),
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
    trainer.run_generation()
    assert trainer.population.updates == 3
    return trainer.population.networks.tensors


def test_an_altered_run_leaves_the_next_one_as_it_was() -> None:
    """A trainer of the profile that is trained afterwards; what each alteration changes is tested with the learner."""
    targets, before, found = ddpg.td_targets, learned(BASE), learned("noise in the targets")
    assert all(part.isfinite().all() for part in found.values())
    assert not all(torch.equal(part, before[key]) for key, part in found.items())
    assert ddpg.td_targets is targets
    assert all(torch.equal(part, before[name]) for name, part in learned(BASE).items())


def test_ablations_at_a_tiny_budget(studied: Studied) -> None:
    words = ["cold", *SMALL_STUDY, "--synthetic.drift-std", "0.03", "--kinds", "momentum", "--only"]
    first, kept = studied(*words, WARM, "random fitness")
    assert first[0].startswith("momentum")
    assert [line[:28].strip() for line in first[2:5]] == [WARM, BASE, "random fitness"]
    assert first[5].startswith("of 1 differences") and first[-1].startswith("random fitness")
    assert [one["variant"] for one in kept] == [WARM] * 2 + [BASE] * 2 + ["random fitness"] * 2
    assert all(len(one[WINDOWS]) == 3 for one in kept)
    again, _ = studied(*words, "random fitness", "--warm", "--seeds", "1")
    assert [line[:28].strip() for line in again[2:4]] == [BASE, "random fitness"]


def test_hard_decisions_of_a_soft_account_are_those_of_the_account() -> None:
    """At next to no temperature, with cash left, where all is sold before the end."""
    rules = EnvironmentConfig(trading_days=30, settlement_days=10, max_holding_days=39, stake_percent=0.25)
    planted = SyntheticConfig(kind="momentum", days=600, stocks=6)
    market = built_in_market(planted, DataConfig(context_window_days=16), rules)[0]
    env, starts = TradingEnvironment.on(market, rules), torch.tensor([20, 61, 97])
    score = torch.randn(len(market.dates), env.account.bars.stocks, generator=seeded(2)).sign() * 3.0
    score *= 1 + 0.1 * torch.rand(score.shape, generator=seeded(3)).argsort(dim=1)  # no two are alike
    days, last = starts[:, None] + torch.arange(rules.episode_steps), rules.trading_days + 5
    score = score[days].contiguous()
    score[:, last:] = -3.0
    found = SoftAccount.of(env, len(market.dates)).profit(score, days, 1e-3)
    profits = []
    for start, of_window in zip(starts.tolist(), score, strict=True):
        known = torch.full((1, len(market.dates), score.shape[-1]), -torch.inf)
        known[0, start : start + rules.episode_steps] = of_window
        forecasts = Forecasts.of(known, env.account.bars.tradable)
        played = roll_out(env, forecasts, torch.zeros(1), torch.tensor([50.0]), torch.tensor([start]))
        profits.append(float(played.summary.profit_percent[0]))
    assert found.tolist() == pytest.approx(profits, abs=1e-3) and max(map(abs, profits)) > 0.1


def test_an_actor_without_a_critic_climbs_the_profit_of_its_account(
    studied: Studied, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config("--synthetic.kind", "momentum", "--learning.no-warm-start")
    market = training_market(config)[0]
    env, profits = TradingEnvironment.on(market, config.env), []
    for updates in (1, 60):
        monkeypatch.setattr(differentiable, "UPDATES", updates)
        actor, days = differentiable.learned(config, market, env)
        x = days.inputs.for_networks(torch.from_numpy(days.inputs.of(market)))
        seen = torch.arange(days.samples.train.first, days.samples.train.last - 17)[:, None] + torch.arange(16)
        scale = days.transitions.reward_scale
        score = scale * differentiable.scores_of(actor, x[seen])
        profits.append(float(SoftAccount.of(env, len(x)).profit(score, seen, 0.1 * scale).mean()))
    assert profits[1] > profits[0] + 0.2
    words = ("differentiable", *SMALL_STUDY, "--kinds", "momentum", "--seeds", "1")
    shown, kept = studied(*words)
    assert shown[-1].split()[:2] == ["momentum", "1"] and len(kept) == 1


def test_profits_are_divided_window_by_window() -> None:
    """The error is that of the windows' differences: none where each earns the same share of the other's."""

    base = [{"seed": 0, WINDOWS: [1.0, 3.0]}, {"seed": 1, WINDOWS: [2.0, 6.0]}]
    others = [{"seed": 1, WINDOWS: [1.0, 3.0]}, {"seed": 2, WINDOWS: [9.0, 9.0]}]
    assert ablations.over(others, base) == pytest.approx((0.5, 0.0))
    ratio, error = ablations.over([{"seed": 0, WINDOWS: [2.0, 2.0]}], base)
    assert ratio == pytest.approx(1.0)
    assert error == pytest.approx(stats.sem([1.0, -1.0]) / 2)


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
    changes = {(study_config(line.flags), line.alter) for line in LINES[1:]}
    assert len(changes) == len(LINES) - 1 and len({line.name for line in LINES}) == len(LINES)
    assert [pickle.loads(pickle.dumps(line)).name for line in LINES] == [line.name for line in LINES]  # for workers


def test_a_random_gradient_is_as_long_and_of_the_actor_alone() -> None:
    one, other = (altered(name).population.networks for name in ("noise in the policy gradient", BASE))
    for networks in (one, other):
        networks.online.actor.grad = torch.ones_like(networks.online.actor)
        networks.online.actor.grad[..., ::2] = 0.0  # as that of an input that an agent does not see
        networks.actor_optimizer.step()
    torch.testing.assert_close(one.actor_optimizer.norm, other.actor_optimizer.norm)
    assert not torch.equal(one.online.actor, other.online.actor) and not one.online.actor[..., ::2].any()


def test_differences_are_taken_seed_by_seed() -> None:
    def records(by_seed: dict[int, float | None]) -> list[dict[str, Any]]:
        return [{"seed": seed, "policies": {CHAMPION: {"of_rule": share}}} for seed, share in by_seed.items()]

    base = records({0: 0.1, 1: 0.5, 2: 0.9, 4: None})
    found = ablations.difference("momentum", "better", records({2: 1.1, 0: 0.3, 3: 9.0, 1: 0.7, 4: 1.0}), base)
    assert found.by_seed == pytest.approx([0.2, 0.2, 0.2]) and str(found) == "+0.20 +- 0.00"
