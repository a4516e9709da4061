"""The policy gradient through an account: `python -m benchmarks.learning differentiable [--kinds KIND ...]`.

In place of a critic an actor climbs the profit of an account whose decisions are soft: a share of each position is kept
by a sigmoid, an order is divided over stocks and cash by a softmax, and prices do not react, so that all of it can be
differentiated (Moody and Saffell 2001, "Learning to trade via direct reinforcement"). One network as large as a critic,
with its optimiser and target, scores the stocks on the inputs of the agents, from their closed form or from random
numbers; it is then played in the account itself, on the paths of `benchmarks.learning markets`. Further flags are
settings of main.py.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.learning.markets import KINDS, PLANTED, add_unseen_flags, unseen_of
from benchmarks.learning.study import Record, Study, add_study_flags, each_seed, mean_interval, plus_minus
from benchmarks.learning.unseen import Profits, UnseenPaths, joined, shares, training_market, tuned
from data.market import Market
from environment.trading_env import TradingEnvironment
from models.networks import AdamW, Perceptrons, soft_update
from models.policy import Forecasts
from training.forecasts.training_days import START_PRICE, TrainingDays
from training.rollout import roll_out
from utils.config.trader import Config, EnvironmentConfig
from utils.runs.seeding import named_generator, seed_everything
from utils.spaces import TARGET_PERCENTS

ACTOR = "through the account"
UPDATES, WINDOWS = 400, 16
_HOT, _COLD = 0.6, 0.1
"""Temperatures of soft decisions in the first and last update, in deviations of a session's results."""


def scores_of(actor: Perceptrons, x: Tensor) -> Tensor:
    """Map (..., inputs) to the (...) scores of a stack of one perceptron, in units."""
    none = x.new_zeros(1, 1 + x.shape[-1], 0)
    return actor.layers(x.flatten(0, -2), beside=none)[1].view(x.shape[:-1])


@dataclass(frozen=True)
class SoftAccount:
    """Accounts whose decisions are shares, which can be differentiated."""

    growth: Tensor
    """(days, n) of a position from the open after a day's close to the next one; 0 without both."""
    has_bar: Tensor
    """(days, n)"""
    rules: EnvironmentConfig

    @classmethod
    def of(cls, env: TradingEnvironment, days: int) -> Self:
        """Read the prices of the first days of a market."""
        bars = env.account.bars
        opened = bars.quotes.view(bars.days, bars.stocks, 3)[:days, :, 0].double()
        growth = torch.zeros_like(opened)
        growth[:-2] = (opened[2:] / opened[1:-1] - 1).nan_to_num(0.0)
        return cls(growth.float(), bars.tradable[:days], env.rules)

    def profit(self, score: Tensor, days: Tensor, temperature: float) -> Tensor:
        """Return the (W,) profits in percent by (W, steps, n) scores on (W, steps) days; what is held at the end is
        sold at the next open."""
        rules, cost, percent = self.rules, self.rules.cost_rate, 100 * self.rules.cost_rate
        growth, has_bar = self.growth[days], self.has_bar[days]
        value, share, cash = torch.zeros_like(score[:, 0]), torch.zeros_like(score[:, 0]), torch.ones(len(score))
        for step, today in enumerate(score.unbind(1)):
            bars = has_bar[:, step]
            kept = torch.where(bars, torch.sigmoid((today + percent) / temperature), 1.0)
            bought = torch.zeros_like(value)
            if step < rules.trading_days:
                # What is held, a share of an order of the largest size, is not bought again.
                worth = (today - percent + torch.log1p(-share.clamp(max=1 - 1e-6))) / temperature
                chance = functional.pad(torch.where(bars, worth, -torch.inf), (0, 1)).softmax(-1)[:, :-1]
                bought = chance * (cash / (1 + cost)).clamp(max=rules.largest_order)[:, None]
            cash = cash - (1 + cost) * bought.sum(-1) + (1 - cost) * ((1 - kept) * value).sum(-1)
            value, share = (kept * value + bought) * (1 + growth[:, step]), kept * share + bought / rules.largest_order
        return 100 * (cash + (1 - cost) * value.sum(-1) - 1)


def learned(config: Config, market: Market, env: TradingEnvironment) -> tuple[Perceptrons, TrainingDays]:
    """Train the actor on random windows of the training days; return its target network, and the days."""
    days, drawn = TrainingDays.of(market, env.account), named_generator(config.seed, "windows")
    train, steps, unit = days.samples.train, env.rules.episode_steps, days.transitions.reward_scale
    x = days.inputs.for_networks(torch.from_numpy(days.inputs.of(market, slice(train.last + 1))))
    sizes = x.shape[-1], config.learning.hidden, 1
    account, actor = SoftAccount.of(env, train.last + 1), Perceptrons.initialize((1,), sizes, drawn)
    if config.learning.warm_start:
        start = days.closed_form(config.learning.gamma)[:, :, -1].mean(0)
        start[0] -= START_PRICE / unit
        for part, weights in zip(actor.matrices[-2:], start.split((1, x.shape[-1])), strict=True):
            part.copy_(weights[None, :, None])
    target, moments = Perceptrons(actor.flat.clone(), sizes), torch.zeros(2, *actor.flat.shape)
    optimizer = AdamW(actor.flat, (moments[0], moments[1]), torch.zeros(1, 3), config.learning.learning_rate)
    for update in range(UPDATES):
        first = torch.randint(train.first, train.last - steps - 1, (WINDOWS, 1), generator=drawn)
        seen = first + torch.arange(steps)
        temperature = unit * (_HOT + (_COLD - _HOT) * update / UPDATES)
        (-account.profit(unit * scores_of(actor, x[seen]), seen, temperature).mean()).backward()
        optimizer.step()
        soft_update(target.flat, actor.flat, optimizer.target_rate(config.learning.tau))
    return target, days


def job(config: Config, unseen: UnseenPaths) -> Record:
    """Train one seed and play it on unseen paths, beside rule and oracle."""
    market, scores = training_market(config)
    seed_everything(config.seed)
    started, rules = time.process_time(), config.env
    actor, days = learned(config, market, TradingEnvironment.on(market, rules))
    seconds, planted, profits = time.process_time() - started, tuned(market, scores, config), list[Profits]()
    for path in unseen.each(config, market.stats):
        seen = days.inputs.for_networks(torch.from_numpy(days.inputs.of(path.market)))
        score = days.transitions.reward_scale * torch.stack([scores_of(actor, today) for today in seen])[None]
        forecasts = Forecasts.of(score, path.env.account.bars.tradable)
        played = roll_out(path.env, forecasts, torch.zeros(1), torch.tensor([TARGET_PERCENTS[-1]]), path.starts)
        profits.append({ACTOR: played.summary.profit_percent.numpy(), **path.play_planted(planted)})
    return {"policies": shares(joined(profits)), "cpu_seconds": seconds}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", seeds=1)
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=KINDS, help="default: all but the martingale")
    add_unseen_flags(parser)
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Measure each kind of market over seeds and print its line as soon as it is known."""
    unseen = unseen_of(study.arguments)
    unseen.require_unseen(study.seeds)
    print(f"{unseen}; profits in percent of the capital an episode")
    print(f"{'':<12} {'seeds':>5} {'of the rule':>15} {'profit %':>9} {'CPU s':>6}", flush=True)
    for kind in study.arguments.kinds:
        labels = {"study": "differentiable", "kind": kind, **asdict(unseen)}
        records = study.records(each_seed(study.config(kind), study.seeds, partial(job, unseen=unseen), **labels))
        of_actor = [record["policies"][ACTOR] for record in records]
        share = plus_minus(*mean_interval([one["of_rule"] for one in of_actor if one["of_rule"] is not None]))
        profit, seconds = (
            np.mean([one[name] for one in of]) for of, name in ((of_actor, "profit"), (records, "cpu_seconds"))
        )
        print(f"{kind:<12} {len(records):>5} {share:>15} {profit:9.2f} {seconds:6.0f}", flush=True)
