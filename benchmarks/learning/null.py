"""Where nothing can be learned: `python -m benchmarks.learning null [--runs N] [--jobs N]`.

Null markets, another one for each run: the martingale; returns whose volatility comes in clusters, with a common factor
(GARCH(1,1), Bollerslev 1986); the same with stocks that are listed late or leave early; the martingale with thirty
columns of noise as features. With --data also its real prices, their days drawn at random with replacement, where each
stock's mean return is 0, or the market's, so that holding pays and selection does not.

A population learns briefly on each as on any other. Reported of its champion: how often its evidence is below 0.05, and
on validation days and holdout, in one account that goes on beside the benchmark, the tracking error as shrunk and the
points a year it gains; and how often the verdict would claim skill of it if its scores were followed in full. Rates are
percent of the runs with 95% intervals (Clopper and Pearson).
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.learning.markets import MARTINGALE, Budget, budget_of, fit
from benchmarks.learning.study import (
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    each_seed,
    mean_interval,
    plus_minus,
    rate_words,
)
from benchmarks.learning.unseen import Holder, hold, training_market
from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.loader import StockDataLoader
from data.market import Market, build_market
from environment.portfolio import Portfolio
from training.evaluation.baselines import CHAMPION, IN_FULL, RANDOM
from training.evaluation.compared import Baselines
from training.evaluation.permutation_nulls import rearranged
from training.evaluation.play import account_of_agent
from training.evaluation.verdict import verdict
from utils.arrays import Float64Array
from utils.config.trader import Config, DataConfig
from utils.errors import DataError
from utils.runs.devices import named_generator

GARCH, LISTINGS, NOISE = "garch", "listings", "noise columns"
DRAWN, RISING = "real", "real, rising"
RUNS, GENERATIONS, LEVEL = 20, 5, 0.05
CLAIMS = ("has_skill", "is_better_than_benchmark")
_PRICES = {"open": OPEN, "high": HIGH, "low": LOW, "close": CLOSE}
_NOISE_COLUMNS = Path(__file__).parent / "noise.py"
_NIGHT = 0.1
"""Share of the variance that falls between close and open."""


def clustered_market(config: Config, *, is_staggered: bool = False) -> Market:
    """Draw a market of the built-in one's size: a common factor and stocks' own returns, each a GARCH(1,1).

    Args:
        is_staggered: two stocks in three are listed after the first day or leave before the last one.
    """
    law, rng = config.synthetic, np.random.default_rng([config.seed, is_staggered])
    days, stocks = law.days, law.stocks
    beta, scale = rng.uniform(0.6, 1.4, stocks), law.daily_noise * rng.uniform(0.7, 1.3, stocks)
    shocks = rng.standard_normal((2, days, stocks + 1))
    variance, both = np.ones(stocks + 1), np.empty((2, days, stocks + 1))
    for day in range(days):
        both[:, day] = np.sqrt(variance * np.array([[_NIGHT], [1 - _NIGHT]])) * shocks[:, day]
        variance = 0.03 + 0.07 * both[:, day].sum(0) ** 2 + 0.90 * variance
    gap, session = 0.6 * scale * beta * both[..., -1:] + 0.8 * scale * both[..., :-1]
    # Prices are fair: a return's mean is 0 but for the drift that half its variance takes.
    log_close = np.log(50.0) + np.cumsum(gap + session - (0.36 * beta**2 + 0.64) * scale**2 / 2, axis=0)
    close, open_ = np.exp(log_close), np.exp(log_close - session)
    spread = np.exp(np.abs(0.3 * scale * rng.standard_normal((2, days, stocks))))
    bars = np.stack((open_, np.maximum(open_, close) * spread[0], np.minimum(open_, close) / spread[1], close), axis=-1)
    if is_staggered:
        first = np.where(rng.random(stocks) < 1 / 3, rng.integers(0, 3 * days // 4, stocks), 0)
        last = np.where(rng.random(stocks) < 1 / 2, rng.integers(days // 4, days, stocks), days)
        session_of = np.arange(days)[:, None]
        is_listed = (session_of >= first) & (session_of < np.maximum(last, first + days // 4))
        is_listed[:, :2] = True
        bars[~is_listed] = np.nan
    dates = np.busday_offset(np.datetime64("2000-01-03"), np.arange(days))
    return market_of_bars(bars, dates, [f"G{stock:03d}" for stock in range(stocks)], config)


def market_of_bars(bars: Float64Array, dates: npt.NDArray[np.datetime64], tickers: list[str], config: Config) -> Market:
    """Build a market of (days, stocks, 4) open, high, low, close; NaN: no bar."""
    frame = pd.DataFrame(bars.reshape(-1, len(_PRICES)), columns=_PRICES)
    frame["date"] = np.repeat(dates.astype("datetime64[s]"), len(tickers))
    frame["ticker"] = np.tile(np.array(tickers), len(dates))
    made = StockDataLoader.from_frame(frame.dropna(), config=config.split)
    made.load_and_prepare()
    return build_market(made, config.split, config.env)


@lru_cache(maxsize=1)
def _whole_histories(
    data: Path, investable: Path | None, split: DataConfig
) -> tuple[Float64Array, npt.NDArray[np.datetime64], list[str]]:
    """Read (days, stocks, 4) bars of the stocks that may be bought and have one on every day, the days, the tickers."""
    loader = StockDataLoader(data, config=split, investable=investable)
    loader.load_and_prepare()
    bars = loader.data_array[:, loader.investable_columns][..., list(_PRICES.values())].astype(np.float64)
    whole = np.flatnonzero(np.isfinite(bars).all(axis=(0, 2)))
    if not len(whole):
        raise DataError("expected a stock with a bar on every day, got none; give other data, or a shorter span of it")
    return bars[:, whole], loader.dates, [loader.tickers[loader.investable_columns[column]] for column in whole]


def drawn_market(config: Config, *, keeps_market: bool = False) -> Market:
    """Build the market of `config.data` with days drawn by `config.seed`; see `rearranged`.

    Only the stocks that may be bought are kept, and of them those with a bar on every day. Days are drawn with
    replacement: in another order of the same days a stock's returns would still sum to 0, so that what fell on training
    days would have to rise on the holdout, and buying it would be skill.

    Raises:
        DataError: no such stock is left.
    """
    assert config.data is not None
    bars, dates, tickers = _whole_histories(config.data, config.investable, config.split)
    days = len(bars) - 1
    chosen = np.random.default_rng(config.seed).integers(days, size=days)
    again = rearranged(bars, chosen)
    return market_of_bars(rising(bars, again) if keeps_market else again, dates, tickers, config)


def rising(bars: Float64Array, again: Float64Array) -> Float64Array:
    """Let all stocks of a market that was drawn again rise alike, by the mean relative close of the original bars."""
    growth = float((bars[1:, :, 3] / bars[:-1, :, 3]).mean())
    return np.asarray(again * growth ** np.arange(len(again))[:, None, None])


NULL_MARKETS: Mapping[str, Callable[[Config], Market]] = {
    MARTINGALE: lambda config: training_market(config)[0],
    GARCH: clustered_market,
    LISTINGS: partial(clustered_market, is_staggered=True),
    NOISE: lambda config: training_market(replace(config, features=_NOISE_COLUMNS))[0],
    DRAWN: drawn_market,
    RISING: partial(drawn_market, keeps_market=True),
}
"""The market of one run, by kind."""
_REAL = (DRAWN, RISING)


def null_run(config: Config, kind: str, budget: Budget) -> Record:
    """Train on a null market; return the evidence of its champion, and what it does on later days."""
    market = NULL_MARKETS[kind](config)
    trained = fit(config, market, budget)
    champion, first, last = trained.trainer.champion, market.splits.validation.first, len(market.dates) - 1
    holders = {CHAMPION: Holder.of_agent(champion, market, slice(first, last))}
    holders[IN_FULL] = holders[CHAMPION].in_full()
    held = hold(Portfolio.on(market, config.env), holders, first, last)
    judging = replace(config.evaluation, rivals="none", benchmark=None)
    baselines = Baselines(Baselines.fitted(market, None, config, market.splits.holdout, judging).setup, {})
    account = {CHAMPION: account_of_agent(baselines.setup, champion.shrunk(1.0))}
    generator = named_generator(config.seed, "random pickers")
    played = baselines.beside(CHAMPION, account, config.evaluation.random_pickers, generator)
    own, random, held_beside = (played.curves[name] for name in (CHAMPION, RANDOM, played.benchmark))
    told = verdict(own.daily[0], random.daily, played.selection, own.exposure[0], held_beside.daily[0])
    praise = {claim: bool(getattr(told, claim)) for claim in CLAIMS}
    policies = {name: one.record() for name, one in held.items()}
    return {"policies": policies, "shrink": champion.shrink, "praise": praise, **trained.record()}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--runs", RUNS)
    add_training_flags(parser, GENERATIONS)
    parser.add_argument("--kinds", nargs="+", choices=[*NULL_MARKETS], help="default: all, real prices with --data")
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Measure each null market and print its line as soon as it is known."""
    config, budget = study.config(MARTINGALE), budget_of(study.arguments)
    chosen = study.arguments.kinds or [kind for kind in NULL_MARKETS if config.data is not None or kind not in _REAL]
    columns = ("tracking error", "points a year", "in full", "mean shrink", f"p < {LEVEL:g}", "skill", "better")
    print(f"{'':<14}{'runs':>4}" + "".join(f" {name:>13}" for name in columns), flush=True)
    for kind in chosen:
        of_kind = config if kind in _REAL else replace(config, data=None, investable=None)
        task = partial(null_run, kind=kind, budget=budget)
        records = study.records(each_seed(of_kind, study.seeds, task, study="null", null=kind, **asdict(budget)))
        shrunk, full = ([record["policies"][name] for record in records] for name in (CHAMPION, IN_FULL))
        means = [
            mean_interval([one[measure] for one in policies])
            for policies, measure in ((shrunk, "tracking_error"), (shrunk, "excess"), (full, "excess"))
        ]
        shrink = f"{np.mean([record['shrink'] for record in records]):.2f}"
        rates = [
            [record["evidence"]["p_value"] < LEVEL for record in records],
            *([record["praise"][claim] for record in records] for claim in CLAIMS),
        ]
        cells = [*(plus_minus(*mean) for mean in means), shrink, *map(rate_words, rates)]
        print(f"{kind:<14}{len(records):>4}" + "".join(f" {cell:>13}" for cell in cells), flush=True)
