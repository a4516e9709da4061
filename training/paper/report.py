"""An account's backtest, the same decider on the same days and recorded prices, played as it is judged; and the page of
both, with orders, positions, certificate, and what happened."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from training.evaluation.pages import document, write_document
from training.paper.account import Account
from training.paper.certificate import LINE, capital_curves, finding
from training.paper.decider import Champion, word_of
from utils.arrays import Float64Array
from utils.charts import Chart, number
from utils.runs.run_log import REPORT
from utils.tables import Rows, many

_SHOWN = 40
_COLOURS = {"account": "#0072B2", "backtest": "#333333", "benchmark": "#E69F00"}
_NOTES = ("stop", "go", "doubt", "hold", "missed", "unfilled", "unknown", "rename")


@dataclass(frozen=True)
class Backtest:
    """What the account should be: by session, from its first one on."""

    equity: Float64Array
    """(sessions,) at the closes."""
    cash: Float64Array
    shares: Float64Array
    """(sessions, n)."""
    benchmark: Float64Array

    def first_difference(self, account: Account, rounding: float) -> str:
        """Return the first session on which the account differs by more than a share, and in what; empty: never."""
        book = account.book
        for place, day in enumerate(range(book.start, book.last + 1)):
            said, date = book.session(day), book.date(day)
            expected = dict(zip(account.tickers, self.shares[place].tolist(), strict=True))
            for ticker in {**expected, **said["positions"]}:
                has, due = said["positions"].get(ticker, 0.0), expected.get(ticker, 0.0)
                if has != due and not 0 < abs(book.worth({ticker: has - due}, day)) <= rounding * said["equity"]:
                    return f"{date}: {has!r} shares of {ticker}, backtest {due!r}"
            for name in ("equity", "cash", "benchmark"):
                has, due = said[name], float(getattr(self, name)[place])
                if not np.isclose(has, due, rtol=rounding, atol=rounding * said["equity"]):
                    return f"{date}: {name} {has!r}, backtest {due!r}"
        return ""


def backtest(account: Account) -> Backtest:
    """Play the account's decider from its first session to its last one; locks end where they did in the account."""
    book = account.book
    account = account.on(book.last, walked=None)
    portfolio = account.new_portfolio()
    policy, ledger = account.decider.policy(account.market, slice(book.start, None)), portfolio.account
    cash, shares = [ledger.cash], [ledger.shares]
    while int(ledger.day) < book.last:
        portfolio.trade(policy(portfolio))
        cash.append(ledger.cash)
        shares.append(ledger.shares)
        if int(ledger.day) in book.released:
            ledger.release()
    curves = ledger.equity_curve, torch.stack(cash), torch.stack(shares), portfolio.benchmark.equity_curve
    return Backtest(*(curve[: len(cash), 0].numpy() for curve in curves))


def parity_sentence(account: Account, played: Backtest) -> str:
    """Say whether the account is its backtest, bit for bit, or where it first differs."""
    ways = {0.0: "bit for bit", 1e-9: "but for last digits, which another version or processor rounds otherwise,"}
    if account.journal.of("event"):
        # Rescaled prices round otherwise, scores are in single precision, and a band multiplies what they differ by.
        ways = {1e-5: "to 0.001% of the equity, prices having been adjusted again,"}
    for rounding, how in ways.items():
        if not (difference := played.first_difference(account, rounding)):
            sessions = many(len(played.equity), "session")
            return f"Account and backtest are equal {how} on {sessions}: shares, cash and equity."
    whose = "" if account.journal.opening["venue"] == "paper" else "The fills are the venue's, in whole shares. "
    return f"{whose}Account and backtest differ, first on {difference}."


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
    journal, opening, sessions = account.journal, account.journal.opening, account.journal.sessions
    dates, results = [*sessions], [body["result"] for body in sessions.values()]
    x, who, decider = np.array(dates, "datetime64[D]"), word_of(opening), account.decider
    equity, benchmark = (np.array([body[name] for body in sessions.values()]) for name in ("equity", "benchmark"))
    curves = {"account": equity, "backtest": played.equity, "benchmark": benchmark}
    percent = {name: 100 * (curve / curve[0] - 1) for name, curve in curves.items()}
    capital = np.maximum(capital_curves(np.array(results, dtype=np.float64)), 1e-3)
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
            "cash": number(account.book.session(account.book.last)["cash"], 2),
            "benchmark": number(benchmark[-1], 2),
            **({"forecasts": decider.agent.evidence.followed} if isinstance(decider, Champion) else {}),
            "head of the journal": journal.last.hash,
        },
        state=f"Nothing is bought: {reason}" if (reason := journal.stop_reason()) else "The account takes orders",
        parity=parity_sentence(account, played),
        words=finding(results, dates, opening["certificate"], who),
        who=who,
        equity=Chart("Profit, % of the first capital", x, percent, colours=_COLOURS),
        certificate=Chart(
            f"Capital of a bet on the {who}, from 1",
            x,
            {"capital": capital, "skill is shown at": np.full(len(x), LINE), "even": np.ones(len(x))},
            "{:,.3g}",
            is_log=True,
        ),
        terms=opening["certificate"],
        listings=_listings(account),
    )


def _listings(account: Account) -> dict[str, Rows]:
    book, journal, answers = account.book, account.journal, account.journal.of("answer")
    orders, factors = Rows(), journal.units()
    unanswered = {"status": "accepted" if journal.opening["venue"] == "paper" else "unknown"}
    for order in book.intended(book.last):
        said = answers[order.id].body if order.id in answers else unanswered
        shares = order.shares / factors[order.ticker]
        answer = f"{said['status']} {said.get('reason', '')}"
        orders.append({"side": order.side, "ticker": order.ticker, "shares": shares, "answer": answer})
    session, positions, (gained, closed) = book.session(book.last), Rows(), profits(account)
    values = {ticker: book.worth({ticker: shares}, book.last) for ticker, shares in session["positions"].items()}
    for ticker, worth in sorted(values.items(), key=lambda one: -one[1]):
        shares = session["positions"][ticker] / factors[ticker]
        money = {"value": number(worth, 2), "weight, %": number(100 * worth / session["equity"], 2)}
        profit = number(gained.get(ticker, 0.0) + worth, 2, is_signed=True)
        positions.append({"ticker": ticker, "shares": shares, **money, "profit": profit})
    fields = ("side", "ticker", "shares", "price", "reason")
    fills = [
        {"session": book.date(day), **{name: getattr(fill, name) for name in fields}}
        for day in range(book.last, book.start - 1, -1)
        for fill in book.as_traded(day)
    ]
    noted = [row for kind in _NOTES for row in journal.of(kind).values()]
    noted += [journal.of("intent")[date] for date in journal.in_hindsight]
    noted += [row for row in journal.of("event").values() if "held" in row.body]
    notes = sorted(noted, key=lambda row: row.number)
    return {
        "Orders for the next session": orders,
        "Positions": positions,
        "Closed positions, the last ones": [
            one | {"profit": number(one["profit"], 2, is_signed=True)} for one in closed[: -_SHOWN - 1 : -1]
        ],
        "Fills, the last ones": fills[:_SHOWN],
        "What happened": [
            {"what": row.kind, "when": row.key, "why": row.body.get("text", "")} for row in notes[-_SHOWN:]
        ],
    }


def profits(account: Account) -> tuple[dict[str, float], Rows]:
    """Return what was received for the stocks that are held, less what was paid since their first purchase, and the
    closed positions with their profit, before costs."""
    book, closed, first, gained = account.book, Rows(), dict[str, str](), dict[str, float]()
    for day in range(book.start + 1, book.last + 1):
        for fill in book.fills(day):
            first.setdefault(fill.ticker, book.date(day))
            gained[fill.ticker] = gained.get(fill.ticker, 0.0) - fill.sign * fill.value
        for ticker in sorted(first.keys() - book.session(day)["positions"].keys()):
            span = {"ticker": ticker, "from": first.pop(ticker), "to": book.date(day)}
            closed.append({**span, "profit": gained.pop(ticker)})
    return gained, closed
