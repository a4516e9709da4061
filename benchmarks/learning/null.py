"""Praise where nothing can be learned: `python -m benchmarks.learning null [--runs N] [--data FILE] [--json FILE]`.

Null markets: the martingale; the real prices of --data, their days drawn at random and each stock's mean return set to
0; the same with each stock's mean return set to the market's, so that holding pays and selection does not. Each run
draws a market of its own and asks for the verdict that a report would give.

Trained: a population learns briefly on it as on any other; its champion is judged on the validation days and on the
holdout, on neither of which anything was chosen; baselines are fitted as in `markets`. Untrained, --cheap-runs: an
agent whose forecasts have random weights, and fixed tilts (high beta, low price, high volatility), judged on the
holdout; baselines are those that learn nothing. Rates are percent of the runs with 95% intervals (Clopper and Pearson).
Of champions also the share of the capital that follows them, and their points a year over equal weight, the basket.
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from benchmarks.learning.markets import MARTINGALE, Budget, budget_of, fit
from benchmarks.learning.praise import Judge, Praise, ProfitAndOrders, play_policy, praise_rows, setup_on
from benchmarks.learning.study import (
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    each_seed,
    mean_interval,
    plus_minus,
)
from benchmarks.learning.unseen import fit_baselines, training_market
from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.loader import StockDataLoader
from data.market import Market, build_market
from models.ddpg_agent import DDPGAgent
from models.evidence import Evidence
from models.inputs import TradeInputs
from models.networks import Networks
from training.evaluation.baselines import ScoreRule, score_policy, simple_rules
from training.evaluation.play import EvaluationSetup, account_of_agent
from utils.arrays import Float64Array
from utils.config.trader import Config, DataConfig
from utils.errors import DataError
from utils.metrics import TRADING_DAYS_PER_YEAR
from utils.runs.seeding import named_generator
from utils.spaces import TARGET_PERCENTS

DRAWN = "real prices, days drawn at random"
RISING = "real prices, days drawn at random, market's mean kept"
HOLDOUT, VALIDATION, UNTRAINED = "champion, holdout", "champion, validation", "untrained agent"
RUNS, CHEAP_RUNS, GENERATIONS = 20, 250, 5
_PRICES = {"open": OPEN, "high": HIGH, "low": LOW, "close": CLOSE}
_TILT_SESSIONS = 120


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
    bars = rearranged(bars, np.random.default_rng(config.seed).integers(days, size=days), keeps_market=keeps_market)
    frame = pd.DataFrame(bars.reshape(-1, len(_PRICES)), columns=_PRICES)
    frame["date"] = np.repeat(dates.astype("datetime64[s]"), len(tickers))
    frame["ticker"] = np.tile(np.array(tickers), len(dates))
    made = StockDataLoader.from_frame(frame, config=config.split)
    made.load_and_prepare()
    return build_market(made, config.split, config.env)


def rearranged(bars: Float64Array, chosen: npt.NDArray[np.int64], *, keeps_market: bool = False) -> Float64Array:
    """Make a market of (days, stocks, 4) open, high, low, close whose days after the first are the chosen ones.

    A day is each stock's bar relative to its close before: it keeps its cross-section and the shape of its bars. It is
    divided by the stock's mean relative close, so that each stock's expected daily return is 0: else one that did well
    in all years would be expected to go on, and finding it would be skill. With `keeps_market` each stock's expected
    return is the mean of all stocks' instead.

    Args:
        chosen: (days - 1,) indices of days, the one after the first is 0.
    """
    relative = bars[1:] / bars[:-1, :, 3:]
    mean = relative[..., 3:].mean(axis=0)
    relative /= mean / mean.mean() if keeps_market else mean
    relative = relative[chosen]
    close = bars[0, :, 3] * np.cumprod(relative[..., 3], axis=0)
    before = np.concatenate((bars[:1, :, 3], close[:-1]))
    return np.concatenate((bars[:1], relative * before[..., None]))


NULL_MARKETS: dict[str, Callable[[Config], Market]] = {
    MARTINGALE: lambda config: training_market(config)[0],
    DRAWN: drawn_market,
    RISING: partial(drawn_market, keeps_market=True),
}
"""The market of one run, by kind: another one for each seed."""


def tilts(market: Market) -> dict[str, ScoreRule]:
    """Return rules that always lean one way: to high beta, low prices, high volatility, over the last 120 sessions."""
    close = pd.DataFrame(market.close.astype(np.float64))
    returns = close.pct_change(fill_method=None)
    common = returns.mean(axis=1)
    past, past_common = returns.rolling(_TILT_SESSIONS), common.rolling(_TILT_SESSIONS)
    together = returns.mul(common, axis=0).rolling(_TILT_SESSIONS).mean()
    beta = (together - past.mean().mul(past_common.mean(), axis=0)).div(past_common.var(ddof=0), axis=0)
    leanings = {"high beta": beta, "low price": -close, "high volatility": past.std()}
    return {
        name: ScoreRule(leaning.to_numpy(), float(leaning.min(axis=None)) - 1.0) for name, leaning in leanings.items()
    }


def trained_run(config: Config, kind: str, budget: Budget) -> Record:
    """Train on a null market; return what is claimed of its champion on its holdout and on its validation days."""
    market = NULL_MARKETS[kind](config)
    trained = fit(config, market, budget)
    baselines = {name: rule(market) for name, (rule, _) in fit_baselines(market, config).items()}
    champion, praise, points = trained.trainer.champion, dict[str, Praise](), dict[str, float]()
    for name, span in ((HOLDOUT, market.splits.holdout), (VALIDATION, market.splits.validation)):
        setup = setup_on(market, config, span)
        judge = Judge.on(setup, baselines, config.evaluation.random_pickers, config.seed)
        played = _played(setup, champion)
        praise[name] = {**judge.praise(played, champion.share), "has_evidence": champion.evidence.is_significant}
        over_basket = champion.share * (played[0] - judge.equal_weight)
        points[name] = TRADING_DAYS_PER_YEAR * float(over_basket.mean())
    return {"praise": praise, "points_over_basket": points, "share_of_capital": champion.share, **trained.record()}


def _played(setup: EvaluationSetup, agent: DDPGAgent) -> ProfitAndOrders:
    played = account_of_agent(setup, agent)
    curves, orders = played.curves, played.purchases
    return curves.daily_profit[0], orders


def untrained_agent(market: Market, config: Config) -> DDPGAgent:
    """Return an agent that has learned nothing: random weights on the inputs, of which training days know."""
    generator = named_generator(config.seed, UNTRAINED)
    inputs = TradeInputs.fit(market, np.arange(len(market.dates)) <= market.splits.train.last)
    mask = torch.ones(1, inputs.size - 1, dtype=torch.bool)
    networks = Networks.initialize(mask, 1, 1, 0.0, generator)
    networks.start_from(torch.randn(1, 1, inputs.size, generator=generator))
    target = torch.tensor(TARGET_PERCENTS)[torch.randint(len(TARGET_PERCENTS), (1,), generator=generator)]
    return DDPGAgent(inputs, networks, torch.zeros(1), target, config.env, Evidence(selection=0.0, timing=0.0))


def untrained_run(config: Config, kind: str) -> Record:
    """Return what is claimed of an agent with a random critic and of fixed tilts on a null market's holdout."""
    market = NULL_MARKETS[kind](config)
    setup = setup_on(market, config, market.splits.holdout)
    judge = Judge.on(setup, simple_rules(market), config.evaluation.random_pickers, config.seed)
    praise = {UNTRAINED: judge.praise(_played(setup, untrained_agent(market, config)))}
    for name, rule in tilts(market).items():
        praise[name] = judge.praise(play_policy(setup, score_policy(setup.env, rule)))
    return {"praise": praise}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--runs", RUNS)
    add_training_flags(parser, GENERATIONS)
    parser.add_argument("--cheap-runs", type=int, default=CHEAP_RUNS, help="runs without training")
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Count false claims on each null market; real prices only where main.py's --data names a file."""
    arguments, config, budget = study.arguments, study.config(MARTINGALE), budget_of(study.arguments)
    kinds = [*NULL_MARKETS] if config.data is not None else [MARTINGALE]
    for name, kind in itertools.product(("untrained", "trained"), kinds):
        of_kind = replace(config, data=None, investable=None) if kind == MARTINGALE else config
        labels: dict[str, Any] = {"study": name, "null": kind}
        if name == "trained":
            labels |= asdict(budget)
            jobs = each_seed(of_kind, study.seeds, partial(trained_run, kind=kind, budget=budget), **labels)
        else:
            cheap = range(arguments.first_seed, arguments.first_seed + arguments.cheap_runs)
            jobs = each_seed(of_kind, cheap, partial(untrained_run, kind=kind), **labels)
        if records := study.records(jobs):
            print("\n".join(praise_rows(f"{kind}: {name}", [record["praise"] for record in records])), flush=True)
            if name == "trained":
                shares = [record["share_of_capital"] for record in records]
                print(f"{'share of the capital':<54}{plus_minus(*mean_interval(shares))}", flush=True)
                for span in (HOLDOUT, VALIDATION):
                    points = [record["points_over_basket"][span] for record in records]
                    words = f"{span}, points a year over the basket"
                    print(f"{words:<54}{plus_minus(*mean_interval(points), '+.2f')}", flush=True)
