"""The folder of a walk-forward test or sweep: its plan and market record beside one run per fold or trial."""

import contextlib
import json
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from data.record import MARKET
from training.commands.table import StudyArguments
from utils.cloud.restore import require_unused, restore_run
from utils.cloud.store import ObjectStore, open_cloud
from utils.config.settings import from_saved, hint, settings_to_resume, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError, MissingError
from utils.jobs.cluster import import_ray
from utils.jobs.executor import LOGS, Executor, open_executor
from utils.jobs.job import Finished, Job
from utils.runs.checkpoint import list_checkpoints
from utils.runs.console import setup_logging
from utils.runs.durable import make_directory
from utils.runs.ending import locked, resumable
from utils.runs.find import SUMMARY, RunFiles, name_to_resume
from utils.runs.run_log import CHECKPOINTS, new_folder

Plan = TypeVar("Plan")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Study(Generic[Plan]):
    """An open study to which only this process writes."""

    path: Path
    plan: Plan
    config: Config
    """The settings that hold."""
    store: ObjectStore | None
    is_reached: bool
    """The store answered at the start."""

    def keep(self, *names: str) -> None:
        """Store the files of its folder that exist. Raises CloudError if one cannot be stored."""
        for name in names:
            if self.store is not None and (self.path / name).is_file():
                self.store.put(f"{self.path.name}/{name}", (self.path / name).read_bytes())

    def executor(self, arguments: StudyArguments) -> AbstractContextManager[Executor]:
        """Open the executor of its runs; the nodes of a cluster must share its folder if no store keeps the runs."""
        files = [file for file in (self.config.data, self.config.investable, self.config.features) if file is not None]
        shared = [] if self.store else self.path.glob("*.json")
        gpus = int(self.config.device != "cpu")
        return open_executor(
            arguments.jobs, arguments.cluster, logs=self.path / LOGS, files=[*files, *shared], gpus=gpus
        )

    def run(self, executor: Executor, jobs: Sequence[Job]) -> Iterator[Finished]:
        """Run its jobs and yield their outcomes; they are logged to its folder."""
        return executor.run(jobs, partial(setup_logging, self.path, verbose=self.config.verbose))


@dataclass(frozen=True)
class StudyKind:
    """A kind of study: many training runs under one plan, in one folder."""

    name: str
    plan: str
    """File of the plan and the settings with which it began."""
    runs: str
    """Pattern of its runs' names."""
    end: str
    """File that ends it."""

    @contextlib.contextmanager
    def open(self, arguments: StudyArguments, asked: Plan, explicit: frozenset[str]) -> Iterator[Study[Plan]]:
        """Open a new study, or the one to resume, for the duration of the block. A stopped one says how it continues.

        A new one that is refused leaves nothing behind. A store out of reach is logged; the study reports at its end
        what could not be stored.

        Args:
            asked: plan of a new study. Parts other than the defaults must be those that a resumed one began with.

        Raises:
            ConfigError: the name is taken, there is no such study, or it began otherwise.
        """
        if arguments.cluster is not None:
            import_ray()  # a missing package is reported before anything begins
        began = config = arguments.settings
        store, is_new, plan = open_cloud(), config.resume is None, asked
        reached = store if store is not None and store.check() else None
        if is_new:
            contents = {"plan": asdict(asked), "settings": to_dict(config)}  # type: ignore[call-overload]
            path = new_folder(config.runs_dir, config.run, self.plan, contents)
        else:
            path = self._find(config, reached)
            plan, began = self.read(path, type(asked))
            for name, value in vars(plan).items():
                new = getattr(asked, name)
                if new and new not in (value, getattr(type(arguments), name)):
                    raise ConfigError(
                        f"expected --{name.replace('_', '-')} {value}, with which {path} began, got {new}; leave it "
                        f"out, or start a new {self.name} without --resume"
                    )
            config = settings_to_resume(began, config, explicit)
            if config.generations != began.generations:
                raise ConfigError(
                    f"expected generations = {began.generations}, with which {path} began, got {config.generations}; "
                    "leave it out: all its runs are trained for as many, so that they compare"
                )
        with contextlib.ExitStack() as stack:
            stack.enter_context(resumable(path, began, config, partial(self._saved, path)))
            stack.enter_context(locked(path, is_new=is_new))
            if is_new and reached is not None:
                require_unused(reached, path.name)
            setup_logging(path, verbose=config.verbose)
            yield Study(path, plan, config, store, reached is not None)

    def _saved(self, path: Path) -> str:
        """Return what is saved, as the beginning of a sentence."""
        count = len(list(path.glob(f"{self.runs}/{SUMMARY}")))
        return f"{count} of its training runs {'is' if count == 1 else 'are'} complete and others go on where they were"

    def _find(self, config: Config, store: ObjectStore | None) -> Path:
        """Return the folder of the study to resume, fetched if only the store has it; ConfigError if there is none."""
        name = name_to_resume(str(config.resume), config.runs_dir, store, RunFiles(self.name, self.plan, self.end))
        path = config.runs_dir / name
        if (path / self.plan).is_file():
            return path
        if store is not None:
            fetch_files(store, path, (MARKET,))  # first, so that a plan on disk implies the market of its runs
            if fetch_files(store, path, (self.plan,)):
                logger.info("restored the plan of %s from the cloud", path)
                return path
            path.rmdir()
        known = [plan.parent.name for plan in path.parent.glob(f"*/{self.plan}")]
        where = f"{path.parent}{'' if store is None else ' or in the cloud'}"
        raise ConfigError(f"expected a {self.name} to resume in {where}, got {name!r}{hint(name, known)}")

    def read(self, path: Path, plan: type[Plan]) -> tuple[Plan, Config]:
        """Return the plan of a study, and the settings of its runs. Raises ConfigError for a damaged file."""
        try:
            contents = json.loads((path / self.plan).read_text(encoding="utf-8"))
            return plan(**contents["plan"]), from_saved(contents["settings"], Config)
        except (ConfigError, OSError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"expected the plan of a {self.name} in {path / self.plan}, got: {error}") from None


def fetch_files(store: ObjectStore, folder: Path, names: Collection[str]) -> bool:
    """Fetch files of a folder in this order; False at the first one that the store lacks."""
    make_directory(folder)
    try:
        for name in names:
            store.get(f"{folder.name}/{name}", folder / name)
    except MissingError:
        return False
    return True


def fetch_fold(folder: Path, generation: int) -> None:
    """Fetch a fold that another machine trained to that generation.

    Raises ConfigError if no store is named or it has not that generation.
    """
    store = open_cloud(below=folder.parent.name)
    if store is not None:
        restore_run(store, folder, above=generation - 1)
    if max(list_checkpoints(folder / CHECKPOINTS), default=0) != generation or store is None:
        raise ConfigError(
            f"expected generation {generation} of {folder}, which another machine trained, got none; use a --runs-dir "
            "that all machines share, or CLOUD_PROVIDER"
        )
    store.get(f"{folder.name}/{SUMMARY}", folder / SUMMARY)
