"""The verdict on a champion: is it better than picking at random, and than holding everything equally?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from training.evaluation.statistics import LEVEL, MeanTest, chance_of_rank, mean_test
from utils.metrics import TRADING_DAYS_PER_YEAR

Array = npt.NDArray[np.float64]
_TAIL = (1 - LEVEL) / 2
"""A claim is one-sided: its chance under luck alone is at most that of the upper tail of a 95% interval."""


@dataclass(frozen=True)
class Judgement:
    """The verdict of daily profits. Differences are in percent of the initial capital a year."""

    against_pickers: MeanTest
    """The champion's daily profits less the mean of the random pickers'."""
    against_equal_weight: MeanTest
    picker_chance: float
    """Chance that the best of `trials` random pickers earns as much as the champion."""
    share_of_pickers_beaten: float
    trials: int

    @property
    def is_better_than_pickers(self) -> bool:
        """Tell whether both tests against the random pickers agree that the champion is better."""
        return self.against_pickers.p_value <= _TAIL and self.picker_chance <= _TAIL

    @property
    def is_better_than_equal_weight(self) -> bool:
        """Tell whether the champion is better than equal weight."""
        return self.against_equal_weight.p_value <= _TAIL

    @property
    def is_better(self) -> bool:
        """Tell whether the champion is better than the random picker and than equal weight."""
        return self.is_better_than_pickers and self.is_better_than_equal_weight

    @property
    def sentence(self) -> str:
        """Return the verdict in words."""
        pickers = f"random pickers with the same orders ({_margin(self.against_pickers)})"
        results = {pickers: self.is_better_than_pickers}
        results |= {f"equal weight ({_margin(self.against_equal_weight)})": self.is_better_than_equal_weight}
        better = " and ".join(text for text, beats in results.items() if beats)
        not_better = " nor than ".join(text for text, beats in results.items() if not beats)
        said = [f"better than {better}"] if better else []
        said += [f"not better than {not_better}"] if not_better else []
        sentence = ", but ".join(said)
        choice = f"; intervals allow for the choice among {self.trials:,} trials" if self.trials > 1 else ""
        return f"{sentence[0].upper()}{sentence[1:]}{choice}."


def verdict(champion: Array, pickers: Array, equal_weight: Array, *, trials: int = 1) -> Judgement:
    """Judge a champion by daily profits on the same days.

    Better than the random picker is claimed only if two tests agree, each at 2.5% (the upper tail of a 95% interval):

    1. In time. Random pickers give the champion's orders, on its days and in its sizes, for stocks drawn by lot. If it
       has no skill in choosing, no day's difference between its profit and their mean can be foreseen: the differences
       are martingale differences, whatever its stocks' volatility, its exposure or the way of the market. Their mean is
       compared with its own standard error (`mean_test`), which also allows for dependence over days.
    2. Among pickers. Given the market's path, a champion that chooses without skill among like stocks is one more
       draw: its rank among them is uniform (`chance_of_rank`).

    The first fails where days are few, the second where the champion's stocks vary more than others; the claim needs
    both, so its false alarms are at most the rarer of the two. A champion that was chosen on the same days is the best
    of `trials`: each policy tried was fixed without these days, and the chosen one's statistic is at most the largest,
    so that `trials` times the chance of each bounds it under any dependence among the trials (Bonferroni).

    Args:
        champion, equal_weight: (days,) profits in percent of the initial capital, in order of time, no day twice.
        pickers: (count, days) likewise.
        trials: policies looked at on these days before this one was chosen; 1 on days that chose nothing.
    """
    totals, earned = pickers.sum(axis=1), float(champion.sum())
    return Judgement(
        _yearly(mean_test(champion - pickers.mean(axis=0), trials)),
        _yearly(mean_test(champion - equal_weight, trials)),
        chance_of_rank(earned, totals, trials),
        float((totals < earned).mean()),
        trials,
    )


def _yearly(test: MeanTest) -> MeanTest:
    year = TRADING_DAYS_PER_YEAR
    return replace(test, mean=test.mean * year, standard_error=test.standard_error * year)


def _margin(test: MeanTest) -> str:
    low, high = test.interval
    return f"{test.mean:+.1f}% of capital a year, 95% interval {low:+.1f} to {high:+.1f}"
