"""Measures of accounts: means over seeds with their spread, tests of daily differences, what could have been seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from benchmarks.learning.study import holm
from benchmarks.real_prices.accounts import Account
from benchmarks.real_prices.plan import AT_EXPOSURE, BEST_RIVAL, PICKERS, Comparison
from training.evaluation.baselines import BASKET, EQUAL, HOLD
from training.evaluation.measures import measures_of
from training.evaluation.verdict import Shifted, Verdict, verdict, yearly
from training.forecasts.skill import summed_up
from utils import metrics
from utils.arrays import Float64Array
from utils.statistics import MeanTest, mean_test

YEAR = metrics.TRADING_DAYS_PER_YEAR
POWER, CONFIDENCE = 0.8, 0.975
_SIGNIFICANCE = 0.05


class Figure(NamedTuple):
    """A mean over seeds, its 95% interval over days, and the smallest and largest of the seeds; None: not known."""

    value: float | None
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True)
class Field:
    """All that was played in one universe."""

    accounts: Mapping[str, Account]
    """Trained policies first, then baselines."""
    trained: Sequence[str]
    windows_of_fold: int
    holding_days: int

    @property
    def equal(self) -> Account:
        """Return the account of equal weight."""
        return self.accounts[EQUAL]

    @property
    def rivals(self) -> list[str]:
        """Return the policies among which the best baseline is sought: what is held at equal weight is not one."""
        return [name for name in self.accounts if name not in (*self.trained, BASKET, EQUAL, HOLD)]

    def at_exposure(self, account: Account) -> Float64Array:
        """Return (S, days) profits of equal weight times the account's mean exposure of each fold."""
        windows = self.windows_of_fold
        exposure = account.track.exposure.reshape(len(account.track.exposure), -1, windows).mean(axis=2)
        days = windows * account.steps
        return np.asarray(np.repeat(exposure, days, axis=1) * self.equal.track.daily_profit[0])

    def judge(self, account: Account) -> Verdict:
        """Return the verdict that a report of the product would give on the means over seeds."""
        known = account.pickers
        assert known is not None
        shifted = Shifted(known.shifted.mean(axis=0)[None], known.known_share.mean(axis=0), known.held.mean(axis=0))
        return verdict(
            account.profit,
            known.each(account.steps),
            shifted,
            self.equal.profit,
            baselines={name: self.accounts[name].profit for name in self.rivals},
        )

    def difference(self, policy: str, against: str) -> MeanTest:
        """Test the yearly difference of a policy from another, percent of the capital, paired by day."""
        account = self.accounts[policy]
        if against == BEST_RIVAL:
            best = self.judge(account).best_baseline
            assert best is not None
            return best.test
        if against == PICKERS:
            assert account.pickers is not None
            other = account.pickers.daily.mean(axis=0)
        elif against == AT_EXPOSURE:
            other = self.at_exposure(account).mean(axis=0)
        else:
            other = self.accounts[against].profit
        return yearly(mean_test(account.profit - other))


@dataclass(frozen=True)
class Finding:
    """A confirmatory comparison and what it found."""

    comparison: Comparison
    against: str
    """Whom it was compared with; of the best baseline the name."""
    test: MeanTest
    """Percent of the capital a year."""
    p_value: float
    """Two-sided; where the best baseline was sought it allows for that choice."""
    p_holm: float
    """Allows for all comparisons of the plan."""

    @property
    def outcome(self) -> str:
        """Return "better", "worse" or "open"."""
        if self.p_holm > _SIGNIFICANCE:
            return "open"
        return "better" if self.test.mean > 0 else "worse"


def confirm(fields: Mapping[str, Field], comparisons: Sequence[Comparison]) -> list[Finding]:
    """Make the confirmatory comparisons; their p-values are corrected for their number (Holm 1979)."""
    rows = []
    for pair in comparisons:
        field = fields[pair.universe]
        test = field.difference(pair.policy, pair.against)
        p_value, against = min(1.0, 2 * min(test.p_value, replace(test, mean=-test.mean).p_value)), pair.against
        if pair.against in (PICKERS, BEST_RIVAL):
            judgement = field.judge(field.accounts[pair.policy])
            if pair.against == BEST_RIVAL and judgement.best_baseline is not None:
                against = judgement.best_baseline.name
            # As in the verdict, selection has to be significant among random pickers as well as in time.
            if pair.against == PICKERS and test.mean > 0:
                p_value = max(p_value, min(1.0, judgement.rank_p_value))
        rows.append((pair, against, test, p_value))
    corrected = holm([p_value for *_, p_value in rows])
    return [Finding(*row, p_holm) for row, p_holm in zip(rows, corrected, strict=True)]


def detectable(standard_error: float) -> float:
    """Return the mean that a two-sided test at 5% would see with a chance of 80%: (z.975 + z.8) standard errors."""
    return float((ndtri(CONFIDENCE) + ndtri(POWER)) * standard_error)


def figures(field: Field, policy: str) -> dict[str, Figure]:
    """Measure a policy over the days of a field."""
    account, by_name = field.accounts[policy], dict[str, Figure]()
    track = account.track
    by_name["profit"] = _tested(track.daily_profit)
    if account.pickers is not None:
        by_name["over_pickers"] = _tested(track.daily_profit - account.pickers.daily)
    by_name["over_equal_at_exposure"] = _tested(track.daily_profit - field.at_exposure(account))
    known = np.ma.masked_invalid(account.rank_ic).mean(axis=0).filled(np.nan)
    ranked = summed_up(known, field.holding_days)
    if ranked is not None:
        seeds = [summed_up(each, field.holding_days) for each in account.rank_ic]
        by_name["rank_ic"] = _spread(ranked.mean, [each.mean for each in seeds if each is not None])
    measured = measures_of(track)
    return by_name | {name: _mean(measured[name]) for name in ("sharpe", "max_drawdown", "exposure", "turnover")}


def _tested(daily: Float64Array) -> Figure:
    """(S, days) percent a day, as percent a year."""
    test = yearly(mean_test(daily.mean(axis=0)))
    return _spread(test.mean, YEAR * daily.mean(axis=1), *test.interval)


def _mean(values: Float64Array) -> Figure:
    known = values[np.isfinite(values)]
    return _spread(float(known.mean()), known) if len(known) else Figure(None)


def _spread(
    value: float, of_seeds: Float64Array | Sequence[float], low: float | None = None, high: float | None = None
) -> Figure:
    if len(of_seeds) < 2:
        return Figure(value, low, high)
    return Figure(value, low, high, float(min(of_seeds)), float(max(of_seeds)))
