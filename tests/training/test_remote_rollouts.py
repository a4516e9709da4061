"""A population on workers: killed, hung and lost ones cost a generation nothing but time."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from models.networks import Networks
from tests.tiny import learnable_market, tiny_trainer
from tests.tiny_run import frame, parameters, records, run, unjudged
from tests.training import worker_of_tests as made
from training import rollout_worker
from training.erl_trainer import ERLTrainer
from training.rollout_worker import PopulationRollouts, play_on_worker
from utils.config.trader import EvolutionConfig
from utils.errors import ClusterError, ConfigError, DataError, StopRequested
from utils.jobs import executor as executors
from utils.jobs.cluster import Cluster, ClusterWorkers, connect, import_ray
from utils.jobs.pool import Pool
from utils.jobs.processes import Processes

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install -r requirements-cluster.txt"
)


@pytest.fixture(autouse=True)
def soon_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of these tests answers within seconds."""
    monkeypatch.setattr(rollout_worker, "LEAST_SECONDS", 6.0)
    monkeypatch.setattr(rollout_worker, "LATE", 2.0)


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """A cluster of two machines with a CPU each; it leaves no process."""
    resource_tracker.ensure_running()
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
    _, alive = psutil.wait_procs(processes() - before, timeout=60)
    assert not alive


@pytest.fixture(scope="module")
def second(machines: Any) -> Any:
    """One of the machines."""
    return machines.add_node(num_cpus=1)


@pytest.fixture(scope="module")
def cluster(machines: Any, second: Any) -> Iterator[Cluster]:
    """A connection to both."""
    with connect(machines.address) as found:
        assert found.count("CPU") == 2
        yield found


def processes() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def workers() -> list[psutil.Process]:
    """The processes of workers."""
    return [process for process in processes() if process.name().startswith("ray::ClusterWorker")]


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
        trained.population.genes,
        trained.population.cash_value.weights,
        trained.champion.traders.weights,
        *trained.replay.data.values(),
        *networks_of(trained).tensors.values(),
    ]
    return records, [tensor.detach().numpy().tobytes() for tensor in tensors]


@cache
def whole(generations: int) -> tuple[list[str], list[bytes]]:
    """What a trainer of this process lives through, which workers must not change."""
    return lived_through(trainer(), generations)


@contextlib.contextmanager
def played_by(
    executor: Pool[Any], trained: ERLTrainer, groups: int, build: Callable[[], Any] = made.build
) -> Iterator[None]:
    """Have a trainer's population played by workers."""
    with executor:
        trained.rollouts = PopulationRollouts(partial(play_on_worker, pickle.dumps(build)), executor, groups)
        yield


def on(cluster: Cluster, most: int, safe_point: Callable[[], None] = lambda: None) -> ClusterWorkers:
    return ClusterWorkers(cluster, most, None, safe_point)


def test_workers_give_what_this_process_gives_and_another_number_goes_on(cluster: Cluster) -> None:
    """Four groups on two machines, then one in a process of this machine."""
    first, second = trainer(), trainer()
    with played_by(on(cluster, 4), first, 4):
        records, _ = lived_through(first, 2)
        assert len(workers()) == 2
    second.load_state_dict(first.state_dict())
    with played_by(Processes(2, None, lambda: None), second, 1):
        later, tensors = lived_through(second, 3)
    assert (records + later, tensors) == whole(3)


def test_a_fault_in_any_phase_changes_nothing(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed while it plays and between generations; and hung."""
    struck: list[str] = []
    due: list[str] = []

    def strike(phase: str, blow: str = "kill") -> None:
        if due == [phase] and workers():
            getattr(workers()[0], blow)()
            struck.append(due.pop())

    trained = trainer()
    with played_by(on(cluster, 1, lambda: strike("play")), trained, 1):
        records, _ = lived_through(trained, 2)
        for generation, phase in enumerate(("hung", "play", "idle"), start=3):
            while len(workers()) > 1:  # one that was killed is not gone yet
                time.sleep(0.05)
            due.append(phase)
            strike("idle")
            strike("hung", "suspend")
            records += lived_through(trained, generation)[0]
    tensors = lived_through(trained, 5)[1]
    assert struck == ["hung", "play", "idle"]
    lost = [record.getMessage() for record in caplog.records if "worker was lost" in record.getMessage()]
    assert sum("ActorDiedError" in message for message in lost) == 2
    assert any("no answer" in message for message in lost), "a busy machine's new worker may be late as well"
    assert (records, tensors) == whole(5)
    _, alive = psutil.wait_procs(workers(), timeout=60)
    assert not alive, "a hung worker is killed, too"


def test_four_losses_of_a_group_end_the_run(cluster: Cluster) -> None:
    trained = trainer()
    lost = pytest.raises(ClusterError, match=r"got 4 that were lost")
    with played_by(on(cluster, 1), trained, 1, made.die), lost as caught:
        trained.run_generation()
    assert caught.value.exit_code == 1 and caught.value.is_resumable


def test_a_user_error_is_no_loss(cluster: Cluster) -> None:
    trained, refused = trainer(), partial(made.refuse, "expected other data")
    with played_by(on(cluster, 1), trained, 1, refused), pytest.raises(DataError, match="other data"):
        trained.run_generation()


def test_it_stops_at_once(cluster: Cluster) -> None:
    """While a worker is starting."""
    trained = trainer()

    def stop() -> None:
        raise StopRequested(15, 0.0)

    with played_by(on(cluster, 1, stop), trained, 1), pytest.raises(StopRequested):
        trained.run_generation()


def test_a_node_that_joined_later_is_checked(cluster: Cluster) -> None:
    trained, other = trainer(), {**cluster.facts, "source code": "other"}
    with (
        played_by(on(replace(cluster, facts=other), 1), trained, 1),
        pytest.raises(ConfigError, match="expected source code other on all nodes"),
    ):
        trained.run_generation()


def test_a_whole_run_of_the_program(cluster: Cluster, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a data file of which some tickers may be bought, in processes, resumed on a cluster."""
    prices, listed = tiny.parent / "prices.parquet", tiny.parent / "listed.txt"
    frame(500, 5).to_parquet(prices)
    listed.write_text("T1\nT3\nT4\n")
    monkeypatch.setattr(executors, "connect", lambda _, __, files, ___: contextlib.nullcontext(cluster))
    data = ("--data", str(prices), "--investable", str(listed))
    with unjudged():
        assert run(tiny, "--run", "whole", *data) == 0
        assert run(tiny, "--run", "apart", *data, "--generations", "1", "--shards", "2") == 0
        assert run(tiny, "--resume", "apart", "--generations", "2", "--cluster", "auto") == 0
    assert records(tiny, "apart")[1:] == records(tiny, "whole")[1:]
    assert parameters(tiny, "apart", 2) == parameters(tiny, "whole", 2)


def test_a_lost_machine_is_done_without(machines: Any, second: Any, cluster: Cluster) -> None:
    """One of two machines disappears; the other plays both groups. The last test: it stays lost."""
    trained = trainer()
    with played_by(on(cluster, 2), trained, 2):
        records, _ = lived_through(trained, 1)
        assert len(workers()) == 2
        machines.remove_node(second, allow_graceful=False)
        later, tensors = lived_through(trained, 3)
        assert len(workers()) == 1
    assert (records + later, tensors) == whole(3)
