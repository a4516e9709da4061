"""Hidden structures of the literature: `python -m benchmarks.learning structures [--structures NAME ...] [--seeds N]`.

Markets of 2,800 days and 60 columns, 40 of which may be bought. The return of a session has a drift that the day before
decides: `season`: each weekday has its own favourite stocks (Heston and Sadka 2008, "Seasonality in the cross-section
of stock returns"); `sector`: hidden industries, whose stocks move together, go on for weeks, with a half-life of 15
days (Moskowitz and Grinblatt 1999, "Do industries explain momentum?"); `crash`: momentum in calm markets, its reverse
in wild ones (Daniel and Moskowitz 2016, "Momentum crashes"); `volrev`: continuation after loud days, reversal after
quiet ones (Llorente, Michaely, Saar and Wang 2002, "Dynamic volume-return relation of individual stocks"); `null`:
none. Each is drawn without and with a column that tells the structure, in `null` noise.

Trained on the first days; on the last 40% one account goes on for the champion as shrunk and in full and for the true
drift through the band, tuned as rules are. With --noise a group of inputs tells nothing; with --part a part is altered
as in the study `parts`. Shown are the mean correlation of the champion's scores with the true drift of a day, excess
over the benchmark and what was expected of it, percent a year, and the information ratio. Further flags are settings of
main.py.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from benchmarks.learning.ablations import ALTERATIONS, add_part_flag
from benchmarks.learning.markets import Budget, budget_of, fit
from benchmarks.learning.study import (
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    each_seed,
    mean_interval,
    plus_minus,
    study_config,
)
from benchmarks.learning.unseen import Holder, hold
from data.features.catalogue import Feature
from data.features.formulas import Formulas
from data.loader import StockDataLoader
from data.market import Market, build_market
from environment.portfolio import Portfolio
from training.evaluation.baselines import CHAMPION, IN_FULL, LIGHTGBM, Tuning
from training.evaluation.supervised import fit_supervised
from utils.arrays import BoolArray, Float64Array
from utils.config.trader import Config

TOLD, TRUTH = "told", "true drift"
FORMULAS = "formulas"
NOISY = ("seasons", "peers", "market", "path", FORMULAS)
"""Groups of inputs that are there for such structures, and for laws drawn at random."""
SIZE = (
    *("--synthetic.days", "2800", "--synthetic.stocks", "60"),
    *("--split.train-fraction", "0.6", "--split.validation-fraction", "0.2"),
)
_INDUSTRIES, _HALF_LIFE, _TOGETHER = 8, 15.0, 0.02


class Past(NamedTuple):
    """What decides the next session's drifts, up to a close."""

    own: Float64Array
    """(n,) last return apart from the market's, in deviations."""
    month: Float64Array
    """(n,) the same, summed with a half-life of a month, in deviations of it."""
    loud: Float64Array
    """(n,) logarithm of today's volume less its mean, in deviations."""
    is_wild: bool
    favourites: Float64Array
    """(n,) of the weekday of the next session."""
    industry: Float64Array
    """(n,) hidden state of each stock's industry."""


class Structure(NamedTuple):
    """The drift that the past decides."""

    strength: float
    """Drift of a session for a unit of what it tells; chosen for about 10% a year, net, through the band."""
    of: Callable[[Past], Float64Array]


STRUCTURES: Mapping[str, Structure] = {
    "season": Structure(0.0013, lambda past: past.favourites),
    "sector": Structure(0.0006, lambda past: past.industry),
    "crash": Structure(0.0005, lambda past: (-1 if past.is_wild else 1) * past.month.clip(-3, 3)),
    "volrev": Structure(0.0011, lambda past: past.own.clip(-3, 3) * past.loud),
    "null": Structure(0.0, lambda past: np.zeros(len(past.own))),
}


class Drawn(NamedTuple):
    """A market of a hidden structure or a law."""

    bars: pd.DataFrame
    """In long form."""
    tickers: list[str]
    """That may be bought: two thirds."""
    drift: Float64Array
    """(days, those) of the log return of the session after each close."""


def draw(name: str, config: Config, *, is_told: bool) -> Drawn:
    """Draw a market of the settings' size and seed; the column that tells changes nothing else."""
    structure, days, n = STRUCTURES[name], config.synthetic.days, config.synthetic.stocks
    rng = np.random.default_rng([config.seed, [*STRUCTURES].index(name)])
    dates = pd.bdate_range("2006-01-02", periods=days + 1)
    beta, deviation = rng.uniform(0.6, 1.4, n), rng.uniform(0.010, 0.020, n)
    is_wild = wild_spells(days, rng)
    market = 0.0002 + np.where(is_wild, 0.018, 0.007) * rng.standard_normal(days)
    kept, industry_of = 0.5 ** (1 / _HALF_LIFE), rng.integers(0, _INDUSTRIES, n)
    shocks = np.sqrt(1 - kept**2) * rng.standard_normal((days, _INDUSTRIES))
    industry = lfilter([1.0], [1.0, -kept], shocks, axis=0)[:, industry_of]
    together = _TOGETHER * shocks[:, industry_of] if name == "sector" else 0.0  # what happens moves an industry at once
    favourites, loud = rng.standard_normal((5, n)), rng.standard_normal((days, n))
    level = 12 + 0.3 * rng.standard_normal(n)
    night, session = 0.004 * rng.standard_normal((days, n)), deviation * rng.standard_normal((days, n)) + together
    drift, told, month = np.zeros((days, n)), np.zeros((days, n)), np.zeros(n)
    for day in range(days):
        session[day] += drift[day - 1] if day else 0.0
        own = night[day] + session[day]
        month = 0.95 * month + own
        past = Past(
            own / deviation,
            month / (deviation * np.sqrt(10)),
            loud[day],
            bool(is_wild[day]),
            favourites[dates[day + 1].weekday()],
            industry[day],
        )
        told[day] = structure.of(past)
        drift[day] = structure.strength * (told[day] - told[day].mean())
    if not told.any():
        told = lfilter([1 - kept], [1.0, -kept], rng.standard_normal((days, n)), axis=0)
    night, session = night + 0.3 * np.outer(market, beta), session + 0.7 * np.outer(market, beta)
    close = 50 * np.exp(np.cumsum(night + session, axis=0))
    open_ = close * np.exp(-session)
    spread = np.exp(0.004 * np.abs(rng.standard_normal((2, days, n))))
    columns = {
        "open": open_,
        "high": np.maximum(open_, close) * spread[0],
        "low": np.minimum(open_, close) / spread[1],
        "close": close,
        "volume": np.exp(level + 0.5 * loud).round(),
        **({TOLD: told} if is_told else {}),
    }
    tickers = [f"S{stock:03d}" for stock in range(n)]
    bars = {name: values.ravel() for name, values in columns.items()}
    frame = pd.DataFrame({"date": np.repeat(dates[:-1], n), "ticker": tickers * days, **bars})
    bought = 2 * n // 3
    return Drawn(frame, tickers[:bought], drift[:, :bought])


def wild_spells(days: int, rng: np.random.Generator) -> BoolArray:
    """Draw the (days,) of wild markets, which begin on one calm day in a hundred and last for 33 on average."""
    drawn, is_wild = rng.random(days), np.zeros(days, dtype=bool)
    for day in range(1, days):
        is_wild[day] = drawn[day] < (0.97 if is_wild[day - 1] else 0.01)
    return is_wild


def market_of(drawn: Drawn, config: Config) -> Market:
    """Build a market that was drawn."""
    loader = StockDataLoader.from_frame(drawn.bars, config=config.split, investable_tickers=drawn.tickers)
    loader.load_and_prepare()
    return build_market(loader, config.split, config.env)


def structure_run(
    config: Config, name: str, budget: Budget, *, is_told: bool, noise: str = "", part: str | None = None
) -> Record:
    """Train on a structure's first days; measure the champion and the truth on its last ones.

    Args:
        noise: a group of inputs in the place of which is noise, nothing in that of formulas.
        part: see `measured`.
    """
    drawn = draw(name, config, is_told=is_told)
    market, drift = market_of(drawn, config), drawn.drift
    if noise != FORMULAS:
        market = replace(market, features=_with_noise(market, noise, config.seed))
        return measured(config, market, drift, budget, part)
    with mock.patch.object(Formulas, "fit", lambda _, __, learned: [Formulas() for _ in learned]):
        return measured(config, market, drift, budget, part)


def _with_noise(market: Market, group: str, seed: int) -> tuple[Feature, ...]:
    """Return the features of a market, those of a group without what they tell; what is shared stays shared."""
    rng, shape = np.random.default_rng([seed, 1]), (len(market.dates), len(market.tickers))

    def noisy(feature: Feature) -> Feature:
        drawn = rng.standard_normal((shape[0], 1) if feature.form == "past" else shape)
        table = pd.DataFrame(np.broadcast_to(drawn, shape), market.dates, market.tickers)
        return replace(feature, of=lambda bars: table.loc[bars.dates, list(bars.tickers)])

    return tuple(noisy(one) if one.group == group else one for one in market.features)


def measured(
    config: Config,
    market: Market,
    drift: Float64Array,
    budget: Budget,
    part: str | None = None,
    *,
    has_trees: bool = False,
) -> Record:
    """Train on a market's first days; measure champion, truth and, if asked for, trees on its last ones.

    Args:
        part: what is altered, of `ALTERATIONS`.
    """
    trained = fit(config, market, budget, ALTERATIONS[part] if part else None)
    champion, portfolio = trained.trainer.champion, Portfolio.on(market, config.env)
    first, last = days_measured(market)
    shrunk = Holder.of_agent(champion, market, slice(first, last))
    tuning = Tuning.of(market, portfolio)
    trees = dict[str, Holder]()
    if has_trees:
        known = trained.trainer.training_days
        rival = fit_supervised(market, tuning, days=slice(first, last + 1), known=known)[LIGHTGBM]
        trees[LIGHTGBM] = Holder.of_rule(rival.rule, market)
    truth = Holder.of_rule(tuning.tuned(100 * drift), market)
    holders = {CHAMPION: shrunk, IN_FULL: shrunk.in_full(), **trees, TRUTH: truth}
    held = hold(portfolio, holders, first, last, drift)
    scores, days = shrunk.forecasts.score[0].numpy().astype(np.float64), slice(first, last)
    policies = {policy: one.record() for policy, one in held.items()}
    correlation = mean_correlation(scores[days], drift[days])
    return {"policies": policies, "correlation": correlation, "shrink": champion.shrink, **trained.record()}


def days_measured(market: Market) -> tuple[int, int]:
    """Return the first of the days after those of training, and the last day."""
    return market.splits.validation.first, len(market.dates) - 1


def mean_correlation(scores: Float64Array, drift: Float64Array) -> float:
    """Return the mean over days of the correlation over stocks; 0 where one of them is the same for all."""
    x, y = (values - values.mean(axis=1, keepdims=True) for values in (scores, drift))
    norm = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return float(np.divide((x * y).sum(axis=1), norm, out=np.zeros(len(norm)), where=norm > 0).mean())


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", seeds=2)
    add_training_flags(parser, generations=10)
    parser.add_argument("--structures", nargs="+", default=[*STRUCTURES], choices=[*STRUCTURES], help="default: all")
    parser.add_argument("--noise", default="", choices=NOISY, help="inputs that tell nothing; default: none of them")
    add_part_flag(parser)
    parser.add_argument("--told", choices=("no", "yes", "both"), default="both", help="whether a column tells them")
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Measure each structure and print its line as soon as it is known."""
    arguments, config, budget = study.arguments, study_config([*SIZE, *study.words]), budget_of(study.arguments)
    header = "".join(f" {policy:>20}" for policy in (CHAMPION, IN_FULL, TRUTH))
    print(f"{'':<14} {'seeds':>5} {'correlation':>15} {'shrink':>6}{header}")
    print(f"{'':<43}" + f" {'excess':>6} {'expected':>8} {'IR':>4}" * 3, flush=True)
    told = {"no": (False,), "yes": (True,), "both": (False, True)}[arguments.told]
    for name in arguments.structures:
        for is_told in told:
            how = {"is_told": is_told, "noise": arguments.noise, "part": arguments.part}
            task = partial(structure_run, name=name, budget=budget, **how)
            labels = {"study": "structures", "structure": name, **how, **asdict(budget)}
            records = study.records(each_seed(config, study.seeds, task, **labels))
            print(line(f"{name}{', told' * is_told}", records), flush=True)


def line(name: str, records: list[Record]) -> str:
    """Format means over seeds."""
    shown = f"{name:<14} {len(records):>5} {plus_minus(*mean_interval([one['correlation'] for one in records])):>15}"
    shown += f" {np.mean([one['shrink'] for one in records]):6.2f}"
    for policy in (CHAMPION, IN_FULL, TRUTH):
        excess, expected, ratio = (
            np.mean([one["policies"][policy][key] for one in records])
            for key in ("excess", "expected", "information_ratio")
        )
        shown += f" {excess:6.1f} {expected:8.1f} {ratio:4.1f}"
    return shown
