"""The study of precision rounds what it says, for the population and for a champion, and nothing else."""

from __future__ import annotations

import torch

from benchmarks.learning.precision import EXACT, rounded_expectations
from tests.tiny import learnable_market, seeded, tiny_agent
from training.forecasts import ridge


def test_only_inputs_and_weights_of_expectations_are_rounded() -> None:
    market = learnable_market()
    agent = tiny_agent(market)
    x = torch.randn(20, 3, generator=seeded(0))
    weights = torch.randn(2, 3, generator=seeded(1), dtype=torch.float64)
    exact, forecasts = ridge.expectations(x, weights), agent.forecasts(market)
    with rounded_expectations(EXACT):
        assert torch.equal(ridge.expectations(x, weights), exact)
        assert torch.equal(agent.forecasts(market).expected, forecasts.expected)
    with rounded_expectations("bfloat16"):
        coarse, coarse_forecasts = ridge.expectations(x, weights), agent.forecasts(market)
    by_hand = x.bfloat16().double() @ weights.bfloat16().double().T
    torch.testing.assert_close(coarse.double(), by_hand.T, rtol=1e-5, atol=1e-6)
    assert not torch.equal(coarse, exact)
    known = forecasts.expected.isfinite()
    assert not torch.equal(coarse_forecasts.expected[known], forecasts.expected[known])
    torch.testing.assert_close(coarse_forecasts.expected[known], forecasts.expected[known], rtol=0.1, atol=0.1)
    assert torch.equal(ridge.expectations(x, weights), exact)
