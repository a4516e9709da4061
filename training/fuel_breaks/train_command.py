"""`python main.py fuel-breaks train`: a run from its settings to its summary, resumed exactly."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from training.fuel_breaks.arguments import FuelBreakTrainArguments
from training.fuel_breaks.config import FuelBreakRunConfig, run_hash
from training.fuel_breaks.dqn_trainer import DQNTrainer
from training.fuel_breaks.pictures import draw_learning
from training.fuel_breaks.run import GENERATED, load_tiles, open_run, remember_landscape
from utils.memory.guard import MemoryGuard, peak_rss_mb, release_free_memory
from utils.memory.profiler import get_profiler, reset_profiler
from utils.pictures import draw_memory
from utils.runs.checkpoint_writer import CheckpointWriter
from utils.runs.devices import choose_device, choose_threads
from utils.runs.resume import load_under
from utils.runs.run_lock import RunLock
from utils.runs.run_log import CHECKPOINTS, RunLog, setup_logging
from utils.runs.seeding import seed_everything
from utils.runs.stopping import SafePoint

logger = logging.getLogger(__name__)
GENERATION = "generation"
Clock = Callable[[], float]


def run_train(arguments: FuelBreakTrainArguments, explicit: frozenset[str]) -> None:
    """Run the command `fuel-breaks train`."""
    run_training(arguments.settings, explicit)


def run_training(config: FuelBreakRunConfig, explicit: frozenset[str], clock: Clock = time.monotonic) -> dict[str, Any]:
    """Train, or continue a run, until its minutes or episodes are spent; returns what `summary.json` holds.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed run to honour or refuse.
        clock: seconds by which the minutes are counted; `time.process_time` counts those of the processor.

    Raises:
        ConfigError, DataError: the user asked for what cannot be done.
        StopRequested, MemoryLimitReached: the run stopped at a safe point; its last complete generation is on disk.
        CheckpointError: no checkpoint can be written.
    """
    # Of a new run before its folder is made: a landscape that cannot be used leaves nothing behind.
    ground = load_tiles(config) if config.resume is None else None
    run, config = open_run(config, explicit)
    with run, RunLock(run.path), SafePoint(MemoryGuard(config.memory_limit_mb or None)) as safe_point:
        setup_logging(run.path)
        logger.info("run %s, seed %d", run.path, config.seed)
        device = choose_device(config.device)
        choose_threads(config.threads)
        reset_profiler()
        seed_everything(config.seed)
        landscape, splits = ground or load_tiles(config)
        remember_landscape(run.path, landscape)
        trainer = DQNTrainer(config, splits.train, splits.validation, device, safe_point)
        _begin(trainer, run, config)
        get_profiler().log_memory("start")
        _train(trainer, run, config, clock)
        return _finish(trainer, run, config)


def _begin(trainer: DQNTrainer, run: RunLog, config: FuelBreakRunConfig) -> None:
    if config.resume is not None:
        logger.info("burning the states of the replay again")
        trainer.load_state_dict(load_under(run, run_hash(config)).state)
        run.truncate_to(trainer.generation)
        logger.info("resumed after generation %d, %s episodes", trainer.generation, f"{trainer.episodes:,}")
        return
    trainer.begin()
    parameters = sum(parameter.numel() for parameter in trainer.online.parameters())
    logger.info(
        "network of %s parameters; on %d validation tiles the untrained one reduces the burned area by %.2f %%, the "
        "adaptive downstream value by %.2f %%",
        f"{parameters:,}",
        len(trainer.validation.tiles),
        trainer.best_score,
        trainer.heuristic_score,
    )


def _train(trainer: DQNTrainer, run: RunLog, config: FuelBreakRunConfig, clock: Clock) -> None:
    profiler = get_profiler()
    with CheckpointWriter(
        run.path / CHECKPOINTS, run_id=run.name, config_hash=run_hash(config), keep=config.keep_checkpoints
    ) as writer:
        while not _is_done(trainer, config):
            record = trainer.run_generation(clock)
            # A figure and its pixels refer to each other: without a collection every picture would stay for long.
            gc.collect()
            release_free_memory()
            # Before the checkpoint, whose copy of the state comes and goes with the thread that writes it.
            profiler.log_memory(GENERATION)
            run.append(record)
            logger.info("%s", status_lines(record))
            writer.submit(trainer.generation, trainer.state_dict(), set())
            draw_learning(run.records(), run.path / "learning.png", _note(config))


def _is_done(trainer: DQNTrainer, config: FuelBreakRunConfig) -> bool:
    is_late = 0 < config.minutes * 60 <= trainer.seconds
    return is_late or 0 < config.episodes <= trainer.episodes


def _note(config: FuelBreakRunConfig) -> str | None:
    return GENERATED if config.landscape is None else None


def _finish(trainer: DQNTrainer, run: RunLog, config: FuelBreakRunConfig) -> dict[str, Any]:
    profiler = get_profiler()
    draw_memory(profiler.phases(), run.path / "memory.png")
    trend = profiler.trend(GENERATION).get("rss_mb")
    summary = {
        "generations": trainer.generation,
        "episodes": trainer.episodes,
        "updates": trainer.updates,
        "minutes": trainer.seconds / 60,
        "parameters": sum(parameter.numel() for parameter in trainer.online.parameters()),
        "validation": {
            "tiles": len(trainer.validation.tiles),
            "best": trainer.best_score,
            "best_generation": trainer.best_generation,
            "adaptive_downstream_value": trainer.heuristic_score,
        },
        "replay_bytes_per_transition": trainer.replay.bytes_per_transition,
        "peak_rss_mb": peak_rss_mb(),
        "rss_mb_per_generation": [snapshot.rss_mb for snapshot in profiler.visits(GENERATION)],
        "rss_mb_trend_per_generation": trend,
        "generated_landscape": config.landscape is None,
        "device": str(trainer.device),
        "threads": torch.get_num_threads(),
    }
    run.write_summary(summary)
    logger.info(
        "best network: generation %d, %.2f %% on validation tiles, against %.2f %% by the adaptive downstream value; "
        "judge it on test tiles with: python main.py fuel-breaks evaluate --runs-dir %s --run %s",
        trainer.best_generation,
        trainer.best_score,
        trainer.heuristic_score,
        run.path.parent,
        run.name,
    )
    return summary


def status_lines(record: Mapping[str, Any]) -> str:
    """The state of a run after a generation, several lines of text; `record` is that of metrics.jsonl."""
    validation, buffers, memory = record["validation"], record["buffers"], record["memory"]
    checks = ", ".join(f"{count:,} of {work.replace('_', ' ')}" for work, count in memory["checks"].items())
    histories = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in buffers["histories"].items())
    lines = {
        "Played": f"{record['episodes']:,} episodes, {record['updates']:,} updates, "
        f"{record['seconds']['total']:,.0f} s",
        "Validation": f"network {validation['agent']:.2f} %, best {validation['best']:.2f} % (of generation "
        f"{validation['best_generation']}), adaptive downstream value {validation['adaptive_downstream_value']:.2f} %",
        "Learning": f"loss {record['loss']:.4g}, return {record['return_percent']:.2f} %, epsilon "
        f"{record['epsilon']:.3f}; environment step {1000 * record['seconds']['environment_step']:.1f} ms",
        "Buffers": f"replay {buffers['replay']:,} / {buffers['replay_capacity']:,} ({buffers['replay_bytes']:,} bytes; "
        f"what burns in its states {buffers['store_bytes']:,} bytes), {histories}",
        "Memory": f"resident {memory['rss_mb']:,.0f} MB, GPU {memory['gpu_allocated_mb']:,.0f} MB allocated, "
        f"{memory['gpu_reserved_mb']:,.0f} MB reserved; checks: {checks}; clean-ups gave back "
        f"{memory['freed_mb']:,.1f} MB",
    }
    return "\n".join([f"Generation {record['generation']}", *(f"  {name:<11} {line}" for name, line in lines.items())])
