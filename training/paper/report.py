"""The page of a paper account: account and backtest, orders, positions, certificate, and what happened."""

from pathlib import Path
from typing import Any

import numpy as np

from training.evaluation.baselines import ALL_ORDERS, BASKET, CHAMPION, EQUAL
from training.evaluation.charts import COLOURS
from training.evaluation.page.document import document, write_document
from training.paper.account import Account
from training.paper.backtest import Backtest
from training.paper.certificate import LINE, capital_curves, finding
from training.paper.decider import word_of
from training.paper.known import units
from utils.charts import Chart, number
from utils.runs.run_log import REPORT

_SHOWN = 40
_COLOURS = {"account": COLOURS[CHAMPION], "backtest": "#333333", **COLOURS, BASKET: COLOURS[EQUAL]}
_NOTES = ("stop", "go", "doubt", "hold", "missed", "unknown", "rename")


def parity_sentence(account: Account, played: Backtest) -> str:
    """Say whether the account is its backtest, bit for bit, or where it first differs."""
    ways = {0.0: "bit for bit", 1e-9: "but for last digits, which another version or processor rounds otherwise,"}
    if account.journal.of("event"):
        ways = {1e-6: "to the cent, prices having been adjusted again,"}
    for rounding, how in ways.items():
        if not (difference := played.first_difference(account, rounding)):
            return f"Account and backtest are equal {how} on {len(played.fills)} sessions: equity, orders and fills."
    return f"Account and backtest differ, first on {difference}."


def is_current(account: Account) -> bool:
    """Tell whether the account's page shows its journal up to the last row."""
    path = account.path / REPORT
    return path.exists() and account.journal.last.hash in path.read_text(encoding="utf-8")


def write_report(account: Account, played: Backtest) -> Path:
    """Write the page into the account's folder."""
    path = account.path / REPORT
    write_document(_render(account, played), path)
    return path


def _render(account: Account, played: Backtest) -> str:
    journal, opening, sessions = account.journal, account.journal.opening, account.journal.of("session")
    dates, results = [*sessions], [row.body["result"] for row in sessions.values()]
    x, who = np.array(dates, "datetime64[D]"), word_of(opening)
    agents, basket, equity = (
        np.array([row.body[name] for row in sessions.values()]) for name in ("equity", "basket", "whole")
    )
    expected = account.whole(played.equity, played.basket)
    curves = {"account": equity, "backtest": expected, ALL_ORDERS: agents, BASKET: basket}
    share = {} if who == "policy" else {"follows the agents": f"{account.decider.share:.0%}"}
    if np.array_equal(agents, equity):  # all of the capital follows whoever decides
        del curves[ALL_ORDERS], curves[BASKET]
    percent = {name: 100 * (curve / curve[0] - 1) for name, curve in curves.items() if curve[0] > 0}
    power = np.log10(np.maximum(capital_curves(np.array(results, dtype=np.float64)), 1e-3))
    return document(
        "report.html",
        f"Paper account {account.name}",
        folder=Path(__file__).parent,
        facts={
            who: opening["run"] if who == "policy" else f"{opening['run']}, generation {opening['generation']}",
            "capital": number(opening["capital"], 0),
            "venue": opening["venue"],
            "calendar": opening["calendar"],
            "sessions": f"{dates[0]} to {dates[-1]}",
            "equity": number(equity[-1], 2),
            **share,
            "head of the journal": journal.last.hash,
        },
        state=f"No new orders: {reason}" if (reason := journal.stop_reason()) else "The account takes orders",
        parity=parity_sentence(account, played),
        words=finding(results, dates, opening["certificate"], who),
        who=who,
        equity=Chart("Profit of account and backtest, % of the first capital", x, percent, colours=_COLOURS),
        certificate=Chart(
            f"Capital of a bet on the {who}, powers of ten",
            x,
            {"capital": power, "skill is shown at": np.full(len(x), np.log10(LINE))},
            "{:.2f}",
        ),
        terms=opening["certificate"],
        listings=_listings(account),
    )


def _listings(account: Account) -> dict[str, list[dict[str, Any]]]:
    book, journal, answers = account.book, account.journal, account.journal.of("answer")
    orders, who = [], word_of(journal.opening)
    for order in book.intended(book.last):
        by = who if order.is_own else "basket" if order.is_of_basket else "rules"
        said = answers[order.id].body if order.id in answers else {"status": "unknown"}
        answer = f"{said['status']} {said.get('reason', '')}"
        orders.append(_cells(order, "side", "ticker", "value", "target_percent") | {"decided by": by, "answer": answer})
    names = ("ticker", "shares", "entry_price", "last_price", "target_price", "sessions_held")
    filled, factors = ("side", "ticker", "shares", "price", "reason"), units(journal)
    days, positions = range(book.last, book.start - 1, -1), book.positions(book.last)
    fills = [{"session": book.date(day)} | _cells(fill, *filled) for day in days for fill in book.fills(day)]
    noted = [row for kind in _NOTES for row in journal.of(kind).values()]
    noted += [row for row in journal.of("event").values() if "held" in row.body]
    notes = sorted(noted, key=lambda row: row.number)
    return {
        "Orders for the next session": orders,
        "Positions": [_cells(one.holding.in_units(factors[one.holding.ticker]), *names) for one in positions],
        "Fills, the last ones": fills[:_SHOWN],
        "Stops, doubts, holds, and sessions that were missed": [
            {"what": row.kind, "when": row.key, "why": row.body.get("text", "")} for row in notes[-_SHOWN:]
        ],
    }


def _cells(one: object, *names: str) -> dict[str, Any]:
    return {name.replace("_", " "): getattr(one, name) for name in names}
