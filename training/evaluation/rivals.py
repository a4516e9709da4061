"""Learned rivals: rankings that a quant would take instead of a population.

A ridge regression and LightGBM (Ke et al. 2017) learn the results of all orders of the training days
(`training/forecasts/hindsight.py`) from closes alone, and order the stocks of which they expect most. Whatever is
chosen, from the penalty to the size of an order, is chosen out of fold on the training days.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import stdtr

from data.bank import VOLATILITY, box_sums, multi_scale_bank
from data.features import CLOSE
from data.market import Market
from data.splits import spaced_windows
from environment.portfolio import Portfolio
from training.evaluation.baselines import ScoreRule, score_policy, tune_rule
from training.evaluation.rankers import Model, Ranker, Ridge, fit_ridge, fit_trees
from training.forecasts.samples import Float32Array, Float64Array, Samples
from training.rollout import play
from utils.errors import DataError
from utils.spaces import TARGET_PERCENTS

logger = logging.getLogger(__name__)
RIDGE, LIGHTGBM = "ridge", "LightGBM"
_BOX_DAYS = (1, 2, 4, 8, 16, 32, 64)
_MOST_CONTEXT_TERMS = 8
_SIGNIFICANCE = 0.05
_CLIP = 6.0
"""Standard deviations to which inputs are clipped."""
TUNING_WINDOWS = 32


@dataclass(frozen=True)
class ContextTerm:
    """The sum of the last returns of a column that may not be bought, alone or times a stock's own volatility."""

    column: int
    """Place among the columns that may not be bought."""
    box: int
    """Place in `_BOX_DAYS`."""
    times_volatility: bool


@dataclass(frozen=True)
class Inputs:
    """The numbers that a rival sees of a stock at a close: a constant, the bank and context terms, standardised."""

    mean: Float32Array
    std: Float32Array
    """(17,) of the bank of stocks with a bar on training days."""
    box_std: Float32Array
    """(context columns, boxes) of the sums of the context columns' last returns on training days."""
    terms: tuple[ContextTerm, ...] = ()

    @classmethod
    def fit(cls, market: Market) -> Self:
        """Standardise the bank, without context terms, on a market's training days."""
        days = slice(market.splits.train.first, market.splits.train.last + 1)
        bank = multi_scale_bank(market.close)[days][np.isfinite(market.close[days])]
        std = bank.std(axis=0, dtype=np.float64)
        if not std.max(initial=0.0) > 0:
            raise DataError("expected closes that move, got constant ones on all training days")
        box_std = _context_boxes(market)[days].std(axis=0, dtype=np.float64)
        mean = bank.mean(axis=0, dtype=np.float64).astype(np.float32)
        return cls(mean, _above_zero(std), _above_zero(box_std))

    def of(self, market: Market) -> Float32Array:
        """Return the (days, n, inputs) of a market."""
        bank = np.clip((multi_scale_bank(market.close) - self.mean) / self.std, -_CLIP, _CLIP)
        parts = [np.ones_like(bank[..., :1]), bank]
        if self.terms:
            parts.append(self.context(self.boxes(market), bank[..., VOLATILITY]))
        return np.concatenate(parts, axis=2)

    def boxes(self, market: Market) -> Float32Array:
        """Return the (days, context columns, boxes) standardised sums of returns."""
        boxes: Float32Array = np.clip(_context_boxes(market) / self.box_std, -_CLIP, _CLIP)
        return boxes

    def context(self, boxes: Float32Array, volatility: Float32Array) -> Float32Array:
        """Return the (days, n, terms) context terms of boxes for the (days, n) standardised volatilities of stocks."""
        values = [
            boxes[:, term.column, term.box, None] * (volatility if term.times_volatility else np.ones_like(volatility))
            for term in self.terms
        ]
        return np.stack(values, axis=2)


def _above_zero(spread: Float64Array) -> Float32Array:
    return np.where(spread > 0, spread, 1.0).astype(np.float32)


def _context_boxes(market: Market) -> Float32Array:
    columns = np.setdiff1d(np.arange(market.data_array.shape[1]), market.investable_columns)
    return box_sums(market.data_array[:, columns, CLOSE], _BOX_DAYS)


@dataclass(frozen=True)
class Rival:
    """A ranking that was learned on the training days of a market."""

    rule: ScoreRule
    """How its scores become orders; these scores are those of the market that it was learned on."""
    inputs: Inputs
    model: Model
    explained: float
    """Share of the variance of the training days' results that it explains out of fold."""

    def rule_on(self, market: Market) -> ScoreRule:
        """Return the rule with its scores of all days of another market."""
        return replace(self.rule, scores=self.model(self.inputs.of(market)))


def fit_rivals(market: Market, env: Portfolio, *, refit_days: int = 0) -> dict[str, Rival]:
    """Learn the rivals on a market's training days under the rules of an environment on the same market.

    Args:
        refit_days: beyond the training days a rival's own scores are made by models that are fitted again after so many
            sessions, to all results known by then; 0 fits once.

    Returns:
        The rivals by name. One that cannot be fitted is left out, with a warning that says why.
    """
    try:
        inputs = Inputs.fit(market)
        last = len(market.dates) - 1 if refit_days else market.splits.train.last
        samples = Samples.of(inputs.of(market), env, market.splits.train, last)
        samples.require_enough()
        inputs, samples, ridge = _with_context(market, inputs, samples)
    except DataError as error:
        logger.warning("the rivals %s and %s are left out: %s", RIDGE, LIGHTGBM, error)
        return {}
    starts = spaced_windows(samples.train, env.rules.episode_steps, TUNING_WINDOWS).to(env.device)
    rules = [
        ScoreRule(ridge.ranker(target).out_of_fold(samples), target_percent=percent)
        for target, percent in enumerate(TARGET_PERCENTS)
    ]
    summary, _ = play(env, score_policy(rules, env.device), starts.repeat(len(rules)))
    target = int(summary.profit_percent.view(len(rules), -1).mean(1).argmax())
    rivals = {}
    for name, ranker in _rankers(samples, ridge, target):
        known = ranker.out_of_fold(samples)
        tuned = tune_rule(env, known, 0.0, starts)
        model = ranker.fit(samples.train_days)
        scores = ranker.rolling(samples, refit_days) if refit_days else model(samples.x)
        rivals[name] = Rival(replace(tuned, scores=scores), inputs, model, samples.explained(known, target))
        logger.info(
            "rival %s: explains %.2f%% of the variance of training days' results out of fold",
            name,
            100 * rivals[name].explained,
        )
    return rivals


def _rankers(samples: Samples, ridge: Ridge, target: int) -> Iterator[tuple[str, Ranker]]:
    """Yield the rankers of results at a sale target, by name."""
    yield RIDGE, ridge.ranker(target)
    try:
        yield LIGHTGBM, fit_trees(samples, target)
    except DataError as error:
        logger.warning("the rival %s is left out: %s", LIGHTGBM, error)


def _with_context(market: Market, inputs: Inputs, samples: Samples) -> tuple[Inputs, Samples, Ridge]:
    """Add context terms one by one, as long as one is significant and lowers the out-of-fold error.

    It is orthogonal matching pursuit (Pati et al. 1993) on out-of-fold residuals.
    """
    ridge, boxes, bank = fit_ridge(samples), inputs.boxes(market), samples.x
    volatility = bank[..., 1 + VOLATILITY]
    while len(inputs.terms) < _MOST_CONTEXT_TERMS:
        term = _significant_term(samples, ridge, boxes, volatility, inputs.terms)
        if term is None:
            break
        wider = replace(inputs, terms=(*inputs.terms, term))
        x = np.concatenate((bank, wider.context(boxes, volatility)), axis=2)
        more = replace(samples, x=x)
        better = fit_ridge(more)
        if better.error >= ridge.error:
            break
        inputs, samples, ridge = wider, more, better
    return inputs, samples, ridge


def _significant_term(
    samples: Samples,
    ridge: Ridge,
    boxes: Float32Array,
    volatility: Float32Array,
    taken: tuple[ContextTerm, ...],
) -> ContextTerm | None:
    """Return the term, beside those taken, that goes most surely with the residuals; None if it may be chance.

    There may be thousands of candidates and no more than a hundred trades that do not overlap, so that the best of them
    fits well by chance, out of fold too. Sums of products over blocks of days, each as long as two trades, are nearly
    independent; Student's t of their mean has to be significant at 5% for all candidates together (Bonferroni).
    """
    days, columns, widths = boxes.shape
    first, length = samples.train.first, 2 * samples.longest
    blocks = np.arange(first, samples.train.last + 2 - length, length)
    if not boxes.size or len(blocks) < 3:
        return None
    residual = samples.results[-1] - ridge.ranker(-1).out_of_fold(samples)
    residual = np.where(samples.is_known & samples.train_days[:, None], residual, 0.0)
    of_day = np.stack((residual.sum(axis=1), (residual * volatility).sum(axis=1)))
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
