"""Supervised baselines: ridge regression and LightGBM (Ke et al. 2017), which rank stocks by the agents' own inputs.

They learn the counterfactual outcomes of all positions of the training days (`training/forecasts/outcomes.py`).
Whatever is tuned, from the penalty to the largest weight, is tuned out of fold on the training days.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from data.features.inputs import TradeInputs
from data.features.rows import InputRows
from data.market import Market
from training.evaluation.baselines import LIGHTGBM, RIDGE, BandRule, Tuning
from training.forecasts.samples import Moments, Samples
from training.forecasts.training_days import TrainingDays
from utils.arrays import BoolArray, Float32Array, Float64Array
from utils.errors import DataError
from utils.memory_guard import release_free_memory

logger = logging.getLogger(__name__)
Model = Callable[[Float32Array], Float32Array]
"""From (days, n, inputs) to (days, n) expected gains of a unit, percent."""
_PENALTIES = tuple(10.0**power for power in range(-5, 3))
"""In multiples of the number of rows, for standardised inputs."""
_ROUNDS, _EARLY_STOPPING = 300, 15
_MOST_ROWS = 2**21
"""Results that trees learn from, drawn at random where there are more: each of LightGBM's folds holds a copy."""
_TREES = {
    "objective": "regression",
    "learning_rate": 0.1,
    "num_leaves": 15,
    "min_data_in_leaf": 500,
    "max_bin": 63,
    "deterministic": True,  # whatever the number of threads
    "force_row_wise": True,
    "seed": 0,
    "verbose": -1,
}


@dataclass(frozen=True)
class Ranker:
    """A learner of results at one discount, with the models fitted without each fold."""

    by_fold: list[Model]
    fit: Callable[[BoolArray], Model]
    """Learns from (days,)."""

    def out_of_fold(self, samples: Samples) -> Float32Array:
        """Return (days, n) scores of the training days, each by the model that has not seen its fold; NaN elsewhere."""
        scores = np.full(samples.is_known.shape, np.nan, dtype=np.float32)
        for model, fold in zip(self.by_fold, samples.folds, strict=True):
            scores[fold.test] = scores_of(model, samples.x, fold.test)
        return scores

    def rolling(self, samples: Samples, every: int) -> Float32Array:
        """Return (days, n) scores of the inputs' days by models that are refitted at regular intervals, to all results
        known by then."""
        begin, last = samples.train.last + 1, samples.x.days.stop
        blocks = [scores_of(self.fit(samples.train_days), samples.x, slice(samples.x.days.start, begin))]
        for first in range(begin, last, every):
            model = self.fit(samples.known_by(first))
            blocks.append(scores_of(model, samples.x, slice(first, min(first + every, last))))
        return np.concatenate(blocks)


def scores_of(model: Model, x: InputRows, days: slice | None = None) -> Float32Array:
    """Return a model's (days, n) scores on some days, default all."""
    return np.concatenate([model(x.dense(block)) for block in x.blocks(days)])


@dataclass(frozen=True)
class Ridge:
    """Ridge regressions of the results at all discounts with one penalty."""

    moments: Moments
    penalty: float
    by_fold: list[Float64Array]
    """(inputs, discounts) weights without each fold."""
    error: float
    """Summed squared out-of-fold error at the last discount, by which penalty and inputs are chosen."""

    def ranker(self, target: int) -> Ranker:
        """Return the ranker of results at one discount."""
        by_fold = [_linear(weights[:, target]) for weights in self.by_fold]
        return Ranker(by_fold, lambda days: _linear(self.moments.over(days).solve(self.penalty)[:, target]))


def _linear(weights: Float64Array) -> Model:
    return lambda x: x @ weights.astype(np.float32)


def fit_ridge(samples: Samples) -> Ridge:
    """Choose the penalty with the least out-of-fold error."""
    moments = Moments.of(samples)

    def fitted(penalty: float) -> Ridge:
        by_fold = [moments.over(fold.fitted).solve(penalty) for fold in samples.folds]
        folds = zip(samples.folds, by_fold, strict=True)
        error = sum(moments.over(fold.test).error(weights[:, -1], -1) for fold, weights in folds)
        return Ridge(moments, penalty, by_fold, error)

    return min(map(fitted, _PENALTIES), key=lambda ridge: ridge.error)


def fit_trees(samples: Samples) -> Ranker:
    """Boost trees on results at one discount, as many as have the least out-of-fold error."""
    import lightgbm

    is_used = samples.is_known & samples.train_days[:, None]
    drawn = np.random.default_rng(0).random(is_used.shape, dtype=np.float32) < _MOST_ROWS / np.maximum(is_used.sum(), 1)
    is_used &= drawn

    def data(days: BoolArray) -> lightgbm.Dataset:
        known = samples.is_known & drawn & days[:, None]
        blocks = (block for block in samples.x.blocks() if days[block].any())
        rows = np.concatenate([samples.x.dense(block)[known[block]][:, 1:] for block in blocks])
        return lightgbm.Dataset(rows, samples.results[0][known])

    def model(booster: lightgbm.Booster) -> Model:
        def predict(x: Float32Array) -> Float32Array:
            rows = x[..., 1:].reshape(-1, x.shape[-1] - 1)
            scores = booster.predict(rows, num_iteration=rounds, num_threads=settings["num_threads"])
            return np.asarray(scores, dtype=np.float32).reshape(x.shape[:-1])

        return predict

    settings: dict[str, Any] = {**_TREES, "num_threads": torch.get_num_threads()}
    row = np.cumsum(is_used, dtype=np.int32).reshape(is_used.shape) - 1
    folds = [(row[is_used & learned[:, None]], row[left_out][is_used[left_out]]) for learned, left_out in samples.folds]

    def compact(*arguments: Any) -> tuple[Any, ...]:
        for dataset in arguments[:2]:
            dataset.used_indices = np.array(dataset.used_indices, dtype=np.int32)  # a list takes ten times as much
        return arguments

    stop: list[Callable[..., Any]] = [lightgbm.early_stopping(_EARLY_STOPPING, verbose=False)]
    result: dict[str, Any] = lightgbm.cv(
        settings, data(samples.train_days), _ROUNDS, folds, fpreproc=compact, callbacks=stop, return_cvbooster=True
    )
    boosters, rounds = result["cvbooster"].boosters, result["cvbooster"].best_iteration
    for booster in boosters:
        # Written and read again it predicts the same, without the rows that it learned from.
        booster.model_from_string(booster.model_to_string()).free_dataset()
    return Ranker(
        [model(booster) for booster in boosters], lambda days: model(lightgbm.train(settings, data(days), rounds))
    )


@dataclass(frozen=True)
class SupervisedBaseline:
    """A ranking learned on the training days of a market."""

    rule: BandRule
    """How it is held; these scores are those of the market that it was learned on."""
    inputs: TradeInputs
    model: Model

    def rule_on(self, market: Market) -> BandRule:
        """Return the rule with its scores of all days of another market."""
        x = self.inputs.rows_of(market, slice(0, len(market.dates)))
        return replace(self.rule, scores=scores_of(self.model, x))


def fit_supervised(
    market: Market,
    tuning: Tuning,
    *,
    refit_days: int = 0,
    days: slice = slice(0, 0),
    known: TrainingDays | None = None,
) -> dict[str, SupervisedBaseline]:
    """Fit ridge regression and LightGBM to the training days of a market.

    The discount of what they learn is that at which the ridge regression earns most on the windows of the tuning.

    Args:
        refit_days: sessions after which the models behind a baseline's own scores are refitted beyond the training
            days, to all results known by then; 0 fits once.
        days: those after the training days for which scores are needed; with `refit_days` all later days have them.
        known: the training days, where agents have learned from them; default: their inputs are fitted now.

    Returns:
        The baselines by name; none, with a warning that says why, where they cannot be fitted.
    """
    import lightgbm  # late: a command that fits none need not wait for it

    try:
        train, rules = market.splits.train, tuning.portfolio.rules
        quotes = tuning.portfolio.quotes.among(slice(len(market.investable_columns)))
        known = TrainingDays.of(market, quotes, rules) if known is None else known
        stop = len(market.dates) if refit_days else max(train.last + 1, days.stop)
        x = known.samples.x.to("cpu")
        if stop > x.days.stop:
            x = x.joined(known.inputs.rows_of(market, slice(x.days.stop, stop)))
        samples = Samples.of(x, quotes, rules, train, stop - 1 if refit_days else train.last)
        ridge = fit_ridge(samples)
        discounts = range(len(samples.results))
        best = int(tuning.fitness([BandRule(ridge.ranker(place).out_of_fold(samples)) for place in discounts]).argmax())
        samples = replace(samples, results=samples.results[[best]])
        rankers = {RIDGE: ridge.ranker(best), LIGHTGBM: fit_trees(samples)}
    except (DataError, lightgbm.basic.LightGBMError) as error:
        logger.warning("the baselines %s and %s are left out: %s", RIDGE, LIGHTGBM, error)
        return {}
    release_free_memory()  # of the trees
    fitted, tuned = {}, tuning.tuned_together(*([ranker.out_of_fold(samples)] for ranker in rankers.values()))
    for (name, ranker), rule in zip(rankers.items(), tuned, strict=True):
        model = ranker.fit(samples.train_days)
        scores = np.full(samples.is_known.shape, np.nan, dtype=np.float32)
        scores[x.days] = ranker.rolling(samples, refit_days) if refit_days else scores_of(model, x)
        fitted[name] = SupervisedBaseline(replace(rule, scores=scores), known.inputs, model)
    return fitted
