"""The verdict on a champion: skill in choice or timing, against equal weight, and against the best rival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from utils.metrics import TRADING_DAYS_PER_YEAR
from utils.statistics import LEVEL, MeanTest, chance_of_rank, mean_test

Array = npt.NDArray[np.float64]
_TAIL = (1 - LEVEL) / 2
"""A claim is one-sided: its chance under luck alone is at most that of the upper tail of a 95% interval."""


class Shifted(NamedTuple):
    """Random pickers whose orders were shifted in time, and what of their share was known beforehand."""

    profits: Array
    """(count, days) in percent of the initial capital; each is the mean over the lots of one shift."""
    known_share: Array
    """(days,) mean size of the plan's earlier orders over that of all its orders."""


class Contest(NamedTuple):
    """The champion against the best of some rivals."""

    rival: str
    test: MeanTest
    """The champion's daily profits less the rival's; the interval holds for all rivals together."""
    rivals: int

    @property
    def outcome(self) -> str:
        """Return "better than", "level with" or "worse than": the champion beside the rival."""
        low, high = self.test.interval
        return "better than" if low > 0 else "worse than" if high < 0 else "level with"


@dataclass(frozen=True)
class Judgement:
    """The verdict of daily profits. Differences are in percent of the initial capital a year."""

    against_pickers: MeanTest
    """The champion's daily profits less the mean of the random pickers' with orders on the same days: its choice."""
    picker_chance: float
    """Chance that the best of all that was looked at, a random picker each, earns as much as the champion."""
    share_of_pickers_beaten: float
    timing: MeanTest | None
    """Mean of the same-day pickers less that of the shifted pickers; None where timing is not judged."""
    timing_chance: float
    """Chance of the second test of timing, which uses only the exposure that was known beforehand."""
    exposure: MeanTest | None
    """The shifted pickers' mean profits: what the market paid for being invested that much."""
    against_equal_weight: MeanTest
    contest: Contest | None
    trials: int

    @property
    def is_better_than_pickers(self) -> bool:
        """Tell whether both tests against the same-day pickers agree that the champion chooses better."""
        return self.against_pickers.p_value <= _TAIL and self.picker_chance <= _TAIL

    @property
    def has_timing(self) -> bool:
        """Tell whether all tests agree that the champion's days are better than others."""
        return self.timing is not None and self.timing.p_value <= _TAIL and self.timing_chance <= _TAIL

    @property
    def has_skill(self) -> bool:
        """Tell whether skill in choice or in timing is established; the tests allow for looking at both."""
        return self.is_better_than_pickers or self.has_timing

    @property
    def is_better_than_equal_weight(self) -> bool:
        """Tell whether the champion is better than equal weight."""
        return self.against_equal_weight.p_value <= _TAIL

    @property
    def is_better(self) -> bool:
        """Tell whether the champion has skill and is better than equal weight."""
        return self.has_skill and self.is_better_than_equal_weight

    @property
    def sentence(self) -> str:
        """Return the verdict in words."""
        found = [("choice", self.against_pickers, self.is_better_than_pickers)]
        found += [("timing", self.timing, self.has_timing)] if self.timing is not None else []
        shown = [f"{name} ({test.mean:+.1f})" for name, test, is_shown in found if is_shown]
        missing = " or ".join(name for name, _, is_shown in found if not is_shown)
        skill = f"Skill in {' and '.join(shown)}" if shown else f"No skill shown in {missing}"
        skill += f", not in {missing}" if shown and missing else ""
        equal = "better" if self.is_better_than_equal_weight else "not better"
        said = [skill, f"{equal} than equal weight ({self.against_equal_weight.mean:+.1f})"]
        if self.contest is not None:
            rival, test, rivals = self.contest
            which = f"best of {rivals} rivals" if rivals > 1 else "its rival"
            said.append(f"{self.contest.outcome} {rival} ({test.mean:+.1f}), {which}")
        allowed = f"; of {self.trials:,} trials" if self.trials > 1 else ""
        return f"{'; '.join(said)} (% a year{allowed})."


def verdict(
    champion: Array,
    pickers: Array,
    equal_weight: Array,
    *,
    trials: int = 1,
    shifted: Shifted | None = None,
    rivals: Mapping[str, Array] | None = None,
) -> Judgement:
    """Judge a champion by daily profits on the same days.

    The champion's profit is the sum of three parts. Choice: the champion less same-day pickers, which give its orders,
    on its days and in its sizes, for stocks drawn by lot. Timing: the same-day pickers less the shifted ones, whose
    orders are moved in time. Exposure: the shifted pickers. Skill is claimed if choice or timing is established at 2.5%
    (the upper tail of a 95% interval), each at half of it where both are looked at (Bonferroni).

    Choice needs two tests that agree:

    1. In time. If it has no skill in choosing, no day's difference between its profit and the pickers' mean can be
       foreseen: the differences are martingale differences, whatever its stocks' volatility, its exposure or the way of
       the market. Their mean is compared with its own standard error (`mean_test`), which also allows for dependence
       over days.
    2. Among pickers. Given the market's path, a champion that chooses without skill among like stocks is one more
       draw: its rank among them is uniform (`chance_of_rank`).

    The first fails where days are few, the second where the champion's stocks vary more than others; the claim needs
    both, so its false alarms are at most the rarer of the two.

    Timing needs two tests in time. The mean of the shifted pickers is the whole plan's mean exposure times the market's
    path, so that a plan without skill differs from it by what it could not foresee, but for one thing: the plan's mean
    size is known only at the end, and one that buys after falls has a larger one where the market fell, which looks
    like timing (the bias of Stambaugh 1999). The second test therefore takes only the share of the exposure that was
    known beforehand. It alone would take a rising market's premium for timing where a plan invests late.

    A champion that was chosen on the same days is the best of `trials`: each policy tried was fixed without these days,
    and the chosen one's statistic is at most the largest, so that `trials` times the chance of each bounds it under any
    dependence among the trials (Bonferroni). The interval against the best rival holds for all rivals likewise.

    Args:
        champion, equal_weight: (days,) profits in percent of the initial capital, in order of time, no day twice.
        pickers: (count, days) likewise.
        trials: policies looked at on these days before this one was chosen; 1 on days that chose nothing.
        rivals: (days,) likewise by name; the one that earned most is named.
    """
    totals, earned, same_day = pickers.sum(axis=1), float(champion.sum()), pickers.mean(axis=0)
    looks = trials if shifted is None else 2 * trials
    timing, timing_chance, exposure = (None, 1.0, None) if shifted is None else _timing(same_day, shifted, looks)
    return Judgement(
        against_pickers=yearly(mean_test(champion - same_day, looks)),
        picker_chance=chance_of_rank(earned, totals, looks),
        share_of_pickers_beaten=float((totals < earned).mean()),
        timing=timing,
        timing_chance=timing_chance,
        exposure=exposure,
        against_equal_weight=yearly(mean_test(champion - equal_weight, trials)),
        contest=_contest(champion, rivals, trials) if rivals else None,
        trials=trials,
    )


def _timing(same_day: Array, shifted: Shifted, looks: int) -> tuple[MeanTest, float, MeanTest]:
    """Return the test of timing, the chance of its second test, and the exposure."""
    mean = shifted.profits.mean(axis=0)
    chance = mean_test(same_day - shifted.known_share * mean, looks).p_value
    return yearly(mean_test(same_day - mean, looks)), chance, yearly(mean_test(mean, looks))


def differences(found: Judgement) -> list[tuple[str, MeanTest, float | None]]:
    """Return the parts of a champion's profit and its differences from others, with the chance of each under luck."""
    chance = max(found.against_pickers.p_value, found.picker_chance)
    rows: list[tuple[str, MeanTest, float | None]] = [("choice: over same-day pickers", found.against_pickers, chance)]
    if found.timing is not None and found.exposure is not None:
        chance = max(found.timing.p_value, found.timing_chance)
        rows.append(("timing: same-day over shifted pickers", found.timing, chance))
        rows.append(("exposure: shifted pickers", found.exposure, None))
    rows.append(("over equal weight", found.against_equal_weight, found.against_equal_weight.p_value))
    if found.contest is not None:
        rows.append((f"over {found.contest.rival}", found.contest.test, found.contest.test.p_value))
    return rows


def _contest(champion: Array, rivals: Mapping[str, Array], trials: int) -> Contest:
    best = max(rivals, key=lambda name: float(rivals[name].sum()))
    return Contest(best, yearly(mean_test(champion - rivals[best], trials * len(rivals))), len(rivals))


def yearly(test: MeanTest) -> MeanTest:
    """Return the test of a daily mean as one of its sum over a year."""
    year = TRADING_DAYS_PER_YEAR
    return replace(test, mean=test.mean * year, standard_error=test.standard_error * year)
