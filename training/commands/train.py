"""A whole training run: from settings to a market, generations, checkpoints, pictures and a summary."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from data.splits import Span, Splits, spaced_windows
from data.synthetic.built_in import PlantedScores
from training.commands.evaluate import report_training
from training.erl_trainer import PHASES, ERLTrainer
from training.evaluation.baselines import ScoreRule
from training.evaluation.comparison import COLUMNS, Comparison, by_policy, compare, tune_planted
from training.run.market import MARKET, load_market, remember_market
from training.run.session import GENERATION, Session, open_session
from utils.cloud.store import ObjectStore
from utils.config.trader import UNHASHED, Config
from utils.memory.guard import keep_freed_memory, peak_rss_mb
from utils.memory.profiler import get_profiler
from utils.pictures import draw_equity, draw_fitness, draw_memory, status_block, table
from utils.runs.run_log import REPORT, SUMMARY, RunLog
from utils.runs.seeding import named_generator

logger = logging.getLogger(__name__)
BASELINE = "baseline"
RESULTS = (SUMMARY, REPORT, "fitness.png", "equity.png", "memory.png")
SYNTHETIC_NOTE = "built-in synthetic market: the result says nothing about real markets"
SURVIVORS_NOTE = "chosen on these validation windows: flattered; so is any data that holds survivors only"
_TUNING_WINDOWS = 16


def run_training(
    config: Config, explicit: frozenset[str], splits: Splits | None = None, store: ObjectStore | None = None
) -> dict[str, Any]:
    """Train, or continue a run, to its last generation; return the contents of `summary.json`.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed run to honour or refuse.
        splits: days of a new run that does not divide them by the configured fractions.
        store: where the run is kept besides the disk.

    Raises:
        DataError: the data cannot be used, or are not those that the run knew.
        NonFiniteError: an update or a result was not finite, at which the settings let the run stop.
        ConfigError, CloudError, CheckpointError, StopRequested, MemoryLimitReached: see `open_session`.
    """
    with open_session(config, explicit, UNHASHED, store=store, files=(MARKET,), results=RESULTS) as session:
        config = session.settings
        logger.info("profile %s", config.profile)
        keep_freed_memory()
        get_profiler().log_memory(BASELINE, census=config.census_every > 0)
        market, scores = load_market(config)
        market = remember_market(session.run.path, market, splits)
        trainer = ERLTrainer(config, market, session.device, session.safe_point)
        session.restore(trainer)
        get_profiler().log_memory("start", show_objects=config.census_every > 0)
        _train(session, trainer)
        return _finish(trainer, session.run, config, scores)


def _train(session: Session[Config], trainer: ERLTrainer) -> None:
    config, run = session.settings, session.run

    def records() -> Iterator[dict[str, Any]]:
        while trainer.generation < config.generations:
            yield trainer.run_generation()

    def report(record: Mapping[str, Any], checkpoint_seconds: float) -> None:
        trainer.add_seconds("checkpoint", checkpoint_seconds)
        logger.info("%s", status_block(record))
        logger.info("%s", get_profiler().trend_table("evolve"))
        for leak in get_profiler().find_leaks("evolve"):
            logger.warning("%s", leak)
        if trainer.generation % config.plot_every == 0:
            _draw_progress(run, _note(config))

    session.train(trainer, records(), report, lambda: {trainer.champion_generation})


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
