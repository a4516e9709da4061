"""What a run shows and leaves behind: a line for each generation, pictures, and at its end the judgement."""

import dataclasses
import logging
import tracemalloc
from collections.abc import Mapping
from typing import Any

from data.record import MARKET
from training.commands.evaluate import judge_training
from training.erl_trainer import ERLTrainer
from training.evaluation.charts import equity_chart, fitness_chart, learning_charts
from training.evaluation.export import FILES as EVALUATION
from training.evaluation.export import write_evaluation
from training.evaluation.judge import Evaluation
from training.generation_log import PHASES
from training.run.extension import INHERITED
from training.run.market import scores_of
from training.run.status import generation_row, result_block, status_block
from utils.charts import memory_chart
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.memory.census import count_living
from utils.memory.guard import keep_freed_memory, peak_rss_mb, release_free_memory
from utils.memory_profiler import BASELINE, GENERATION, get_profiler
from utils.pictures import draw_charts
from utils.runs.checkpoint import generation_name, list_checkpoints
from utils.runs.console import FILE_ONLY
from utils.runs.find import SUMMARY
from utils.runs.run_log import CHECKPOINTS, REPORT, RunLog
from utils.tables import many

logger = logging.getLogger(__name__)
RESULTS = (*EVALUATION, "fitness.png", "learning.png", "equity.png", "memory.png", SUMMARY)
"""Names of what is written at the end; the summary is uploaded last, since it marks the end."""
FILES = (MARKET, f"{INHERITED}/*")
"""Patterns of what is written before the first generation."""
PLOT_EVERY = 5
"""Generations between updates of the pictures."""


def is_complete(run: RunLog, config: Config, explicit: frozenset[str]) -> bool:
    """Return whether the run has ended at its last generation, and say how it goes on.

    Raises ConfigError where the user asked for fewer generations than are done.
    """
    end, done = run.end(), max(list_checkpoints(run.path / CHECKPOINTS), default=0)
    if "generations" in explicit and config.generations < done:
        raise ConfigError(
            f"expected --generations of at least {done}, which {run.path} has trained, got {config.generations}; "
            "checkpoints of earlier ones cannot be brought back"
        )
    if end is None or end < config.generations:
        return False
    further = f"--resume {run.name} --generations {end + config.generations}"
    logger.info(
        "%s is complete: %s in %s; train it further with %s", run.path, many(end, "generation"), REPORT, further
    )
    return True


def log_baseline(memory_report: str) -> None:
    """Begin to watch memory, as the setting says: the trainer is built and has not begun."""
    release_free_memory()  # before it is kept: preparing a large market takes more than training on it
    keep_freed_memory()
    if memory_report == "trace":
        tracemalloc.start()
    get_profiler().is_reporting = memory_report in ("on", "trace")
    get_profiler().log_memory(BASELINE, show_objects=memory_report != "off")


def report_generation(
    trainer: ERLTrainer, run: RunLog, config: Config, record: Mapping[str, Any], checkpoint_seconds: float
) -> None:
    """Show the record of a generation, what leaks, and every few generations pictures."""
    trainer.log.add("checkpoint", checkpoint_seconds)
    total, champion = record["seconds"]["total"] + checkpoint_seconds, trainer.champion
    shown = {**record, "seconds": {**record["seconds"], "checkpoint": checkpoint_seconds, "total": total}}
    evidence = dataclasses.replace(champion.evidence, shrink=champion.shrink, timing=champion.timing).sentence
    row = generation_row(shown, is_first=trainer.generation == trainer.log.first)
    whole = status_block(shown, get_profiler().summary_line(), config.env, evidence)
    logger.info("%s", whole, extra={"terminal": row})
    if get_profiler().is_reporting:
        logger.info("%s", get_profiler().report())
    for kind, growth in get_profiler().leaks().items():
        logger.warning("leak: %s %s", kind, growth)
    # The pictures of the last one are drawn at the end.
    if trainer.generation % PLOT_EVERY == 0 and trainer.generation < config.generations:
        _draw_progress(run, _note(config))


def _note(config: Config) -> str:
    if config.data is None:
        return "built-in synthetic market: the result says nothing about real markets"
    return "if the data hold survivors only, they flatter every result"


def _draw_progress(run: RunLog, note: str) -> None:
    records = run.records()
    draw_charts([fitness_chart(records)], run.path / "fitness.png", note)
    draw_charts(learning_charts(records), run.path / "learning.png", note, "Learning by generation")
    draw_charts([memory_chart(get_profiler().snapshots)], run.path / "memory.png")


def finish(trainer: ERLTrainer, run: RunLog, config: Config) -> None:
    """Judge the champion; write and show the results."""
    _draw_progress(run, _note(config))  # before judging, which would look like growth
    logger.info("judging the champion against its baselines")
    evaluation = judge_training(trainer, config, run.path, scores_of(config))
    trainer.safe_point()
    draw_charts([equity_chart(evaluation)], run.path / "equity.png", _note(config))
    get_profiler().log_memory("end")
    how = {"all_phases": get_profiler().is_reporting, "shows_objects": config.memory_report != "off"}
    logger.info("%s", get_profiler().analysis(**how), extra=FILE_ONLY)
    write_evaluation(evaluation, run.path)
    summary = _summary(trainer, evaluation)
    run.write_summary(summary)
    run.tracker.keep((REPORT, SUMMARY), trainer.champion.save)
    whole, brief = result_block(evaluation, run.path, generation_name(trainer.generation))
    logger.info("%s", whole, extra={"terminal": brief})


def _summary(trainer: ERLTrainer, evaluation: Evaluation) -> dict[str, Any]:
    days, columns, features = trainer.market.data_array.shape
    ends = [end.measures for end in get_profiler().visits(GENERATION)]
    return {
        "generations": trainer.generation,
        "population_size": len(trainer.population),
        "days": days,
        "columns": columns,
        "features": features,
        "investable": len(trainer.market.investable_columns),
        "context_window_days": evaluation.config.split.context_window_days,
        "replay_capacity": trainer.replay_buffer.capacity,
        "replay_size": trainer.replay_buffer.size,
        "replay_bytes_per_transition": trainer.replay_buffer.bytes_per_row,
        "peak_rss_mb": peak_rss_mb(),
        **{f"{name}_per_generation": [measures[name] for measures in ends] for name in ("rss_mb", "uss_mb")},
        **count_living(),
        "seconds": {
            phase: [seconds.get(phase) for seconds in trainer.log.seconds] for phase in (*PHASES, "checkpoint")
        },
        "device": str(trainer.device),
        "champion": {
            "generation": trainer.generation,
            "return_percent": {name: estimates["return"].value for name, estimates in evaluation.policies.items()},
            "verdict": evaluation.sentence,
        },
    }
