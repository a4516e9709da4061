"""The certificate of paper accounts, measured: `python -m benchmarks.learning.certificate`.

False alarms: careers of ten years, looked at every day, in which stocks are drawn at random; their returns have fat
tails, volatility that comes in clusters, and a common factor. Power: sessions to detection of normal results.
"""

import argparse
import math

import numpy as np
from scipy.signal import lfilter

from training.paper.certificate import BOUND, LINE, RUIN, capital_curves
from utils.arrays import Float64Array

YEAR = 252
MEDIAN_SESSIONS = {6.0: 480, 5.0: 578, 4.0: 731, 3.0: 982, 2.0: 1506, 1.0: 3174}
"""Median sessions to detection by annual information ratio, as docs/paper.md has them."""

CRASHES = ((5.0, 8.0), (2.5, 10.0), (1.0, 10.0), (1.0, 20.0), (0.5, 20.0), (1.0, 40.0), (0.5, 40.0), (0.25, 50.0))
"""Crashes a year, and deviations of a day that each loses."""


def sessions_to_line(results: Float64Array) -> Float64Array:
    """Return the (...) sessions until the capital first reaches the line; infinite where it never does."""
    is_above = capital_curves(results) >= LINE
    return np.where(is_above.any(axis=-1), 1.0 + is_above.argmax(axis=-1), np.inf)


def null_careers(count: int, years: int, rng: np.random.Generator, *, stocks: int = 50, held: int = 10) -> float:
    """Return the share of careers without skill whose capital ever reaches the line."""
    alarms = 0
    for _ in range(count):
        days = YEAR * years
        volatility = np.exp(0.4 * lfilter([math.sqrt(1 - 0.97**2)], [1.0, -0.97], rng.standard_normal(days)))
        noise = rng.standard_t(3, (days, stocks)) * volatility[:, None]
        factor = rng.standard_t(3, days) * volatility
        returns = noise + factor[:, None] * rng.uniform(0.5, 1.5, stocks)
        # Each position is held for twenty sessions; its stock is drawn when it is bought.
        drawn = np.repeat(rng.integers(0, stocks, (-(-days // 20), held)), 20, axis=0)[:days]
        result = np.take_along_axis(returns, drawn, axis=1).mean(axis=1) - returns.mean(axis=1)
        spread = returns.std(axis=1)
        window = np.lib.stride_tricks.sliding_window_view(spread, 63)
        known = np.concatenate((np.full(63, np.median(spread[:63])), np.median(window, axis=1)[:-1]))
        bounded = np.minimum(result / (known / math.sqrt(held)), BOUND) / RUIN
        alarms += bool(np.isfinite(sessions_to_line(bounded)))
    return alarms / count


def crash_careers(
    count: int, years: int, rng: np.random.Generator, *, crashes: float, deviations: float, yearly: float = 0.0
) -> float:
    """Return the share of careers that reach the line whose selection gains a little on most days and crashes at times.

    Args:
        crashes: a year.
        deviations: of a day that a crash loses.
        yearly: true mean of a year, in deviations of a year.
    """
    days, share = YEAR * years, crashes / YEAR
    crash = rng.random((count, days)) < share
    usual = rng.standard_normal((count, days)) + share * deviations / (1 - share)
    results = np.where(crash, -deviations, usual) + yearly / math.sqrt(YEAR)
    return float(np.isfinite(sessions_to_line(np.minimum(results, BOUND) / RUIN)).mean())


def median_sessions(ratio: float, careers: int, rng: np.random.Generator) -> float:
    """Return the median sessions to detection of normal results with an annual information ratio."""
    results = rng.standard_normal((careers, 20 * YEAR)) + ratio / math.sqrt(YEAR)
    return float(np.median(sessions_to_line(np.minimum(results, BOUND) / RUIN)))


def main(argv: list[str] | None = None) -> None:
    """Print false alarms and the table of sessions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--careers", type=int, default=1000)
    arguments = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    print(f"false alarms in ten years: {null_careers(arguments.careers, 10, rng):.2%} of {arguments.careers} careers")
    for crashes, deviations in CRASHES:
        crossed = [
            crash_careers(arguments.careers, 10, rng, crashes=crashes, deviations=deviations, yearly=yearly)
            for yearly in (0.0, -0.5)
        ]
        said = f"{crossed[0]:.1%} of careers, at a mean of half a deviation a year below zero {crossed[1]:.1%}"
        print(f"{crashes:g} crashes a year of {deviations:g} deviations: {said}")
    for ratio, known in MEDIAN_SESSIONS.items():
        print(f"information ratio {ratio:g}: {median_sessions(ratio, arguments.careers, rng):.0f} (table {known})")


if __name__ == "__main__":
    main()
