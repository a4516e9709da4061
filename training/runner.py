"""A whole training run: from settings to a market, generations, checkpoints, pictures and a summary."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.errors import DataError
from data.loader import StockDataLoader
from data.market import Market, build_market
from data.splits import Span, spaced_windows
from data.synthetic import bars_frame, expected_trade_return, planted_rule_scores, synthetic_market
from training.checkpoint import load_latest
from training.checkpoint_writer import CheckpointWriter
from training.comparison import COLUMNS, Comparison, PlantedRule, by_policy, compare, tune_planted_rule
from training.erl_trainer import PHASES, ERLTrainer
from utils.cli import LATEST
from utils.config import UNHASHED, Config, config_from_dict, config_hash, config_to_dict, replace_settings
from utils.memory_guard import MemoryGuard, peak_rss_mb, release_free_memory
from utils.memory_profiler import get_profiler, reset_profiler
from utils.report import draw_equity, draw_fitness, draw_memory, status_block, table
from utils.run_lock import RunLock
from utils.run_log import CHECKPOINTS, RunLog, latest_run, setup_logging
from utils.seeding import named_generator, seed_everything
from utils.settings import ConfigError, flatten
from utils.stopping import MemoryLimitReached, SafePoint

logger = logging.getLogger(__name__)
BASELINE = "baseline"
GENERATION = "generation"
"""Label of the snapshot at the end of a generation."""
SYNTHETIC_NOTE = "built-in synthetic market: the result says nothing about real markets"
SURVIVORS_NOTE = "chosen on these validation windows: flattered; so is any data that holds survivors only"
_SYNTHETIC_SEED = 7
_TUNING_WINDOWS = 16


def run_training(config: Config, explicit: frozenset[str]) -> dict[str, Any]:
    """Train, or continue a run, to its last generation; returns what `summary.json` holds.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed run to honour or refuse.

    Raises:
        ConfigError, DataError: the user asked for what cannot be done.
        StopRequested, MemoryLimitReached: the run stopped at a safe point; its last complete generation is on disk.
        CheckpointError: no checkpoint can be written.
    """
    run, config = _open_run(config, explicit)
    guard = MemoryGuard(config.memory_limit_mb or None)
    with run, RunLock(run.path), SafePoint(guard) as safe_point:
        setup_logging(run.path)
        logger.info("run %s, profile %s, seed %d", run.path, config.profile, config.seed)
        device = choose_device(config.device)
        choose_threads(config.threads)
        reset_profiler()
        get_profiler().log_memory(BASELINE, census=config.census_every > 0)
        seed_everything(config.seed)
        market, scores = load_market(config)
        trainer = ERLTrainer(config, market, device, safe_point)
        if config.resume is not None:
            _restore(trainer, run, config)
        get_profiler().log_memory("start", show_objects=config.census_every > 0)
        try:
            _train(trainer, run, config)
        except MemoryLimitReached:
            get_profiler().log_memory("memory limit", show_objects=True)
            raise
        return _finish(trainer, run, config, scores)


def _open_run(config: Config, explicit: frozenset[str]) -> tuple[RunLog, Config]:
    if config.resume is None:
        return RunLog.create(config.runs_dir, config.run, config_to_dict(config)), config
    name = latest_run(config.runs_dir) if config.resume == LATEST else config.resume
    run = RunLog.open(config.runs_dir, name)
    began = config_from_dict(run.config())
    _refuse_changes(flatten(config_to_dict(began)), flatten(config_to_dict(config)), explicit)
    return run, replace_settings(began, config, (explicit & UNHASHED) | {"resume", "runs_dir"})


def _refuse_changes(began: dict[str, Any], now: dict[str, Any], explicit: frozenset[str]) -> None:
    """A run goes on with the settings it began with; only those that shape no result may change."""
    for name in sorted(explicit - UNHASHED):
        if began[name] != now[name]:
            raise ConfigError(
                f"expected {name} = {began[name]!r}, with which the run began, got {now[name]!r}; "
                "leave it out, or start a new run without --resume"
            )


def choose_device(name: str) -> torch.device:
    """`auto` is the CUDA device where there is one."""
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    logger.info("device: %s (%s)", device, label)
    return device


def choose_threads(wanted: int) -> None:
    """Set the CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""
    if wanted:
        torch.set_num_threads(wanted)
    logger.info("CPU threads: %d", torch.get_num_threads())


def load_market(config: Config) -> tuple[Market, np.ndarray | None]:
    """The market of the data file, or the built-in one with the (days, n) scores of the rule that knows it."""
    if config.data is not None:
        loader = StockDataLoader(config.data, config=config.split, investable=config.investable)
        loader.load_and_prepare()
        return build_market(loader, config.split, config.env), None
    if config.investable is not None:
        raise DataError("expected --data with --investable, got none; the built-in market invests in all its stocks")
    logger.warning(
        "no data file: training on the built-in synthetic market; its results say nothing about real markets"
    )
    synthetic = synthetic_market(config.synthetic, seed=_SYNTHETIC_SEED)
    loader = StockDataLoader.from_frame(bars_frame(synthetic), config=config.split)
    loader.load_and_prepare()
    market = build_market(loader, config.split, config.env)
    scores = planted_rule_scores(market.close.astype(np.float64), config.synthetic)
    return market, expected_trade_return(scores, config.synthetic, config.env.max_holding_days)


def _restore(trainer: ERLTrainer, run: RunLog, config: Config) -> None:
    checkpoint = load_latest(run.path / CHECKPOINTS, run_id=run.name)
    if checkpoint is None:
        raise ConfigError(f"expected a complete generation to resume in {run.path}, got none; start a new run")
    if checkpoint.config_hash != config_hash(config):
        raise ConfigError(f"expected the settings that {run.path} began with, got others; mend its config.json")
    trainer.load_state_dict(checkpoint.state)
    run.truncate_to(trainer.generation)
    logger.info("resumed after generation %d of %d", trainer.generation, config.generations)


def _train(trainer: ERLTrainer, run: RunLog, config: Config) -> None:
    profiler = get_profiler()
    root, identity = run.path / CHECKPOINTS, config_hash(config)
    with CheckpointWriter(root, run_id=run.name, config_hash=identity, keep=config.keep_checkpoints) as writer:
        while trainer.generation < config.generations:
            record = trainer.run_generation()
            run.append(record)
            logger.info("%s", status_block(record))
            started = time.perf_counter()
            writer.submit(trainer.generation, trainer.state_dict(), {trainer.champion_generation})
            trainer.seconds[-1]["checkpoint"] = time.perf_counter() - started
            release_free_memory()
            profiler.log_memory(GENERATION)
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


def _finish(trainer: ERLTrainer, run: RunLog, config: Config, scores: np.ndarray | None) -> dict[str, Any]:
    """Compare the champion with its baselines, draw the pictures, write the summary."""
    rule = None
    splits = trainer.market.splits
    if scores is not None:
        rule = tune_planted_rule(trainer.val_env, scores, _windows(trainer, splits.train, _TUNING_WINDOWS))
    results = {"validation": _compare(trainer, config, splits.validation, rule)}
    if scores is not None:
        # The built-in market can be made anew at will, so that looking at its holdout uses nothing up.
        results["holdout"] = _compare(trainer, config, splits.holdout, rule)
    for split, result in results.items():
        logger.info(
            "%s windows, means of %d trading days\n%s", split, config.env.trading_days, table(result.rows, COLUMNS)
        )
    logger.info("note: %s", _note(config))
    _draw_equity(run.path / "equity.png", results["validation"], config)
    profiler = get_profiler()
    profiler.log_memory("end", census=config.census_every > 0)
    profiler.print_memory_growth(baseline_label=BASELINE)
    if config.census_every > 0:
        profiler.final_summary()
    _draw_progress(run, _note(config))
    summary = _summary(trainer, results)
    run.write_summary(summary)
    logger.info("champion of generation %d; results in %s", trainer.champion_generation, run.path)
    return summary


def _windows(trainer: ERLTrainer, span: Span, count: int) -> torch.Tensor:
    return spaced_windows(span, trainer.config.env.episode_steps, count).to(trainer.device)


def _compare(trainer: ERLTrainer, config: Config, span: Span, rule: PlantedRule | None) -> Comparison:
    return compare(
        trainer.champion,
        trainer.val_env,
        trainer.tensors,
        trainer.market,
        _windows(trainer, span, config.evaluation.validation_windows),
        random_pickers=config.evaluation.random_pickers,
        generator=named_generator(config.seed, "random pickers", trainer.device),
        rule=rule,
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
