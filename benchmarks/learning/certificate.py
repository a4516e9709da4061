"""The certificate of paper accounts, measured: `python -m benchmarks.learning.certificate`.

False alarms: careers of ten years, looked at every day, in which stocks are drawn at random; their returns have fat
tails, volatility that comes in clusters, and a common factor. Power: the planted rule's account on the market `mixed`.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray

from data.market import Market
from data.synthetic.built_in import built_in_market
from environment.portfolio import Portfolio
from environment.trading_env import trade_ledger
from training.evaluation.baselines import ScoreRule
from training.evaluation.play import EvaluationSetup, play_rules
from training.paper.certificate import BOUND, MEDIAN_SESSIONS, Stake, bounded_result, sessions_to_line
from utils.config.trader import Config

YEAR = 252


def null_careers(count: int, years: int, rng: np.random.Generator, *, stocks: int = 50, held: int = 10) -> float:
    """Return the share of careers without skill whose capital ever reaches the line."""
    alarms = 0
    for _ in range(count):
        days = YEAR * years
        volatility = np.exp(0.4 * _autoregression(rng.standard_normal(days), 0.97))
        noise = rng.standard_t(3, (days, stocks)) * volatility[:, None]
        factor = rng.standard_t(3, days) * volatility
        returns = noise + factor[:, None] * rng.uniform(0.5, 1.5, stocks)
        # Each position is held for twenty sessions; its stock is drawn when it is bought.
        drawn = np.repeat(rng.integers(0, stocks, (-(-days // 20), held)), 20, axis=0)[:days]
        result = np.take_along_axis(returns, drawn, axis=1).mean(axis=1) - returns.mean(axis=1)
        spread = returns.std(axis=1)
        window = np.lib.stride_tricks.sliding_window_view(spread, 63)
        known = np.concatenate((np.full(63, np.median(spread[:63])), np.median(window, axis=1)[:-1]))
        bounded = np.clip(result / (known / math.sqrt(held)) / BOUND, -1, 1)
        alarms += bool(np.isfinite(sessions_to_line(bounded)))
    return alarms / count


def _autoregression(shocks: NDArray[np.float64], persistence: float) -> NDArray[np.float64]:
    values, now = np.empty_like(shocks), 0.0
    for place, shock in enumerate(shocks):
        now = persistence * now + math.sqrt(1 - persistence**2) * shock
        values[place] = now
    return values


def median_sessions(ratio: float, careers: int, rng: np.random.Generator) -> float:
    """Return the median sessions to detection of normal results with an annual information ratio."""
    results = rng.standard_normal((careers, 10 * YEAR)) + ratio / math.sqrt(YEAR)
    return float(np.median(sessions_to_line(np.clip(results / BOUND, -1, 1))))


def planted_sessions(seeds: int, careers: int) -> list[float]:
    """Return sessions to detection of the planted rule's accounts on `mixed`, from days all over each market."""
    found = []
    for seed in range(100, 100 + seeds):
        config = Config()
        market, scores = built_in_market(config.synthetic, config.split, config.env, seed=seed)
        results = _planted_results(market, scores.rule, config)
        starts = np.linspace(0, len(results) - 2 * YEAR, careers).astype(int)
        found += [float(sessions_to_line(results[start : start + 3 * YEAR])) for start in starts]
    return found


def _planted_results(market: Market, rule: NDArray[np.float64], config: Config) -> NDArray[np.float64]:
    """Return the bounded results of the rule's account in windows one after the other."""
    steps, first = config.env.episode_steps, config.split.context_window_days
    starts = torch.arange(first, len(market.dates) - steps - 1, steps)
    env = Portfolio.on(market, config.env)
    play_rules(EvaluationSetup(market, env, starts), {"planted": ScoreRule(rule)})
    equity, close = env.equity_curve.numpy(), market.close
    results = []
    for window, start in enumerate(starts.tolist()):
        stakes, held = defaultdict[int, list[Stake]](list), np.zeros((len(market.dates), close.shape[1]), dtype=bool)
        trades = trade_ledger(env, window)
        for trade in trades:
            held[trade["entry_day"] : trade["exit_day"], trade["stock"]] = True
        for trade in trades:
            candidates = np.isfinite(close[trade["order_day"]]) & ~held[trade["order_day"]]
            for day in range(trade["entry_day"], trade["exit_day"] + 1):
                past = close[trade["entry_day"] : day, trade["stock"]]
                price = float(past[np.isfinite(past)][-1]) if np.isfinite(past).any() else trade["entry_price"]
                share = trade["shares"] * price / equity[day - start - 1, window]
                stakes[day].append(Stake(trade["stock"], share, day == trade["entry_day"], candidates))
        results += [bounded_result(market, day, stakes[day]) for day in range(start + 1, start + steps + 1)]
    return np.array(results)


def main(argv: list[str] | None = None) -> None:
    """Print false alarms, the table of sessions, and the planted rule's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--careers", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    print(f"false alarms in ten years: {null_careers(arguments.careers, 10, rng):.2%} of {arguments.careers} careers")
    for ratio, known in MEDIAN_SESSIONS.items():
        print(f"information ratio {ratio:g}: {median_sessions(ratio, arguments.careers, rng):.0f} (table {known})")
    found = planted_sessions(arguments.seeds, 20)
    print(f"planted rule on mixed: median {np.median(found):.0f} sessions of {len(found)} accounts")


if __name__ == "__main__":
    main()
