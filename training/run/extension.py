"""A run that extends another one: it starts from that run's agents, on data with days added since."""

import logging
import math
from pathlib import Path

import numpy as np

from data.market import Market
from data.record import is_recorded_market, readjustments
from training.erl_trainer import ERLTrainer
from training.run.market import read_market_record
from training.run.session import Session
from utils.config.settings import named_values, settings_hash, with_settings
from utils.config.trader import Config
from utils.errors import ConfigError, DataError
from utils.runs.checkpoint import Checkpoint, encode_state, list_checkpoints, load_latest, save_checkpoint
from utils.runs.run_log import RunLog
from utils.tables import listed, many

logger = logging.getLogger(__name__)
INHERITED = "inherited"
"""Folder in that of a run that extends another one: a checkpoint of what it inherits."""
_PARENT = "extends.txt"
"""Name of the other run, written before all else."""


def note_parent(parent: RunLog | None, path: Path) -> None:
    """Write down which run the new one in `path` extends, if any; it may be stopped before it inherits."""
    if parent is not None:
        (path / _PARENT).write_text(parent.name, encoding="utf-8")


def missing_parent(path: Path) -> RunLog | None:
    """Return the run that the one in `path` extends, if that was stopped before it inherited; ConfigError where the
    other one is gone."""
    if not (path / _PARENT).is_file() or list_checkpoints(path / INHERITED):
        return None
    return RunLog.open(path.parent, (path / _PARENT).read_text(encoding="utf-8"))


def load_inherited(path: Path) -> Checkpoint | None:
    """Return what the run in `path` inherited, under its parent's name; None for random initialisation.

    Raises ConfigError where it is damaged.
    """
    checkpoint = load_latest(path / INHERITED)
    if checkpoint is None and list_checkpoints(path / INHERITED):
        raise ConfigError(f"expected what a run inherited in {path / INHERITED}, got a damaged checkpoint; extend anew")
    return checkpoint


def restore_or_inherit(session: Session[Config], trainer: ERLTrainer) -> None:
    """Load the newest generation of a resumed run, or what a run that extends another one begins with."""
    path = session.run.path
    if (parent := missing_parent(path)) is not None:
        save_inherited(parent, path, trainer.market)
    if not session.restore(trainer) and (inherited := load_inherited(path)) is not None:
        logger.info("begins with generation %d of %s", inherited.generation, inherited.run_id)
        apply_inherited(inherited, trainer)


def apply_inherited(inherited: Checkpoint, trainer: ERLTrainer) -> None:
    """Initialise a trainer with the genes that its run inherited, and the inputs that its agents see.

    Networks begin anew: folds are fifths of the training days, which have grown, so that a network would have seen days
    that are now out of its fold.

    Raises ConfigError for a population of another size.
    """
    population, state = trainer.population, inherited.state["population"]
    if len(state["genes"]) != len(population):
        raise ConfigError(
            f"expected a population of the size of that of {inherited.run_id}, {len(state['genes'])} agents, got "
            f"{len(population)}; leave --population-size out"
        )
    if state["feature_groups"].shape != population.feature_groups.shape:
        raise ConfigError(
            f"expected data with the features of {inherited.run_id}, {state['feature_groups'].shape[1]} groups of "
            f"inputs, got {population.feature_groups.shape[1]}; give data with the same columns, or train anew where "
            "other groups are found in these"
        )
    for name in ("genes", "feature_groups", "elites", "examined", "updates"):
        setattr(population, name, state[name])
    population.networks.gains.copy_(population.gains_of_agents)
    population.networks.mask()
    trainer.champion = trainer.build_champion()


def run_to_extend(name: str, config: Config) -> RunLog:
    """Return the named run, or the newest one. Raises ConfigError if there is none, or with --resume."""
    if config.resume is not None:
        raise ConfigError("expected --extend for a new run or --resume for one that began, got both; leave one out")
    return RunLog.open(config.runs_dir, name)


def extended_settings(parent: RunLog, config: Config, explicit: frozenset[str]) -> Config:
    """Return the settings of a new run: those of its parent, updated by those the user gave."""
    given, names = named_values(config), explicit | {"run", "resume", "runs_dir"}
    return with_settings(parent.settings(Config), {name: given[name] for name in given.keys() & names})


def save_inherited(parent: RunLog, path: Path, market: Market) -> None:
    """Write to `path` what a new run inherits from its parent.

    Raises ConfigError where the parent has no generation, DataError where it was trained on other data or the data have
    no new days.
    """
    checkpoint = parent.use_newest(settings_hash(parent.settings(Config)), lambda checkpoint: checkpoint)
    record = read_market_record(parent.path)
    last = np.datetime64(max(record.splits["holdout"]), "D")
    if not is_recorded_market(market, record) or market.dates[-1] <= last:
        raise DataError(
            f"expected the data of {parent.name} with days after {last}, got other data or days to {market.dates[-1]}; "
            "give its file as it has grown"
        )
    if gone := sorted({*record.tickers} - {*market.tickers}):
        logger.warning("the data have no bars of %s, which %s had", listed(gone), parent.name)
    ratios = readjustments(market, record, f"{parent.name} began")
    if others := [ticker for ticker, ratio in ratios.items() if math.isnan(ratio)]:
        known = f"{'has' if len(others) == 1 else 'have'} other prices than {parent.name} knew"
        logger.warning("%s %s, %s the first", many(len(others), "ticker"), known, others[0])
    state = encode_state({"population": checkpoint.state["population"]})
    generation, config_hash = checkpoint.generation, checkpoint.config_hash
    save_checkpoint(path / INHERITED, generation, state, run_id=parent.name, config_hash=config_hash)
