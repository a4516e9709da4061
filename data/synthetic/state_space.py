"""Linear estimation of a latent state from the returns that it foretells."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from data.synthetic.law import Float64Array


@dataclass(frozen=True)
class StateSpace:
    """A latent state x and the returns z that it foretells, all of one stock.

    x[t] = phi x[t-1] + shock, z[t] = loading x[t-1] + noise; shock and noise of a day may be correlated.
    """

    log_persistence: float
    loading: float
    shock_variance: float
    noise_variance: float
    covariance: float = 0.0

    @property
    def persistence(self) -> float:
        """The share phi of the state that is left a day later."""
        return math.exp(self.log_persistence)

    @property
    def prediction_variance(self) -> float:
        """Steady-state variance P of the error in the state, given all returns so far.

        With h the loading, q, r and c the variances and covariance of shock and noise, it solves the Riccati equation
        P = phi^2 P + q - (phi h P + c)^2 / (h^2 P + r), which is
        h^2 P^2 + (r (1 - phi^2) - q h^2 + 2 phi h c) P - (q r - c^2) = 0.
        """
        forgotten = -math.expm1(2.0 * self.log_persistence)  # 1 - phi^2, exact where phi is nearly 1
        square = self.loading**2
        slope = self.noise_variance * forgotten - self.shock_variance * square
        slope += 2.0 * self.persistence * self.loading * self.covariance
        constant = max(0.0, self.shock_variance * self.noise_variance - self.covariance**2)
        root = math.hypot(slope, 2.0 * math.sqrt(square * constant))
        # Of the two forms of the positive root, the one that subtracts no near-equal numbers.
        if slope < 0:
            return (root - slope) / (2.0 * square)
        return 2.0 * constant / (root + slope) if constant else 0.0

    @property
    def gain(self) -> float:
        """Change of the estimate of a day's state by a surprise of 1 on that day."""
        variance = self.prediction_variance
        explained = self.persistence * self.loading * variance + self.covariance
        return explained / (self.loading**2 * variance + self.noise_variance)

    def filter(self, returns: Float64Array) -> Float64Array:
        """Estimate the state at each close from (days, stocks) returns up to it, by the steady-state Kalman filter.

        A day without a return (NaN) only predicts. Source: Kalman (1960), "A new approach to linear filtering and
        prediction problems".
        """
        phi, gain = self.persistence, self.gain
        state = np.zeros(returns.shape)
        for day in range(1, len(returns)):
            surprise = returns[day] - self.loading * state[day - 1]
            state[day] = phi * state[day - 1] + gain * np.where(np.isfinite(surprise), surprise, 0.0)
        return state
