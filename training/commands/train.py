"""A whole training run: from settings to a market, generations, checkpoints, pictures and a summary."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from data.splits import Span, Splits, spaced_windows
from data.synthetic.built_in import PlantedScores
from training.commands.arguments import TrainArguments
from training.commands.evaluate import report_training
from training.erl_trainer import PHASES, ERLTrainer
from training.evaluation.baselines import ScoreRule
from training.evaluation.comparison import COLUMNS, Comparison, by_policy, compare, tune_planted
from training.run.market import load_market, remember_market
from training.run.opening import load_resumed, open_run
from training.run.uploads import Uploads, open_cloud, uploading
from utils.cloud.store import ObjectStore
from utils.config.trader import Config, config_hash
from utils.errors import MemoryLimitReached
from utils.memory.guard import MemoryGuard, keep_freed_memory, peak_rss_mb, release_free_memory
from utils.memory.profiler import get_profiler, reset_profiler
from utils.pictures import draw_equity, draw_fitness, draw_memory, status_block, table
from utils.runs.checkpoint_writer import CheckpointWriter
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_lock import RunLock
from utils.runs.run_log import CHECKPOINTS, RunLog, setup_logging
from utils.runs.seeding import named_generator, seed_everything
from utils.runs.stopping import SafePoint

logger = logging.getLogger(__name__)
BASELINE = "baseline"
GENERATION = "generation"
"""Label of the snapshot at the end of a generation."""
SYNTHETIC_NOTE = "built-in synthetic market: the result says nothing about real markets"
SURVIVORS_NOTE = "chosen on these validation windows: flattered; so is any data that holds survivors only"
_TUNING_WINDOWS = 16


def run_train(arguments: TrainArguments, explicit: frozenset[str]) -> None:
    """Run the command `train`, with the cloud that the environment names."""
    run_training(arguments.settings, explicit, store=open_cloud())


def run_training(
    config: Config, explicit: frozenset[str], splits: Splits | None = None, store: ObjectStore | None = None
) -> dict[str, Any]:
    """Train, or continue a run, to its last generation; returns what `summary.json` holds.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed run to honour or refuse.
        splits: days of a new run that does not divide them by the configured fractions.
        store: where the run is kept besides the disk.

    Raises:
        ConfigError, DataError: the user asked for what cannot be done.
        StopRequested, MemoryLimitReached: the run stopped at a safe point; its last complete generation is on disk.
        CheckpointError: no checkpoint can be written.
        CloudError: the run is done, but not all of it could be stored; or it cannot be fetched.
        NonFiniteError: an update or a result was not finite, at which the settings let the run stop.
    """
    run, config = open_run(config, explicit, store)
    guard = MemoryGuard(config.memory_limit_mb or None)
    with run, RunLock(run.path), SafePoint(guard) as safe_point, uploading(store, run.path) as uploads:
        setup_logging(run.path)
        logger.info("run %s, profile %s, seed %d", run.path, config.profile, config.seed)
        device = choose_device(config.device)
        choose_threads(config.threads)
        keep_freed_memory()
        reset_profiler()
        get_profiler().log_memory(BASELINE, census=config.census_every > 0)
        seed_everything(config.seed)
        market, scores = load_market(config)
        market = remember_market(run.path, market, splits)
        trainer = ERLTrainer(config, market, device, safe_point)
        if config.resume is not None:
            _restore(trainer, run, config)
        uploads.begin(trainer.generation or None)
        get_profiler().log_memory("start", show_objects=config.census_every > 0)
        try:
            _train(trainer, run, config, uploads)
            summary = _finish(trainer, run, config, scores)
        except MemoryLimitReached:
            get_profiler().log_memory("memory limit", show_objects=True)
            raise
        uploads.finish(safe_point)
        return summary


def _restore(trainer: ERLTrainer, run: RunLog, config: Config) -> None:
    trainer.load_state_dict(load_resumed(run, config).state)
    run.truncate_to(trainer.generation)
    logger.info("resumed after generation %d of %d", trainer.generation, config.generations)


def _train(trainer: ERLTrainer, run: RunLog, config: Config, uploads: Uploads) -> None:
    profiler = get_profiler()
    with CheckpointWriter(
        run.path / CHECKPOINTS,
        run_id=run.name,
        config_hash=config_hash(config),
        keep=config.keep_checkpoints,
        on_written=uploads.written,
    ) as writer:
        while trainer.generation < config.generations:
            record = trainer.run_generation()
            run.append(record)
            logger.info("%s", status_block(record))
            started = time.perf_counter()
            writer.submit(trainer.generation, trainer.state_dict(), {trainer.champion_generation})
            trainer.seconds[-1]["checkpoint"] = time.perf_counter() - started
            release_free_memory()
            profiler.log_memory(GENERATION)
            uploads.report()
            logger.info("%s", profiler.trend_table("evolve"))
            for leak in profiler.find_leaks("evolve"):
                logger.warning("%s", leak)
            if trainer.generation % config.plot_every == 0 or trainer.generation == config.generations:
                _draw_progress(run, _note(config))


def _note(config: Config) -> str:
    return SYNTHETIC_NOTE if config.data is None else SURVIVORS_NOTE


def _draw_progress(run: RunLog, note: str) -> None:
    draw_fitness(run.records(), run.path / "fitness.png", note)
    draw_memory(get_profiler().phases(), run.path / "memory.png")


def _finish(trainer: ERLTrainer, run: RunLog, config: Config, scores: PlantedScores | None) -> dict[str, Any]:
    """Compare the champion with its baselines, draw the pictures, write the summary."""
    planted: dict[str, ScoreRule] = {}
    splits = trainer.market.splits
    if scores is not None:
        planted = tune_planted(trainer.val_env, scores, _windows(trainer, splits.train, _TUNING_WINDOWS))
    results = {"validation": _compare(trainer, config, splits.validation, planted)}
    if scores is not None:
        # The built-in market can be made anew at will, so that looking at its holdout uses nothing up.
        results["holdout"] = _compare(trainer, config, splits.holdout, planted)
    for split, result in results.items():
        logger.info(
            "%s windows, means of %d trading days\n%s", split, config.env.trading_days, table(result.rows, COLUMNS)
        )
    logger.info("note: %s", _note(config))
    trainer.safe_point()
    _draw_equity(run.path / "equity.png", results["validation"], config)
    profiler = get_profiler()
    profiler.log_memory("end", census=config.census_every > 0)
    profiler.print_memory_growth(baseline_label=BASELINE)
    if config.census_every > 0:
        profiler.final_summary()
    _draw_progress(run, _note(config))
    summary = _summary(trainer, results)
    run.write_summary(summary)
    trainer.safe_point()
    report_training(trainer, run.path, planted)
    logger.info("champion of generation %d; results in %s", trainer.champion_generation, run.path)
    return summary


def _windows(trainer: ERLTrainer, span: Span, count: int) -> torch.Tensor:
    return spaced_windows(span, trainer.config.env.episode_steps, count).to(trainer.device)


def _compare(trainer: ERLTrainer, config: Config, span: Span, planted: Mapping[str, ScoreRule]) -> Comparison:
    trainer.safe_point()
    return compare(
        trainer.champion,
        trainer.val_env,
        trainer.tensors,
        trainer.market,
        _windows(trainer, span, config.evaluation.validation_windows),
        random_pickers=config.evaluation.random_pickers,
        generator=named_generator(config.seed, "random pickers", trainer.device),
        planted=planted,
    )


def _draw_equity(path: Path, result: Comparison, config: Config) -> None:
    draw_equity(
        {name: curve.tolist() for name, curve in result.curves.items()},
        None,
        path,
        "Champion and baselines on validation, mean over windows",
        bands={"random pickers, 5 to 95 %": tuple(edge.tolist() for edge in result.random_band)},
        note=_note(config),
    )


def _summary(trainer: ERLTrainer, results: dict[str, Comparison]) -> dict[str, Any]:
    counts = get_profiler().counts()
    market, config = trainer.market, trainer.config
    ends = get_profiler().visits(GENERATION)
    return {
        "generations": trainer.generation,
        "population_size": trainer.population.size,
        "representation": config.network.representation,
        "profile": config.profile,
        "seed": config.seed,
        "synthetic": config.data is None,
        "days": market.data_array.shape[0],
        "columns": market.data_array.shape[1],
        "features": market.data_array.shape[2],
        "investable": len(market.investable_columns),
        "context_window_days": config.split.context_window_days,
        "encoder_receptive_field_days": trainer.population.networks.context_days,
        "replay_capacity": trainer.replay.capacity,
        "replay_size": trainer.replay.size,
        "replay_bytes_per_transition": trainer.replay.bytes_per_transition,
        "peak_rss_mb": peak_rss_mb(),
        "rss_mb_per_generation": [snapshot.rss_mb for snapshot in ends],
        "uss_mb_per_generation": [snapshot.uss_mb for snapshot in ends],
        "environments": counts["environments"],
        "agents": counts["agents"],
        "replay_buffers": counts["replay_buffers"],
        "seconds": {phase: [seconds.get(phase) for seconds in trainer.seconds] for phase in PHASES},
        "device": str(trainer.device),
        "threads": torch.get_num_threads(),
        "champion": {
            "generation": trainer.champion_generation,
            "validation_return_percent": trainer.champion_score,
            **{split: by_policy(result) for split, result in results.items()},
        },
    }
