"""What a run shows and leaves behind: a line for each generation, pictures, and at its end the judgement."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from data.features.catalogue import CATALOGUE, LIBRARY
from data.market import Market
from data.record import MARKET
from environment.benchmark import MOST_STOCKS, SAMPLE
from models.ddpg import LOSSES
from training.commands.evaluate import judge_training
from training.erl_trainer import ERLTrainer
from training.evaluation.charts import equity_chart, fitness_chart, learning_charts
from training.evaluation.export import FILES as EVALUATION
from training.evaluation.export import answer, in_full, write_evaluation
from training.evaluation.judge import Evaluation
from training.generation_log import PHASES
from training.run.extension import INHERITED
from utils import VERSION
from utils.charts import memory_chart
from utils.config.cli import command_line
from utils.config.kinds import RUNS
from utils.config.trader import Config, EnvironmentConfig
from utils.errors import ConfigError
from utils.memory_census import count_living
from utils.memory_guard import keep_freed_memory, peak_rss_mb, release_free_memory
from utils.memory_profiler import BASELINE, GENERATION, get_profiler
from utils.pictures import draw_charts
from utils.runs.checkpoint import generation_name, list_checkpoints
from utils.runs.console import FILE_ONLY
from utils.runs.find import SUMMARY
from utils.runs.run_log import CHECKPOINTS, REPORT, SETTINGS, RunLog
from utils.tables import many, p_words

logger = logging.getLogger(__name__)
RESULTS = (*EVALUATION, "learning.png", "memory.png", "equity.png", SUMMARY)
"""Names of what is written at the end; the summary is uploaded last, since it marks the end."""
FILES = (MARKET, f"{INHERITED}/*")
"""Patterns of what is written before the first generation."""
PLOT_EVERY = 5
"""Generations between updates of the pictures."""

_NAMED = 5
"""Columns that are named at the start."""
_SPREAD = ("mean", "max", "min", "std")
"""Of the agents' fitness."""


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
    get_profiler().is_reporting = memory_report == "on"
    get_profiler().log_memory(BASELINE, show_objects=memory_report != "off")


def report_generation(
    trainer: ERLTrainer, run: RunLog, config: Config, record: Mapping[str, Any], checkpoint_seconds: float
) -> None:
    """Show the record of a generation, what leaks, and every few generations pictures."""
    trainer.log.add("checkpoint", checkpoint_seconds)
    total = record["seconds"]["total"] + checkpoint_seconds
    shown = {**record, "seconds": {**record["seconds"], "checkpoint": checkpoint_seconds, "total": total}}
    row = generation_row(shown, is_first=trainer.generation == trainer.log.first)
    whole = status_block(shown, get_profiler().summary_line(), config.env, trainer.champion.evidence.sentence)
    logger.info("%s", whole, extra={"terminal": row})
    if get_profiler().is_reporting:
        report = get_profiler().report()
        logger.info("%s", report, extra={"terminal": report})
    for kind, growth in get_profiler().leaks().items():
        logger.warning("leak: %s %s", kind, growth)
    # The pictures of the last one are drawn at the end.
    if trainer.generation % PLOT_EVERY == 0 and trainer.generation < config.generations:
        _draw_progress(run, config)


def _note(config: Config) -> str:
    if config.data is None:
        return "built-in synthetic market: the result says nothing about real markets"
    return "if the data hold survivors only, they flatter every result"


def _draw_progress(run: RunLog, config: Config) -> None:
    records = run.records()
    charts = [fitness_chart(records), *learning_charts(records)]
    draw_charts(charts, run.path / "learning.png", _note(config), "Learning by generation")
    draw_charts([memory_chart(get_profiler().snapshots)], run.path / "memory.png")


def finish(trainer: ERLTrainer, run: RunLog, config: Config) -> None:
    """Judge the champion; write and show the results."""
    # Both before judging, which would look like growth.
    _draw_progress(run, config)
    profiler = get_profiler()
    shows_objects = config.memory_report != "off"
    trend = profiler.analysis(all_phases=profiler.is_reporting, shows_objects=shows_objects)
    logger.info("%s", trend, extra=FILE_ONLY)
    logger.info("judging the champion against its baselines")
    evaluation = judge_training(trainer, config, run.path)
    trainer.safe_point()
    before, after = profiler.snapshots[-1], profiler.log_memory("After judging")
    sizes = (*(one.measures["rss_mb"] / 1024 for one in (before, after)), peak_rss_mb() / 1024)
    told = "memory of judging, which trains nothing: RAM %.2f GB before, %.2f GB after, peak of the run %.2f GB"
    logger.info(told, *sizes, extra=FILE_ONLY)
    write_evaluation(evaluation, run.path)
    draw_charts([equity_chart(evaluation)], run.path / "equity.png", _note(config))
    summary = _summary(trainer, evaluation)
    run.write_summary(summary)
    run.tracker.keep((REPORT, SUMMARY), trainer.champion.save)
    runs = [] if run.path.parent == RUNS else ["--runs-dir", str(run.path.parent)]
    lines = {"page": run.path / REPORT, "next": command_line("signals", "--run", run.name, *runs)}
    further = {
        "checkpoint": run.path / CHECKPOINTS / generation_name(trainer.generation),
        "": command_line("walk-forward", "--config", str(run.path / SETTINGS), *runs),
    }
    logger.info("%s", in_full(evaluation, lines | further), extra={"terminal": answer(evaluation, lines)})


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


def opening_line(config: Config, device: object, path: Path) -> str:
    """Return the first line of a run: what it trains, where, and where its results go."""
    return (
        f"ERL trader {VERSION.rpartition('.')[0]}, run {path}: {many(config.generations, 'generation')} of "
        f"{many(config.evolution.population_size, 'agent')}, {config.profile} profile, seed {config.seed}, on {device}"
    )


def market_lines(config: Config, market: Market) -> str:
    """Return what was loaded, from where, and the days of both environments."""
    days, columns, features = market.data_array.shape
    planted = f"the built-in market ({config.synthetic.kind}; it says nothing about real ones)"
    source, stocks = planted if config.data is None else config.data, len(market.investable_columns)
    splits = market.splits
    spans = {"training": splits.train, "validation": splits.validation}
    environments = (
        f"{name} on {span.days} days from {market.dates[span.first]} to {market.dates[span.last]}"
        for name, span in spans.items()
    )
    added = [one.name for one in market.features if one.name not in CATALOGUE]
    count = sum(one.group != LIBRARY for one in market.features)
    names = ", ".join(added[:_NAMED]) + ", ..." * (len(added) > _NAMED)
    named = f", {len(added)} of them columns: {names}" if added else ""
    named += f"; compared among {many(len(market.stock_columns), 'stock')}" if market.features else ""
    is_sample = stocks > MOST_STOCKS and not config.evaluation.benchmark_weights
    benchmark = f"\nBenchmark: {SAMPLE} of these {stocks} stocks, drawn from the seed" if is_sample else ""
    return (
        f"Loaded: {days} days, {columns} stocks, {features} features from {source}; {market.dates[0]} to "
        f"{market.dates[-1]}, {'all' if stocks == columns else stocks} may be bought\n"
        f"Environments: {', '.join(environments)}; episodes of {config.env.trading_days} trading and "
        f"{config.env.settlement_days} settlement days\n"
        f"Training range: days {splits.train.first} to {splits.train.last}; validation range: days "
        f"{splits.validation.first} to {splits.validation.last}; {splits.holdout.days} days at the end are left out, "
        "for the holdout or a fold's test\n"
        f"Inputs: past returns and {count} features{named}{benchmark}"
    )


def terminal_header(config: Config, market: Market) -> str:
    """Return what a person at a terminal reads of the market: the data and the days."""
    data = f'built-in market "{config.synthetic.kind}" (SYNTHETIC)' if config.data is None else config.data.name
    spans = zip(("train", "validate"), (market.splits.train, market.splits.validation), strict=True)
    days = [f"{name} {str(market.dates[span.first])[:7]} to {str(market.dates[span.last])[:7]}" for name, span in spans]
    holdout = "holdout untouched" if market.splits.holdout.days else "no holdout"
    return f"{data}, {many(len(market.investable_columns), 'stock')}: {', '.join(days)}, {holdout}"


def generation_row(record: Mapping[str, Any], *, is_first: bool) -> str:
    """Return a generation as a line of a table, whose header goes before the first, and its memory as another one; for
    a record see `status_block`."""
    validation, learning, fitness, memory = (record[part] for part in ("validation", "learning", "fitness", "memory"))
    error = validation.get("added_error", math.nan)
    added = _at_most(14, "{:+.1f} +- {:.1f}", validation["agents"] - validation["benchmark"], error)
    known = (math.nan if fitness[name] is None else fitness[name] for name in _SPREAD)
    spread = "".join(f" {_at_most(5, '{:.1f}', value):>5}" for value in known)
    minutes, replay = round(record["seconds"]["left"]) // 60, record["replay"]
    left = f"{minutes // 60}h{minutes % 60:02d}" if minutes >= 60 else tqdm.format_interval(record["seconds"]["left"])
    gpu = f", GPU {memory['gpu_allocated_mb'] / 1024:,.2f} GB" if memory["gpu_reserved_mb"] else ""
    alive = f"environments {memory['environments']}, agents {memory['agents']}"
    row = (
        f"{record['generation']:>4}{spread}{learning['elite_profit_percent']:>9.1f}{validation['champion']:>11.1f} "
        f"{added:>14}{p_words(learning['evidence_p_value']):>10} {left:>5}\n"
        f"      RAM {memory['rss_mb'] / 1024:,.2f} GB{gpu}, {alive}, buffer {replay['size']:,} / {replay['capacity']:,}"
    )
    spread = "".join(f"{name:>6}" for name in _SPREAD)
    head = f"{' gen'}{spread}{'training':>9}{'validation':>11} {'agents add':>14}{'evidence':>10}{'left':>6}"
    return f"\n{'fitness, %':>28}{'profit per episode, %':>35}\n{head}\n{row}" if is_first else row


def _at_most(width: int, form: str, *values: float) -> str:
    """Return numbers in a form with a decimal each, or without decimals where that is wider."""
    text = form.format(*values)
    return text if len(text) <= width else form.replace(".1f", ".0f").format(*values)


def status_block(record: Mapping[str, Any], memory: str, rules: EnvironmentConfig, evidence: str) -> str:
    """Return the state of a run after a generation as several lines.

    `record` is that of metrics.jsonl with its `seconds`: results in percent of the initial capital, `win_rate` a share
    between 0 and 1, counts and costs summed over all episodes; None is shown as -. `memory` and `evidence`, on the
    champion's orders, are one line each.
    """
    replay, seconds, fitness = record["replay"], record["seconds"], record["fitness"]
    trading, learning = record["trading"], record["learning"]
    size, starts, capacity = (replay[name] for name in ("size", "training_starts", "capacity"))
    buffer = f"Buffer not ready: {size:,} / {starts:,}" if size < starts else f"{size:,} / {capacity:,}, ready"
    total, average, left = (_duration(seconds.get(name)) for name in ("total", "average", "left"))
    phases = ("evaluate", "evolve", "train", "validate", "checkpoint", "other")
    spread = ", ".join(f"{name} {_percent(fitness[name])}" for name in _SPREAD[:3])
    episodes = max(1, (trading["days_with_positions"] + trading["days_without_positions"]) // rules.episode_steps)
    costs = _percent(100 * trading["costs"] / rules.initial_capital / episodes, "")
    win_rate = None if trading["win_rate"] is None else 100 * trading["win_rate"]
    told = {name: value for name, value in record["validation"].items() if name != "added_error"}
    champions = (f"{name.replace('_', ' ')} {_percent(value)}" for name, value in told.items())
    lines = {
        "Replay": buffer,
        "Time": f"{total}, average {average}, left {left}, then judging "
        f"({', '.join(f'{name} {_duration(seconds.get(name))}' for name in phases)})",
        "Fitness": f"an episode's profit over the benchmark, less risk: {spread}, std {_percent(fitness['std'], '')}, "
        f"{fitness['above_zero']} of {fitness['agents']} agents above zero",
        "Positions": f"{trading['positions_opened'] / episodes:.1f} an episode ({trading['positions_opened']:,} in "
        f"{episodes:,} episodes); of {trading['trades']:,} closed {trading['wins']:,} wins, {trading['losses']:,} "
        f"losses, win rate {_percent(win_rate, '')}; an episode costs {costs} of the capital",
        "Validation": f"{', '.join(champions)}, mean of single episodes",
        "Evidence": evidence,
        "Learning": _learning(learning),
        "Memory": memory,
    }
    head = f"Generation {record['generation']} / {record['generations']} complete"
    return "\n".join([head, *(f"  {name:<11} {line}" for name, line in lines.items())])


def _learning(learning: Mapping[str, Any]) -> str:
    """Return the losses of the networks, what the elites earn, and their genes."""
    losses = (f"{name} {learning.get(f'{name}_loss', math.nan):.3f}" for name in LOSSES)
    texts = [
        f"losses: {', '.join(losses)}" if "critic_loss" in learning else "not trained",
        f"elites earned {_percent(learning['elite_profit_percent'])} an episode",
        f"price of risk {learning['risk']:.3f}, largest weight {learning['largest']:.2f}",
        f"exploration noise {learning['noise_scale']:.2f}",
    ]
    if skipped := learning.get("skipped_updates", 0):
        texts.append(f"{skipped:,.0f} updates skipped")
    return "; ".join(texts)


def _percent(value: float | None, sign: str = "+") -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:{sign}.2f} %"


def _duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if seconds >= 60 else f"{seconds:.1f} s"
