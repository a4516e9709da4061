"""Metrics of equity curves against plain-Python oracles, known answers and degenerate curves."""

import itertools
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils import metrics

Metric = Callable[[npt.ArrayLike], Any]
Oracle = Callable[[list[float]], float]


def curve_of(factors: list[float]) -> list[float]:
    return [1e6 * math.prod(factors[:day]) for day in range(len(factors) + 1)]


def curves_of(days: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(0.5, 1.6), min_size=days, max_size=days).map(curve_of)


batches = st.integers(3, 40).flatmap(lambda days: st.lists(curves_of(days), min_size=1, max_size=3))


def returns_of(curve: list[float]) -> list[float]:
    return [after / before - 1 for before, after in itertools.pairwise(curve)]


def oracle_total_return(curve: list[float]) -> float:
    return 100 * (curve[-1] - curve[0]) / curve[0]


def oracle_volatility(curve: list[float]) -> float:
    return 100 * statistics.stdev(returns_of(curve)) * math.sqrt(252)


def oracle_sharpe(curve: list[float]) -> float:
    deviation = statistics.stdev(returns_of(curve))
    return statistics.fmean(returns_of(curve)) / deviation * math.sqrt(252) if deviation > 1e-12 else 0.0


def oracle_sortino(curve: list[float]) -> float:
    downside = math.sqrt(statistics.fmean([r * r if r < 0 else 0.0 for r in returns_of(curve)]))
    return statistics.fmean(returns_of(curve)) / downside * math.sqrt(252) if downside > 1e-12 else 0.0


def oracle_drawdown(curve: list[float]) -> float:
    return 100 * max(1 - low / high for day, high in enumerate(curve) for low in curve[day:])


def oracle_calmar(curve: list[float]) -> float:
    yearly = (curve[-1] / curve[0]) ** (252 / (len(curve) - 1)) - 1
    drawdown = oracle_drawdown(curve) / 100
    return yearly / drawdown if drawdown > 1e-12 else 0.0


def oracle_shortfall(curve: list[float]) -> float:
    """Minus the integral of the quantile function up to 5%, over 5%; each day is a step of its width."""
    left, total = 0.05, 0.0
    for move in sorted(returns_of(curve)):
        width = min(left, 1 / (len(curve) - 1))
        left, total = left - width, total - width * move
    return 100 * total / 0.05


RATIOS = {metrics.sharpe: oracle_sharpe, metrics.sortino: oracle_sortino, metrics.calmar: oracle_calmar}
RISKS = {metrics.annualised_volatility_percent: oracle_volatility, metrics.max_drawdown_percent: oracle_drawdown}
ORACLES: dict[Metric, Oracle] = {**RATIOS, **RISKS, metrics.total_return_percent: oracle_total_return}
ORACLES |= {metrics.expected_shortfall_percent: oracle_shortfall}


@given(batch=batches)
def test_each_row_of_a_batch_agrees_with_the_oracle(batch: list[list[float]]) -> None:
    for metric, oracle in ORACLES.items():
        found = np.asarray(metric(np.array(batch)[:, None]))
        assert found.shape == (len(batch), 1)
        assert found[:, 0].tolist() == pytest.approx([oracle(curve) for curve in batch], rel=1e-6, abs=1e-7), metric


def test_degenerate_curves_do_not_flatter_and_ruin_ends_a_curve() -> None:
    for metric in ORACLES:
        assert metric([100.0, 100.0]) == metric([3.3] * 50) == 0.0
        assert math.isnan(float(metric([1.0, math.nan, 1.1])))
    rising = [100.0 * 1.01**day for day in range(20)]
    assert [ratio(rising) for ratio in RATIOS] == [0.0] * 3
    for curve in ([100.0, 50.0, 0.0, 30.0], [100.0, 50.0, -5.0, 30.0]):
        assert metrics.total_return_percent(curve) == -100.0
        assert metrics.max_drawdown_percent(curve) == 100.0
