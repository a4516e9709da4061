"""Champion, baselines and random pickers, played under the same rules on windows that follow one another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from data.market import Market
from environment.basket import Basket, BasketAccount
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment, trade_ledger
from environment.trading_rules import Orders
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts
from training.evaluation.baselines import (
    ALL_ORDERS,
    BASKET,
    BENCHMARK,
    CHAMPION,
    CLOSED,
    EQUAL,
    EQUAL_RISK,
    HOLD,
    RANDOM,
    ScoreRule,
    equal_risk,
    score_policy,
)
from training.evaluation.measures import EquityCurves, mix_accounts
from training.forecasts.skill import HORIZONS, agent_scores, known_share, returns_ahead
from training.rollout import play_agent_on, purchases, step_by
from utils.arrays import Float64Array
from utils.memory.guard import require_memory
from utils.progress import progress

COSTS_BPS = (0.0, 5.0, 10.0, 25.0, 50.0)
"""Per leg, commission and slippage together."""
_RANDOM_AT_COST = 100
_SHIFTS = 125
"""Shifts in time of the random pickers' orders; within each shift the draws are averaged out."""


@dataclass(frozen=True)
class EvaluationSetup:
    """A market, its windows and the trading rules under which policies are compared."""

    market: Market
    env: Portfolio
    starts: Tensor
    """(W,) first days of windows of the rules' length, on the environment's device."""
    benchmark: Float64Array | None = None
    """(days,) closes of the user's benchmark, known on all days of the windows."""
    basket: Basket | None = None
    """What the champion holds with the capital that does not follow it; None: all stocks."""

    @property
    def judged(self) -> slice:
        """Return the days from the first to the last on which a window is played."""
        first, last = torch.stack(self.starts.aminmax()).tolist()
        return slice(first, last + self.env.rules.episode_steps)

    @property
    def days(self) -> npt.NDArray[np.int64]:
        """Return the (W, D + 1) day indices of the windows."""
        return np.asarray(self.starts.cpu().numpy()[:, None] + np.arange(self.env.rules.episode_steps + 1))

    def under(self, **changes: Any) -> EvaluationSetup:
        """Return the setup with some trading rules changed."""
        env, rules = self.env, replace(self.env.rules, **changes)
        return replace(self, env=Portfolio(env.bars, rules, is_continuing=env.is_continuing))

    @property
    def for_pickers(self) -> EvaluationSetup:
        """Return the setup without a volume cap, since orders of a filled size are not cut a second time, and without
        stops."""
        free = {"volume_cap": 0.0, "stop_percent": 0.0}
        return self.under(**free) if any(getattr(self.env.rules, name) for name in free) else self


def _trades(env: Portfolio) -> list[dict[str, Any]]:
    return [{"window": window, **trade} for window in range(env.lanes) for trade in trade_ledger(env, window)]


def play_rules(setup: EvaluationSetup, rules: Mapping[str, ScoreRule]) -> dict[str, EquityCurves]:
    """Play rules, side by side, under the agents' limits and costs."""
    if not rules:
        return {}
    policy = score_policy(setup.env, [*rules.values()], setup.judged)
    curves = _play_days(setup, len(rules), lambda step: step_by(setup.env, policy, step))
    return {name: curves.each(itemgetter(slice(place, place + 1))) for place, name in enumerate(rules)}


def play_random(setup: EvaluationSetup, plan: Orders, count: int, generator: torch.Generator) -> EquityCurves:
    """Play random pickers: a plan's days and sizes, but stocks drawn at random among the candidates.

    An order is cut to the account's own cash, and left out where no candidate or no cash is left. A position is sold
    when that of the plan was, by whatever rule: with targets and stops of their own pickers would be invested on other
    days, and what the market pays for these would look like selection.
    """
    return execute_again(setup.for_pickers, _without_exits(plan), count, generator)


def play_shifted(setup: EvaluationSetup, plan: Orders, count: int, generator: torch.Generator) -> EquityCurves:
    """Play random pickers with a plan's orders shifted in time, on a circle of all windows' trading steps.

    The shifts are spread evenly over the circle, each drawn within its own part of it. A policy of the curves is one
    shift: the mean account of all its draws of stocks.
    """
    setup, plan, shifts = setup.for_pickers, _without_exits(plan), min(count, _SHIFTS)
    draws, windows, trading = count // shifts, len(setup.starts), setup.env.rules.trading_days
    length = windows * trading
    offset, order_key = torch.rand(2, shifts, generator=generator, dtype=torch.float64).to(setup.starts.device)
    moved = ((order_key.argsort() + offset) * length / shifts).long()
    first = trading * torch.arange(windows, device=moved.device)
    # (lanes,) where in the circle each lane begins, draws within shifts.
    begin = (first - moved.repeat_interleave(draws)[:, None]).flatten()
    # From an order to the decision on its sale; 0: nobody decided on it.
    assert plan.sale_step is not None
    sessions = (plan.sale_step - torch.arange(len(plan.sale_step), device=begin.device)[:, None, None]).clamp(min=0)

    def by_time(part: Tensor) -> Tensor:
        """Return (steps, orders, windows) as (windows * trading, orders), the circle."""
        return part[:trading].permute(2, 0, 1).flatten(0, 1)

    stock, coefficient, target = by_time(plan.stock), by_time(plan.coefficient), by_time(plan.target_percent)
    step_of = torch.arange(trading, device=begin.device)[:, None]
    sold_after = by_time(sessions)[(begin + step_of) % length].movedim(-1, 1)  # (trading, orders, lanes)
    sale_step = sold_after.new_full((setup.env.rules.episode_steps, *sold_after.shape[1:]), -1)
    sale_step[:trading] = torch.where(sold_after > 0, step_of[..., None] + sold_after, -1)

    def order(step: int) -> None:
        env, now = setup.env, (begin + min(step, trading - 1)) % length
        orders = _drawn(env, Orders(stock[now].T, coefficient[now].T, target[now].T), generator)
        env.step_orders(replace(orders, sold=env.planned_sales(sale_step)))

    curves = _play_days(setup, shifts * draws, order)
    return curves.each(lambda values: values.reshape(shifts, draws, *values.shape[1:]).mean(axis=1))


def _without_exits(plan: Orders) -> Orders:
    """Return a plan whose positions end when they did, and by no sale target."""
    never = torch.full_like(plan.target_percent, torch.inf)
    return replace(plan, target_percent=never, sale_step=plan.until, moves=None)


def execute_again(
    setup: EvaluationSetup, plan: Orders, copies: int = 1, generator: torch.Generator | None = None
) -> EquityCurves:
    """Execute the same orders under the rules of this setup; with a generator, for stocks drawn at random."""
    sale_step = None if plan.sale_step is None else plan.sale_step.repeat(1, 1, copies)

    def order(step: int) -> None:
        orders, sold = None, None if sale_step is None else setup.env.planned_sales(sale_step)
        if sold is not None or (plan.coefficient[step] > 0).any():
            arrays = (plan.stock, plan.coefficient, plan.target_percent)
            orders = replace(Orders(*(part[step].repeat(1, copies) for part in arrays)), sold=sold)
            if plan.moves is not None:
                orders = replace(orders, moved_target=plan.moves[step].repeat(copies, 1)[setup.env.open_stocks()])
            orders = orders if generator is None else _drawn(setup.env, orders, generator)
        setup.env.step_orders(orders)

    return _play_days(setup, copies, order)


def _drawn(env: Portfolio, orders: Orders, generator: torch.Generator) -> Orders:
    """Replace the stocks of orders by candidates drawn at random."""
    candidates = env.candidates()
    # Above 0, so that every candidate may be drawn.
    score = (1.0 - torch.rand(candidates.shape, generator=generator).to(candidates.device)) * candidates
    best, stock = score.topk(len(orders.stock), dim=1)
    return replace(orders, stock=stock.T, coefficient=orders.coefficient * (best.T > 0))


def _play_days(setup: EvaluationSetup, policies: int, act: Callable[[int], object]) -> EquityCurves:
    """Play all windows once for each policy; `act` orders on each day and ends it."""
    env, invested = setup.env, []
    env.reset(setup.starts.repeat(policies))
    for step in range(env.rules.episode_steps):
        invested.append(_invested_share(env))
        act(step)
    return EquityCurves.of(env, invested, policies)


def play_held(setup: EvaluationSetup) -> dict[str, EquityCurves]:
    """Play the champion's basket, equal weight, buy and hold, equal risk and the user's benchmark, if there is one.

    All but the benchmark are baskets. Equal weight and equal risk (in proportion to one over the volatility at the
    first close) are of all stocks, and like the champion's bought at each window's first open and sold at its last
    close, unless accounts go on; buy and hold is equal weight in one account that goes on over all windows. The
    benchmark is held from close to close without costs: an index itself is not traded.
    """
    market, rules, starts, steps = setup.market, setup.env.rules, setup.starts.cpu(), setup.env.rules.episode_steps
    every, windows = Basket(setup.env.bars, market.investable_columns), len(starts)

    def curves_of(account: BasketAccount) -> EquityCurves:
        """Return the curves of W windows, or of one account that goes on over all of them."""
        days = np.arange(windows)[:, None] * steps + np.arange(steps + 1)
        equity, invested = (part.cpu().numpy() for part in (account.equity, account.invested))
        if len(equity) < windows:
            equity, invested = equity[0, days], invested[0, days]
        traded = np.zeros(windows)
        traded[: len(account.traded)] = account.traded.cpu().numpy()
        anew, exposure = rules.initial_capital / equity[:, :1], (invested / equity)[:, :-1].mean(axis=1)
        return EquityCurves.untraded(equity * anew, exposure, traded, rules.cost_rate * traded)

    is_sold = not setup.env.is_continuing
    equal = curves_of(every.hold(rules, starts, steps, is_sold=is_sold))
    weights = torch.from_numpy(np.stack([equal_risk(market.close, start) for start in starts.tolist()]))
    curves = {
        BASKET: equal if setup.basket is None else curves_of(setup.basket.hold(rules, starts, steps, is_sold=is_sold)),
        EQUAL: equal,
        HOLD: curves_of(every.hold(rules, starts[:1], windows * steps, is_sold=is_sold)),
        EQUAL_RISK: curves_of(every.hold(rules, starts, steps, weights=weights, is_sold=is_sold)),
    }
    if setup.benchmark is not None:
        closes, nothing = setup.benchmark[setup.days], np.zeros(windows)
        path = rules.initial_capital * closes / closes[:, :1]
        curves[BENCHMARK] = EquityCurves.untraded(path, 1 + nothing, nothing, nothing)
    return curves


@dataclass(frozen=True)
class PlayedPolicies:
    """The accounts of all policies that are compared, by policy."""

    curves: Mapping[str, EquityCurves]
    """The judged policy first; a champion is followed by the two accounts of which it consists. Only the curves of
    random pickers hold many policies: each repeats the orders with stocks drawn at random, beside the same
    basket."""
    trades: Sequence[dict[str, Any]]
    """Of the judged policy; amounts are those of the capital that follows the agents."""
    days: npt.NDArray[np.int64]
    """(W, D + 1) day indices of the windows."""
    at_cost: Mapping[float, Mapping[str, EquityCurves]]
    """Curves under other costs, by basis points per leg: the champion's orders again, and the baselines."""
    shifted: EquityCurves
    """Random pickers with the champion's orders on other days; one policy per shift."""
    held_profit: Float64Array
    """(W * D,) what the champion's basket earned of its profit, percent of the initial capital."""
    known_share: Float64Array
    scores: Mapping[str, Float64Array]
    """(W * D, n) of the champion and of the rules that order by scores, on each day but the last; NaN: none."""
    ahead: Mapping[int, Float64Array]
    """(W * D, n) log returns from the next open on, by sessions, see `HORIZONS`; NaN where not known on these days."""


@dataclass(frozen=True)
class OwnAccount:
    """A policy's account, all orders its own, with what it takes to judge it."""

    curves: EquityCurves
    trades: Sequence[dict[str, Any]]
    """See `trade_ledger`, with the `window` of each."""
    purchases: Orders
    """(steps, orders per day, windows) each, the size 0 where nothing was bought."""
    scores: Float64Array | None = None
    """(W * D, n) on each day of the windows but the last, NaN: none; None where it orders without scores."""
    share: float = 1.0
    """Of the capital that follows it; the rest holds the basket."""
    asked: str = ""
    """What was asked of the account and not done, in a sentence."""


def account_of_agent(setup: EvaluationSetup, agent: DDPGAgent, forecasts: Forecasts | None = None) -> OwnAccount:
    """Play an agent's account, all orders its own, by its forecasts on the market if they are given."""
    env, judged, invested = setup.env, setup.judged, list[Tensor]()
    if forecasts is None:
        forecasts = agent.forecasts(setup.market, judged)
    play_agent_on(
        TradingEnvironment.on(setup.market, env.rules, account=env),
        agent,
        forecasts,
        setup.starts,
        safe_point=lambda: invested.append(_invested_share(env)),
    )
    return OwnAccount(
        curves=EquityCurves.of(env, invested, 1),
        trades=_trades(env),
        purchases=purchases(env),
        scores=agent_scores(forecasts, judged),
        share=agent.share,
    )


def account_by(setup: EvaluationSetup, act: Callable[[int], object], scores: Float64Array | None = None) -> OwnAccount:
    """Play the account of a policy that orders on each step by `act`, which ends the day."""
    curves, env = _play_days(setup, 1, act), setup.env
    return OwnAccount(curves, _trades(env), purchases(env), scores)


def play_all(
    setup: EvaluationSetup,
    agent: DDPGAgent,
    score_rules: Mapping[str, ScoreRule],
    *,
    random_pickers: int,
    generator: torch.Generator,
    others: Mapping[str, DDPGAgent] | None = None,
) -> PlayedPolicies:
    """Play the champion, other agents and all baselines; champion and baselines again under other costs."""
    account, baselines = account_of_agent(setup, agent), play_baselines(setup, score_rules)
    beside = {name: account_of_agent(setup, other).curves for name, other in (others or {}).items()}
    if CLOSED in beside:  # it bets as the champion does
        basket = baselines.curves[BASKET]
        beside[CLOSED] = mix_accounts(beside[CLOSED], basket, agent.share, setup.env.rules.exposure)
    return play_judged(
        CHAMPION,
        account,
        score_rules,
        baselines,
        random_pickers=random_pickers,
        generator=generator,
        beside=beside,
    )


class Baselines(NamedTuple):
    """Baselines under one level of costs: what was held and what ordered by scores, by name."""

    setup: EvaluationSetup
    curves: Mapping[str, EquityCurves]
    at_cost: Mapping[float, Baselines]
    """The same under other costs, by basis points a leg; of these empty."""


def play_baselines(setup: EvaluationSetup, score_rules: Mapping[str, ScoreRule]) -> Baselines:
    """Play all baselines under the costs of the setup, and under others."""
    setups = [setup, *(setup.under(cost_bps=bps, slippage_bps=0.0) for bps in COSTS_BPS)]
    own, *others = (
        Baselines(one, {**play_held(one), **play_rules(one, score_rules)}, {})
        for one in progress(setups, "judge", "cost level")
    )
    return own._replace(at_cost=dict(zip(COSTS_BPS, others, strict=True)))


def play_judged(
    name: str,
    account: OwnAccount,
    score_rules: Mapping[str, ScoreRule],
    baselines: Baselines,
    *,
    random_pickers: int,
    generator: torch.Generator,
    beside: Mapping[str, EquityCurves],
) -> PlayedPolicies:
    """Play a policy's orders under other costs, and random pickers with them, beside the baselines.

    Args:
        name: of the policy; of the champion alone it is shown of what it consists.
        baselines: on the windows of the account, see `play_baselines`.
        beside: accounts of other policies, which are shown, and nothing else.
    """
    setup = baselines.setup
    judged, rules, share, exposure = setup.judged, setup.env.rules, account.share, setup.env.rules.exposure

    def play(level: Baselines, agents: EquityCurves, count: int) -> dict[str, EquityCurves]:
        basket = level.curves[BASKET]
        drawn = play_random(level.setup, account.purchases, count, generator)
        curves = {name: mix_accounts(agents, basket, share, exposure)}
        if name == CHAMPION:  # which alone consists of two accounts
            curves |= {ALL_ORDERS: agents, BASKET: basket}
        curves[RANDOM] = mix_accounts(drawn, basket, share, exposure)
        return curves | {other: held for other, held in level.curves.items() if other != BASKET}

    require_memory("pickers", {"--random-pickers": random_pickers, "windows": len(setup.starts), **setup.env.lane_size})
    curves = {**play(baselines, account.curves, random_pickers), **beside}
    at_cost = {}
    for bps, level in progress(baselines.at_cost.items(), "judge", "cost level"):
        again = execute_again(level.setup, account.purchases)
        at_cost[bps] = play(level, again, min(random_pickers, _RANDOM_AT_COST))
    opens = setup.env.bars.quotes.view(-1, setup.env.bars.stocks, 3)[: judged.stop + 1, :, 0].double().cpu().numpy()
    scores = {} if account.scores is None else {name: account.scores}
    scores |= {name: rule.scores[judged].astype(np.float64) for name, rule in score_rules.items()}
    shifted, basket = play_shifted(setup, account.purchases, random_pickers, generator), baselines.curves[BASKET]
    return PlayedPolicies(
        curves=curves,
        trades=[_scaled(trade, exposure * share) for trade in account.trades if share > 0],
        days=setup.days,
        at_cost=at_cost,
        shifted=mix_accounts(shifted, basket, share, exposure),
        held_profit=exposure * (1.0 - share) * basket.daily_profit[0],
        known_share=known_share(account.purchases, rules),
        scores=scores,
        ahead={sessions: returns_ahead(opens, judged, sessions) for sessions in HORIZONS},
    )


def _scaled(trade: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return a trade with its amounts multiplied."""
    return trade | {name: factor * trade[name] for name in ("shares", "value", "profit", "costs")}


def _invested_share(env: Portfolio) -> Tensor:
    """Return the (lanes,) shares of equity that were invested at the last close."""
    equity = env.equity
    return (equity - env.cash) / equity.clamp(min=1e-9)
