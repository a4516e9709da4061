"""The certificate of paper accounts, measured: `python -m benchmarks.learning.certificate`.

False alarms: careers of ten years, looked at every day, in which stocks are drawn at random; their returns have fat
tails, volatility that comes in clusters, and a common factor. Power: sessions to detection of normal results.
"""

import argparse
import math

import numpy as np
from scipy.signal import lfilter

from training.paper.certificate import BOUND, sessions_to_line

YEAR = 252
MEDIAN_SESSIONS = {6.0: 61, 5.0: 78, 4.0: 103, 3.0: 170, 2.0: 331, 1.0: 1538}
"""Median sessions to detection by annual information ratio, as docs/paper.md has them."""


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
        bounded = np.clip(result / (known / math.sqrt(held)) / BOUND, -1, 1)
        alarms += bool(np.isfinite(sessions_to_line(bounded)))
    return alarms / count


def median_sessions(ratio: float, careers: int, rng: np.random.Generator) -> float:
    """Return the median sessions to detection of normal results with an annual information ratio."""
    results = rng.standard_normal((careers, 10 * YEAR)) + ratio / math.sqrt(YEAR)
    return float(np.median(sessions_to_line(np.clip(results / BOUND, -1, 1))))


def main(argv: list[str] | None = None) -> None:
    """Print false alarms and the table of sessions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--careers", type=int, default=1000)
    arguments = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    print(f"false alarms in ten years: {null_careers(arguments.careers, 10, rng):.2%} of {arguments.careers} careers")
    for ratio, known in MEDIAN_SESSIONS.items():
        print(f"information ratio {ratio:g}: {median_sessions(ratio, arguments.careers, rng):.0f} (table {known})")


if __name__ == "__main__":
    main()
