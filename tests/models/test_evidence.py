"""What evidence is worth: posteriors by quadrature, noise that is seldom believed, and skill that is found."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from models.evidence import Evidence
from utils.statistics import cauchy_posterior
from utils.tables import written_p

SCALE, CHANCE = 0.02, 0.3
DAYS, YEAR = 1000, 252


def by_quadrature(estimate: float, error: float, scale: float, chance: float) -> float:
    """Mean of a normal likelihood times a Cauchy prior, integrated piece by piece, or of nothing."""
    edges = sorted({0.0, estimate, *(place + far * error for place in (0.0, estimate) for far in (-12, -2, 2, 12))})

    def moment(power: int) -> float:
        def density(x: float) -> float:
            likelihood = math.exp(-0.5 * ((estimate - x) / error) ** 2)
            return float(x**power * likelihood * scale / math.pi / (x**2 + scale**2))

        return float(quad(density, edges[0], edges[-1], points=edges[1:-1], limit=1000)[0])

    whole = chance * moment(0) + (1 - chance) * math.exp(-0.5 * (estimate / error) ** 2)
    return chance * moment(1) / whole


@pytest.mark.parametrize("error", [0.003, 0.011, 0.05, 0.5])
@pytest.mark.parametrize("estimate", [-0.3, -0.02, 0.0, 0.005, 0.012, 0.06, 0.3])
def test_the_posterior_is_that_of_quadrature(estimate: float, error: float) -> None:
    for chance in (CHANCE, 1.0):
        found = cauchy_posterior(estimate, error, SCALE, chance)
        assert found == pytest.approx(by_quadrature(estimate, error, SCALE, chance), rel=1e-4, abs=1e-7)


def test_noise_is_seldom_believed_and_skill_is_found() -> None:
    """Of 300 years-long series each, white or with runs: 0.02% a day of tracking 0.3%, and ten times as much."""
    rng = np.random.default_rng(0)
    white = 0.3 * rng.standard_normal((300, DAYS + 3))
    runs = sum(white[:, lag : DAYS + lag] for lag in range(4)) / 2
    for noise in (white[:, :DAYS], runs):
        found = [Evidence.of(daily, trials=1, lead=0.0) for daily in noise]
        assert sum(one.p_value < 0.05 for one in found) <= 0.08 * len(found)
        assert all(0.0 <= one.shrink <= 1.0 for one in found)
        assert np.mean([one.shrink for one in found]) < 0.25
    skilled = [Evidence.of(daily + 0.1, trials=16, lead=1.0) for daily in white[:30, :DAYS]]
    assert all(one.is_significant and one.shrink > 0.8 for one in skilled)
    assert np.mean([one.excess for one in skilled]) == pytest.approx(0.1 * YEAR, abs=8.0)
    doubtful = [Evidence.of(daily + 0.01, trials=16, lead=0.0) for daily in white[:30, :DAYS]]
    assert 0.01 < np.mean([one.shrink for one in doubtful]) < 0.5 and not any(one.is_significant for one in doubtful)


def test_it_is_the_posterior_mean_over_the_estimate_less_what_the_best_leads_by_chance() -> None:
    daily = 0.05 + 0.3 * np.random.default_rng(1).standard_normal(DAYS)
    plain, led, many = (Evidence.of(daily, trials, lead) for trials, lead in ((1, 0.0), (1, 0.8), (7, 0.0)))
    assert plain.excess == pytest.approx(YEAR * daily.mean())
    standard_error = math.sqrt(2) * YEAR * daily.std() / math.sqrt(DAYS)
    assert plain.error == pytest.approx(standard_error, rel=0.2)
    assert led.excess == pytest.approx(plain.excess - 0.8 * plain.error) and led.shrink < plain.shrink
    assert led.p_value == plain.p_value and many.p_value == pytest.approx(7 * plain.p_value)
    assert many.shrink == plain.shrink
    assert Evidence.of(daily, 1, 0.0, daily).timing < plain.shrink
    for chance, share in ((0.8, plain.shrink), (0.5, Evidence.of(daily, 1, 0.0, daily).timing)):
        mean = by_quadrature(plain.excess, plain.error, daily.std() * math.sqrt(YEAR), chance)
        assert share == pytest.approx(mean / plain.excess, rel=1e-4)


def test_costs_are_known_and_what_was_earned_before_them_is_believed() -> None:
    """What the orders are worth is net of costs; the share that is believed is that of the gain before them."""
    noise = np.random.default_rng(3).standard_normal(1700)
    gross, cost = noise - noise.mean() + 0.1, 0.07
    before, after = Evidence.of(gross, 1, 0.5), Evidence.of(gross - cost, 1, 0.5, costs=(cost, 0.0))
    assert after.shrink == pytest.approx(before.shrink)
    assert after.shrink > 1.5 * Evidence.of(gross - cost, 1, 0.5).shrink
    assert after.excess == pytest.approx(before.excess - YEAR * cost) and after.p_value > before.p_value
    assert Evidence.of(gross, 1, 0.5, costs=(-0.05, 0.0)) == before


@pytest.mark.parametrize("daily", [np.zeros(DAYS), np.full(DAYS, 0.1), np.full(1, 0.5), np.linspace(1, 2, DAYS) * 1e-7])
def test_where_nothing_is_known_nothing_is_believed(daily: np.ndarray) -> None:
    """A series that never varies has no standard error; one that hardly does is the benchmark's but for rounding."""
    assert Evidence.of(daily, 1, 0.0) == Evidence() and Evidence().shrink == 0.0


@pytest.mark.parametrize(
    ("p_value", "shrink", "says"),
    [
        (0.0009, 0.4, "EDGE: 40% of the differences between scores are believed"),
        (0.001, 0.1, "WEAK EVIDENCE OF AN EDGE: 10% of the differences between scores are believed"),
        (0.1, 0.0, "WEAK EVIDENCE OF AN EDGE: the benchmark is held"),
        (0.11, 1.0, "NO SIGNIFICANT EDGE: scores are followed in full"),
    ],
)
def test_the_headline_and_the_sentence(p_value: float, shrink: float, says: str) -> None:
    found = Evidence(4.04, 1.3, p_value, shrink)
    assert found.headline == says
    begins = "The agents' orders are worth 4.0% a year (+- 1.3) over the benchmark, out of fold and net of costs (p "
    assert ("after correction for all agents tried" in found.sentence) == (p_value >= 0.001)
    assert found.sentence.startswith(begins) and found.sentence.endswith(f": {says.partition(': ')[2]}.")


def test_cash_is_weighed_by_itself() -> None:
    """As differences are; without skill in these it is what there is, and is told."""
    rng = np.random.default_rng(2)
    none, skilled = 0.3 * rng.standard_normal((2, DAYS))
    found, alone = Evidence.of(none, 4, 0.5, skilled + 0.1), Evidence.of(skilled + 0.1, 4, 0.5, skilled + 0.1)
    assert (found.excess, found.shrink) == (Evidence.of(none, 4, 0.5).excess, Evidence.of(none, 4, 0.5).shrink)
    told = found.cash_excess, found.cash_error, found.cash_p_value, found.timing
    assert told == (alone.excess, alone.error, alone.p_value, alone.timing)
    assert found.is_timing_significant and not found.is_significant and found.strength == "significant"
    held = Evidence(-0.02, 1.0, 1.0, 0.0, 9.0, 1.0, 1e-6, 0.98)
    assert held.headline == "EDGE: 98% of their level is believed, by which cash is held"
    for worth, p_value, is_told in ((0.9, 0.11, False), (1.1, 0.11, True), (0.9, 0.1, True)):  # half of it is believed
        one = Evidence(9.0, 2.0, 1e-6, 0.9, worth, 1.0, p_value, 0.5)
        assert ("level" in one.followed) == ("cash by" in one.sentence) == is_told
    assert "worth 0.0% a year" in held.sentence and "scores 9.0% (+- 1.0, p < 0.001)" in held.sentence


@given(st.floats(0.0, 1.0))
def test_a_p_value_is_written_such_that_its_claim_can_be_read_from_it(p_value: float) -> None:
    text = written_p(p_value)
    shown = 0.0 if text == "< 0.001" else float(text)
    for threshold in (0.025, 0.1):
        assert (shown <= threshold) == (p_value <= threshold + 1e-12)
    evidence = Evidence(p_value=p_value)
    assert evidence.is_significant == (text == "< 0.001")
    assert (evidence.strength == "weak") == (0.001 <= shown <= 0.1)
