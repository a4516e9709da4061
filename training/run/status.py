"""Lines of the console about a run: its start, each generation, its result."""

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
"""Columns of a narrow terminal that a label leaves."""


def opening_lines(config: Config, market: Market, device: object, path: Path) -> str:
    """Return the line at the start of a run: market, days, stocks, device and where results go."""
    planted = f"built-in market ({config.synthetic.kind}; it says nothing about real ones)"
    source = planted if config.data is None else config.data.name
    days, columns = market.data_array.shape[:2]
    return (
        f"{source}: {days:,} days to {market.dates[-1]}, {len(market.investable_columns):,} of {columns:,} columns "
        f"investable; {config.profile} profile on {device}; results in {path}"
    )


def status_block(record: Mapping[str, Any], memory: str, holds_market: bool = False) -> str:
    """Return the state of a run after a generation, several lines of text.

    `record` is that of metrics.jsonl with its `seconds`; results are percent of the initial capital, `win_rate` a
    share between 0 and 1, costs in currency units. What is None is shown as -. `memory` is one line.

    Args:
        holds_market: the champion was put in place of one whose forecasts are not significant.
    """
    replay, seconds, fitness = record["replay"], record["seconds"], record["fitness"]
    trading, validation, learning = record["trading"], record["validation"], record["learning"]
    total, average, left = (_duration(seconds.get(name)) for name in ("total", "average", "left"))
    phases = ("fit", "evaluate", "evolve", "train", "validate", "checkpoint")
    spread = ", ".join(f"{name} {_percent(fitness[name])}" for name in ("mean", "max", "min"))
    win_rate = None if trading["win_rate"] is None else 100 * trading["win_rate"]
    lines = {
        "Replay": _replay(replay),
        "Time": f"{total}, average {average}, left {left} "
        f"({', '.join(f'{name} {_duration(seconds.get(name))}' for name in phases)})",
        "Fitness": f"{spread}, std {_percent(fitness['std'], signed=False)}, {fitness['above_zero']} of "
        f"{fitness['agents']} agents above zero",
        "Trades": f"{trading['trades']:,} trades, {trading['wins']:,} wins, {trading['losses']:,} losses, win rate "
        f"{_percent(win_rate, signed=False)}, {trading['positions_opened']:,} positions opened",
        "Days": f"{trading['days_with_positions']:,} with positions, {trading['days_without_positions']:,} without; "
        f"costs {cell(trading['costs'])}, penalties {cell(trading['penalties'])}",
        "Validation": f"champion {_percent(validation['champion'])}; {_evidence(learning, holds_market)}",
        "Learning": _learning(learning),
        **({"Networks": _networks(learning)} if "network_weight" in learning else {}),
        "Memory": memory,
    }
    head = f"Generation {record['generation']} of {record['generations']}"
    return "\n".join([head, *(f"  {name:<11} {line}" for name, line in lines.items())])


def result_block(evaluation: Evaluation, note: str, path: Path, checkpoint: str) -> str:
    """Return the end of a run: champion against baselines, the verdict, where things are, and commands to try next."""
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
    """Break a text that follows a label into lines of a narrow terminal."""
    return textwrap.fill(text, _TEXT_WIDTH, break_long_words=False).replace("\n", "\n" + 14 * " ")


def _replay(replay: Mapping[str, Any]) -> str:
    """Return how full the replay buffer is, and where there are networks whether they learn from it yet."""
    size, capacity, starts = replay["size"], replay["capacity"], replay.get("training_starts")
    if starts is None:
        return f"{size:,} / {capacity:,} transitions"
    return f"{size:,} / {capacity:,}, ready" if size >= starts else f"Buffer not ready: {size:,} / {starts:,}"


def _evidence(learning: Mapping[str, Any], holds_market: bool) -> str:
    """Return the p-value of the champion's forecasts, and whether the market is held instead."""
    evidence = Evidence(learning["p_value_selection"], learning["p_value_timing"])
    return f"{evidence}{'; it holds the market' if holds_market else ''}"


def _learning(learning: Mapping[str, Any]) -> str:
    """Return what forecasts and value foretell of what they have not seen, and what became of the best agents."""
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
    """Return what gradient steps did to the networks, and how much the elites trust them."""
    shares = "".join(
        f", {'with networks' if name == 'both' else name} {100 * learning[f'explained_by_{name}']:.2f} %"
        for name in ("ridge", "both")
    )
    parts = [
        _losses(learning),
        f"relative results explained out of fold by elites:{shares[1:]}",
        f"weights: network {learning['network_weight']:.2f}, ridge {learning['ridge_weight']:.2f}",
        f"actor kept in {100 * learning['actors_kept']:.0f} % of agents",
        f"exploration noise {learning['noise_scale']:.2f}",
    ]
    skipped = learning.get("skipped_updates", 0)
    return "; ".join(parts) + (f"; {skipped:,.0f} updates skipped" if skipped else "")


def _losses(learning: Mapping[str, Any]) -> str:
    """Return the losses of critics and actors with the norms of their gradients; nothing is trained at first."""
    if "critic_loss" not in learning:
        return "not trained yet"
    found = (
        f"{name} loss {learning[f'{name}_loss']:.3f} (gradient norm {learning[f'{name}_gradient_norm']:.2g})"
        for name in ("critic", "actor")
    )
    return ", ".join(found)


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
