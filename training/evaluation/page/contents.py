"""What an evaluation found, as plain values: the input of the page that `write_report` makes.

Numbers that are not known are None or NaN and are shown as a dash. Every part that may be missing has a default; the
page then leaves its section out or says why it is absent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from utils.metrics import daily_returns

FloatArray = npt.NDArray[np.float64]
Dates = npt.NDArray[np.datetime64]
MemoryPoint = tuple[str, float, float, float, float]
"""Label of a phase, seconds since the start, RSS, unique set size and GPU memory, each in MiB."""
ExitReason = Literal["target", "time", "end", "lost"]
"""Why a position was sold: its target was reached, its time was up, the episode ended, the ticker stopped trading."""

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Estimate(NamedTuple):
    """A number with its 95% interval; either may be unknown."""

    value: float | None
    low: float | None = None
    high: float | None = None


class Metric(NamedTuple):
    """How a metric is shown."""

    label: str
    unit: str
    decimals: int
    meaning: str


METRICS: dict[str, Metric] = {
    "return": Metric("Return", "%", 1, "Change of equity over the period, after costs."),
    "volatility": Metric("Volatility", "% a year", 1, "Sample deviation of daily returns times the root of 252."),
    "sharpe": Metric(
        "Sharpe", "a year", 2, "Mean over deviation of daily returns, times the root of 252; no risk-free rate."
    ),
    "sortino": Metric("Sortino", "a year", 2, "As Sharpe, over the root mean square of the losing days."),
    "calmar": Metric("Calmar", "ratio", 2, "Compound yearly return over the maximum drawdown."),
    "max_drawdown": Metric("Max drawdown", "%", 1, "Deepest fall of equity below its earlier peak."),
    "turnover": Metric("Turnover", "times a year", 1, "Value bought and sold in a year, over twice the mean equity."),
    "exposure": Metric("Exposure", "%", 1, "Mean share of equity that is invested."),
    "trades": Metric("Trades", "count", 0, "Positions opened and closed; for random pickers the mean."),
    "win_rate": Metric("Win rate", "%", 1, "Share of trades with a profit after costs."),
    "holding": Metric("Holding", "sessions", 1, "Mean sessions from entry to exit, both counted."),
    "costs": Metric("Costs", "% of capital", 2, "Costs and slippage paid, in percent of the initial capital."),
}
"""The columns of the table of policies, in order, by the key that `PolicyResult.metrics` uses."""


@dataclass(frozen=True)
class RunFacts:
    """Which run, and on what it was evaluated."""

    name: str
    seed: int
    device: str
    split: str
    """"validation", "holdout" or "walk-forward"."""
    first_day: str
    """ISO date of the first day that was traded."""
    last_day: str
    champion_generation: int | None
    data: str
    """The data file, or the built-in market's name."""
    others: Mapping[str, str] = field(default_factory=dict)
    """More facts by label, for example {"windows": "8 of 145 sessions", "stocks": "108 of 669"}."""


@dataclass(frozen=True)
class Difference:
    """The champion's result minus another policy's."""

    against: str
    difference: Estimate


@dataclass(frozen=True)
class Verdict:
    """What the evaluation says in one sentence."""

    sentence: str
    is_better: bool
    """Whether the sentence says that the champion is better; it decides the colour and mark of the banner."""
    differences: Sequence[Difference] = ()
    """The one that supports the sentence first."""
    measure: str = "percentage points of return"
    """Unit of the differences."""
    caveats: Sequence[str] = ()
    """What a reader must know before believing the sentence, for example how the champion was chosen."""


@dataclass(frozen=True)
class PolicyResult:
    """One line of the table. ValueError for a metric that is not in METRICS."""

    name: str
    metrics: Mapping[str, Estimate]
    """By the keys of METRICS; what is missing is shown as a dash."""

    def __post_init__(self) -> None:
        unknown = set(self.metrics) - set(METRICS)
        if unknown:
            raise ValueError(f"expected metrics among {', '.join(METRICS)}, got {', '.join(sorted(unknown))}")


@dataclass(frozen=True)
class EquityCurves:
    """Equity of the policies over the same T days. ValueError where lengths differ."""

    curves: Mapping[str, FloatArray]
    """(T,) equity by policy in currency units, the champion first."""
    dates: Dates | None = None
    """(T,) days; None numbers them, for a mean over windows."""
    random_band: tuple[FloatArray, FloatArray] | None = None
    """(T,) lower and upper equity of the random pickers."""
    averaged: Sequence[str] = ()
    """Curves that are a mean over many policies, such as random pickers: their drawdown would flatter."""
    band_label: str = "random pickers, 5% to 95%"
    window_starts: Sequence[int] = ()
    """Positions along T at which a window or fold begins, for stitched curves."""

    def __post_init__(self) -> None:
        series = [*self.curves.values(), *(self.random_band or ()), *([] if self.dates is None else [self.dates])]
        lengths = {len(values) for values in series}
        if not self.curves or len(lengths) != 1 or lengths == {0}:
            raise ValueError(f"expected at least one curve and series of one length, got lengths {sorted(lengths)}")


@dataclass(frozen=True)
class MonthlyReturns:
    """Returns in percent by row and column; NaN where there is none."""

    percent: FloatArray
    """(rows, columns)"""
    total_percent: FloatArray
    """(rows,) compounded."""
    rows: Sequence[str]
    """Years, or windows."""
    columns: Sequence[str] = MONTHS
    note: str = ""


@dataclass(frozen=True)
class Trade:
    """One finished trade; prices as on the price chart."""

    entry_day: np.datetime64
    entry_price: float
    target_price: float
    exit_day: np.datetime64
    exit_price: float
    reason: ExitReason
    return_percent: float
    """After costs, of the value bought."""


@dataclass(frozen=True)
class TradedStock:
    """The price of one stock and the champion's trades in it."""

    ticker: str
    dates: Dates
    """(T,)"""
    close: FloatArray
    """(T,) NaN where it did not trade."""
    trades: Sequence[Trade]


@dataclass(frozen=True)
class CostSensitivity:
    """The return in percent under other costs a leg, for policies whose decisions stay the same."""

    cost_bps: Sequence[float]
    returns: Mapping[str, Sequence[Estimate]]
    """By policy, the champion first: one a cost."""
    charged_bps: float | None = None
    """What the rest of the report was charged, costs and slippage of one leg."""


@dataclass(frozen=True)
class Overfitting:
    """How much of the result may be the choice of the best among many."""

    deflated_sharpe: float | None = None
    """Probability that the true Sharpe ratio is above that of the best of `trials` without skill, from 0 to 1."""
    trials: int | None = None
    """Agents x generations looked at."""
    expected_best_sharpe: float | None = None
    """Annualised Sharpe ratio that the best of `trials` without skill is expected to show."""
    backtest_overfitting: float | None = None
    """Probability of backtest overfitting, from 0 to 1."""
    combinations: int | None = None
    """In-sample/out-of-sample splits of the days behind `backtest_overfitting`."""
    note: str = ""
    """Why one of them is absent, or what limits them."""


@dataclass(frozen=True)
class FitnessHistory:
    """Fitness of the population by generation, (G,) each, percent of the initial capital an episode; NaN if unknown."""

    generations: Sequence[int]
    lowest: FloatArray
    mean: FloatArray
    highest: FloatArray
    validation: FloatArray
    """The best result on validation windows so far: the champion's."""


@dataclass(frozen=True)
class HoldoutLook:
    """One look at the holdout, as in the run's ledger."""

    time: str
    champion_generation: int | None
    purpose: str
    """For example the command that was given."""
    result: str = ""


@dataclass(frozen=True)
class Bias:
    """A known flaw of the data."""

    name: str
    effect: str
    """Which results it flatters or hurts, and by about how much where that is known."""


@dataclass(frozen=True)
class ReportContents:
    """Everything that the page shows."""

    title: str
    facts: RunFacts
    verdict: Verdict
    policies: Sequence[PolicyResult]
    """The champion first."""
    equity: EquityCurves | None = None
    monthly: MonthlyReturns | None = None
    traded: Sequence[TradedStock] = ()
    costs: CostSensitivity | None = None
    overfitting: Overfitting | None = None
    fitness: FitnessHistory | None = None
    memory: Sequence[MemoryPoint] = ()
    memory_limit_mb: float | None = None
    holdout_looks: Sequence[HoldoutLook] | None = None
    """Oldest first; empty: nobody looked; None: no ledger is kept for this run."""
    biases: Sequence[Bias] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Nested or flat; values whose name or form suggests a credential are not shown."""
    command: str = ""
    """What a reader types to make this page again."""


def monthly_returns(dates: Dates, equity: FloatArray) -> MonthlyReturns:
    """Returns by calendar month, from the last equity of a month to that of the next, and compounded by year.

    `dates` and `equity` are (T,); the first value is the equity before the first return.
    """
    growth = np.ones(len(equity))
    growth[1:] = 1.0 + daily_returns(equity)
    months = dates.astype("datetime64[M]").astype(np.int64)
    years = range(int(months[1:].min(initial=months[-1]) // 12), int(months[-1] // 12) + 1)
    percent = np.full((len(years), 12), np.nan)
    for month in np.unique(months[1:]):
        inside = months == month
        inside[0] = False
        percent[month // 12 - years[0], month % 12] = 100.0 * (np.prod(growth[inside]) - 1.0)
    total = 100.0 * (np.prod(1.0 + np.nan_to_num(percent) / 100.0, axis=1) - 1.0)
    return MonthlyReturns(percent, total, [str(1970 + year) for year in years])


def fitness_history(records: Sequence[Mapping[str, Any]]) -> FitnessHistory:
    """The population's fitness and the champion's validation result from the records of metrics.jsonl."""

    def column(group: str, name: str) -> FloatArray:
        return np.array([_number(record[group][name]) for record in records], dtype=np.float64)

    return FitnessHistory(
        [int(record["generation"]) for record in records],
        column("fitness", "min"),
        column("fitness", "mean"),
        column("fitness", "max"),
        column("validation", "champion"),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
