"""Laws drawn at random: what a sentence says moves the sessions to come, known at the close, as strongly as is said."""

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.laws.bars import COLUMNS, Noise, Traits
from benchmarks.learning.laws.grammar import FORMS, PARTNERS, SCALES, SCOPES, STATES, Law, path, simulate
from benchmarks.learning.laws.quantities import FAMILIES, QUANTITIES
from benchmarks.learning.laws.study import TOLERANCE, WORTH, calibrated, figure, truth_earns
from tests.benchmarks.study_cases import Studied, tiny_config

QUANTITY = st.sampled_from([*QUANTITIES.values()])
LAWS = st.builds(
    lambda seed, quantity, form, state: replace(
        Law.draw(seed), quantity=quantity, look=quantity.looks[-1], form=form, state=state
    ),
    st.integers(0, 10**6),
    QUANTITY,
    st.sampled_from([*FORMS]),
    st.sampled_from([None, *STATES]),
)


def wide(bars: pd.DataFrame, column: str) -> pd.DataFrame:
    return bars.pivot(index="date", columns="ticker", values=column)


@given(LAWS, st.integers(30, 250))
def test_a_drift_follows_from_what_was_known_at_its_close(law: Law, day: int) -> None:
    rng = np.random.default_rng(3)
    traits = Traits.draw(12, rng)
    noise, other = (Noise.draw(traits, 280, rng) for _ in range(2))
    altered = Noise(*(np.concatenate((one[: day + 1], two[day + 1 :])) for one, two in zip(noise, other, strict=True)))
    first, second = (simulate(law, 0.002, traits, one) for one in (noise, altered))
    np.testing.assert_array_equal(first.drift[: day + 1], second.drift[: day + 1])
    known = 12 * (day + 1)
    assert first.bars[:known].equals(second.bars[:known]) and not first.bars[known:].equals(second.bars[known:])


@pytest.mark.parametrize("name", QUANTITIES)
def test_sessions_move_by_their_drift(name: str) -> None:
    """The slope of session returns on the drift of the close before is 1, whatever the quantity; nights have none."""
    quantity = QUANTITIES[name]
    law = Law(quantity, quantity.looks[0], 1)
    drawn = path(law, 0.08 if name == "surprise" else 0.004, 800, 24, seed=1)
    assert len(drawn.tickers) == 16 and (quantity.column in drawn.bars) == (quantity.column is not None)
    bars = {column: np.log(wide(drawn.bars, column).to_numpy()[:, :16]) for column in ("open", "close")}
    drift = drawn.drift[:-1] - drawn.drift[:-1].mean(axis=1, keepdims=True)
    for returns, slope in ((bars["close"] - bars["open"], 1.0), (bars["open"][1:] - bars["close"][:-1], 0.0)):
        moves = returns[-len(drift) :] - returns[-len(drift) :].mean(axis=1, keepdims=True)
        found = (drift * moves).sum() / (drift**2).sum()
        error = np.sqrt(((moves - found * drift) ** 2 * drift**2).sum()) / (drift**2).sum()
        assert error < 0.2 and abs(found - slope) < 5 * error


def test_a_law_is_what_its_sentence_says() -> None:
    """In plain pandas, from the bars: reversal of a week's return, after loud days, a session late, half-life 2."""
    law = Law(QUANTITIES["past return"], 5, -1, form="after high", lag=1, half_life=2)
    assert str(law) == (
        "the return of the last 5 sessions, after a loud day, is given back, 1 session late, with a half-life of 2"
    )
    drawn = path(law, 0.001, 300, 30, seed=2)
    close, volume = np.log(wide(drawn.bars, "close")), np.log(wide(drawn.bars, "volume"))

    def standard(table: pd.DataFrame) -> pd.DataFrame:
        apart = table.sub(table.mean(axis=1), axis=0)
        return apart.div(apart.std(axis=1, ddof=0), axis=0)

    begun = standard(close.diff(5)).clip(-3, 3).where(standard(volume - volume.rolling(63).mean()) > 0.7, 0.0).shift(1)
    kept, memory, drift = 0.5**0.5, np.zeros(30), []
    for row in begun.fillna(0).to_numpy():
        memory = kept * memory + np.sqrt(1 - kept**2) * row
        drift.append(-0.001 * (memory - memory.mean()))
    np.testing.assert_allclose(drawn.drift[150:], np.array(drift)[150:, :20], atol=2e-6)


def test_sentences_name_what_is_drawn() -> None:
    quantity = QUANTITIES["momentum"]
    law = Law(quantity, 252, 1, "rank", "product", "range", "calm", True, 2, 10, "signs")
    assert str(law) == (
        "the return of the last 252 sessions but the last 21, by rank, times the day's range shock, goes on in calm "
        "markets and does the reverse in others, 2 sessions late, with a half-life of 10, each stock with its own sign"
    )
    assert str(Law(QUANTITIES["weekday"], 1, -1)) == "each stock's favourite weekday, turns round"
    drawn = [Law.draw(seed) for seed in range(2000)]
    assert drawn[:20] == [Law.draw(seed) for seed in range(20)]
    assert len({str(one) for one in drawn}) > 1500
    parts = {"quantity": QUANTITIES.values(), "scale": SCALES, "form": FORMS, "partner": PARTNERS, "scope": SCOPES}
    for part, values in {**parts, "state": [None, *STATES]}.items():
        assert {getattr(one, part) for one in drawn} == set(values)
    assert {one.quantity.column for one in drawn} == {None, *COLUMNS}
    shares = Counter(one.quantity.family for one in drawn)
    assert set(shares) == set(FAMILIES) and min(shares.values()) > 2000 / len(FAMILIES) / 1.5
    assert {one.name for one in fields(Law)} == {"look", "sign", "flips", "lag", "half_life", "state", *parts}


@pytest.mark.parametrize("seed", [1, 6, 9])
def test_a_law_is_as_strong_as_is_said(seed: int) -> None:
    """And the same each time, on other markets than it is learned on."""
    config, law = (
        tiny_config("--synthetic.days", "600", "--synthetic.stocks", "24", "--seed", str(seed)),
        Law.draw(seed),
    )
    strength, earned = calibrated(law, config)
    assert truth_earns(law, strength, config) == earned == pytest.approx(WORTH, rel=TOLERANCE)
    assert truth_earns(law, 2 * strength, config) > 1.3 * earned
    frames = [path(law, strength, 100, 9, seed, part).bars for part in (0, 0, 1)]
    assert frames[0].equals(frames[1]) and not frames[0].equals(frames[2])


def test_the_study_prints_laws_and_the_figure(studied: Studied) -> None:
    words = ("laws", "--first-seed", "8", "--seeds", "2", "--generations", "1", "--synthetic.days", "600")
    shown, kept = studied(*words)
    assert [record["law"] for record in kept] == [str(Law.draw(seed)) for seed in (8, 9)]
    assert shown[1].split()[:2] == ["8", "told"] and Law.draw(8).quantity.words in shown[2]
    assert all(-1 <= record["correlation"] <= 1 for record in kept)
    assert shown[-4:] == [*figure(kept)] and [one.split()[0] for one in shown[-3:]] == ["told", "hidden", "all"]
    policies = [record["policies"] for record in kept]
    champion, truth = (sum(one[name]["expected"] for one in policies) for name in ("champion", "true drift"))
    assert float(shown[-1].split()[3]) == pytest.approx(champion / truth, abs=0.006)
    assert studied(*words) == (shown, kept)
