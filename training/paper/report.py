"""The page of a paper account: account and backtest, orders, positions, certificate, and what happened."""

from pathlib import Path

import numpy as np

from training.evaluation.page.document import document, write_document
from training.paper.account import Account
from training.paper.backtest import Backtest
from training.paper.certificate import LINE, MEDIAN_SESSIONS, capital_curves, finding
from utils.charts import Chart, number
from utils.runs.run_log import REPORT

_SHOWN = 40
_NOTES = ("stop", "go", "doubt", "hold", "missed", "unknown")


def parity_sentence(account: Account, played: Backtest) -> str:
    """Say whether the account is its backtest, bit for bit, or where it first differs."""
    sessions = account.book.last - account.book.start + 1
    if difference := played.first_difference(account):
        return f"Account and backtest differ, first on {difference}."
    return f"Account and backtest are equal bit for bit on {sessions} sessions: equity, orders and fills."


def write_report(account: Account, played: Backtest) -> Path:
    """Write the page into the account's folder."""
    path = account.path / REPORT
    write_document(_render(account, played), path)
    return path


def _render(account: Account, played: Backtest) -> str:
    book, journal = account.book, account.journal
    days = range(book.start, book.last + 1)
    dates, results = [book.date(day) for day in days], [row.body["result"] for row in journal.of("session").values()]
    capital, opening = capital_curves(np.array(results, dtype=np.float64)), journal.opening
    x = np.array(dates, dtype="datetime64[D]")
    percent = {
        "account": 100 * (np.array([book.equity(day) for day in days]) / opening["capital"] - 1),
        "backtest": 100 * (played.equity / opening["capital"] - 1),
    }
    equity = Chart("Profit of account and backtest, percent of the first capital", x, percent)
    power = np.log10(np.maximum(capital, 1e-3))
    certificate = Chart(
        "Capital of a bet on the champion, powers of ten",
        x,
        {"capital": power, "skill is shown at": np.full(len(x), np.log10(LINE))},
        "{:.2f}",
    )
    return document(
        "report.html",
        f"Paper account {account.name}",
        folder=Path(__file__).parent,
        facts={
            "champion": f"{opening['run']}, generation {opening['generation']}",
            "capital": number(opening["capital"], 0),
            "venue": opening["venue"],
            "calendar": opening["calendar"],
            "sessions": f"{dates[0]} to {dates[-1]}",
            "equity": number(book.equity(book.last), 2),
        },
        state=f"No new orders: {reason}" if (reason := journal.stop_reason()) else "The account takes orders",
        parity=parity_sentence(account, played),
        words=finding(results, dates),
        last=dates[-1],
        equity=equity,
        certificate=certificate,
        terms=opening["certificate"],
        medians=[[number(ratio, 1), number(sessions, 0)] for ratio, sessions in MEDIAN_SESSIONS.items()],
        **_listings(account),
    )


def _listings(account: Account) -> dict[str, list[list[str]]]:
    book, journal, last = account.book, account.journal, account.book.last
    answers = journal.of("answer")
    intent = journal.of("intent").get(book.date(last))
    orders = [
        [
            order["side"],
            order["ticker"],
            number(order["value"], 2) if order["side"] == "buy" else "all",
            number(order["target_percent"], 1) if order["side"] == "buy" else "",
            "champion" if order["is_own"] else "round robin" if order["side"] == "buy" else "rules",
            answers[order["id"]].body["status"] if order["id"] in answers else "unknown",
        ]
        for order in (intent.body["orders"] if intent else ())
    ]
    positions = [
        [
            one.ticker,
            number(one.shares, 4),
            book.date(one.entry_day),
            number(one.entry_price, 4),
            number(one.last_price, 4),
            number(one.target_price, 4),
        ]
        for one in (position.holding for position in book.positions(last))
    ]
    fills = [
        [date, one["side"], one["ticker"], number(one["shares"], 4), number(one["price"], 4), one["reason"]]
        for date, row in journal.of("session").items()
        for one in row.body["fills"]
    ]
    rows = sorted((row for kind in _NOTES for row in journal.of(kind).values()), key=lambda row: row.number)
    notes = [[row.kind, row.key, str(row.body.get("text", ""))] for row in rows]
    return {"orders": orders, "positions": positions, "fills": fills[: -_SHOWN - 1 : -1], "notes": notes[-_SHOWN:]}
