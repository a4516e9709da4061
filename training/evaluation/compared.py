"""The baselines of some days, fitted and played once, and what is known of a judged policy beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from data.market import Market
from data.splits import Span
from data.synthetic.built_in import PlantedScores
from environment.benchmark import Benchmark
from environment.portfolio import Portfolio
from environment.position_history import daily_table, positions
from training.evaluation.baselines import (
    BENCHMARK,
    CASH,
    EQUAL,
    INDEX,
    MOMENTUM,
    NEXT_CLOSE,
    PLAIN_MOMENTUM,
    RANDOM,
    BandRule,
    Tuning,
    index_close,
    planted_rules,
    simple_rules,
)
from training.evaluation.measures import EquityCurves
from training.evaluation.permutation_nulls import Active
from training.evaluation.play import (
    Asked,
    EvaluationSetup,
    GivenWeights,
    Played,
    best_of,
    play_held,
    play_policy,
    play_rules,
)
from training.evaluation.supervised import fit_supervised
from training.forecasts.skill import DECAY, returns_ahead
from training.forecasts.training_days import TrainingDays
from utils.arrays import Float64Array, Int64Array
from utils.config.trader import Config, EvaluationConfig
from utils.errors import ConfigError
from utils.memory_guard import require_memory
from utils.progress import progress

COSTS_BPS = (0.0, 5.0, 10.0, 25.0, 50.0)
"""Per leg, commission and slippage together."""


@dataclass(frozen=True)
class PlayedPolicies:
    """The accounts of all policies that are compared."""

    curves: Mapping[str, EquityCurves]
    """By policy, the judged one first. Only those of the random pickers hold many accounts: the judged one's weights
    in other stocks, see `nulls`."""
    benchmark: str
    """Policy that the judged one is compared with first: the setup's benchmark, or cash."""
    market: str
    """Policy to whose returns betas refer: the setup's benchmark."""
    days: Int64Array
    """(D + 1,) days of the market."""
    tickers: Sequence[str]
    """(n,) of the stocks that accounts hold."""
    traded: Float64Array
    """(D, n) value that the judged account bought on each day after the first, negative: sold."""
    positions: Sequence[dict[str, Any]]
    """Of the judged account, see `environment.position_history`, with the `value` of what is left, which is part of the
    profit."""
    selection: Float64Array
    """(D,) daily returns of the judged account less the mean of its weights in other stocks, percent."""
    at_cost: Mapping[float, Mapping[str, EquityCurves]]
    """The same weights again under other costs, by basis points per leg."""
    scores: Mapping[str, Float64Array]
    """(D, n) of the policies that hold by scores, on each day but the last; NaN: none."""
    ahead: Mapping[int, Float64Array]
    """(D, n) log returns from the next open on, by sessions, see `DECAY`; NaN where not known on these days."""
    weights: Float64Array
    """(D, n) of the judged account after the fills, at the prices of the closes before."""
    asked: Asked | None = None
    """What was asked of the judged account; None of accounts that follow one another."""
    active_share: Mapping[str, float] = field(default_factory=dict)
    """Half the distance of its weights from those of each baseline and of plain momentum, mean over days; empty where
    `asked` is None."""
    correlation: Mapping[str, float] = field(default_factory=dict)
    """Of its daily returns with those of the same and of the index; NaN where either never changes."""
    active_correlation: Mapping[str, float] = field(default_factory=dict)
    """The same, of daily returns over the benchmark's."""

    @classmethod
    def joined(cls, parts: Sequence[PlayedPolicies]) -> PlayedPolicies:
        """Join what policies did on days that follow one another, perhaps by another champion each.

        Left out is a policy that is not in all parts, such as a baseline that could not be fitted in one.
        """
        first, daily = parts[0], ("curves", "traded", "selection", "at_cost", "scores", "ahead", "weights")
        return cls(
            benchmark=first.benchmark,
            market=first.market,
            days=np.concatenate((first.days[:1], *(part.days[1:] for part in parts))),
            tickers=first.tickers,
            positions=[one for part in parts for one in part.positions],
            **{name: _joined([getattr(part, name) for part in parts]) for name in daily},
        )


def _joined(parts: Sequence[Any]) -> Any:
    """Join accounts or daily values; of mappings of them those that all parts have."""
    if isinstance(first := parts[0], Mapping):
        common = [key for key in first if all(key in part for part in parts)]
        return {key: _joined([part[key] for part in parts]) for key in common}
    return EquityCurves.joined(parts) if isinstance(first, EquityCurves) else np.concatenate(parts)


def replay(portfolio: Portfolio, setup: EvaluationSetup, held: Float64Array) -> EquityCurves:
    """Hold the same (D, P, n) weights again in another portfolio's account, as at another cost of a leg."""
    account = portfolio.account
    account.reset(setup.start.repeat(held.shape[1]), steps=setup.steps)
    traded = torch.zeros_like(account.equity)
    for target in torch.from_numpy(held).to(account.device):
        shares, share = account.shares, account.last.nan_to_num() / account.equity[:, None]
        account.step(target)
        traded += ((account.shares - shares) * share).abs().sum(1)
    return EquityCurves.of(account, held, np.asarray(traded.cpu()))


def at_costs(setup: EvaluationSetup, played: Mapping[str, Played]) -> dict[float, dict[str, EquityCurves]]:
    """Return accounts that hold the same weights under other costs; those that may be short are played apart."""
    at_cost = dict[float, dict[str, EquityCurves]]()
    for bps in progress(COSTS_BPS, "Judging at other costs", "cost level"):
        at_cost[bps] = {policy: one.curves for policy, one in played.items()}
        for is_signed in {one.is_signed for one in played.values()}:
            alike = [policy for policy, one in played.items() if one.is_signed == is_signed]
            portfolio = setup.signed if is_signed else setup.portfolio
            together = np.concatenate([played[policy].held for policy in alike], axis=1)
            again = replay(portfolio.under(cost_bps=bps, slippage_bps=0.0), setup, together)
            at_cost[bps] |= {policy: again.one(place) for place, policy in enumerate(alike)}
    return at_cost


@dataclass(frozen=True)
class Baselines:
    """What stands beside every policy that is judged on some days, played once for all of them."""

    setup: EvaluationSetup
    rules: Mapping[str, BandRule]
    """Those that hold by a score."""

    @classmethod
    def fitted(
        cls,
        market: Market,
        planted: PlantedScores | None,
        config: Config,
        days: Span,
        judging: EvaluationConfig,
        device: torch.device | str = "cpu",
        known: TrainingDays | None = None,
    ) -> Baselines:
        """Fit supervised baselines to the training days, and tune simple rules and those of a built-in market there.

        Args:
            config: whose trading rules and seed apply.
            days: that are judged.
            known: the training days, where agents have just learned from them.

        Raises:
            ConfigError: there are no such days, or the benchmark cannot be read.
        """
        if not days.days:
            raise ConfigError(
                "expected data with a holdout, got none: training and validation use all days; leave --split out"
            )
        rules, span = dict[str, BandRule](), slice(days.first, days.last + 1)
        benchmark = Benchmark.of(market, judging.benchmark_weights, config.seed)
        portfolio = Portfolio.on(market, config.env, device, benchmark)
        setup = EvaluationSetup(
            market,
            portfolio,
            Tuning.of(market, portfolio.under()),
            days.first,
            days.days - 1,
            benchmark.columns.tolist(),
            BENCHMARK if judging.benchmark_weights else EQUAL,
            index_close(judging.benchmark, market, span),
        )
        if judging.rivals == "learned":
            refit = judging.rival_refit
            learned = fit_supervised(market, setup.tuning, refit_days=refit, days=span, known=known)
            rules = {name: one.rule for name, one in learned.items()}
        rules |= simple_rules(market, setup.tuning)
        if planted is not None:
            rules |= planted_rules(planted, setup.tuning)
        return cls(setup, rules)

    @cached_property
    def played(self) -> dict[str, Played]:
        """Return the accounts by name."""
        return {**play_held(self.setup), **play_rules(self.setup, self.rules)}

    @cached_property
    def beside_weights(self) -> dict[str, Played]:
        """Return the same, and plain momentum, whose scores may be followed in nothing by the rule."""
        if MOMENTUM not in self.rules:
            return self.played
        scores, can_be_bought = self.rules[MOMENTUM].scores, self.setup.can_be_bought
        fifth = 0.2 * (can_be_bought & np.isfinite(scores)).sum(axis=1, keepdims=True)
        plain = play_policy(self.setup, GivenWeights(best_of(scores, fifth, can_be_bought)))
        return {**self.played, PLAIN_MOMENTUM: plain}

    @cached_property
    def index(self) -> dict[str, EquityCurves]:
        """Return the user's index, held without a trade, by its name; nothing without one."""
        return {} if self.setup.index is None else {INDEX: self._untraded(self.setup.index, 1.0)}

    @cached_property
    def at_cost(self) -> dict[float, dict[str, EquityCurves]]:
        """Return the same under other costs."""
        return at_costs(self.setup, self.played)

    def beside(
        self,
        name: str,
        accounts: Mapping[str, Played],
        draws: int,
        generator: torch.Generator,
        costs: Mapping[float, Mapping[str, EquityCurves]] | None = None,
    ) -> PlayedPolicies:
        """Return one of some accounts, the judged one, with all that is played beside it.

        Args:
            accounts: by name; the others are shown, and nothing else.
            draws: number of random pickers.
            costs: the accounts under other costs, see `at_costs`; default: nothing is told of other costs.
        """
        setup, judged, own = self.setup, accounts[name], {name: accounts[name], **accounts}
        curves = {policy: one.curves for policy, one in {**own, **self.played}.items()}
        at_cost = {bps: {n: of[n] for n in own} | self.at_cost[bps] | self.index for bps, of in (costs or {}).items()}
        if setup.portfolio.rules.fill == "next_open":
            curves[NEXT_CLOSE] = replay(self._at_close(judged.is_signed), setup, judged.held)
        curves |= self.index
        require_memory("random pickers", {"--random-pickers": draws, "days": setup.steps, "bytes": 48})
        if judged.is_neutral:
            curves[CASH] = self._untraded(np.ones(setup.steps + 1), 0.0)
        active = self._active(judged)
        drawn = np.maximum(judged.curves.daily + active.permuted(draws, generator), -100.0)
        first = {name: curves.pop(name), RANDOM: _random_curves(judged.curves, drawn)}
        trades, rules = judged.trades, setup.portfolio.rules
        assert trades is not None
        how = {"fills_at_close": rules.fill == "same_close", "is_flat_at_end": False}
        scores = {} if judged.scores is None else {name: judged.scores}
        scores |= {n: rule.scores[setup.judged].astype(np.float64) for n, rule in self.rules.items()}
        opens = setup.prices(setup.portfolio.quotes.open)[:, : len(setup.market.investable_columns)]
        last = pd.DataFrame(setup.prices(setup.portfolio.quotes.close)).ffill().iloc[-1].tolist()
        return PlayedPolicies(
            curves={**first, **curves},
            benchmark=CASH if judged.is_neutral else setup.benchmark,
            market=setup.benchmark,
            weights=judged.held[:, 0],
            asked=judged.asked,
            **self._alike(judged),
            days=setup.days,
            tickers=[setup.market.tickers[column] for column in setup.columns],
            traded=daily_table(trades, 0),
            positions=[
                {**one, "value": one["shares"] * worth, "profit": one["profit"] + one["shares"] * worth}
                for one in positions(trades, 0, setup.first, rules.cost_rate, **how)
                for worth in (last[one["stock"]],)
            ],
            selection=active.selection,
            at_cost=at_cost,
            scores=scores,
            ahead={h: returns_ahead(opens, slice(0, setup.steps), h) for h in DECAY},
        )

    def _alike(self, judged: Played) -> dict[str, Any]:
        """Return active shares and correlations of an account."""
        beside, held = self.beside_weights, self.played[self.setup.benchmark].curves.daily[0] * (not judged.is_neutral)
        curves = {name: one.curves for name, one in beside.items()} | self.index
        daily, own = pd.DataFrame({name: curve.daily[0] for name, curve in curves.items()}), judged.curves.daily[0]
        shares = {n: float(0.5 * np.abs(judged.held - one.held).sum(axis=2).mean()) for n, one in beside.items()}
        correlation = daily.corrwith(pd.Series(own)).to_dict()
        active = daily.sub(held, axis=0).corrwith(pd.Series(own - held)).to_dict()
        return {"active_share": shares, "correlation": correlation, "active_correlation": active}

    def _untraded(self, closes: Float64Array, exposure: float) -> EquityCurves:
        """Return an account that follows (D + 1,) closes without a trade."""
        path, nothing = self.setup.portfolio.rules.initial_capital * closes[None] / closes[0], np.zeros(1)
        invested = np.full((1, self.setup.steps), exposure)
        return EquityCurves.untraded(path, invested, traded=nothing, costs=nothing)

    def _active(self, judged: Played) -> Active:
        """Return the weights of an account less the benchmark's, in investable stocks."""
        setup, benchmark = self.setup, self.played[self.setup.benchmark]
        some, quotes = slice(len(setup.market.investable_columns)), setup.portfolio.quotes
        less = 0.0 if judged.is_neutral else 1.0
        before, held = (
            getattr(judged, n)[:, 0, some] - less * getattr(benchmark, n)[:, 0, some] for n in ("before", "held")
        )
        prices = setup.prices(quotes.open)[:, some], setup.prices(quotes.close)[:, some]
        member = None if quotes.is_member is None else quotes.is_member[setup.judged, some].cpu().numpy()
        at_close, gap = setup.portfolio.rules.fill == "same_close", setup.portfolio.rules.max_days_without_bar
        return Active.of(before, held, *prices, at_close=at_close, longest_gap=gap, member=member)

    def _at_close(self, is_signed: bool) -> Portfolio:
        """Return a portfolio in which orders are filled at the next close."""
        portfolio = (self.setup.signed if is_signed else self.setup.portfolio).under()
        quotes = replace(portfolio.quotes, open=portfolio.quotes.close)
        portfolio.quotes = portfolio.account.quotes = portfolio.benchmark.quotes = quotes
        return portfolio


def _random_curves(judged: EquityCurves, daily: Float64Array) -> EquityCurves:
    """Return the curves of (draws, D) daily returns, percent, of accounts that trade as much as the judged one."""
    draws = len(daily)
    growth = np.concatenate((np.ones((draws, 1)), 1 + daily / 100), axis=1)
    same = {name: np.repeat(getattr(judged, name), draws) for name in ("traded", "costs", "largest", "sessions")}
    exposure = np.repeat(judged.exposure, draws, axis=0)
    equity = np.asarray(judged.capital * np.cumprod(growth, axis=1), np.float64)
    return EquityCurves.untraded(equity, exposure, **same)
