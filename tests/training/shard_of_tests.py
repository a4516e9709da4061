"""A shard as the workers of a cluster make it in tests."""

from __future__ import annotations

import torch

from environment.portfolio import Portfolio
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market
from training.forecasts.ridge import TrainingDays
from training.shards.shard import Shard
from utils.errors import DataError


def build() -> Shard:
    """A shard on the market of the tests of shards."""
    torch.set_num_threads(1)
    market = learnable_market(1)
    env = Portfolio.on(market, TINY_RULES)
    return Shard(TrainingDays.of(market, env), env, market.splits.train)


def refuse(message: str) -> Shard:
    """A shard that no machine makes, for a mistake of the user's."""
    raise DataError(message)
