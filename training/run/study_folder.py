"""The folder of a walk-forward test: its plan and market record beside one run per fold."""

import contextlib
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from data.record import MARKET
from data.splits import FoldPlan
from training.commands.table import WalkForwardArguments
from utils.cloud.restore import require_unused
from utils.cloud.store import ObjectStore, open_cloud
from utils.config.settings import from_saved, hint, settings_to_resume, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError, MissingError
from utils.runs.console import setup_logging
from utils.runs.durable import make_directory
from utils.runs.ending import locked, resumable
from utils.runs.find import SUMMARY, RunFiles, name_to_resume
from utils.runs.run_log import REPORT, new_folder

logger = logging.getLogger(__name__)
NOUN, PLAN = "walk-forward test", "walk_forward.json"


@dataclass(frozen=True)
class Study:
    """An open walk-forward test to which only this process writes."""

    path: Path
    plan: FoldPlan
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


@contextlib.contextmanager
def open_study(arguments: WalkForwardArguments, asked: FoldPlan, explicit: frozenset[str]) -> Iterator[Study]:
    """Open a new test, or the one to resume, for the duration of the block. A stopped one says how it continues.

    A new one that is refused leaves nothing behind. A store out of reach is logged; the test reports at its end what
    could not be stored.

    Args:
        asked: plan of a new test. Parts other than the defaults must be those that a resumed one began with.

    Raises:
        ConfigError: the name is taken, there is no such test, or it began otherwise.
    """
    began = config = arguments.settings
    store, is_new, plan = open_cloud(), config.resume is None, asked
    reached = store if store is not None and store.check() else None
    if is_new:
        contents = {"plan": asdict(asked), "settings": to_dict(config)}
        path = new_folder(config.runs_dir, config.run, PLAN, contents)
    else:
        path = _find(config, reached)
        plan, began = _read(path)
        for name, value in vars(plan).items():
            new = getattr(asked, name)
            if new and new not in (value, getattr(type(arguments), name)):
                raise ConfigError(
                    f"expected --{name.replace('_', '-')} {value}, with which {path} began, got {new}; leave it out, "
                    f"or start a new {NOUN} without --resume"
                )
        config = settings_to_resume(began, config, explicit)
        if config.generations != began.generations:
            raise ConfigError(
                f"expected generations = {began.generations}, with which {path} began, got {config.generations}; "
                "leave it out: all its runs are trained for as many, so that they compare"
            )
    with contextlib.ExitStack() as stack:
        stack.enter_context(resumable(path, began, config, partial(_saved, path)))
        stack.enter_context(locked(path, is_new=is_new))
        if is_new and reached is not None:
            require_unused(reached, path.name)
        setup_logging(path, verbose=config.verbose)
        yield Study(path, plan, config, store, reached is not None)


def _saved(path: Path) -> str:
    """Return what is saved, as the beginning of a sentence."""
    count = len(list(path.glob(f"fold-*/{SUMMARY}")))
    return f"{count} of its training runs {'is' if count == 1 else 'are'} complete and others go on where they were"


def _find(config: Config, store: ObjectStore | None) -> Path:
    """Return the folder of the test to resume, fetched if only the store has it; ConfigError if there is none."""
    name = name_to_resume(str(config.resume), config.runs_dir, store, RunFiles(NOUN, PLAN, REPORT))
    path = config.runs_dir / name
    if (path / PLAN).is_file():
        return path
    if store is not None:
        _fetch(store, path, MARKET)  # first, so that a plan on disk implies the market of its runs
        if _fetch(store, path, PLAN):
            logger.info("restored the plan of %s from the cloud", path)
            return path
        path.rmdir()
    known = [plan.parent.name for plan in path.parent.glob(f"*/{PLAN}")]
    where = f"{path.parent}{'' if store is None else ' or in the cloud'}"
    raise ConfigError(f"expected a {NOUN} to resume in {where}, got {name!r}{hint(name, known)}")


def _read(path: Path) -> tuple[FoldPlan, Config]:
    """Return the plan of a test, and the settings of its runs. Raises ConfigError for a damaged file."""
    try:
        contents = json.loads((path / PLAN).read_text(encoding="utf-8"))
        return FoldPlan(**contents["plan"]), from_saved(contents["settings"], Config)
    except (ConfigError, OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"expected the plan of a {NOUN} in {path / PLAN}, got: {error}") from None


def _fetch(store: ObjectStore, folder: Path, name: str) -> bool:
    """Fetch a file of a folder; False where the store lacks it."""
    make_directory(folder)
    with contextlib.suppress(MissingError):
        store.get(f"{folder.name}/{name}", folder / name)
        return True
    return False
