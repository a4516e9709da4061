"""The verdict on a champion: skill in selection or timing, against the benchmark, and against the best baseline."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from training.evaluation.permutation_nulls import Timing
from utils.arrays import Float64Array
from utils.metrics import TRADING_DAYS_PER_YEAR, YEAR_ROOT
from utils.statistics import (
    LEVEL,
    MeanTest,
    expected_maximum,
    mean_test,
    minimum_track_record_length,
    probabilistic_sharpe_ratio,
    rank_p_value,
)
from utils.tables import many

TAIL = (1 - LEVEL) / 2
"""Claims are one-sided: a p-value is significant up to this, the upper tail of a 95% interval."""


class BestBaseline(NamedTuple):
    """The champion against the baseline that earned most."""

    name: str
    test: MeanTest
    """The champion's daily returns less the baseline's; the interval holds for all baselines together."""
    among: int
    """Baselines among which it is the best."""


class Skill(NamedTuple):
    """A part of the champion's returns, claimed as skill, or as its opposite, only where two tests agree."""

    test: MeanTest
    """The part, percent a year."""
    in_time: MeanTest
    """First test, of its days: for timing, by the exposure that was known beforehand alone."""
    rank: float
    """Second test, p-value: the rank among random pickers, or among the same exposure shifted in time."""
    rank_below: float
    """The same from below, that it is worse."""

    @property
    def p_value(self) -> float:
        """The larger of both p-values."""
        return max(self.in_time.p_value, self.rank)

    @property
    def sign(self) -> int:
        """1 or -1 where it is significantly better or worse than random, else 0."""
        return int(self.p_value <= TAIL) - int(self.in_time.interval[1] < 0 and self.rank_below <= TAIL)


class Part(NamedTuple):
    """A part of the champion's returns or a difference from another, percent a year."""

    key: str
    """Name in files."""
    label: str
    test: MeanTest
    p_value: float = 1.0
    """The largest of its tests; 1 where nothing is claimed, and as a bound for all trials together."""


def outcome(difference: MeanTest) -> str:
    """Return "better than", "worse than" or "not significantly different from", as the interval says."""
    return {1: "better than", 0: "not significantly different from", -1: "worse than"}[difference.sign]


_LEADS = {1: "clearly better", 0: "no difference", -1: "clearly worse"}


class Lead(NamedTuple):
    """The lead of a champion over a policy."""

    policy: str
    test: MeanTest
    """The champion's lead, percent a year."""
    sign: int
    """1 or -1 where the champion is significantly better or worse, as the verdict says; 0: nothing is told apart."""

    @property
    def word(self) -> str:
        return _LEADS[self.sign]


@dataclass(frozen=True)
class Verdict:
    """Tests of a champion's daily returns. Differences are in percent a year."""

    selection: Skill
    """The champion's daily returns less the mean of its weights in other stocks."""
    share_of_random_beaten: float
    timing: Skill
    """The benchmark's daily returns times the exposure less its mean."""
    exposure: MeanTest
    """What is left: what the market paid for being invested that much."""
    over_benchmark: MeanTest
    scaled: Mapping[str, MeanTest]
    """The same with the champion's returns scaled to the benchmark's "exposure" and "volatility", by these names."""
    best_baseline: BestBaseline | None
    trials: int
    benchmark: str

    @property
    def has_selection(self) -> bool:
        return self.selection.sign > 0

    @property
    def has_timing(self) -> bool:
        return self.timing.sign > 0

    @property
    def has_skill(self) -> bool:
        """Tell whether skill in selection or in timing is significant; the tests allow for looking at both."""
        return self.has_selection or self.has_timing

    @property
    def is_better_than_benchmark(self) -> bool:
        return self.over_benchmark.p_value <= TAIL

    def skill(self, form: str = "{}") -> str:
        """Return in words which parts of the profit are significant, and which way.

        Args:
            form: of these parts, by their names and means.
        """
        named: dict[int, list[str]] = {1: [], -1: [], 0: []}
        for name, part in (("selection", self.selection), ("timing", self.timing)):
            named[part.sign].append(form.format(name, part.test.mean) if part.sign else name)
        neither = "not in" if named[1] and not named[-1] else "no significant skill in"
        claims = ((1, "skill in", " and "), (-1, "worse than random in", " and "), (0, neither, " or "))
        return ", ".join(
            f"{claim} {word.join(named[sign])}" for sign, claim, word in claims if named[sign]
        ).capitalize()

    @property
    def sentence(self) -> str:
        """Return the verdict in words that follow the intervals, whichever way they point."""
        over = self.over_benchmark
        said = [self.skill("{} ({:+.1f})"), f"{outcome(over)} {self.benchmark} ({over.mean:+.1f})"]
        if self.best_baseline is not None:
            name, test, among = self.best_baseline
            low, high = test.interval
            interval = f"{test.mean:+.1f}, interval {low:+.1f} to {high:+.1f}"
            said.append(f"{outcome(test)} {name} ({interval}), best of {many(among, 'baseline')}")
        allowed = f"; of {self.trials:,} trials" if self.trials > 1 else ""
        return f"{'; '.join(said)} (% a year{allowed})."

    @property
    def remarks(self) -> list[str]:
        """Say where returns at the benchmark's exposure or volatility are told apart otherwise than as earned."""
        return [
            f"Scaled to its {name} it is {outcome(test)} {self.benchmark}; the verdict goes by what was earned."
            for name, test in self.scaled.items()
            if test.sign != self.over_benchmark.sign
        ]

    @property
    def parts(self) -> list[Part]:
        """Return the parts of the champion's returns, which sum to them, and its differences from others."""
        over, picked, timed = self.over_benchmark, self.selection, self.timing
        parts = [
            Part("over_random_picker", "selection: over its weights in other stocks", picked.test, picked.p_value),
            Part("timing", "timing: exposure over its mean", timed.test, timed.p_value),
            Part("exposure", "exposure: the rest, less costs", self.exposure),
            Part("over_benchmark", f"over {self.benchmark}", over, over.p_value),
        ]
        for name, test in self.scaled.items():
            key, label = f"over_benchmark_at_its_{name}", f"over {self.benchmark}, at its {name}"
            parts.append(Part(key, label, test, test.p_value))
        if (best := self.best_baseline) is not None:
            parts.append(Part("over_best_rival", f"over {best.name}", best.test, best.test.p_value))
        return parts


def verdict(
    daily: Float64Array,
    random: Float64Array,
    selection: Float64Array,
    exposure: Float64Array,
    benchmark: Float64Array,
    *,
    trials: int = 1,
    exposure_ratio: float = math.inf,
    baselines: Mapping[str, Float64Array] | None = None,
    name: str = "equal weight",
) -> Verdict:
    """Judge a champion by daily returns on the same days.

    Its returns are the sum of three parts: selection, its returns less the mean of its weights, beside the benchmark's,
    in other stocks; timing, the benchmark's returns times the exposure less its mean; and exposure, the rest, less
    costs. Skill in one of the first two is significant at half of 2.5%, the upper tail of a 95% interval (Bonferroni),
    where two tests agree, so that false alarms are at most those of the rarer one.

    Selection, in time: without skill the daily differences are martingale differences, whatever exposure and volatility
    are; this fails where days are few. By rank: without skill the champion is one more permutation of similar stocks,
    and its rank is uniform; this fails where its stocks vary more than others. Timing: who buys after falls has more
    exposure in the mean where the market fell, which looks like timing (the bias of Stambaugh 1999). In time, so, the
    exposure is held against the mean of the days before; alone that would mistake a rising market's premium for timing
    where a champion invests late. By rank: among the same exposure shifted on a circle, its rank is uniform.

    A champion chosen on the same days is the best of `trials`, each fixed without them: `trials` times each
    p-value bounds it under any dependence among them (Bonferroni). The interval against the best baseline allows for
    the number of baselines in the same way.

    Args:
        daily, benchmark: (D,) returns, percent.
        random: (draws, D) returns of the random pickers.
        selection: (D,), see `nulls`.
        exposure: (D,) share of the equity that is invested.
        trials: policies evaluated on the same days before this one was chosen; 1 if nothing was chosen on them.
        exposure_ratio: the benchmark's exposure over the champion's; infinite where it has none.
        baselines: (D,) returns by name; the one that earned most is named.
        name: of the benchmark.
    """
    totals, earned, looks, timing = random.sum(axis=1), float(daily.sum()), 2 * trials, Timing.of(exposure, benchmark)
    volatility, best = float(daily.std()), None
    ratios = {"exposure": exposure_ratio, "volatility": benchmark.std() / volatility if volatility else math.inf}

    def tested(values: Float64Array, count: int = trials) -> MeanTest:
        return yearly(mean_test(values, count))

    def skill(part: Float64Array, in_time: Float64Array, value: float, others: Float64Array) -> Skill:
        ranks = rank_p_value(value, others, looks), rank_p_value(-value, -others, looks)
        return Skill(tested(part, looks), tested(in_time, looks), *ranks)

    if baselines:
        first = max(baselines, key=lambda name: float(baselines[name].sum()))
        best = BestBaseline(first, tested(daily - baselines[first], trials * len(baselines)), len(baselines))
    return Verdict(
        selection=skill(selection, selection, earned, totals),
        share_of_random_beaten=float((totals < earned).mean()),
        timing=skill(timing.daily, timing.known, float(timing.daily.sum()), timing.shifted),
        exposure=tested(daily - selection - timing.daily, looks),
        over_benchmark=tested(daily - benchmark),
        scaled={part: tested(ratio * daily - benchmark) for part, ratio in ratios.items() if 0 < ratio < math.inf},
        best_baseline=best,
        trials=trials,
        benchmark=name,
    )


def yearly(test: MeanTest) -> MeanTest:
    """Return the test of a daily mean as one of its sum over a year."""
    year = TRADING_DAYS_PER_YEAR
    return replace(test, mean=test.mean * year, standard_error=test.standard_error * year)


@dataclass(frozen=True)
class FoldResult:
    """A fold of a walk-forward test and the return of its champion on its test days.

    `dates` are the first and the last of its training, validation and test days.
    """

    name: str
    dates: dict[str, list[str]]
    champion_generation: int
    return_percent: float


@dataclass(frozen=True)
class Overfitting:
    """How much of a result may come from choosing the best of many."""

    deflated_information_ratio: float | None
    """Probability that the true information ratio over the benchmark is above that of the best of `trials` without
    skill, from 0 to 1; None where the champion earns what the benchmark does."""
    trials: int
    expected_best_ratio: float
    """Annualised information ratio that the best of `trials` without skill is expected to show."""
    days: int
    minimum_track_record_days: int | None
    note: str

    @classmethod
    def of(cls, daily: Float64Array, benchmark: Float64Array, trials: int, note: str) -> Self:
        """Estimate it from (D,) daily returns, as fractions.

        Without skill the ratio of T independent days has mean 0 and deviation 1 / sqrt(T - 1) (Bailey & Lopez de Prado
        2012, at a ratio of 0), which stands for the deviation over trials.
        """
        best = expected_maximum(1 / math.sqrt(max(1, len(daily) - 1)), trials)
        deflated, needed = probabilistic_sharpe_ratio(daily - benchmark, best), minimum_track_record_length(daily)
        return cls(deflated, trials, YEAR_ROOT * best, len(daily), needed, note)

    @property
    def lines(self) -> list[str]:
        """Return the estimates as sentences."""
        chance = "none, the returns are those of the benchmark."
        if self.deflated_information_ratio is not None:
            best = f"{self.expected_best_ratio:.2f} a year, which the best of {self.trials:,} without skill would show"
            above = best if self.trials > 1 else "zero"
            chance = f"{self.deflated_information_ratio:.3f}, the probability that the true ratio is above {above}."
        record = "none, the Sharpe ratio is not above zero."
        if needed := self.minimum_track_record_days:
            like = f"{many(needed, 'day')} like the {self.days:,} judged"
            record = f"{like} make the Sharpe ratio significantly above zero (95%)."
        return [f"Deflated information ratio: {chance}", f"Minimum track record: {record}"]
