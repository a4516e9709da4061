"""The rollout worker that processes build in tests."""

from __future__ import annotations

import os
import signal

import torch

from environment.trading_env import TradingEnvironment
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market
from training.forecasts.ridge import TrainingDays
from training.rollout_worker import RolloutWorker
from utils.errors import DataError


def build() -> RolloutWorker:
    """A worker on the market of the tests."""
    torch.set_num_threads(1)
    market = learnable_market(1)
    env = TradingEnvironment.on(market, TINY_RULES)
    return RolloutWorker(TrainingDays.of(market, env.account), env, market.splits.train)


def refuse(message: str) -> RolloutWorker:
    """A worker that cannot be built because of a user error."""
    raise DataError(message)


def die() -> RolloutWorker:
    """A worker whose process is killed while it is built."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError
