"""Praise where nothing can be learned: `python -m benchmarks.learning null [--runs N] [--data FILE] [--json FILE]`.

Two null markets: the martingale, and the real prices of --data with their days in random order. Each run draws a market
of its own, trains briefly on it as on any other, and asks for the verdict that a report would give: on the holdout,
which chose nothing, and on the validation windows, where the champion is the best of all that was tried.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.learning.markets import CPU, MARTINGALE, Budget, budget_of, fit, training_market
from benchmarks.learning.study import Job, Record, add_study_flags, run_study, study_config
from data.features import CLOSE, HIGH, LOW, OPEN
from data.loader import StockDataLoader
from data.market import Market, build_market
from data.splits import Span, consecutive_windows
from training.erl_trainer import ERLTrainer
from training.evaluation.tracks import Ground, play_agent, play_equal_weight, play_pickers
from training.evaluation.verdict import verdict
from utils.config.settings import settings_hash
from utils.config.trader import Config
from utils.errors import DataError
from utils.runs.seeding import named_generator

Array = npt.NDArray[np.float64]
Judge = Callable[[ERLTrainer, Span, int], bool]
"""Returns whether a champion is called better than the random picker on a span of days, after so many trials."""
PERMUTED = "real prices, days permuted"
RUNS, GENERATIONS = 20, 5
_PICKERS = 1000
_RELATIVE = (OPEN, HIGH, LOW, CLOSE)


def better_than_pickers(trainer: ERLTrainer, span: Span, trials: int) -> bool:
    """Return the report's verdict on a trainer's champion, from windows of the span that follow one another."""
    starts = consecutive_windows(span, trainer.val_env.rules.episode_steps)
    ground = Ground(trainer.market, trainer.tensors, trainer.val_env, starts)
    champion, _, plan = play_agent(ground, trainer.champion)
    generator = named_generator(trainer.seed, "random pickers", CPU)
    pickers = play_pickers(ground, plan, _PICKERS, generator)
    equal = play_equal_weight(ground)
    profits = (champion.daily_profit[0], pickers.daily_profit, equal.daily_profit[0])
    return verdict(*profits, trials=trials).is_better_than_pickers


def permuted_market(config: Config) -> Market:
    """Build the market of `config.data` with the days' returns in an order drawn by `config.seed`.

    Only the stocks that may be bought are kept, and of them those with a bar on every day. A day keeps its
    cross-section and the shape of its bars. Each stock's mean return is made 0: else one that did well in all years
    would do so in any order, and finding it would be skill.

    Raises:
        DataError: no such stock is left.
    """
    assert config.data is not None
    loader = StockDataLoader(config.data, config=config.split, investable=config.investable)
    loader.load_and_prepare()
    bars = loader.data_array[:, loader.investable_columns][..., list(_RELATIVE)].astype(np.float64)
    whole = np.flatnonzero(np.isfinite(bars).all(axis=(0, 2)))
    if not len(whole):
        raise DataError("expected a stock with a bar on every day, got none; give other data, or a shorter span of it")
    tickers = [loader.tickers[loader.investable_columns[column]] for column in whole]
    bars = permute_days(bars[:, whole], np.random.default_rng(config.seed))
    made = StockDataLoader.from_frame(_frame(bars, loader.dates, tickers), config=config.split)
    made.load_and_prepare()
    return build_market(made, config.split, config.env)


def permute_days(bars: Array, generator: np.random.Generator) -> Array:
    """Put the days of (days, stocks, 4) open, high, low, close in random order, the first one excepted.

    What is permuted is each day's bar relative to the close before it, divided by the stock's mean relative close, so
    that its mean daily return is 0.
    """
    relative = bars[1:] / bars[:-1, :, 3:]
    relative /= relative[..., 3:].mean(axis=0)
    relative = relative[generator.permutation(len(relative))]
    close = bars[0, :, 3] * np.cumprod(relative[..., 3], axis=0)
    before = np.concatenate((bars[:1, :, 3], close[:-1]))
    return np.concatenate((bars[:1], relative * before[..., None]))


def _frame(bars: Array, dates: npt.NDArray[np.datetime64], tickers: Sequence[str]) -> pd.DataFrame:
    names = ("open", "high", "low", "close")
    return pd.DataFrame(
        {
            "date": np.repeat(dates.astype("datetime64[s]"), len(tickers)),
            "ticker": np.tile(np.array(tickers), len(dates)),
            **{name: bars[..., place].ravel() for place, name in enumerate(names)},
        }
    )


def null_market(kind: str, config: Config) -> Market:
    """Return the market of one run: another one for each seed."""
    return training_market(config)[0] if kind == MARTINGALE else permuted_market(config)


def null_run(kind: str, config: Config, budget: Budget, judge: Judge = better_than_pickers) -> Record:
    """Train on a null market; return the verdicts on its holdout and on its validation days."""
    trained = fit(config, null_market(kind, config), budget)
    trainer = trained.trainer
    splits, tried = trainer.market.splits, trainer.population.size * trainer.generation
    return {
        "holdout_praised": judge(trainer, splits.holdout, 1),
        "validation_praised": judge(trainer, splits.validation, tried),
        "validation_percent": trainer.champion_score,
        "wall_seconds": trained.wall_seconds,
        "cpu_seconds": trained.cpu_seconds,
        "environment_steps": trained.environment_steps,
        "generations_run": trainer.generation,
    }


def null_jobs(kind: str, config: Config, seeds: Sequence[int], budget: Budget) -> list[Job]:
    """Make a job for each run."""
    jobs = []
    for seed in seeds:
        own = replace(config, seed=seed, census_every=0)
        key = {"null": kind, "seed": seed, **asdict(budget), "settings": settings_hash(own)[:16]}
        jobs.append(Job(key, partial(null_run, kind, own, budget)))
    return jobs


def add_command(commands: Any) -> None:
    """Add `null` to the commands of `benchmarks.learning`."""
    parser = commands.add_parser("null", allow_abbrev=False, help="false praise on markets without structure")
    add_study_flags(parser, "--runs", RUNS, GENERATIONS)
    parser.set_defaults(run=run_null)


def run_null(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Count false verdicts on each null market; real prices only where main.py's --data names a file."""
    config = study_config([*words, "--synthetic.kind", MARTINGALE])
    kinds = [MARTINGALE] + ([PERMUTED] if config.data is not None else [])
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    print(f"{'praised: better than the random picker (95%)':<46} {'holdout':>10} {'validation':>12}", flush=True)
    for kind in kinds:
        own = replace(config, data=None, investable=None) if kind == MARTINGALE else config
        jobs = null_jobs(kind, own, seeds, budget_of(arguments))
        records = list(run_study(jobs, arguments.json, arguments.workers))
        counts = [sum(record[name] for record in records) for name in ("holdout_praised", "validation_praised")]
        print(f"{kind:<46} " + " ".join(f"{count:>4} of {len(records):<3}" for count in counts), flush=True)
