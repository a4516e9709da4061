"""Shards on a Ray cluster: killed, hung and lost ones cost a generation nothing but time."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from models.networks import Networks
from tests.tiny import learnable_market, tiny_trainer
from tests.tiny_run import frame, parameters, records, run, unjudged
from tests.training import shard_of_tests as made
from training.erl_trainer import ERLTrainer
from training.run import shards as open_module
from training.shards.remote import RemoteShards
from utils.config.trader import EvolutionConfig
from utils.errors import ClusterError, DataError, StopRequested
from utils.jobs.cluster import Cluster, connect, import_ray

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -r requirements-cluster.txt"
)
SECONDS = 3.0
"""Within which a worker of these tests answers."""


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """A cluster of two machines with a processor each; it leaves no process."""
    before = processes()
    import_ray()
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    heartbeat = {"health_check_period_ms": 500, "health_check_timeout_ms": 5000, "health_check_failure_threshold": 3}
    found: Any = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": heartbeat},
    )
    try:
        yield found
    finally:
        found.shutdown()
    _, alive = psutil.wait_procs(processes() - before, timeout=10)
    assert not alive


@pytest.fixture(scope="module")
def second(machines: Any) -> Any:
    """One of the machines."""
    return machines.add_node(num_cpus=1)


@pytest.fixture(scope="module")
def cluster(machines: Any, second: Any) -> Iterator[Cluster]:
    """A connection to both."""
    with connect(machines.address) as found:
        assert found.nodes == 2
        yield found


def processes() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def workers() -> list[psutil.Process]:
    """The processes of shards."""
    return [process for process in processes() if process.name().startswith("ray::Worker")]


def trainer() -> ERLTrainer:
    return tiny_trainer(learnable_market(1), evolution=EvolutionConfig(population_size=6))


def networks_of(trained: ERLTrainer) -> Networks:
    found = trained.population.networks
    assert found is not None
    return found


def lived_through(trained: ERLTrainer, generations: int) -> tuple[list[str], list[bytes]]:
    """The records up to a generation, and the tensors after it."""
    records = [
        json.dumps({key: value for key, value in record.items() if key not in ("seconds", "memory")})
        for record in trained.run(generations)
    ]
    tensors = [
        trained.genes,
        trained.cash_value.weights,
        trained.champion.traders.weights,
        *trained.replay.data.values(),
        *networks_of(trained).tensors().values(),
    ]
    return records, [tensor.numpy().tobytes() for tensor in tensors]


def remote(cluster: Cluster, shards: int, safe_point: Callable[[], None] = lambda: None) -> RemoteShards:
    return RemoteShards(cluster, made.build, shards, safe_point, least_seconds=SECONDS)


def test_workers_give_what_this_process_gives_and_another_number_goes_on(cluster: Cluster) -> None:
    """Four shards on two workers, then one."""
    whole = lived_through(trainer(), 3)
    first, second = trainer(), trainer()
    with remote(cluster, 4) as first.shards:
        records, _ = lived_through(first, 2)
        assert len(workers()) == 2
    second.load_state_dict(first.state_dict())
    with remote(cluster, 1) as second.shards:
        later, tensors = lived_through(second, 3)
    assert (records + later, tensors) == whole


def test_a_fault_in_any_phase_changes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed while it plays, before the elites' lives are asked for and between generations; and hung."""
    whole = lived_through(trainer(), 5)
    struck: list[str] = []
    due: list[str] = []

    def strike(phase: str, blow: str = "kill") -> None:
        if due == [phase] and workers():
            getattr(workers()[0], blow)()
            struck.append(due.pop())

    trained = trainer()
    choose = trained.choose
    monkeypatch.setattr(trained, "choose", lambda fitness: [strike("lived"), choose(fitness)][1])
    with remote(cluster, 1, lambda: strike("play")) as trained.shards:
        records, _ = lived_through(trained, 1)
        for generation, phase in enumerate(("play", "lived", "idle", "hung"), start=2):
            due.append(phase)
            strike("idle")
            strike("hung", "suspend")
            records += lived_through(trained, generation)[0]
    tensors = lived_through(trained, 5)[1]
    assert struck == ["play", "lived", "idle", "hung"]
    assert sum("played again, failure 1 of 3" in record.message for record in caplog.records) == 4
    assert (records, tensors) == whole
    _, alive = psutil.wait_procs(workers(), timeout=10)
    assert not alive, "a hung worker is ended, too"


def test_three_failures_in_a_row_end_the_run(cluster: Cluster) -> None:
    trained = trainer()

    def lose() -> None:
        raise TimeoutError("no answer")

    three = pytest.raises(ClusterError, match=r"3 failures .* no answer")
    with remote(cluster, 1, lose) as trained.shards, three as caught:
        trained.run_generation()
    assert caught.value.exit_code == 1 and caught.value.is_resumable


def test_a_mistake_of_the_users_is_no_failure(cluster: Cluster) -> None:
    trained, refused = trainer(), partial(made.refuse, "expected other data")
    shards = RemoteShards(cluster, refused, 1, lambda: None)
    with shards as trained.shards, pytest.raises(DataError, match="other data"):
        trained.run_generation()


def test_it_stops_at_once(cluster: Cluster) -> None:
    """While a worker is still being built."""
    trained = trainer()

    def stop() -> None:
        raise StopRequested(15, 0.0)

    with remote(cluster, 1, stop) as trained.shards, pytest.raises(StopRequested):
        trained.run_generation()


def test_a_whole_run_of_the_program(cluster: Cluster, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a data file of which some tickers may be bought, resumed with another number of shards."""
    prices, listed = tiny.parent / "prices.parquet", tiny.parent / "listed.txt"
    frame(500, 5).to_parquet(prices)
    listed.write_text("T1\nT3\nT4\n")
    monkeypatch.setattr(open_module, "connect", lambda *_, **__: contextlib.nullcontext(cluster))
    data = ("--data", str(prices), "--investable", str(listed))
    with unjudged():
        assert run(tiny, "--run", "whole", *data) == 0
        assert run(tiny, "--run", "apart", *data, "--generations", "1", "--shards", "2") == 0
        assert run(tiny, "--resume", "apart", "--generations", "2", "--cluster", "auto") == 0
    assert records(tiny, "apart")[1:] == records(tiny, "whole")[1:]
    assert parameters(tiny, "apart", 2) == parameters(tiny, "whole", 2)


def test_a_lost_machine_is_done_without(machines: Any, second: Any, cluster: Cluster) -> None:
    """Of two machines with a shard each one goes without a word; the other plays both. The last test: it stays lost."""
    whole, trained = lived_through(trainer(), 3), trainer()
    with remote(cluster, 2) as trained.shards:
        records, _ = lived_through(trained, 1)
        assert len(workers()) == 2
        machines.remove_node(second, allow_graceful=False)
        later, tensors = lived_through(trained, 3)
        assert len(workers()) == 1
    assert (records + later, tensors) == whole
