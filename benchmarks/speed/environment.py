"""Rows of `benchmarks.speed`: how many account-days a second accounts and Gymnasium environments live through."""

import time
from collections.abc import Callable

import torch

from benchmarks.speed.harness import Row, full_scale, random_market, seconds_of, threads
from data.splits import random_windows
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from utils.config.trader import Config

LANES = (1, 16, 256, 4096)
_DAYS = 1400
_ACTION_SETS = 4
GYMNASIUM_STOCKS = 40
STOCKS, HEADLINE_LANES, HEADLINE_THREADS = 108, 256, 2


def best_rate(episode: Callable[[], object], lane_steps: int, seconds: float, device: torch.device) -> float:
    """Play whole episodes for `seconds`; return the best lane-steps a second, for other work only slows down."""
    best, ends = 0.0, time.perf_counter() + seconds
    while best == 0.0 or time.perf_counter() < ends:
        best = max(best, lane_steps / seconds_of(episode, device))
    return best


def account_rate(portfolio: Portfolio, first_days: torch.Tensor, seconds: float) -> float:
    """Return the rate of accounts beside their benchmark, a lane for each first day, with other weights every day."""
    rules, device, lanes = portfolio.rules, portfolio.device, len(first_days)
    weights = torch.rand(_ACTION_SETS, lanes, portfolio.quotes.stocks, dtype=torch.float64, device=device)
    weights /= weights.sum(2, keepdim=True)

    def episode() -> None:
        portfolio.begin(first_days, steps=rules.episode_steps, trading_steps=rules.trading_days)
        for step in range(rules.episode_steps):
            portfolio.trade(weights[step % _ACTION_SETS])

    return best_rate(episode, lanes * rules.episode_steps, seconds, device)


def gymnasium_rate(env: TradingEnvironment, steps: int, seconds: float) -> float:
    """Return the rate of an environment, observations and infos included."""
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(_ACTION_SETS)]

    def episode() -> None:
        env.reset()
        for step in range(steps):
            env.step(actions[step % _ACTION_SETS])

    return best_rate(episode, steps, seconds, torch.device("cpu"))


def portfolio_of(config: Config, stocks: int, device: torch.device) -> tuple[Portfolio, torch.Tensor]:
    """Make a portfolio on a random market, and random first days, one for each of the most lanes."""
    market = random_market(config, _DAYS, stocks, stocks)
    generator = torch.Generator().manual_seed(0)
    first_days = random_windows(market.splits.train, config.env.episode_steps, LANES[-1], generator)
    return Portfolio.on(market, config.env, device), first_days.to(device)


def environment_rows(device: torch.device, seconds: float = 0.5) -> list[Row]:
    """Return a row for each number of lanes, and those of the headline and of the Gymnasium form."""
    config, rates = full_scale(), dict[str, float]()
    portfolio, first_days = portfolio_of(config, STOCKS, device)
    for lanes in LANES:
        rates[f"{STOCKS} stocks, {lanes} lanes"] = account_rate(portfolio, first_days[:lanes], seconds)
    for count in (1, HEADLINE_THREADS):
        with threads(count):
            rate = account_rate(portfolio, first_days[:HEADLINE_LANES], 2 * seconds)
        rates[f"{STOCKS} stocks, {HEADLINE_LANES} lanes, {count} CPU threads"] = rate
    market = random_market(config, _DAYS, GYMNASIUM_STOCKS, GYMNASIUM_STOCKS)
    single = TradingEnvironment.on(market, config.env, device)
    with threads(1):
        rate = gymnasium_rate(single, config.env.episode_steps, 2 * seconds)
    rates[f"{GYMNASIUM_STOCKS} stocks, Gymnasium, 1 CPU thread"] = rate
    return [Row(name, rate, "lane-steps/s") for name, rate in rates.items()]
