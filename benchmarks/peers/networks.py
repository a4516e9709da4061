"""A network as quantitative funds train it: the mean of five perceptrons, each stopped early on a purged fold.

They learn the known results of all orders of the training days, as the supervised baselines do, and trade by the same
rule: the sale target, the threshold and the size of orders are tuned on training windows by out-of-fold scores.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from training.forecasts.ridge import TrainingDays

from benchmarks.learning.unseen import UnseenPath, tuning_windows
from benchmarks.peers.peer import Array, Budget, Learned, Peer
from data.market import Market
from environment.portfolio import Portfolio
from models.inputs import InputRows
from training.evaluation.baselines import ScoreRule, Scores, score_policy, tune_rule
from training.evaluation.supervised import BankInputs, with_context
from training.forecasts.samples import Samples
from training.rollout import play
from utils.config.trader import Config
from utils.runs.seeding import named_generator
from utils.spaces import TARGET_PERCENTS

_WIDTHS = (64, 32)
_DROPOUT = 0.1
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 1e-2
_BATCH = 1024
_PATIENCE = 5
"""Epochs without a smaller error on the held-out fold after which a network is ready."""

InputsOf = Callable[[Market], Tensor]
"""From any path of the law to the (days, n, inputs) of networks."""
Inputs = Callable[[Market, Portfolio], tuple[Samples, Tensor, InputsOf]]
"""From the training path to the results that are known, their inputs, and the inputs of other paths."""


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


def bank_inputs(market: Market, env: Portfolio) -> tuple[Samples, Tensor, InputsOf]:
    """Return the inputs of the supervised baselines: past returns, and context terms that help a ridge regression."""
    inputs, train = BankInputs.fit(market), market.splits.train
    samples = Samples.of(inputs.of(market, np.isfinite(market.close)), env, train, train.last)
    inputs, samples, _ = with_context(market, inputs, samples)

    def of(other: Market) -> Tensor:
        return _but_constant(inputs.of(other, np.isfinite(other.close)))

    return samples, _but_constant(samples.x), of


def _but_constant(x: InputRows) -> Tensor:
    return torch.from_numpy(x.dense(x.days)[..., 1:])


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


@dataclass
class Learner:
    """A network that learns results without one fold, and what it was when it was best on it."""

    learned: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]
    """(rows, inputs) and (rows, targets) each."""
    network: nn.Sequential = field(init=False)
    best: dict[str, Any] = field(init=False)
    least_error: float = field(init=False)
    bad_epochs: int = 0

    def __post_init__(self) -> None:
        self.network = perceptron(self.learned[0].shape[1], self.learned[1].shape[1])
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
        self.best, self.least_error = copy.deepcopy(self.network.state_dict()), self.error()

    @torch.no_grad()
    def error(self) -> float:
        """Return the mean squared error on the held-out fold."""
        self.network.eval()
        return float(functional.mse_loss(self.network(self.held[0]), self.held[1]))

    def epoch(self, generator: torch.Generator) -> None:
        """Take one pass over the rows in random order."""
        x, y = self.learned
        self.network.train()
        for rows in torch.randperm(len(x), generator=generator).split(_BATCH):
            self.optimizer.zero_grad()
            functional.mse_loss(self.network(x[rows]), y[rows]).backward()
            self.optimizer.step()
        self.bad_epochs += 1
        if (error := self.error()) < self.least_error:
            self.least_error, self.bad_epochs, self.best = error, 0, copy.deepcopy(self.network.state_dict())

    def ready(self) -> nn.Sequential:
        """Return the network that was best on the held-out fold."""
        self.network.load_state_dict(self.best)
        return self.network.eval()


def fit_networks(
    samples: Samples, x: Tensor, is_spent: Callable[[], bool], generator: torch.Generator
) -> tuple[list[nn.Sequential], Tensor]:
    """Train a network for each fold, all epoch by epoch, until each has stopped or the budget is spent.

    Returns:
        The networks and the (targets,) deviations of results, in which they answer.
    """
    known, results = torch.from_numpy(samples.is_known), torch.from_numpy(samples.results).permute(1, 2, 0)
    in_training = torch.from_numpy(samples.train_days)
    deviation = results[known & in_training[:, None]].std(0).clamp(min=1e-6)

    def rows(days: Tensor) -> tuple[Tensor, Tensor]:
        chosen = known & (days & in_training)[:, None]
        return x[chosen], results[chosen] / deviation

    def within(held: slice) -> Tensor:
        days = torch.zeros_like(in_training)
        days[held] = True
        return days

    learners = [Learner(rows(torch.from_numpy(apart)), rows(within(held))) for apart, held in samples.folds]
    while not is_spent() and any(one.bad_epochs < _PATIENCE for one in learners):
        for one in learners:
            if one.bad_epochs < _PATIENCE and not is_spent():
                one.epoch(generator)
    return [one.ready() for one in learners], deviation


@torch.no_grad()
def scores_of(networks: Sequence[nn.Sequential], x: Tensor, deviation: Tensor) -> Array:
    """Return the (days, n, targets) mean of what networks expect, percent of the initial capital."""
    found = torch.stack([network(x) for network in networks]).mean(0) * deviation
    return found.double().numpy()


def best_target(env: Portfolio, by_target: Sequence[Scores], starts: Tensor) -> int:
    """Return the sale target at which ordering by (days, n) out-of-fold scores earns most on training windows."""
    rules = [ScoreRule(own, target_percent=target) for own, target in zip(by_target, TARGET_PERCENTS, strict=True)]
    summary, _ = play(env, score_policy(env, rules), starts.repeat(len(rules)))
    return int(summary.profit_percent.view(len(rules), -1).mean(1).argmax())


@dataclass(frozen=True)
class Ensemble:
    """The mean of five networks as a peer."""

    inputs: Inputs

    def __call__(self, config: Config, market: Market, budget: Budget) -> Learned:
        """Train until the networks have stopped or the budget is spent, then tune the rule."""
        is_spent, env = budget.started(), Portfolio.on(market, config.env)
        torch.manual_seed(config.seed)
        samples, x, inputs_of = self.inputs(market, env)
        networks, deviation = fit_networks(samples, x, is_spent, named_generator(config.seed, "batches"))
        known = np.full((*samples.results.shape[1:], len(TARGET_PERCENTS)), np.nan)
        for network, (_, held) in zip(networks, samples.folds, strict=True):
            known[held] = scores_of([network], x[held], deviation)
        starts = tuning_windows(market, config)
        target = best_target(env, list(np.moveaxis(known, 2, 0)), starts)
        rule = tune_rule(env, known[..., target], 0.0, starts)

        def play_path(path: UnseenPath) -> Array:
            scores = scores_of(networks, inputs_of(path.market), deviation)[..., target]
            return path.play_rule(replace(rule, scores=scores))

        return Learned(play_path, 0)


def networks() -> dict[str, Peer]:
    """Return the ensembles, on the inputs of LightGBM and on the product's."""
    return {"perceptrons": Ensemble(bank_inputs), "perceptrons, our inputs": Ensemble(our_inputs)}
