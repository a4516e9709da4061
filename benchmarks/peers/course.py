"""What peers learn from and are measured on: a training path of a planted market and unseen ones, or real prices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.learning.unseen import UnseenPath, UnseenPaths, training_market
from benchmarks.real_prices.parts import Source
from benchmarks.real_prices.plan import read_plan
from data.market import Market
from data.splits import consecutive_windows
from data.synthetic.built_in import PlantedScores
from environment.trading_env import TradingEnvironment
from utils.config.trader import Config

REAL = "real"
"""The kind of a course on real prices."""


@dataclass(frozen=True)
class Course:
    """A kind of market and a seed, with settings; real prices are a fold of the frozen plan a seed."""

    kind: str
    config: Config
    unseen: UnseenPaths
    files: tuple[Path, Path] | None = None
    """Prices and the list of investable stocks, of a course on real prices."""

    def training(self) -> tuple[Market, PlantedScores | None]:
        """Return the market that is learned from; the scores of rule and oracle where they are known."""
        if self.files is None:
            return training_market(self.config)
        source = Source(*self.files, read_plan())
        market = source.market(source.plan.universes[0], self.config.seed)
        return replace(market, volume=None), None

    def paths(self, market: Market) -> Iterator[UnseenPath]:
        """Yield what is played: unseen paths, or the test windows of a fold."""
        if self.files is None:
            yield from self.unseen.each(self.config, market.stats)
            return
        nothing = np.zeros((len(market.dates), len(market.investable_columns)))
        starts = consecutive_windows(market.splits.holdout, self.config.env.episode_steps)
        env = TradingEnvironment.on(market, self.config.env)
        yield UnseenPath(market, PlantedScores(nothing, nothing), env, starts)
