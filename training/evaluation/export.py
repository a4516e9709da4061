"""An evaluation as text on the console and as files: results.json, trades, equity, and a self-contained page."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from training.evaluation import charts
from training.evaluation.baselines import CHAMPION, RANDOM
from training.evaluation.judge import Evaluation
from training.evaluation.measures import METRICS, Estimate
from training.evaluation.page.document import Scale, document, shown_settings, write_document
from training.evaluation.verdict import TAIL
from utils.charts import Dates, FloatArray
from utils.metrics import daily_returns
from utils.runs.run_log import REPORT, write_atomically, write_json
from utils.tables import spreadsheet_text, table

logger = logging.getLogger(__name__)
RESULTS, EQUITY = "results.json", "equity.csv"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
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
_FILED = {RANDOM: "random picker"}
"""Names of policies in files, where they differ."""
Value = TypeVar("Value")


def _filed(by_policy: Mapping[str, Value]) -> dict[str, Value]:
    return {_FILED.get(name, name): value for name, value in by_policy.items()}


def short_values(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Return the most important measures of the champion and the baselines as JSON values, by policy."""
    return _filed(_short_rows(evaluation))


def short_table(evaluation: Evaluation) -> str:
    """Return the champion against the baselines in one table of at most 80 columns."""
    rows = [{"policy": name, **row} for name, row in _short_rows(evaluation).items()]
    return table(rows, ("policy", "return %", "return 95%", "Sharpe", "beta", "alpha %", "rank IC"))


def _short_rows(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    ranked = {name: found[1] and found[1].mean for name, found in evaluation.coefficients.items()}
    return {
        name: {
            **{label: found[key].value for key, label in SHORT.items()},
            "return 95%": _span(*found["return"][1:]),
            "rank IC": ranked.get(name),
        }
        for name, found in evaluation.policies.items()
    }


def _tables(evaluation: Evaluation) -> list[str]:
    """Return every policy's measures and returns by cost, the tests behind the verdict and the coefficients."""
    labels = {key: f"{metric.label} ({metric.unit})" for key, metric in METRICS.items()}
    policies = [
        {
            "policy": name,
            **{labels[key]: estimate.value for key, estimate in found.items()},
            **{f"{label} 95%": _span(*found[label.lower()][1:]) for label in ("return", "Sharpe")},
        }
        for name, found in evaluation.policies.items()
    ]
    names = list(labels.values())
    tests = [
        {"% of capital a year": name, "mean": test.mean, "95%": _span(*test.interval), "p": p and f"{p:.4f}"}
        for name, test, p in evaluation.verdict.rows
    ]
    costs = [
        {"return % at costs per leg of": name, **{f"{bps:g} bp": value for bps, value in by_cost.items()}}
        for name, by_cost in evaluation.cost_returns.items()
    ]
    scores = [
        {"scores": name}
        | {"IC": plain and f"{plain.mean:+.3f}", "IC t": plain and plain.t, "IC ratio": plain and plain.ratio}
        | {"rank IC": rank and f"{rank.mean:+.3f}", "rank IC t": rank and rank.t, "rank IC ratio": rank and rank.ratio}
        for name, (plain, rank) in evaluation.coefficients.items()
    ]
    return [
        table(policies, ("policy", *names[:6], "return 95%", "Sharpe 95%")),
        table(policies, ("policy", *names[6:])),
        *(table(rows, list(rows[0])) for rows in (costs, tests, scores)),
    ]


def _span(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"{low:+.2f} to {high:+.2f}"


def log_evaluation(evaluation: Evaluation) -> None:
    """Show everything on the console."""
    days, dates, overfitting = evaluation.played.days, evaluation.dates, evaluation.overfitting
    logger.info(
        "%s, %s to %s in %d windows of %d sessions, one after the other",
        *(evaluation.title, dates[0], dates[-1], len(days), days.shape[1] - 1),
    )
    if evaluation.folds:
        rows = [
            {
                "fold": fold.name,
                "test days": " to ".join(fold.dates["holdout"]),
                "champion of generation": fold.champion_generation,
                "return %": fold.return_percent,
                "random selection %": fold.random_return_percent,
            }
            for fold in evaluation.folds
        ]
        logger.info("%s", table(rows, list(rows[0])))
    logger.info("%s", "\n\n".join(_tables(evaluation)))
    share = 100 * evaluation.verdict.share_of_random_beaten
    logger.info("more profit than %.1f%% of random selections with the same orders", share)
    if overfitting.deflated_information_ratio is not None:
        logger.info(
            "deflated information ratio: probability %.3f of a true ratio over equal weight above %.2f%s",
            overfitting.deflated_information_ratio,
            overfitting.expected_best_ratio,
            f", expected of the best of {overfitting.trials:,} trials without skill" if evaluation.trials > 1 else "",
        )
    biases = (f"known bias: {name}: {effect}" for name, effect in evaluation.biases.items())
    notes = (overfitting.track_record, overfitting.note, *biases, *evaluation.caveats)
    for text in (*notes, f"verdict: {evaluation.sentence}"):
        logger.info("%s", text)


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write page, results, trades and equity into a folder, each file in one step or newly made."""
    folder.mkdir(exist_ok=True)
    trades = evaluation.trades
    trades.assign(ticker=trades["ticker"].map(spreadsheet_text)).to_csv(folder / "trades.csv", index=False)
    trades.to_parquet(folder / "trades.parquet", index=False)
    write_equity(evaluation, folder)
    write_json(folder / RESULTS, results(evaluation))
    write_page(evaluation, folder / REPORT)
    logger.info("written to %s", folder)


def write_equity(evaluation: Evaluation, folder: Path) -> None:
    """Write stitched equity by date in one step, a column per policy; of random selections the mean and a band."""
    low, high = evaluation.random_band
    bands = {f"{_FILED[RANDOM]}, 5%": low, f"{_FILED[RANDOM]}, 95%": high}
    frame = pd.DataFrame({"date": np.datetime_as_string(evaluation.dates), **_filed(evaluation.equity), **bands})
    write_atomically(folder / EQUITY, frame.to_csv(index=False))


def results(evaluation: Evaluation) -> dict[str, Any]:
    """Return the results as JSON values; without times and looks, so that the same evaluation gives the same."""
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
            name: {label: one and dataclasses.asdict(one) for label, one in zip(("plain", "rank"), found, strict=True)}
            for name, found in evaluation.coefficients.items()
        },
        "policies": {
            name: {key: estimate._asdict() for key, estimate in found.items()}
            for name, found in _filed(evaluation.policies).items()
        },
        "overfitting": dataclasses.asdict(evaluation.overfitting),
        "return_percent_at_cost_bps": {
            name: {f"{bps:g}": value for bps, value in by_cost.items()}
            for name, by_cost in _filed(evaluation.cost_returns).items()
        },
        "known_biases": evaluation.biases,
    }


def verdict_values(evaluation: Evaluation) -> dict[str, Any]:
    """Return the verdict as JSON values."""
    found, best = evaluation.verdict, evaluation.verdict.best_baseline
    tests = {
        "over_random_picker": found.selection,
        "timing": found.timing,
        "exposure": found.exposure,
        "over_equal_weight": found.over_equal_weight,
        **{f"over_equal_weight_at_its_{name}": test for name, test in found.scaled.items()},
        "over_best_rival": best and best.test,
    }
    return {
        "sentence": evaluation.sentence,
        "evidence": [
            {
                **dataclasses.asdict(evidence),
                "p_value": evidence.smallest,
                "is_significant": evidence.is_significant,
                "share_of_orders": trust.orders,
                "trust_in_timing": trust.timing,
            }
            for evidence, trust in zip(evaluation.evidence, evaluation.trust, strict=True)
        ],
        "has_skill": found.has_skill,
        "is_better_than_random_picker": found.has_selection,
        "has_timing": found.has_timing,
        "is_better_than_equal_weight": found.is_better_than_equal_weight,
        "best_rival": best and best.name,
        "beside_best_rival": best and best.outcome,
        "rivals": best.among if best else 0,
        "trials": found.trials,
        "picker_chance": found.rank_p_value,
        "timing_chance": found.timing_known.p_value if found.timing_known else 1.0,
        "share_of_pickers_beaten": found.share_of_random_beaten,
        "percent_a_year": {
            name: {"mean": test.mean, "interval": test.interval, "p_value": test.p_value}
            for name, test in tests.items()
            if test is not None
        },
    }


def write_page(evaluation: Evaluation, path: Path) -> None:
    """Write the page in one step: `path` holds the old page or the whole new one. OSError where that fails."""
    write_document(render(evaluation), path)


def render(evaluation: Evaluation) -> str:
    """Return the page as HTML text."""
    records, rows = evaluation.records, evaluation.verdict.rows
    monthly = monthly_returns(evaluation.dates, evaluation.equity[CHAMPION])
    return document(
        "page.html",
        evaluation.title,
        metrics=METRICS,
        limit=TAIL,
        report=evaluation,
        facts=_facts(evaluation),
        differences=[(name, Estimate(test.mean, *test.interval), p_value) for name, test, p_value in rows],
        scale=Scale(test for _, test, _ in rows),
        champion=evaluation.policies[CHAMPION],
        equity=charts.equity_chart(evaluation),
        drawdown=charts.drawdown_chart(evaluation),
        monthly=monthly,
        largest_month=float(np.nanmax(np.abs([percent for _, percent, _ in monthly]), initial=0.0)),
        months=MONTHS,
        traded=charts.traded_stocks(evaluation),
        exits=charts.EXITS,
        costs=charts.cost_chart(evaluation),
        fitness=charts.fitness_chart(records) if records else None,
        settings=shown_settings(evaluation.config),
        command=evaluation.command,
    )


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    """Say what was judged, and on what."""
    config, market, played = evaluation.config, evaluation.market, evaluation.played
    facts = {
        "Run": evaluation.name,
        "Split": evaluation.split,
        "Days": f"{evaluation.dates[0]} to {evaluation.dates[-1]}",
        "Champion": evaluation.champion_generation and f"of generation {evaluation.champion_generation}",
        "Data": "built-in market" if config.data is None else config.data.name,
        "Windows": f"{len(played.days)} of {played.days.shape[1] - 1} sessions, one after the other",
        "Stocks": f"{len(market.investable_columns):,} of {len(market.tickers):,}",
        "Generations": evaluation.records[-1]["generation"] if evaluation.records else None,
    }
    for fold in evaluation.folds:
        tested, champion = " to ".join(fold.dates["holdout"]), f"champion of generation {fold.champion_generation}"
        facts[fold.name] = f"tested {tested}, {champion}, {fold.return_percent:+.2f}%"
    facts |= {"Seed": config.seed, "Device": evaluation.device}
    return {name: value for name, value in facts.items() if value is not None}


def monthly_returns(dates: Dates, equity: FloatArray) -> list[tuple[int, FloatArray, float]]:
    """Return each year with its returns in percent by month, from month's end to month's end, and compounded.

    `dates` and `equity` are (T,); the first value is the equity before the first return. A month without days is NaN.
    """
    growth = pd.Series(1.0 + daily_returns(equity), pd.DatetimeIndex(dates[1:]))
    years = growth.index.year
    months = growth.groupby([years, growth.index.month]).prod().unstack().reindex(columns=range(1, 13))
    rows = zip(months.index, months.to_numpy(), growth.groupby(years).prod(), strict=True)
    return [(year, 100.0 * (row - 1.0), 100.0 * (whole - 1.0)) for year, row, whole in rows]
