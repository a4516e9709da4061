"""The job of `benchmarks.cluster`, in a module of its own because other processes cannot import `__main__`."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from benchmarks.learning.markets import Budget, fit
from benchmarks.learning.study import study_config
from benchmarks.learning.unseen import training_market


def train(seed: int, generations: int) -> str:
    """Train a population; return the SHA-256 of its champion's weights and networks (hex)."""
    config = replace(study_config([]), seed=seed)
    trained = fit(config, training_market(config)[0], Budget(generations=generations))
    champion, found = trained.trainer.champion, hashlib.sha256()
    networks = {} if champion.networks is None else champion.networks.tensors
    for tensor in (champion.traders.weights, *networks.values()):
        found.update(np.ascontiguousarray(tensor).tobytes())
    return found.hexdigest()
