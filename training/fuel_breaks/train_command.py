"""`python main.py fuel-breaks train`: a run from its settings to its summary."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from training.fuel_breaks.config import FuelBreakRunConfig, FuelBreakTrainArguments
from training.fuel_breaks.dqn_trainer import DQNTrainer
from training.fuel_breaks.pictures import draw_learning
from training.fuel_breaks.run import caveats, lead_text, load_tiles, record_or_check_landscape
from training.run.session import open_session
from utils.config.cli import command_line
from utils.memory.guard import peak_rss_mb
from utils.memory_profiler import BASELINE, GENERATION, get_profiler
from utils.progress import Progress
from utils.runs.run_log import RunLog

logger = logging.getLogger(__name__)
RIVALS = {"untrained": "the untrained network", "adaptive_downstream_value": "adaptive downstream value"}


def run_train(
    arguments: FuelBreakTrainArguments, explicit: frozenset[str], clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """Train, or resume, until the minutes by `clock` or episodes are spent. Raises as `open_session`, DataError."""
    config, started = arguments.settings, clock()
    # Before a new run's folder is created, so that an unusable landscape leaves nothing behind.
    loaded = load_tiles(config) if config.resume is None else None
    with open_session(config, explicit) as session:
        config = session.settings
        logger.info("run %s", session.run.path)
        landscape, splits = loaded or load_tiles(config)
        record_or_check_landscape(session.run.path, landscape)
        trainer = DQNTrainer(config, splits["train"], splits["validation"], session.device, session.safe_point, clock)
        is_resumed = session.restore(trainer)
        spent = trainer.seconds["total"]
        if not is_resumed:
            trainer.begin()
            rivals = ", ".join(f"{label} {trainer.scores[name]:.2f} %" for name, label in RIVALS.items())
            logger.info("burned area saved on %d validation tiles: %s", len(trainer.validation.tiles), rivals)
        get_profiler().log_memory(BASELINE)
        trainer.seconds["total"] = spent + clock() - started
        with session.saving(trainer) as save:
            for record in _generations(trainer):
                save(record)
                logger.info("%s", status_lines(record))
                note = "; ".join(caveats(config, trainer.scores))
                draw_learning(session.run.records(), session.run.path / "learning.png", note)
                trainer.cleanup_memory()  # a figure and its pixels refer to each other
        return _finish(trainer, session.run, config)


def _generations(trainer: DQNTrainer) -> Iterator[dict[str, Any]]:
    """Train under a bar of the minutes, or of the episodes where those have no limit."""
    episodes, limit = trainer.config.episodes, int(trainer.config.minutes * 60)

    def done() -> int:
        return int(trainer.seconds["total"]) if trainer.config.minutes else trainer.episodes

    unit, total = ("second", limit) if trainer.config.minutes else ("episode", episodes)
    with Progress("training", unit, total, done=done()) as shown:
        # A generation that was begun is played to its end, and the first one is trained in any case.
        while not trainer.generation or not (0 < episodes <= trainer.episodes or trainer.is_out_of_time):
            yield trainer.run_generation(lambda: shown.update(done() - shown.done))


def _finish(trainer: DQNTrainer, run: RunLog, config: FuelBreakRunConfig) -> dict[str, Any]:
    profiler, scores, notes = get_profiler(), trainer.scores, caveats(config, trainer.scores)
    summary = {
        "generations": trainer.generation,
        "episodes": trainer.episodes,
        "updates": trainer.updates,
        "minutes": trainer.seconds["total"] / 60,
        "validation": {**scores, "tiles": len(trainer.validation.tiles)},
        "notes": notes,
        "replay_bytes_per_transition": trainer.replay.ring.bytes_per_row,
        "peak_rss_mb": peak_rss_mb(),
        "rss_mb_per_generation": [snapshot.measures["rss_mb"] for snapshot in profiler.visits(GENERATION)],
        "rss_mb_trend_per_generation": profiler.trend(GENERATION).get("rss_mb"),
    }
    run.write_summary(summary)
    logger.info("trained network: %.2f %% on validation tiles, %s", scores["agent"], _leads(scores))
    judge = f"judge it on test tiles with {command_line('fuel-breaks', 'evaluate', '--runs-dir', str(run.path.parent))}"
    best = scores["best"], scores["best_generation"]
    logger.info("best network: %.2f %%, of generation %d; %s --run %s", *best, judge, run.name)
    for note in notes:
        logger.info("note: %s", note)
    return summary


def _leads(validation: Mapping[str, float]) -> str:
    return lead_text(validation["agent"], {label: validation[name] for name, label in RIVALS.items()})


def status_lines(record: Mapping[str, Any]) -> str:
    """Return the state of a run after a generation, from its record in metrics.jsonl."""
    validation, buffers, memory = record["validation"], record["buffers"], record["memory"]
    lengths = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in buffers["histories"].items())
    freed = sum(memory["freed_mb"].values())
    counted = ", ".join(f"{count} by {work.replace('_', ' ')}" for work, count in memory["checks"].items())
    gpu = f"{memory['gpu_allocated_mb']:,.0f} MiB allocated, {memory['gpu_reserved_mb']:,.0f} MiB reserved"
    best = f"{validation['best']:.2f} % of generation {validation['best_generation']}"
    played = f"{record['episodes']:,} episodes, {record['updates']:,} updates, {record['seconds']['total']:,.0f} s"
    return f"""Generation {record["generation"]}: network {validation["agent"]:.2f} %, {_leads(validation)}
  best {best}; {played}
  loss {record["loss"]:.4g}, return {record["return_percent"]:.2f} %, epsilon {record["epsilon"]:.3f}
  replay {buffers["replay"]:,} / {buffers["replay_capacity"]:,} ({buffers["replay_bytes"]:,} bytes), {lengths}
  {memory["rss_mb"]:,.0f} MiB, GPU {gpu}; clean-ups ({counted}) gave back {freed:,.1f} MiB
"""
