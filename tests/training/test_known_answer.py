"""A known answer: a stock whose drift is seen, and the band around it in which an optimal trader does nothing."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models import ddpg
from models.ddpg import Batch
from models.networks import Networks
from tests.tiny import seeded
from utils.arrays import Float64Array

PERSISTENCE, NOISE = 0.8, 1.0
"""Of the drift from session to session, and deviation of returns around it; the drift's own is one percent."""
COST = 0.5
GRID = np.linspace(-4.0, 4.0, 161)
SESSIONS = (3.0, 4.0, 4.5, 5.0)
"""In which the optimal trader earns the price of capital of each of four folds."""


def chances() -> Float64Array:
    """Chances of the next drift, by that of today: an autoregressive process on the grid."""
    deviation = np.sqrt(1 - PERSISTENCE**2)
    density = np.exp(-0.5 * ((GRID - PERSISTENCE * GRID[:, None]) / deviation) ** 2)
    found: Float64Array = density / density.sum(axis=1, keepdims=True)
    return found


def optimal_worth() -> Float64Array:
    """What it is worth to hold rather than not, in the limit of many days: at most a purchase, at least a sale."""
    worth = np.zeros_like(GRID)
    for _ in range(500):
        worth = GRID + chances() @ worth.clip(-COST, COST)
    return worth


def earned(buys: NDArray[np.bool_], keeps: NDArray[np.bool_]) -> float:
    """Mean percent a session of who trades like this by the drift, from the stationary law of drift and position."""
    states, step = len(GRID), chances()
    moves, reward = np.zeros((2, states, 2, states)), np.zeros((2, states))
    for held, holds in enumerate((buys, keeps)):
        for drift, is_held in enumerate(holds.astype(int)):
            moves[held, drift, is_held] = step[drift]
            reward[held, drift] = is_held * GRID[drift] - COST * (is_held != held)
    balance = np.vstack((moves.reshape(2 * states, -1).T - np.eye(2 * states), np.ones(2 * states)))
    law = np.linalg.lstsq(balance, np.eye(2 * states + 1)[-1], rcond=None)[0]
    return float(law @ reward.ravel())


def transitions(prices: torch.Tensor, days: int, stocks: int, draws: torch.Generator) -> Batch:
    """Sessions of stocks of this kind, the same at each price of capital, a fold each."""
    drift, shock, noise = torch.randn(3, 1, days, stocks, generator=draws).expand(-1, len(prices), -1, -1)
    following = PERSISTENCE * drift + (1 - PERSISTENCE**2) ** 0.5 * shock
    price, terminated = prices[:, None].expand(-1, days), torch.zeros(drift.shape, dtype=torch.bool)
    return Batch(drift[..., None], following[..., None], drift + NOISE * noise, terminated, price, price)


def test_agents_find_the_band_of_an_optimal_trader() -> None:
    """Who trades where scores less the price of capital exceed the cost earns, at the fittest of a few prices, 95% of
    what can be earned, and trades at about the same drifts."""
    worth = optimal_worth()
    best = earned(worth > COST, worth >= -COST)
    prices, draws = best * torch.tensor(SESSIONS), seeded(0)
    networks = Networks.initialize(torch.ones(1, len(prices), 1), 8, 0.004, draws, scale=2**0.5)
    for _ in range(400):
        ddpg.update(networks, torch.ones(1), transitions(prices, 16, 32, draws), 1, cost=COST, tau=0.03)
    drifts, found = torch.tensor(GRID[:, None]).float(), []
    for fold, price in enumerate(prices):
        gain = (networks.target.played_scores(0, fold, drifts) - price).numpy()
        trades = gain > COST, gain >= -COST
        found.append((earned(*trades), float(GRID[trades[0]].min()), float(GRID[trades[1]].min())))
    fittest, buys, keeps = max(found)
    assert fittest > 0.95 * best
    assert buys == pytest.approx(GRID[worth > COST].min(), abs=0.3)
    assert keeps == pytest.approx(GRID[worth >= -COST].min(), abs=0.3)
