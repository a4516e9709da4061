"""What evidence is worth: posteriors by quadrature, shares by hand, and nothing where nothing is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from models.evidence import Bet, Evidence
from utils.statistics import cauchy_posterior
from utils.tables import written_p

SCALE = 0.02
estimates, errors = st.floats(-0.5, 0.5), st.floats(0.002, 0.5)


def by_quadrature(estimate: float, error: float, scale: float) -> tuple[float, float]:
    """Mean and deviation of a normal likelihood times a Cauchy prior, integrated piece by piece."""
    edges = sorted({0.0, estimate, *(place + far * error for place in (0.0, estimate) for far in (-12, -2, 2, 12))})

    def moment(power: int) -> float:
        def density(x: float) -> float:
            return float(x**power * math.exp(-0.5 * ((estimate - x) / error) ** 2) / (x**2 + scale**2))

        return float(quad(density, edges[0], edges[-1], points=edges[1:-1], limit=1000)[0])

    whole, mean = moment(0), moment(1) / moment(0)
    return mean, math.sqrt(moment(2) / whole - mean**2)


@pytest.mark.parametrize("error", [0.003, 0.011, 0.05, 0.5])
@pytest.mark.parametrize("estimate", [-0.3, -0.02, 0.0, 0.005, 0.012, 0.06, 0.3])
def test_the_posterior_is_that_of_quadrature(estimate: float, error: float) -> None:
    found = cauchy_posterior(estimate, error, SCALE)
    assert found == pytest.approx(by_quadrature(estimate, error, SCALE), rel=1e-5, abs=1e-7)


def test_a_share_by_hand() -> None:
    """Merton's: excess over aversion times variance, of ten stocks with a correlation that is known."""
    bet = Bet(estimate=0.05, error=1e-9, spread=0.08, score=1.3, variance=0.08**2 / 10)
    excess = 0.05 * 0.08 * 1.3
    assert bet.share(costs=0.0032) == pytest.approx((excess - 0.0032) / (5 * 0.08**2 / 10), rel=1e-6)
    assert bet.share(costs=0.0) == 1.0 and bet.share(costs=excess) == pytest.approx(0.0, abs=1e-9)
    assert Bet(-0.05, 1e-9, 0.08, 1.3, 0.00064).share(0.0) == 0.0
    # Of a single stock, timing adds no variance to the basket's.
    timed = Bet.on_days(0.05, 1e-9, 0.08, 0.0)
    assert timed.share(0.001) == 1.0 and timed.share(1.0) == 0.0


@pytest.mark.parametrize("stocks", [2, 8, 20, 40, 108, 669])
def test_the_scores_of_the_ten_best_and_of_the_better_days_are_those_of_normal_draws(stocks: int) -> None:
    """Of fewer than twenty stocks the better half."""
    bet, draws = Bet.on_stocks(0.1, 0.1, 0.1, stocks), np.random.default_rng(0).standard_normal((4000, stocks))
    names = min(10, stocks // 2)
    best = np.sort(draws, axis=1)[:, -names:].mean()
    assert bet.variance == pytest.approx(0.1**2 / names)
    assert bet.score == pytest.approx(best, abs=0.02)
    assert Bet.on_days(0.1, 0.1, 0.1, 0.1).score == pytest.approx(np.abs(draws).mean(), abs=0.02)


def test_where_nothing_is_known_nothing_is_bet() -> None:
    """A series that never varies has no standard error; its estimate is not believed."""
    silent = Bet(estimate=0.9, error=0.0, spread=0.08, score=1.3, variance=0.00064)
    assert silent.posterior.mean == 0.0 and silent.share(0.0) == 0.0
    assert Bet(estimate=0.9, error=0.01, spread=0.0, score=1.3, variance=0.0).share(0.0) == 0.0


def test_the_larger_share_is_bet() -> None:
    stocks, days = Bet(0.012, 0.004, 0.08, 1.3, 0.00064), Bet(0.9, 0.05, 0.05, 0.8, 0.00064)
    silent = Bet(0.0, 0.1, 0.05, 0.8, 0.00064)
    assert Evidence.of(0.2, 0.0001, stocks, days, costs=0.002).share == 1.0 == days.share(0.002) > stocks.share(0.002)
    assert Evidence.of(0.2, 1.0, stocks, silent, costs=0.0).share == round(stocks.share(0.0), 2) > 0


def test_what_is_known_and_bet_is_said_in_a_sentence() -> None:
    found = Evidence(0.0009, 0.5, 0.03, 0.01, 0.2, 0.1)
    assert found.sentence(0.1) == (
        "Training days show significant evidence (selection p < 0.001, timing p = 0.500). The agents' forecasts are "
        "worth an IC of 0.030 +- 0.010, and in time 0.20 +- 0.10: 10% of the capital follows them, the rest holds the "
        "basket."
    )
    assert found.bet(0.0).endswith(": all of the capital holds the basket")


@pytest.mark.parametrize(
    ("selection", "timing", "share", "says"),
    [
        (0.0009, 0.5, 0.4, "EDGE, IC 0.03: 40% of the capital follows it"),
        (0.5, 0.0009, 0.4, "EDGE, correlation in time 0.20: 40% of the capital follows it"),
        (0.0009, 0.5, 0.0, "NO EDGE AFTER COSTS: holds the basket"),
        (0.001, 0.5, 0.1, "WEAK EVIDENCE OF AN EDGE, IC 0.03: 10% of the capital follows it"),
        (0.1, 0.5, 0.0, "NO EDGE FOUND: holds the basket"),
        (0.11, 0.5, 1.0, "NO EDGE FOUND, IC 0.03: 100% of the capital follows it"),
    ],
)
def test_the_headline(selection: float, timing: float, share: float, says: str) -> None:
    assert Evidence(selection, timing, 0.03, 0.01, 0.2, 0.1).headline(share) == says


def test_no_edge_is_doubted_where_scores_foretell_clearly_at_another_horizon() -> None:
    clear, vague = (Evidence(0.5, 0.5, sessions=1, rank_ic=0.211, t=t) for t in (55.7, 2.0))
    assert clear.headline(0.0).endswith("BUT out of fold scores foretell returns of 1 session: rank IC 0.211, t 55.7")
    assert "But out of fold scores" in clear.sentence(0.0) and "But" not in clear.sentence(1.0) + vague.sentence(0.0)


@given(st.floats(0.0, 1.0))
def test_a_p_value_is_written_such_that_its_claim_can_be_read_from_it(p_value: float) -> None:
    text = written_p(p_value)
    shown = 0.0 if text == "< 0.001" else float(text)
    for threshold in (0.025, 0.1):
        assert (shown <= threshold) == (p_value <= threshold + 1e-12)
    evidence = Evidence(p_value, 1.0)
    assert evidence.is_significant == (text == "< 0.001")
    assert (evidence.strength == "weak") == (0.001 <= shown <= 0.1)
