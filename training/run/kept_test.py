"""A walk-forward test or sweep in the cloud: its plan and market record beside its runs, each of which is one there."""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from training.run.market import MARKET
from utils.cloud.below import Below
from utils.cloud.restore import MAX_METRICS_BYTES, MAX_SMALL_BYTES, require_new_run, restore_run
from utils.cloud.settings import open_cloud
from utils.cloud.store import ObjectStore
from utils.errors import ConfigError, ConflictError, MissingError, UnavailableError
from utils.runs.checkpoint import list_checkpoints
from utils.runs.durable import make_directory
from utils.runs.run_log import CHECKPOINTS, CONFIG, SUMMARY

logger = logging.getLogger(__name__)
PLAN = "walk_forward.json"
"""The plan and the settings of a walk-forward test, in its folder."""


def store_of_folds(test: str) -> ObjectStore | None:
    """Return the store of a test's folds, as the environment names it, for one fold: ending its uploads closes it."""
    store = open_cloud()
    return None if store is None else Below(store, test)


def claim_test(store: ObjectStore, folder: Path, plan: str = PLAN) -> None:
    """Store the plan of a new test; of two machines that name their tests alike, the first has the name.

    Raises ConfigError for the other one. A store out of reach is logged; the end of the test tells.
    """
    try:
        require_new_run(store, folder.name)
        store.put(f"{folder.name}/{plan}", (folder / plan).read_bytes(), if_absent=True)
    except ConflictError:
        raise ConfigError(
            f"expected a new name, got {folder.name!r}, which is in the cloud already; give --run"
        ) from None
    except UnavailableError as error:
        logger.warning("%s; the test starts nevertheless", error)


def newest_test(store: ObjectStore, plan: str = PLAN) -> str:
    """Return the name of the test that began last; ConfigError if the store has none."""
    split = [(stored, name.split("/")) for name, stored in store.list("").items()]
    tests = [(stored, path[0]) for stored, path in split if path[1:] == [plan]]
    if not tests:
        raise ConfigError(f"expected {plan} of one to resume, here or in the cloud, got none; start a new one")
    return max(tests)[1]


def fetch_test(store: ObjectStore, folder: Path, plan: str = PLAN) -> None:
    """Fetch a test's market record and plan; its folds fetch themselves. ConfigError if the store has no such test."""
    make_directory(folder)
    for name in (MARKET, plan):
        try:
            store.get(f"{folder.name}/{name}", folder / name, MAX_SMALL_BYTES)
        except MissingError:
            if name == plan:
                folder.rmdir()
                raise ConfigError(
                    f"expected {plan} of one to resume, here or in the cloud, got none of {folder.name!r}"
                ) from None
    logger.info("restored the plan of %s from the cloud", folder)


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
