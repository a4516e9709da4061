"""A run at Weights & Biases or MLflow, by their own clients: its settings, metrics, page and champion.

A tracker listens only: where it fails, a warning says so once, and the training goes on without it.
"""

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from utils.config.settings import read_json
from utils.errors import ConfigError, first_line

logger = logging.getLogger(__name__)
TRACKED = "tracked.json"
"""The identity of the run at each client, so that a resumed run goes on there."""
_PROJECT, _BATCH = "erl-trader", 100


class _Wandb:
    def __init__(self, path: Path, identity: str | None, settings: Mapping[str, Any]) -> None:
        self._wandb, self.identity = import_module("wandb"), identity or uuid.uuid4().hex
        quiet = self._wandb.Settings(silent=True, console="off")
        self._run = self._wandb.init(
            project=_PROJECT,
            name=path.name,
            id=self.identity,
            dir=str(path),
            resume="allow",
            config=dict(settings),
            settings=quiet,
        )

    def log(self, numbers: Mapping[str, float], generation: int) -> None:
        self._run.log(dict(numbers), step=generation)

    def keep(self, files: Sequence[Path]) -> None:
        artifact = self._wandb.Artifact(f"results-{self.identity}", type="results")
        for file in files:
            artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def close(self, is_complete: bool) -> None:
        self._run.finish(exit_code=0 if is_complete else 1)


class _MLflow:
    def __init__(self, path: Path, identity: str | None, settings: Mapping[str, Any]) -> None:
        self._entities = import_module("mlflow.entities")
        self._client = import_module("mlflow").MlflowClient()
        if identity is not None:
            self.identity = identity
            self._client.update_run(identity, status="RUNNING")
            return
        known = self._client.get_experiment_by_name(_PROJECT)
        experiment = self._client.create_experiment(_PROJECT) if known is None else known.experiment_id
        self.identity = self._client.create_run(experiment, run_name=path.name).info.run_id
        params = [self._entities.Param(name, str(value)) for name, value in settings.items()]
        for first in range(0, len(params), _BATCH):
            self._client.log_batch(self.identity, params=params[first : first + _BATCH])

    def log(self, numbers: Mapping[str, float], generation: int) -> None:
        now = int(1000 * time.time())
        metrics = [self._entities.Metric(name, float(value), now, generation) for name, value in numbers.items()]
        self._client.log_batch(self.identity, metrics=metrics)

    def keep(self, files: Sequence[Path]) -> None:
        for file in files:
            self._client.log_artifact(self.identity, str(file))

    def close(self, is_complete: bool) -> None:
        self._client.set_terminated(self.identity, "FINISHED" if is_complete else "KILLED")


_CLIENTS: dict[str, type[_Wandb] | type[_MLflow]] = {"wandb": _Wandb, "mlflow": _MLflow}


class Tracker:
    """Tells a client of a run, as long as that works."""

    def __init__(self, client: str, path: Path, settings: Mapping[str, Any]) -> None:
        """Begin the run at the client, or go on with that of `path`; nothing for "none".

        Raises ConfigError where the client is not installed.
        """
        self._client, self._path, self._is_complete = client, path, False
        self._run: _Wandb | _MLflow | None = None
        if client in _CLIENTS:
            if find_spec(client) is None:
                advice = "install it by: pip install -r requirements-track.txt"
                raise ConfigError(f"expected the client of --log-to {client}, got none; {advice}")
            with self._while_it_works():
                file = path / TRACKED
                known = read_json(file) if file.exists() else {}
                run = _CLIENTS[client](path, known.get(client), settings)
                file.write_text(json.dumps(known | {client: run.identity}) + "\n", encoding="utf-8")
                self._run = run

    def log(self, numbers: Mapping[str, float], generation: int) -> None:
        """Log the numbers of a generation."""
        if self._run is not None:
            with self._while_it_works():
                self._run.log(numbers, generation)

    def keep(self, names: Sequence[str], save: Callable[[Path], None]) -> None:
        """Keep files of a complete run and its champion, which a function saves."""
        self._is_complete = True
        if self._run is not None:
            with TemporaryDirectory() as folder, self._while_it_works():
                champion = Path(folder) / "champion.safetensors"
                save(champion)
                self._run.keep([*(self._path / name for name in names), champion])

    def close(self) -> None:
        """End the run at the client, as a complete one if its files were kept."""
        if self._run is not None:
            with self._while_it_works():
                self._run.close(self._is_complete)

    @contextmanager
    def _while_it_works(self) -> Iterator[None]:
        """Say of a client that fails in the block that it does, and tell it nothing more."""
        try:
            yield
        except Exception as error:  # whatever a client raises
            self._run = None
            told = f"{type(error).__name__}: {first_line(error)}"
            logger.warning("--log-to %s failed (%s); the run goes on without it", self._client, told)
