"""The judge: measures of every policy with intervals, the verdict, and how much choosing among trials may add."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Literal

import numpy as np
import pandas as pd

from data.features.nine import CLOSE, OPEN
from data.market import Market
from models.evidence import Evidence
from training.evaluation.baselines import (
    CASH,
    CHAMPION,
    EQUAL,
    HOLD,
    IN_FULL,
    LIGHTGBM,
    NEVER_BEST,
    RANDOM,
    known_biases,
)
from training.evaluation.compared import COSTS_BPS, PlayedPolicies
from training.evaluation.holdout import Look
from training.evaluation.measures import Estimate, estimates
from training.evaluation.permutation_nulls import Praise
from training.evaluation.verdict import FoldResult, Lead, Overfitting, Verdict, outcome, verdict, yearly
from training.forecasts.look_ahead import LookAhead, look_ahead
from training.forecasts.skill import Coefficient, rank_coefficients
from utils import metrics
from utils.arrays import DateArray, Float64Array
from utils.config.trader import Config
from utils.runs.run_log import Records
from utils.statistics import mean_test
from utils.tables import many

Split = Literal["validation", "holdout", "walk-forward"]
NOTES: dict[Split, str] = {
    "validation": "Nothing was chosen on validation days: the champion was fixed on training days.",
    "holdout": (
        "Champions evaluated on the holdout count as independent trials without skill, whose daily information ratios "
        "over T days have a standard deviation of 1 / sqrt(T - 1); where the champions are similar this is too strict."
    ),
    "walk-forward": "Each champion was chosen on days before its test days; nothing was chosen on the test days.",
}
"""How the champion was chosen, by the days that judge it."""
UNAUDITED = "{} of a file cannot be audited: a model that saw the judged days flatters, and so does {}."
_OF_WEIGHTS = "Weights", "a date before the close at which they were known"
_OF_ORDERS = "Orders", "the day of a fill as that of its order, where no prices are given"
BESIDE = (EQUAL, LIGHTGBM)
"""What a person wants the champion compared with, besides random pickers and the benchmark."""
_SHORT, _INVESTED = 0.005, 0.5
"""Least mean share of the equity that is told to be short, and that is invested without a word."""
_BAND = (5, 95)
_POSITION_COLUMNS = (
    *("policy", "ticker", "first_date", "last_date", "shares", "largest", "bought", "sold", "value", "received"),
    *("costs", "profit", "fills", "reason"),
)
DISGUISE, FOLLOWS, ALIKE = 0.02, 0.9, 0.99
"""Active share below which a policy is another one in disguise, correlation of what both earn over the benchmark from
which on it follows another one, and of returns from which on they are the benchmark's."""


@dataclass(frozen=True)
class Evaluation:
    """A policy or champions judged on days that follow one another: the source of tables, files and the page.

    The judged policy comes first in every mapping by policy.
    """

    name: str
    """Name of the run or of the walk-forward test."""
    split: Split
    config: Config
    market: Market
    played: PlayedPolicies
    command: str
    """Command line that reproduces this evaluation."""
    trials: int = 1
    """Champions or policies compared on the judged days; 1 if nothing was chosen on them."""
    champion_generation: int | None = None
    """None where there is a champion for each fold, and for policies of the user."""
    champion_digest: str = ""
    """Of what the champion decides by, see `DDPGAgent.digest`."""
    records: Records = ()
    """The run's records of metrics.jsonl up to its last generation; empty for a walk-forward test."""
    looks: Sequence[Look] = ()
    """Looks at the judged days, the oldest first, where they are holdout or test days."""
    folds: Sequence[FoldResult] = ()
    extends: str = ""
    """Name of the run that this one extends, if any."""
    evidence: Sequence[Evidence] = ()
    """Of each champion, from its training days, with the share of its scores that it follows."""
    importance: Mapping[str, float] = field(default_factory=dict)
    """Importance of each input to the champion on the judged days, by name, see `training.commands.evaluate`."""
    decided: Mapping[int, str] = field(default_factory=dict)
    """Of the champion's largest positions, by their rows of `positions`: the inputs that moved their forecasts most."""
    has_code: bool = True
    """Whether the judged policy can be called, so that it was audited, or is to be; else its scores are checked."""
    null: Praise | None = None
    """What the verdict says of the same code on null markets."""

    @property
    def judged(self) -> str:
        """Return the name of the policy that is judged."""
        return next(iter(self.played.curves))

    @cached_property
    def policies(self) -> dict[str, dict[str, Estimate]]:
        """Return estimates by policy, then by the keys of `METRICS`.

        Intervals of one policy are bootstrapped; those of random pickers hold their middle 95%.
        """
        curves = self.played.curves
        market = metrics.daily_returns(curves[self.played.market].equity[0])
        return {name: estimates(curve, market, self.config.seed) for name, curve in curves.items()}

    @cached_property
    def verdict(self) -> Verdict:
        played, judged, held = self.played, self.judged, self.played.benchmark
        daily = {name: curves.daily for name, curves in played.curves.items()}
        exposure, of_benchmark = (played.curves[name].exposure[0] for name in (judged, held))
        # What needs no capital is no rival of those that are invested.
        others = [name for name in daily if held != CASH and name not in {judged, held, *NEVER_BEST}]
        invested = float(exposure.mean())
        return verdict(
            daily[judged][0],
            daily[RANDOM],
            played.selection,
            exposure,
            daily[held][0],
            trials=self.trials,
            exposure_ratio=float(of_benchmark.mean()) / invested if invested else math.inf,
            baselines={name: daily[name][0] for name in others},
            name=held,
        )

    @property
    def sentence(self) -> str:
        """Return the verdict in words, preceded by warnings and by the evidence from training days."""
        return " ".join(filter(None, (*self.warnings, self.evidence_sentence, self.finding)))

    @property
    def warnings(self) -> list[str]:
        """Return what the verdict begins with: that another portfolio was judged than is thought, and of a leak."""
        return [*filter(None, (self.apart, self.suspicion))]

    @property
    def finding(self) -> str:
        """Return the verdict in words, what is short before it, or that there is none of a policy that never traded."""
        long, short = (float(side.clip(0).sum(axis=1).mean()) for side in (self.played.weights, -self.played.weights))
        sizes = f"It is {long:.0%} of its equity long and {short:.0%} short, in the mean." if short >= _SHORT else ""
        if self.judged != CHAMPION and self._invested < _INVESTED:
            sizes = sizes or f"It is {long:.0%} invested in the mean, and the rest is cash."
        said = sizes, self.never_traded or self.verdict.sentence, self.null.sentence if self.null else ""
        return " ".join(filter(None, said))

    @property
    def _invested(self) -> float:
        return float(np.abs(self.played.weights).sum(axis=1).mean())

    @property
    def apart(self) -> str:
        """Say that another portfolio was judged than the policy asked for, or what was left out of it, or that it is
        some baseline in disguise; else empty."""
        said = [self.played.asked.warning] if self.played.asked else []
        if self.judged == CHAMPION:
            return said[0] if said else ""
        shares, plain = self.played.active_share, self.played.benchmark
        # A rule that follows nothing is the benchmark, too, which tells more.
        name = min((plain, HOLD), key=lambda one: shares.get(one, 1.0))
        if shares.get(name, 1.0) >= DISGUISE:
            name = min(shares, key=shares.__getitem__, default=plain)
        # Of an account in cash everything lacks that others earn.
        follows = self.played.active_correlation if self._invested >= _INVESTED else {}
        together = {n: value for n, value in follows.items() if value >= FOLLOWS}
        if shares.get(name, 1.0) < DISGUISE:
            said.append(f"It is {name} to within {100 * shares[name]:.1f}% of the equity.")
        elif (alike := self.played.correlation.get(plain, 0.0)) >= ALIKE:
            said.append(f"Its returns have a correlation of {alike:.3f} with those of {plain}.")
        elif together:
            name = max(together, key=together.__getitem__)
            said.append(f"What it earns over {plain} has a correlation of {together[name]:.2f} with what {name} does.")
        return " ".join(said).strip()

    @property
    def never_traded(self) -> str:
        """Say that a policy of the user never traded, and why that may be; empty where it did, and for champions."""
        if self.judged == CHAMPION or self.played.traded.any():
            return ""
        when = f"from {self.dates[0]} to {self.dates[-1]}"
        why = "Perhaps no weight is above 0, or they are of stocks or days without a price"
        return f"{self.judged} never traded {when}: no verdict. {why}."

    @property
    def suspicion(self) -> str:
        """Return a warning where scores are better than they can be without knowing the future."""
        for name, found in self.ahead.items():
            if found.reason:
                remedy = "look for a leak, such as prices or columns that are dated a day early"
                return f"Scores of {name} {found.reason}: {remedy}."
        return self.check.warning if self.check else ""

    @property
    def evidence_sentence(self) -> str:
        """Return what the champions' orders were worth on training days, and what follows from it."""
        if not self.evidence:
            return ""
        if not self.folds:
            return self.evidence[0].sentence
        significant = sum(one.strength == "significant" for one in self.evidence)
        shrink, timing = self.mean_believed
        return (
            f"Training days show significant evidence for {significant} of {len(self.evidence)} champions; "
            f"in the mean {100 * shrink:.0f}% of the differences between their scores are believed, and "
            f"{100 * timing:.0f}% of their level."
        )

    @property
    def mean_believed(self) -> tuple[float, float]:
        """Return the shares of the differences between scores and of their level that are believed, means over
        champions."""
        shrink, timing = np.mean([(one.shrink, one.timing) for one in self.evidence], axis=0)
        return float(shrink), float(timing)

    @cached_property
    def coefficients(self) -> dict[str, dict[int, Coefficient]]:
        """Return the rank information coefficients of all scores, by policy and by sessions of the returns."""
        return {name: rank_coefficients(scores, self.played.ahead) for name, scores in self.played.scores.items()}

    @cached_property
    def ahead(self) -> dict[str, LookAhead]:
        """Hold all scores against what follows, by policy, but those of the judged one's twins, and of rule and oracle
        of a built-in market."""
        scores = {name: score for name, score in self.played.scores.items() if name not in NEVER_BEST}
        bars = self.market.data_array[self.played.days[:-1]][:, self.market.investable_columns].astype(np.float64)
        return look_ahead(scores, bars[..., OPEN], bars[..., CLOSE])

    @property
    def check(self) -> LookAhead | None:
        """Return what was seen of the scores of a policy without code; None of one with code, or without any."""
        return None if self.has_code else self.ahead.get(self.judged)

    @cached_property
    def overfitting(self) -> Overfitting:
        """Estimate how much choosing the champion among those evaluated on the judged days may have added."""
        names = self.judged, self.played.benchmark
        judged, held = (metrics.daily_returns(self.played.curves[name].equity[0]) for name in names)
        note = NOTES[self.split]
        if self.judged != CHAMPION:
            note = (
                f"Policies tried from {self.dates[0]} to {self.dates[-1]} that the verdict allows for: {self.trials:,},"
                " by --variants and recorded looks. It cannot know of others, and days to which a policy was fitted "
                "prove nothing."
            )
        return Overfitting.of(judged, held, self.trials, note)

    @cached_property
    def cost_returns(self) -> dict[str, dict[str, float]]:
        """Return the mean return in percent by policy, then by basis points per leg."""
        levels = self.played.at_cost
        return {
            name: {f"{bps:g}": curves[name].mean_return_percent for bps, curves in levels.items()}
            for name in levels[COSTS_BPS[0]]
        }

    @cached_property
    def dates(self) -> DateArray:
        """Return the (D + 1,) days of the equity."""
        return self.market.dates[self.played.days]

    @property
    def fill_dates(self) -> DateArray:
        """Return the (D,) days of the fills of each day's decision."""
        return self.dates[1:] if self.config.env.fill == "next_open" else self.dates[:-1]

    @cached_property
    def equity(self) -> dict[str, Float64Array]:
        """Return the (D + 1,) equity by policy; the mean of the random pickers."""
        return {name: curves.equity.mean(axis=0) for name, curves in self.played.curves.items()}

    @cached_property
    def random_band(self) -> tuple[Float64Array, Float64Array]:
        """Return percentiles 5 and 95 of the random pickers' equity."""
        low, high = np.percentile(self.played.curves[RANDOM].equity, _BAND, axis=0)
        return low, high

    @cached_property
    def positions(self) -> pd.DataFrame:
        """Return the judged account's positions, a row each, from first purchase to last sale.

        Amounts are in currency units; `value` is that of the `shares` which are left on the last day; `profit`, which
        counts it, is before `costs`; `largest` is the most shares that were held.
        """
        dates = self.market.dates.astype(str).tolist()
        rows = [
            {
                **{"policy": self.judged, "ticker": self.played.tickers[one["stock"]], **one},
                "first_date": dates[one["first_day"]],
                "last_date": None if one["last_day"] is None else dates[one["last_day"]],
            }
            for one in self.played.positions
        ]
        return pd.DataFrame(rows, columns=[*_POSITION_COLUMNS])

    @cached_property
    def trades(self) -> pd.DataFrame:
        """Return what the judged account traded: `value` bought by `date` and `ticker`, negative: sold."""
        day, stock = np.nonzero(self.played.traded)
        fill = self.fill_dates[day]
        tickers = [self.played.tickers[place] for place in stock.tolist()]
        values = {"policy": self.judged, "date": fill.astype(str), "ticker": tickers}
        return pd.DataFrame({**values, "value": self.played.traded[day, stock]})

    @property
    def title(self) -> str:
        if self.judged != CHAMPION:
            return f"{self.judged} on {self.split} days"
        tested = f"walk-forward test of {many(len(self.folds), 'champion')}"
        return f"{self.name}: {tested if self.folds else f'{self.judged} on {self.split}'}"

    @property
    def leads(self) -> list[Lead]:
        """Return the leads over what was played; tests allow for as many trials and baselines as the verdict's."""
        verdict, curves = self.verdict, self.played.curves
        looks = self.trials * (1 if verdict.best_baseline is None else verdict.best_baseline.among)
        tests = {RANDOM: verdict.selection.test, self.played.benchmark: verdict.over_benchmark}
        best = () if verdict.best_baseline is None else (verdict.best_baseline.name,)
        for name in (*BESIDE, *best):
            if name in curves and name not in (*tests, *self.idle):
                tests[name] = yearly(mean_test(curves[self.judged].daily[0] - curves[name].daily[0], looks))
        signs = {RANDOM: verdict.selection.sign}
        return [Lead(name, test, signs.get(name, test.sign)) for name, test in tests.items()]

    @property
    def headline(self) -> str:
        """Return in a few words whether training days show an edge, and what follows; empty without a test."""
        if not self.evidence:
            return ""
        strongest = min(self.evidence, key=lambda one: min(one.p_value, one.cash_p_value))
        shrink, timing = self.mean_believed
        return replace(strongest, shrink=shrink, timing=timing).headline

    @property
    def conclusion(self) -> str:
        """Return what the judged days tell, in one line."""
        rivals = [one for one in self.leads if one.policy != RANDOM]
        beside = groupby(rivals, lambda one: outcome(one.test))
        told = (f"{word} {' and '.join(one.policy for one in some)}" for word, some in beside)
        return "; ".join((self.verdict.skill(), *told))

    @property
    def untrained(self) -> str:
        """Say that no network was ever trained; empty where one was, or none was to be."""
        records = self.records if self.config.learning.gradient_steps else ()
        if not records or any("critic_loss" in record["learning"] for record in records):
            return ""
        size, starts = (f"{records[-1]['replay'][name]:,}" for name in ("size", "training_starts"))
        return f"never trained (buffer {size} of {starts}): more --generations train them"

    @property
    def earned(self) -> list[str]:
        """Return the policies whose earnings are told first: agents in full, if they are followed in part, and it."""
        return [*({IN_FULL} & {*self.policies} if self.judged == CHAMPION else ()), self.judged]

    @property
    def idle(self) -> list[str]:
        """Return the tuned baselines that follow nothing of their scores, and so are the benchmark."""
        of_benchmark = self.equity[self.played.market]
        names = [name for name in self.played.scores if name in self.equity and name != self.judged]
        return [name for name in names if np.allclose(self.equity[name], of_benchmark, rtol=1e-6, atol=0.0)]

    @property
    def caveats(self) -> list[str]:
        """Return what a reader must know before believing the verdict."""
        text = "Settings that are picked by validation results are fitted to the validation days."
        if self.split != "validation":
            text = (
                f"Looks at the days from {self.dates[0]} to {self.dates[-1]} by all runs in this folder, by the data's "
                f"fingerprint: {len(self.looks)}, of {self.trials:,} champions and policies, for which the verdict "
                "allows. Looks in other folders are not counted."
            )
        is_of_orders = self.played.asked is not None and self.played.asked.refused is not None
        unaudited = UNAUDITED.format(*(_OF_ORDERS if is_of_orders else _OF_WEIGHTS))
        checked = [self.check.sentence] if self.check else [] if self.has_code else [unaudited]
        remarks = [] if self.never_traded else self.verdict.remarks
        return [*remarks, *self.overfitting.lines, self.overfitting.note, text, *checked]

    @property
    def biases(self) -> dict[str, str]:
        """Return the known biases of the data and of the days that were used, by name."""
        return known_biases(self.market, self.config)
