"""Products of inputs: those that tell are found, with their loadings; noise has none."""

import numpy as np
import pytest

from data.features.products import CLIP, Products

DAYS, STOCKS, INPUTS = 400, 20, 12
LEARNED, SHARED = np.arange(DAYS) < 300, np.arange(INPUTS) == 5


def drawn(seed: int, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Inputs, one of which all stocks share, and returns that two products move, or none."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((DAYS, STOCKS, INPUTS)).astype(np.float32)
    x[..., 5] = x[:, :1, 5]
    returns = rng.standard_normal((2, DAYS, STOCKS)) + x[..., 0] + x[..., 5]
    returns += strength * (x[..., 2] * x[..., 3] - x[..., 1] * x[..., 5])
    returns[:, rng.random((DAYS, STOCKS)) < 0.1] = np.nan
    return x, returns - np.nanmean(returns, axis=2, keepdims=True)


def fitted(x: np.ndarray, returns: np.ndarray) -> Products:
    return Products.fit(x, returns, LEARNED, np.arange(INPUTS), SHARED)


def test_products_that_tell_are_found_on_learned_days_alone() -> None:
    x, returns = drawn(0, 0.2)
    found = fitted(x, returns)
    loading = {tuple(sorted(term)): one[0] for term, one in zip(found.terms.tolist(), found.loadings, strict=True)}
    assert loading == {(2, 3): pytest.approx(0.2, abs=0.05), (1, 5): pytest.approx(-0.2, abs=0.05)}
    again = fitted(np.where(LEARNED[:, None, None], x, 9.0), np.where(LEARNED[:, None], returns, -7.0))
    np.testing.assert_array_equal(again.loadings, found.loadings)
    rows = 3 * x[350]
    clipped = np.clip(rows, -CLIP, CLIP)
    expected = sum(value * clipped[:, first] * clipped[:, second] for (first, second), value in loading.items())
    np.testing.assert_allclose(found.of(rows)[:, 0] * found.scale[0], expected, rtol=1e-4, atol=1e-5)


def test_noise_has_no_products() -> None:
    """One in twenty may, by the level of the bound."""
    found = [fitted(*drawn(seed, 0.0)) for seed in range(1, 21)]
    assert sum(len(one.terms) > 0 for one in found) <= 4
    assert (Products.none().of(np.ones((3, INPUTS), dtype=np.float32)) == 0).all()
