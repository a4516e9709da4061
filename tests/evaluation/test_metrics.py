"""Metrics of equity curves against plain-Python oracles, known answers and degenerate curves."""

import itertools
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils import metrics

Metric = Callable[[list[float]], object]

curves = st.lists(st.floats(0.5, 1.6), min_size=3, max_size=40).map(
    lambda factors: [1e6 * math.prod(factors[:day]) for day in range(len(factors) + 1)]
)


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
ORACLES: dict[Metric, Metric] = {**RATIOS, **RISKS, metrics.total_return_percent: oracle_total_return}
ORACLES |= {metrics.expected_shortfall_percent: oracle_shortfall}


@pytest.mark.parametrize("metric", ORACLES)
@given(curve=curves)
def test_agrees_with_the_oracle(metric: Metric, curve: list[float]) -> None:
    assert metric(curve) == pytest.approx(ORACLES[metric](curve), rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("metric", ORACLES)
@given(
    batch=st.integers(2, 9).flatmap(
        lambda days: st.lists(st.lists(st.floats(1, 9), min_size=days, max_size=days), min_size=1)
    )
)
def test_a_batch_is_its_rows(metric: Metric, batch: list[list[float]]) -> None:
    rows = [float(np.asarray(metric(row))) for row in batch]
    together = np.asarray(metric(np.array(batch).reshape(len(batch), 1, -1)))  # type: ignore[arg-type]
    assert together.shape == ((len(batch), 1))
    assert together[:, 0].tolist() == pytest.approx(rows, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("metric", ORACLES)
@pytest.mark.parametrize("curve", [[100.0, 100.0], [3.3] * 50])
def test_a_flat_curve_is_worth_nothing(metric: Metric, curve: list[float]) -> None:
    assert metric(curve) == 0.0


def test_undefined_ratios_do_not_flatter_and_ruin_ends_a_curve() -> None:
    rising = [100.0 * 1.01**day for day in range(20)]
    assert [ratio(rising) for ratio in (metrics.sharpe, metrics.sortino, metrics.calmar)] == [0.0] * 3
    for curve in ([100.0, 50.0, 0.0, 30.0], [100.0, 50.0, -5.0, 30.0]):
        assert metrics.total_return_percent(curve) == -100.0
        assert metrics.max_drawdown_percent(curve) == 100.0
    assert all(math.isnan(float(np.asarray(metric([1.0, math.nan, 1.1])))) for metric in ORACLES)
