"""Tiny worlds, agents and trainers for tests of the learner; everything is seeded.

Their markets are made without the loader, see `small_market` for those that come through it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features import CLOSE, HIGH, LOW, NUM_FEATURES, OPEN, normalization_stats
from data.market import Market
from data.splits import Span, Splits
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.cash_value import BUCKETS, Accounts, CashValue
from models.ddpg_agent import DDPGAgent, Members
from models.evidence import Evidence, Trust
from models.inputs import GROUP_OF_INPUT, InputRows, TradeInputs
from models.networks import Networks
from models.population import RidgeRegressions
from models.replay_buffer import Batch, Transitions
from models.trader import Traders
from tests.market_cases import FloatArray, random_panel, random_volume
from tests.small_market import TINY_RULES, small_market
from training.erl_trainer import ERLTrainer
from training.generation_log import GenerationLog
from utils.config.trader import EnvironmentConfig, EvaluationConfig, EvolutionConfig, LearningConfig
from utils.spaces import TARGET_PERCENTS

CONTEXT = 8
FIRST_DAY = CONTEXT
INVESTABLE = (0, 2, 3, 5)
INPUTS = len(GROUP_OF_INPUT)
SURE = Evidence(selection=0.0, timing=0.0)
"""What makes an agent order by what it expects."""
TINY_LEARNING = LearningConfig(
    replay_capacity=500,
    training_starts=10,
    gradient_steps=2,
    gradient_accumulation=2,
    batch_size=8,
    hidden=4,
)
TINY_EVOLUTION = EvolutionConfig(population_size=4)
TINY_EVALUATION = EvaluationConfig(fitness_windows=2, exploration_windows=1, validation_windows=2, evidence="report")


@dataclass(frozen=True)
class World:
    """A market with accounts on it."""

    market: Market
    env: Portfolio

    @cached_property
    def trading(self) -> TradingEnvironment:
        """The environment that trades with `env`."""
        return TradingEnvironment.on(self.market, self.env.rules, account=self.env)

    @property
    def stocks(self) -> int:
        return len(self.market.investable_columns)

    @property
    def days(self) -> int:
        return len(self.market.dates)

    def starts(self, count: int, seed: int = 0) -> Tensor:
        """Random first days of whole episodes."""
        last = self.days - 1 - self.env.rules.episode_steps
        return torch.randint(FIRST_DAY, last + 1, (count,), generator=seeded(seed))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def tiny_rules(**changes: Any) -> EnvironmentConfig:
    settings = {
        "trading_days": 6,
        "settlement_days": 2,
        "max_holding_days": 3,
        "max_days_without_bar": 2,
        "stake_percent": 4.0,
    }
    return EnvironmentConfig(**(settings | changes))


def world_of(
    panel: FloatArray,
    investable: Sequence[int] | None = None,
    rules: EnvironmentConfig | None = None,
    volume: FloatArray | None = None,
) -> World:
    """A world of (days, columns, 4) prices: open, high, low, close, NaN where there is no bar."""
    days, columns = panel.shape[:2]
    data = np.full((days, columns, NUM_FEATURES), np.nan, dtype=np.float32)
    data[..., [OPEN, HIGH, LOW, CLOSE]] = panel
    chosen = np.arange(columns) if investable is None else np.asarray(investable)
    span = Span(FIRST_DAY, days - 1)
    market = Market(
        data,
        np.datetime64("2020-01-01") + np.arange(days),
        [f"S{column}" for column in range(columns)],
        chosen.astype(np.int64),
        Splits(span, span, span),
        normalization_stats(data, days - 1),
        8.0,
        volume,
    )
    env = Portfolio.on(market, rules or tiny_rules())
    return World(market, env)


def random_world(seed: int = 0, days: int = 40, rules: EnvironmentConfig | None = None) -> World:
    """Six columns, four of them investable, with gaps, jumps and stocks that start late or stop early.

    Under a volume cap they have volume, which cuts about half of the largest orders.
    """
    rng = np.random.default_rng(seed)
    panel, volume = random_panel(rng, days, 6), None
    if rules is not None and rules.volume_cap > 0:
        volume = random_volume(rng, panel, 10 * rules.stake * 100 / rules.volume_cap)
    return world_of(panel, INVESTABLE, rules, volume)


def trending_panel(returns: Sequence[float], days: int, noise: float = 0.004, seed: int = 0) -> FloatArray:
    """Prices of stocks with these constant daily returns and a little noise, no gaps: (days, stocks, 4)."""
    rng = np.random.default_rng(seed)
    steps = np.asarray(returns) + noise * rng.standard_normal((days, len(returns)))
    close = 50 * np.exp(np.cumsum(steps, axis=0))
    open_ = np.concatenate((np.full((1, len(returns)), 50.0), close[:-1]))
    high, low = np.maximum(open_, close) * 1.001, np.minimum(open_, close) * 0.999
    return np.stack((open_, high, low, close), axis=-1).astype(np.float32)


def rows_of(x: NDArray[np.float32], first_day: int = 0) -> InputRows:
    """The rows of (days, n, inputs) from this day on, all of which have a bar."""
    days = slice(first_day, first_day + len(x))
    rows = InputRows(days, np.ones((days.stop, x.shape[1]), dtype=np.bool_), x.shape[2])
    rows.fill(days, iter([(slice(0, x.shape[1]), x)]))
    return rows


def regressions(by_fold: Tensor) -> RidgeRegressions:
    """Ridge regressions with these (A, folds, inputs) weights, whose timing is fully trusted."""
    return replace(RidgeRegressions.zero(*by_fold.shape), by_fold=by_fold)


def tiny_agent(
    market: Market,
    weights: Sequence[float] | None = None,
    *,
    rules: EnvironmentConfig = TINY_RULES,
    target: float = 20.0,
    value_weight: float = 0.5,
    cash_value: CashValue | None = None,
    seed: int = 0,
) -> DDPGAgent:
    """An agent whose inputs are fitted to all days of a market.

    Args:
        weights: (inputs,) of its critic; default: random ones, by which about half of all orders gain.
        cash_value: default: random values, about as large as what it expects of an order.
    """
    draws = seeded(seed)
    drawn = torch.randn(INPUTS, generator=draws, dtype=torch.float64) if weights is None else torch.tensor(weights)
    drawn[0] = 0.0 if weights is None else drawn[0]
    nothing = CashValue.zero(rules)
    worth = 5 * torch.rand(len(nothing.weights), generator=draws, dtype=torch.float64)
    traders = Traders(
        drawn.double()[None],
        torch.tensor([target], dtype=torch.float64),
        torch.tensor([value_weight], dtype=torch.float64),
        torch.ones(1, dtype=torch.float64),
    )
    inputs = TradeInputs.fit(market, np.ones(len(market.dates), dtype=np.bool_))
    known = cash_value or nothing.with_values(worth, nothing.opportunity_knots)
    return DDPGAgent(inputs, traders, known, rules, SURE, Trust.full(INPUTS))


def networked(agent: DDPGAgent, seed: int = 0) -> DDPGAgent:
    """The same agent with a committee of two random networks in place of half of what ridge regression selects by."""
    draws = seeded(seed)
    networks = Networks.initialize(torch.ones(2, INPUTS - 1, dtype=torch.bool), 4, 2, 0.0, draws)
    for name, part in networks.tensors.items():
        if "_target." in name:
            part.copy_((0.2 if name.endswith("size") else 1.0) * torch.randn(part.shape, generator=draws))
    networks.base.copy_(torch.tensor([[0.5, 0.5, 0.3], [0.5, 2.0, 0.3]]))
    targets = len(TARGET_PERCENTS)
    members = Members(
        weights=agent.traders.weights.repeat(2, 1),
        ridge=networks.base[:, 0].double(),
        network=networks.base[:, 1].double(),
        start=torch.tensor([10.0, 30.0], dtype=torch.float64),
        deviation=torch.linspace(0.5, 1.5, targets),
        typical=torch.linspace(-0.1, 0.1, targets),
    )
    return replace(agent, networks=networks, members=members)


@torch.no_grad()
def shake(networks: Networks, scale: float, draws: torch.Generator) -> Networks:
    """Add noise to all parameters and targets, so that none is zero but for masked inputs; draw calibrations."""
    for name, part in networks.tensors.items():
        if "." in name and not name.endswith(".counts") and "_first." not in name and "_second." not in name:
            part += scale * torch.randn(part.shape, generator=draws)
    networks.calibration.uniform_(0.5, 2.0, generator=draws)
    networks.mask()
    return networks


def random_batch(
    rules: EnvironmentConfig,
    rows: int,
    folds: int = 2,
    *,
    orders: int = 1,
    days: int = 4,
    stocks: int = 3,
    seed: int = 0,
    missing: float = 0.0,
) -> Batch:
    """Transitions, a quarter of them to the last decision, and outcomes of all orders of a few days.

    Args:
        missing: share of the replayed days with fewer candidates than orders.
    """
    draws = seeded(seed)

    def account(left: Tensor) -> Accounts:
        cash, opportunity = torch.rand(2, rows, generator=draws, dtype=torch.float64)
        pending = 0.2 * torch.rand(rows, BUCKETS, generator=draws, dtype=torch.float64)
        return Accounts(cash, pending, left, 2 * opportunity)

    def candidates() -> Tensor:
        best = torch.randn(rows, orders, generator=draws, dtype=torch.float64).sort(1, descending=True).values
        best[torch.rand(rows, generator=draws) < missing, -1] = -torch.inf
        return best

    left = torch.randint(1, rules.trading_days, (rows,), generator=draws).double()
    left[::4] = 1.0
    state, following, best = account(left), account(left - 1), candidates()
    action = torch.rand(rows, orders, generator=draws, dtype=torch.float64) * best.isfinite()
    invested = action.sum(1) * rules.largest_order
    after = state.after(invested * (1 + rules.cost_rate), invested)
    reward = torch.randn(rows, generator=draws, dtype=torch.float64)
    transitions = Transitions(state, best, action, reward, after, following, candidates(), left <= 1)
    x = torch.randn(folds, days, stocks, INPUTS, generator=draws)
    return Batch(transitions, x, torch.randn(folds, days, stocks, len(TARGET_PERCENTS), generator=draws))


def learnable_market(seed: int = 0) -> Market:
    """The smallest random market that a learner takes: it has gaps, and three of its five columns may be bought."""
    return small_market(seed, 700, investable=(0, 2, 3))


def tiny_trainer(
    market: Market | None = None, *, seed: int = 0, rules: EnvironmentConfig = TINY_RULES, **changes: Any
) -> ERLTrainer:
    """A trainer of four agents on `learnable_market`, a generation of which takes milliseconds.

    Args:
        changes: other settings of learning, evolution and evaluation, and the other arguments of a trainer.
    """
    market = market or learnable_market()
    log = GenerationLog(3, torch.device("cpu"))
    parts: dict[str, Any] = {"learning": TINY_LEARNING, "evolution": TINY_EVOLUTION, "evaluation": TINY_EVALUATION}
    return ERLTrainer(market, TradingEnvironment.on(market, rules), seed=seed, **(parts | {"log": log} | changes))
