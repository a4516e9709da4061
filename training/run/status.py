"""Console output of a run: its start, each generation, its result."""

import math
import shlex
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.market import Market
from training.evaluation.export import short_table
from training.evaluation.judge import Evaluation
from utils.config.kinds import RUNS
from utils.config.trader import Config, EnvironmentConfig

_TEXT_WIDTH = 80 - 14
"""Columns of a narrow terminal beside a label."""


def opening_line(config: Config, device: object, path: Path) -> str:
    """Return the first line of a run: what it trains, where, and where its results go."""
    return (
        f"Run {path}: {config.generations} generations of {config.evolution.population_size} agents, "
        f"{config.profile} profile, seed {config.seed}, on {device}"
    )


def market_lines(config: Config, market: Market) -> str:
    """Return what was loaded, from where, and the days of both environments."""
    days, columns, features = market.data_array.shape
    planted = f"the built-in market ({config.synthetic.kind}; it says nothing about real ones)"
    source, stocks = planted if config.data is None else config.data, len(market.investable_columns)
    spans = {"training": market.splits.train, "validation": market.splits.validation}
    environments = (
        f"{name} on {span.days} days from {market.dates[span.first]} to {market.dates[span.last]}"
        for name, span in spans.items()
    )
    return (
        f"Loaded: {days} days, {columns} stocks, {features} features from {source}; {market.dates[0]} to "
        f"{market.dates[-1]}, {'all' if stocks == columns else stocks} may be bought\n"
        f"Environments: {', '.join(environments)}; episodes of {config.env.trading_days} trading and "
        f"{config.env.settlement_days} settlement days"
    )


def status_block(record: Mapping[str, Any], memory: str, rules: EnvironmentConfig, bet: str) -> str:
    """Return the state of a run after a generation as several lines.

    `record` is that of metrics.jsonl with its `seconds`: results in percent of the initial capital, `win_rate` a share
    between 0 and 1, counts and costs summed over all episodes; None is shown as -. `memory` and `bet`, what the
    champion bets on its forecasts, are one line each.
    """
    replay, seconds, fitness = record["replay"], record["seconds"], record["fitness"]
    trading, validation, learning = record["trading"], record["validation"], record["learning"]
    total, average, left = (_duration(seconds.get(name)) for name in ("total", "average", "left"))
    phases = ("evaluate", "evolve", "train", "validate", "checkpoint", "other")
    spread = ", ".join(f"{name} {_percent(fitness[name])}" for name in ("mean", "max", "min"))
    buffer = f"{replay['size']:,} / {replay['capacity']:,}"
    if (starts := replay.get("training_starts")) is None:
        buffer += " transitions"
    elif replay["size"] >= starts:
        buffer += ", ready"
    else:
        buffer = f"Buffer not ready: {replay['size']:,} / {starts:,}"
    champions = ", ".join(f"{name.replace('_', ' ')} {_percent(value)}" for name, value in validation.items())
    lines = {
        "Replay": buffer,
        "Time": f"{total}, average {average}, left {left}, then judging "
        f"({', '.join(f'{name} {_duration(seconds.get(name))}' for name in phases)})",
        "Fitness": f"an episode's profit: {spread}, std {_percent(fitness['std'], signed=False)}, "
        f"{fitness['above_zero']} of {fitness['agents']} agents above zero",
        **_trading(trading, rules),
        "Validation": f"{champions}, mean of single episodes",
        "Trust": f"on training days {bet}",
        "Learning": _learning(learning),
        **({"Networks": _networks(learning)} if "noise_scale" in learning else {}),
        "Memory": memory,
    }
    head = f"Generation {record['generation']} of {record['generations']}"
    return "\n".join([head, *(f"  {name:<11} {line}" for name, line in lines.items())])


def result_block(evaluation: Evaluation, note: str, path: Path, checkpoint: str) -> str:
    """Return the end of a run: champion against baselines, the verdict, paths, and commands to try next."""
    run = shlex.join(["--run", path.name, *([] if path.parent == RUNS else ["--runs-dir", str(path.parent)])])
    windows, steps = len(evaluation.played.days), evaluation.config.env.episode_steps
    returns = (
        f"of one account that reinvests over {windows} episodes of {steps} sessions in a row, {evaluation.dates[0]} to "
        f"{evaluation.dates[-1]}; alpha and the verdict per year. 'Validation' above is the mean of single episodes "
        "that overlap, each from the initial capital."
    )
    lines = {
        "Returns": _wrapped(returns),
        "Verdict": _wrapped(evaluation.sentence),
        "Note": _wrapped(note),
        "Report": path / "report.html",
        "Checkpoint": path / "checkpoints" / checkpoint,
        "Next": f"python main.py evaluate {run} --split holdout",
        "": f"python main.py signals {run}",
    }
    head = f"Result of the champion of generation {evaluation.champion_generation} on {evaluation.split} days"
    return "\n".join([head, short_table(evaluation), *(f"  {name:<11} {line}" for name, line in lines.items())])


def _wrapped(text: str) -> str:
    """Wrap a text after its label for a narrow terminal."""
    return textwrap.fill(text, _TEXT_WIDTH, break_long_words=False).replace("\n", "\n" + 14 * " ")


def _trading(trading: Mapping[str, Any], rules: EnvironmentConfig) -> dict[str, str]:
    """Return the trades and the days of the mean episode of all agents."""
    days = trading["days_with_positions"] + trading["days_without_positions"]
    episodes = max(1, days // rules.episode_steps)
    win_rate = None if trading["win_rate"] is None else 100 * trading["win_rate"]
    costs = _percent(100 * trading["costs"] / rules.initial_capital / episodes, signed=False)
    return {
        "Trades": f"{trading['trades'] / episodes:.1f} an episode ({trading['trades']:,} in {episodes:,} episodes): "
        f"{trading['wins']:,} wins, {trading['losses']:,} losses, win rate {_percent(win_rate, signed=False)}",
        "Days": f"{100 * trading['days_with_positions'] / max(1, days):.1f} % with positions; an episode costs {costs} "
        f"of the capital, penalties {_percent(trading['penalties'] / episodes, signed=False)}",
    }


def _learning(learning: Mapping[str, Any]) -> str:
    """Return the out-of-fold accuracy of forecasts, the value of elites, and the survival of lineages."""
    explained, best = (100 * learning[name] for name in ("explained", "explained_best"))
    value, profit = (_percent(learning[name]) for name in ("initial_value", "elite_profit_percent"))
    return (
        f"ridge regressions explain {explained:.2f} % of results out of fold, the best {best:.2f} %; Q(s0) {value}, "
        f"elites earned {profit}; {learning['founders']:.0f} founders left"
    )


def _networks(learning: Mapping[str, Any]) -> str:
    """Return the losses of the networks, and what the elites' actors do."""
    names = ("reward", "temporal", "actor")
    losses = "not trained yet"
    if "reward_loss" in learning:
        losses = "losses: " + ", ".join(f"{name} {learning[f'{name}_loss']:.3f}" for name in names)
    actors = ""
    if "departed" in learning:
        actors = (
            f"; {100 * learning['departed']:.0f} % of the elites' orders differ from their closed forms' and added "
            f"{_percent(learning['added'])} (standard error {learning['added_error']:.2f}) an episode"
        )
    skipped = learning.get("skipped_updates", 0)
    end = f"; {skipped:,.0f} updates skipped" if skipped else ""
    return f"{losses}{actors}; exploration noise {learning['noise_scale']:.2f}{end}"


def _percent(value: float | None, signed: bool = True) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:+.2f} %" if signed else f"{value:.2f} %"


def _duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
