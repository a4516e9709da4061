"""The verdict on a champion: skill in selection or timing, against equal weight, and against the best baseline."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from utils.arrays import Float64Array
from utils.metrics import TRADING_DAYS_PER_YEAR
from utils.statistics import LEVEL, MeanTest, mean_test, rank_p_value

TAIL = (1 - LEVEL) / 2
"""Claims are one-sided: a p-value is significant up to this, the upper tail of a 95% interval."""


class Shifted(NamedTuple):
    """Random pickers with orders shifted in time, and the share of their exposure that was known beforehand."""

    profits: Float64Array
    """(count, days) in percent of the initial capital; each is the mean over the draws of one shift."""
    known_share: Float64Array
    """(days,) mean size of the plan's earlier orders over that of all its orders."""
    held: Float64Array | float = 0.0
    """(days,) what a basket earned of these profits, whatever the orders."""


class BestBaseline(NamedTuple):
    """The champion against the baseline that earned most."""

    name: str
    test: MeanTest
    """The champion's daily profits less the baseline's; the interval holds for all baselines together."""
    among: int
    """Baselines among which it is the best."""


class Part(NamedTuple):
    """A part of the champion's profit or a difference from another, in percent of the initial capital a year."""

    key: str
    """Name in files."""
    label: str
    test: MeanTest
    p_value: float | None
    """The largest of its tests; None where nothing is claimed."""


def outcome(difference: MeanTest) -> str:
    """Return "better than", "worse than" or "not significantly different from", as the interval says."""
    return {1: "better than", 0: "not significantly different from", -1: "worse than"}[difference.sign]


@dataclass(frozen=True)
class Verdict:
    """Tests of a champion's daily profits. Differences are in percent of the initial capital per year."""

    selection: MeanTest
    """The champion's daily profits less the mean of the random pickers with orders on the same days."""
    rank_p_value: float
    """Second test of selection: the champion's rank among the random pickers."""
    rank_p_value_below: float
    """The same from below, that it is worse than they are."""
    share_of_random_beaten: float
    timing: MeanTest
    """Mean of the same-day random pickers less that of the shifted ones."""
    timing_known: MeanTest
    """Second test of timing, which uses only the exposure that was known beforehand."""
    exposure: MeanTest
    """The shifted random pickers' mean profits: what the market paid for being invested that much."""
    over_equal_weight: MeanTest
    scaled: Mapping[str, MeanTest]
    """The same with the champion's profit scaled to equal weight's "exposure" and "volatility", by these names."""
    best_baseline: BestBaseline | None
    trials: int

    @property
    def selection_p_value(self) -> float:
        """The larger of the p-values of two tests: selection is claimed only where both agree."""
        return max(self.selection.p_value, self.rank_p_value)

    @property
    def timing_p_value(self) -> float:
        """The same of timing."""
        return max(self.timing.p_value, self.timing_known.p_value)

    @property
    def has_selection(self) -> bool:
        return self.selection_p_value <= TAIL

    @property
    def has_timing(self) -> bool:
        return self.timing_p_value <= TAIL

    @property
    def has_skill(self) -> bool:
        """Tell whether skill in selection or in timing is significant; the tests allow for looking at both."""
        return self.has_selection or self.has_timing

    @property
    def is_better_than_equal_weight(self) -> bool:
        return self.over_equal_weight.p_value <= TAIL

    @property
    def skills(self) -> dict[str, int]:
        """Return 1 or -1 for "selection" and "timing" if significantly better or worse than random, else 0."""
        lost_selection = self.selection.interval[1] < 0 and self.rank_p_value_below <= TAIL
        lost_timing = max(self.timing.interval[1], self.timing_known.interval[1]) < 0
        return {"selection": self.has_selection - lost_selection, "timing": self.has_timing - lost_timing}

    @property
    def _skill(self) -> str:
        """Return in words which parts of the profit are significant, and which way."""
        shown = {"selection": f"selection ({self.selection.mean:+.1f})", "timing": f"timing ({self.timing.mean:+.1f})"}
        gains = [shown[name] for name, sign in self.skills.items() if sign > 0]
        losses = [shown[name] for name, sign in self.skills.items() if sign < 0]
        missing = [name for name, sign in self.skills.items() if sign == 0]
        said = list[str]()
        if gains:
            said.append(f"skill in {' and '.join(gains)}")
        if losses:
            said.append(f"worse than random in {' and '.join(losses)}")
        if missing:
            claim = "not in" if gains and not losses else "no significant skill in"
            said.append(f"{claim} {' or '.join(missing)}")
        return ", ".join(said).capitalize()

    @property
    def sentence(self) -> str:
        """Return the verdict in words that follow the intervals, whichever way they point."""
        said = [self._skill, f"{outcome(self.over_equal_weight)} equal weight ({self.over_equal_weight.mean:+.1f})"]
        if self.best_baseline is not None:
            name, test, among = self.best_baseline
            low, high = test.interval
            interval = f"{test.mean:+.1f}, interval {low:+.1f} to {high:+.1f}"
            said.append(f"{outcome(test)} {name} ({interval}), best of {among} baselines")
        allowed = f"; of {self.trials:,} trials" if self.trials > 1 else ""
        return f"{'; '.join(said)} (% a year{allowed})."

    @property
    def parts(self) -> list[Part]:
        """Return the parts of the champion's profit, which sum to it, and its differences from others."""
        over_equal = self.over_equal_weight
        parts = [
            Part("over_random_picker", "selection: over same-day random", self.selection, self.selection_p_value),
            Part("timing", "timing: same-day over shifted random", self.timing, self.timing_p_value),
            Part("exposure", "exposure: shifted random", self.exposure, None),
            Part("over_equal_weight", "over equal weight", over_equal, over_equal.p_value),
        ]
        for name, test in self.scaled.items():
            key, label = f"over_equal_weight_at_its_{name}", f"over equal weight, at its {name}"
            parts.append(Part(key, label, test, test.p_value))
        if (best := self.best_baseline) is not None:
            parts.append(Part("over_best_rival", f"over {best.name}", best.test, best.test.p_value))
        return parts


def verdict(
    champion: Float64Array,
    random: Float64Array,
    shifted: Shifted,
    equal_weight: Float64Array,
    *,
    trials: int = 1,
    exposure_ratio: float = math.inf,
    baselines: Mapping[str, Float64Array] | None = None,
) -> Verdict:
    """Judge a champion by daily profits on the same days.

    The champion's profit is the sum of three parts. Selection: the champion less the same-day random pickers, which
    give its orders on its days and in its sizes for stocks drawn at random. Timing: the same-day random pickers less
    the shifted ones, whose orders are moved in time. Exposure: the shifted random pickers. Skill is claimed if
    selection or timing is significant at 2.5% (the upper tail of a 95% interval), each at half of it (Bonferroni).

    Selection needs two tests that agree. In time: without skill the daily differences from the random mean are
    martingale differences, whatever the champion's exposure and its stocks' volatility; their mean is tested against
    its own standard error (`mean_test`). Among random pickers: without skill the champion is one more draw among
    similar stocks, and its rank is uniform (`rank_p_value`). The first fails where days are few, the second where the
    champion's stocks vary more than others; the claim needs both, so its false alarms are at most the rarer of the two.

    Timing needs two tests in time. The mean of the shifted random pickers is the plan's mean exposure times the
    market's path, so a plan without skill differs from it only by what it could not foresee, with one exception: the
    plan's mean size is known only at the end, and a plan that buys after falls has a larger one where the market fell,
    which looks like timing (the bias of Stambaugh 1999). The second test therefore takes only the share of the exposure
    that was known beforehand; alone it would mistake a rising market's premium for timing where a plan invests late.

    A champion chosen on the same days is the best of `trials`, each fixed without these days: `trials` times each
    p-value bounds it under any dependence among them (Bonferroni). The interval against the best baseline allows for
    the number of baselines in the same way.

    Args:
        champion, equal_weight: (days,) profits in percent of the initial capital, in order of time, no day twice.
        random: (count, days) profits of the same-day random pickers.
        trials: policies evaluated on these days before this one was chosen; 1 if nothing was chosen on them.
        exposure_ratio: equal weight's exposure over the champion's; infinite where it has none.
        baselines: (days,) profits by name; the one that earned most is named.
    """
    totals, earned, looks = random.sum(axis=1), float(champion.sum()), 2 * trials
    same_day, moved = random.mean(axis=0), shifted.profits.mean(axis=0)
    volatility = float(champion.std())
    ratios = {"exposure": exposure_ratio, "volatility": equal_weight.std() / volatility if volatility else math.inf}
    best = None
    if baselines:
        name = max(baselines, key=lambda name: float(baselines[name].sum()))
        test = yearly(mean_test(champion - baselines[name], trials * len(baselines)))
        best = BestBaseline(name, test, len(baselines))
    return Verdict(
        selection=yearly(mean_test(champion - same_day, looks)),
        rank_p_value=rank_p_value(earned, totals, looks),
        rank_p_value_below=rank_p_value(-earned, -totals, looks),
        share_of_random_beaten=float((totals < earned).mean()),
        timing=yearly(mean_test(same_day - moved, looks)),
        timing_known=mean_test(same_day - shifted.held - shifted.known_share * (moved - shifted.held), looks),
        exposure=yearly(mean_test(moved, looks)),
        over_equal_weight=yearly(mean_test(champion - equal_weight, trials)),
        scaled={
            name: yearly(mean_test(ratio * champion - equal_weight, trials))
            for name, ratio in ratios.items()
            if math.isfinite(ratio)
        },
        best_baseline=best,
        trials=trials,
    )


def yearly(test: MeanTest) -> MeanTest:
    """Return the test of a daily mean as one of its sum over a year."""
    year = TRADING_DAYS_PER_YEAR
    return replace(test, mean=test.mean * year, standard_error=test.standard_error * year)
