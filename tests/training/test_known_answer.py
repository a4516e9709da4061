"""A known answer: a stock whose drift is seen, and the band around it in which an optimal trader does nothing."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from models import ddpg
from models.ddpg import Batch
from models.networks import Networks
from models.policy import Forecasts, decide
from tests.tiny import seeded
from utils.arrays import Float64Array
from utils.config.trader import EnvironmentConfig

PERSISTENCE, NOISE = 0.8, 1.0
"""Of the drift from session to session, and deviation of returns around it; the drift's own is one percent."""
RULES = EnvironmentConfig(cost_bps=30.0, slippage_bps=20.0)
COST = 100 * RULES.cost_rate
GRID = np.linspace(-4.0, 4.0, 161)
SESSIONS = (3.0, 4.0, 4.5, 5.0)
"""In which the optimal trader earns the price of capital of each of four agents."""


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


def transitions(days: int, stocks: int, draws: torch.Generator) -> Batch:
    """Sessions of stocks of this kind, in accounts that are fully invested."""
    shape = 1, days, stocks
    drift, shock, noise = torch.randn(3, *shape, generator=draws)
    following = PERSISTENCE * drift + (1 - PERSISTENCE**2) ** 0.5 * shock
    invested = torch.ones(1, days)
    reward, terminated = (drift + NOISE * noise)[..., None], torch.zeros(shape, dtype=torch.bool)
    return Batch(drift[..., None], following[..., None], reward, terminated, invested, invested)


def trained(hurdle: torch.Tensor, steps: int) -> Networks:
    """Agents with these prices of capital, from random numbers."""
    draws, mask = seeded(0), torch.ones(len(hurdle), 1, dtype=torch.bool)
    networks = Networks.initialize(mask, 8, 1, 0.004, draws, scale=2**0.5)
    place = torch.zeros(len(hurdle), dtype=torch.int64)
    for _ in range(steps):
        ddpg.update(networks, hurdle, place, transitions(16, 32, draws), 1, cost=COST, gamma=1.0, tau=0.03)
    return networks


def test_agents_find_the_band_of_an_optimal_trader() -> None:
    """The fittest of a few agents earns 95% of what can be earned, and trades at about the same drifts."""
    worth = optimal_worth()
    best = earned(worth > COST, worth >= -COST)
    hurdle = best * torch.tensor(SESSIONS)
    networks, drifts = trained(hurdle, 400), torch.tensor(GRID[:, None]).float()
    found, every = [], torch.ones(len(GRID))
    for agent, price in enumerate(hurdle):
        forecasts = Forecasts(networks.target.played_scores(agent, 0, drifts)[:, None])
        decision = decide(forecasts, price * every, every, every[:, None] > 0, every, RULES)
        trades = decision.coefficient[:, 0].numpy() > 0, decision.keep[:, 0].numpy()
        found.append((earned(*trades), float(GRID[trades[0]].min()), float(GRID[trades[1]].min())))
    fittest, buys, keeps = max(found)
    assert fittest > 0.95 * best
    assert buys == pytest.approx(GRID[worth > COST].min(), abs=0.3)
    assert keeps == pytest.approx(GRID[worth >= -COST].min(), abs=0.3)
