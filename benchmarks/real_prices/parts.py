"""The parts of the study: a population trained on a fold and what it and the baselines do on that fold's test days."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import MemoryGauge
from benchmarks.learning.markets import Budget, fit
from benchmarks.learning.study import Experiment, Record
from benchmarks.real_prices.plan import LISTED, Plan
from data.bars import VOLUME
from data.features.nine import normalization_stats
from data.loader import StockDataLoader
from data.market import Market, with_features
from data.splits import Splits, make_folds
from environment.portfolio import Portfolio
from training.evaluation.baselines import CHAMPION, IN_FULL, BandRule, Tuning, simple_rules
from training.evaluation.measures import measures_of
from training.evaluation.play import EvaluationSetup, Played, account_of_agent, play_held, play_rules
from training.evaluation.supervised import fit_supervised
from utils.config.trader import Config

TRAINED, RIVALS = "trained", "rivals"
_SHORT = 16


@dataclass(frozen=True)
class Source:
    """The data of the study, and its plan."""

    data: Path
    investable: Path
    plan: Plan

    def digest(self) -> str:
        """Return the SHA-256 (hex) of both files."""
        digest = hashlib.sha256()
        for path in (self.data, self.investable):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    @property
    def loader(self) -> StockDataLoader:
        """Return the prepared data, with volume where the file has it."""
        return _loaded(self.data, self.investable, self.plan.config)

    def folds(self) -> list[Splits]:
        """Return the folds. Raises DataError where the data are too short for them."""
        config = self.plan.config
        return make_folds(len(self.loader.dates), self.plan.folds, config.split, config.env)

    def market(self, universe: str, fold: int, inputs: str) -> Market:
        """Return the market of a fold, which ends with its last test day: nothing later can be seen.

        Args:
            inputs: what is read of it, as the setting `split.inputs` says.
        """
        loader, splits = self.loader, self.folds()[fold]
        days = slice(0, splits.holdout.last + 1)
        columns = np.arange(len(loader.tickers), dtype=np.int64)
        market = Market(
            data_array=loader.data_array[days],
            dates=loader.dates[days],
            tickers=loader.tickers,
            investable_columns=loader.investable_columns if self.plan.universes[universe].stocks == LISTED else columns,
            splits=splits,
            stats=normalization_stats(loader.data_array[days], splits.train.last),
            input_clip=self.plan.config.split.input_clip,
            volume=None if loader.volume is None else loader.volume[days],
        )
        return with_features(market) if inputs == "all" else market

    def setup(self, market: Market) -> EvaluationSetup:
        """Return the test days of a fold's market."""
        portfolio, days = Portfolio.on(market, self.plan.config.env), market.splits.holdout
        tuning, columns = Tuning.of(market, portfolio.under()), market.investable_columns.tolist()
        return EvaluationSetup(market, portfolio, tuning, days.first, days.days - 1, columns)


@lru_cache(maxsize=1)
def _loaded(data: Path, investable: Path, config: Config) -> StockDataLoader:
    try:
        has_volume = VOLUME in pq.read_schema(data).names
    except (pa.ArrowException, OSError):
        has_volume = False  # The loader says what is wrong with the file.
    loader = StockDataLoader(data, config=config.split, investable=investable, requires_volume=has_volume)
    loader.load_and_prepare()
    return loader


def trained_part(source: Source, universe: str, fold: int, seed: int, variant: str) -> Record:
    """Train a population on a fold, and play its champion on the test days, as shrunk and in full."""
    with _cost() as cost:
        config = replace(source.plan.universes[universe].variants[variant], seed=seed)
        market = source.market(universe, fold, config.split.inputs)
        trained = fit(config, market, Budget(generations=config.generations))
        setup, champion = source.setup(market), trained.trainer.champion
        forms = {CHAMPION: champion, IN_FULL: champion.shrunk(1.0)}
        played = {name: _packed(account_of_agent(setup, agent)) for name, agent in forms.items()}
    kept = {name: value for name, value in trained.record().items() if "seconds" not in name}
    return {"policies": played, **kept, "training_seconds": trained.cpu_seconds, **cost}


def rivals_part(source: Source, universe: str, fold: int) -> Record:
    """Fit the supervised baselines on a fold; play them, the simple rules and the held portfolios on its test days."""
    with _cost() as cost:
        market, refit = source.market(universe, fold, source.plan.config.split.inputs), source.plan.rival_refit
        setup, rules = source.setup(market), dict[str, BandRule]()
        for name, rival in fit_supervised(market, setup.tuning, refit_days=refit, days=setup.judged).items():
            rules[name] = rival.rule_on(market)
            if refit:
                rules[f"{name}, refitted every {refit} days"] = rival.rule
        rules |= simple_rules(market, setup.tuning)
        played = {name: _packed(one) for name, one in {**play_held(setup), **play_rules(setup, rules)}.items()}
    return {"policies": played, **cost}


def _packed(played: Played) -> Record:
    curves = played.curves
    return {"daily": curves.daily[0].round(9).tolist(), "turnover": float(measures_of(curves)["turnover"][0])}


@contextmanager
def _cost() -> Iterator[Record]:
    """Fill in wall and CPU seconds and peak memory of a part once it is done."""
    record, gauge, wall, cpu = Record(), MemoryGauge(), time.perf_counter(), time.process_time()
    yield record
    record["wall_seconds"] = round(time.perf_counter() - wall, 3)
    record["cpu_seconds"] = round(time.process_time() - cpu, 3)
    record["peak_rss_mb"] = round(gauge.peak_mb(), 1)


def all_jobs(source: Source, digest: str) -> list[Experiment]:
    """Return the jobs of the study in the order of its universes; keys hold the digests of plan and data."""
    plan, jobs = source.plan, list[Experiment]()
    for name, universe in plan.universes.items():
        for fold in range(plan.folds.folds):
            key = {"plan": plan.digest[:_SHORT], "data": digest[:_SHORT], "universe": name, "fold": fold}
            jobs.append(Experiment({**key, "part": RIVALS}, partial(rivals_part, source, name, fold)))
            jobs += [
                Experiment(
                    {**key, "part": TRAINED, "variant": variant, "seed": seed},
                    partial(trained_part, source, name, fold, seed, variant),
                )
                for variant in universe.variants
                for seed in plan.seeds
            ]
    return jobs
