"""Markets whose drift is a function of two trends together: it is the one that is claimed, and no line tells it."""

import math

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from data.synthetic.draw import synthetic_market
from data.synthetic.kinds.nonlinear import AGREE, RING, TrendDrift
from data.synthetic.planted import PLANTED_KINDS, rule_scores
from utils.config.trader import SyntheticConfig

Array = npt.NDArray[np.float64]
LAWS: dict[str, TrendDrift] = {"agree": AGREE, "ring": RING}
KINDS: list[str] = list(LAWS)
HOLDING, WARM_UP = 20, 400


def trends_of(returns: Array, std: float) -> Array:
    """(2, days, columns) exponential means of the returns, in their standard deviations under independent noise."""
    return np.stack([mean_of(returns, half_life) / (std * spread(half_life)) for half_life in (16, 64)])


def mean_of(returns: Array, half_life: float) -> Array:
    return pd.DataFrame(returns).ewm(halflife=half_life, adjust=False).mean().to_numpy()


def spread(half_life: float) -> float:
    kept = 0.5 ** (1 / half_life)
    return math.sqrt((1 - kept) / (1 + kept))


def claimed(kind: str, trends: Array, std: float) -> Array:
    if kind == "agree":
        return 0.2 * std * np.tanh(1.5 * trends[0]) * np.tanh(1.5 * trends[1])
    return std / 3 * np.sin(2.5 * np.sqrt(trends[0] ** 2 + trends[1] ** 2))


def own_path(kind: str, config: SyntheticConfig, seed: int) -> tuple[Array, Array]:
    """(days, stocks) specific noise and latent drift."""
    rng = np.random.default_rng(seed)
    own = LAWS[kind].specific_std(config) * rng.standard_normal((config.days, config.stocks))
    return own, PLANTED_KINDS[kind].latent_drift(config, own, rng)


@pytest.mark.parametrize("kind", KINDS)
def test_the_drift_is_the_claimed_function_of_past_returns(kind: str) -> None:
    config, law = SyntheticConfig(kind=kind, days=3000, stocks=4), LAWS[kind]
    own, drift = own_path(kind, config, 1)
    std = law.specific_std(config)
    returns = own + np.concatenate((np.zeros((1, 4)), drift[:-1])) + law.pull * std
    # By then nothing is left of what came before the first day.
    expected = (claimed(kind, trends_of(returns, std), std) - law.mean * std)[-500:]
    assert drift[-500:] == pytest.approx(expected, abs=1e-8)
    assert drift.max() + law.mean * std <= std * (0.2 if kind == "agree" else 1 / 3)


def explained(inputs: list[Array], results: Array) -> float:
    """Return the share of the variance of (n,) results that least squares on inputs explain."""
    rows = np.stack([np.ones(len(results)), *(values.ravel() for values in inputs)], axis=1)
    fitted = rows @ np.linalg.lstsq(rows, results, rcond=None)[0]
    return float(fitted.var() / results.var())


@pytest.mark.parametrize(("kind", "line"), [("agree", 0.06), ("ring", 0.2)])
def test_lines_on_the_trends_explain_next_to_nothing_and_the_rule_what_there_is(kind: str, line: float) -> None:
    """Next-day returns: `line` is the largest share of the predictable variance that a weighing of trends may find."""
    config = SyntheticConfig(kind=kind, days=3000, stocks=60)
    market = synthetic_market(config, 21)
    returns = np.diff(np.log(market.close), axis=0, prepend=np.log(market.close[:1]))
    own = returns - returns.mean(axis=1, keepdims=True)
    known, following = slice(WARM_UP, -1), own[WARM_UP + 1 :].ravel()
    predictable = float(market.drift[known].var() / following.var())
    by_rule = explained([rule_scores(config, market.bars, 1)[known]], following)
    by_line = explained(list(trends_of(own, LAWS[kind].specific_std(config))[:, known]), following)
    assert by_rule == pytest.approx(predictable, rel=0.25)
    assert by_line < line * predictable
