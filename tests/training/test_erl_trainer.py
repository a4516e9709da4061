"""Whole generations: they continue exactly after a checkpoint, and learn; how far the champion is believed."""

import copy
import gc
import json
import signal
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.trainers import generations, run_generation
from data.market import Market
from environment.portfolio import play
from models.ddpg import LOSSES
from models.evidence import SIGNIFICANCE_LEVEL, Evidence
from models.evolution import elite_count
from models.policy import Decision, Forecasts, decide
from tests.small_market import TINY_RULES
from tests.tiny import TINY_EVALUATION, TINY_LEARNING, acted, learnable_market, seeded, shake, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.generation_log import PHASES
from training.rollout import Windows, follow
from utils.config.trader import EvolutionConfig
from utils.errors import ConfigError, StopRequested
from utils.runs.state_tree import flatten, misfit, unflatten


@pytest.fixture(scope="module")
def market() -> Market:
    return learnable_market(1)


TOO_MUCH: dict[str, Any] = {
    "--evaluation.fitness-windows": {"evaluation": replace(TINY_EVALUATION, fitness_windows=10**9)},
    "--evaluation.exploration-windows": {"evaluation": replace(TINY_EVALUATION, exploration_windows=10**9)},
    "--evaluation.random-pickers": {"evaluation": replace(TINY_EVALUATION, random_pickers=10**9)},
    "--population-size": {"evolution": EvolutionConfig(population_size=10**9)},
    "--evolution.tournament-size": {"evolution": EvolutionConfig(tournament_size=10**9)},
    "--learning.hidden": {"learning": replace(TINY_LEARNING, hidden=10**8)},
    "--learning.batch-size": {"learning": replace(TINY_LEARNING, batch_size=10**9)},
    "--learning.gradient-steps": {"learning": replace(TINY_LEARNING, gradient_steps=10**9)},
    "--learning.gradient-accumulation": {"learning": replace(TINY_LEARNING, gradient_accumulation=10**9)},
    "--learning.replay-capacity": {"learning": replace(TINY_LEARNING, replay_capacity=10**9)},
}
"""By the setting that is to be reduced."""


@pytest.mark.parametrize("flag", TOO_MUCH)
def test_what_does_not_fit_is_refused_before_it_is_allocated(
    market: Market, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    monkeypatch.setattr("utils.memory_guard.free_memory_mb", lambda: 10_000.0)
    with pytest.raises(ConfigError, match=rf"MiB of free memory, got .* = [\d,]+ MiB; reduce {flag}$"):
        tiny_trainer(market, **TOO_MUCH[flag])


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


def test_a_resumed_run_continues_bit_for_bit(market: Market) -> None:
    """From what a checkpoint keeps, into a trainer that has lived through something else."""
    whole, first, second = tiny_trainer(market), tiny_trainer(market), tiny_trainer(market, seed=99)
    records = [plain(record) for record in generations(whole, 3)]
    run_generation(second)
    for finished in (0, 2):
        assert [plain(record) for record in generations(first, finished)] == records[:finished]
        tensors, rest = flatten(first.state_dict())
        saved = unflatten({name: value.clone() for name, value in tensors.items()}, json.loads(json.dumps(rest)))
        second.load_state_dict(saved)
        assert_equal(second, first)
        assert [plain(record) for record in generations(second, 3)] == records[finished:]
        assert_equal(second, whole)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"settlement_days": 0, "trading_days": 2, "drawdown_lock": 1.0},
        {"max_days_without_bar": 1, "delisting_loss": 100.0, "trading_days": 1},
        {"fill": "same_close", "cost_bps": 200.0},
    ],
    ids=", ".join,
)
def test_agents_trade_under_any_rules_and_a_record_holds_finite_numbers(
    market: Market, changes: dict[str, Any]
) -> None:
    trainer = tiny_trainer(market, rules=replace(TINY_RULES, **changes))
    for generation, record in enumerate(generations(trainer, 2), start=1):
        assert record["generation"] == generation == trainer.generation
        assert json.loads(json.dumps(record, allow_nan=False)) == record
        assert record["validation"] == trainer.validate_best_agent()
        assert record["validation"].keys() == {"champion", "agents", "benchmark", "added_error"}
        assert record["trading"]["positions_opened"] > 0 and record["replay"]["size"] == trainer.replay_buffer.size
        assert PHASES.keys() <= record["seconds"].keys()
        assert 1 <= record["learning"]["founders"] <= len(trainer.population)
    assert [*generations(trainer, 2)] == [], "the run has ended"


def test_generations_keep_what_they_promise(market: Market) -> None:
    trainer = tiny_trainer(market, evolution=EvolutionConfig(population_size=8))
    population, count = trainer.population, elite_count(trainer.population.evolution)
    for _ in range(3):
        before = population.genes.clone()
        run_generation(trainer)
        elites, champion = population.elites, trainer.champion
        assert len(elites) == count and torch.equal(population.genes[elites], before[elites])
        torch.testing.assert_close(champion.genes, population.values[elites], rtol=1e-12, atol=0.0)
        assert champion.rules == TINY_RULES
        together, alone = champion.forecasts(market), [population[row].forecasts(market) for row in elites]
        mean = torch.stack([own.score for own in alone]).mean(0)
        torch.testing.assert_close(together.score, mean, rtol=1e-4, atol=1e-5)
        best = trainer.fittest_agent.networks.tensors
        for name, part in population[elites[0]].networks.tensors.items():
            assert torch.equal(best[name], part) and best[name].data_ptr() != part.data_ptr(), name


def test_the_best_agent_of_all_generations_stays(market: Market) -> None:
    """As it was when it was evaluated, however its row was bred and trained since."""
    trainer, seen = tiny_trainer(market), list[tuple[Tensor, Tensor]]()
    evaluate = trainer.rollouts.evaluate

    def spying(population: Any, *given: Any, **how: Any) -> Any:
        played, transitions = evaluate(population, *given, **how)
        seen.append((played.fitness, population.networks.tensors["critic"].detach().clone()))
        return played, transitions

    trainer.rollouts.evaluate = spying  # type: ignore[method-assign]
    list(generations(trainer, 3))
    fitness, critics = max(seen, key=lambda one: float(one[0].max()))
    assert list(trainer.fitness_history) == [float(own.max()) for own, _ in seen]
    assert trainer.best_fitness == float(fitness.max())
    own, again = (trainer.best_agent.networks.tensors["critic"] for _ in range(2))
    assert torch.equal(own[0], critics[int(fitness.argmax())]) and own.data_ptr() != again.data_ptr()
    assert len(trainer.generation_times) == 3 and min(trainer.generation_times) > 0


def test_an_episode_of_training_explores_and_is_remembered(market: Market) -> None:
    trainer = tiny_trainer(market, learning=replace(TINY_LEARNING, exploration_noise=5.0))
    first = market.splits.train.first
    settlement = TINY_RULES.settlement_days
    agent, lanes = trainer.population[0], first + torch.arange(3)
    window = {"start_idx": first, "end_idx": first + settlement + 5}
    plain, info = trainer.run_episode(agent, trainer.eval_env, **window, training=False)
    assert trainer.replay_buffer.size == 0 and trainer.eval_env.account.trading_steps == 5
    reward, explored = trainer.run_episode(agent, trainer.eval_env, **window)
    assert (reward, explored) != (plain, info) and reward == explored["excess_percent"]
    assert trainer.replay_buffer.data["day"][: trainer.replay_buffer.size].tolist() == list(
        range(first, window["end_idx"])
    )
    total = float(trainer.replay_buffer.data["reward"][: trainer.replay_buffer.size].sum())
    assert total == pytest.approx(explored["profit_percent"], rel=1e-4, abs=1e-4) and explored["trades"] > 0
    rewards, _ = trainer.run_episode(agent, trainer.eval_env, lanes, lanes + settlement + 5)
    assert rewards.shape == (3,) and trainer.replay_buffer.size == 4 * (settlement + 5)
    with pytest.raises(ValueError, match="expected training days"):
        trainer.run_episode(agent, trainer.eval_env, market.splits.train.last, market.splits.train.last + 20)


def test_networks_learn_from_days_outside_of_their_fold_only(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from it by the longest trade; also what follows, and the replayed accounts are those of the same days."""
    trainer, seen = tiny_trainer(market), list[tuple[Tensor, Any]]()
    transitions, samples = trainer.training_days.transitions, trainer.training_days.samples
    batch = type(transitions).batch

    def spying(self: Any, rows: Tensor, replayed: Any) -> Any:
        seen.append((rows, replayed))
        return batch(self, rows, replayed)

    monkeypatch.setattr(type(transitions), "batch", spying)
    list(generations(trainer, 3))
    assert len(seen) == 3 * TINY_LEARNING.gradient_steps
    apart, days = samples.longest, samples.x.days
    day_of = torch.arange(days.start, days.stop).repeat_interleave(samples.x.counts)
    for rows, replayed in seen:
        day, following = day_of[rows], day_of[transitions.following[rows].long()]
        assert torch.equal(day, replayed.day[..., None].expand(day.shape).long())
        for fold, (_, held) in enumerate(samples.folds):
            assert bool(((day[fold] < held.start - apart) | (day[fold] >= held.stop + apart)).all())
            follows = following[fold][~transitions.terminated[rows[fold]]]
            assert bool(((follows < held.start) | (follows >= held.stop)).all())
            assert int(following[fold].max()) <= market.splits.train.last


def test_noise_is_in_deviations_of_what_a_session_brings(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = tiny_trainer(
        market,
        learning=replace(TINY_LEARNING, exploration_noise=0.3),
        evaluation=replace(TINY_EVALUATION, exploration_windows=500),
    )
    unit = trainer.training_days.transitions.reward_scale
    assert trainer.population.networks.scale.tolist() == pytest.approx([unit] * 4)
    reward = trainer.training_days.transitions.reward
    assert unit == pytest.approx(float(reward.std()), rel=1e-5) and 0.5 < unit < 20
    noise = trainer.draw_windows().noise
    assert noise.shape == (500, TINY_RULES.episode_steps, len(trainer.eval_env.tickers))
    assert float(noise.std()) == pytest.approx(0.3, rel=0.02)
    plain, scores = trainer.training_days.forecasts(trainer.population.networks.target, [0]).score, list[Tensor]()

    def listening(score: Tensor, *asked: Any, **how: Any) -> Decision:
        scores.append(score.clone())
        return decide(score, *asked, **how)

    monkeypatch.setattr("training.rollout.decide", listening)
    windows = Windows(torch.full((500,), market.splits.train.first), noise)
    trainer.rollouts.evaluate(trainer.population, windows, 500, env=trainer.eval_env)
    added = scores[0].view(4, 500, -1)[0] - plain[0, market.splits.train.first]
    assert float(added[added.isfinite()].std()) == pytest.approx(0.3 * unit, rel=0.05)


def test_no_exploration_can_be_asked_for(market: Market) -> None:
    """Replayed accounts are then those of fitness windows alone."""
    trainer = tiny_trainer(market, evaluation=replace(TINY_EVALUATION, exploration_windows=0))
    one, other = (trainer.draw_windows().starts.tolist() for _ in range(2))
    assert one != other, "windows are drawn anew"
    train, steps = market.splits.train, TINY_RULES.episode_steps
    assert all(train.first <= start and start + steps <= train.last for start in (*one, *other))
    json.dumps([*generations(trainer, 2)], allow_nan=False)
    assert trainer.replay_buffer.size == 2 * TINY_EVALUATION.fitness_windows * TINY_RULES.episode_steps


def test_without_gradients_networks_stay_as_they_are(market: Market) -> None:
    """New ones tell nothing; genes evolve in any case. Until their first update those that learn are no others."""
    learning = tiny_trainer(market)
    idle = tiny_trainer(market, learning=replace(TINY_LEARNING, gradient_steps=0))
    for trainer in (learning, idle):
        assert float(trainer.champion.forecasts(market).score.nan_to_num(neginf=0.0).abs().max()) == 0.0
        shake(trainer.population.networks, 0.3, seeded(1))
        trainer.champion = trainer.build_champion()
    records = [(ours, theirs) for ours, theirs in zip(generations(idle, 3), generations(learning, 3), strict=True)]
    assert not any(name.endswith("_loss") for ours, _ in records for name in ours["learning"])
    assert all(f"{name}_loss" in theirs["learning"] for _, theirs in records for name in LOSSES)
    assert idle.population.updates == 0 and learning.population.updates == 3 * TINY_LEARNING.gradient_steps
    assert all(records[0][0][name] == records[0][1][name] for name in ("fitness", "trading"))
    assert records[0][1]["fitness"] != records[2][1]["fitness"]
    assert not idle.population.networks.optimizers["critic"].steps.any()


def test_it_may_stop_between_any_two_steps(market: Market) -> None:
    """A safe point in every phase; a generation that was broken off is repeated from the state before it."""
    left = [10**9]

    def count_down() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise StopRequested(signal.SIGTERM, 0.0)

    trainer = tiny_trainer(market, safe_point=count_down)
    run_generation(trainer)
    steps = 10**9 - left[0]
    assert steps == TINY_RULES.episode_steps + TINY_LEARNING.gradient_steps + 2
    saved = copy.deepcopy(trainer.state_dict())
    whole = plain(run_generation(trainer))
    for stop_at in (1, steps // 2, steps // 2 - 1):
        left[0] = stop_at
        trainer.load_state_dict(saved)
        with pytest.raises(StopRequested):
            run_generation(trainer)
        trainer.load_state_dict(saved)
        assert plain(run_generation(trainer)) == whole


def test_what_training_days_take_is_free_once_training_has_ended(days_anew: None) -> None:
    trainer = tiny_trainer()
    (_,) = generations(trainer, 1)
    days = trainer.training_days
    held = [weakref.ref(part) for part in (days.samples.x.separate, days.transitions.reward)]
    del days
    start = trainer.val_start_idx
    window = {"start_idx": start, "end_idx": start + 9, "training": False}
    before, _ = trainer.run_episode(trainer.champion, trainer.val_env, **window)
    trainer.end_training()
    gc.collect()
    assert [own() for own in held] == [None, None]
    assert trainer.run_episode(trainer.champion, trainer.val_env, **window)[0] == pytest.approx(before)


@pytest.mark.parametrize("evidence", ["weigh", "report", "require"])
def test_the_champion_is_believed_as_far_as_its_evidence_says(
    market: Market, evidence: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = tiny_trainer(market, evaluation=replace(TINY_EVALUATION, evidence=evidence))
    shake(trainer.population.networks, 0.3, seeded(1))
    in_full = set[float]()
    for p_value, weighed, required in ((1e-9, 1.0, 1.0), (0.05, 0.42, 0.0), (0.9, 0.0, 0.0)):
        found = Evidence(3.0, 1.0, p_value, weighed)
        monkeypatch.setattr(Evidence, "of", lambda *_, found=found: found)
        champion = trainer.build_champion()
        assert champion.shrink == {"weigh": weighed, "report": 1.0, "require": required}[evidence]
        found = replace(found, shrink=champion.shrink, timing=champion.timing)
        assert champion.evidence == found
        trainer.champion = champion
        assert (trainer.fittest_agent.shrink, trainer.fittest_agent.evidence) == (champion.shrink, found)
        told = trainer.validate_best_agent()
        assert (told["champion"] == told["benchmark"]) == (champion.shrink == 0.0)
        assert (told["champion"] == told["agents"]) == (champion.shrink == 1.0) and told["agents"] != told["benchmark"]
        in_full.add(told["agents"])
    assert len(in_full) == 1


def test_evidence_is_what_orders_earn_on_the_days_of_other_folds(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In windows one after the other to the last training day; scores in the mean of the elites, differences and levels
    each followed in full, alone."""
    trainer, seen = tiny_trainer(market), list[tuple[Any, ...]]()
    shake(trainer.population.networks, 0.3, seeded(2))
    list(generations(trainer, 2))
    weigh = Evidence.of
    monkeypatch.setattr(Evidence, "of", lambda *given: seen.append(given) or weigh(*given))
    champion, population = trainer.build_champion(), trainer.population
    ((selected, trials, lead, timed, costs),) = seen
    assert champion.evidence == replace(weigh(selected, trials, lead, timed, costs), shrink=1.0, timing=1.0)
    assert trials == population.examined and lead >= 0.0
    alone = [trainer.training_days.forecasts(population.networks.target, [row]) for row in population.elites]
    means = (torch.cat([getattr(one, part) for one in alone]).mean(0, keepdim=True) for part in ("score", "level"))
    forecasts, steps, train = Forecasts(*means, alone[0].risk), TINY_RULES.episode_steps, market.splits.train
    for daily, shrink, cost in ((selected, 1.0, costs[0]), (timed, 0.0, costs[1])):
        followed, expected, paid = replace(champion, shrink=shrink, timing=1.0 - shrink), list[Tensor](), list[float]()
        for start in range(train.last - steps * ((train.days - 1) // steps), train.last, steps):
            portfolio = trainer.eval_env.portfolio.under()
            play(portfolio, follow(followed, forecasts), torch.tensor([start]), steps=steps)
            own, other = (one.equity_curve[:, 0] for one in (portfolio.account, portfolio.benchmark))
            expected.append(100 * (own[1:] / own[:-1] - other[1:] / other[:-1]))
            more = portfolio.account.summary().costs - portfolio.benchmark.summary().costs
            paid.append(100 * float(more / own[0]) / steps)
        torch.testing.assert_close(torch.from_numpy(daily), torch.cat(expected), atol=1e-4, rtol=0)
        assert float(np.abs(daily).max()) > 0.1
        assert cost == pytest.approx(np.mean(paid), rel=1e-6) and cost > 0


def test_agents_that_found_noise_are_no_evidence() -> None:
    """Out of fold, on markets without structure: small p-values are about as rare as they say."""
    found = list[Evidence]()
    for seed in range(6):
        trainer = tiny_trainer(learnable_market(seed), evaluation=replace(TINY_EVALUATION, evidence="weigh"))
        run_generation(trainer)
        found.append(trainer.champion.evidence)
    assert min(one.p_value for one in found) > SIGNIFICANCE_LEVEL and sum(one.p_value < 0.1 for one in found) <= 1
    assert sum(one.shrink for one in found) < 1.0


@pytest.mark.parametrize("first", ["training", "validation"])
def test_an_episode_of_any_window_is_what_the_agent_does_by_itself(market: Market, first: str) -> None:
    """On one window, shorter than the rules say, observation by observation."""
    trainer = tiny_trainer(market)
    list(generations(trainer, 2))
    agent, size = trainer.champion, trainer.replay_buffer.size
    start = (market.splits.train if first == "training" else market.splits.validation).first
    window = {"start_idx": start, "end_idx": start + 9, "trading_end_idx": start + 3}
    reward, summary = trainer.run_episode(agent, trainer.eval_env, start, start + 9, training=False)
    env = trainer.eval_env.twin()
    *_, (_, _, info) = acted(agent, env, market, **window)
    alone = env.get_episode_summary()
    assert info["day_index"] == start + 9 and alone["trades"] > 0
    assert summary == pytest.approx(alone, rel=1e-4, abs=1e-3) and reward == summary["excess_percent"]
    assert trainer.replay_buffer.size == size


def test_a_state_of_version_0_25_is_taken_over(market: Market) -> None:
    """It counts the steps of all folds together, and has neither spreads nor genes before evidence."""
    trainer, other = tiny_trainer(market), tiny_trainer(market)
    (_,) = generations(trainer, 1)
    state = trainer.state_dict()
    for agent in (state["population"], state["champion"], state["best_agent"], state["best_ever"]):
        agent.get("members", {}).pop("own_genes", None)
        networks = dict(agent["networks"])
        del networks["spread"]
        for owner in LOSSES:
            networks[f"{owner}_counts"] = networks.pop(f"{owner}_steps")[:, 0].clone()
        agent["networks"] = networks
    assert not misfit(state, other.state_dict())
    other.load_state_dict(state)
    steps = other.population.networks.optimizers["actor"].steps
    assert torch.equal(steps, trainer.population.networks.optimizers["actor"].steps) and bool(steps.all())
    assert other.champion.digest == trainer.champion.digest
    (_,) = generations(other, 2)


def test_no_update_reads_cash_and_rewards_of_replayed_accounts(market: Market) -> None:
    """With noise in their place all networks are the same to the bit; with noise in prices of capital they are not."""
    named = {"nothing": (), "told": ("cash", "reward", "next_cash"), "read": ("price", "next_price")}
    learned = dict[str, Tensor]()
    for name, fields in named.items():
        trainer, drawn = tiny_trainer(market), seeded(7)
        shake(trainer.population.networks, 0.3, seeded(1))
        for _ in range(2):
            trainer.evaluate_population()
            for field in fields:
                rows = trainer.replay_buffer.data[field]
                rows += torch.randn(rows.shape, generator=drawn)
            trainer.train_population()
        learned[name] = torch.cat([part.detach().flatten() for part in trainer.population.networks.tensors.values()])
    assert torch.equal(learned["told"], learned["nothing"]) and not torch.equal(learned["read"], learned["nothing"])
