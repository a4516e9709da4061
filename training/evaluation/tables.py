"""An assessment as people read it: tables of text, files of trades and equity, and the contents of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.market import Market
from environment.ledger import EXIT_REASONS
from training.evaluation.assessment import Assessment
from training.evaluation.comparison import RANDOM
from training.evaluation.page.contents import (
    METRICS,
    Difference,
    EquityCurves,
    Estimate,
    ExitReason,
    MemoryPoint,
    PolicyResult,
    Trade,
    TradedStock,
    Verdict,
)
from training.evaluation.statistics import MeanTest
from training.evaluation.tracks import Played
from training.evaluation.verdict import Judgement
from utils.tables import table

Array = npt.NDArray[np.float64]
_TRADED_STOCKS = 6
"""Stocks whose trades are drawn, the most traded ones."""
_BAND = (5, 95)
_TRADE_COLUMNS = [
    *("policy", "window", "ticker", "order_date", "entry_date", "entry_price", "shares", "value", "target_price"),
    *("exit_date", "exit_price", "reason", "profit", "costs"),
]
_PAGE_REASONS: tuple[ExitReason, ...] = ("target", "target", "time", "lost", "end")
_REASONS = dict(zip(EXIT_REASONS[1:], _PAGE_REASONS, strict=True))


def policy_table(assessment: Assessment) -> str:
    """Every policy's measures, and the intervals of return and Sharpe ratio."""
    labels = {key: f"{metric.label} ({metric.unit})" for key, metric in METRICS.items()}
    rows = [
        {
            "policy": name,
            **{labels[key]: estimate.value for key, estimate in found.items()},
            "return 95%": _interval(found["return"]),
            "Sharpe 95%": _interval(found["sharpe"]),
        }
        for name, found in assessment.policies.items()
    ]
    measures, intervals = list(METRICS)[:6], ("return 95%", "Sharpe 95%")
    first = table(rows, ("policy", *(labels[key] for key in measures), *intervals))
    return f"{first}\n\n{table(rows, ('policy', *(labels[key] for key in list(METRICS)[6:])))}"


def cost_table(assessment: Assessment) -> str:
    """Return in percent under other costs a leg."""
    costs = assessment.costs
    labels = [f"{bps:g} bp" for bps in costs.cost_bps]
    rows = [
        {"return % at costs a leg of": name, **dict(zip(labels, (value.value for value in values), strict=True))}
        for name, values in costs.returns.items()
    ]
    return table(rows, ("return % at costs a leg of", *labels))


def luck_lines(assessment: Assessment) -> list[str]:
    """What the choice among trials may have added, one sentence a line."""
    found, judgement = assessment.overfitting, assessment.judgement
    lines = [f"more profit than {100 * judgement.share_of_pickers_beaten:.1f}% of random pickers with the same orders"]
    if found.deflated_sharpe is not None:
        best = f", which the best of {found.trials:,} trials without skill would show"
        lines.append(
            f"deflated Sharpe ratio: probability {found.deflated_sharpe:.3f} of a true ratio above "
            f"{found.expected_best_sharpe:.2f}{best if judgement.trials > 1 else ''}"
        )
    if found.backtest_overfitting is not None:
        lines.append(f"probability of backtest overfitting on validation: {found.backtest_overfitting:.2f}")
    return lines


def _interval(estimate: Estimate) -> str | None:
    if estimate.low is None or estimate.high is None:
        return None
    return f"{estimate.low:+.2f} to {estimate.high:+.2f}"


def trade_frame(played: Played, market: Market) -> pd.DataFrame:
    """Every trade of the agents, one row each: dates, prices and money in currency units, `profit` before `costs`."""
    tickers = np.array(market.tickers)[market.investable_columns]
    rows = [
        {"policy": policy, **_dated(trade, market.dates, tickers)}
        for policy, ledger in played.ledgers.items()
        for trade in ledger
    ]
    return pd.DataFrame(rows, columns=_TRADE_COLUMNS)


def _dated(trade: Mapping[str, Any], dates: npt.NDArray[np.datetime64], tickers: npt.NDArray[Any]) -> dict[str, Any]:
    days = {f"{when}_date": _iso(dates[trade[f"{when}_day"]]) for when in ("order", "entry", "exit")}
    return {**trade, **days, "ticker": str(tickers[trade["stock"]])}


def _iso(day: np.datetime64) -> str:
    return str(day.astype("datetime64[D]"))


def equity_frame(played: Played, market: Market) -> pd.DataFrame:
    """Stitched equity by date, one column a policy; of random pickers the mean and percentiles 5 and 95."""
    columns: dict[str, Any] = {"date": [_iso(day) for day in _dates(played, market)]}
    for name, track in played.tracks.items():
        columns[name] = track.stitched.mean(axis=0)
    low, high = _picker_band(played)
    return pd.DataFrame({**columns, f"{RANDOM}, 5%": low, f"{RANDOM}, 95%": high})


def _dates(played: Played, market: Market) -> npt.NDArray[np.datetime64]:
    """(W * D + 1,) dates of the stitched equity."""
    days = np.concatenate((played.days[:1, 0], played.days[:, 1:].ravel()))
    return market.dates[days]


def _picker_band(played: Played) -> tuple[Array, Array]:
    low, high = np.percentile(played.tracks[RANDOM].stitched, _BAND, axis=0)
    return low, high


def page_equity(played: Played, market: Market) -> EquityCurves:
    """The stitched curves of the page: the champion and the baselines, without the elites, which crowd it."""
    steps = played.days.shape[1] - 1
    crowd = list(played.ledgers)[1:]
    return EquityCurves(
        {name: track.stitched.mean(axis=0) for name, track in played.tracks.items() if name not in crowd},
        _dates(played, market).astype("datetime64[D]"),
        _picker_band(played),
        window_starts=[steps * window for window in range(len(played.days))],
    )


def page_policies(assessment: Assessment) -> list[PolicyResult]:
    """The lines of the page's table."""
    return [PolicyResult(name, found) for name, found in assessment.policies.items()]


def page_verdict(judgement: Judgement, caveats: Sequence[str]) -> Verdict:
    """The banner of the page."""
    return Verdict(
        judgement.sentence,
        judgement.is_better,
        [
            Difference("random pickers with the same orders", _difference(judgement.against_pickers)),
            Difference("equal weight", _difference(judgement.against_equal_weight)),
        ],
        "percent of the initial capital a year",
        caveats,
    )


def _difference(test: MeanTest) -> Estimate:
    return Estimate(test.mean, *test.interval)


def page_trades(played: Played, market: Market) -> list[TradedStock]:
    """The champion's trades in the stocks that it traded most, with their prices over all days played."""
    ledger = next(iter(played.ledgers.values()))
    counts = np.bincount([int(str(trade["stock"])) for trade in ledger], minlength=len(market.investable_columns))
    most = [stock for stock in np.argsort(-counts, kind="stable")[:_TRADED_STOCKS].tolist() if counts[stock]]
    first, last = int(played.days.min()), int(played.days.max())
    dates = market.dates.astype("datetime64[D]")
    return [
        TradedStock(
            market.tickers[market.investable_columns[stock]],
            dates[first : last + 1],
            market.close[first : last + 1, stock].astype(np.float64),
            [_page_trade(trade, dates) for trade in ledger if trade["stock"] == stock],
        )
        for stock in most
    ]


def _page_trade(trade: Mapping[str, Any], dates: npt.NDArray[np.datetime64]) -> Trade:
    return Trade(
        entry_day=dates[trade["entry_day"]],
        entry_price=trade["entry_price"],
        target_price=trade["target_price"],
        exit_day=dates[trade["exit_day"]],
        exit_price=trade["exit_price"],
        reason=_REASONS[trade["reason"]],
        return_percent=100 * (trade["profit"] - trade["costs"]) / trade["value"],
    )


def page_memory(records: Sequence[Mapping[str, Any]]) -> list[MemoryPoint]:
    """Memory at the end of each generation, by the records of metrics.jsonl; times add up over resumed runs."""
    seconds = np.cumsum([record["seconds"]["total"] for record in records]).tolist()
    return [
        (
            f"generation {record['generation']}",
            after,
            *(record["memory"][f"{kind}_mb"] or 0.0 for kind in ("rss", "uss", "gpu_allocated")),
        )
        for record, after in zip(records, seconds, strict=True)
    ]
