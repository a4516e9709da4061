"""A training run: `python main.py`, from the loader to the last checkpoint.

`train` is the whole of it. What it builds lives as long as the run, and each part is handed to those that need it.
"""

import dataclasses
import logging

from data.splits import Splits
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.commands.table import TrainArguments
from training.erl_trainer import ERLTrainer, random_streams
from training.forecasts.training_days import TrainingDays
from training.generation_log import GenerationLog
from training.rollout import require_memory_to_train
from training.run.extension import extended_settings, note_parent, restore_or_inherit, run_to_extend
from training.run.market import benchmark_of, data_loader, market_of_run
from training.run.results import (
    FILES,
    RESULTS,
    finish,
    is_complete,
    log_baseline,
    market_lines,
    opening_line,
    report_generation,
    terminal_header,
)
from training.run.session import open_session
from utils.cloud.store import ObjectStore, open_cloud
from utils.config.trader import Config
from utils.memory_profiler import get_profiler
from utils.runs.find import CONFIG
from utils.runs.run_log import RunLog

logger = logging.getLogger(__name__)


def train(
    config: Config,
    explicit: frozenset[str] = frozenset(),
    *,
    splits: Splits | None = None,
    store: ObjectStore | None = None,
    parent: RunLog | None = None,
) -> None:
    """Train, or continue a run, to its last generation, and judge the champion.

    Args:
        explicit: dotted names of the settings that the user gave, which a resumed run applies or refuses.
        splits: days of a new run, in place of the configured fractions.
        store: where the run is stored besides the disk.
        parent: run that a new one extends.

    Raises:
        DataError: the data cannot be used, or differ from those of the run.
        ConfigError, CloudError, CheckpointError, StopRequested, MemoryLimitReached: see `open_session`.
    """
    with open_session(config, explicit, store=store, files=FILES, results=RESULTS) as session:
        config, run, device = session.settings, session.run, session.device
        if is_complete(run, config, explicit):
            return
        opening = opening_line(config, device, run.path)
        logger.info("%s", opening, extra={"terminal": opening})
        note_parent(parent, run.path)
        loader = data_loader(config)
        loader.load_and_prepare()
        market = market_of_run(loader, config, run.path, splits)
        logger.info("%s", market_lines(config, market), extra={"terminal": terminal_header(config, market)})

        logger.info("Initializing persistent evaluation environment...")
        benchmark = benchmark_of(market, config)
        portfolio = Portfolio.on(market, config.env, device, benchmark)
        eval_env = TradingEnvironment.on(market, config.env, portfolio=portfolio)
        logger.info("Initializing persistent validation environment...")
        val_env = eval_env.twin()

        days = TrainingDays.of(market, portfolio.quotes.among(slice(len(eval_env.tickers))), config.env)
        learning, evolution, evaluation = config.learning, config.evolution, config.evaluation
        require_memory_to_train(market, days, eval_env, learning, evolution, evaluation)
        streams, scale = random_streams(config.seed), days.transitions.reward_scale
        fitted = days.inputs, config.env, device, streams
        population = Population(evolution, learning, *fitted, gains=days.gains, scale=scale)
        replay_buffer = ReplayBuffer(learning.replay_capacity, learning.training_starts, device)
        log = GenerationLog(config.generations, device, get_profiler(), counts=config.memory_report != "off")
        parts = market, days, eval_env, val_env, population, replay_buffer, learning, evaluation, streams
        trainer = ERLTrainer(*parts, log=log, safe_point=session.safe_point, data_loader=loader)
        restore_or_inherit(session, trainer)
        log_baseline(config.memory_report)

        with session.saving(trainer) as save:
            for _ in log.generations_left():
                with log.phase("evaluate"):
                    trainer.evaluate_population()
                with log.phase("evolve"):
                    trainer.evolve_population()
                with log.phase("train"):
                    trainer.train_population()
                with log.phase("validate"):
                    trainer.validate_best_agent()
                record = trainer.record()
                report_generation(trainer, run, config, record, save(record))
        finish(trainer, run, config)


def run_train(arguments: TrainArguments, explicit: frozenset[str]) -> None:
    """Run the command `train`, with the cloud that the environment names."""
    config, parent = arguments.settings, None
    if arguments.extend is not None:
        parent = run_to_extend(arguments.extend, config)
        config = extended_settings(parent, config, explicit)
    train(config, explicit, store=open_cloud(), parent=parent)


def train_of_study(config: Config, explicit: frozenset[str], splits: Splits) -> None:
    """Train a run of a study to its last generation, from where it stopped."""
    folder = config.runs_dir / str(config.run)
    store = open_cloud(below=config.runs_dir.name)
    if (folder / CONFIG).is_file() or (store is not None and store.list(f"{folder.name}/")):  # it has begun
        config = dataclasses.replace(config, run=None, resume=folder.name)
    train(config, explicit, splits=splits, store=store)
