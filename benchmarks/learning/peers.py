"""Deep agents of another library: `python -m benchmarks.learning peers [--kinds KIND ...] [--seeds N] [--json FILE]`.

PPO, TD3 and SAC of Stable-Baselines3 (Raffin et al. 2021) with its default hyperparameters learn in the trading
environment, flattened and with actions rescaled, on windows of the training days that are drawn at random, as long as
our training takes by the processor's clock. Each is then judged as any policy is: one account goes on over validation
days and holdout. Shown is the excess over the benchmark, percent a year. Further flags are settings of main.py.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.learning.markets import KINDS, MARTINGALE, Budget, budget_of, fit
from benchmarks.learning.study import (
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    each_seed,
    mean_interval,
    plus_minus,
)
from benchmarks.learning.unseen import training_market
from data.market import Market
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from training.api import RandomWindows
from training.evaluation.baselines import CHAMPION, IN_FULL, Tuning
from training.evaluation.play import EvaluationSetup, Played, account_of_agent, play_policy
from training.policies.accounts import account_of
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.metrics import TRADING_DAYS_PER_YEAR

PEERS = ("PPO", "TD3", "SAC")
_FOREVER = 10**9


def learned(name: str, config: Config, market: Market, seconds: float) -> tuple[Any, int]:
    """Train a peer for some seconds of the processor; return its model and the steps that it took."""
    import stable_baselines3

    ends = time.process_time() + seconds
    train, base = market.splits.train, TradingEnvironment.on(market, config.env)
    windows = RandomWindows(base, train.first, train.last - config.env.episode_steps)
    flat: Any = gym.wrappers.FlattenObservation(windows)
    env = gym.wrappers.RescaleAction(flat, np.float32(-1), np.float32(1))
    model = getattr(stable_baselines3, name)("MlpPolicy", env, seed=config.seed, device="cpu")

    def goes_on(_: Any, __: Any) -> bool:
        return time.process_time() < ends

    model.learn(_FOREVER, callback=goes_on)
    return model, int(model.num_timesteps)


def peers_run(config: Config, budget: Budget) -> Record:
    """Train ours and the peers on a market, and play them on its later days."""
    market, _ = training_market(config)
    trained = fit(config, market, budget)
    champion, splits = trained.trainer.champion, market.splits
    portfolio, first = Portfolio.on(market, config.env), splits.validation.first
    columns = market.investable_columns.tolist()
    tuning = Tuning.of(market, portfolio.under())
    setup = EvaluationSetup(market, portfolio, tuning, first, len(market.dates) - 1 - first, columns)
    held = play_policy(setup, lambda now: now.wanted)
    played: dict[str, Callable[[], Played]] = {
        CHAMPION: lambda: account_of_agent(setup, champion),
        IN_FULL: lambda: account_of_agent(setup, champion.shrunk(1.0)),
    }
    steps = {CHAMPION: trained.record()["environment_steps"]}
    for name in PEERS:
        model, steps[name] = learned(name, config, market, trained.cpu_seconds)
        played[name] = partial(account_of, name, model, setup)
    daily = {name: (play().curves.daily - held.curves.daily)[0] for name, play in played.items()}
    excess = {name: float(TRADING_DAYS_PER_YEAR * one.mean()) for name, one in daily.items()}
    return {"excess": excess, "steps": steps, "cpu_seconds": trained.cpu_seconds}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", seeds=3)
    add_training_flags(parser, generations=10)
    default = ("momentum", "reversal", "mixed", MARTINGALE)
    parser.add_argument("--kinds", nargs="+", default=default, choices=KINDS, help=f"default: {', '.join(default)}")
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Measure each kind of market and print its line as soon as it is known. Raises ConfigError without the library."""
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        raise ConfigError(
            "expected Stable-Baselines3 for its agents, got none; pip install stable-baselines3"
        ) from None
    names, budget = (CHAMPION, IN_FULL, *PEERS), budget_of(study.arguments)
    print(f"{'':<12} {'seeds':>5} {'CPU s':>6}" + "".join(f" {name:>16}" for name in names), flush=True)
    for kind in study.arguments.kinds:
        labels = {"study": "peers", "kind": kind, **asdict(budget)}
        records = study.records(each_seed(study.config(kind), study.seeds, partial(peers_run, budget=budget), **labels))
        cells = (plus_minus(*mean_interval([one["excess"][name] for one in records])) for name in names)
        seconds = np.mean([one["cpu_seconds"] for one in records])
        print(f"{kind:<12} {len(records):>5} {seconds:6.0f}" + "".join(f" {cell:>16}" for cell in cells), flush=True)
