"""The shards of a run that the flags --shards and --cluster ask for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from data.record import MarketRecord, pin_market
from environment.portfolio import Portfolio
from training.forecasts.ridge import TrainingDays
from training.run.market import load_market, read_market_record
from training.shards.remote import RemoteShards
from training.shards.shard import Shard, Shards
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.jobs.cluster import LOCAL, connect
from utils.memory.guard import keep_freed_memory
from utils.runs.devices import choose_threads


@contextlib.contextmanager
def open_shards(
    shards: int,
    cluster: str | None,
    config: Config,
    path: Path,
    device: torch.device,
    safe_point: Callable[[], None],
) -> Iterator[Shards | None]:
    """Give so many shards on a cluster while the block runs; None where one in this process is enough.

    Args:
        cluster: address of a cluster, see `utils.jobs.cluster.connect`; None: with several shards a new one here.
        path: folder of the run, with the record of its market.

    Raises:
        ConfigError: there are more shards than agents, or the cluster cannot be used.
    """
    if shards > config.evolution.population_size:
        raise ConfigError(f"expected --shards of at most {config.evolution.population_size} agents, got {shards}")
    if shards == 1 and cluster is None:
        yield None
        return
    files = [] if config.data is None else [config.data.absolute()]
    # The record says which stocks may be bought, so that the other machines need no list of them.
    config = dataclasses.replace(config, data=files[0] if files else None, investable=None)
    build = partial(build_shard, config, read_market_record(path), device.type)
    with (
        connect(cluster or LOCAL, files=files) as there,
        RemoteShards(there, build, shards, safe_point, gpus=int(device.type == "cuda"), files=files) as opened,
    ):
        yield opened


def build_shard(config: Config, record: MarketRecord, device: str) -> Shard:
    """Make a shard of a run on the machine that this is called on.

    Raises:
        DataError: the data here are not those of the run.
    """
    keep_freed_memory()
    choose_threads(config.threads)
    market = pin_market(load_market(config)[0], record)
    env = Portfolio.on(market, config.env, device)
    return Shard(TrainingDays.of(market, env), env, market.splits.train)
