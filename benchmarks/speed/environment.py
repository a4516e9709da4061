"""Rows of `benchmarks.speed`: how many account-days a second accounts and Gymnasium environments live through."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks.speed.harness import Row, full_scale, random_market, synchronize
from data.splits import random_windows
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from environment.vector_env import VectorTradingEnvironment
from utils.config.trader import Config
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

GROUP = "environment"
STOCKS, LANES = (30, 108, 669), (1, 16, 256, 4096)
_DAYS = 1400
_ACTION_SETS = 4
GYMNASIUM_STOCKS = 40
HEADLINE_STOCKS, HEADLINE_LANES, HEADLINE_THREADS = 108, 256, 2


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use `count` CPU threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def random_actions(lanes: int, stocks: int, device: torch.device) -> torch.Tensor:
    """Draw (sets, lanes, stocks, 2) uniform actions: every lane orders on every day that its cash allows."""
    draw = torch.rand(_ACTION_SETS, lanes, stocks, 2, device=device)
    draw[..., 0] *= MAX_COEFFICIENT
    draw[..., 1] = MIN_TARGET_PERCENT + draw[..., 1] * (MAX_TARGET_PERCENT - MIN_TARGET_PERCENT)
    return draw


def lane_steps_per_second(portfolio: Portfolio, lanes: int, first_days: torch.Tensor, seconds: float) -> float:
    """Play whole episodes, resets included, for `seconds`; return the best rate, for other work only slows down.

    The actions are drawn beforehand.
    """
    rules, device = portfolio.rules, portfolio.device
    actions = random_actions(lanes, portfolio.bars.stocks, device)
    best, ends = 0.0, time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < ends:
        synchronize(device)
        started = time.perf_counter()
        portfolio.reset(first_days, steps=rules.episode_steps, trading_steps=rules.trading_days)
        for step in range(rules.episode_steps):
            portfolio.step(actions[step % _ACTION_SETS])
        synchronize(device)
        best = max(best, lanes * rules.episode_steps / (time.perf_counter() - started))
    return best


def portfolio_of(config: Config, stocks: int, device: torch.device) -> tuple[Portfolio, torch.Tensor]:
    """Make a portfolio on a random market, and 4,096 random first days."""
    market = random_market(config, _DAYS, stocks, stocks)
    span, generator = market.splits.train, torch.Generator().manual_seed(0)
    return Portfolio.on(market, config.env, device), random_windows(span, config.env.episode_steps, 4096, generator).to(
        device
    )


def environment_rows(device: torch.device, lanes: Sequence[int] = LANES, seconds: float = 0.5) -> list[Row]:
    """Return a row for each number of stocks and lanes, and those of the headline and of the Gymnasium forms."""
    config, rows = full_scale(), list[Row]()
    for stocks in STOCKS:
        portfolio, first_days = portfolio_of(config, stocks, device)
        single = 0.0
        for count in lanes:
            speed = lane_steps_per_second(portfolio, count, first_days[:count], seconds)
            single = single or speed
            name = f"{stocks} stocks, {count} lanes"
            rows.append(Row(GROUP, name, speed, "lane-steps/s", speed / single, "against one lane"))
        if stocks == HEADLINE_STOCKS:
            rows += _headline_rows(headline_speeds(portfolio, first_days, seconds))
    return rows + gymnasium_rows(config, device, seconds)


def gymnasium_rows(config: Config, device: torch.device, seconds: float) -> list[Row]:
    """Return the rates of the Gymnasium forms, observations and infos included, on one CPU thread."""
    market = random_market(config, _DAYS, GYMNASIUM_STOCKS, GYMNASIUM_STOCKS)
    single = TradingEnvironment.on(market, config.env, device)
    vector = VectorTradingEnvironment(single, HEADLINE_LANES, market.splits.train)
    with threads(1):
        alone, together = (gymnasium_rate(env, config.env.episode_steps, 2 * seconds) for env in (single, vector))
    name, unit = f"{GYMNASIUM_STOCKS} stocks, Gymnasium, 1 CPU thread", "lane-steps/s"
    return [
        Row(GROUP, f"{name}, 1 lane", alone, unit, 1.0, "against one lane"),
        Row(GROUP, f"{name}, {HEADLINE_LANES} lanes", together, unit, together / alone, "against one lane"),
    ]


def gymnasium_rate(env: TradingEnvironment | VectorTradingEnvironment, steps: int, seconds: float) -> float:
    """Play whole episodes of one environment or of a vector, resets included; return the best rate."""
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(_ACTION_SETS)]
    lanes = env.num_envs if isinstance(env, VectorTradingEnvironment) else 1
    best, ends = 0.0, time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < ends:
        started = time.perf_counter()
        env.reset()
        for step in range(steps):
            env.step(actions[step % _ACTION_SETS])
        best = max(best, lanes * steps / (time.perf_counter() - started))
    return best


def headline_speeds(portfolio: Portfolio, first_days: torch.Tensor, seconds: float) -> dict[int, float]:
    """Measure lane-steps a second at the headline's size on one thread and on two."""
    speeds = {}
    for count in (1, HEADLINE_THREADS):
        with threads(count):
            chosen = first_days[:HEADLINE_LANES]
            speeds[count] = lane_steps_per_second(portfolio, HEADLINE_LANES, chosen, 2 * seconds)
    return speeds


def _headline_rows(by_threads: dict[int, float]) -> list[Row]:
    return [
        Row(
            GROUP,
            f"{HEADLINE_STOCKS} stocks, {HEADLINE_LANES} lanes, {count} CPU threads",
            speed,
            "lane-steps/s",
            speed / by_threads[1],
            "against one thread",
        )
        for count, speed in by_threads.items()
    ]
