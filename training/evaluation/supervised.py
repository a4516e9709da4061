"""Supervised baselines: ridge regression and LightGBM (Ke et al. 2017), which rank the stocks by past returns and the
features that the agents read.

They learn the counterfactual outcomes of all positions of the training days (`training/forecasts/outcomes.py`).
Whatever is tuned, from the penalty to the largest weight, is tuned out of fold on the training days.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from scipy.special import stdtr

from data.features.bank import VOLATILITY, box_sums
from data.features.forms import FeatureInputs
from data.features.inputs import (
    BANK,
    BANK_CLIP,
    SHARED,
    bank_of,
    blocks,
    blocks_of,
    moments_of,
    standardisation,
)
from data.features.nine import CLOSE
from data.features.rows import InputRows
from data.market import Market
from training.evaluation.baselines import LIGHTGBM, RIDGE, BandRule, Tuning
from training.forecasts.samples import Moments, Samples
from utils.arrays import BoolArray, Float32Array, Float64Array, in_order
from utils.errors import DataError
from utils.memory.guard import release_free_memory

logger = logging.getLogger(__name__)
Model = Callable[[Float32Array], Float32Array]
"""From (days, n, inputs) to (days, n) expected gains of a unit, percent."""
_BOX_DAYS = (1, 2, 4, 8, 16, 32, 64)
_MOST_CONTEXT_TERMS = 8
_SIGNIFICANCE = 0.05
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


class ContextTerm(NamedTuple):
    """The sum of the last returns of a column that may not be bought, alone or times a stock's own volatility."""

    column: int
    """Place among the columns that may not be bought."""
    box: int
    """Place in `_BOX_DAYS`."""
    times_volatility: bool


@dataclass(frozen=True)
class BankInputs:
    """The inputs of a stock at a close: a constant, the bank, features and context terms, standardised."""

    mean: Float32Array
    std: Float32Array
    """(17,) of the bank of stocks with a bar on training days."""
    box_std: Float32Array
    """(context columns, boxes) of the sums of the context columns' last returns on training days."""
    features: FeatureInputs
    terms: tuple[ContextTerm, ...] = ()

    @classmethod
    def fit(cls, market: Market) -> Self:
        """Standardise bank and features, without context terms, on a market's training days."""
        days = slice(market.splits.train.first, market.splits.train.last + 1)
        has_bar, bank = np.isfinite(market.close[days]), bank_of(market, days)
        moments = in_order(lambda block: moments_of(bank(block)[has_bar[:, block]]), blocks_of(market))
        box_std = _context_boxes(market)[days].std(axis=0, dtype=np.float64)
        learned = np.isfinite(market.close[: days.stop])
        learned[: days.start] = False
        features = FeatureInputs.fit(market, learned)
        return cls(*standardisation(moments), np.where(box_std > 0, box_std, 1.0).astype(np.float32), features)

    def of(self, market: Market, has_bar: BoolArray, days: slice | None = None) -> InputRows:
        """Return the inputs of a market's stocks that have a bar, (days, n), on some days, default all."""
        rows = self._rows(days or slice(0, len(has_bar)), has_bar, terms=0)
        bank_of_block = bank_of(market, rows.days)

        def inputs_of(block: slice) -> Float32Array:
            bank = np.clip((bank_of_block(block) - self.mean) / self.std, -BANK_CLIP, BANK_CLIP)
            return np.concatenate((np.ones_like(bank[..., :1]), bank), axis=2)

        rows.fill(rows.days, blocks(market, inputs_of))
        rows.fill_features(self.features, market, BANK)
        return self.with_terms(rows, self.boxes(market)) if self.terms else rows

    def _rows(self, days: slice, has_bar: BoolArray, terms: int) -> InputRows:
        shared = (*SHARED, *(BANK + place for place in self.features.shared))
        return InputRows(days, has_bar, BANK + len(self.features) + terms, shared)

    def boxes(self, market: Market) -> Float32Array:
        """Return the (days, context columns, boxes) standardised sums of returns."""
        boxes: Float32Array = np.clip(_context_boxes(market) / self.box_std, -BANK_CLIP, BANK_CLIP)
        return boxes

    def with_terms(self, rows: InputRows, boxes: Float32Array) -> InputRows:
        """Append the context terms to the other inputs."""
        has_bar = np.pad(rows.has_bar.numpy(), ((rows.days.start, 0), (0, 0)))
        wider = self._rows(rows.days, has_bar, len(self.terms))
        for days in rows.blocks():
            x = rows.dense(days)
            volatility = x[..., 1 + VOLATILITY]
            values = [
                boxes[days, term.column, term.box, None]
                * (volatility if term.times_volatility else np.ones_like(volatility))
                for term in self.terms
            ]
            x = np.concatenate((x, np.stack(values, axis=2)), axis=2)
            wider.fill(days, iter([(slice(0, x.shape[1]), x)]))
        return wider


def _context_boxes(market: Market) -> Float32Array:
    columns = np.setdiff1d(np.arange(market.data_array.shape[1]), market.investable_columns)
    return box_sums(market.data_array[:, columns, CLOSE], _BOX_DAYS)


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
    return lambda x: np.asarray(x @ weights.astype(np.float32))


def fit_ridge(samples: Samples) -> Ridge:
    """Choose the penalty with the least out-of-fold error."""
    moments = Moments.of(samples)

    def fitted(penalty: float) -> Ridge:
        by_fold = [moments.over(fold.fitted).solve(penalty) for fold in samples.folds]
        folds = zip(samples.folds, by_fold, strict=True)
        error = sum(moments.over(fold.test).error(weights[:, -1], -1) for fold, weights in folds)
        return Ridge(moments, penalty, by_fold, error)

    return min(map(fitted, _PENALTIES), key=lambda ridge: ridge.error)


def fit_trees(samples: Samples, target: int) -> Ranker:
    """Boost trees, as many as have the least out-of-fold error."""
    import lightgbm

    is_used = samples.is_known & samples.train_days[:, None]
    drawn = np.random.default_rng(0).random(is_used.shape, dtype=np.float32) < _MOST_ROWS / np.maximum(is_used.sum(), 1)
    is_used &= drawn

    def data(days: BoolArray) -> lightgbm.Dataset:
        known = samples.is_known & drawn & days[:, None]
        blocks = (block for block in samples.x.blocks() if days[block].any())
        rows = np.concatenate([samples.x.dense(block)[known[block]][:, 1:] for block in blocks])
        return lightgbm.Dataset(rows, samples.results[target][known])

    def model(booster: lightgbm.Booster, rounds: int) -> Model:
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
    boosters = result["cvbooster"]
    for booster in boosters.boosters:
        # Written and read again it predicts the same, without the rows that it learned from.
        booster.model_from_string(booster.model_to_string()).free_dataset()
    return Ranker(
        [model(booster, boosters.best_iteration) for booster in boosters.boosters],
        lambda days: model(lightgbm.train(settings, data(days), boosters.best_iteration), boosters.best_iteration),
    )


@dataclass(frozen=True)
class SupervisedBaseline:
    """A ranking learned on the training days of a market."""

    rule: BandRule
    """How it is held; these scores are those of the market that it was learned on."""
    inputs: BankInputs
    model: Model

    def rule_on(self, market: Market) -> BandRule:
        """Return the rule with its scores of all days of another market."""
        return replace(self.rule, scores=scores_of(self.model, self.inputs.of(market, np.isfinite(market.close))))


def fit_supervised(
    market: Market, tuning: Tuning, *, refit_days: int = 0, days: slice = slice(0, 0)
) -> dict[str, SupervisedBaseline]:
    """Fit ridge regression and LightGBM to the training days of a market.

    The discount of what they learn is that at which the ridge regression earns most on the windows of the tuning.

    Args:
        refit_days: sessions after which the models behind a baseline's own scores are refitted beyond the training
            days, to all results known by then; 0 fits once.
        days: those after the training days for which scores are needed; with `refit_days` all later days have them.

    Returns:
        The baselines by name; none, with a warning that says why, where they cannot be fitted.
    """
    import lightgbm  # late: a command that fits none need not wait for it

    try:
        inputs, rules = BankInputs.fit(market), tuning.portfolio.rules
        last = len(market.dates) - 1 if refit_days else market.splits.train.last
        quotes = tuning.portfolio.quotes.first(len(market.investable_columns))
        bars = (quotes.close > 0).cpu().numpy()
        # Inputs of all days of a large market would be the largest object by far.
        learned = slice(market.splits.train.first, last + 1)
        samples = Samples.of(inputs.of(market, bars, learned), quotes, rules, market.splits.train, last)
        samples.require_enough()
        inputs, samples, ridge = with_context(market, inputs, samples)
        discounts = range(len(samples.results))
        best = int(tuning.fitness([BandRule(ridge.ranker(place).out_of_fold(samples)) for place in discounts]).argmax())
        samples = replace(samples, results=samples.results[[best]])
        rankers = {RIDGE: ridge.ranker(best), LIGHTGBM: fit_trees(samples, 0)}
    except (DataError, lightgbm.basic.LightGBMError) as error:
        logger.warning("the baselines %s and %s are left out: %s", RIDGE, LIGHTGBM, error)
        return {}
    release_free_memory()  # of the trees
    days = slice(max(days.start, learned.stop), days.stop)
    later = inputs.of(market, bars, days) if days.start < days.stop else None
    fitted, tuned = {}, tuning.tuned_together(*([ranker.out_of_fold(samples)] for ranker in rankers.values()))
    for (name, ranker), rule in zip(rankers.items(), tuned, strict=True):
        model = ranker.fit(samples.train_days)
        scores = np.full(bars.shape, np.nan, dtype=np.float32)
        scores[learned] = ranker.rolling(samples, refit_days) if refit_days else scores_of(model, samples.x)
        if later is not None:
            scores[days] = scores_of(model, later)
        fitted[name] = SupervisedBaseline(replace(rule, scores=scores), inputs, model)
    return fitted


def with_context(market: Market, inputs: BankInputs, samples: Samples) -> tuple[BankInputs, Samples, Ridge]:
    """Add context terms one by one, as long as one is significant and lowers the out-of-fold error.

    Orthogonal matching pursuit (Pati et al. 1993) on out-of-fold residuals.
    """
    ridge, boxes, bank = fit_ridge(samples), inputs.boxes(market), samples.x
    while len(inputs.terms) < _MOST_CONTEXT_TERMS:
        term = _significant_term(samples, ridge, boxes, inputs.terms)
        if term is None:
            break
        wider = replace(inputs, terms=(*inputs.terms, term))
        more = replace(samples, x=wider.with_terms(bank, boxes))
        better = fit_ridge(more)
        if better.error >= ridge.error:
            break
        inputs, samples, ridge = wider, more, better
    return inputs, samples, ridge


def _significant_term(
    samples: Samples, ridge: Ridge, boxes: Float32Array, taken: tuple[ContextTerm, ...]
) -> ContextTerm | None:
    """Return the new term most correlated with the out-of-fold residuals; None if no term is significant.

    There may be thousands of candidates and at most a hundred results that do not overlap, so that the best of them
    fits well by chance, out of fold too. Sums of products over blocks of days, each as long as two results, are nearly
    independent; Student's t of their mean has to be significant at 5% for all candidates together (Bonferroni).
    """
    days, columns, widths = boxes.shape
    first, length = samples.train.first, 2 * samples.longest
    blocks = np.arange(first, samples.train.last + 2 - length, length)
    if not boxes.size or len(blocks) < 3:
        return None
    residual = samples.results[-1] - ridge.ranker(-1).out_of_fold(samples)
    residual = np.where(samples.is_known & samples.train_days[:, None], residual, 0.0)
    of_day = np.zeros((2, days))
    of_day[0] = residual.sum(axis=1, dtype=np.float64)
    for block in samples.x.blocks():
        by_volatility = residual[block] * samples.x.dense(block)[..., 1 + VOLATILITY]
        of_day[1, block] = by_volatility.sum(axis=1, dtype=np.float64)
    z = boxes.reshape(days, columns * widths)
    sums = np.stack([of_day[:, start : start + length] @ z[start : start + length] for start in blocks])
    error = sums.std(axis=0, ddof=1) / np.sqrt(len(blocks))
    t = np.abs(sums.mean(axis=0)) / np.maximum(error, 1e-30)
    for term in taken:
        t[int(term.times_volatility), term.column * widths + term.box] = 0.0
    times_volatility, place = np.unravel_index(t.argmax(), t.shape)
    if 2 * t.size * stdtr(len(blocks) - 1, -t.max()) > _SIGNIFICANCE:
        return None
    column, box = divmod(int(place), widths)
    return ContextTerm(column, box, bool(times_volatility))
