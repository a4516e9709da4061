"""What a run sends to the cloud, and when; without a cloud nothing happens."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from training.run.market import MARKET
from utils.cloud.settings import cloud_settings, open_store
from utils.cloud.store import ObjectStore
from utils.cloud.sync import CloudSync
from utils.runs.checkpoint import list_checkpoints
from utils.runs.run_log import CHECKPOINTS, CONFIG, METRICS, REPORT, SUMMARY

logger = logging.getLogger(__name__)
RESULTS = (SUMMARY, REPORT, "fitness.png", "equity.png", "memory.png")
DRAIN_SECONDS = 1800.0
"""How long the end of a run waits for its uploads."""


def open_cloud(environ: Mapping[str, str] = os.environ) -> ObjectStore | None:
    """The store that CLOUD_PROVIDER and its companions name, or None if they are unset.

    Raises ConfigError for values that cannot work; `check` tells whether the store is there.
    """
    settings = cloud_settings(environ)
    if settings is None:
        return None
    logger.info("cloud: uploads go to %s %s", settings.provider, settings.bucket)
    return open_store(settings)


class Uploads:
    """Says at each stage of a run which of its files go to the cloud."""

    def __init__(self, sync: CloudSync | None, folder: Path) -> None:
        self._sync, self._folder = sync, folder

    def begin(self, generation: int | None = None) -> None:
        """The settings and the market's record; of a resumed run its metrics and the generation it goes on from."""
        if self._sync is None:
            return
        self._submit(CONFIG, MARKET)
        if generation is not None:
            self._submit(METRICS)
            self._sync.submit_generation(list_checkpoints(self._folder / CHECKPOINTS)[generation])

    def written(self, path: Path) -> None:
        """A checkpoint that has been read back, the metrics up to it, and the retention that it brought."""
        if self._sync is None:
            return
        self._submit(METRICS)
        self._sync.submit_generation(path)
        self._sync.prune(list_checkpoints(path.parent))

    def report(self) -> None:
        """Log how many objects wait, are stored and have failed."""
        if self._sync is not None:
            logger.info("%s", self._sync.status())

    def finish(self, safe_point: Callable[[], None]) -> None:
        """The results, and a wait until everything is stored, what failed before once more.

        Raises CloudError, naming what is missing; and what `safe_point` raises, which is called meanwhile.
        """
        if self._sync is None:
            return
        self._submit(CONFIG, MARKET, METRICS, *RESULTS)
        logger.info("%s", self._sync.drain(DRAIN_SECONDS, safe_point))

    def _submit(self, *names: str) -> None:
        assert self._sync is not None
        self._sync.submit_files(self._folder / name for name in names)


@contextlib.contextmanager
def uploading(store: ObjectStore | None, folder: Path) -> Iterator[Uploads]:
    """Upload a run's files in the background while the block runs. Its end does not wait: see `Uploads.finish`."""
    if store is None:
        yield Uploads(None, folder)
        return
    with CloudSync(store, folder) as sync:
        yield Uploads(sync, folder)
