"""Accounts on paths whose true drift is known: of each policy, from cash at the first close to the last day.

All are played side by side.

Whatever is compared holds scores by the same band: agents, the planted rule, the oracle, ridge regression and trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.learning.study import Record
from data.features.bank import relative_risk
from data.market import Market
from data.synthetic.built_in import MARKET_SEED, PlantedScores, built_in_market, synthetic_market
from environment.account import Account
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts
from training.evaluation.baselines import BandRule, numbers_of
from training.rollout import roll_out
from training.run.market import with_own_features
from utils.arrays import Float64Array
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.metrics import TRADING_DAYS_PER_YEAR, YEAR_ROOT

UNSEEN_SEED = 2_000_000
"""Seed of the first unseen path while things are developed; training paths have small ones."""
UNSEEN_PATHS = 3
_YEAR = 100 * TRADING_DAYS_PER_YEAR


@dataclass(frozen=True)
class Holder:
    """Forecasts of a market's days, and the numbers by which the band holds them, see `roll_out`."""

    forecasts: Forecasts
    genes: Tensor
    """(1, 4) of the price of risk, the largest weight, the price of the risk of cash and the hurdle."""
    shrink: float
    timing: float

    @classmethod
    def of_agent(cls, agent: DDPGAgent, market: Market, days: slice) -> Holder:
        """Let an agent forecast some days of a market."""
        return cls(agent.forecasts(market, days), agent.acting_genes[:, :4], agent.shrink, agent.timing)

    @classmethod
    def of_rule(cls, rule: BandRule, market: Market) -> Holder:
        """Hold a market by a rule."""
        numbers = numbers_of([rule], torch.device("cpu"))
        forecasts = rule.forecasts(torch.from_numpy(relative_risk(market.close)))
        return cls(forecasts, numbers["genes"], float(numbers["shrink"]), float(numbers["timing"]))

    def in_full(self) -> Holder:
        """Return the holder of which all differences between scores are believed."""
        return replace(self, shrink=1.0)

    @property
    def benchmark(self) -> Holder:
        """The holder of which nothing is believed."""
        return replace(self, shrink=0.0, timing=0.0)


@dataclass(frozen=True)
class Held:
    """What an account earned over that of its benchmark beside it."""

    excess: float
    """Percent a year."""
    expected: float
    """The same by the true drift of what was held, less costs; NaN where that is not known."""
    tracking_error: float
    """Deviation of the daily excess, percent a year."""
    turnover: float
    """Value bought and sold a year, over twice the equity."""

    @property
    def information_ratio(self) -> float:
        """Excess over tracking error; 0 of the benchmark itself."""
        return self.excess / self.tracking_error if self.tracking_error > 0 else 0.0

    def record(self) -> Record:
        """Return plain numbers."""
        return {**asdict(self), "information_ratio": self.information_ratio}


def hold(
    portfolio: Portfolio,
    holders: Mapping[str, Holder],
    first: int,
    last: int,
    drift: Float64Array | None = None,
) -> dict[str, Held]:
    """Play holders of a portfolio's market from cash at the close of a first day to a last one, and the benchmark.

    Args:
        drift: (days, n) predictable part of the log return of the session after each close.
    """
    players = [*holders.values(), next(iter(holders.values())).benchmark]
    shrink, timing = torch.tensor([[one.shrink, one.timing] for one in players], dtype=torch.float64).unbind(1)
    genes, forecasts = torch.cat([one.genes for one in players]), Forecasts.joined([one.forecasts for one in players])
    how: dict[str, Any] = {"shrink": shrink, "timing": timing, "label": "Holding", "keeps_trades": True}
    roll_out(portfolio, forecasts, genes, torch.tensor([first]), last - first, **how)
    found = _measured(portfolio.account, None if drift is None else drift[first:last])
    return dict(zip(holders, found, strict=True))


def _measured(account: Account, drift: Float64Array | None) -> list[Held]:
    """Measure accounts against the last one, which holds the benchmark."""
    trades, equity = account.trades(), account.equity_curve
    value = (trades.filled * trades.price.nan_to_num()).abs() + (trades.closed * trades.closed_price).abs()
    traded = value.sum(2) / equity[:-1]
    daily = equity.diff(dim=0) / equity[:-1]
    expected = -account.rules.cost_rate * traded
    if drift is not None:
        shares = (trades.filled + trades.closed).cumsum(0)
        after = shares - trades.closed
        worth = after * trades.price.nan_to_num()
        # Drift is earned from the open on, and what is not traded on a day earns nothing.
        growth = torch.from_numpy(np.expm1(drift)).nan_to_num()[:, None]
        expected = expected + (worth * growth).sum(2) / equity[:-1]
    excess, foreseen = (np.asarray((part[:, :-1] - part[:, -1:]).cpu()) for part in (daily, expected))
    return [
        Held(
            float(_YEAR * excess[:, lane].mean()),
            float(_YEAR * foreseen[:, lane].mean()) if drift is not None else math.nan,
            float(100 * YEAR_ROOT * excess[:, lane].std()),
            float(TRADING_DAYS_PER_YEAR * traded[:, lane].mean() / 2),
        )
        for lane in range(excess.shape[1])
    ]


@dataclass(frozen=True)
class UnseenPath:
    """A path that nothing was fitted on."""

    market: Market
    scores: PlantedScores
    drift: Float64Array
    """(days, n), see `hold`."""
    days: slice
    """Of decisions."""


Fitted = Callable[[UnseenPath], Holder]
"""From any path of the law to the holder that plays it with what was fitted on the training path."""


@dataclass(frozen=True)
class UnseenPaths:
    """The unseen paths of a study: others for each seed, so that intervals over seeds hold for other paths too."""

    unseen_seed: int = UNSEEN_SEED
    """Seed of the first path of seed 0; those of the other seeds follow."""
    paths: int = UNSEEN_PATHS
    """Of each seed."""
    days: int | None = None
    """Of each path; None: as many as the training path has."""

    def each(self, config: Config, training: Market) -> Iterator[UnseenPath]:
        """Draw the paths of a seed one after the other, normalised as its training path was."""
        first = self.unseen_seed + config.seed * self.paths
        law = replace(config.synthetic, days=self.days or config.synthetic.days)
        for seed in range(first, first + self.paths):
            market, scores = built_in_market(law, config.split, config.env, seed=seed)
            market = with_own_features(replace(market, stats=training.stats), config.features, audits=False)
            drift = synthetic_market(law, seed).drift[:, : law.stocks]
            yield UnseenPath(market, scores, drift, slice(config.split.context_window_days, len(market.dates) - 1))

    def measure(self, config: Config, training: Market, fitted: Mapping[str, Fitted]) -> Record:
        """Play the policies on all paths of a seed; return their measures, means over paths, by policy."""
        found = []
        for path in self.each(config, training):
            holders = {name: one(path) for name, one in fitted.items()}
            portfolio = Portfolio.on(path.market, config.env)
            held = hold(portfolio, holders, path.days.start, path.days.stop, path.drift)
            found.append({name: one.record() for name, one in held.items()})
        return {
            name: {measure: float(np.mean([path[name][measure] for path in found])) for measure in found[0][name]}
            for name in fitted
        }

    def require_unseen(self, seeds: Sequence[int]) -> None:
        """Raise ConfigError where an unseen path might be one that a seed trains on."""
        last = MARKET_SEED + max(seeds, default=0)
        if self.unseen_seed <= last:
            raise ConfigError(
                f"expected --unseen-seed above {last}, the seed of the last path that is trained on, got "
                f"{self.unseen_seed}"
            )

    def __str__(self) -> str:
        return f"unseen paths from seed {self.unseen_seed}, {self.paths} of each seed"


def training_market(config: Config) -> tuple[Market, PlantedScores]:
    """Return the path that a seed trains on; seed 0's is that of `python main.py`."""
    market, scores = built_in_market(config.synthetic, config.split, config.env, seed=MARKET_SEED + config.seed)
    return with_own_features(market, config.features, audits=False), scores
