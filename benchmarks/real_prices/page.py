"""The study as one self-contained page, in the form of the product's report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.real_prices import words
from benchmarks.real_prices.accounts import BLOCKS, Account, Array, block_edges
from benchmarks.real_prices.measures import YEAR, Field, Figure
from benchmarks.real_prices.plan import AT_EXPOSURE, PICKERS, cap_label, cost_label, loss_label
from benchmarks.real_prices.report import Report
from training.evaluation.baselines import EQUAL
from training.evaluation.page.document import Scale, document
from utils.charts import Band, Chart, Line, ends_of, lines_of, number, percent
from utils.statistics import EDGES, MeanTest

COLUMNS: Mapping[str, tuple[str, str, int]] = {
    "profit": ("Profit", "% a year", 1),
    "sharpe": ("Sharpe", "a year", 2),
    "information_ratio": ("Information ratio", "over equal weight", 2),
    "over_pickers": ("Selection", "% a year", 1),
    "timing": ("Timing", "% a year", 1),
    "over_equal_at_exposure": ("Over equal weight at its exposure", "% a year", 1),
    "rank_ic": ("Rank IC", "mean", 3),
    "rank_ic_t": ("Rank IC", "t", 1),
    "beta": ("Beta", "ratio", 2),
    "alpha": ("Alpha", "% a year", 1),
    "turnover": ("Turnover", "times a year", 1),
    "max_drawdown": ("Drawdown", "%", 1),
    "exposure": ("Exposure", "%", 0),
}
"""Measures of the table of policies: label, unit and decimals."""
_SEED_STYLE, _EQUAL_STYLE, _RIVAL_STYLE, _PICKER_STYLE = 5, 1, 3, 7


def render(report: Report, command: str) -> str:
    """Return the page as HTML text; `command` makes it again."""
    universes = [_universe(report, name) for name in report.fields]
    rows = report.findings
    return document(
        "study.html",
        "What the trader is worth on real prices",
        folder=Path(__file__).parent,
        facts=_facts(report),
        headline=words.headline(report),
        is_better=rows[0].outcome == "better",
        said=words.lists(report),
        runs=words.runs(report),
        findings=[(found, _figure(found.test)) for found in rows],
        scale=Scale(found.test for found in rows),
        columns=COLUMNS,
        universes=universes,
        looks=report.looks,
        costs=report.costs,
        command=command,
        within=report.plan.close_percent,
    )


def _facts(report: Report) -> dict[str, Any]:
    plan, facts = report.plan, report.facts
    return {
        "Data": f"{facts.name}, {facts.tickers} tickers, {facts.first_day} to {facts.last_day}",
        "Test days": f"{len(report.dates)}, {report.dates[0]} to {report.dates[-1]}",
        "Folds": f"{plan.folds.folds}, each of {plan.folds.test_windows} episodes of {plan.config.env.episode_steps} "
        "days, trained on all days before",
        "Seeds": len(plan.seeds),
        "Generations": plan.config.generations,
        "Plan": plan.digest[:12],
        "Runs over these days": len(report.looks),
    }


def _universe(report: Report, name: str) -> dict[str, Any]:
    """Return what the page shows of a universe."""
    field, main = report.fields[name], report.fields[name].trained[0]
    account, costs = field.accounts[main], [cost_label(bps) for bps in report.plan.cost_bps]
    replayed = report.replayed(name)
    shown = [main, *(other for other in (EQUAL, _best_rival(report, name)) if other in replayed)]
    return {
        "id": f"u{[*report.fields].index(name)}",
        "stocks": words.stocks_of(report, name),
        "main": main,
        "evidence": words.evidence(report, name),
        "verdict": report.judgements[name][main].sentence,
        "equity": _equity_chart(report, name),
        "figures": report.figures[name],
        **_folds(report, field, main),
        "cost_chart": _cost_chart(report, {policy: replayed[policy] for policy in shown}),
        "cost_labels": costs,
        "by_cost": {policy: [_figure(tests.get(label)) for label in costs] for policy, tests in replayed.items()},
        "capitals": [f"{capital / 1e6:g} million" for capital in report.plan.capitals],
        "capacity": {
            f"{policy}, {cap:g}% of volume": [
                _figure(replayed[policy].get(cap_label(cap, capital))) for capital in report.plan.capitals
            ]
            for policy in field.trained
            for cap in report.plan.volume_caps
        }
        if report.facts.has_volume
        else {},
        "losses": {
            f"{loss:g}%": [_figure(replayed[policy].get(loss_label(loss))) for policy in field.trained]
            for loss in report.plan.delisting_losses
        },
        "trained": field.trained,
        "power": {policy: report.power(name, policy) for policy in field.trained},
        "seeds": len(account.track.equity),
    }


def _best_rival(report: Report, name: str) -> str:
    best = report.judgements[name][report.fields[name].trained[0]].best_baseline
    return "" if best is None else best.name


def _figure(test: MeanTest | None) -> Figure:
    return Figure(None) if test is None else Figure(test.mean, *test.interval)


def _folds(report: Report, field: Field, policy: str) -> dict[str, Any]:
    """Return a row for each fold, with its days, what the policy earned and its differences, and their scale."""
    days = len(report.dates) // field.folds
    tests = [
        [field.of_fold(fold).difference(policy, against) for against in (PICKERS, AT_EXPOSURE)]
        for fold in range(field.folds)
    ]
    rows = []
    for fold, pair in enumerate(tests):
        part = field.of_fold(fold)
        rows.append(
            {
                "days": f"{report.dates[fold * days]} to {report.dates[(fold + 1) * days - 1]}",
                "profit": _yearly(part.accounts[policy]),
                "equal": _yearly(part.equal),
                "differences": [_figure(test) for test in pair],
            }
        )
    return {"folds": rows, "fold_scale": Scale(test for pair in tests for test in pair)}


def _yearly(account: Account) -> float:
    return YEAR * float(account.profit.mean())


def stitched(profit: Array, steps: int) -> Array:
    """Return (..., days + 1) growth in percent of an account that reinvests from window to window.

    Args:
        profit: (..., days) percent of the capital with which each window begins.
    """
    inside = np.cumsum(profit.reshape(*profit.shape[:-1], -1, steps), axis=-1) / 100
    ends = np.cumprod(1 + inside[..., -1], axis=-1)
    before = np.concatenate((np.ones_like(ends[..., :1]), ends[..., :-1]), axis=-1)
    growth = (before[..., None] * (1 + inside)).reshape(profit.shape)
    return 100 * (np.concatenate((np.ones_like(growth[..., :1]), growth), axis=-1) - 1)


def _equity_chart(report: Report, name: str) -> Chart:
    """Draw the returns of the main policy and its seeds, equal weight, the best baseline and the random selections."""
    field = report.fields[name]
    policy, steps = field.trained[0], field.equal.steps
    account = field.accounts[policy]
    series = [(policy, account.profit, 0)]
    if len(account.track.equity) > 1:
        seeds = zip(report.plan.seeds, account.track.daily_profit, strict=True)
        series += [(f"seed {seed}", own, _SEED_STYLE) for seed, own in seeds]
    series.append((EQUAL, field.equal.profit, _EQUAL_STYLE))
    rival = _best_rival(report, name)
    series += [(rival, field.accounts[rival].profit, _RIVAL_STYLE)] if rival else []
    assert account.pickers is not None
    series.append(("mean of random selections", account.pickers.daily.mean(axis=0), _PICKER_STYLE))
    lines = [
        Line(label, values, style, percent(values[-1]))
        for label, profit, style in series
        for values in [stitched(profit, steps)]
    ]
    days = np.array([report.dates[0], *report.dates], dtype="datetime64[D]")
    windows = account.windows
    return Chart(
        title="Return since the first test day, %",
        note="After costs; each episode begins with what the one before it left. Bold: mean over seeds. Shaded: the "
        "middle 95% of random selections, which give the same orders for stocks drawn at random. Dotted: a new fold.",
        description=f"Return in percent. At the end: {ends_of(lines)}.",
        x=days,
        lines=lines,
        bands=[Band("random selections, 2.5% to 97.5%", *_band(account, steps))],
        verticals=[days[steps * window] for window in range(field.windows_of_fold, windows, field.windows_of_fold)],
        height=380,
    )


def _band(account: Account, steps: int) -> tuple[Array, Array]:
    """Return the middle 95% of the random selections' returns, (days + 1,) each, known at the ends of blocks."""
    assert account.pickers is not None
    curves = stitched(account.pickers.each(slice(0, account.windows), steps), steps)
    edges = np.unique(np.add.outer(steps * np.arange(account.windows), block_edges(steps)))
    low, high = np.percentile(curves[:, edges], EDGES, axis=0)
    days = np.arange(curves.shape[1])
    assert len(edges) == BLOCKS * account.windows + 1
    return np.interp(days, edges, low), np.interp(days, edges, high)


def _cost_chart(report: Report, replayed: Mapping[str, Mapping[str, MeanTest]]) -> Chart:
    """Draw the yearly profit of policies by costs a leg."""
    costs = np.array(report.plan.cost_bps)
    labels = [cost_label(bps) for bps in report.plan.cost_bps]
    series = {
        policy: np.array([tests[label].mean for label in labels])
        for policy, tests in replayed.items()
        if all(label in tests for label in labels)
    }
    main, *_ = replayed
    edges = np.array([replayed[main][label].interval for label in labels])
    charged = 10_000 * report.plan.config.env.cost_rate
    return Chart(
        title="Profit by costs, % of the capital a year",
        note="Costs and slippage of one leg in basis points of the value traded; the same orders again, cut to the "
        f"cash that is left. Shaded: 95% interval of the {main}. All else on this page is at {number(charged, 0)}.",
        description="Profit in percent a year by cost a leg; the table below holds the numbers.",
        x=costs,
        x_unit=" bp",
        lines=lines_of(series),
        bands=[Band("95% interval", edges[:, 0], edges[:, 1])],
        verticals=[charged] if costs.min() <= charged <= costs.max() else [],
    )
