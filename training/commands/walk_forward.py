"""`python main.py walk-forward`: train, validate and test in turn, and one equity curve over all the test days."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from data.record import MARKET
from data.splits import FoldPlan, Splits, make_folds
from models.evidence import Evidence
from training.commands.evaluate import play_run
from training.commands.table import WalkForwardArguments
from training.evaluation.baselines import CHAMPION
from training.evaluation.compared import PlayedPolicies
from training.evaluation.export import FILES, log_evaluation, record_look, write_evaluation
from training.evaluation.judge import Evaluation
from training.evaluation.verdict import FoldResult
from training.run.market import load_market, record_or_pin_market
from training.run.saved import open_saved_run
from training.train import train_of_study
from utils.cloud.restore import require_unused
from utils.cloud.store import ObjectStore, open_cloud
from utils.config.cli import command_line
from utils.config.settings import changed_values, from_saved, hint, read_json, settings_to_resume, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError, MissingError
from utils.jobs import LOGS, Job, open_executor, require_all
from utils.runs.console import setup_logging
from utils.runs.devices import choose_device, choose_threads
from utils.runs.durable import make_directory
from utils.runs.ending import locked, resumable
from utils.runs.find import PLAN, SUMMARY, RunFiles, name_to_resume
from utils.runs.run_log import REPORT, new_folder
from utils.tables import many

logger = logging.getLogger(__name__)
NOUN = "walk-forward test"
_FRACTIONS = ("split.train_fraction", "split.validation_fraction", "split.holdout_fraction")


@dataclasses.dataclass(frozen=True)
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


def run_walk_forward(arguments: WalkForwardArguments, explicit: frozenset[str]) -> Evaluation:
    """Train the folds that are not trained yet, play each champion on its test days, and report on all as one.

    Folds are independent jobs: results are the same, bit for bit, wherever and in whatever order they run.

    Args:
        explicit: dotted names of the settings that the user gave, which a resumed test applies or refuses.

    Raises:
        ConfigError, DataError: the test cannot be resumed, or the data are too few or have changed.
        JobsFailed: a fold ended with an error; the others are finished.
        StopRequested, MemoryLimitReached, CheckpointError: as `train`; finished folds are kept.
        CloudError: not all of the test could be stored.
    """
    asked = FoldPlan(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(FoldPlan)})
    with open_study(arguments, asked, explicit) as study:
        path, config = study.path, study.config
        choose_threads(config.threads)
        if ignored := changed_values(Config(), config).keys() & explicit & {*_FRACTIONS}:
            told = "folds divide the days, by --validation-days and others; without effect: %s"
            logger.warning(told, ", ".join(sorted(ignored)))
        splits = _remembered_folds(path, study.plan, config)
        if study.is_reached:
            study.keep(PLAN, MARKET)
        _train_folds(study, splits, explicit, arguments.jobs)
        evaluation = record_look(_test(path, splits, config), config.runs_dir)
        log_evaluation(evaluation)
        write_evaluation(evaluation, path)
        study.keep(PLAN, MARKET, *FILES)
    return evaluation


def _remembered_folds(path: Path, plan: FoldPlan, config: Config) -> list[Splits]:
    """Return the folds of the data as of the start of the test."""
    market = load_market(config)
    is_begun = (path / MARKET).is_file()
    days = record_or_pin_market(path, market).splits.holdout.last + 1 if is_begun else len(market.dates)
    folds = make_folds(days, plan, config.split, config.env)
    if not is_begun:
        record_or_pin_market(path, market, folds[-1])
    first, last = market.dates[folds[0].holdout.first], market.dates[folds[-1].holdout.last]
    logger.info("walk-forward test %s: %s, test days from %s to %s", path, many(len(folds), "fold"), first, last)
    return folds


def _train_folds(study: Study, splits: Sequence[Splits], explicit: frozenset[str], at_once: int) -> None:
    """Train the folds that are not trained yet."""
    path, config, jobs = study.path, study.config, list[Job]()
    for number, fold in enumerate(splits, start=1):
        fold_config = dataclasses.replace(config, runs_dir=path, run=f"fold-{number}", resume=None)
        if not (path / str(fold_config.run) / SUMMARY).is_file():
            jobs.append(Job(str(fold_config.run), partial(train_of_study, fold_config, explicit, fold)))
    with open_executor(at_once, logs=path / LOGS) as executor:
        require_all(list(executor.run(jobs, partial(setup_logging, path, verbose=config.verbose))))


def _test(path: Path, splits: list[Splits], config: Config) -> Evaluation:
    """Play each fold's champion on its test days, as one account that reinvests."""
    folds, results, evidence, device = [], [], list[Evidence](), choose_device(config.device)
    for number, fold in enumerate(splits, start=1):
        run = open_saved_run(path, f"fold-{number}", data=config.data, device=device)
        played = play_run(run, fold.holdout, config.evaluation, f"walk-forward {run.name}")
        days = {
            name: run.market.dates[[span.first, span.last]].astype(str).tolist() for name, span in vars(fold).items()
        }
        folds.append(FoldResult(run.name, days, run.generation, played.curves[CHAMPION].mean_return_percent))
        results.append(played)
        evidence.append(run.champion.evidence)
    return Evaluation(
        name=path.name,
        split="walk-forward",
        config=config,
        market=run.market,
        played=PlayedPolicies.joined(results),
        command=command_line("walk-forward", "--runs-dir", str(config.runs_dir), "--resume", path.name),
        folds=folds,
        evidence=evidence,
    )


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
        contents = {"plan": dataclasses.asdict(asked), "settings": to_dict(config)}
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
        contents = read_json(path / PLAN)
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
