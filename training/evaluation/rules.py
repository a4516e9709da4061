"""Rules: scores that are held as target weights by the band, as agents hold theirs, with numbers tuned beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.bank import relative_risk
from data.market import Market
from data.splits import spaced_windows
from environment.portfolio import Policy, Portfolio
from models.policy import Forecasts
from training.rollout import by_band, roll_out
from utils.arrays import Float64Array

Scores = NDArray[np.float32] | Float64Array
_WINDOWS = 12
_RISKS = (0.004, 0.008, 0.016, 0.032, 0.064, 0.128)
_WORTHS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Percent that a standard deviation of scores is worth."""
_LARGEST = (0.05, 0.1, 0.2)
_EXPOSURES = (0.004, 0.016, 0.064)
NUMBERS = ("unit", "risk", "largest", "timing", "exposure", "usual")
"""Of a `BandRule`, what is tuned; the agents' own are bred."""


@dataclass(frozen=True)
class BandRule:
    """A policy that every day holds target weights by scores, see `models.policy`."""

    scores: Scores
    """(days, n), known at each day's close; NaN: none, which counts as the day's mean."""
    unit: float = 1.0
    """Percent that a unit of score is worth."""
    risk: float = 0.016
    """Price of risk."""
    largest: float = 0.2
    """Largest weight of a stock."""
    timing: float = 0.0
    """Percent that a unit of a day's mean score is worth; 0: all is invested."""
    exposure: float = 0.016
    """Price of the risk of cash."""
    usual: float = 0.0
    """Mean score of training days."""

    def forecasts(self, risk: Tensor) -> Forecasts:
        """Return its scores as forecasts, beside the (days, n) relative risk of stocks."""
        known = np.isfinite(self.scores)
        total = np.where(known, self.scores, 0.0).sum(axis=1, keepdims=True)
        score = np.where(known, self.scores, total / known.sum(axis=1, keepdims=True).clip(min=1))
        table = torch.from_numpy(score.astype(np.float32))[None].to(risk.device)
        return Forecasts.of(table, torch.full((1, 1), self.usual, device=risk.device), risk)

    def policy(self, risk: Tensor) -> Policy:
        """Return what it holds."""
        followed = numbers_of([self], risk.device)
        return by_band(self.forecasts(risk), followed["genes"], *(float(followed[n]) for n in ("shrink", "timing")))


def numbers_of(rules: Sequence[BandRule], device: torch.device) -> dict[str, Any]:
    """Return genes, shrink and timing of rules, as `roll_out` takes them."""
    genes = [[rule.risk, rule.largest, rule.exposure] for rule in rules]
    believed = [[rule.unit, rule.timing] for rule in rules]
    shrink, timing = torch.tensor(believed, dtype=torch.float64, device=device).unbind(1)
    return {"genes": torch.tensor(genes, dtype=torch.float64, device=device), "shrink": shrink, "timing": timing}


@dataclass(frozen=True)
class Tuning:
    """Training windows on which rules are tuned, all alike."""

    portfolio: Portfolio
    starts: Tensor
    """(W,) first days."""
    steps: int
    risk: Tensor
    """(days, n) relative risk of stocks, see `data.bank`."""

    @classmethod
    def of(cls, market: Market, portfolio: Portfolio) -> Tuning:
        """Space windows over a market's training days."""
        steps = portfolio.rules.episode_steps
        starts = spaced_windows(market.splits.train, steps, _WINDOWS).to(portfolio.device)
        return cls(portfolio, starts, steps, torch.from_numpy(relative_risk(market.close)).to(portfolio.device))

    @property
    def days(self) -> slice:
        """Return the days from the first to the last on which something is decided."""
        first, last = torch.stack(self.starts.aminmax()).tolist()
        return slice(first, last + self.steps)

    def tuned(self, *candidates: Scores) -> BandRule:
        """Return the rule of some scores with the numbers of the largest fitness, the agents' own: scores (one of the
        candidates), worth of a unit of score and price of risk together, then the largest weight, then the worth of a
        unit of their level and the price of the risk of cash.

        Scores that are not known on training days are taken in deviations of their day, and nothing is tuned.
        """
        best, most, of_best = None, -np.inf, list[float]()
        for scores in candidates:
            known = scores[self.days][np.isfinite(scores[self.days])]
            spread = float(known.std()) if known.size else 0.0
            if not spread > 0:
                continue
            usual, units = float(known.mean()), [worth / spread for worth in _WORTHS]
            tried = [BandRule(scores, unit, risk, usual=usual) for unit in units for risk in _RISKS]
            fitness = self.fitness(tried)
            if float(fitness.max()) > most:
                best, most, of_best = tried[int(fitness.argmax())], float(fitness.max()), units
        if best is None:
            scores = candidates[0]
            of_day = _spreads(scores)[:, None]
            scaled = np.divide(scores, of_day, out=np.full_like(scores, np.nan), where=of_day > 0)
            return BandRule(scaled, unit=_WORTHS[3])
        tried = [replace(best, largest=largest) for largest in _LARGEST]
        best = tried[int(self.fitness(tried).argmax())]
        tried = [replace(best, timing=unit, exposure=exposure) for unit in of_best for exposure in _EXPOSURES]
        tried = [best, *tried]
        return tried[int(self.fitness(tried).argmax())]

    def fitness(self, rules: Sequence[BandRule]) -> Tensor:
        """Return the fitness of rules that differ in their numbers alone."""
        forecasts, numbers = rules[0].forecasts(self.risk), numbers_of(rules, self.risk.device)
        how: dict[str, Any] = {"starts": self.starts, "steps": self.steps, "label": "Tuning rules"}
        return roll_out(self.portfolio, forecasts, **numbers, **how).utility().mean(1)


def _spreads(scores: Scores) -> Float64Array:
    """Return the (days,) deviations of (days, n) scores; 0 where fewer than two stocks have one."""
    known = np.where(np.isfinite(scores), scores, np.nan).astype(np.float64)
    known[np.isfinite(known).sum(axis=1) < 2] = 0.0
    return np.asarray(np.nanstd(known, axis=1))
