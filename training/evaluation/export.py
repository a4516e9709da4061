"""An evaluation as text, and as files: results.json, trades, equity, and a self-contained page."""

import dataclasses
import filecmp
import itertools
import logging
import shutil
import textwrap
from calendar import month_abbr
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data.record import data_fingerprint
from training.evaluation import charts
from training.evaluation.baselines import BENCHMARK, CHAMPION, EQUAL, INDEX, PLAIN_MOMENTUM, RANDOM, RULE
from training.evaluation.holdout import Look, add_look, champions_looked_at, locked_ledger, read_looks
from training.evaluation.judge import Evaluation
from training.evaluation.measures import METRICS, Estimate
from training.evaluation.pages import document, shown_settings, write_document
from training.evaluation.verdict import TAIL, outcome
from training.forecasts.skill import DECAY, clearest
from utils.arrays import DateArray, Float64Array
from utils.charts import number
from utils.config.cli import command_line
from utils.config.settings import changed_flags
from utils.config.trader import profile_config
from utils.metrics import daily_returns
from utils.runs.run_log import REPORT, write_atomically, write_json
from utils.tables import Rows, many, spreadsheet_text, table, written_p

logger = logging.getLogger(__name__)
RESULTS, EQUITY, TRADES, POSITIONS = "results.json", "equity.csv", "trades.csv", "positions.csv"
REFUSED = "refused.csv"
SCHEMA = 1
"""Of results.json; docs/evaluate.md lists its fields."""
_MOST_COLUMNS, _UNBROKEN = 120, 10**6
_SYNTHETIC = "synthetic market: says nothing about real ones"
SHOWN = ("return", "annual_return", "volatility", "sharpe", "max_drawdown", "turnover", "exposure", "beta", "alpha")
"""Measures of a file's table, and of a judgement."""
FILES = (RESULTS, REPORT, EQUITY, TRADES, POSITIONS, REFUSED)
"""What `write_evaluation` writes, the last one of trades that were not done as claimed."""


def answer(evaluation: Evaluation, lines: Mapping[str, object] | None = None, width: int | None = None) -> str:
    """Return the result as a person reads it on a terminal, with further lines by their labels at its end.

    First what is earned, then what of it is followed and how sure it is, then what else to know.

    Args:
        width: of the lines, letters; default: that of the terminal.
    """
    is_synthetic, policies = evaluation.config.data is None, evaluation.policies
    width = width or min(_MOST_COLUMNS, shutil.get_terminal_size().columns)
    first, last = (str(evaluation.dates[place])[:7] for place in (0, -1))
    said = [f"RESULT  {evaluation.split}, {first} to {last}, after costs"]
    for name in evaluation.earned:
        sharpe, fall = (policies[name][key].value for key in ("sharpe", "max_drawdown"))
        said.append(f"{_cells(name, policies)}   Sharpe {_text(sharpe, '.1f')}   max drawdown {_text(fall, '.0f')} %")
    said.append(f"{'':25}{'lead, % a year':>16}")
    said += [f"{_cells(one.policy, policies)}   {_text(one.test.mean):>7}   {one.word}" for one in evaluation.leads]
    if RULE in policies:
        said.append(f"{_cells(RULE, policies, 'ceiling')}   {RULE}")
    asked = None if evaluation.judged == CHAMPION else evaluation.played.asked
    labelled = {
        "asked": evaluation.apart or (asked.sentence if asked else ""),
        "training days": evaluation.evidence_sentence,
        evaluation.split: evaluation.conclusion,
        "verdict": "" if is_synthetic else evaluation.headline.partition(":")[0],
        "null markets": evaluation.null.sentence if evaluation.null else "",
        "networks": evaluation.untrained,
        "warning": evaluation.suspicion,
        "note": _SYNTHETIC if is_synthetic else f"known biases: {', '.join(evaluation.biases).lower()}",
    }
    for label, text in labelled.items():
        if text:
            said.append(
                textwrap.fill(f"  {label:<15}{text}", width, subsequent_indent=" " * 17, break_on_hyphens=False)
            )
    return "\n".join([*said, *(f"  {label:<15}{text}" for label, text in (lines or {}).items())])  # whole, to be copied


def in_full(evaluation: Evaluation, lines: Mapping[str, object] | None = None) -> str:
    """Return the answer with all policies, tests, what to know before believing them, and the verdict, for files."""
    measures = Rows()
    for name, found in evaluation.policies.items():
        _, low, high = found["return"]
        row = {"policy": name, **{METRICS[key].label: found[key].value for key in SHOWN}}
        row["return 95%"] = None if low is None else f"{low:+.2f} to {high:+.2f}"
        sessions = clearest(ranks := evaluation.coefficients.get(name, {}))
        row["rank IC (sessions)"] = sessions and f"{ranks[sessions].mean:.3f} ({sessions})"
        measures.append(row)
    tables = map(table, (measures, part_rows(evaluation)))
    told = [*evaluation.caveats, f"verdict: {' '.join((*evaluation.warnings, evaluation.finding))}"]
    return "\n\n".join([answer(evaluation, lines, _UNBROKEN), *tables, "\n".join(told)])


def part_rows(evaluation: Evaluation) -> Rows:
    """Return the parts of the profit, and the differences from others, with their tests."""
    return [
        {
            "% a year": label,
            "mean": test.mean,
            "95%": "{:+.2f} to {:+.2f}".format(*test.interval),
            "p": written_p(p if p < 1 else None),
        }
        for _, label, test, p in evaluation.verdict.parts
    ]


def _cells(name: str, policies: Mapping[str, Mapping[str, Estimate]], label: str = "") -> str:
    return f"  {label or name:<15}{_text(policies[name]['return'].value):>7} %"


def _text(value: float | None, form: str = "+,.1f") -> str:
    return "-" if value is None else format(value, form)


def results(evaluation: Evaluation) -> dict[str, Any]:
    """Return the results as JSON values; without times and looks, so that the same evaluation gives the same."""
    first, last = str(evaluation.dates[0]), str(evaluation.dates[-1])
    champion = {"first_day": first, "last_day": last, "champion_generation": evaluation.champion_generation}
    folds = {"folds": [dataclasses.asdict(fold) for fold in evaluation.folds]}
    asked = evaluation.played.asked
    return {
        "schema": SCHEMA,
        "run": evaluation.name,
        "split": evaluation.split,
        "benchmark": evaluation.played.benchmark,
        **(folds if evaluation.folds else champion),
        "verdict": _verdict(evaluation),
        "active_share": dict(evaluation.played.active_share),
        "correlation": dict(evaluation.played.correlation),
        "active_correlation": dict(evaluation.played.active_correlation),
        "asked": asked and {**dataclasses.asdict(asked), "refused": asked.refused_for},
        "information_coefficients": {
            name: {str(sessions): dataclasses.asdict(one) for sessions, one in values.items()}
            for name, values in evaluation.coefficients.items()
        },
        "importance": dict(evaluation.importance),
        "policies": {
            name: {key: estimate._asdict() for key, estimate in values.items()}
            for name, values in evaluation.policies.items()
        },
        "overfitting": dataclasses.asdict(evaluation.overfitting),
        "return_percent_at_cost_bps": evaluation.cost_returns,
        "known_biases": evaluation.biases,
    }


def _verdict(evaluation: Evaluation) -> dict[str, Any]:
    verdict, best = evaluation.verdict, evaluation.verdict.best_baseline
    return {
        "sentence": evaluation.sentence,
        "evidence": [
            {**dataclasses.asdict(evidence), "is_significant": evidence.is_significant}
            for evidence in evaluation.evidence
        ],
        "null": evaluation.null and dataclasses.asdict(evaluation.null),
        "has_skill": verdict.has_skill,
        "is_better_than_random_picker": verdict.has_selection,
        "has_timing": verdict.has_timing,
        "is_better_than_benchmark": verdict.is_better_than_benchmark,
        "best_rival": best and best.name,
        "beside_best_rival": best and outcome(best.test),
        "rivals": best.among if best else 0,
        "trials": verdict.trials,
        "picker_chance": verdict.selection.rank,
        "timing_chance": verdict.timing.rank,
        "share_of_pickers_beaten": verdict.share_of_random_beaten,
        "percent_a_year": {
            key: {"mean": test.mean, "interval": test.interval, "p_value": test.p_value}
            for key, _, test, _ in verdict.parts
        },
    }


def log_evaluation(evaluation: Evaluation) -> None:
    """Show an evaluation on the console; of a policy that never traded, that it did not."""
    if evaluation.never_traded:
        logger.info("%s", evaluation.sentence)
    else:
        logger.info("%s", in_full(evaluation), extra={"terminal": answer(evaluation)})


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write page, results, trades, positions and equity into a folder, each file in one step or newly made.

    Other results of a policy of the user are kept in FOLDER-1, FOLDER-2 and so on, the oldest first.
    """
    earlier = None
    if evaluation.judged != CHAMPION and (folder / RESULTS).is_file():
        places = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(1))
        earlier = folder.rename(next(place for place in places if not place.exists()))
    folder.mkdir(exist_ok=True)
    refused = evaluation.played.asked.refused if evaluation.played.asked else None
    for name, rows in ((TRADES, evaluation.trades), (POSITIONS, evaluation.positions), (REFUSED, refused)):
        if rows is not None and (len(rows) or name != REFUSED):
            rows.assign(ticker=rows["ticker"].fillna("").map(spreadsheet_text)).to_csv(folder / name, index=False)
    low, high = evaluation.random_band
    bands = {f"{RANDOM}, 5%": low, f"{RANDOM}, 95%": high}
    frame = pd.DataFrame({"date": np.datetime_as_string(evaluation.dates), **evaluation.equity, **bands})
    write_atomically(folder / EQUITY, frame.to_csv(index=False))
    write_json(folder / RESULTS, results(evaluation))
    write_document(render(evaluation), folder / REPORT)
    logger.info("written to %s", folder)
    if earlier is None:
        return
    equal, *_ = filecmp.cmpfiles(earlier, folder, FILES, shallow=False)
    if {path.name for path in earlier.iterdir()} == {*equal}:
        shutil.rmtree(earlier)
    else:
        logger.info("earlier results of %s are kept in %s", evaluation.judged, earlier)


def record_look(evaluation: Evaluation, runs: Path) -> Evaluation:
    """Enter a look into the ledger of a folder of runs; return the evaluation with all looks at its days counted."""
    days = (str(evaluation.dates[0]), str(evaluation.dates[-1]))
    with locked_ledger(runs) as ledger:
        looks = read_looks(runs, evaluation.market, *days)
        champion = evaluation.name, evaluation.champion_generation, evaluation.champion_digest
        seen = champions_looked_at(looks, champion)
        evaluation = dataclasses.replace(evaluation, looks=looks, trials=evaluation.trials - 1 + seen)
        look = Look(
            datetime.now(UTC).isoformat(timespec="seconds"),
            evaluation.command,
            evaluation.champion_generation,
            *days,
            evaluation.policies[evaluation.judged]["return"].value,
            evaluation.sentence,
            evaluation.name,
            data_fingerprint(evaluation.market),
            evaluation.extends,
            evaluation.champion_digest,
        )
        add_look(ledger, look)
        looks.append(look)
    return evaluation


def render(evaluation: Evaluation) -> str:
    """Return the page as HTML text."""
    # The command that trains a run with these settings.
    config = dataclasses.replace(evaluation.config, run=None, resume=None)
    again = command_line("--profile", config.profile, *changed_flags(profile_config(config.profile), config))
    monthly, of_benchmark = (
        monthly_returns(evaluation.dates, evaluation.equity[name])
        for name in (evaluation.judged, evaluation.played.benchmark)
    )
    shares = evaluation.played.active_share
    earned = (
        f"{name} {number(evaluation.policies[name]['return'].value, 1, is_signed=True)} %"
        for name in (*evaluation.earned, evaluation.played.benchmark)
    )
    return document(
        "page.html",
        evaluation.title,
        report=evaluation,
        charts=charts,
        metrics=METRICS,
        limit=TAIL,
        facts=_facts(evaluation),
        told={
            "headline": evaluation.headline if evaluation.config.data is not None else "",
            "warning": " ".join(evaluation.warnings),
            "sentence": evaluation.finding,
            "earned": "" if evaluation.never_traded else f"{', '.join(earned)} after costs.",
            "evidence": evaluation.evidence_sentence,
            "networks": evaluation.untrained and f"Networks: {evaluation.untrained}.",
        },
        alike=(EQUAL, BENCHMARK, PLAIN_MOMENTUM, INDEX, min(shares, key=shares.__getitem__, default=EQUAL)),
        months=month_abbr[1:],
        monthly=[
            (year, months, (own, other, own - other))
            for (year, months, own), (*_, other) in zip(monthly, of_benchmark, strict=True)
        ],
        parts=part_rows(evaluation),
        results=[
            {"Policy": name, **{metric: found[key] for key, metric in METRICS.items()}}
            for name, found in evaluation.policies.items()
        ],
        costs=[
            {"Policy": name, **{f"{bps} bp": value for bps, value in at_cost.items()}}
            for name, at_cost in evaluation.cost_returns.items()
        ],
        scores=_score_rows(evaluation),
        decided=_decided(evaluation),
        settings=shown_settings(evaluation.config),
        training=None if evaluation.champion_generation is None else again,
    )


def _score_rows(evaluation: Evaluation) -> Rows:
    rows = []
    for name, found in evaluation.coefficients.items():
        row: dict[str, Any] = {"Scores": name}
        for sessions in DECAY:
            one = found.get(sessions)
            row |= {many(sessions, "session"): one and one.mean, f"t {sessions}": number(one.t if one else None, 1)}
        rows.append(row | {"Days": max((one.days for one in found.values()), default=None)})
    return rows


def _decided(evaluation: Evaluation) -> list[tuple[Any, ...]]:
    """Return the champion's largest positions, their results in percent of the capital, and what decided them."""
    capital, rows = evaluation.played.curves[evaluation.judged].capital, list[tuple[Any, ...]]()
    for place, moved_by in evaluation.decided.items():
        held = evaluation.positions.iloc[place]
        end, net = charts.ENDS.get(held["reason"], charts.HELD), 100 * (held["profit"] - held["costs"]) / capital
        rows.append((held["ticker"], held["first_date"], held["last_date"], net, end, moved_by))
    return rows


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    config, market = evaluation.config, evaluation.market
    facts: dict[str, Any] = {
        "Run" if evaluation.judged == CHAMPION else "Policy": evaluation.name,
        "Split": evaluation.split,
        "Days": f"{evaluation.dates[0]} to {evaluation.dates[-1]}",
        "Champion": evaluation.champion_generation and f"of generation {evaluation.champion_generation}",
        "Data": "built-in market" if config.data is None else config.data.name,
        "Benchmark": ", ".join(filter(None, (evaluation.played.benchmark, config.evaluation.benchmark_weights))),
        "Stocks": f"{len(market.investable_columns):,} of {len(market.tickers):,}",
        "Seed": config.seed,
    }
    for fold in evaluation.folds:
        tested, champion = " to ".join(fold.dates["holdout"]), f"champion of generation {fold.champion_generation}"
        facts[fold.name] = f"tested {tested}, {champion}, {fold.return_percent:+.2f}%"
    return {name: value for name, value in facts.items() if value is not None}


def monthly_returns(dates: DateArray, equity: Float64Array) -> list[tuple[int, Float64Array, float]]:
    """Return each year with its returns in percent by month, from month's end to month's end, and compounded.

    `dates` and `equity` are (T,); the first value is the equity before the first return. A month without days is NaN.
    """
    growth = pd.Series(1.0 + daily_returns(equity), pd.DatetimeIndex(dates[1:]))
    years = growth.index.year
    months = growth.groupby([years, growth.index.month]).prod().unstack().reindex(columns=range(1, 13))
    rows = zip(months.index, months.to_numpy(), growth.groupby(years).prod(), strict=True)
    return [(year, 100.0 * (row - 1.0), 100.0 * (whole - 1.0)) for year, row, whole in rows]
