"""An evaluation at full scale: three years, six policies, 25 generations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from data.market import Market
from tests.tiny import trending_panel, world_of
from training.evaluation.baselines import CHAMPION, EQUAL, HOLD, MOMENTUM, RANDOM, REVERSAL
from training.evaluation.compared import COSTS_BPS, PlayedPolicies
from training.evaluation.holdout import Look
from training.evaluation.judge import Evaluation
from training.evaluation.measures import EquityCurves
from training.forecasts.skill import DECAY
from utils.arrays import DateArray, Float64Array
from utils.config.trader import Config

SESSIONS, CAPITAL, SELECTIONS = 145, 1_000_000.0, 200
DAYS = 5 * SESSIONS
TICKERS = ("MSFT", "BRK.B", "XOM", "NVDA", "KO", "BF.B")
DRIFTS = {CHAMPION: 0.0005, RANDOM: 0.0004, EQUAL: 0.00042, HOLD: 0.00044, MOMENTUM: 0.00055, REVERSAL: 0.0001}


def case(
    *,
    name: str = "calm-heron-0417",
    tickers: tuple[str, ...] = TICKERS,
    days: int = DAYS,
    seed: int = 7,
    drifts: dict[str, float] = DRIFTS,
    **changes: Any,
) -> Evaluation:
    """Everything that a page can show, drawn from `seed`; `name` and `tickers` appear wherever a run's would."""
    generator = np.random.default_rng(seed)
    market = market_of(tickers, sessions("2019-01-02", days + 1))
    curves = {policy: curves_of(generator, drift, policy, days) for policy, drift in drifts.items()}
    traded, positions = trades(generator, market)
    played = PlayedPolicies(
        curves=curves,
        benchmark=EQUAL,
        market=EQUAL,
        weights=np.full((days, len(tickers)), 0.1),
        days=np.arange(days + 1),
        tickers=tickers,
        traded=traded,
        positions=positions,
        selection=curves[CHAMPION].daily[0] - curves[RANDOM].daily.mean(axis=0),
        at_cost={bps: {policy: one for policy, one in curves.items() if policy != RANDOM} for bps in COSTS_BPS},
        scores={name: generator.normal(0.0, 1.0, (days, len(tickers))) for name in (CHAMPION, MOMENTUM)},
        ahead={sessions: generator.normal(0.0, 1.0, (days, len(tickers))) for sessions in DECAY},
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


def curves_of(generator: np.random.Generator, drift: float, policy: str, days: int) -> EquityCurves:
    """An account, or those of the random pickers."""
    count = SELECTIONS if policy == RANDOM else 1
    curves = [walk(generator, days + 1, drift + 0.0003 * generator.normal() * (count > 1)) for _ in range(count)]
    some = {"positions": 246.0, "wins": 134.0, "losses": 100.0, "sessions": 3345.0, "largest": 0.11}
    some |= {"traded": 6.0, "costs": 0.023 * CAPITAL}
    exposure = 0.718 + 0.1 * np.sin(np.arange(days) / 20)
    known = {name: np.full(count, value) for name, value in some.items()}
    return EquityCurves(np.stack(curves), np.repeat(exposure[None], count, axis=0), **known)


def trades(generator: np.random.Generator, market: Market) -> tuple[Float64Array, list[dict[str, Any]]]:
    """Positions of 1,000 in currency units, of up to twenty sessions, in every stock about every forty sessions, and
    what was traded of them; the last ones are still held."""
    traded, made = np.zeros((len(market.dates) - 1, len(market.tickers))), []
    for stock in range(len(market.tickers)):
        for entry in (*range(12, len(market.dates) - 25, 43), len(market.dates) - 2):
            leave = entry + int(generator.integers(2, 20))
            last = leave if leave < len(market.dates) else None
            bought, sold = (
                float(np.nan_to_num(market.close[min(day, len(market.dates) - 1), stock], nan=50.0))
                for day in (entry, leave)
            )
            worth, shares = 1000.0 * sold / bought, 1000.0 / bought
            traded[entry - 1, stock] = 1000.0
            if last is not None:
                traded[last - 1, stock] = -worth
            reason = None if last is None else ("order", "no_bar")[int(generator.integers(2))]
            left = {"shares": 0.0 if last else shares, "value": 0.0 if last else worth, "sold": worth if last else 0.0}
            amounts = {"largest": shares, "bought": 1000.0, "received": 0.0, "costs": 2.0, "profit": worth - 1000.0}
            days = {"first_day": entry, "last_day": last, "fills": 1 if last is None else 2}
            made.append({"stock": stock, "reason": reason, **days, **amounts, **left})
    return traded, made


def records(generator: np.random.Generator, generations: int) -> list[dict[str, Any]]:
    """What charts show of the lines of metrics.jsonl, of a population that learns."""
    mean = 6.0 * (1.0 - np.exp(-np.arange(generations) / 8.0)) - 1.0 + generator.normal(0, 0.4, generations)
    return [
        {
            "generation": index + 1,
            "fitness": {"min": value - 2.0, "mean": value, "max": value + 3.0},
            "validation": {"champion": 0.7 * value, "benchmark": 0.5},
            "learning": {},
            "replay": {"size": 9920, "training_starts": 10_000},
        }
        for index, value in enumerate(mean.tolist())
    ]
