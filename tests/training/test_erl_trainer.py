"""Whole generations: they continue exactly after a checkpoint, and learn what waiting is worth."""

import copy
import gc
import json
import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from data.market import Market
from data.splits import Span
from data.synthetic.built_in import built_in_market
from models.evolution import GENES, elite_count
from models.population import target_percents
from tests.small_market import TINY_RULES
from tests.tiny import TINY_EVALUATION, learnable_market, tiny_trainer
from training import erl_trainer, rollout
from training.erl_trainer import PHASES, ERLTrainer
from training.rollout import Rollout, roll_out
from utils.config.trader import (
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    EvolutionConfig,
    LearningConfig,
    SyntheticConfig,
)
from utils.runs.state_tree import flatten, unflatten


@pytest.fixture(scope="module")
def market() -> Market:
    return learnable_market(1)


def state_of(trainer: ERLTrainer) -> tuple[dict[str, Tensor], Any]:
    """All that a checkpoint holds, without the times and without rows of the replay that are not filled."""
    state = copy.deepcopy(trainer.state_dict())
    rows, size = state["replay"]["rows"], state["replay"]["size"]
    state["replay"]["rows"] = {name: value[:size] for name, value in rows.items()}
    del state["progress"]["seconds"]
    state["random"]["global"] = None  # other tests may draw
    return flatten(state)


def assert_equal(one: ERLTrainer, other: ERLTrainer) -> None:
    (tensors, rest), (expected, expected_rest) = state_of(one), state_of(other)
    assert tensors.keys() == expected.keys() and json.dumps(rest) == json.dumps(expected_rest)
    for name, value in expected.items():
        assert value.dtype == tensors[name].dtype, name
        torch.testing.assert_close(tensors[name], value, rtol=0, atol=0, equal_nan=True, msg=name)


def plain(record: dict[str, Any]) -> str:
    """A record without what may differ between equal runs."""
    return json.dumps({name: value for name, value in record.items() if name not in ("seconds", "memory")})


@pytest.mark.parametrize("finished", [0, 2])
def test_a_resumed_run_continues_bit_for_bit(market: Market, finished: int) -> None:
    """From what a checkpoint keeps, into a trainer that has lived through something else."""
    whole = tiny_trainer(market)
    records = [plain(record) for record in whole.run(3)]
    first = tiny_trainer(market)
    assert [plain(record) for record in first.run(finished)] == records[:finished]
    tensors, rest = flatten(first.state_dict())
    saved = unflatten({name: value.clone() for name, value in tensors.items()}, json.loads(json.dumps(rest)))
    second = tiny_trainer(market, seed=99)
    second.run_generation()
    second.load_state_dict(saved)
    assert_equal(second, first)
    assert [plain(record) for record in second.run(3)] == records[finished:]
    assert_equal(second, whole)


def numbers(record: Any) -> Iterator[float]:
    if isinstance(record, dict):
        for value in record.values():
            yield from numbers(value)
    elif record is not None:
        yield float(record)


@pytest.mark.parametrize("orders", [1, 3])
def test_a_record_holds_finite_numbers(market: Market, orders: int) -> None:
    rules = replace(TINY_RULES, max_new_positions_per_day=orders)
    trainer = tiny_trainer(market, rules=rules)
    for generation, record in enumerate(trainer.run(2), start=1):
        assert record["generation"] == generation == trainer.generation
        assert all(math.isfinite(number) for number in numbers(record))
        assert json.loads(json.dumps(record)) == record
        assert record["validation"] == trainer.validate_best_agent() and len(record["validation"]) == 2
        assert record["trading"]["trades"] > 0 and record["replay"]["size"] == trainer.replay.size
        assert set(PHASES) - {"checkpoint"} <= record["seconds"].keys()
        assert 1 <= record["learning"]["founders"] <= len(trainer.population)
    assert [*trainer.run(2)] == [], "the run has ended"


def unlike(**changes: Any) -> Any:
    return pytest.param(changes, id=", ".join(changes))


@pytest.mark.parametrize(
    "changes",
    [
        unlike(max_holding_days=1, settlement_days=0, trading_days=2),
        unlike(max_new_positions_per_day=9, stake_percent=10.0),
        unlike(stake_percent=50.0, max_days_without_bar=1, delisting_loss=100.0),
        unlike(inaction_penalty=0.3, loss_multiplier=2.0, fill="same_close"),
        unlike(trading_days=1),
        unlike(stake_percent=100.0),
    ],
)
def test_agents_learn_and_trade_under_unusual_rules(market: Market, changes: dict[str, Any]) -> None:
    trainer = tiny_trainer(market, rules=replace(TINY_RULES, **changes))
    for record in trainer.run(2):
        assert all(math.isfinite(number) for number in numbers(record)) and record["trading"]["trades"] > 0


def test_generations_keep_what_they_promise(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elites' genes stay, the champion is the mean of the last elites, descent goes back to the founders."""
    monkeypatch.setattr("models.evidence.SIGNIFICANCE_LEVEL", 1.0)
    trainer = tiny_trainer(market, evolution=EvolutionConfig(population_size=8))
    population, count = trainer.population, elite_count(trainer.population.evolution)
    for _ in range(3):
        before, founders = population.genes.clone(), list(population.founders)
        trainer.run_generation()
        elites = population.elites
        assert population.genes.shape == (8, len(GENES)) and len(elites) == count == len(set(elites))
        assert torch.equal(population.genes[elites], before[elites])
        assert [population.founders[row] for row in elites] == [founders[row] for row in elites]
        assert set(population.founders) <= set(founders)
        weights = trainer.days.fit(population.genes).weights[elites]
        torch.testing.assert_close(trainer.champion.traders.weights[0], weights.mean(0))
        assert trainer.champion.cash_value is population.cash_value and trainer.champion.rules == TINY_RULES
        best, first = trainer.best_agent, population[elites[0]]
        assert best.networks is not None and first.networks is not None and best.evidence == trainer.champion.evidence
        assert torch.equal(best.traders.weights, first.traders.weights)
        for name, part in first.networks.tensors.items():
            own = best.networks.tensors[name]
            assert torch.equal(own, part) and own.data_ptr() != part.data_ptr(), name


def test_only_training_days_are_evaluated_on(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = tiny_trainer(market)
    played: list[tuple[Any, list[int], Any]] = []

    def spying(*args: Any, **given: Any) -> Rollout:
        played.append((given.get("label", "evaluate"), args[4].tolist(), given.get("exploration_threshold")))
        return roll_out(*args, **given)

    for module in (erl_trainer, rollout):
        monkeypatch.setattr(module, "roll_out", spying)
    list(trainer.run(2))
    steps, splits = TINY_RULES.episode_steps, market.splits
    for label, starts, exploration_threshold in played:
        span: Span = splits.validation if label == "validate" else splits.train
        assert all(span.first <= start and start + steps <= span.last for start in starts)
        if label == "evaluate":
            assert len(starts) == TINY_EVALUATION.fitness_windows + TINY_EVALUATION.exploration_windows
            assert exploration_threshold.shape == (4, TINY_EVALUATION.exploration_windows) and bool(
                (exploration_threshold >= 0).all()
            )
        else:
            assert exploration_threshold is None and len(starts) == len(set(starts))
    # With their networks and as closed forms, of whom each is played on the same windows.
    assert [label for label, *_ in played] == ["evaluate", "evaluate", "validate", "validate"] * 2
    assert played[0][1] == played[1][1] != played[4][1] == played[5][1], "windows are drawn anew"
    assert played[2][1] == played[3][1] == played[6][1] == played[7][1]


def test_no_exploration_and_no_waiting_can_be_asked_for(market: Market) -> None:
    trainer = tiny_trainer(
        market,
        learning=LearningConfig(gamma=0.0),
        evaluation=replace(TINY_EVALUATION, exploration_windows=0),
    )
    list(trainer.run(2))
    assert not trainer.population.cash_value.weights.any()


def test_it_may_stop_between_any_two_steps(market: Market) -> None:
    """A safe point in every phase; a generation that was broken off is repeated from the state before it."""
    calls = [0]

    class Stop(Exception):
        pass

    def count() -> None:
        calls[0] += 1

    trainer = tiny_trainer(market, safe_point=count)
    trainer.run_generation()
    assert calls[0] >= 2 * TINY_RULES.episode_steps + 2
    saved = copy.deepcopy(trainer.state_dict())
    whole = plain(trainer.run_generation())
    for stop_at in (1, calls[0] // 2, calls[0] // 2 - 1):
        left = [stop_at]

        def stop(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Stop

        broken = tiny_trainer(market, safe_point=stop)
        broken.load_state_dict(saved)
        with pytest.raises(Stop):
            broken.run_generation()
        broken.load_state_dict(saved)
        assert plain(broken.run_generation()) == whole


def test_prices_after_training_change_no_agent(market: Market) -> None:
    """Validation does see them, and chooses nothing."""
    data = market.data_array.copy()
    later = data[market.splits.train.last + 1 :, :, :4]
    later *= torch.linspace(1, 3, len(later)).numpy()[:, None, None]
    one, two = (tiny_trainer(prices) for prices in (market, replace(market, data_array=data)))
    before, after = ([record["validation"] for record in trainer.run(2)] for trainer in (one, two))
    assert before != after
    assert_equal(one, two)


def planted() -> tuple[Market, EnvironmentConfig]:
    """Drifts that last for days, and cash for four of the largest orders."""
    rules = EnvironmentConfig(trading_days=40, settlement_days=10, max_holding_days=10, stake_percent=2.5)
    config = SyntheticConfig(kind="momentum", days=1500, stocks=12)
    return built_in_market(config, DataConfig(context_window_days=64), rules)[0], rules


def test_the_value_of_waiting_foretells_what_is_earned() -> None:
    """On the first day of an episode it is about the profit of the whole of it; and who heeds it earns more."""
    market, rules = planted()
    trainer = tiny_trainer(
        market,
        rules=rules,
        evolution=EvolutionConfig(population_size=8),
        learning=LearningConfig(agent="closed-form", replay_capacity=20_000),
        evaluation=EvaluationConfig(fitness_windows=24, exploration_windows=8, validation_windows=4),
    )
    records = [record["learning"] for record in trainer.run(5)]
    assert records[0]["initial_value"] == 0.0 and records[-1]["explained"] > 0.05
    value, profit = (
        sum(record[name] for record in records[2:]) / 3 for name in ("initial_value", "elite_profit_percent")
    )
    assert value == pytest.approx(profit, rel=0.35) and profit > 3.0
    population = trainer.population
    traders = replace(population.traders, value_weight=torch.ones(len(population), dtype=torch.float64))
    forecasts, _ = trainer.days.forecasts(population.ridge, target_percents(population.genes))
    nothing = replace(population.cash_value, weights=torch.zeros_like(population.cash_value.weights))
    starts = torch.arange(market.splits.train.first, market.splits.train.last - rules.episode_steps, 20)
    patient, hasty = (
        float(roll_out(trainer.eval_env, traders, forecasts, cash_value, starts).profit_percent.mean())
        for cash_value in (population.cash_value, nothing)
    )
    assert patient > 1.05 * hasty


def test_what_training_days_take_is_free_once_training_has_ended() -> None:
    trainer = tiny_trainer()
    (_,) = trainer.run(1)
    held = [weakref.ref(trainer.days.samples.x.own), weakref.ref(trainer.days.relative.results)]
    results = trainer.end_training()
    gc.collect()
    assert results.shape[1] == len(trainer.market.dates)
    assert [own() for own in held] == [None, None]
