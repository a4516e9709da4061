"""Console output of a run: its start, each generation, its result."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.market import Market
from models.ddpg_agent import Evidence
from training.evaluation.export import short_table
from training.evaluation.judge import Evaluation
from utils.config.trader import Config
from utils.tables import cell

_TEXT_WIDTH = 80 - 14
"""Columns of a narrow terminal beside a label."""


def opening_lines(config: Config, market: Market, device: object, path: Path) -> str:
    """Return the line at the start of a run: market, days, stocks, device and results folder."""
    planted = f"built-in market ({config.synthetic.kind}; it says nothing about real ones)"
    source = planted if config.data is None else config.data.name
    days, columns = market.data_array.shape[:2]
    return (
        f"{source}: {days:,} days to {market.dates[-1]}, {len(market.investable_columns):,} of {columns:,} columns "
        f"investable; {config.profile} profile on {device}; results in {path}"
    )


def status_block(record: Mapping[str, Any], memory: str, holds_market: bool = False) -> str:
    """Return the state of a run after a generation as several lines.

    `record` is that of metrics.jsonl with its `seconds`: results in percent of the initial capital, `win_rate` a share
    between 0 and 1, costs in currency units; None is shown as -. `memory` is one line. With `holds_market` the champion
    replaces one whose forecasts are not significant.
    """
    replay, seconds, fitness = record["replay"], record["seconds"], record["fitness"]
    trading, validation, learning = record["trading"], record["validation"], record["learning"]
    total, average, left = (_duration(seconds.get(name)) for name in ("total", "average", "left"))
    phases = ("fit", "evaluate", "evolve", "train", "validate", "checkpoint")
    spread = ", ".join(f"{name} {_percent(fitness[name])}" for name in ("mean", "max", "min"))
    win_rate = None if trading["win_rate"] is None else 100 * trading["win_rate"]
    buffer = f"{replay['size']:,} / {replay['capacity']:,}"
    if (starts := replay.get("training_starts")) is None:
        buffer += " transitions"
    elif replay["size"] >= starts:
        buffer += ", ready"
    else:
        buffer = f"Buffer not ready: {replay['size']:,} / {starts:,}"
    evidence = Evidence(learning["p_value_selection"], learning["p_value_timing"])
    holds = "; it holds the market" if holds_market else ""
    lines = {
        "Replay": buffer,
        "Time": f"{total}, average {average}, left {left} "
        f"({', '.join(f'{name} {_duration(seconds.get(name))}' for name in phases)})",
        "Fitness": f"{spread}, std {_percent(fitness['std'], signed=False)}, {fitness['above_zero']} of "
        f"{fitness['agents']} agents above zero",
        "Trades": f"{trading['trades']:,} trades, {trading['wins']:,} wins, {trading['losses']:,} losses, win rate "
        f"{_percent(win_rate, signed=False)}, {trading['positions_opened']:,} positions opened",
        "Days": f"{trading['days_with_positions']:,} with positions, {trading['days_without_positions']:,} without; "
        f"costs {cell(trading['costs'])}, penalties {cell(trading['penalties'])}",
        "Validation": f"champion {_percent(validation['champion'])}; {evidence}{holds}",
        "Learning": _learning(learning),
        **({"Networks": _networks(learning)} if "network_weight" in learning else {}),
        "Memory": memory,
    }
    head = f"Generation {record['generation']} of {record['generations']}"
    return "\n".join([head, *(f"  {name:<11} {line}" for name, line in lines.items())])


def result_block(evaluation: Evaluation, note: str, path: Path, checkpoint: str) -> str:
    """Return the end of a run: champion against baselines, the verdict, paths, and commands to try next."""
    run = f"--run {path.name}" + ("" if path.parent == Path("runs") else f" --runs-dir {path.parent}")
    lines = {
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


def _learning(learning: Mapping[str, Any]) -> str:
    """Return the out-of-fold accuracy of forecasts, the value of elites, and the survival of lineages."""
    explained, best = (100 * learning[name] for name in ("explained", "explained_best"))
    value, profit = (_percent(learning[name]) for name in ("initial_value", "elite_profit_percent"))
    parts = [
        f"ridge regressions explain {explained:.2f} % of results out of fold, the best {best:.2f} %",
        f"Q(s0) {value}, elites earned {profit}",
        f"{learning['founders']:.0f} founders left",
    ]
    if "best_elites" in learning:
        elites, children = (f"{learning[f'best_{kind}']:.0f}" for kind in ("elites", "children"))
        parts.append(f"the fittest agent was an elite in {elites}, a child in {children} of the generations so far")
    return "; ".join(parts)


def _networks(learning: Mapping[str, Any]) -> str:
    """Return the losses of the networks and their weight in the elites."""
    shares = "".join(
        f", {'with networks' if name == 'both' else name} {100 * learning[f'explained_by_{name}']:.2f} %"
        for name in ("ridge", "both")
    )
    losses = (
        f"{name} loss {learning[f'{name}_loss']:.3f} (gradient norm {learning[f'{name}_gradient_norm']:.2g})"
        for name in ("critic", "actor")
    )
    parts = [
        ", ".join(losses) if "critic_loss" in learning else "not trained yet",
        f"relative results explained out of fold by elites:{shares[1:]}",
        f"weights: network {learning['network_weight']:.2f}, ridge {learning['ridge_weight']:.2f}",
        f"actor kept in {100 * learning['actors_kept']:.0f} % of agents",
        f"exploration noise {learning['noise_scale']:.2f}",
    ]
    skipped = learning.get("skipped_updates", 0)
    return "; ".join(parts) + (f"; {skipped:,.0f} updates skipped" if skipped else "")


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
