"""A policy trained by back-propagation through replayed accounts (Madeka et al. 2022, "Deep inventory management").

Prices do not react to orders, so the result and the holding time of every order of a training day are known, and the
profit of an account is a function of its orders alone. Two things in it are not smooth, and are relaxed:

- the choice of a stock: a softmax over the scores of the stocks that are free and the threshold of ordering nothing. An
  order is spread over them by its probabilities, at most one in expectation for each that may be opened on a day;
- what is held: stocks are free in so far as they are not expected to be held, and cash is the mean over the choices.

At temperature 0 both are exact: the soft account then is the account. The policy is played hard: the stock with the
largest score is ordered where that is above the threshold.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.learning.unseen import UnseenPath, tuning_windows
from benchmarks.peers.peer import Array, Budget, Learned
from data.market import Market
from data.splits import random_windows, spaced_windows
from environment.orders import Orders
from environment.portfolio import Portfolio
from training.evaluation.baselines import ScoreRule, Scores, score_policy
from training.evaluation.supervised import TUNING_WINDOWS, fit_ridge
from training.forecasts.samples import Samples
from training.forecasts.training_days import TrainingDays
from training.rollout import Policy, play
from utils.config.trader import Config, EnvironmentConfig
from utils.runs.seeding import named_generator
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, TARGET_PERCENTS, rank_stocks

_WIDTHS = (64, 32)
_DROPOUT = 0.1
InputsOf = Callable[[Market], Tensor]
"""From any path of the law to the (days, n, inputs) of networks."""
_WINDOWS = 16
"""Random training windows of an update."""
_LEARNING_RATE, _LARGEST_GRADIENT = 3e-3, 1.0
_TEMPERATURES = (1.0, 0.1)
"""Of the softmax, at the beginning and at the end of the budget."""
_LOOKS = 8
"""Evaluations on validation windows in a budget; the best policy is kept."""
_DUST = 1e-6
"""Share of the capital below which an order lapses, and share of a stock below which it is held."""


def our_inputs(market: Market, env: Portfolio) -> tuple[Samples, Tensor, InputsOf]:
    """Return the product's inputs as its own networks see them, cross-fitted on the training days."""
    days = TrainingDays.of(market, env)
    inputs, own = days.inputs, days.samples.x
    x = inputs.of(market)
    x[own.days] = own.dense(own.days)
    return (
        days.samples,
        inputs.for_networks(torch.from_numpy(x)),
        lambda other: inputs.for_networks(torch.from_numpy(inputs.of(other))),
    )


def perceptron(inputs: int, outputs: int) -> nn.Sequential:
    """Return a perceptron whose outputs begin at zero."""
    layers: list[nn.Module] = []
    for width in _WIDTHS:
        layers += [nn.Linear(inputs, width), nn.SiLU(), nn.Dropout(_DROPOUT)]
        inputs = width
    last = nn.Linear(inputs, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


def best_target(env: Portfolio, by_target: Sequence[Scores], starts: Tensor) -> int:
    """Return the sale target at which ordering by (days, n) out-of-fold scores earns most on training windows."""
    rules = [ScoreRule(own, target_percent=target) for own, target in zip(by_target, TARGET_PERCENTS, strict=True)]
    summary, _ = play(env, score_policy(env, rules), starts.repeat(len(rules)))
    return int(summary.profit_percent.view(len(rules), -1).mean(1).argmax())


class StockPolicy(nn.Module):
    """Scores and sizes of orders by the inputs of stocks, and a threshold by the state of the account."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.stocks, self.account = perceptron(inputs, 2), perceptron(2, 1)

    def orders(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return (..., n) scores, and sizes as shares of the largest order, of (..., n, inputs)."""
        score, size = self.stocks(x).unbind(-1)
        least = MIN_COEFFICIENT / MAX_COEFFICIENT
        return score, least + (1 - least) * torch.sigmoid(size)

    def threshold(self, cash: Tensor, left: Tensor) -> Tensor:
        """Return (lanes, 1) by the cash, as a share of the initial capital, and the share of the trading days left."""
        found: Tensor = self.account(torch.stack((cash, left), dim=-1))
        return found

    @torch.no_grad()
    def hard(self, x: Tensor, target_percent: float) -> Policy:
        """Return the policy that orders the best stocks above the threshold, by (days, n, inputs)."""
        score, size = self.orders(x)

        def act(env: Portfolio, step: int) -> Orders:
            cash, _, left = env.account().unbind(-1)
            best, stock = rank_stocks(torch.where(env.candidates(), score[env.day], -torch.inf), env.orders_per_day)
            wanted = MAX_COEFFICIENT * size[env.day].gather(1, stock) * (best > self.threshold(cash, left))
            wanted = wanted * (wanted >= MIN_COEFFICIENT)
            return Orders(stock.T, wanted.T.double(), torch.full_like(wanted.T, target_percent, dtype=torch.float64))

        return torch.no_grad()(act)


@dataclass(frozen=True)
class SoftAccount:
    """What follows on each order of the training days at one sale target."""

    rules: EnvironmentConfig
    orders_per_day: int
    tradable: Tensor
    """(days, n): the stock has a bar, and the order's result is known by the last training day."""
    result: Tensor
    """(days, n) net of costs, as a share of an order's value."""
    paid: Tensor
    """(days, n, longest) cash that a sale brings 1, 2, ... sessions later, as a share of the order's value."""
    held: Tensor
    """(days, n, longest) 1 while the position is open 1, 2, ... sessions later."""

    @classmethod
    def of(cls, env: Portfolio, samples: Samples, target: int) -> SoftAccount:
        """Follow every order of the training days in an account that can pay for all of them."""
        first, longest = samples.train.first, env.slots // env.orders_per_day
        days, stocks = samples.train.days - longest, env.bars.stocks
        rules = replace(env.rules, stake_percent=0.001, max_new_positions_per_day=1, volume_cap=0.0)
        account = Portfolio(env.bars, rules)
        account.reset(torch.full((stocks,), first), steps=days + longest - 1, trading_steps=days)
        wanted = torch.full((1, stocks), MAX_COEFFICIENT, dtype=torch.float64)
        orders = Orders(torch.arange(stocks)[None], wanted, torch.full_like(wanted, TARGET_PERCENTS[target]))
        for step in range(account.steps):
            account.step_orders(orders if step < days else None)
        sessions = torch.zeros(samples.results.shape[1:], dtype=torch.int64)
        sessions[first : first + days] = account.ledger().exit_step[:days] - torch.arange(days)[:, None]
        result = torch.from_numpy(samples.results[target]).nan_to_num() / (100 * env.rules.largest_order)
        later = torch.arange(1, longest + 1)
        paid = (sessions[..., None] == later) * (env.rules.purchase_factor + result)[..., None]
        held = (sessions[..., None] > later).float()
        return cls(env.rules, env.orders_per_day, env.bars.tradable & (sessions > 0), result, paid, held)

    def profit(self, policy: StockPolicy, x: Tensor, starts: Tensor, temperature: float) -> Tensor:
        """Return the (W,) profits of windows that begin on these days, percent of the initial capital."""
        days = starts[:, None] + torch.arange(self.rules.trading_days)
        scores, sizes = policy.orders(x[days])
        cash, profit = torch.ones(len(starts)), torch.zeros(len(starts))
        due, open_ = (torch.zeros(len(starts), *self.paid.shape[at:]) for at in (2, 1))
        for step, today in enumerate(days.unbind(1)):
            left = torch.full_like(cash, 1 - step / self.rules.trading_days)
            nothing = policy.threshold(cash, left) / temperature
            free = self.tradable[today] * (1 - open_[..., 0])
            due, open_ = (_shifted(part) for part in (due, open_))
            for _ in range(self.orders_per_day):
                logits = scores[:, step] / temperature + free.clamp(min=_DUST).log()
                logits = logits.masked_fill(free < _DUST, -torch.inf)
                chosen = torch.cat((logits, nothing), dim=1).softmax(1)[:, :-1]
                affordable = cash.clamp(min=0)[:, None] / self.rules.purchase_factor
                value = chosen * torch.minimum(self.rules.largest_order * sizes[:, step], affordable)
                cash = cash - self.rules.purchase_factor * value.sum(1)
                profit = profit + 100 * (value * self.result[today]).sum(1)
                due = due + torch.einsum("wn,wnl->wl", value, self.paid[today])
                open_ = open_ + (chosen * (affordable > _DUST))[..., None] * self.held[today]
                free = (free - chosen).clamp(min=0)
            cash = cash + due[:, 0]
        return profit


def _shifted(part: Tensor) -> Tensor:
    """Move (..., sessions) one session on."""
    return torch.cat((part[..., 1:], torch.zeros_like(part[..., :1])), dim=-1)


def train(
    policy: StockPolicy,
    profit: Callable[[Tensor, float], Tensor],
    look: Callable[[], float],
    draw: Callable[[], Tensor],
    spent: Callable[[], float],
) -> int:
    """Climb the mean soft profit until the budget is spent; return the number of updates.

    Args:
        profit: of windows that begin on these days, at a temperature.
        look: evaluates the policy as it is; what it is largest for is kept.
        draw: draws the first days of the windows of an update.
        spent: share of the budget.
    """
    optimizer = torch.optim.Adam(policy.parameters(), lr=_LEARNING_RATE)
    updates, looks, most, best = 0, 0, -math.inf, policy.state_dict()
    hot, cold = _TEMPERATURES
    while True:
        share = spent()
        if share >= 1 or share * _LOOKS >= looks:
            looks += 1
            policy.eval()
            if (found := look()) > most:
                most, best = found, copy.deepcopy(policy.state_dict())
        if share >= 1:
            break
        policy.train()
        optimizer.zero_grad()
        (-profit(draw(), hot * (cold / hot) ** share).mean()).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), _LARGEST_GRADIENT)
        optimizer.step()
        updates += 1
    policy.load_state_dict(best)
    policy.eval()
    return updates


def differentiable_rollout(config: Config, market: Market, budget: Budget) -> Learned:
    """Maximise profit on training windows until the budget is spent; keep what earned most on validation windows."""
    begun, env = time.process_time(), Portfolio.on(market, config.env)
    torch.manual_seed(config.seed)
    samples, x, inputs_of = our_inputs(market, env)
    ridge = fit_ridge(samples)
    known = [ridge.ranker(target).out_of_fold(samples) for target in range(len(TARGET_PERCENTS))]
    target = best_target(env, known, tuning_windows(market, config))
    percent, policy = TARGET_PERCENTS[target], StockPolicy(x.shape[-1])
    starts = spaced_windows(market.splits.validation, config.env.episode_steps, TUNING_WINDOWS)
    draws = named_generator(config.seed, "windows")
    updates = train(
        policy,
        partial(SoftAccount.of(env, samples, target).profit, policy, x),
        lambda: float(play(env, policy.hard(x, percent), starts)[0].profit_percent.mean()),
        partial(random_windows, market.splits.train, config.env.episode_steps, _WINDOWS, draws),
        lambda: (time.process_time() - begun) / budget.seconds,
    )

    def play_path(path: UnseenPath) -> Array:
        summary, _ = play(path.env.account, policy.hard(inputs_of(path.market), percent), path.starts)
        profits: Array = summary.profit_percent.numpy()
        return profits

    return Learned(play_path, updates * _WINDOWS * config.env.trading_days)
