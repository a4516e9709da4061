"""A policy as a class."""

from typing import Any

import numpy as np


class Buyer:
    """Holds a third of the equity in the first stock with a bar, and keeps what else it has."""

    def act(self, observation: dict[str, Any], info: dict[str, Any]) -> np.ndarray[Any, Any]:
        action = np.full(len(info["has_bar"]), np.nan, np.float32)
        action[int(info["has_bar"].argmax())] = 1 / 3
        return action
