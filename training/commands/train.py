"""A whole training run: from settings to a market, generations, checkpoints, pictures and a summary."""

import dataclasses
import logging
import sys
import tracemalloc
from collections.abc import Mapping
from typing import Any

from data.benchmark import read_benchmark
from data.record import MARKET
from data.splits import Splits
from data.synthetic.built_in import PlantedScores
from training.commands.evaluate import judge_training
from training.commands.table import TrainArguments
from training.erl_trainer import PHASES, ERLTrainer, build_trainer
from training.evaluation.charts import equity_chart, fitness_chart, learning_charts
from training.evaluation.export import FILES as EVALUATION
from training.evaluation.export import write_evaluation
from training.evaluation.judge import Evaluation
from training.run.extension import (
    INHERITED,
    apply_inherited,
    extended_settings,
    load_inherited,
    missing_parent,
    note_parent,
    run_to_extend,
    save_inherited,
)
from training.run.market import load_market, record_or_pin_market
from training.run.session import Session, open_session
from training.run.status import (
    generation_row,
    market_lines,
    opening_line,
    result_block,
    status_block,
    terminal_header,
)
from utils.charts import memory_chart
from utils.cloud.settings import open_cloud
from utils.cloud.store import ObjectStore
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.memory.guard import keep_freed_memory, peak_rss_mb, release_free_memory
from utils.memory.living import count_living
from utils.memory_profiler import GENERATION, get_profiler
from utils.pictures import draw_charts
from utils.progress import progress
from utils.runs.checkpoint import generation_name, list_checkpoints
from utils.runs.find import CONFIG, SUMMARY
from utils.runs.run_lock import wait_for_lost_owner
from utils.runs.run_log import CHECKPOINTS, REPORT, RunLog

logger = logging.getLogger(__name__)
RESULTS = (*EVALUATION, "fitness.png", "learning.png", "equity.png", "memory.png", SUMMARY)
"""Names of what is written at the end; the summary is uploaded last, since it marks the end."""
FILES = (MARKET, f"{INHERITED}/*")
"""Patterns of what is written before the first generation."""
PLOT_EVERY = 10
"""Generations between updates of the pictures."""


def run_train(arguments: TrainArguments, explicit: frozenset[str]) -> None:
    """Run the command `train`, with the cloud that the environment names."""
    config, parent = arguments.settings, None
    if arguments.extend is not None:
        parent = run_to_extend(arguments.extend, config)
        config = extended_settings(parent, config, explicit)
    run_training(config, explicit, store=open_cloud(), parent=parent)


def run_training(
    config: Config,
    explicit: frozenset[str],
    splits: Splits | None = None,
    store: ObjectStore | None = None,
    parent: RunLog | None = None,
) -> None:
    """Train, or continue a run, to its last generation.

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
        config, run = session.settings, session.run
        if is_complete(run, config, explicit):
            return
        if parent is not None:
            note_parent(parent, session.run.path)
        parent = missing_parent(session.run.path)
        logger.info("%s", opening_line(config, session.device, session.run.path))
        market, scores = load_market(config, audits=not (session.run.path / MARKET).is_file())
        market = record_or_pin_market(session.run.path, market, splits)
        logger.info("%s", market_lines(config, market), extra={"terminal": terminal_header(config, market)})
        if config.evaluation.benchmark is not None:
            read_benchmark(config.evaluation.benchmark, market.dates)  # refused now, not after the training
        if parent is not None:
            save_inherited(parent, session.run.path, market)
        trainer = build_trainer(config, market, session.device, safe_point=session.safe_point, profiler=get_profiler())
        release_free_memory()  # before it is kept: preparing a large market takes more than training on it
        keep_freed_memory()
        if not session.restore(trainer) and (inherited := load_inherited(session.run.path)) is not None:
            logger.info("begins with generation %d of %s", inherited.generation, inherited.run_id)
            apply_inherited(inherited, trainer)
        if config.memory_report == "trace":
            tracemalloc.start()
        get_profiler().is_reporting = config.memory_report in ("on", "trace") or (
            config.memory_report == "auto" and not sys.stdout.isatty()
        )
        get_profiler().log_memory("baseline", show_objects=config.memory_report != "off", counts=True)
        _train(session, trainer)
        _finish(trainer, session.run, config, scores)


def train_of_study(config: Config, explicit: frozenset[str], splits: Splits) -> int:
    """Train a run of a study to its last generation, from where it stopped; return that generation's number."""
    folder = config.runs_dir / str(config.run)
    store = open_cloud(below=config.runs_dir.name)
    wait_for_lost_owner(folder)
    if (folder / CONFIG).is_file() or (store is not None and store.list(f"{folder.name}/")):  # it has begun
        config = dataclasses.replace(config, run=None, resume=folder.name)
    run_training(config, explicit, splits=splits, store=store)
    return max(list_checkpoints(folder / CHECKPOINTS), default=0)


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
        "%s is complete: its %d generations are in %s; train it further with %s", run.path, end, REPORT, further
    )
    return True


def _train(session: Session[Config], trainer: ERLTrainer) -> None:
    config, done = session.settings, trainer.generation

    def report(record: Mapping[str, Any], checkpoint_seconds: float) -> None:
        trainer.log.add("checkpoint", checkpoint_seconds)
        total, champion = record["seconds"]["total"] + checkpoint_seconds, trainer.champion
        shown = {**record, "seconds": {**record["seconds"], "checkpoint": checkpoint_seconds, "total": total}}
        evidence = dataclasses.replace(champion.evidence, shrink=champion.shrink, timing=champion.timing).sentence
        row = generation_row(shown, is_first=trainer.generation == done + 1)
        whole = status_block(shown, get_profiler().summary_line(), config.env, evidence)
        logger.info("%s", whole, extra={"terminal": row})
        if get_profiler().is_reporting:
            logger.info("%s", get_profiler().report())
        for kind, growth in get_profiler().leaks().items():
            logger.warning("leak: %s %s", kind, growth)
        # The pictures of the last one are drawn at the end.
        if trainer.generation % PLOT_EVERY == 0 and trainer.generation < config.generations:
            _draw_progress(session.run, _note(config))

    records = trainer.run(config.generations)
    session.train(trainer, progress(records, "training", "generation", config.generations, done=done), report)


def _note(config: Config) -> str:
    if config.data is None:
        return "built-in synthetic market: the result says nothing about real markets"
    return "if the data hold survivors only, they flatter every result"


def _draw_progress(run: RunLog, note: str) -> None:
    records = run.records()
    draw_charts([fitness_chart(records)], run.path / "fitness.png", note)
    draw_charts(learning_charts(records), run.path / "learning.png", note, "Learning by generation")
    draw_charts([memory_chart(get_profiler().snapshots)], run.path / "memory.png")


def _finish(trainer: ERLTrainer, run: RunLog, config: Config, scores: PlantedScores | None) -> None:
    _draw_progress(run, _note(config))  # before judging, which would look like growth
    logger.info("judging the champion against its baselines")
    evaluation = judge_training(trainer, config, run.path, scores)
    trainer.safe_point()
    draw_charts([equity_chart(evaluation)], run.path / "equity.png", _note(config))
    get_profiler().log_memory("end", show_objects=config.memory_report != "off", counts=True)
    logger.debug("%s", get_profiler().history())
    write_evaluation(evaluation, run.path)
    summary = _summary(trainer, evaluation)
    run.write_summary(summary)
    run.tracker.keep((REPORT, SUMMARY), trainer.champion.save)
    whole, brief = result_block(evaluation, _note(config), run.path, generation_name(trainer.generation))
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
        "replay_capacity": trainer.replay.capacity,
        "replay_size": trainer.replay.size,
        "replay_bytes_per_transition": trainer.replay.bytes_per_row,
        "peak_rss_mb": peak_rss_mb(),
        **{f"{name}_per_generation": [measures[name] for measures in ends] for name in ("rss_mb", "uss_mb")},
        **count_living(),
        "seconds": {phase: [seconds.get(phase) for seconds in trainer.log.seconds] for phase in PHASES},
        "device": str(trainer.device),
        "champion": {
            "generation": trainer.generation,
            "return_percent": {name: estimates["return"].value for name, estimates in evaluation.policies.items()},
            "verdict": evaluation.sentence,
        },
    }
