"""Studies of learning: results are kept and not made twice, unseen paths are unseen, null markets hold nothing."""

import math
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
from benchmarks.learning import ablations, alterations
from benchmarks.learning.ablations import BASE, LINES, Difference, Line
from benchmarks.learning.markets import Budget, fit
from benchmarks.learning.selection import MEAN_AGENT
from benchmarks.learning.study import (
    Experiment,
    holm,
    run_study,
    study_config,
)
from benchmarks.learning.unseen import UnseenPaths, training_market
from models.ddpg_agent import DDPGAgent
from models.population import target_percents
from models.trader import Blend
from tests.benchmarks.study_cases import SMALL_STUDY, TINY, lines_of, tiny_config
from training import ddpg
from training.erl_trainer import ERLTrainer, build_trainer
from training.evaluation.baselines import BEST_AGENT, CHAMPION, CLOSED_FORM, ORACLE, RULE
from utils.errors import JobsFailed


def count_calls(log: list[int], number: int) -> dict[str, Any]:
    log.append(number)
    return {"square": number * number}


def test_a_stopped_study_goes_on_where_it_was(tmp_path: Path) -> None:
    path, log = tmp_path / "results.jsonl", list[int]()

    def jobs(numbers: range) -> list[Experiment]:
        return [Experiment({"number": number}, partial(count_calls, log, number)) for number in numbers]

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


def test_one_failure_leaves_the_other_results(tmp_path: Path) -> None:
    """All results are kept, the failure is told at the end, and it alone is done again."""
    path = tmp_path / "results.jsonl"
    jobs = [Experiment({"number": number}, partial(dict, half=number / 2)) for number in range(3)]
    jobs.insert(1, Experiment({"number": 3}, partial(dict, [0])))
    with pytest.raises(JobsFailed, match=r"got 1 that failed: 1 3: TypeError"):
        list(run_study(jobs, path))
    assert lines_of(path) == [{"number": n, "half": n / 2} for n in range(3)]
    jobs[1] = Experiment({"number": 3}, partial(dict, half=1.5))
    list(run_study(jobs, path))
    assert len(lines_of(path)) == 4


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
    assert done.environment_steps == 2 * 4 * (2 + 1) * 16
    assert fit(config, market, Budget(cpu_minutes=1e-9)).trainer.generation == 1
    assert fit(config, market, Budget(cpu_minutes=1e9, generations=1)).trainer.generation == 1


def test_study_of_markets_prints_and_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.learning.markets.RANDOM_GENOMES", 4)
    path = tmp_path / "markets.jsonl"
    words = ["markets", "--kinds", "lead-lag", "--unseen-seed", "77", "--json", str(path), *SMALL_STUDY]
    learning.main(words)
    first = capsys.readouterr().out.splitlines()
    assert "from seed 77" in first[0] and max(map(len, first)) <= 120
    policies = [line[13:37].strip() for line in first[2:] if line[:12].strip() == "lead-lag"]
    assert policies[:4] == [CHAMPION, BEST_AGENT, CLOSED_FORM, MEAN_AGENT]
    assert policies[-2:] == [RULE, ORACLE] and len(policies) > 4
    assert sum("rank correlation" in line for line in first) == 1
    kept = lines_of(path)
    assert [(record["played"], record["seed"]) for record in kept] == [
        (played, seed) for played in ("rivals", "trained") for seed in (0, 1)
    ]
    for record in kept[2:]:
        assert record["unseen_seed"] == 77 and record["environment_steps"] > 0 and record["generations_run"] == 1
        assert record["selection"]["agents"] == 4
    learning.main(words)
    assert capsys.readouterr().out.splitlines() == first
    assert lines_of(path) == kept


@pytest.mark.parametrize("words", [["markets", "--env.cost-bsp", "1"], ["null", "--nonsense"]])
def test_a_wrong_flag_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        learning.main(words)
    assert "expected a known flag" in capsys.readouterr().err


def test_every_line_of_the_ablations_changes_the_profile() -> None:
    assert LINES[0] == Line(BASE) and len({line.name for line in LINES}) == len(LINES)
    changes = {(study_config(line.flags), line.alter) for line in LINES}
    assert len(changes) == len(LINES)
    assert [pickle.loads(pickle.dumps(line)).name for line in LINES] == [line.name for line in LINES]  # for workers


LEARNING = (
    *("--learning.training-starts", "10", "--learning.gradient-steps", "3", "--learning.hidden", "4"),
    *("--learning.batch-size", "16", "--evolution.elite-fraction", "0.5"),
)


def altered(name: str, *words: str) -> ERLTrainer:
    """A new trainer as a line of the ablations has it, whose networks learn from the first generation on."""
    (line,) = (line for line in LINES if line.name == name)
    config = study_config([*TINY, *LEARNING, *words, *line.flags])
    trainer = build_trainer(config, training_market(config)[0], torch.device("cpu"))
    if line.alter is not None:
        line.alter(trainer, torch.Generator().manual_seed(0))
    return trainer


def networks(trainer: ERLTrainer) -> dict[str, torch.Tensor]:
    """The tensors of its networks as they are now."""
    return {name: part.clone() for name, part in alterations.networks_of(trainer).tensors.items()}


FITNESS = torch.tensor([1.0, 4.0, 2.0, 3.0], dtype=torch.float64)


def judge(trainer: ERLTrainer, fitness: torch.Tensor) -> None:
    """Let its population have been evaluated."""
    trainer.population.evaluated(fitness, Blend.of_ridge(4))


ALTERED = ("no sale targets by actors", "critic alone", "timing trusted", "no mutation of actors", "random fitness")


def test_lines_train_and_leave_nothing_behind() -> None:
    """A trainer of the profile that is built afterwards is as it was before."""
    before = networks(altered(BASE))
    for name in ALTERED:
        assert math.isfinite(altered(name).run_generation()["validation"]["champion"])
    after = altered(BASE)
    assert all(torch.equal(part, before[name]) for name, part in networks(after).items())
    assert ddpg.OUTCOMES not in (0.0, 1.0) and type(after.champion) is type(after.population[0]) is DDPGAgent


def test_random_actors_order_at_random_what_may_be_bought() -> None:
    """Scores and sale targets fill their ranges, all orders promise the same, and closed forms are as they were."""
    trainer, other = altered("random actor"), altered(BASE)
    given = other.population.ridge, target_percents(other.population.genes), alterations.networks_of(other).targets
    found, own, kept = (
        days.forecasts(*given, most)[0] for days, most in ((trainer.days, None), (other.days, None), (trainer.days, 2))
    )
    known = own.expected.isfinite()
    assert torch.equal(found.score.isfinite(), known) and len(found.expected[known].unique()) == 1
    for drawn, low, high in ((found.score, 0, 1), (found.target, 10, 50)):
        share = (drawn[known].sort().values - low) / (high - low)
        torch.testing.assert_close(share, torch.linspace(0, 1, len(share)), rtol=0.0, atol=0.1)
    assert kept.stock is not None and kept.stock.shape[2] < 5
    for agent in (trainer.champion, trainer.best_agent):
        scores = [one.forecasts(trainer.market).score for one in (agent, agent, agent.closed_form())]
        assert torch.equal(scores[0], scores[1]) and not torch.equal(scores[0], scores[2])
    plain = [one.champion.closed_form().forecasts(one.market).score for one in (trainer, other)]
    assert torch.equal(*plain)


def test_random_networks_are_drawn_anew_and_played() -> None:
    """Online and target network have the same last layer, which no generation leaves as it was; others learn."""
    trainer, seen = altered("random sizes"), list[torch.Tensor]()
    start = networks(trainer)
    for _ in range(2):
        pair = [getattr(alterations.networks_of(trainer), name).size.parts for name in ("actor", "actor_target")]
        assert torch.equal(pair[0][4], pair[1][4]) and not pair[0][5].any() and float(pair[0][4].detach().std()) > 0.2
        seen.append(pair[0][4].detach().clone())
        trainer.run_generation()
    assert not torch.equal(*seen)
    learned = networks(trainer)
    assert all(not torch.equal(learned[name], start[name]) for name in ("critic.reward", "critic.continuation"))


def test_a_shuffled_replay_holds_the_same_numbers_in_other_rows() -> None:
    one, other = altered("random replay"), altered(BASE)
    for trainer in (one, other):
        trainer.evaluate_population()
    for name, part in one.replay.data.items():
        own = other.replay.data[name]
        assert torch.equal(part, own) != (name in ("reward", "best", "next_best"))
        assert torch.equal(part.sort(0).values, own.sort(0).values)


def test_without_crossover_a_child_is_its_first_parents() -> None:
    """Without mutation either: its genes and all networks but for the inputs that they look at."""
    trainer = altered("no crossover", "--evolution.mutation-strength", "0")
    trainer.run_generation()
    judge(trainer, FITNESS)
    genes, before = trainer.population.genes.clone(), networks(trainer)
    trainer.population.founders = [0, 1, 2, 3]
    trainer.evolve_population(FITNESS)
    parents = trainer.population.founders
    assert parents[1] == 1 and parents[3] == 3 and {parents[0], parents[2]} & {1, 3}
    assert torch.equal(trainer.population.genes, genes[parents])
    for name, part in networks(trainer).items():
        assert ".reward" in name or name == "input_mask" or torch.equal(part, before[name][parents]), name


def test_random_search_draws_all_but_the_elites() -> None:
    trainer = altered("random search")
    population = trainer.population
    before, seen = population.genes.clone(), [population.genes[0]]
    for _ in range(3):
        judge(trainer, FITNESS)
        trainer.evolve_population(FITNESS)
        assert torch.equal(population.genes[[1, 3]], before[[1, 3]])
        assert all((population.genes[0] != genes).sum() > 5 for genes in seen)
        assert torch.equal(population.ridge.weights, trainer.days.fit(population.genes).weights)
        seen.append(population.genes[0])
        assert population.founders[1] == 1 and population.founders[3] == 3 and len(set(population.founders)) == 4
    assert population.founders[0] > 3


def test_ablations_at_a_tiny_budget(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, strong = tmp_path / "ablations.jsonl", ["--synthetic.drift-std", "0.03"]
    words = ["--json", str(path), *SMALL_STUDY, *strong, "--only", "random fitness", "--kinds", "momentum"]
    ablations.main(words)
    first = capsys.readouterr().out.splitlines()
    assert first[0].startswith("momentum") and max(map(len, first)) <= 120
    assert [line[:26].strip() for line in first[2:4]] == [BASE, "random fitness"]
    assert first[4].startswith("of 1 differences") and first[-1].startswith("random fitness")
    assert [one["variant"] for one in lines_of(path)] == [BASE] * 2 + ["random fitness"] * 2


def test_differences_are_taken_seed_by_seed() -> None:
    def records(by_seed: dict[int, float | None]) -> list[dict[str, Any]]:
        return [{"seed": seed, "policies": {CHAMPION: {"of_rule": share}}} for seed, share in by_seed.items()]

    base = records({0: 0.1, 1: 0.5, 2: 0.9, 4: None})
    found = ablations.difference("momentum", "better", records({2: 1.1, 0: 0.3, 3: 9.0, 1: 0.7, 4: 1.0}), base)
    assert found.by_seed == pytest.approx([0.2, 0.2, 0.2]) and str(found) == "+0.20 +- 0.00"


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
