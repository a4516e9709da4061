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
from training.evaluation.verdict import differences
from utils.runs.run_log import REPORT, write_atomically, write_json
from utils.tables import table

logger = logging.getLogger(__name__)
RESULTS, EQUITY = "results.json", "equity.csv"
_TRADE_COLUMNS = [
    *("policy", "window", "ticker", "order_date", "entry_date", "entry_price", "shares", "value", "target_price"),
    *("exit_date", "exit_price", "reason", "profit", "costs"),
]
SHORT = {
    "return": "return %",
    "sharpe": "Sharpe",
    "max_drawdown": "drawdown %",
    "exposure": "exposure %",
    "trades": "trades",
    "win_rate": "win rate %",
    "costs": "costs %",
    "beta": "beta",
    "alpha": "alpha %",
}
"""Names of the measures in summaries."""


def short_rows(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Return the measures that matter most of the champion and the baselines, by policy."""
    rows = {}
    for name, found in evaluation.policies.items():
        ranked = evaluation.coefficients.get(name, (None, None))[1]
        rows[name] = {
            **{label: found[key].value for key, label in SHORT.items()},
            "return 95%": _interval(found["return"]),
            "rank IC": None if ranked is None else ranked.mean,
        }
    return rows


def short_table(evaluation: Evaluation) -> str:
    """Return the champion against the baselines in one table of at most 80 columns."""
    rows = [{"policy": name, **row} for name, row in short_rows(evaluation).items()]
    return table(rows, ("policy", "return %", "return 95%", "Sharpe", "beta", "alpha %", "rank IC"))


def verdict_table(evaluation: Evaluation) -> str:
    """Return the differences behind the verdict, with intervals and chances, in at most 80 columns."""
    rows = [
        {
            "% of capital a year": name,
            "mean": test.mean,
            "95%": _span(*test.interval),
            "chance": chance and f"{chance:.4f}",
        }
        for name, test, chance in differences(evaluation.judgement)
    ]
    return table(rows, list(rows[0]))


def coefficient_table(evaluation: Evaluation) -> str:
    """Return the information coefficients of all scores, in at most 80 columns."""
    rows = []
    for name, found in evaluation.coefficients.items():
        row: dict[str, Any] = {"scores": name}
        for label, one in zip(("IC", "rank IC"), found, strict=True):
            row[label] = None if one is None else f"{one.mean:+.3f}"
            row |= {f"{label} {key}": None if one is None else getattr(one, key) for key in ("t", "ratio")}
        rows.append(row)
    return table(rows, list(rows[0]))


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
    return None if estimate.low is None or estimate.high is None else _span(estimate.low, estimate.high)


def _span(low: float, high: float) -> str:
    return f"{low:+.2f} to {high:+.2f}"


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
    logger.info("%s\n\n%s", verdict_table(evaluation), coefficient_table(evaluation))
    _log_luck(evaluation)
    for name, effect in evaluation.biases.items():
        logger.info("known bias: %s: %s", name, effect)
    for caveat in evaluation.caveats:
        logger.info("%s", caveat)
    logger.info("verdict: %s", evaluation.sentence)


def _log_luck(evaluation: Evaluation) -> None:
    """Tell how much the choice among trials may have added."""
    found, share = evaluation.overfitting, 100 * evaluation.judgement.share_of_pickers_beaten
    logger.info("more profit than %.1f%% of random pickers with the same orders", share)
    if found.deflated_information_ratio is not None:
        logger.info(
            "deflated information ratio: probability %.3f of a true ratio over equal weight above %.2f%s",
            found.deflated_information_ratio,
            found.expected_best_ratio,
            f", which the best of {found.trials:,} trials without skill would show" if evaluation.trials > 1 else "",
        )
    logger.info("%s", found.note)


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write page, results, trades and equity into a folder, each file in one step or newly made."""
    folder.mkdir(exist_ok=True)
    trades = trade_frame(evaluation)
    trades.to_csv(folder / "trades.csv", index=False)
    trades.to_parquet(folder / "trades.parquet", index=False)
    write_equity(evaluation, folder)
    write_json(folder / RESULTS, results(evaluation))
    write_page(evaluation, folder / REPORT)
    logger.info("written to %s", folder)


def write_equity(evaluation: Evaluation, folder: Path) -> None:
    """Write the equity by policy into a folder, in one step."""
    write_atomically(folder / EQUITY, equity_frame(evaluation).to_csv(index=False))


def results(evaluation: Evaluation) -> dict[str, Any]:
    """Return what was found as JSON values; without times and looks, so that the same evaluation gives the same."""
    first, last = str(evaluation.dates[0]), str(evaluation.dates[-1])
    champion = {"first_day": first, "last_day": last, "champion_generation": evaluation.champion_generation}
    folds = {"folds": [dataclasses.asdict(fold) for fold in evaluation.folds]}
    return {
        "run": evaluation.name,
        "split": evaluation.split,
        "windows": len(evaluation.played.days),
        **(folds if evaluation.folds else champion),
        "verdict": verdict_values(evaluation),
        "information_coefficients": {
            name: {
                label: None if one is None else dataclasses.asdict(one)
                for label, one in zip(("plain", "rank"), found, strict=True)
            }
            for name, found in evaluation.coefficients.items()
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


def verdict_values(evaluation: Evaluation) -> dict[str, Any]:
    """Return the verdict as JSON values."""
    judgement = evaluation.judgement
    contest = judgement.contest
    tests = {
        "over_random_picker": judgement.against_pickers,
        "timing": judgement.timing,
        "exposure": judgement.exposure,
        "over_equal_weight": judgement.against_equal_weight,
        "over_best_rival": contest and contest.test,
    }
    return {
        "sentence": evaluation.sentence,
        "evidence": [
            {**dataclasses.asdict(evidence), "p_value": evidence.smallest, "is_significant": evidence.is_significant}
            for evidence in evaluation.evidence
        ],
        "champions_that_hold_the_market": evaluation.holders,
        "has_skill": judgement.has_skill,
        "is_better_than_random_picker": judgement.is_better_than_pickers,
        "has_timing": judgement.has_timing,
        "is_better_than_equal_weight": judgement.is_better_than_equal_weight,
        "best_rival": contest and contest.rival,
        "beside_best_rival": contest and contest.outcome,
        "rivals": contest.rivals if contest else 0,
        "trials": judgement.trials,
        "picker_chance": judgement.picker_chance,
        "timing_chance": judgement.timing_chance,
        "share_of_pickers_beaten": judgement.share_of_pickers_beaten,
        "percent_a_year": {
            name: {"mean": test.mean, "interval": test.interval, "p_value": test.p_value}
            for name, test in tests.items()
            if test is not None
        },
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
