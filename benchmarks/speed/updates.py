"""Rows of `benchmarks.speed`: updates of a whole population against one agent's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from benchmarks.speed.harness import Row, seconds_of
from data.market import Market, MarketTensors
from data.splits import random_windows
from environment.portfolio import Portfolio
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.hindsight import order_results, uses_hindsight
from training.learner import Learner
from training.rollout import Recorder, random_orders
from utils.config.trader import Config, Representation

GROUP = "population update"
POPULATIONS = (1, 4, 16, 64)
_LANES = 64


def random_transitions(config: Config, market: Market, env: Portfolio, device: torch.device) -> dict[str, Tensor]:
    """Play whole training episodes in which every lane orders at random; return the same transitions every time."""
    generator, on_cpu = torch.Generator(device).manual_seed(0), torch.Generator().manual_seed(0)
    steps, stocks = config.env.episode_steps, len(market.investable_columns)
    recorder = Recorder()
    env.reset(random_windows(market.splits.train, steps, _LANES, on_cpu).to(device))
    for _ in range(steps):
        recorder.record(env.positions(), env.account())
        env.step(random_orders(_LANES, stocks, generator, device))
    recorder.record(env.positions(), env.account())
    return recorder.transitions(env, config.learning.credit)


def random_replay(config: Config, market: Market, env: Portfolio, device: torch.device) -> ReplayBuffer:
    """Make a full replay buffer of random episodes."""
    train = market.splits.train
    replay = ReplayBuffer(
        config.replay.capacity,
        first_day=train.first,
        last_day=train.last - 1,
        slots=env.slots,
        orders_per_day=env.orders_per_day,
        device=device,
    )
    fill_replay(replay, random_transitions(config, market, env, device))
    return replay


def fill_replay(replay: ReplayBuffer, transitions: dict[str, Tensor]) -> None:
    """Add the same transitions until no more fit."""
    while replay.size < replay.capacity:
        replay.add(transitions)


def learner_maker(config: Config, market: Market, device: torch.device) -> Callable[[int], Learner]:
    """Return a maker of learners of populations of any size as a run has them, all on the same full replay."""
    env = Portfolio.on(market, config.env, device)
    replay, tensors = random_replay(config, market, env, device), MarketTensors.of(market, device)
    train, context = market.splits.train, config.split.context_window_days
    hindsight = None
    if uses_hindsight(config.network, config.learning):
        hindsight = order_results(env.bars, config.env, train.first, train.last)

    def learner(size: int) -> Learner:
        torch.manual_seed(config.seed)
        population = Population(size, config.network, config.learning, context, device)
        return Learner(population, replay, tensors, config.learning, env.limits, hindsight)

    return learner


def update_seconds(
    config: Config, market: Market, device: torch.device, populations: Sequence[int], *, repeats: int
) -> dict[int, float]:
    """Time one update of each population, all on the same full replay: seconds."""
    learner_of = learner_maker(config, market, device)

    def seconds(size: int) -> float:
        learner, generator = learner_of(size), torch.Generator(device).manual_seed(0)
        return seconds_of(lambda: learner.update(generator), device, repeats=repeats)

    return {size: seconds(size) for size in populations}


def update_rows(
    name: str,
    config: Config,
    market: Market,
    device: torch.device,
    *,
    populations: Sequence[int] = POPULATIONS,
    repeats: int = 3,
) -> list[Row]:
    """Return a row for each representation and population: seconds, and speed-up over updates one by one."""
    rows = []
    for representation in get_args(Representation):
        chosen = replace(config, network=replace(config.network, representation=representation))
        taken = update_seconds(chosen, market, device, populations, repeats=repeats)
        for size, seconds in taken.items():
            label = f"{name}, {representation}: population {size}"
            speed_up = size / populations[0] * taken[populations[0]] / seconds
            rows.append(Row(GROUP, label, seconds, "s", speed_up, f"{size} x one agent's update / ours"))
    return rows
