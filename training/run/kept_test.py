"""A walk-forward test or sweep in the cloud: its plan and market record beside its runs, each of which is one there."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from training.run.market import MARKET
from utils.cloud.restore import MAX_METRICS_BYTES, MAX_SMALL_BYTES, require_new_run, restore_run
from utils.cloud.settings import open_cloud
from utils.cloud.store import ObjectStore
from utils.config.settings import LATEST, from_dict, nearest, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError, ConflictError, MissingError, UnavailableError
from utils.runs.checkpoint import list_checkpoints
from utils.runs.durable import make_directory
from utils.runs.run_log import CHECKPOINTS, CONFIG, METRICS, SUMMARY, new_folder

Plan = TypeVar("Plan")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """A kind of test that has a folder of its own, with its plan and its runs."""

    name: str
    plan: str
    """File of the plan and the settings with which it began."""
    runs: str
    """Pattern of its runs' names."""

    def begin(self, config: Config, plan: Any, store: ObjectStore | None) -> Path:
        """Make the folder of a new test, with its plan. Raises ConfigError if its name is taken, here or there."""
        if store is not None and config.run is not None:
            require_new_run(store, config.run)
        contents = {"plan": asdict(plan), "settings": to_dict(config)}
        path = new_folder(config.runs_dir, config.run, self.plan, contents)
        if store is not None:
            self._claim(store, path)
        return path

    def find(self, config: Config, store: ObjectStore | None) -> Path:
        """Return the folder of the test to resume, fetched if only the store has it; ConfigError if there is none."""
        path = config.runs_dir / (
            self._newest(config.runs_dir, store) if config.resume == LATEST else str(config.resume)
        )
        if store is not None and not (path / self.plan).is_file():
            self._fetch(store, path)
        if not (path / self.plan).is_file():
            known = [plan.parent.name for plan in path.parent.glob(f"*/{self.plan}")]
            advice = f"the nearest is {nearest(path.name, known)!r}" if known else "there are none"
            raise ConfigError(f"expected a {self.name} in {path.parent}, got {path.name!r}; {advice}")
        return path

    def read(self, path: Path, plan: type[Plan]) -> tuple[Plan, Config]:
        """Return the plan of a test, and the settings of its runs. Raises ConfigError for a damaged file."""
        try:
            contents = json.loads((path / self.plan).read_text(encoding="utf-8"))
            return plan(**contents["plan"]), from_dict(contents["settings"], Config)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"expected the plan of a {self.name} in {path / self.plan}, got: {error}") from None

    def require_same(self, path: Path, began: object, asked: object, defaults: type) -> None:
        """Raise ConfigError for a part of the plan asked for that is neither a default nor as the test began."""
        for name, value in vars(began).items():
            if getattr(asked, name) not in (value, getattr(defaults, name)):
                raise ConfigError(
                    f"expected --{name.replace('_', '-')} {value}, with which {path} began, got "
                    f"{getattr(asked, name)}; leave it out, or start a new {self.name} without --resume"
                )

    def _newest(self, runs_dir: Path, store: ObjectStore | None) -> str:
        """Return the name of the test on which work was done last; of those in the store, where this disk has none."""
        tests = {
            plan.parent.name: max(
                file.stat().st_mtime_ns for file in (plan, *plan.parent.glob(f"{self.runs}/{METRICS}"))
            )
            for plan in runs_dir.glob(f"*/{self.plan}")
        }
        if tests:
            return max(tests, key=lambda name: tests[name])
        if store is not None:
            split = [(stored, name.split("/")) for name, stored in store.list("").items()]
            if kept := [(stored, path[0]) for stored, path in split if path[1:] == [self.plan]]:
                return max(kept)[1]
        where = f"{runs_dir}{'' if store is None else ' or in the cloud'}"
        raise ConfigError(f"expected a {self.name} to resume in {where}, got none; start one without --resume")

    def _claim(self, store: ObjectStore, folder: Path) -> None:
        """Store the plan of a new test; of two machines that name their tests alike, the first has the name.

        Raises ConfigError for the other one. A store out of reach is logged; the end of the test tells.
        """
        try:
            require_new_run(store, folder.name)
            store.put(f"{folder.name}/{self.plan}", (folder / self.plan).read_bytes(), if_absent=True)
        except ConflictError:
            raise ConfigError(
                f"expected a new name, got {folder.name!r}, which is in the cloud already; give --run"
            ) from None
        except UnavailableError as error:
            logger.warning("%s; the %s starts nevertheless", error, self.name)

    def _fetch(self, store: ObjectStore, folder: Path) -> None:
        """Fetch a test's market record and plan; its runs fetch themselves. ConfigError if there is no such test."""
        make_directory(folder)
        for name in (MARKET, self.plan):
            try:
                store.get(f"{folder.name}/{name}", folder / name, MAX_SMALL_BYTES)
            except MissingError:
                if name == self.plan:
                    folder.rmdir()
                    raise ConfigError(
                        f"expected a {self.name} to resume, here or in the cloud, got none of {folder.name!r}"
                    ) from None
        logger.info("restored the plan of %s from the cloud", folder)


def store_of_folds(test: str) -> ObjectStore | None:
    """Return the store of a test's folds, as the environment names it, for one fold: ending its uploads closes it."""
    store = open_cloud()
    return None if store is None else store.below(test)


def keep_files(store: ObjectStore, folder: Path, names: Collection[str]) -> None:
    """Store files of a test's folder, of those that there are. Raises CloudError if one cannot be stored."""
    for name in names:
        if (folder / name).is_file():
            store.put(f"{folder.name}/{name}", (folder / name).read_bytes())


def fetch_files(store: ObjectStore, folder: Path, names: Collection[str]) -> bool:
    """Fetch files of a folder in this order; False, and no more of them, where the store lacks one."""
    make_directory(folder)
    try:
        for name in names:
            store.get(f"{folder.name}/{name}", folder / name, MAX_METRICS_BYTES)
    except MissingError:
        return False
    return True


def is_begun(folder: Path, store: ObjectStore | None) -> bool:
    """Tell whether a fold has begun, on this disk or in the store of the folds."""
    return (folder / CONFIG).is_file() or (store is not None and bool(store.list(f"{folder.name}/")))


def fetch_fold(folder: Path, generation: int) -> None:
    """Fetch a fold that another machine trained to that generation.

    Raises ConfigError if no store is named or it has not that generation.
    """
    store = store_of_folds(folder.parent.name)
    if store is not None:
        restore_run(store, folder, (MARKET,), above=generation - 1)
    if max(list_checkpoints(folder / CHECKPOINTS), default=0) != generation or store is None:
        raise ConfigError(
            f"expected generation {generation} of {folder}, which another machine trained, got none; use a --runs-dir "
            "that all machines share, or CLOUD_PROVIDER"
        )
    store.get(f"{folder.name}/{SUMMARY}", folder / SUMMARY, MAX_SMALL_BYTES)
