"""The policy gradient through an account: `python -m benchmarks.learning differentiable [--kinds KIND ...]`.

In place of a critic an actor climbs the profit of an account whose decisions are soft: a share of each position is kept
by a sigmoid, an order is divided over stocks and cash by a softmax, and prices do not react, so that all of it can be
differentiated (Moody and Saffell 2001, "Learning to trade via direct reinforcement"). One network as large as a critic
scores the stocks on the inputs of the agents, from their closed form or from random numbers; it is then played in the
account itself, on the paths of `benchmarks.learning markets`. Further flags are settings of main.py.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import swa_utils

from benchmarks.learning.markets import KINDS, PLANTED, add_unseen_flags, unseen_of
from benchmarks.learning.study import Record, Study, add_study_flags, each_seed, mean_interval, plus_minus
from benchmarks.learning.unseen import UnseenPaths, joined, shares, training_market, tuned
from data.market import Market
from environment.trading_env import TradingEnvironment
from models.networks import TIME_UNIT
from models.policy import Forecasts
from training.forecasts.training_days import TrainingDays
from training.rollout import roll_out
from utils.config.trader import Config, EnvironmentConfig
from utils.runs.seeding import named_generator, seed_everything
from utils.spaces import TARGET_PERCENTS

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
ACTOR = "through the account"
UPDATES, WINDOWS = 400, 16
_START_PRICE = 0.05
"""Price of capital at which the closed form's gains and times begin as one score, as it was fitted."""
_HOT, _COLD = 0.6, 0.1
"""Temperatures of soft decisions in the first and last update, in deviations of a session's results."""
_DECAY, _MAX_NORM = 0.05, 10.0


class Scores(nn.Module):
    """A perceptron with two hidden layers and a linear path beside them, whose outputs begin as 0."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.linear, last = nn.Linear(inputs, 1), nn.Linear(hidden, 1)
        self.layers = nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last)
        for layer in (self.linear, last):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., inputs) to (...) scores, in units."""
        scores: Tensor = (self.layers(x) + self.linear(x))[..., 0]
        return scores


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
        value, held, cash = torch.zeros_like(score[:, 0]), torch.zeros_like(score[:, 0]), torch.ones(len(score))
        for step, today in enumerate(score.unbind(1)):
            bars = has_bar[:, step]
            kept = torch.where(bars, torch.sigmoid((today + percent) / temperature), 1.0)
            bought = torch.zeros_like(value)
            if step < rules.trading_days:
                # What is held, a share of an order of the largest size, is not bought again.
                worth = (today - percent + torch.log1p(-held.clamp(max=1 - 1e-6))) / temperature
                chance = nn.functional.pad(torch.where(bars, worth, -torch.inf), (0, 1)).softmax(-1)[:, :-1]
                bought = chance * (cash / (1 + cost)).clamp(max=rules.largest_order)[:, None]
            cash = cash - (1 + cost) * bought.sum(-1) + (1 - cost) * ((1 - kept) * value).sum(-1)
            value, held = (kept * value + bought) * (1 + growth[:, step]), kept * held + bought / rules.largest_order
        return 100 * (cash + (1 - cost) * value.sum(-1) - 1)


def learned(config: Config, market: Market, env: TradingEnvironment) -> tuple[Scores, TrainingDays]:
    """Train the actor on random windows of the training days; return the average of its last updates, and the days."""
    days, drawn = TrainingDays.of(market, env.account), named_generator(config.seed, "windows")
    train, steps, unit = days.samples.train, env.rules.episode_steps, days.transitions.unit
    x = days.inputs.for_networks(torch.from_numpy(days.inputs.of(market, slice(train.last + 1))))
    account, actor = SoftAccount.of(env, train.last + 1), Scores(x.shape[-1], config.learning.hidden)
    if config.learning.warm_start:
        gain, sessions = days.closed_form()[:, :, -1].mean(0).unbind(-1)
        start = gain - _START_PRICE * TIME_UNIT / unit * sessions
        actor.linear.weight.data[0], actor.linear.bias.data[0] = start[1:], start[0]
    optimizer = torch.optim.AdamW(actor.parameters(), config.learning.learning_rate, weight_decay=_DECAY)
    average = swa_utils.AveragedModel(actor, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(1 - config.learning.tau))
    for update in range(UPDATES):
        first = torch.randint(train.first, train.last - steps - 1, (WINDOWS, 1), generator=drawn)
        seen = first + torch.arange(steps)
        temperature = unit * (_HOT + (_COLD - _HOT) * update / UPDATES)
        loss = -account.profit(unit * actor(x[seen]), seen, temperature).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), _MAX_NORM)
        optimizer.step()
        average.update_parameters(actor)
    actor.load_state_dict(average.module.state_dict())
    return actor, days


def job(config: Config, unseen: UnseenPaths) -> Record:
    """Train one seed and play it on unseen paths, beside rule and oracle."""
    market, scores = training_market(config)
    seed_everything(config.seed)
    started, rules = time.process_time(), config.env
    actor, days = learned(config, market, TradingEnvironment.on(market, rules))
    seconds, planted, parts = time.process_time() - started, tuned(market, scores, config), list[dict[str, Array]]()
    for path in unseen.each(config, market.stats):
        seen = days.inputs.for_networks(torch.from_numpy(days.inputs.of(path.market)))
        with torch.no_grad():
            gain = days.transitions.unit * torch.stack([actor(today) for today in seen])[None]
        forecasts = Forecasts.of(gain, torch.zeros_like(gain), path.env.account.bars.tradable)
        played = roll_out(path.env, forecasts, torch.zeros(1), torch.tensor([TARGET_PERCENTS[-1]]), path.starts)
        parts.append({ACTOR: played.summary.profit_percent.numpy(), **path.play_planted(planted)})
    return {"policies": shares(joined(parts)), "cpu_seconds": seconds}


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
        found = [record["policies"][ACTOR] for record in records]
        share = plus_minus(*mean_interval([one["of_rule"] for one in found if one["of_rule"] is not None]))
        profit, seconds = (
            np.mean([one[name] for one in of]) for of, name in ((found, "profit"), (records, "cpu_seconds"))
        )
        print(f"{kind:<12} {len(records):>5} {share:>15} {profit:9.2f} {seconds:6.0f}", flush=True)
