"""An evaluation as text on the console and as files: results.json, trades, equity and the page."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from training.evaluation.assessment import METRICS, Estimate, Evaluation
from training.evaluation.page.write import write_page
from training.evaluation.tracks import RANDOM
from utils.runs.run_log import REPORT, write_json
from utils.tables import table

logger = logging.getLogger(__name__)
_TRADE_COLUMNS = [
    *("policy", "window", "ticker", "order_date", "entry_date", "entry_price", "shares", "value", "target_price"),
    *("exit_date", "exit_price", "reason", "profit", "costs"),
]
_SHORT = {
    "return": "return %",
    "sharpe": "Sharpe",
    "max_drawdown": "drawdown %",
    "trades": "trades",
    "win_rate": "win rate %",
    "costs": "costs %",
}
"""Columns of the short table, by measure."""


def short_rows(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Return the measures that matter most of the champion and the baselines, by policy."""
    return {
        name: {**{label: found[key].value for key, label in _SHORT.items()}, "return 95%": _interval(found["return"])}
        for name, found in evaluation.policies.items()
        if name not in evaluation.elites
    }


def short_table(evaluation: Evaluation) -> str:
    """Return the champion against the baselines in one table of at most 80 columns."""
    rows = [{"policy": name, **row} for name, row in short_rows(evaluation).items()]
    return table(rows, ("policy", "return %", "return 95%", "Sharpe", "drawdown %", "trades"))


def policy_table(evaluation: Evaluation) -> str:
    """Return every policy's measures, and the intervals of return and Sharpe ratio."""
    labels = {key: f"{metric.label} ({metric.unit})" for key, metric in METRICS.items()}
    rows = [
        {
            "policy": name,
            **{labels[key]: estimate.value for key, estimate in found.items()},
            "return 95%": _interval(found["return"]),
            "Sharpe 95%": _interval(found["sharpe"]),
        }
        for name, found in evaluation.policies.items()
    ]
    names = list(labels.values())
    first = table(rows, ("policy", *names[:6], "return 95%", "Sharpe 95%"))
    return f"{first}\n\n{table(rows, ('policy', *names[6:]))}"


def _interval(estimate: Estimate) -> str | None:
    if estimate.low is None or estimate.high is None:
        return None
    return f"{estimate.low:+.2f} to {estimate.high:+.2f}"


def log_evaluation(evaluation: Evaluation) -> None:
    """Tell everything on the console."""
    played = evaluation.played
    logger.info(
        "%s, %s to %s in %d windows of %d sessions, one after the other",
        evaluation.title,
        evaluation.dates[0],
        evaluation.dates[-1],
        len(played.days),
        played.days.shape[1] - 1,
    )
    if evaluation.folds:
        rows = [
            {
                "fold": fold.name,
                "test days": " to ".join(fold.dates["holdout"]),
                "champion of generation": fold.champion_generation,
                "return %": fold.return_percent,
                "random picker %": fold.random_return_percent,
            }
            for fold in evaluation.folds
        ]
        logger.info("%s", table(rows, list(rows[0])))
    head = "return % at costs a leg of"
    costs = [
        {head: name, **{f"{bps:g} bp": value for bps, value in by_cost.items()}}
        for name, by_cost in evaluation.cost_returns.items()
    ]
    logger.info("%s\n\n%s", policy_table(evaluation), table(costs, list(costs[0])))
    _log_luck(evaluation)
    for name, effect in evaluation.biases.items():
        logger.info("known bias: %s: %s", name, effect)
    if evaluation.split == "holdout":
        logger.info("looks at the holdout of this run: %d", len(evaluation.looks or ()))
    logger.info("verdict: %s", evaluation.judgement.sentence)


def _log_luck(evaluation: Evaluation) -> None:
    """Tell how much the choice among trials may have added."""
    found, share = evaluation.overfitting, 100 * evaluation.judgement.share_of_pickers_beaten
    logger.info("more profit than %.1f%% of random pickers with the same orders", share)
    if found.deflated_sharpe is not None:
        logger.info(
            "deflated Sharpe ratio: probability %.3f of a true ratio above %.2f%s",
            found.deflated_sharpe,
            found.expected_best_sharpe,
            f", which the best of {found.trials:,} trials without skill would show" if evaluation.trials > 1 else "",
        )
    if found.backtest_overfitting is not None:
        logger.info("probability of backtest overfitting on validation: %.2f", found.backtest_overfitting)


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write page, results, trades and equity into a folder, each file in one step or newly made."""
    folder.mkdir(exist_ok=True)
    trades = trade_frame(evaluation)
    trades.to_csv(folder / "trades.csv", index=False)
    trades.to_parquet(folder / "trades.parquet", index=False)
    equity_frame(evaluation).to_csv(folder / "equity.csv", index=False)
    write_json(folder / "results.json", results(evaluation))
    write_page(evaluation, folder / REPORT)
    logger.info("written to %s", folder)


def results(evaluation: Evaluation) -> dict[str, Any]:
    """Return what was found as JSON values; without times and looks, so that the same evaluation gives the same."""
    judgement = evaluation.judgement
    first, last = str(evaluation.dates[0]), str(evaluation.dates[-1])
    champion = {"first_day": first, "last_day": last, "champion_generation": evaluation.champion_generation}
    folds = {"folds": [dataclasses.asdict(fold) for fold in evaluation.folds]}
    return {
        "run": evaluation.name,
        "split": evaluation.split,
        "windows": len(evaluation.played.days),
        **(folds if evaluation.folds else champion),
        "verdict": {
            "sentence": judgement.sentence,
            "is_better_than_random_picker": judgement.is_better_than_pickers,
            "is_better_than_equal_weight": judgement.is_better_than_equal_weight,
            "trials": judgement.trials,
            "picker_chance": judgement.picker_chance,
            "share_of_pickers_beaten": judgement.share_of_pickers_beaten,
            "percent_a_year": {
                name: {"mean": test.mean, "interval": test.interval, "p_value": test.p_value}
                for name, test in (
                    ("over_random_picker", judgement.against_pickers),
                    ("over_equal_weight", judgement.against_equal_weight),
                )
            },
        },
        "policies": {
            name: {key: estimate._asdict() for key, estimate in found.items()}
            for name, found in evaluation.policies.items()
        },
        "overfitting": dataclasses.asdict(evaluation.overfitting),
        "return_percent_at_cost_bps": {
            name: {f"{bps:g}": value for bps, value in by_cost.items()}
            for name, by_cost in evaluation.cost_returns.items()
        },
        "known_biases": evaluation.biases,
    }


def trade_frame(evaluation: Evaluation) -> pd.DataFrame:
    """Return every trade of the agents, one row each: dates, prices and money in currency units, `profit` before
    `costs`."""
    market = evaluation.market
    dates = market.dates.astype("datetime64[D]").astype(str).tolist()

    def row(policy: str, trade: Mapping[str, Any]) -> dict[str, Any]:
        days = {f"{when}_date": dates[trade[f"{when}_day"]] for when in ("order", "entry", "exit")}
        return {"policy": policy, **trade, **days, "ticker": market.tickers[market.investable_columns[trade["stock"]]]}

    rows = [row(policy, trade) for policy, trades in evaluation.played.trades.items() for trade in trades]
    return pd.DataFrame(rows, columns=_TRADE_COLUMNS)


def equity_frame(evaluation: Evaluation) -> pd.DataFrame:
    """Return stitched equity by date, one column a policy; of random pickers the mean and percentiles 5 and 95."""
    low, high = evaluation.picker_band
    bands = {f"{RANDOM}, 5%": low, f"{RANDOM}, 95%": high}
    return pd.DataFrame({"date": np.datetime_as_string(evaluation.dates), **evaluation.curves, **bands})
