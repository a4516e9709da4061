"""Praise: what the report's verdict claims of a policy, counted over runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.learning.study import rate_interval
from data.market import Market
from data.splits import Span, consecutive_windows
from environment.portfolio import Portfolio
from environment.trading_rules import Orders
from training.evaluation.baselines import EQUAL, ScoreRule
from training.evaluation.play import EvaluationSetup, play_held, play_random, play_rules, play_shifted
from training.evaluation.verdict import Shifted, outcome, verdict
from training.forecasts.skill import known_share
from training.rollout import Policy, play, purchases
from utils.arrays import Float64Array
from utils.config.trader import Config
from utils.runs.seeding import named_generator

ProfitAndOrders = tuple[Float64Array, Orders]
"""(days,) profits of a policy in percent of the initial capital, and its purchases."""
Praise = Mapping[str, bool]
"""Whether a claim is made, by the claim."""


def setup_on(market: Market, config: Config, span: Span) -> EvaluationSetup:
    """Return a market with the windows that follow one another to the end of a span."""
    starts = consecutive_windows(span, config.env.episode_steps)
    return EvaluationSetup(market, Portfolio.on(market, config.env), starts)


def play_policy(setup: EvaluationSetup, policy: Policy) -> ProfitAndOrders:
    """Play any policy on the setup's windows."""
    _, equity = play(setup.env, policy, setup.starts)
    profit = 100 / setup.env.rules.initial_capital * np.diff(equity.T.numpy(), axis=1)
    return profit.reshape(-1), purchases(setup.env)


@dataclass(frozen=True)
class Judge:
    """What policies are judged against on one setup; each draws random pickers of its own."""

    setup: EvaluationSetup
    equal_weight: Float64Array
    baselines: Mapping[str, Float64Array]
    """(days,) profits by baseline."""
    random_pickers: int
    generator: torch.Generator

    @classmethod
    def on(cls, setup: EvaluationSetup, baselines: Mapping[str, ScoreRule], count: int, seed: int) -> Judge:
        """Play what does not depend on the policy that is judged."""
        profits = {name: curves.daily_profit[0] for name, curves in play_rules(setup, baselines).items()}
        generator = named_generator(seed, "random pickers")
        return cls(setup, play_held(setup)[EQUAL].daily_profit[0], profits, count, generator)

    def praise(self, played: ProfitAndOrders, share: float = 1.0) -> Praise:
        """Return every claim of the report's verdict on a policy, true or not; a share of the capital follows it, the
        rest holds the basket.

        Claims are the verdict's properties that are true or false, and the comparison with the best baseline.
        """
        basket, orders = (1.0 - share) * self.equal_weight, played[1]
        profit = share * played[0] + basket
        same_day, shifted = (
            share * draw(self.setup, orders, self.random_pickers, self.generator).daily_profit + basket
            for draw in (play_random, play_shifted)
        )
        known = known_share(orders, self.setup.env.rules)
        told = verdict(profit, same_day, Shifted(shifted, known, basket), self.equal_weight, baselines=self.baselines)
        values = {name: getattr(told, name) for name in dir(told) if not name.startswith("_")}
        claims = {name: bool(value) for name, value in values.items() if isinstance(value, bool | np.bool_)}
        if told.best_baseline is not None:
            beside = outcome(told.best_baseline.test)
            claims |= {f"is_{words} the best baseline": beside == words for words in ("better than", "worse than")}
        return claims


def praise_rows(heading: str, praise: Sequence[Mapping[str, Praise]]) -> Iterator[str]:
    """Format how often each claim was made of each policy: percent of the runs, with 95% intervals.

    Args:
        praise: for each run the claims by policy.
    """
    policies = list(praise[0])
    yield f"{heading}, {len(praise)} runs"
    yield f"{'':<26}" + "".join(f"{policy:>22}" for policy in policies)
    for claim in praise[0][policies[0]]:
        counts = [sum(run[policy][claim] for run in praise) for policy in policies]
        yield f"{claim.removeprefix('is_').replace('_', ' '):<26}" + "".join(_cell(n, len(praise)) for n in counts)


def _cell(count: int, of: int) -> str:
    low, high = rate_interval(count, of)
    return f"{f'{100 * count / of:.1f} ({100 * low:.1f} to {100 * high:.1f})':>22}"
