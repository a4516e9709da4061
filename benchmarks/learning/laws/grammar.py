"""Laws drawn at random: which quantity moves the sessions to come, in which form, when, for how long and for whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.learning.laws.bars import Noise, Past, Traits
from benchmarks.learning.laws.quantities import (
    FAMILIES,
    QUANTITIES,
    Quantity,
    nearness_to_high,
    range_shock,
    standardised,
    volatility,
    volume_shock,
)
from benchmarks.learning.structures import Drawn
from utils.arrays import Float64Array

HALF_LIVES = (0.5, 1, 2, 3, 5, 10, 20, 40, 60, 120, 250)
_LIMIT = 3.0
"""Deviations beyond which nothing more follows."""
_OWN_HALF_LIFE = 120.0
_LARGE = 0.7
"""Deviations of a partner above which a day is loud, wide or near the high."""


class Partner(NamedTuple):
    """Something by which a law holds more or less for a stock."""

    noun: str
    high: str
    low: str
    of: Callable[[Past], Float64Array]


PARTNERS: Mapping[str, Partner] = {
    "volume": Partner("the day's volume shock", "a loud day", "a quiet day", lambda past: volume_shock(past, 1)),
    "move": Partner("the size of its move", "a large move", "a small move", lambda past: np.abs(past.total[past.day])),
    "range": Partner("the day's range shock", "a wide day", "a narrow day", lambda past: range_shock(past, 1)),
    "high": Partner(
        "nearness to the year's high",
        "a rise near the year's high",
        "a fall far below the year's high",
        lambda past: nearness_to_high(past, 252),
    ),
    "risk": Partner("its volatility", "a volatile quarter", "a calm quarter", lambda past: volatility(past, 63)),
}


def _market_risk(past: Past, look: int) -> float:
    return float(past.last(past.total, look).mean(axis=1).std())


def _dispersion(past: Past, look: int) -> float:
    return float(past.last(past.total, look).std(axis=1).mean())


STATES: Mapping[str, Callable[[Past], bool]] = {
    "wild": lambda past: _market_risk(past, 10) > 1.1 * _market_risk(past, 252),
    "calm": lambda past: _market_risk(past, 10) <= 1.1 * _market_risk(past, 252),
    "rising": lambda past: bool(past.last(past.total, 60).mean() > 0),
    "falling": lambda past: bool(past.last(past.total, 60).mean() <= 0),
    "dispersed": lambda past: _dispersion(past, 5) > _dispersion(past, 252),
}
"""Of the market. Cooper, Gutierrez and Hameed (2004), "Market states and momentum": momentum earns 0.93% a month after
rises and -0.37% after falls. Daniel and Moskowitz (2016), "Momentum crashes": it turns round in wild markets after
falls. Stivers and Sun (2010), "Cross-sectional return dispersion and time variation in value and momentum premiums"."""
SCALES = {"plain": "", "rank": ", by rank", "own": ", compared with the stock's own past"}
FORMS = {
    "linear": "",
    "extremes": ", of extremes alone",
    "high tail": ", of high values alone",
    "low tail": ", of low values alone",
    "product": ", times {noun}",
    "after high": ", after {high}",
    "after low": ", after {low}",
    "ratio": ", for its volatility",
}
SCOPES = {"common": "", "degrees": ", each stock to its own degree", "signs": ", each stock with its own sign"}


def _one(rng: np.random.Generator, values: Sequence[Any], *weights: float) -> Any:
    """Draw a value; the last ones share what weights leave."""
    left = len(values) - len(weights)
    chances = [*weights, *[(1 - sum(weights)) / max(left, 1)] * left]
    return values[int(rng.choice(len(values), p=chances))]


@dataclass(frozen=True)
class Law:
    """What a session's drifts follow from, but for their strength; printed as a sentence."""

    quantity: Quantity
    look: int
    sign: int
    scale: str = "plain"
    form: str = "linear"
    partner: str = "volume"
    """Of the forms that have one."""
    state: str | None = None
    """Of the market, in which it holds."""
    flips: bool = False
    """Whether its reverse holds in other states."""
    lag: int = 0
    """Sessions until it begins."""
    half_life: float = 0.0
    """Sessions; 0: of the next session alone."""
    scope: str = "common"

    @classmethod
    def draw(cls, seed: int) -> Law:
        """Draw the law of a seed."""
        rng = np.random.default_rng([seed, 64])
        one = partial(_one, rng)
        family = one(FAMILIES)
        quantity = one([each for each in QUANTITIES.values() if each.family == family])
        least, largest = quantity.decays
        is_event, is_state = quantity.decays == (0, 0), family == "hidden"
        return cls(
            quantity,
            one(quantity.looks),
            quantity.sign * one((1, -1), 0.75),
            "plain" if quantity.is_plain else one([*SCALES], 0.5),
            "linear" if quantity.is_plain else one([*FORMS], 0.4),
            one([*PARTNERS]),
            one([None, *STATES], 0.6),
            one((False, True)),
            0 if is_event else one((0, 1, 2, 3), 0.7),
            0.0 if is_event else one([life for life in HALF_LIVES if least <= life <= largest]),
            "common" if family == "season" or is_state else one([*SCOPES], 0.7, 0.2),
        )

    def __str__(self) -> str:
        partner, verbs = PARTNERS[self.partner], self.quantity.verbs
        looked = self.quantity.words.format(self.look).replace("the last 1 sessions", "the last session").rstrip(",")
        form = FORMS[self.form].format(noun=partner.noun, high=partner.high, low=partner.low)
        sentence = f"{looked}{SCALES[self.scale]}{form}, {verbs[0 if self.sign > 0 else 1]}"
        if self.state:
            sentence += f" in {self.state} markets" + (" and does the reverse in others" if self.flips else "")
        sentence += f", {self.lag} session{'s' * (self.lag > 1)} late" if self.lag else ""
        sentence += f", with a half-life of {self.half_life:g}" if self.half_life else ""
        return sentence + SCOPES[self.scope]


@dataclass
class Response:
    """What follows from a law after each close, for a unit of strength."""

    law: Law
    waiting: list[Float64Array] = field(default_factory=list)
    """What has not begun, oldest first."""
    memory: Float64Array | float = 0.0
    mean: Float64Array | float = 0.0
    """Of the quantity in the stock's own past."""
    square: Float64Array | float = 1e-12

    def after(self, past: Past) -> Float64Array:
        """Return the (n,) drifts of the next session; call it once after each close."""
        law, kept = self.law, 0.5 ** (1 / self.law.half_life) if self.law.half_life else 0.0
        read = law.quantity.of(past, law.look)
        self.waiting.append(self._formed(self._scaled(read - read.mean()).clip(-_LIMIT, _LIMIT), past))
        begun = self.waiting.pop(0) if len(self.waiting) > law.lag else 0.0
        self.memory = kept * self.memory + np.sqrt(1 - kept**2) * begun
        holds = 1.0 if law.state is None or STATES[law.state](past) else (-1.0 if law.flips else 0.0)
        of_stock = {"common": np.ones(len(read)), "degrees": past.traits.degree, "signs": past.traits.side}
        drift = law.sign * holds * of_stock[law.scope] * self.memory
        return np.asarray(drift - drift.mean())

    def _scaled(self, apart: Float64Array) -> Float64Array:
        """Return a quantity's unit of deviation: over stocks, of ranks over stocks, or of the stock's own past."""
        if self.law.quantity.is_plain:
            return apart
        if self.law.scale == "rank":
            return standardised(apart.argsort().argsort().astype(np.float64))
        if self.law.scale == "plain":
            return standardised(apart)
        kept = 0.5 ** (1 / _OWN_HALF_LIFE)
        self.mean = kept * self.mean + (1 - kept) * apart
        self.square = kept * self.square + (1 - kept) * (apart - self.mean) ** 2
        return np.asarray((apart - self.mean) / np.sqrt(self.square))

    def _formed(self, units: Float64Array, past: Past) -> Float64Array:
        """Return what the form makes of (n,) units."""
        form = self.law.form
        if form in ("linear", "extremes", "high tail", "low tail"):
            is_in = {"linear": np.isfinite(units), "extremes": np.abs(units) > 1, "high tail": units > 1}
            return np.where(is_in.get(form, units < -1), units, 0.0)
        if form == "ratio":
            risk = volatility(past, 63)
            return np.asarray(units * (risk.mean() + 1e-6) / (risk + 1e-6)).clip(-_LIMIT, _LIMIT)
        by = standardised(PARTNERS[self.law.partner].of(past))
        if form == "product":
            return np.asarray(units * by.clip(-_LIMIT, _LIMIT))
        return np.where((by if form == "after high" else -by) > _LARGE, units, 0.0)


def simulate(law: Law, strength: float, traits: Traits, noise: Noise) -> Drawn:
    """Let a law move the sessions of a market, close by close."""
    days, n = noise.session.shape
    past, response = Past(traits, noise, pd.bdate_range("2006-01-02", periods=days + 1)), Response(law)
    drift = np.zeros((days, n))
    for day in range(days):
        past.walk(drift[day - 1] if day else np.zeros(n))
        drift[day] = strength * response.after(past)
    bars, bought = past.frame(law.quantity.column), 2 * n // 3
    return Drawn(bars, bars["ticker"].iloc[:bought].to_list(), drift[:, :bought])


def path(law: Law, strength: float, days: int, n: int, seed: int, part: int = 0) -> Drawn:
    """Draw a market of a law; parts of a seed are independent of one another."""
    rng = np.random.default_rng([seed, part])
    traits = Traits.draw(n, rng)
    return simulate(law, strength, traits, Noise.draw(traits, days, rng))
