"""The parts of the study: a population trained on a fold and what it and the baselines do on that fold's test days."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.learning.markets import Budget, fit
from benchmarks.learning.praise import setup_on
from benchmarks.learning.study import Experiment
from benchmarks.real_prices.accounts import Record, pack, pack_pickers, pack_track
from benchmarks.real_prices.forms import FORMS, VARIANTS
from benchmarks.real_prices.plan import LISTED, Plan, Universe
from benchmarks.speed.harness import MemoryGauge
from data.bars import VOLUME
from data.features.nine import normalization_stats
from data.loader import StockDataLoader
from data.market import Market, with_features
from data.splits import Splits, make_folds
from models.ddpg_agent import DDPGAgent
from training.evaluation.baselines import BASKET, simple_rules
from training.evaluation.measures import EquityCurves, mix_accounts
from training.evaluation.play import EvaluationSetup, account_of_agent, play_held, play_random, play_rules, play_shifted
from training.evaluation.supervised import fit_supervised
from training.forecasts.skill import known_share, rank_correlation, trade_results
from utils.arrays import Float64Array
from utils.config.settings import flatten, from_dict, to_dict
from utils.config.trader import Config
from utils.runs.seeding import named_generator

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

    def market(self, universe: Universe, fold: int, inputs: str) -> Market:
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
            investable_columns=loader.investable_columns if universe.stocks == LISTED else columns,
            splits=splits,
            stats=normalization_stats(loader.data_array[days], splits.train.last),
            input_clip=self.plan.config.split.input_clip,
            volume=None if loader.volume is None else loader.volume[days],
        )
        return with_features(market) if inputs == "all" else market

    def setup(self, universe: Universe, market: Market) -> EvaluationSetup:
        """Return the test windows of a fold's market."""
        return setup_on(market, self.plan.config_of(universe), market.splits.holdout)


@lru_cache(maxsize=1)
def _loaded(data: Path, investable: Path, config: Config) -> StockDataLoader:
    try:
        has_volume = VOLUME in pq.read_schema(data).names
    except (pa.ArrowException, OSError):
        has_volume = False  # The loader says what is wrong with the file.
    loader = StockDataLoader(data, config=config.split, investable=investable, requires_volume=has_volume)
    loader.load_and_prepare()
    return loader


def trained_part(source: Source, universe: Universe, fold: int, seed: int, variant: str) -> Record:
    """Train a population on a fold and play all that is deployed of it on the test days."""
    with _cost() as cost:
        change = VARIANTS[variant]
        settings = flatten(to_dict(source.plan.config_of(universe))) | dict(change.settings)
        config = replace(from_dict(settings, Config), seed=seed)
        market = source.market(universe, fold, config.split.inputs)
        trained = fit(config, market, Budget(generations=config.generations), change.alter)
        setup, forms = source.setup(universe, market), {}
        results = trade_results(setup.env.bars, setup.env.rules, setup.judged)
        for name in source.plan.forms:
            # The same draws for all: agents that give the same orders are compared with the same random pickers.
            generator = named_generator(seed, f"real prices {universe.name} {fold}")
            agent = FORMS[name](trained.trainer)
            forms[name] = _play_form(setup, agent, results, source.plan, generator)
    kept = {name: value for name, value in trained.record().items() if "seconds" not in name}
    holds = trained.trainer.champion.share == 0
    return {"policies": forms, **kept, "holds_market": holds, "training_seconds": trained.cpu_seconds, **cost}


def _play_form(
    setup: EvaluationSetup, agent: DDPGAgent, results: Float64Array, plan: Plan, generator: torch.Generator
) -> Record:
    """Play an agent, and random pickers with its orders."""
    account = account_of_agent(setup, agent)
    track, orders = account.curves, account.purchases
    basket = play_held(setup)[BASKET]
    drawn = [play(setup, orders, plan.pickers, generator) for play in (play_random, play_shifted)]
    track, pickers, shifted = (mix_accounts(one, basket, agent.share) for one in (track, *drawn))
    held = (1.0 - agent.share) * basket.daily_profit[0]
    return {
        **_packed(track, account.scores, results),
        "pickers": pack_pickers(pickers, shifted, known_share(orders, setup.env.rules), held),
    }


def rivals_part(source: Source, universe: Universe, fold: int) -> Record:
    """Fit the supervised baselines on a fold; play them, the simple rules and the held portfolios on its test days."""
    with _cost() as cost:
        market, plan = source.market(universe, fold, source.plan.config.split.inputs), source.plan
        setup = source.setup(universe, market)
        rules, fitted = {}, fit_supervised(market, setup.env, refit_days=plan.rival_refit)
        for name, rival in fitted.items():
            rules[name] = rival.rule_on(market)
            if plan.rival_refit:
                rules[f"{name}, refitted every {plan.rival_refit} days"] = rival.rule
        rules |= simple_rules(market)
        days = setup.judged
        results, played = trade_results(setup.env.bars, setup.env.rules, days), {}
        for name, track in {**play_held(setup), **play_rules(setup, rules)}.items():
            scores = rules[name].scores[days].astype(np.float64) if name in rules else None
            played[name] = _packed(track, scores, results)
        dates = market.dates[days.start + 1 : days.stop + 1].astype("datetime64[D]")
    return {"policies": played, "dates": np.datetime_as_string(dates).tolist(), **cost}


def _packed(track: EquityCurves, scores: Float64Array | None, results: Float64Array) -> Record:
    """Pack what a policy did; `scores` and `results` are (days, n) of the test days."""
    ranked = np.full(len(results), np.nan)
    if scores is not None:
        ranked = rank_correlation(scores, results)
    return {"track": pack_track(track), "rank_ic": pack(ranked)}


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
    for universe in plan.universes:
        for fold in range(plan.folds.folds):
            key = {"plan": plan.digest[:_SHORT], "data": digest[:_SHORT], "universe": universe.name, "fold": fold}
            jobs.append(Experiment({**key, "part": RIVALS}, partial(rivals_part, source, universe, fold)))
            jobs += [
                Experiment(
                    {**key, "part": TRAINED, "variant": variant, "seed": seed},
                    partial(trained_part, source, universe, fold, seed, variant),
                )
                for variant in universe.variants
                for seed in plan.seeds
            ]
    return jobs


def chosen(records: Sequence[Record], universe: str, part: str, variant: str | None = None) -> list[Record]:
    """Return the records of a kind of part of a universe, by seed and fold."""
    wanted = universe, part, variant
    matching = [one for one in records if (one["universe"], one["part"], one.get("variant")) == wanted]
    return sorted(matching, key=lambda record: (record.get("seed", 0), record["fold"]))
