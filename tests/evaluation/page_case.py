"""An evaluation at full scale: five windows of 145 sessions, six policies, 25 generations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data.market import Market
from environment.ledger import EXIT_REASONS
from tests.tiny import trending_panel, world_of
from training.evaluation.baselines import CHAMPION, EQUAL, HOLD, MOMENTUM, RANDOM, REVERSAL
from training.evaluation.holdout import Look
from training.evaluation.judge import Evaluation
from training.evaluation.measures import EquityCurves
from training.evaluation.play import COSTS_BPS, PlayedPolicies
from training.forecasts.skill import HORIZONS
from utils.arrays import DateArray, Float64Array
from utils.config.trader import Config

WINDOWS, SESSIONS, CAPITAL, SELECTIONS = 5, 145, 1_000_000.0, 200
TICKERS = ("MSFT", "BRK.B", "XOM", "NVDA", "KO", "BF.B")
DRIFTS = {CHAMPION: 0.0005, RANDOM: 0.0004, EQUAL: 0.00042, HOLD: 0.00044, MOMENTUM: 0.00055, REVERSAL: 0.0001}


def case(
    *,
    name: str = "calm-heron-0417",
    tickers: tuple[str, ...] = TICKERS,
    windows: int = WINDOWS,
    seed: int = 7,
    drifts: dict[str, float] = DRIFTS,
    **changes: Any,
) -> Evaluation:
    """Everything that a page can show, drawn from `seed`; `name` and `tickers` appear wherever a run's would."""
    generator = np.random.default_rng(seed)
    market = market_of(tickers, sessions("2019-01-02", windows * SESSIONS + 1))
    curves = {policy: curves_of(generator, drift, policy, windows) for policy, drift in drifts.items()}
    first = SESSIONS * np.arange(windows)[:, None]
    played = PlayedPolicies(
        curves,
        trades(generator, market),
        first + np.arange(SESSIONS + 1),
        {bps: {policy: curves[policy] for policy in (CHAMPION, RANDOM, MOMENTUM)} for bps in COSTS_BPS},
        curves_of(generator, 0.0003, RANDOM, windows),
        np.zeros(windows * SESSIONS),
        np.ones(windows * SESSIONS),
        {name: generator.normal(0.0, 1.0, (windows * SESSIONS, len(tickers))) for name in (CHAMPION, MOMENTUM)},
        {sessions: generator.normal(0.0, 1.0, (windows * SESSIONS, len(tickers))) for sessions in HORIZONS},
    )
    command = f"python main.py evaluate --run {name} --split holdout"
    return Evaluation(
        **{
            "name": name,
            "split": "holdout",
            "config": Config(seed=seed, data=Path(f"{name}.parquet"), memory_limit_mb=20_480),
            "market": market,
            "played": played,
            "trials": 3,
            "command": command,
            "champion_generation": 18,
            "records": records(generator, 25),
            "looks": [
                Look(f"2026-03-0{day}T09:14:00+00:00", command, 18, "2019-01-02", "2021-10-12", 2.4, "No skill.", name)
                for day in (2, 5, 6)
            ],
            **changes,
        }
    )


def sessions(first: str, count: int) -> DateArray:
    return np.busday_offset(np.datetime64(first), np.arange(count), roll="forward")


def walk(generator: np.random.Generator, days: int, drift: float, volatility: float = 0.009) -> Float64Array:
    """(days,) equity with Gaussian daily logarithmic returns; on the last day they add up to the drift."""
    returns = generator.normal(0.0, volatility, days)
    returns[0] = 0.0
    returns[1:] += drift - returns[1:].mean()
    return np.asarray(CAPITAL * np.exp(np.cumsum(returns)))


def market_of(tickers: tuple[str, ...], dates: DateArray) -> Market:
    """Prices of these tickers, the first of which did not trade for two weeks."""
    panel = trending_panel([0.0004] * len(tickers), len(dates), noise=0.016)
    panel[300:310, 0] = np.nan
    return replace(world_of(panel).market, tickers=list(tickers), dates=dates)


def curves_of(generator: np.random.Generator, drift: float, policy: str, windows: int) -> EquityCurves:
    """An account, or those of the random pickers, that take the windows one after the other."""
    count, days = SELECTIONS if policy == RANDOM else 1, windows * SESSIONS + 1
    curves = np.stack([walk(generator, days, drift + 0.0003 * generator.normal() * (count > 1)) for _ in range(count)])
    equity = curves[:, SESSIONS * np.arange(windows)[:, None] + np.arange(SESSIONS + 1)]
    known = np.full((count, windows), np.nan if policy in (EQUAL, HOLD) else 1.0)
    return EquityCurves(
        equity=CAPITAL * equity / equity[:, :, :1],
        exposure=np.full((count, windows), 0.718),
        trades=246 * known,
        wins=134 * known,
        sessions=3345 * known,
        traded=np.full((count, windows), 1.2 * CAPITAL),
        costs=np.full((count, windows), 0.0046 * CAPITAL),
    )


def trades(generator: np.random.Generator, market: Market) -> list[dict[str, Any]]:
    """A trade of 1,000 in currency units, of up to twenty sessions, in every stock about every forty sessions."""
    made = []
    for stock in range(len(market.tickers)):
        for entry in range(12, len(market.dates) - 25, 43):
            leave = entry + int(generator.integers(2, 20))
            bought, sold = (float(np.nan_to_num(market.close[day, stock], nan=50.0)) for day in (entry, leave))
            prices = {"entry_price": bought, "target_price": 1.2 * bought, "exit_price": sold}
            days = {"order_day": entry - 1, "entry_day": entry, "exit_day": leave, "window": entry // SESSIONS}
            worth = {"shares": 1000.0 / bought, "value": 1000.0, "profit": 1000.0 * (sold / bought - 1), "costs": 2.0}
            reason = EXIT_REASONS[int(generator.integers(1, len(EXIT_REASONS)))]
            made.append({"stock": stock, "reason": reason, **days, **prices, **worth})
    return made


def records(generator: np.random.Generator, generations: int) -> list[dict[str, Any]]:
    """What charts show of the lines of metrics.jsonl, of a population that learns."""
    mean = 6.0 * (1.0 - np.exp(-np.arange(generations) / 8.0)) - 1.0 + generator.normal(0, 0.4, generations)
    return [
        {
            "generation": index + 1,
            "fitness": {"min": value - 2.0, "mean": value, "max": value + 3.0},
            "validation": {"champion": 0.7 * value},
            "learning": {},
            "replay": {"size": 9920, "training_starts": 10_000},
        }
        for index, value in enumerate(mean.tolist())
    ]
